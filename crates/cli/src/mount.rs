//! `forebay mount`: opens a volume, serves it on a directory, and ends with everything durable.
//!
//! ```text
//!   parse -> [start the daemon, wait for its report] -> open (lock) the volume -> mount
//!   -> watchdog -> ready -> serve
//!     umount(8), `forebay umount`, or a signal
//!   -> answer requests in flight -> make durable -> release the image -> umount returns -> exit
//! ```
//! P1 `mount` returns when the mount can be used, or with the reason why there is none.
//! P2 Exit status 0 of the daemon means that everything accepted is durable.
//! P3 The image can be opened after `forebay umount`, and after umount(8) of a mount of the type
//! `fuseblk`, which waits for the daemon.

mod target;
mod words;

use crate::behaviours::{self, Given, Mode, Served};
use crate::control::server::ControlServer;
use crate::daemon::{self, Started};
use crate::failure::{Failure, Outcome, status};
use crate::volume::at;
use crate::{doctor, live, mounts, output, signals};
use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay::{Cache, CacheConfig, ExportMode, Volume, VolumeOptions};
use forebay_base::units::{MIB, format_size};
use forebay_base::world::RealWorld;
use forebay_base::{Error, ErrorKind};
use forebay_fuse::watchdog::{self, Watchdog};
use forebay_fuse::{CacheMode, MountKind, Options, Session};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use target::{Figures, Live, Numbers, Target, Watched};
use words::{DATA_MIN, Wanted};

/// `forebay mount`
#[derive(Args, Debug)]
pub struct MountArgs {
    /// Image of the volume
    #[arg(value_name = "VOLUME")]
    pub volume: PathBuf,
    /// An empty directory, or any: what is in it is hidden while the mount is there
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Options as in fstab; `forebay mount --help` lists them
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", value_delimiter = ',')]
    #[arg(long_help = words::help())]
    pub options: Vec<String>,
    /// Which cache keeps the content of files, as `-o cache=`, which it overrules
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(CacheMode::WORDS))]
    pub cache: Option<String>,
    /// The same by older words: never is own, always is kernel
    #[arg(long, value_name = "WHAT", conflicts_with = "cache")]
    #[arg(value_parser = PossibleValuesParser::new(CacheMode::ALIASES))]
    pub kernel_cache: Option<String>,
    /// The options of docs/reference/options.md.
    #[command(flatten)]
    pub behaviours: Given,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// The live view.
    #[command(flatten)]
    pub live: live::LiveArgs,
    /// This process is the daemon.
    #[arg(long, hide = true)]
    pub daemon: bool,
    /// Do everything but the mount, as mount(8) asks for with `-f`.
    #[arg(long, hide = true)]
    pub fake: bool,
}

/// How long a mount waits for a process that is about to release the image, and how often it tries.
const ENDING_MAX: Duration = Duration::from_secs(10);
const ENDING_LOOK: Duration = Duration::from_millis(20);

/// The hidden command of the watchdog's process.
#[derive(Args, Debug)]
pub struct WatchdogArgs {
    /// The arguments that `forebay_fuse::watchdog::Watchdog::start` appends to the command.
    #[arg(value_name = "ARGS", trailing_var_arg = true)]
    pub args: Vec<OsString>,
}

/// The work of the watchdog's process.
pub fn watchdog(args: &WatchdogArgs) -> Outcome {
    // The watchdog ends by its pipe. Signals to all processes of a service or a terminal must not
    // end it.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let ignored = signal_hook::flag::register(signal, Arc::default());
        ignored.map_err(|e| Failure::io("ignore signals", &e))?;
    }
    Ok(watchdog::run(&args.args)?)
}

/// Runs the command and returns its exit status.
pub fn mount(args: &MountArgs) -> Outcome<u8> {
    let mut wanted = Wanted::parse(&args.options)?;
    if let Some(mode) = args.cache.as_ref().or(args.kernel_cache.as_ref()) {
        wanted.fuse.cache = mode.parse()?;
    }
    wanted.behaviours.overrule_by(&args.behaviours);
    wanted.check_behaviours()?;
    let mode = Mode::Mount(wanted.fuse.mode.clone());
    mode.set(wanted.behaviours.mode(ExportMode::Cached));
    wanted.live = args.live.or(wanted.live);
    live::options(&wanted.live)?;
    let volume = absolute(&args.volume)?;
    let dir = absolute(&args.dir)?;
    check(&volume, &dir)?;
    if args.fake {
        return Ok(status::OK);
    }
    if !args.foreground && !args.daemon {
        return Ok(match daemon::start()? {
            Started::Failed(status) => status,
            Started::Serves(remark) => {
                if !remark.is_empty() {
                    log::warn!("{remark}");
                }
                status::OK
            }
        });
    }
    serve(args, &wanted, &volume, &dir)
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::fs::canonicalize(path).map_err(|e| Failure::io(path.display().to_string(), &e))
}

/// Refuses senseless arguments before anything is opened.
fn check(volume: &Path, dir: &Path) -> Outcome {
    let shown = dir.display();
    if !dir.is_dir() {
        return Err(Failure::usage(format!("{shown}: not a directory")));
    }
    if dir == Path::new("/") {
        return Err(Failure::usage("/: not on the root directory"));
    }
    if volume.starts_with(dir) {
        let text = format!("{shown}: the mount would hide its own image, {}", volume.display());
        return Err(
            Failure::usage(text).hint("mount it on a directory that does not contain the image")
        );
    }
    Ok(())
}

fn serve(args: &MountArgs, wanted: &Wanted, volume: &Path, dir: &Path) -> Outcome<u8> {
    let mut how = wanted.fuse.clone();
    how.source = volume.display().to_string();
    let http = live::bind(&wanted.live)?;
    let config = config(wanted, &mut how)?;
    let cache = Cache::new(config)?;
    let opened = open(&cache, volume, wanted)?;
    let fs = opened.to_mount();
    let target = Target::new();
    let mut control = start_control(wanted, &target)?;
    how.control = control.as_ref().map(|control| control.path().to_path_buf());
    let mounted = forebay_fuse::mount(dir, &how).map_err(not_mounted)?;
    let (kind, number) = (mounted.kind, mounted.number);
    // From here on the mount exists: a failure removes it again.
    let undo = Unmount(dir.to_path_buf());
    let session = Session::start(mounted, fs, RealWorld::new(), &how)?;
    let watchdog = start_watchdog(&session, dir, number)?;
    let figures: Figures = Arc::new(figures(&session));
    let collector = Watched::collector(&cache, &figures);
    cache.add_rows(Arc::new(session.memory_rows(&how)));
    let page = live::serve(&cache, &collector, http)?;
    target.serve(Live {
        behaviours: behaviours_of(&opened, wanted),
        collector,
        page: page.as_ref().map(live::uri),
        cache: cache.clone(),
        volume: opened.clone(),
        dir: dir.to_path_buf(),
        kind,
        number: rustix::fs::makedev(number.0, number.1),
        cache_mode: how.cache,
        front_bytes: how.memory_bound(),
        trees: Box::new(session.trees()),
        figures,
    });
    watch_signals(dir, number, how.control.clone())?;
    if args.daemon {
        daemon::ready(remark(kind).unwrap_or_default())?;
    } else {
        let said = format!("{} is mounted on {}", volume.display(), dir.display());
        output::announce(&[vec![said], page.iter().map(live::uri).collect()].concat());
    }
    let ending = session.wait();
    std::mem::forget(undo);
    log::info!("{}: the mount is gone", dir.display());
    // Sessions end and release what they hold before the last sync (remote.R4).
    if let Some(control) = &control {
        control.end_sessions();
    }
    target.over();
    drop(page);
    let synced = ending.sync();
    ending.release();
    let closed = opened.close();
    let stopped = cache.shutdown();
    // The image is free before umount(2) returns (P3).
    drop(cache);
    let done = synced.and(closed).and(stopped);
    // The control socket is closed by then, too: a command finds either this process or none.
    if let Some(control) = &mut control {
        control.close();
    }
    ending.finish(&done);
    watchdog.stop();
    done.map(|()| status::OK).map_err(|e| {
        Failure::new(format!("{}: {e}", volume.display()))
            .hint("the volume is older than what programs wrote, where they did not sync")
    })
}

/// A function that returns the numbers of a mount.
fn figures(session: &Session) -> impl Fn() -> Numbers + Send + Sync + 'static {
    let (figures, fills) = (session.figures(), session.fills());
    move || {
        let ((inodes_known, open_files), (kernel_fills, kernel_fill_bytes)) = (figures(), fills());
        Numbers { inodes_known, open_files, kernel_fills, kernel_fill_bytes }
    }
}

/// Opens the volume. umount(8) does not wait for a mount of the plain type: its process makes all
/// data durable and unlocks the image afterwards. A mount that follows at once waits for that. If
/// another process has the volume open and answers on its control socket, this fails at once.
fn open(cache: &Cache, volume: &Path, wanted: &Wanted) -> Outcome<Volume> {
    let end = Instant::now() + ENDING_MAX;
    let mut waits = false;
    loop {
        match Volume::open(cache, volume, &volume_options(wanted)) {
            Err(e) if e.kind() == ErrorKind::Busy && Instant::now() < end => {
                if at::is_open(volume, &e) {
                    return Err(e.into());
                }
                if !std::mem::replace(&mut waits, true) {
                    log::info!("{e}: waiting for it to end, up to {ENDING_MAX:?}");
                }
                std::thread::sleep(ENDING_LOOK);
            }
            opened => {
                let opened = opened?;
                wanted.behaviours.tune(cache)?;
                return Ok(opened);
            }
        }
    }
}

/// The options of docs/reference/options.md of a mount, to be shown and changed.
fn behaviours_of(volume: &Volume, wanted: &Wanted) -> behaviours::Live {
    let mode = Mode::Mount(wanted.fuse.mode.clone());
    let served = vec![Served::Volume(volume.clone())];
    behaviours::Live::new(volume.cache(), mode, served, wanted.behaviours.direct_io())
}

/// Adds to an error why mounts are not possible here, and what to use instead.
fn not_mounted(e: Error) -> Failure {
    let failure = Failure::from(e);
    match doctor::without_mounts() {
        Some((missing, advice)) => {
            Failure { message: format!("{} ({missing})", failure.message), ..failure }.hint(advice)
        }
        None => failure,
    }
}

fn volume_options(wanted: &Wanted) -> VolumeOptions {
    wanted.behaviours.volume_options().read_only(wanted.read_only()).noatime(wanted.noatime())
}

/// Starts the control socket. A failure ends the command only if `control=` requested the socket.
fn start_control(wanted: &Wanted, target: &Arc<Target>) -> Outcome<Option<ControlServer>> {
    match ControlServer::start(wanted.control.as_deref(), target.clone()) {
        Ok(server) => Ok(Some(server)),
        Err(e) if wanted.control.is_some() => Err(e),
        Err(e) => {
            log::warn!("no control socket: {}", e.message);
            Ok(None)
        }
    }
}

/// The settings of the cache; its memory and that of the front end together are `cache_size`.
fn config(wanted: &Wanted, how: &mut Options) -> Outcome<CacheConfig> {
    let mut config = CacheConfig::default();
    let usual = match how.cache {
        // Forebay's cache then holds only data that is not durable, read-ahead, and names.
        CacheMode::Kernel => config.budget / 4,
        CacheMode::Own | CacheMode::Small => config.budget,
    };
    let whole = wanted.cache_size.unwrap_or(usual).max(words::CACHE_MIN);
    how.inodes_max = wanted.inodes.unwrap_or_else(|| Options::inodes_for(whole));
    how.request_bytes = (whole / 16).clamp(4 * MIB, 64 * MIB);
    let (bound, shown) = (how.memory_bound(), format_size(whole));
    if whole < bound + DATA_MIN {
        let least = format_size(bound + DATA_MIN);
        let text = format!("mount: -o cache_size={shown}: so many threads and inodes need {least}");
        return Err(Failure::usage(text).hint("fewer `threads=` or `inodes=`"));
    }
    config.budget = whole - bound;
    config.aio = wanted.aio;
    wanted.behaviours.configure(&mut config);
    Ok(config)
}

/// Removes, on drop, a mount that could not be served.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        if let Err(e) = forebay_fuse::mount::unmount(&self.0, true) {
            log::warn!("{e}");
        }
    }
}

/// Starts the watchdog process of this process.
pub fn start_watchdog(session: &Session, dir: &Path, number: (u32, u32)) -> Outcome<Watchdog> {
    let exe = std::env::current_exe().map_err(|e| Failure::io("find this program", &e))?;
    let mut command = Command::new(exe);
    command.args(["watchdog", "--"]);
    Ok(Watchdog::start(command, session.alive(), dir, number)?)
}

/// The first signal ends the mount as `umount` does. If the mount is in use, it ends with its last
/// user and is closed to new ones. The second signal ends the process. If the directory has another
/// mount by now, or none, the mount ends with its last user.
fn watch_signals(dir: &Path, number: (u32, u32), control: Option<PathBuf>) -> Outcome {
    let (sender, events) = channel();
    let place = dir.to_path_buf();
    let is_there = move || mounts::number_of(&place).is_ok_and(|found| found == number);
    let still = is_there.clone();
    let ask = move || {
        let there = is_there();
        match there {
            // The receiver is gone if the mount is.
            true => drop(sender.send(())),
            false => log::warn!("not mounted in its place any more; it ends with its last user"),
        }
        there
    };
    signals::watch_if(ask, move |signal| {
        if let Some(socket) = control {
            let _ = std::fs::remove_file(socket);
        }
        log::error!(
            "stopped at once by a second signal ({signal}): what was not synced may be lost"
        );
    })?;
    let dir = dir.to_path_buf();
    let work = move || {
        if events.recv().is_err() {
            return;
        }
        match forebay_fuse::mount::unmount(&dir, false) {
            Err(e) if e.kind() == ErrorKind::Busy => {
                log::warn!("{}: in use; it ends with its last user", dir.display());
                if still()
                    && let Err(e) = forebay_fuse::mount::unmount(&dir, true)
                {
                    log::error!("{e}");
                }
            }
            Err(e) => log::error!("{e}"),
            Ok(()) => {}
        }
    };
    let thread = std::thread::Builder::new().name("forebay-umount".into()).spawn(work);
    thread.map(drop).map_err(|e| Failure::io("start a thread", &e))
}

/// What a user has to know of a mount of this kind; `None` for the usual kind.
fn remark(kind: MountKind) -> Option<&'static str> {
    match kind {
        MountKind::Block => None,
        MountKind::Plain => Some(
            "umount(8) and sync(1) do not wait for this mount to write out; `forebay umount` does",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory in bytes, and the inodes that the kernel may know, with these options.
    fn sizes(words: &str) -> (u64, usize) {
        let wanted = Wanted::parse(&[words.to_string()]).unwrap();
        let mut how = wanted.fuse.clone();
        let config = config(&wanted, &mut how).unwrap();
        (config.budget + how.memory_bound(), how.inodes_max)
    }

    /// If the kernel's cache keeps the content, Forebay's is by default a quarter as large.
    #[test]
    fn sizes_unless_given_follow_the_cache_mode() {
        let (own, small, kernel) = (sizes("cache=own"), sizes("cache=small"), sizes(""));
        assert_eq!(own, small);
        assert_eq!(kernel.0, (own.0 / 4).max(words::CACHE_MIN));
        assert!(own.1 >= kernel.1 && kernel.1 >= 1 << 14, "{own:?} {kernel:?}");
        assert_eq!(sizes("inodes=5000").1, 5000);
    }

    #[test]
    fn inodes_unless_given_are_one_for_each_kib_of_cache() {
        let sizes = [sizes("cache_size=64M"), sizes("cache_size=4G")];
        assert_eq!(sizes, [(64 << 20, 1 << 16), (4 << 30, 1 << 22)]);
    }
}
