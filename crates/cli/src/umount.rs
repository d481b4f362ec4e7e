//! `forebay umount`: ends a mount, and returns when its process has ended: then everything is durable and
//! the image free, whatever type the mount has.

use crate::failure::{Failure, Outcome, status};
use clap::Args;
use forebay_base::ErrorKind;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::path::{Path, PathBuf};

/// `forebay umount`
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Take it out of the tree at once; it ends when nobody uses it any more, which is not waited for
    #[arg(short, long)]
    pub lazy: bool,
}

/// Runs the command.
pub fn umount(args: &UmountArgs) -> Outcome {
    let shown = args.dir.display().to_string();
    let dir = std::path::absolute(&args.dir).map_err(|e| Failure::io(&shown, &e))?;
    let process = match args.lazy {
        true => None,
        false => Some(process_of(&dir)?),
    };
    forebay_fuse::mount::unmount(&dir, args.lazy).map_err(|e| match e.kind() {
        ErrorKind::Busy => {
            let mut failure = Failure::new(format!("{shown}: in use"));
            failure.status = status::BUSY;
            failure.hint("`fuser -vm DIR` shows by whom; `--lazy` takes it out of the tree at once")
        }
        ErrorKind::InvalidInput => Failure::usage(format!("{shown}: not a mount")),
        _ => e.into(),
    })?;
    if let Some(Some(process)) = process {
        until_it_ends(&process).map_err(|e| Failure::io("wait for the daemon", &e.into()))?;
    }
    Ok(())
}

/// The process that serves a mount; none if it is gone, or in another world of processes.
fn process_of(dir: &Path) -> Outcome<Option<OwnedFd>> {
    let mut text = [0; 32];
    let name = forebay_fuse::PID_ATTRIBUTE;
    let len = match rustix::fs::getxattr(dir, name, &mut text[..]) {
        Ok(len) => len,
        // Its process is dead: there is nobody to wait for.
        Err(Errno::NOTCONN | Errno::CONNABORTED) => return Ok(None),
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
    // What it is called in its own world of processes may be somebody else here, who never ends.
    Ok(opened.and_then(Result::ok).filter(|_| pid.is_some_and(serves)))
}

/// Whether a process has a mount to serve.
fn serves(pid: i32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
    files
        .into_iter()
        .flatten()
        .flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == Path::new("/dev/fuse")))
}

/// Waits for the end of a process.
pub fn until_it_ends(process: &OwnedFd) -> Result<(), Errno> {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            done => return done.map(drop),
        }
    }
}
