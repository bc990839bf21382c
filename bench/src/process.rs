//! Child processes that end with this one, and their resource usage.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::socket::Address;

/// The longest time until a process listens.
const START: Duration = Duration::from_secs(20);
/// The kernel's clock tick, the unit of CPU time in /proc: 100 per second on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// Numbers the log files.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The cores on which a process may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Those of this process.
    AsHere,
    /// Only the core of this number.
    Only(usize),
}

/// Restricts this process, and the processes that it starts, to all cores but one. That one is returned, for the proxies.
pub(crate) fn leave_one_core() -> Result<Cores, String> {
    let status = proc_file("self", "status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cores =
        cores(list.unwrap_or_default()).ok_or("/proc/self/status does not say which cores there are")?;
    let [first, others @ ..] = &cores[..] else { return Err("no core is allowed".into()) };
    if others.is_empty() {
        return Err("--pin wants a second core".into());
    }
    let others = others.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let own = std::process::id().to_string();
    let output = Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", &others, &own]).output();
    match output {
        Ok(output) if output.status.success() => Ok(Cores::Only(*first)),
        Ok(output) => Err(format!("taskset: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("taskset (of util-linux): {error}")),
    }
}

/// The numbers of a list such as `0-2,7`.
fn cores(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cores)
}

/// A child process, killed when dropped. The kernel kills what [`Process::start`] has started if this process ends without
/// dropping it.
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts a program, with its output in a file in `directory`. It has a process group of its own, so that Ctrl-C reaches only
    /// this process, which then ends the others.
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        directory: &Path,
        cores: Cores,
    ) -> Result<Process, String> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Cores::Only(core) = cores {
            // It executes the program, as setpriv does.
            command.args(["taskset", "--cpu-list", &core.to_string()]);
        }
        command.arg(program).args(arguments);
        Process::spawn(command, program, directory)
            .map_err(|error| format!("setpriv (of util-linux) for {error}"))
    }

    /// Measures the time from the exec of a program until it accepts connections, then ends it.
    pub(crate) fn time_to_listen(
        program: &Path,
        arguments: &[String],
        directory: &Path,
        address: &Address,
    ) -> Result<Duration, String> {
        // Without setpriv, which takes about as long to start. If this process is killed within these milliseconds, the child has
        // to be killed separately.
        let mut command = Command::new(program);
        command.args(arguments);
        let begun = Instant::now();
        let mut process = Process::spawn(command, program, directory)?;
        process.wait(address, Duration::from_micros(100))?;
        Ok(begun.elapsed())
    }

    fn spawn(mut command: Command, program: &Path, directory: &Path) -> Result<Process, String> {
        use std::os::unix::process::CommandExt;
        let name = program
            .file_name()
            .map_or_else(|| program.display().to_string(), |name| name.to_string_lossy().into_owned());
        let log = directory.join(format!("{name}-{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let open = || File::options().append(true).create(true).open(&log);
        let (out, err) = open()
            .and_then(|out| Ok((out, open()?)))
            .map_err(|error| format!("{}: {error}", log.display()))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let child = command
            .env_clear()
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        Ok(Process { child, name, log })
    }

    /// Waits until it accepts connections.
    pub(crate) fn wait_for(&mut self, address: &Address) -> Result<(), String> {
        self.wait(address, Duration::from_millis(5))
    }

    fn wait(&mut self, address: &Address, between: Duration) -> Result<(), String> {
        let begun = Instant::now();
        while address.connect().is_err() {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || begun.elapsed() > START {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("{} does not listen on {address}: {said}", self.name));
            }
            std::thread::sleep(between);
        }
        Ok(())
    }

    /// Sends it this signal, for example `STOP`.
    pub(crate) fn signal(&self, signal: &str) -> Result<(), String> {
        let status = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("kill -s {signal} for {}: {status}", self.name)),
            Err(error) => Err(format!("kill (of util-linux or procps): {error}")),
        }
    }

    /// CPU time since its start, user and system, of all its threads.
    pub(crate) fn cpu(&self) -> Result<Duration, String> {
        cpu(&self.child.id().to_string())
    }

    /// Its current memory, in bytes.
    pub(crate) fn memory(&self) -> Result<u64, String> {
        // Exact, whereas VmRSS in `status` lags behind.
        let rollup = proc_file(&self.child.id().to_string(), "smaps_rollup")?;
        bytes(&rollup, "Rss:").ok_or_else(|| format!("{}: no Rss", self.name))
    }

    /// Its peak memory, in bytes.
    pub(crate) fn peak_memory(&self) -> Result<u64, String> {
        let status = proc_file(&self.child.id().to_string(), "status")?;
        bytes(&status, "VmHWM:").ok_or_else(|| format!("{}: no VmHWM", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of this process.
pub(crate) fn own_cpu() -> Result<Duration, String> {
    cpu("self")
}

fn cpu(pid: &str) -> Result<Duration, String> {
    let stat = proc_file(pid, "stat")?;
    ticks(&stat)
        .map(|ticks| TICK * ticks)
        .ok_or_else(|| format!("/proc/{pid}/stat is not as expected: {stat}"))
}

fn proc_file(pid: &str, file: &str) -> Result<String, String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).map_err(|error| format!("/proc/{pid}/{file}: {error}"))
}

/// utime + stime of `/proc/PID/stat`, fields 14 and 15. The name before them may contain spaces and parentheses.
fn ticks(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    Some(user + fields.next()?.parse::<u32>().ok()?)
}

/// The value of this field, which is in KiB, in bytes.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Loopback ports that were free a moment ago, all different.
pub(crate) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // All are bound until the last one is found.
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Finds a program in PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Debian installs nutcracker in /usr/sbin, which is not in the PATH of most users.
    let all = std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin"].map(PathBuf::from));
    all.map(|directory| directory.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_user_plus_system_whatever_the_process_is_called() {
        let stat = "12 (a) b 7 (c) S 1 12 12 0 -1 4194304 100 0 0 0 250 31 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some(281));
        assert_eq!(ticks("12 (x) S 1"), None);
    }

    #[test]
    fn a_list_of_cores_has_ranges_and_numbers() {
        assert_eq!(cores("\t0-2,7\n"), Some(vec![0, 1, 2, 7]));
        assert_eq!(cores("3"), Some(vec![3]));
        assert_eq!(cores(""), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        let status = "VmPeak:\t  10 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 9 kB\n";
        assert_eq!(bytes(status, "VmHWM:"), Some(1234 * 1024));
        assert_eq!(bytes(status, "Rss:"), None);
    }
}
