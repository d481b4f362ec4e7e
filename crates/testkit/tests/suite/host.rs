//! The oracle's own oracle: the file system in memory compared with the host's, operation by
//! operation.
//!
//! Differences, with reasons, are in [`equal`]; operations that the host lacks, in [`limits`].
//!
//! No locks.

use forebay_testkit::fs_check::suite::{Subject, cases};
use forebay_testkit::fs_check::{Config, Limits, Op, Outcome, Times, compare, shrink};
use forebay_testkit::host_fs::HostFs;
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_vfs::{FileSystem, ManualClock};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of host file systems whose manners are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    Tmpfs,
    Ext4,
}

/// What this host may be asked for.
fn limits(host: Host) -> Limits {
    Limits {
        // The largest file of ext4 has 16 TiB. In memory it is 2^63 - 1 bytes, but in the last page
        // of that lseek(SEEK_HOLE) overflows and returns nonsense (seen on 6.18); appends get room
        // before it.
        size_max: if host == Host::Ext4 { 1 << 43 } else { (1 << 63) - (1 << 20) },
        // All of an inode's have to fit into a block; 128 KiB of `user.` in memory.
        xattr_bytes_max: if host == Host::Ext4 { 100 } else { 30_000 },
        // We run as root, whose writes keep set-id bits.
        drop_privileges: false,
        // Mode bits of devices are for the host's administrator to allow.
        devices: false,
        ..Limits::default()
    }
}

/// A known difference. Directories in memory take their times from the inode that comes or goes,
/// whose clock is coarse: a second change within a tick is not to be seen there.
fn equal_but_for_ticks(_op: &Op, ours: &Outcome, theirs: &Outcome) -> bool {
    type Moved = Option<(bool, bool)>;
    let unseen = |pair: (&Moved, &Moved)| match pair {
        (Some((x, ours)), Some((y, theirs))) => x == y && (ours == theirs || *ours),
        (ours, theirs) => ours == theirs,
    };
    ours.answer == theirs.answer
        && ours.moved.len() == theirs.moved.len()
        && ours.moved.iter().zip(&theirs.moved).all(unseen)
}

/// Known differences of each host, with their reasons.
fn equal(host: Host) -> fn(&Op, &Outcome, &Outcome) -> bool {
    match host {
        Host::Tmpfs => equal_but_for_ticks,
        Host::Ext4 => |_, ours, theirs| ours == theirs,
    }
}

fn folders() -> Vec<(Host, PathBuf)> {
    let kind = |path: &Path| match rustix::fs::statfs(path).map(|s| s.f_type as u64) {
        Ok(0x0102_1994) => Some(Host::Tmpfs),
        Ok(0xef53) => Some(Host::Ext4),
        _ => None,
    };
    let candidates = [PathBuf::from("/dev/shm"), std::env::temp_dir(), PathBuf::from("/var/tmp")];
    let mut found: Vec<(Host, PathBuf)> = Vec::new();
    for path in candidates {
        if let Some(host) = kind(&path)
            && found.iter().all(|(other, _)| *other != host)
        {
            found.push((host, path));
        }
    }
    found
}

/// Fresh file systems, alike.
fn fresh(host: Host, folder: &Path) -> (Arc<dyn FileSystem>, Arc<dyn FileSystem>, Config) {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let clock = Arc::new(ManualClock::default());
    let options = MemOptions { clock: clock.clone(), ..MemOptions::default() };
    let name = format!("{host:?}-{}", SERIAL.fetch_add(1, Ordering::Relaxed));
    let config = Config {
        limits: limits(host),
        times: Times::Moved,
        clock: Some(clock),
        equal: equal(host),
        ..Config::default()
    };
    (Arc::new(MemFs::new(options)), Arc::new(HostFs::new(folder, &name)), config)
}

/// Cases of the rules that this host cannot keep, or be asked for through the adapter, and why.
fn left_out(host: Host, case: &str) -> Option<&'static str> {
    match case {
        "f3_directory_removed_while_open" => Some("rustix takes ENOENT for the end of a listing"),
        "f3_unknown_numbers_are_stale" => Some("numbers are the adapter's own"),
        "flags_of_opening_are_known_or_refused" => Some("truncates what is opened to read"),
        "a_file_without_a_name_needs_a_directory" => Some("makes them in removed ones, too"),
        "f4_what_stays_is_listed_once" | "f4_a_hundred_thousand_entries" => {
            Some("cookies are the adapter's own")
        }
        "kinds_and_targets" => Some("mknod of a directory is EPERM, not EINVAL"),
        "rename_flags_are_known_or_refused" => Some("knows RENAME_WHITEOUT"),
        "flags_are_known_or_refused" => Some("the adapter passes no flags on"),
        "privileges_are_dropped" => Some("root's writes keep them"),
        "xattr_limits" => Some("has limits of its own"),
        "f8_the_far_end" if host == Host::Ext4 => Some("its largest file has 16 TiB"),
        "f8_the_far_end" => Some("lseek overflows in the last page"),
        "attributes_are_set_alone_and_together" => Some("several calls: not all or none"),
        _ => None,
    }
}

#[test]
fn host_keeps_file_system_rules() {
    if !may_run() {
        return;
    }
    let mut broken = Vec::new();
    for (host, folder) in folders() {
        for case in cases().iter().filter(|case| !case.needs_clock) {
            if let Some(why) = left_out(host, case.name) {
                eprintln!("{host:?} is not asked for {}: {why}", case.name);
                continue;
            }
            let (_, fs, _) = fresh(host, &folder);
            let subject = Subject { fs, clock: None };
            let run = std::panic::AssertUnwindSafe(|| (case.run)(&subject));
            match std::panic::catch_unwind(run) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => broken.push(format!("{host:?} {}: {e}", case.name)),
                Err(_) => broken.push(format!("{host:?} {}: see above", case.name)),
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Whether there is a root, as owners and set-id bits need it.
fn may_run() -> bool {
    let root = rustix::process::geteuid().is_root();
    let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    assert!(root || allowed, "owners and set-id bits as the contract has them need root");
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

#[test]
fn host_agrees_with_memory_file_system() {
    if !may_run() {
        return;
    }
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (seeds, count) = (number("FOREBAY_VFS_SEEDS", 4), number("FOREBAY_VFS_OPS", 1200));
    let first = number("FOREBAY_SEED", 1);
    let folders = folders();
    assert!(!folders.is_empty(), "neither tmpfs nor ext4 in /dev/shm, /tmp, /var/tmp");
    for (host, folder) in folders {
        for seed in first..first + seeds {
            let (ours, theirs, config) = fresh(host, &folder);
            match compare(&*ours, &*theirs, &config, seed, count) {
                Ok(report) => {
                    let done = report.ops.min(report.done * 4);
                    assert!(done == report.ops, "most operations do nothing: {report:?}");
                }
                Err(mismatch) => {
                    drop((ours, theirs));
                    let short = shrink(*mismatch, &mut || fresh(host, &folder));
                    panic!("{host:?}: {short}");
                }
            }
        }
    }
}
