//! The memory of the machine and of the memory cgroup, from which the default budget follows.

use forebay_base::units::MIB;
use std::fs;

/// The smaller of a quarter of RAM and half of the memory cgroup's limit, at least 16 MiB, in
/// bytes.
pub(crate) fn default_budget() -> u64 {
    let total = total_ram().unwrap_or(1 << 30) / 4;
    let cgroup = cgroup_limit().map_or(u64::MAX, |limit| limit / 2);
    total.min(cgroup).max(16 * MIB)
}

/// Bytes of RAM.
pub(crate) fn total_ram() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The limit of this process's memory cgroup, version 2 or 1, if it has one.
fn cgroup_limit() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut limit = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let file = match controllers {
            "" => format!("/sys/fs/cgroup{path}/memory.max"),
            c if c.split(',').any(|c| c == "memory") => {
                format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")
            }
            _ => continue,
        };
        let value = fs::read_to_string(file).ok().and_then(|t| t.trim().parse::<u64>().ok());
        limit = match (limit, value) {
            (Some(a), Some(b)) => Some(std::cmp::min::<u64>(a, b)),
            (a, b) => a.or(b),
        };
    }
    limit.filter(|&l| l < 1 << 60)
}
