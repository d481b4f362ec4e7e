//! `forebay umount`: ends a mount, and returns when its process has ended: then everything is
//! durable and the image free, whatever type the mount has.
//!
//! E1 If data cannot be made durable, `umount` reports it and the mount stays: a write that fails
//!    after the mount has ended has no caller to report to.
//! E2 `umount` waits for the process only if this was the mount's last directory here; if that
//!    takes long, it prints what it waits for.

use crate::control::client::Client;
use crate::control::proto::Request;
use crate::failure::{Failure, Outcome, status};
use crate::mounts;
use clap::Args;
use forebay_base::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::path::{Path, PathBuf};

/// Time before `umount` prints for what it waits.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// `forebay umount`
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Take it out of the tree at once; it ends with its last user, which is not waited
    /// for
    #[arg(short, long)]
    pub lazy: bool,
}

/// The process that serves a mount.
struct Process {
    pid: i32,
    fd: OwnedFd,
}

/// Runs the command.
pub fn umount(args: &UmountArgs) -> Outcome {
    let shown = args.dir.display().to_string();
    let dir = std::path::absolute(&args.dir).map_err(|e| Failure::io(&shown, &e))?;
    if args.lazy {
        return take_away(&dir, true);
    }
    let alive = process_of(&dir)?;
    if let Alive::Here(_) | Alive::Elsewhere = &alive {
        sync(&dir)?;
    }
    let number = mounts::number_of(&dir)?;
    take_away(&dir, false)?;
    let Alive::Here(process) = alive else { return Ok(()) };
    if let Some(other) = mounts::all().into_iter().find(|mount| mount.number == number) {
        log::warn!("{shown}: gone; also mounted on {}, where it stays", other.dir.display());
        return Ok(());
    }
    wait(&process, number).map_err(|e| Failure::io("wait for the daemon", &e.into()))
}

fn take_away(dir: &Path, lazy: bool) -> Outcome {
    let shown = dir.display();
    forebay_fuse::mount::unmount(dir, lazy).map_err(|e| match e.kind() {
        ErrorKind::Busy => {
            let mut failure = Failure::new(format!("{shown}: in use"));
            failure.status = status::BUSY;
            failure.hint("`fuser -vm DIR` shows by whom; `--lazy` takes it out of the tree at once")
        }
        ErrorKind::InvalidInput => Failure::usage(format!("{shown}: not a mount")),
        _ => e.into(),
    })
}

/// Makes everything durable, or says why not (E1).
fn sync(dir: &Path) -> Outcome {
    let failed = |why: String| {
        Failure::new(format!("{}: {why}", dir.display()))
            .hint("nothing is lost yet, the mount is still there; `--lazy` gives up what cannot be written")
    };
    // The kernel writes back dirty pages of maps. For a mount of the type `fuseblk` it also asks
    // the process to sync.
    let root =
        rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let synced = root.and_then(|root| rustix::fs::syncfs(&root));
    synced.map_err(|e| failed(std::io::Error::from(e).to_string()))?;
    // A process without a control socket, or with another user's, is not asked.
    let asked = mounts::control_of(dir).and_then(|path| Client::open(&path));
    match asked.map(|mut client| client.ask_for_long(&Request::Sync)) {
        Ok(Err(e)) if e.status != status::NOT_FOUND => Err(failed(e.message)),
        Ok(_) => Ok(()),
        Err(e) if e.status == status::BUSY => Err(failed(e.message)),
        Err(e) => {
            log::info!("{}: not asked to sync: {}", dir.display(), e.message);
            Ok(())
        }
    }
}

/// Whether the process of a mount is alive and visible.
enum Alive {
    /// Yes: this process.
    Here(Process),
    /// The process is not visible in this pid namespace.
    Elsewhere,
    /// No process any more.
    No,
}

fn process_of(dir: &Path) -> Outcome<Alive> {
    let mut text = [0; 32];
    let name = forebay_fuse::PID_ATTRIBUTE;
    let len = match rustix::fs::getxattr(dir, name, &mut text[..]) {
        Ok(len) => len,
        // The process is dead: there is no end to wait for.
        Err(Errno::NOTCONN | Errno::CONNABORTED) => return Ok(Alive::No),
        Err(Errno::NOENT) => {
            return Err(Failure::not_found(format!("{}: no such directory", dir.display())));
        }
        Err(_) => {
            let text = format!("{}: not a mount of Forebay", dir.display());
            return Err(Failure::usage(text).hint("umount(8) ends other mounts"));
        }
    };
    let pid = std::str::from_utf8(&text[..len]).ok().and_then(|text| text.parse::<i32>().ok());
    let opened = pid.and_then(Pid::from_raw).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    // The pid is that of the process's own pid namespace. Here it may denote another process, for
    // whose end `umount` must not wait.
    let opened = opened.and_then(Result::ok).filter(|_| pid.is_some_and(serves));
    Ok(match (pid, opened) {
        (Some(pid), Some(fd)) => Alive::Here(Process { pid, fd }),
        _ => Alive::Elsewhere,
    })
}

/// Whether a process has /dev/fuse open.
fn serves(pid: i32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
    files
        .into_iter()
        .flatten()
        .flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == Path::new("/dev/fuse")))
}

/// Waits for the end of a process that serves this mount (E2).
fn wait(process: &Process, number: (u32, u32)) -> Result<(), Errno> {
    let mut told = false;
    while !ends(&process.fd, Some(&PATIENCE))? {
        if !told {
            let why = match mounts::seen_by(number) {
                Some(other) => format!(
                    "process {other} and others in its mount namespace still have the mount"
                ),
                None => "it writes out, or a process without a name uses the mount".to_string(),
            };
            log::warn!("waiting for process {}: {why}", process.pid);
        }
        told = true;
    }
    Ok(())
}

/// Waits for the end of a process. False: it did not end in time.
fn ends(process: &OwnedFd, patience: Option<&Timespec>) -> Result<bool, Errno> {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], patience) {
            Err(Errno::INTR) => {}
            done => return done.map(|count| count > 0),
        }
    }
}

/// Waits for the end of a process.
pub fn until_it_ends(process: &OwnedFd) -> Result<(), Errno> {
    ends(process, None).map(drop)
}
