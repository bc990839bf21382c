//! Metrics of this process, from /proc. On other systems than Linux there are none.

use std::fs;

/// The unit of CPU times in /proc (`USER_HZ`), which is the same on all architectures that Linux supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// The state of the process at one moment. A value that could not be read is `None` and is not exported.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) user_seconds: Option<f64>,
    pub(super) system_seconds: Option<f64>,
    pub(super) resident_bytes: Option<f64>,
    pub(super) virtual_bytes: Option<f64>,
    pub(super) threads: Option<f64>,
    pub(super) open_fds: Option<f64>,
    pub(super) max_fds: Option<f64>,
    pub(super) start_seconds: Option<f64>,
}

/// Reads all values. Takes a few system calls, plus about one per 1,000 open descriptors.
pub(super) fn read() -> Process {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpu = cpu_of(&stat);
    let boot_seconds = number_after(&boot, "btime");
    Process {
        user_seconds: cpu.0,
        system_seconds: cpu.1,
        resident_bytes: number_after(&status, "VmRSS:").map(|kib| kib * 1024.0),
        virtual_bytes: number_after(&status, "VmSize:").map(|kib| kib * 1024.0),
        threads: number_after(&status, "Threads:"),
        // Not counting the descriptor of the directory itself.
        open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count().saturating_sub(1) as f64),
        max_fds: number_after(&limits, "Max open files"),
        start_seconds: field(&stat, 22)
            .zip(boot_seconds)
            .map(|(ticks, boot)| boot + ticks / TICKS_PER_SECOND),
    }
}

/// CPU seconds in user mode and in kernel mode. Reads one small file, so workers may call it.
pub(super) fn cpu() -> (Option<f64>, Option<f64>) {
    cpu_of(&fs::read_to_string("/proc/self/stat").unwrap_or_default())
}

/// Resident memory, in bytes; 0 if unknown.
pub(super) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    number_after(&status, "VmRSS:").map_or(0, |kib| (kib * 1024.0) as u64)
}

fn cpu_of(stat: &str) -> (Option<f64>, Option<f64>) {
    let seconds = |n| field(stat, n).map(|ticks| ticks / TICKS_PER_SECOND);
    (seconds(14), seconds(15))
}

/// Field `n` of /proc/PID/stat, counted from 1 as in proc(5). Field 2 is the program's name in parentheses, which may itself
/// contain spaces and parentheses.
fn field(stat: &str, n: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_ascii_whitespace().nth(n - 3)?.parse().ok()
}

/// The number after `name` on the line that begins with it.
fn number_after(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b) R 1 2 3 4 5 6 7 8 9 10 110 220 13";
        assert_eq!(field(stat, 14), Some(110.0));
        assert_eq!(field(stat, 15), Some(220.0));
        assert_eq!(field(stat, 99), None);
    }

    #[test]
    fn a_limit_that_is_not_a_number_is_left_out() {
        assert_eq!(number_after("Max open files  1024  4096 files", "Max open files"), Some(1024.0));
        assert_eq!(number_after("Max open files  unlimited unlimited", "Max open files"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_threads_descriptors_and_a_start_before_now() {
        let process = read();
        assert!(process.resident_bytes.unwrap() > 100_000.0);
        assert!(process.virtual_bytes.unwrap() >= process.resident_bytes.unwrap());
        assert!(process.threads.unwrap() >= 1.0);
        let before = process.open_fds.unwrap();
        let files: Vec<_> = (0..20).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        assert!(read().open_fds.unwrap() >= before + 15.0);
        drop(files);
        assert!(process.user_seconds.is_some() && process.system_seconds.is_some());
        let now = crate::clock::unix_ms() as f64 / 1000.0;
        assert!((now - process.start_seconds.unwrap()).abs() < 600.0, "{process:?} at {now}");
    }
}
