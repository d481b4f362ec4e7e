//! Describes the machine, as far as that explains the figures.

use forebay_base::{Error, Result};
use forebay_testkit::cgroup;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// The `machine` object of the JSON.
pub fn describe(dir: &Path) -> Value {
    let (device, fs_type) = mount_of(dir);
    json!({
        "kernel": line("/proc/sys/kernel/osrelease"),
        "cpu": cpu_model(),
        "cpus": std::thread::available_parallelism().map_or(0, |n| n.get()),
        "memory_bytes": memory_bytes(),
        "dir": dir.display().to_string(),
        "file_system": fs_type,
        "device": device,
        "read_ahead_kb": queue_dir(dir).map(|queue| line(&format!("{queue}/read_ahead_kb"))),
        "thp": bracketed("/sys/kernel/mm/transparent_hugepage/enabled"),
        "thp_defrag": bracketed("/sys/kernel/mm/transparent_hugepage/defrag"),
        "thp_khugepaged_defrag": line("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag"),
        "memory_cgroups": cgroup::version(),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// `/sys/.../queue` of the disk that holds `dir`, if it is a disk.
pub fn queue_dir(dir: &Path) -> Option<String> {
    let (device, _) = mount_of(dir);
    let name = fs::canonicalize(device).ok()?.file_name()?.to_str()?.to_string();
    let class = fs::canonicalize(format!("/sys/class/block/{name}")).ok()?;
    let own = class.join("queue");
    let found = if own.exists() { own } else { class.parent()?.join("queue") };
    found.exists().then(|| found.display().to_string())
}

/// The kernel's `stat` file of the block device that holds `path`.
pub fn device_stat(path: &Path) -> Result<PathBuf> {
    let fail = |e: rustix::io::Errno| Error::from_io("stat", e.into()).with_path(path);
    let device = rustix::fs::stat(path).map_err(fail)?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(format!("/sys/dev/block/{major}:{minor}/stat").into())
}

/// Bytes written to a block device so far.
pub fn sectors_written(stat: &Path) -> Result<u64> {
    let text = fs::read_to_string(stat).map_err(|e| Error::from_io("read", e).with_path(stat))?;
    let field = text.split_whitespace().nth(6).and_then(|f| f.parse::<u64>().ok());
    Ok(field.unwrap_or(0) * 512)
}

fn mount_of(dir: &Path) -> (String, String) {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let holding = fields.filter(|f| f.len() > 2 && dir.starts_with(f[1]));
    let best = holding.max_by_key(|f| f[1].len());
    best.map_or(("?".into(), "?".into()), |f| (f[0].to_string(), f[2].to_string()))
}

fn line(path: &str) -> String {
    fs::read_to_string(path).map_or("?".into(), |text| text.trim().to_string())
}

fn bracketed(path: &str) -> String {
    let text = line(path);
    let inside = text.split('[').nth(1).and_then(|rest| rest.split(']').next());
    inside.unwrap_or("?").to_string()
}

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    model.and_then(|line| line.split(": ").nth(1)).unwrap_or("?").to_string()
}

/// Size of RAM, bytes.
pub fn memory_bytes() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    cgroup::field(&info, "MemTotal:") * 1024
}

/// RAM that is available without swapping, bytes.
pub fn available_bytes() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    cgroup::field(&info, "MemAvailable:") * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_kernel_and_memory() {
        let machine = describe(Path::new("/"));
        assert!(machine["memory_bytes"].as_u64().unwrap() > 0);
        assert_ne!(machine["kernel"], "?");
    }
}
