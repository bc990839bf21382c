//! How much memory this process may use: the smallest limit of its control group and those above it, version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// Version 1 shows a group without a limit with about this one.
const UNLIMITED: u64 = 1 << 60;

/// The limit in bytes; `None` if there is none, or it cannot be read.
pub(crate) fn read() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    of_groups(&groups, Path::new(MOUNT))
}

/// `groups` is the content of /proc/self/cgroup.
fn of_groups(groups: &str, mount: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        match (number, controllers) {
            ("0", "") => smallest(&mount.to_owned(), group, "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                smallest(&mount.join("memory"), group, "memory.limit_in_bytes")
            }
            _ => None,
        }
    });
    limits.min()
}

/// The smallest limit of a group and those above it. In a container, the path of the group may be that on the host: then only the
/// mount itself exists, and it is the group's own.
fn smallest(mount: &PathBuf, group: &str, file: &str) -> Option<u64> {
    let own = mount.join(group.trim_start_matches('/'));
    let above = own.ancestors().take_while(|path| path.starts_with(mount));
    let limit = |path: &Path| fs::read_to_string(path.join(file)).ok()?.trim().parse().ok();
    above.filter_map(limit).filter(|limit| *limit < UNLIMITED).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_on_the_way_up_applies() {
        let mount = std::env::temp_dir().join(format!("kennel-cgroup-{}", std::process::id()));
        for (path, limit) in [
            ("a/memory.max", "max\n"),
            ("a/b/memory.max", "268435456\n"),
            ("a/b/c/memory.max", "536870912\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/d/memory.limit_in_bytes", "134217728\n"),
            ("memory.max", "1073741824\n"),
        ] {
            let file = mount.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, limit).unwrap();
        }
        for (groups, limit) in [
            ("0::/a/b/c\n", Some(268_435_456)),
            ("0::/a\n", Some(1_073_741_824)),
            // A path of the host.
            ("0::/kubepods/pod1\n", Some(1_073_741_824)),
            ("4:memory:/d\n0::/x\n", Some(134_217_728)),
            ("3:cpu:/d\n4:cpuset,memory:/\n", None),
            ("", None),
            ("nonsense\n", None),
        ] {
            assert_eq!(of_groups(groups, &mount), limit, "{groups}");
        }
        fs::remove_dir_all(mount).unwrap();
    }
}
