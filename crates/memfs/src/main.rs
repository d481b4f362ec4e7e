//! A file system in memory on a mount, as a process that tests kill.
//!
//! usage: forebay-memfs DIR [--via auto|block|plain|helper]
//!                      [--kernel-cache never|small|always] [--stuck]
//!
//! It prints `ready` when it serves, and `ended` when the mount is gone. With `--stuck` it never
//! answers a read of content, each such read tells the kernel to forget the file's pages, and
//! looking up `panic` panics.
//!
//! No locks.
#![forbid(unsafe_code)]

mod stuck;

use forebay_base::world::RealWorld;
use forebay_base::{Error, ErrorKind, Result};
use forebay_fuse::options::Via;
use forebay_fuse::watchdog::{self, Watchdog};
use forebay_fuse::{Options, Session};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::FileSystem;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// The first argument of the watchdog's process.
const WATCHDOG: &str = "--watchdog";

fn say(text: &str) {
    let mut out = std::io::stdout();
    // The program that started this process may be gone.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = match args.first() {
        Some(first) if first == WATCHDOG => watchdog::run(&args[1..]),
        _ => serve(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("failed: {e}"));
            ExitCode::FAILURE
        }
    }
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "read the command line", what)
}

fn options(args: &[OsString]) -> Result<(PathBuf, Options, bool)> {
    let (mut dir, mut options, mut stuck) = (None, Options::default(), false);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().and_then(|w| w.to_str()).ok_or_else(|| bad("a value"));
        match word.to_str() {
            Some("--via") => {
                options.via = match value()? {
                    "auto" => Via::Auto,
                    "block" => Via::Block,
                    "plain" => Via::Plain,
                    "helper" => Via::Helper,
                    _ => return Err(bad("--via")),
                }
            }
            Some("--kernel-cache" | "--cache") => options.cache = value()?.parse()?,
            Some("--stuck") => stuck = true,
            _ => dir = Some(PathBuf::from(word)),
        }
    }
    Ok((dir.ok_or_else(|| bad("a directory"))?, options, stuck))
}

fn serve(args: &[OsString]) -> Result<()> {
    let (dir, options, stuck) = options(args)?;
    let notifier = Arc::default();
    let fs: Arc<dyn FileSystem> = match stuck {
        true => Arc::new(stuck::Stuck::new(MemFs::default(), Arc::clone(&notifier))),
        false => Arc::new(MemFs::default()),
    };
    let mounted = forebay_fuse::mount(&dir, &options)?;
    let (dir, number) = (mounted.dir.clone(), mounted.number);
    let session = Session::start(mounted, fs, RealWorld::new(), &options)?;
    let _ = notifier.set(session.notifier());
    let exe = std::env::current_exe().map_err(|e| Error::from_io("find the program", e))?;
    let mut command = Command::new(exe);
    command.arg(WATCHDOG);
    let watchdog = Watchdog::start(command, session.alive(), &dir, number)?;
    say("ready");
    let ending = session.wait();
    let synced = ending.sync();
    ending.finish(&synced);
    watchdog.stop();
    say("ended");
    synced
}
