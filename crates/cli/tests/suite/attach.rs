//! `forebay attach`: an image, or a file in a volume, as a block device that programs use as any
//! other.

use crate::common::place::{may_run, umount};
use crate::common::volume::bytes_of;
use crate::common::{Folder, output, stderr, until};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A device that ends with its test, also when that fails.
struct Device {
    folder: Folder,
    path: String,
    /// Tells apart what has this number one after the other.
    sequence: String,
    pid: rustix::process::Pid,
}

impl Device {
    fn new(folder: Folder, words: &[&str]) -> Self {
        let path = folder.ok(&[&["attach", "--cache-size", "64M"], words].concat());
        let path = path.trim().to_string();
        let all: Value = serde_json::from_str(&folder.ok(&["list", "--json"])).expect("JSON");
        let row = all.as_array().expect("a list").iter().find(|row| row["where"] == *path);
        let pid = row.expect("it is listed")["pid"].as_i64().expect("a number");
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
        let sequence = attribute(&path, "diskseq").expect("the system has it");
        Self { folder, path, sequence, pid }
    }

    /// A command that has to succeed, in the folder.
    fn run(&self, program: &str, words: &[&str]) -> String {
        let done = self.tried(program, words);
        let out = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{program} {words:?}: {out}{}", stderr(&done));
        out
    }

    fn tried(&self, program: &str, words: &[&str]) -> std::process::Output {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.folder.path("")).stdin(Stdio::null());
        output(command)
    }

    fn is_there(&self) -> bool {
        let same = attribute(&self.path, "diskseq").as_ref() == Some(&self.sequence);
        same && attribute(&self.path, "loop/backing_file").is_some()
    }

    fn is_mounted(&self, dir: &str) -> bool {
        let table = std::fs::read_to_string("/proc/self/mounts").expect("a table of mounts");
        let dir = self.folder.path(dir).display().to_string();
        table.lines().any(|line| line.split(' ').nth(1) == Some(&dir))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_mounted("mnt") {
            let _ = rustix::mount::unmount(
                self.folder.path("mnt"),
                rustix::mount::UnmountFlags::DETACH,
            );
        }
        let _ = self.folder.forebay(&["detach", &self.path]);
    }
}

fn attribute(device: &str, name: &str) -> Option<String> {
    let device = Path::new("/sys/block").join(Path::new(device).file_name()?);
    std::fs::read_to_string(device.join(name)).ok()
}

fn image(folder: &Folder, name: &str, bytes: u64) -> PathBuf {
    let path = folder.path(name);
    std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("an image");
    path
}

/// attach.H1: A file system made, filled, checked; the device refused to go while it is mounted;
/// everything durable when it has gone; the image free.
#[test]
fn file_system_on_attached_device_works() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    let path = image(&folder, "disk", 256 << 20);
    std::fs::create_dir(folder.path("mnt")).unwrap();
    let device = Device::new(folder, &["disk"]);
    let size = device.run("blockdev", &["--getsize64", "--getss", &device.path]);
    assert_eq!(size, format!("{}\n4096\n", 256 << 20));
    device.run("mkfs.ext4", &["-q", "-b", "4096", &device.path]);
    device.run("mount", &["-o", "discard", &device.path, "mnt"]);
    let bytes = bytes_of(3, 40 << 20);
    std::fs::write(device.folder.path("mnt/file"), &bytes).unwrap();
    let said = device.folder.refused(4, &["detach", &device.path]);
    assert!(said.contains("in use"), "{said}");
    let said = device.folder.refused(4, &["attach", "disk"]);
    assert!(said.contains("disk"), "{said}");
    umount(&device.folder, "mnt");
    device.run("e2fsck", &["-f", "-n", &device.path]);
    let shown = device.folder.ok(&["list"]);
    assert!(shown.contains(&path.display().to_string()) && shown.contains("256 MiB"), "{shown}");
    assert!(shown.contains("device (loop over FUSE)"), "{shown}");
    device.folder.ok(&["detach", &device.path]);
    assert!(!device.is_there(), "H1: it has gone when that returns");
    // What is on the image now is a file system with the file, to the kernel alone.
    device.run("e2fsck", &["-f", "-n", "disk"]);
    device.run("mount", &["-o", "loop,ro", "disk", "mnt"]);
    assert!(std::fs::read(device.folder.path("mnt/file")).unwrap() == bytes);
    umount(&device.folder, "mnt");
}

/// `fincore IMAGE` said that no running process has it open. And which way it is made is said.
#[test]
fn attached_image_cached_data_is_shown() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    image(&folder, "disk", 64 << 20);
    image(&folder, "other", 1 << 20);
    let device = Device::new(folder, &["disk", "--mode", "cached"]);
    let resident = || {
        let found = device.folder.ok(&["fincore", "disk", "--json"]);
        let found: Value = serde_json::from_str(&found).expect("JSON");
        assert_eq!(found["total_blocks"], 16384);
        found["resident_blocks"].as_u64().expect("a number")
    };
    device.folder.ok(&["tune", "--drop-clean", "--pid", &device.pid.as_raw_pid().to_string()]);
    let before = resident();
    let from = format!("if={}", device.path);
    device.run("dd", &[&from, "of=/dev/null", "iflag=direct", "bs=1M", "count=8", "skip=32"]);
    assert!(resident() >= before + 2048, "8 MiB and what was read ahead: {}", resident());
    let said = device.folder.refused(3, &["fincore", "other"]);
    assert!(said.contains("no running process"), "{said}");
    let said = stderr(&device.folder.forebay(&["attach", "other", "--cache-size", "64M"]));
    assert!(said.contains("is a loop device over a mount"), "{said}");
    let list: Value = serde_json::from_str(&device.folder.ok(&["list", "--json"])).expect("JSON");
    let other = device.folder.path("other").display().to_string();
    let row = list.as_array().expect("a list").iter().find(|row| row.to_string().contains(&other));
    device.folder.ok(&["detach", row.expect("listed")["where"].as_str().expect("a path")]);
}

/// `-P` has the kernel look for partitions (not each kernel knows tables of them); without it it
/// does not.
#[test]
fn partitions_are_looked_for_if_asked() {
    if !may_run() {
        return;
    }
    for (words, looks) in [(&["disk"][..], "0"), (&["disk", "-P"], "1")] {
        let folder = Folder::new();
        image(&folder, "disk", 64 << 20);
        let device = Device::new(folder, words);
        let found = attribute(&device.path, "loop/partscan").expect("the system has it");
        assert_eq!(found.trim(), looks, "{words:?}");
        device.folder.ok(&["detach", &device.path]);
    }
}

/// Many requests at a time, each read back with its checksum, on a file in a volume.
#[test]
fn fio_verifies_what_it_wrote() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    folder.ok(&["create", "vol", "--size", "512M"]);
    image(&folder, "disk", 128 << 20);
    folder.ok(&["cp", "disk", "vol:/disk"]);
    for mode in ["cached", "uncached", "direct"] {
        let device = Device::new(
            Folder::new(),
            &[&format!("{}:/disk", folder.path("vol").display()), "--mode", mode],
        );
        let file = format!("--filename={}", device.path);
        let words = [
            "--name=verify",
            &file,
            "--rw=randrw",
            "--bsrange=4k-64k",
            "--bs_unaligned=0",
            "--size=96M",
            "--io_size=32M",
            "--ioengine=libaio",
            "--iodepth=32",
            "--direct=1",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--fsync=64",
            "--minimal",
        ];
        device.run("fio", &words);
        let stat = device.folder.ok(&["stat", "--json"]);
        let stat: Value = serde_json::from_str(&stat).unwrap();
        assert_eq!(stat["devices"][0]["mode"], mode, "{stat}");
        device.folder.ok(&["detach", &device.path]);
    }
    folder.ok(&["fsck", "vol"]);
}

/// attach.H2: a process that is killed while everything is under way: every call ends, with an
/// error; the file system is unmounted, and device, mount and processes are gone.
#[test]
fn h2_kill_9_leaves_nothing_hanging() {
    if !may_run() {
        return;
    }
    for round in 0..3 {
        let folder = Folder::new();
        image(&folder, "disk", 256 << 20);
        std::fs::create_dir(folder.path("mnt")).unwrap();
        let device = Device::new(folder, &["disk"]);
        device.run("mkfs.ext4", &["-q", &device.path]);
        device.run("mount", &[&device.path, "mnt"]);
        let mut writer = Command::new("fio");
        writer.args(["--name=w", "--directory=mnt", "--rw=randwrite", "--bs=4k", "--size=64M"]);
        writer.args(["--ioengine=libaio", "--iodepth=16", "--direct=1", "--time_based"]);
        writer.args(["--runtime=600", "--minimal"]).current_dir(device.folder.path(""));
        let mut writer = writer.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let file = device.folder.path("mnt/w.0.0");
        until("it writes", || std::fs::metadata(&file).is_ok_and(|m| m.len() > 0));
        if round > 0 {
            // Dirty data in the kernel's caches as well, of files and of the device.
            std::fs::write(device.folder.path("mnt/dirty"), bytes_of(1, 8 << 20)).unwrap();
        }
        rustix::process::kill_process(device.pid, rustix::process::Signal::KILL).unwrap();
        assert!(!writer.wait().unwrap().success(), "its writes fail");
        assert!(!device.tried("sh", &["-c", "sync -f mnt && cat mnt/dirty"]).status.success());
        umount(&device.folder, "mnt");
        until("the device is gone", || !device.is_there());
        let left = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!left.contains(&format!("forebay-attach-{}", device.pid)), "{left}");
        until("the process is gone", || rustix::process::test_kill_process(device.pid).is_err());
        // The image is free.
        let again = device.folder.ok(&["attach", "disk", "--cache-size", "64M"]);
        device.folder.ok(&["detach", again.trim()]);
    }
}

/// attach.H3: a signal ends it as detach does; one in use goes with its last user.
#[test]
fn h3_signal_detaches_with_all_data_durable() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    let path = image(&folder, "disk", 16 << 20);
    let device = Device::new(folder, &["disk", "--sector-size", "512"]);
    let user = std::fs::File::options().read(true).write(true).open(&device.path).unwrap();
    user.write_all_at(&bytes_of(5, 1 << 20), 512).unwrap();
    rustix::process::kill_process(device.pid, rustix::process::Signal::TERM).unwrap();
    let mut back = vec![0; 1 << 20];
    user.read_exact_at(&mut back, 512).unwrap();
    assert!(back == bytes_of(5, 1 << 20), "it is served to its last user");
    user.write_all_at(b"later", 0).unwrap();
    drop(user);
    until("the process is gone", || rustix::process::test_kill_process(device.pid).is_err());
    until("the device is gone", || !device.is_there());
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..5], b"later");
    assert!(bytes[512..512 + (1 << 20)] == bytes_of(5, 1 << 20));
}

/// What cannot be is said, and leaves nothing.
#[test]
fn invalid_attach_is_refused_and_leaves_nothing() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    image(&folder, "disk", 1 << 20);
    folder.ok(&["create", "vol", "--size", "64M"]);
    assert!(folder.refused(3, &["attach", "nowhere"]).contains("nowhere"));
    assert!(folder.refused(3, &["attach", "vol:/nowhere"]).contains("nowhere"));
    assert!(folder.refused(2, &["attach", "disk", "--sector-size", "3k"]).contains("3072"));
    assert!(folder.refused(2, &["attach", "disk", "--cache-size", "1M"]).contains("at least"));
    assert!(folder.refused(3, &["detach", "/dev/null"]).contains("no running process"));
    let read_only = Device::new(folder, &["disk", "-r"]);
    let opened = std::fs::File::options().write(true).open(&read_only.path);
    let refused =
        opened.and_then(|file| file.write_all_at(&[0; 4096], 0).and_then(|()| file.sync_all()));
    assert!(refused.is_err());
    read_only.folder.ok(&["detach", &read_only.path]);
}
