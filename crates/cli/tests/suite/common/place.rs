//! A folder with a volume and a directory to mount it on.

use super::{Folder, output};
use forebay::{CreateVolume, Volume};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whether mounts can be made here; where they cannot, a test fails unless it may be skipped.
pub fn may_run() -> bool {
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    assert!(root || allowed, "mounts need root and /dev/fuse");
    root
}

/// Waits until a process and each of its threads is stopped. A thread that is still on its way into
/// the stop may read a request of the kernel; then even SIGKILL does not end the caller's wait.
pub fn until_stopped(pid: i32) {
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    super::until("it is stopped", || tasks().all(|task| is_stopped(task.unwrap())));
}

/// Unmounts a directory of the folder with umount(8). A busy mount is tried again: a child that
/// another test has forked holds copies of this process's open files up to its exec.
pub fn umount(folder: &Folder, dir: &str) {
    super::until("umount(8)", || {
        let mut command = Command::new("umount");
        command.arg(dir).current_dir(folder.path("")).stdin(Stdio::null());
        let done = output(command);
        let said = super::stderr(&done);
        assert!(done.status.success() || said.contains("busy"), "umount: {said}");
        done.status.success()
    });
}

/// The same with `forebay umount`, which says that a busy mount is in use. Its standard error.
pub fn forebay_umount(folder: &Folder, dir: &str) -> String {
    let mut said = String::new();
    super::until("forebay umount", || {
        let done = folder.forebay(&["umount", dir]);
        said = super::stderr(&done);
        assert!(done.status.success() || said.contains("in use"), "forebay umount: {said}");
        done.status.success()
    });
    said
}

/// A folder with a volume and a directory to mount it on; unmounted on drop.
pub struct Place {
    /// The folder.
    pub folder: Folder,
}

impl Place {
    /// With a volume of so many bytes.
    pub fn new(bytes: u64) -> Self {
        let folder = Folder::new();
        let options = CreateVolume::default().size(bytes);
        Volume::create(folder.path("vol"), &options).expect("a volume");
        std::fs::create_dir(folder.path("mnt")).expect("a directory");
        Self { folder }
    }

    /// A path on the mount.
    pub fn mnt(&self, name: &str) -> PathBuf {
        self.folder.path("mnt").join(name)
    }

    /// Mounts it; options are words after `-o`.
    pub fn mount(&self, words: &str) {
        self.folder.ok(&["mount", "vol", "mnt", "-o", &format!("cache_size=64M,{words}")]);
        assert!(self.is_mounted());
    }

    /// Whether anything is mounted there.
    pub fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mounts").expect("a table of mounts");
        let dir = self.folder.path("mnt").display().to_string();
        table.lines().any(|line| line.split(' ').nth(1) == Some(&dir))
    }

    /// Ends it with umount(8); see [`umount`].
    pub fn umount(&self) {
        umount(&self.folder, "mnt");
        assert!(!self.is_mounted());
    }

    /// Ends it with `forebay umount`.
    pub fn forebay_umount(&self) {
        forebay_umount(&self.folder, "mnt");
        assert!(!self.is_mounted());
    }

    /// A command that has to succeed, in the folder.
    pub fn run(&self, program: &str, words: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.folder.path("")).stdin(Stdio::null());
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", self.folder.path(""));
        let done = output(command);
        let (out, err) =
            (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{program} {words:?}: {out}{err}");
        out.into_owned()
    }

    /// The process that serves it.
    pub fn pid(&self) -> i32 {
        let mut text = [0; 32];
        let name = forebay_fuse::PID_ATTRIBUTE;
        let len =
            rustix::fs::getxattr(self.folder.path("mnt"), name, &mut text[..]).expect("a pid");
        std::str::from_utf8(&text[..len]).expect("digits").parse().expect("a pid")
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        self.run("kill", &[&format!("-{name}"), &self.pid().to_string()]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while self.is_mounted() {
            if forebay_fuse::mount::unmount(&self.folder.path("mnt"), true).is_err() {
                break;
            }
        }
    }
}
