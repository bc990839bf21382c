//! Counts the instructions of each part of the hot path with callgrind. The result does not depend on the machine's load.
//!
//! `cargo bench --bench instructions [PART]` runs itself under valgrind, twice for each part whose name contains PART. The second
//! run executes the part [`MORE`] times more, so that start and preparation cancel out. The cost of an empty call is measured
//! first and subtracted.

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

mod cases;

/// Calls in the first run. One-time work, such as the first growth of a buffer, is done by then.
const FEW: u64 = 100;
/// Additional calls in the second run.
const MORE: u64 = 1000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["--do", name, times] => repeat(name, times),
        [] => table(""),
        [part] => table(part),
        _ => Err("usage: cargo bench --bench instructions [PART]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn table(part: &str) -> Result<(), Box<dyn Error>> {
    let nothing = instructions("")?;
    println!("| part | instructions |\n|---|---|");
    for case in cases::cases().iter().filter(|case| case.name.contains(part)) {
        println!("| {} | {} |", case.name, instructions(&case.name)?.saturating_sub(nothing));
    }
    Ok(())
}

/// Instructions of one call of this part, rounded down.
fn instructions(name: &str) -> Result<u64, Box<dyn Error>> {
    let few = counted(name, FEW)?;
    Ok((counted(name, FEW + MORE)? - few) / MORE)
}

/// Instructions of a whole run.
fn counted(name: &str, times: u64) -> Result<u64, Box<dyn Error>> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions.callgrind");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(env::current_exe()?).args(["--do", name, &times.to_string()]).stdout(Stdio::null());
    let status =
        valgrind.status().map_err(|error| format!("valgrind: {error} (apt-get install valgrind)"))?;
    if !status.success() {
        return Err(format!("valgrind: {status}").into());
    }
    let profile = fs::read_to_string(&out)?;
    let total =
        profile.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    Ok(total.ok_or("callgrind's file has no sum")?.trim().parse()?)
}

/// Executes one part repeatedly under valgrind; an empty name is a part that does nothing.
fn repeat(name: &str, times: &str) -> Result<(), Box<dyn Error>> {
    let mut part: cases::Part = match name {
        "" => Box::new(|| {}),
        name => cases::cases().iter().find(|case| case.name == name).ok_or("no such part")?.make(),
    };
    for _ in 0..times.parse()? {
        std::hint::black_box(&mut part)();
    }
    Ok(())
}
