//! `forebay run`: runs a command so that neither it nor the processes that it starts leave anything
//! in the caches of the mounts that they use.
//!
//! ```text
//!   subreaper -> register with each mount (an open directory is the registration)
//!   -> start the command -> wait for it and for all that it leaves behind -> close the directories
//! ```
//! U1 The command starts only after this process has registered with each mount (all, or those of
//! `--on`) on which the command could open a file. U2 As a subreaper this process stays an ancestor
//! of all that it started: it ends after the last of them. U3 Standard input, output and error have
//! the mode during the command, and their earlier mode afterwards.

use crate::failure::{Failure, Outcome, status};
use crate::mounts::{self, Mount};
use clap::Args;
use forebay_block::ioctl;
use forebay_fuse::ioctl::{
    GET_MODE, MODE_CACHED, MODE_DIRECT, MODE_UNCACHED, SET_MODE, SET_TREE_MODE,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command};

/// Exit statuses as of env(1): the command cannot be started; it is not found.
const CANNOT_START: u8 = 126;
const NOT_THERE: u8 = 127;

/// `forebay run`
#[derive(Args, Debug)]
pub struct RunArgs {
    /// What is cached is served; what is not leaves nothing behind
    #[arg(long, required_unless_present = "direct", conflicts_with = "direct")]
    pub uncached: bool,
    /// Past the cache; what is not aligned is uncached
    #[arg(long)]
    pub direct: bool,
    /// On this mount only, or these; on all unless given
    #[arg(long, value_name = "DIR")]
    pub on: Vec<PathBuf>,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

/// Runs the command and returns its exit status.
pub fn run(args: &RunArgs) -> Outcome<u8> {
    let mode = if args.direct { MODE_DIRECT } else { MODE_UNCACHED };
    set_child_subreaper(Some(getpid())).map_err(|e| Failure::io("run", &e.into()))?;
    // The open directories are the registrations; they are closed at the end.
    let (numbers, registered) = register(&args.on, mode)?;
    let given = given(&numbers, mode);
    let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP]);
    let signals = signals.map_err(|e| Failure::io("watch for signals", &e))?;
    let program = &args.command[0];
    let done = match Command::new(program).args(&args.command[1..]).spawn() {
        Ok(child) => reap(&child, signals),
        Err(e) => {
            let failure = Failure::io(program.to_string_lossy(), &e);
            let there = e.kind() != std::io::ErrorKind::NotFound;
            Err(Failure { status: if there { CANNOT_START } else { NOT_THERE }, ..failure })
        }
    };
    for restore in given {
        restore();
    }
    drop(registered);
    done
}

/// Registers with all visible mounts, or with the named ones (U1). Returns their device numbers,
/// and the open directories that keep the registrations.
fn register(on: &[PathBuf], mode: u32) -> Outcome<(Vec<u64>, Vec<OwnedFd>)> {
    let (mut numbers, mut registered) = (Vec::new(), Vec::new());
    let wanted = match on {
        [] => mounts::all(),
        some => some.iter().map(|dir| mounts::at(dir)).collect::<Outcome<_>>()?,
    };
    for mount in wanted {
        let number = rustix::fs::makedev(mount.number.0, mount.number.1);
        if numbers.contains(&number) {
            continue;
        }
        if let Some(dir) = register_with(&mount, number, mode)? {
            numbers.push(number);
            registered.push(dir);
        }
    }
    if registered.is_empty() {
        let text = "run: there is no mount of Forebay that can be used from here";
        return Err(Failure::not_found(text));
    }
    Ok((numbers, registered))
}

/// `None`: no file can be opened on the mount.
fn register_with(mount: &Mount, number: u64, mode: u32) -> Outcome<Option<OwnedFd>> {
    let shown = mount.dir.display();
    // The mount point is a directory, or a file if a single file was bind-mounted.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(&mount.dir, flags, Mode::empty()) {
        // With another device number the mount is covered by another one and cannot be reached by
        // this name.
        Ok(dir) if fstat(&dir).is_ok_and(|stat| stat.st_dev == number) => dir,
        Ok(_) => {
            log::warn!("{shown}: covered by another mount");
            return Ok(None);
        }
        Err(e @ (Errno::NOTCONN | Errno::CONNABORTED | Errno::NOENT)) => {
            log::warn!("{shown}: {e}");
            return Ok(None);
        }
        Err(e) => return Err(Failure::io(format!("run: {shown}"), &e.into())),
    };
    match ioctl::set(&dir, SET_TREE_MODE, mode) {
        Ok(()) => Ok(Some(dir)),
        Err(e) if e.raw_os_error() == Some(Errno::REMOTE.raw_os_error()) => {
            let text = format!("run: {shown}: its process cannot see ours: another container");
            Err(Failure::new(text).hint("`forebay policy PATH uncached` works there, too"))
        }
        Err(e) => {
            let failure = Failure::io(format!("run: {shown}"), &e);
            Err(failure.hint("`--on DIR` names the mounts that are meant"))
        }
    }
}

/// Sets the mode of standard input, output and error if they are files on the mounts (U3). Returns
/// functions that restore their modes.
fn given(numbers: &[u64], mode: u32) -> Vec<impl FnOnce()> {
    let all = [
        std::io::stdin().as_fd().try_clone_to_owned(),
        std::io::stdout().as_fd().try_clone_to_owned(),
        std::io::stderr().as_fd().try_clone_to_owned(),
    ];
    let change = |file: OwnedFd| {
        fstat(&file).ok().filter(|stat| numbers.contains(&stat.st_dev))?;
        let before = ioctl::get(&file, GET_MODE).ok().filter(|before| *before == MODE_CACHED)?;
        ioctl::set(&file, SET_MODE, mode).ok()?;
        Some(move || {
            if let Err(e) = ioctl::set(&file, SET_MODE, before) {
                log::warn!("run: a file that was given stays as the command had it: {e}");
            }
        })
    };
    all.into_iter().flatten().filter_map(change).collect()
}

/// Waits for the command and all its descendants; forwards signals to the command meanwhile.
fn reap(child: &Child, mut signals: Signals) -> Outcome<u8> {
    let command = Pid::from_child(child);
    let handle = signals.handle();
    let forward = move || {
        for signal in signals.forever() {
            // SIGINT and SIGQUIT come from a terminal, which sends them to the command as well.
            let passed = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            // The command may have ended: then the signal has no receiver.
            let _told = kill_process(command, passed);
        }
    };
    let thread = std::thread::Builder::new().name("forebay-signal".into()).spawn(forward);
    let thread = thread.map_err(|e| Failure::io("start the signal thread", &e))?;
    let mut ended = status::FAILED;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, how))) if pid == command => {
                let signal = how.terminating_signal().map(|signal| 128 + signal);
                let code = how.exit_status().or(signal).unwrap_or(1);
                ended = u8::try_from(code).unwrap_or(status::FAILED);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => break,
            Err(e) => return Err(Failure::io("run: wait", &e.into())),
        }
    }
    handle.close();
    // It only forwards.
    let _joined = thread.join();
    Ok(ended)
}
