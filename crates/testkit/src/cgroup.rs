//! A memory cgroup for one child process: version 2 where its memory controller is enabled for
//! child groups, else version 1.
//!
//! The cgroup must have no processes when it is removed: the owner of the child ends it first.

use forebay_base::{Error, ErrorKind, Result};
use std::fs;
use std::path::{Path, PathBuf};

const V1: &str = "/sys/fs/cgroup/memory";
/// Where version 2 is mounted: alone, or in addition to version 1.
const V2: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The number in the line of `text` that starts with `name`; 0 if there is none.
pub fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()).map_or(0, |n| n.parse().unwrap_or(0))
}

/// Where cgroups with a memory controller are made, and whether that is version 1.
fn root() -> Option<(&'static Path, bool)> {
    let handed_down = |root: &&str| {
        let text = fs::read_to_string(Path::new(root).join("cgroup.subtree_control"));
        text.is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
    };
    let v2 = V2.iter().find(|root| handed_down(root)).map(|root| (Path::new(*root), false));
    let v1 = || Path::new(V1).join("memory.limit_in_bytes").exists();
    v2.or_else(|| v1().then_some((Path::new(V1), true)))
}

/// Version of the memory cgroups of this machine, for people: the two hold writers back in
/// different ways.
pub fn version() -> &'static str {
    match root() {
        Some((_, false)) => "version 2",
        Some((_, true)) => "version 1",
        None => "none",
    }
}

/// A memory limit for processes. The cgroup is removed on drop.
pub struct Memcg {
    dir: PathBuf,
    v1: bool,
}

impl Memcg {
    /// Makes a cgroup with a limit in bytes. Unsupported where no cgroup may be made.
    pub fn create(name: &str, limit: u64) -> Result<Self> {
        let Some((root, v1)) = root() else {
            let text = "no memory controller for cgroups of ours";
            return Err(Error::new(ErrorKind::Unsupported, "memory cgroup", text));
        };
        let dir = root.join(format!("forebay-test-{name}-{}", std::process::id()));
        let fail = |e| Error::from_io("memory cgroup", e).with_path(&dir);
        let refused = |e| Error::new(ErrorKind::Unsupported, "memory cgroup", format!("{e}"));
        fs::create_dir(&dir).map_err(|e| refused(e).with_path(&dir))?;
        let group = Self { dir: dir.clone(), v1 };
        let file = if v1 { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(dir.join(file), limit.to_string()).map_err(fail)?;
        Ok(group)
    }

    /// Changes the limit, bytes; the kernel reclaims what exceeds it.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        let file = if self.v1 { "memory.limit_in_bytes" } else { "memory.max" };
        let path = self.dir.join(file);
        fs::write(&path, bytes.to_string()).map_err(|e| Error::from_io("limit", e).with_path(path))
    }

    /// Moves a process in.
    pub fn add(&self, pid: u32) -> Result<()> {
        let path = self.procs();
        fs::write(&path, pid.to_string()).map_err(|e| Error::from_io("join", e).with_path(path))
    }

    /// Moves a process out, into the parent.
    pub fn remove(&self, pid: u32) -> Result<()> {
        let path = self.dir.join("../cgroup.procs");
        fs::write(&path, pid.to_string()).map_err(|e| Error::from_io("leave", e).with_path(path))
    }

    /// The file that a process writes its id into to join.
    pub fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Processes killed for want of memory since the cgroup was made.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.v1 { "memory.oom_control" } else { "memory.events" };
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        field(&text, "oom_kill ")
    }

    /// The most memory that was charged to the cgroup at a time, bytes, the system's buffers and
    /// file pages included. `None` where the system does not say.
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = if self.v1 { "memory.max_usage_in_bytes" } else { "memory.peak" };
        fs::read_to_string(self.dir.join(file)).ok()?.trim().parse().ok()
    }

    /// Bytes charged to the cgroup now, without file pages: memory of its processes, and what the
    /// kernel keeps for them.
    pub fn heap_bytes(&self) -> Option<u64> {
        let (usage, files) =
            if self.v1 { ("memory.usage_in_bytes", "cache ") } else { ("memory.current", "file ") };
        let read = |name: &str| fs::read_to_string(self.dir.join(name)).ok();
        let usage: u64 = read(usage)?.trim().parse().ok()?;
        Some(usage.saturating_sub(field(&read("memory.stat")?, files)))
    }

    /// How often a charge met the limit.
    pub fn limit_hits(&self) -> u64 {
        let file = if self.v1 { "memory.failcnt" } else { "memory.events" };
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        if self.v1 { text.trim().parse().unwrap_or(0) } else { field(&text, "max ") }
    }
}

impl Drop for Memcg {
    fn drop(&mut self) {
        for _ in 0..50 {
            let _ = fs::write(self.dir.join("memory.force_empty"), "0");
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn child_in_cgroup_is_limited() {
        let group = Memcg::create("self", 64 << 20);
        let why = group.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let Ok(group) = group else {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(allowed, "this test requires a memory cgroup: {why}");
            eprintln!("skipped: requires a memory cgroup: {why}");
            return;
        };
        // Only memory that is taken inside the cgroup is charged, so the child waits for a line
        // first.
        let script = "read go && head -c 8M /dev/zero | tail -n 1 >/dev/null";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let joined = group.add(child.id());
        let inside = fs::read_to_string(group.procs()).unwrap_or_default();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        child.wait().unwrap();
        joined.unwrap();
        assert!(inside.contains(&child.id().to_string()));
        assert!(group.heap_bytes().is_some_and(|bytes| bytes < 64 << 20));
        let peak = group.peak_bytes();
        assert!(peak.is_none_or(|peak| (8 << 20..=64 << 20).contains(&peak)), "{peak:?}");
        assert_eq!(group.oom_kills(), 0);
        assert_eq!(version(), if group.v1 { "version 1" } else { "version 2" });
        let dir = group.dir.clone();
        drop(group);
        assert!(!dir.exists());
    }
}
