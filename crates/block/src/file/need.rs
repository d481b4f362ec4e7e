//! Whether the device under a file needs stable writes, as the system reports it, and refreshed.
//!
//! A block device reports it in `queue/stable_writes`. The kernel carries the need upward when
//! devices are stacked, but a setting changed below later does not reach the top. So the devices
//! below (`slaves`) are queried too, and any of them decides (lineage.S5). A file has the need of
//! the device under its file system. Btrfs checksums its writes, unless the file is marked `C` (no
//! copy on write, no checksum).
//!
//! Invariant: N1 an answer is at most [`FRESH`] old: a changed setting takes effect on open files.

use super::kind::Kind;
use crate::bdev::StableWrites;
use rustix::fs::{CWD, IFlags, Mode, OFlags, RawDir, Stat, openat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How old an answer may be.
const FRESH: Duration = Duration::from_millis(100);
/// Devices below devices are followed to this depth.
const DEPTH: u32 = 8;
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// Why bytes in flight must stay unchanged, or need not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    NotAsked,
    Device,
    Below,
    Btrfs,
}

const WHYS: [Why; 4] = [Why::NotAsked, Why::Device, Why::Below, Why::Btrfs];

/// The need of one file.
pub(crate) struct Need {
    /// Directories of the block devices in sysfs.
    devices: Vec<PathBuf>,
    btrfs: bool,
    start: Instant,
    /// Milliseconds since `start` of the last query, times 4, plus the index in [`WHYS`].
    last: AtomicU64,
}

impl Need {
    /// The need of an open file with this `stat`.
    pub(crate) fn of(fd: BorrowedFd<'_>, kind: Kind, stat: &Stat) -> Self {
        let magic = rustix::fs::fstatfs(fd).map(|s| s.f_type as u64).unwrap_or(0);
        let btrfs = kind == Kind::Regular && magic == BTRFS_MAGIC;
        let id = if kind == Kind::Block { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(id), rustix::fs::minor(id));
        let devices = match btrfs {
            true => btrfs_devices(fd, Path::new("/sys/fs/btrfs")),
            false => vec![PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))],
        };
        Self::new(devices, btrfs, fd)
    }

    fn new(devices: Vec<PathBuf>, btrfs: bool, fd: BorrowedFd<'_>) -> Self {
        let need = Self { devices, btrfs, start: Instant::now(), last: AtomicU64::new(0) };
        need.store(0, need.ask(fd).unwrap_or(Why::NotAsked));
        need
    }

    fn store(&self, millis: u64, why: Why) {
        self.last.store(millis << 2 | why as u64, Ordering::Relaxed);
    }

    /// Queries the system. `None` if it cannot answer now, for example without free descriptors.
    fn ask(&self, fd: BorrowedFd<'_>) -> Option<Why> {
        if self.btrfs && checksummed(fd) {
            return Some(Why::Btrfs);
        }
        let mut most = Why::NotAsked;
        for device in &self.devices {
            let why = ask_device(CWD, device.as_path(), 0)?;
            most = if why as u8 > most as u8 { why } else { most };
        }
        Some(most)
    }

    /// The need now, for I/O past the system's page cache (`direct`) or through it.
    pub(crate) fn get(&self, direct: bool, fd: BorrowedFd<'_>) -> StableWrites {
        if !direct {
            return StableWrites { required: false, reason: "the system's page cache copies" };
        }
        self.get_at(self.start.elapsed(), fd)
    }

    /// The need for direct I/O, at time `now` since `start`.
    fn get_at(&self, now: Duration, fd: BorrowedFd<'_>) -> StableWrites {
        let (last, now) = (self.last.load(Ordering::Relaxed), now.as_millis() as u64);
        let mut why = WHYS[(last & 3) as usize];
        if now >= (last >> 2) + FRESH.as_millis() as u64 {
            // If the system cannot answer now, the need stays as it was.
            why = self.ask(fd).unwrap_or(why);
            self.store(now, why);
        }
        let reason = match why {
            Why::NotAsked => "the device below does not ask",
            Why::Device => "the device below asks for it",
            Why::Below => "a device under the device below asks for it",
            Why::Btrfs => "btrfs checksums the file",
        };
        StableWrites { required: why != Why::NotAsked, reason }
    }
}

/// The need of a block device, or of one below it. Write-out calls this, so it allocates nothing.
/// `None` if it is unknown.
fn ask_device(at: BorrowedFd<'_>, name: impl Arg, depth: u32) -> Option<Why> {
    let Some(dir) = open(at, name, OFlags::DIRECTORY)? else { return Some(Why::NotAsked) };
    // A partition has its queue one directory up.
    for name in [c"queue/stable_writes", c"../queue/stable_writes"] {
        let Some(file) = open(dir.as_fd(), name, OFlags::empty())? else { continue };
        let mut text = [0; 8];
        let len = rustix::io::read(&file, &mut text).unwrap_or(0);
        if text[..len].trim_ascii() == b"1" {
            return Some(Why::Device);
        }
        break;
    }
    let Some(slaves) = open(dir.as_fd(), c"slaves", OFlags::empty())? else {
        return Some(Why::NotAsked);
    };
    let mut names = [MaybeUninit::uninit(); 1024];
    let mut below = RawDir::new(&slaves, &mut names);
    while let Some(Ok(entry)) = below.next() {
        let name = entry.file_name();
        let itself = name == c"." || name == c"..";
        if !itself && depth < DEPTH && ask_device(slaves.as_fd(), name, depth + 1)? != Why::NotAsked
        {
            return Some(Why::Below);
        }
    }
    Some(Why::NotAsked)
}

/// Opens a file that may be absent; `None` if its presence is unknown.
fn open(at: BorrowedFd<'_>, name: impl Arg, how: OFlags) -> Option<Option<OwnedFd>> {
    match openat(at, name, how | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Some(Some(file)),
        Err(Errno::NOENT | Errno::NOTDIR) => Some(None),
        Err(_) => None,
    }
}

/// Whether btrfs keeps checksums of the file's data. Assumed if the file's flags cannot be read.
fn checksummed(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::ioctl_getflags(fd).map_or(true, |flags| !flags.contains(IFlags::NOCOW))
}

/// The block devices of the btrfs that holds the file: the one to which the mounted device belongs.
/// Those of every mounted btrfs if that device is unknown.
fn btrfs_devices(fd: BorrowedFd<'_>, root: &Path) -> Vec<PathBuf> {
    let mounted = mount_id(fd).and_then(|id| mount_source(id, "/proc/self/mountinfo"));
    let mut devices = Vec::new();
    for system in fs::read_dir(root).into_iter().flatten().flatten() {
        let inside = fs::read_dir(system.path().join("devices")).into_iter().flatten().flatten();
        let own: Vec<PathBuf> = inside.map(|device| device.path()).collect();
        let ours =
            |path: &PathBuf| path.file_name().is_some_and(|name| Some(name) == mounted.as_deref());
        if own.iter().any(ours) {
            return own;
        }
        devices.extend(own);
    }
    devices
}

fn mount_id(fd: BorrowedFd<'_>) -> Option<u64> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let asked = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (asked.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(asked.stx_mnt_id)
}

/// The last part of the name of the mounted device.
fn mount_source(id: u64, mountinfo: &str) -> Option<std::ffi::OsString> {
    let text = fs::read_to_string(mountinfo).ok()?;
    let line = text.lines().find(|l| l.split(' ').next() == Some(id.to_string().as_str()))?;
    let source = line.split(" - ").nth(1)?.split(' ').nth(1)?;
    let real = fs::canonicalize(source).unwrap_or_else(|_| PathBuf::from(source));
    real.file_name().map(|name| name.to_os_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(&root).unwrap();
            Self(root)
        }

        fn device(&self, name: &str, needs: bool) -> PathBuf {
            let dir = self.0.join(name);
            fs::create_dir_all(dir.join("queue")).unwrap();
            fs::create_dir_all(dir.join("slaves")).unwrap();
            self.turn(name, needs);
            dir
        }

        fn turn(&self, name: &str, needs: bool) {
            let text = if needs { "1\n" } else { "0\n" };
            fs::write(self.0.join(name).join("queue/stable_writes"), text).unwrap();
        }

        fn stack(&self, upper: &str, lower: &str) {
            let link = self.0.join(upper).join("slaves").join(lower);
            std::os::unix::fs::symlink(self.0.join(lower), link).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn s5_stable_need_is_or_of_devices_below() {
        let tree = Tree::new("need-or");
        let top = tree.device("dm-0", false);
        tree.device("sda", false);
        tree.device("sdb", false);
        tree.stack("dm-0", "sda");
        assert_eq!(ask_device(CWD, top.as_path(), 0), Some(Why::NotAsked));
        tree.turn("sda", true);
        assert_eq!(ask_device(CWD, top.as_path(), 0), Some(Why::Below));
        tree.turn("sda", false);
        // A lower device is added, and taken away.
        tree.turn("sdb", true);
        assert_eq!(ask_device(CWD, top.as_path(), 0), Some(Why::NotAsked));
        tree.stack("dm-0", "sdb");
        assert_eq!(ask_device(CWD, top.as_path(), 0), Some(Why::Below));
        fs::remove_file(top.join("slaves/sdb")).unwrap();
        assert_eq!(ask_device(CWD, top.as_path(), 0), Some(Why::NotAsked));
        // A partition has the need of its disk.
        fs::create_dir_all(top.join("dm-0p1")).unwrap();
        tree.turn("dm-0", true);
        assert_eq!(ask_device(CWD, top.join("dm-0p1"), 0), Some(Why::Device));
    }

    #[test]
    fn s5_stable_need_change_reaches_open_file() {
        let tree = Tree::new("need-live");
        let dir = tree.device("sda", false);
        let file = fs::File::open(&tree.0).unwrap();
        let need = Need::new(vec![dir], false, file.as_fd());
        let at = |now: Duration| need.get_at(now, file.as_fd());
        let moment = Duration::from_millis(1);
        assert!(!at(Duration::ZERO).required);
        tree.turn("sda", true);
        assert!(!at(FRESH - moment).required, "asked just now");
        // N1: the last answer is too old.
        let now = at(FRESH);
        assert_eq!((now.required, now.reason), (true, "the device below asks for it"));
        assert!(!need.get(false, file.as_fd()).required, "the page cache copies");
        tree.turn("sda", false);
        assert!(at(2 * FRESH - moment).required, "asked just now");
        assert!(!at(2 * FRESH).required);
    }

    /// The story: without a free descriptor the setting could not be read, which was taken for "not
    /// needed". So bytes changed under a device that checksums them. Here a link to itself stands
    /// for a file that cannot be opened.
    #[test]
    fn n1_unreadable_setting_keeps_last_value() {
        let tree = Tree::new("need-unknown");
        let dir = tree.device("sda", true);
        let file = fs::File::open(&tree.0).unwrap();
        let need = Need::new(vec![dir.clone()], false, file.as_fd());
        let at = |now: Duration| need.get_at(now, file.as_fd()).required;
        assert!(at(Duration::ZERO));
        let knob = dir.join("queue/stable_writes");
        fs::remove_file(&knob).unwrap();
        std::os::unix::fs::symlink(&knob, &knob).unwrap();
        assert!(at(2 * FRESH) && at(4 * FRESH), "as it was");
        fs::remove_file(&knob).unwrap();
        assert!(!at(6 * FRESH), "no such setting: no need");
    }

    #[test]
    fn mount_source_is_found_by_device_number() {
        let tree = Tree::new("need-mount");
        let info = tree.0.join("mountinfo");
        let line = "36 35 0:30 / /mnt rw shared:1 - btrfs /dev/nosuchdisk7 rw\n";
        fs::write(&info, line).unwrap();
        let found = mount_source(36, info.to_str().unwrap());
        assert_eq!(found.as_deref(), Some(std::ffi::OsStr::new("nosuchdisk7")));
        assert_eq!(mount_source(3, info.to_str().unwrap()), None);
    }
}
