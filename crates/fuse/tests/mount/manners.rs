//! What else programs see of a mount.
//!
//! No locks.

use crate::harness::{Folder, Lab, may_run};
use forebay_base::task::block_on;
use forebay_fuse::notify::Notice;
use forebay_fuse::options::Via;
use forebay_fuse::{CacheMode, MountKind, Options};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::{FileSystem, Ino, Name};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, XattrFlags};
use rustix::mount::MountFlags;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn lab(options: &Options) -> Lab {
    Lab::new(Arc::new(MemFs::default()), options)
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(300), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// fuse.U4: what has lost its last name is there as long as anybody uses it, by whatever means.
#[test]
fn u4_without_a_name_it_lives_while_it_is_used() {
    if !may_run() {
        return;
    }
    let lab = lab(&Options::default());
    let path = |name: &str| lab.path().join(name);
    rustix::fs::symlink("target", path("link")).unwrap();
    std::fs::write(path("file"), b"content").unwrap();
    std::fs::write(path("over"), b"new").unwrap();
    std::fs::create_dir(path("dir")).unwrap();
    let hold = |name: &str| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        rustix::fs::open(path(name), flags, Mode::empty()).unwrap()
    };
    let held = [hold("link"), hold("file"), hold("dir")];
    std::fs::remove_file(path("link")).unwrap();
    std::fs::rename(path("over"), path("file")).unwrap();
    std::fs::remove_dir(path("dir")).unwrap();
    for fd in &held {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let stat = rustix::fs::statx(fd, "", flags, StatxFlags::BASIC_STATS).unwrap();
        assert_eq!(stat.stx_nlink, 0);
    }
    assert_eq!(rustix::fs::readlinkat(&held[0], "", Vec::new()).unwrap().as_bytes(), b"target");
    assert_eq!(std::fs::read(path("file")).unwrap(), b"new");
    let inside = rustix::fs::openat(&held[2], "x", OFlags::CREATE | OFlags::RDWR, Mode::RWXU);
    assert_eq!(inside.unwrap_err(), rustix::io::Errno::NOENT);
    drop(held);
    until("it is forgotten", || lab.figures().0 <= 1);
}

/// mount.W1: neither mount nor loop device is left of what failed.
#[test]
fn w1_failed_mount_leaves_nothing() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    let source = format!("forebay-w1-{}", std::process::id());
    let flags = MountFlags::from_bits_retain(1 << 5); // MS_REMOUNT of what is no mount
    let options = Options { via: Via::Block, source: source.clone(), flags, ..Options::default() };
    forebay_fuse::mount(&folder.0, &options).unwrap_err();
    let left = || {
        std::fs::read_dir("/sys/block").unwrap().flatten().any(|device| {
            let file = device.path().join("loop/backing_file");
            std::fs::read_to_string(file).is_ok_and(|text| text.contains(&source))
        })
    };
    until("the loop device is gone", || !left());
    assert!(!std::fs::read_to_string("/proc/self/mounts").unwrap().contains(&source));
    forebay_fuse::mount(Path::new("/dev/null"), &options).unwrap_err();
}

/// mount.W2: mode bits count, also for a mount that others may use.
#[test]
fn w2_kernel_checks_permissions() {
    if !may_run() {
        return;
    }
    let lab = lab(&Options::default());
    std::fs::set_permissions(lab.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let read = |mode: u32| {
        let path = lab.path().join(format!("file-{mode}"));
        std::fs::write(&path, b"x").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
            .unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]).arg(&path);
        command.output().expect("setpriv, of util-linux").status.success()
    };
    assert!(read(0o644) && !read(0o640));
}

/// Mounts that fusermount3 makes, as for those who are not root.
#[test]
fn mounts_by_the_helper() {
    if !may_run() {
        return;
    }
    let options = Options { via: Via::Helper, source: "a,b\\c".to_string(), ..Options::default() };
    let lab = lab(&options);
    assert_eq!(lab.kind, MountKind::Plain);
    std::fs::write(lab.path().join("f"), b"x").unwrap();
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|l| l.contains(lab.path().to_str().unwrap())).unwrap();
    assert!(line.starts_with("a,b\\134c ") && line.contains(" fuse.forebay "), "{line}");
}

/// The kernel knows no more inodes than it should, whatever it has seen.
#[test]
fn inodes_beyond_the_bound_are_forgotten() {
    if !may_run() {
        return;
    }
    let lab = lab(&Options { inodes_max: 2000, ..Options::default() });
    for n in 0..10_000 {
        std::fs::write(lab.path().join(format!("file-{n}")), b"").unwrap();
    }
    // New names make the kernel look up more, which makes it forget others; it asks for none that
    // it still knows. Without new names, on a busy machine, it knew all of the 500 and nothing
    // happened any more. The kernel may look up too many at once, so the test waits.
    let mut least = usize::MAX;
    until("the kernel has forgotten", || {
        for n in 0..500 {
            std::fs::metadata(lab.path().join(format!("file-{n}"))).unwrap();
        }
        for n in 0..64 {
            let more = lab.path().join(format!("more-{n}"));
            std::fs::write(&more, b"").unwrap();
            std::fs::remove_file(&more).unwrap();
        }
        least = least.min(lab.figures().0);
        least <= 3000
    });
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 10_000);
}

/// What others than the kernel's callers change is seen when the kernel was told.
#[test]
fn notices_reach_the_kernel() {
    if !may_run() {
        return;
    }
    let fs = Arc::new(MemFs::default());
    let options = Options { cache: CacheMode::Kernel, ..Options::default() };
    let lab = Lab::new(fs.clone(), &options);
    let path = lab.path().join("f");
    std::fs::metadata(&path).unwrap_err();
    let name = Name::new(b"f").unwrap();
    let new = forebay_vfs::NewInode::of(forebay_vfs::FileKind::File, 0o644);
    let both = forebay_vfs::OpenFlags::READ | forebay_vfs::OpenFlags::WRITE;
    let (attr, file) = block_on(fs.create(Ino::ROOT, name, &new, both)).unwrap();
    std::fs::metadata(&path).unwrap_err();
    lab.notifier.send(Notice::Entry { dir: 1, name: (*b"f").into() });
    lab.notifier.settle();
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), attr.ino.0);
    let write = |bytes: &[u8]| {
        let flags = forebay_base::IoFlags::empty();
        file.write_slice(0, bytes, flags, forebay_vfs::Privileges::Keep).unwrap();
        lab.notifier.send(Notice::Inode { node: attr.ino.0, offset: 0, len: 0 });
        lab.notifier.settle();
    };
    write(b"one");
    assert_eq!(std::fs::read(&path).unwrap(), b"one");
    write(b"three");
    assert_eq!(std::fs::read(&path).unwrap(), b"three");
    block_on(fs.unlink(Ino::ROOT, name)).unwrap();
    lab.notifier.send(Notice::Delete { dir: 1, node: attr.ino.0, name: (*b"f").into() });
    lab.notifier.settle();
    std::fs::metadata(&path).unwrap_err();
}

/// ACLs are refused, not ignored; so are ioctls that are not ours.
#[test]
fn unsupported_acl_and_ioctl_are_refused() {
    if !may_run() {
        return;
    }
    let lab = lab(&Options::default());
    let path = lab.path().join("f");
    std::fs::write(&path, b"x").unwrap();
    let none = rustix::fs::XattrFlags::empty();
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0,
        255, 255, 255, 255,
    ];
    let refused = rustix::fs::setxattr(&path, "system.posix_acl_access", &acl, none).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::OPNOTSUPP);
    let mut pid = [0; 16];
    let len = rustix::fs::getxattr(lab.path(), forebay_fuse::PID_ATTRIBUTE, &mut pid[..]).unwrap();
    assert_eq!(pid[..len], *std::process::id().to_string().as_bytes());
    // O_DIRECT, unaligned, is served.
    let direct = std::fs::File::options()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(&path)
        .unwrap();
    let mut byte = [0; 3];
    assert_eq!((direct.read_at(&mut byte, 0).unwrap(), byte[0]), (1, b'x'));
}

const CAPABILITY: &str = "security.capability";

/// One that lets a program open raw sockets: version 2, in effect at once.
fn capability() -> [u8; 20] {
    let mut value = [0; 20];
    value[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
    value[4..8].copy_from_slice(&(1_u32 << 13).to_le_bytes());
    value
}

/// Set-id bits go with what a user without a right to them does, and stay with what root does. A
/// change of owner by any user removes them, and a capability goes with all of these.
#[test]
fn set_id_bits_go_with_whom_they_should() {
    if !may_run() {
        return;
    }
    for mode in [CacheMode::Own, CacheMode::Small, CacheMode::Kernel] {
        let lab = lab(&Options { cache: mode, ..Options::default() });
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(lab.path(), open).unwrap();
        let path = lab.path().join("f");
        let after = |uid: &str, line: &str| {
            let arm = std::os::unix::fs::PermissionsExt::from_mode(0o6777);
            std::fs::write(&path, b"12345").unwrap();
            std::fs::set_permissions(&path, arm).unwrap();
            rustix::fs::setxattr(&path, CAPABILITY, &capability(), XattrFlags::empty()).unwrap();
            let mut command = Command::new("setpriv");
            command.args([uid, "--clear-groups", "sh", "-c", line]).arg(&path);
            let done = command.output().expect("setpriv, of util-linux");
            assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
            let kept = rustix::fs::getxattr(&path, CAPABILITY, &mut [0_u8; 64]);
            assert_eq!(kept, Err(rustix::io::Errno::NODATA), "{mode:?} {uid}: {line}");
            std::fs::metadata(&path).unwrap().mode() & 0o7777
        };
        let lines = [
            "echo x >>\"$0\"",
            ": >\"$0\"",
            "truncate -s 3 \"$0\"",
            "fallocate -l 100 \"$0\"",
            "dd of=\"$0\" if=/dev/zero bs=4096 count=1 oflag=direct conv=notrunc 2>&1",
        ];
        for line in lines {
            assert_eq!(after("--reuid=0", line), 0o6777, "{mode:?}, root: {line}");
            assert_eq!(after("--reuid=65534", line), 0o777, "{mode:?}, another user: {line}");
        }
        assert_eq!(after("--reuid=0", "chown 0:5 \"$0\""), 0o777, "{mode:?}: chown");
    }
}

/// Opening with `O_RDONLY | O_TRUNC` was refused with EINVAL, because the truncation came with
/// `OPEN`. Had it been done there, a program that runs would be empty before the kernel says
/// ETXTBSY.
#[test]
fn running_program_is_not_truncated() {
    if !may_run() {
        return;
    }
    let lab = lab(&Options::default());
    let path = lab.path().join("sleep");
    std::fs::copy("/bin/sleep", &path).unwrap();
    let len = std::fs::metadata(&path).unwrap().len();
    let mut child = Command::new(&path).arg("1000").spawn().unwrap();
    for access in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
        let refused = rustix::fs::open(&path, access | OFlags::TRUNC, Mode::empty()).err();
        assert_eq!(refused, Some(rustix::io::Errno::TXTBSY), "{access:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len, "{access:?}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    until("it can be written", || {
        rustix::fs::open(&path, OFlags::RDONLY | OFlags::TRUNC, Mode::empty()).is_ok()
    });
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}
