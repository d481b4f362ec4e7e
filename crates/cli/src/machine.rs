//! What the machine and its rules allow, read from /proc and /sys.

use std::path::PathBuf;

/// The first line of a file, trimmed; `None` if it cannot be read.
pub fn read_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(|l| l.trim().to_string())
}

/// The chosen word in a file like `always [madvise] never`.
pub fn chosen(path: &str) -> Option<String> {
    let line = read_line(path)?;
    let word = line.split_whitespace().find(|w| w.starts_with('['))?;
    Some(word.trim_matches(['[', ']']).to_string())
}

/// A field of /proc/meminfo in bytes.
pub fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.split(':').next() == Some(field))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// The memory limit of a control group that this process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLimit {
    /// 1 or 2.
    pub version: u8,
    /// The file that states it.
    pub file: PathBuf,
    /// Bytes.
    pub bytes: u64,
}

/// The tightest memory limit above this process, of either version; `None` if there is none.
pub fn cgroup_limit() -> Option<CgroupLimit> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    limit_files(&groups, &mounts)
        .into_iter()
        .filter_map(|(version, file)| {
            let text = std::fs::read_to_string(&file).ok()?;
            // Version 2 says "max", version 1 a number near 2^63 where there is no limit.
            let bytes = text.trim().parse().ok().filter(|b| *b < 1_u64 << 60)?;
            Some(CgroupLimit { version, file, bytes })
        })
        .min_by_key(|limit| limit.bytes)
}

/// The files that may state a limit: this group's and its parents', as the mounts show them.
fn limit_files(groups: &str, mounts: &str) -> Vec<(u8, PathBuf)> {
    let mut files = Vec::new();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (Some(root), Some(point), Some(kind)) = (left.get(3), left.get(4), right.first())
        else {
            continue;
        };
        let memory = right.get(2).is_some_and(|o| o.split(',').any(|o| o == "memory"));
        let (version, file) = match *kind {
            "cgroup2" => (2, "memory.max"),
            "cgroup" if memory => (1, "memory.limit_in_bytes"),
            _ => continue,
        };
        let Some(group) = own_group(groups, version) else { continue };
        // Inside a container the mount's root is the group itself.
        let below = group.strip_prefix(root).unwrap_or(if *root == "/" { group } else { "" });
        let mut place = PathBuf::from(point).join(below.trim_start_matches('/'));
        while place.starts_with(point) {
            files.push((version, place.join(file)));
            if !place.pop() {
                break;
            }
        }
    }
    files
}

fn own_group(groups: &str, version: u8) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let wanted = match version {
            2 => number == "0" && controllers.is_empty(),
            _ => controllers.split(',').any(|c| c == "memory"),
        };
        wanted.then_some(path)
    })
}

/// The first two numbers of a release.
pub fn version(release: &str) -> (u32, u32) {
    let mut parts = release.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// The first two numbers of the kernel's release.
pub fn linux_version() -> (u32, u32) {
    version(&rustix::system::uname().release().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions_and_of_parents() {
        let groups = "5:memory:/a/b\n1:cpu:/\n0::/x\n";
        let mounts = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 20 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files: Vec<String> =
            limit_files(groups, mounts).iter().map(|(_, f)| f.display().to_string()).collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/unified/x/memory.max",
                "/sys/fs/cgroup/unified/memory.max",
            ]
        );
    }

    #[test]
    fn container_cgroup_limit_is_found_at_root() {
        let mounts = "30 20 0:26 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let files = limit_files("0::/docker/1\n", mounts);
        assert_eq!(files, [(2, PathBuf::from("/sys/fs/cgroup/memory.max"))]);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(meminfo("MemTotal").is_some_and(|b| b > 1 << 20));
    }
}
