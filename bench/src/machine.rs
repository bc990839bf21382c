//! The machine and the programs.

use std::fs;
use std::process::Command;

use crate::contender::Programs;

/// Above this load average, other processes affect the results.
pub(crate) const QUIET: f64 = 0.5;

/// The machine and the programs, as lines of a list.
pub(crate) fn describe(programs: &Programs) -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("?", |(_, value)| value.trim()).to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = after(&read("/proc/meminfo"), "MemTotal");
    let memory = memory.trim_end_matches(" kB").parse::<f64>().map_or(0.0, |kib| kib / f64::from(1 << 20));
    let nutcracker = programs.nutcracker.as_ref();
    format!(
        "- {cores} × {}, {memory:.0} GiB, Linux {}\n- {}; twemproxy: {}; {} ({}), workers = {}\n",
        after(&read("/proc/cpuinfo"), "model name"),
        read("/proc/sys/kernel/osrelease").trim(),
        output(Command::new(&programs.memcached).arg("-V")),
        nutcracker.map_or("not installed".into(), |program| output(Command::new(program).arg("-V"))),
        output(Command::new(&programs.kennel).arg("--version")),
        output(Command::new("git").args([
            "-C",
            env!("CARGO_MANIFEST_DIR"),
            "describe",
            "--always",
            "--dirty"
        ])),
        programs.workers,
    )
}

/// The load average of the last minute.
pub(crate) fn busy() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
}

/// The first line of a program's output.
fn output(command: &mut Command) -> String {
    let Ok(output) = command.output() else { return "?".into() };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("?").trim().to_owned()
}
