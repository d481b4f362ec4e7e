//! `forebay attach`, `detach` and `list`: an image, or a file in a volume, as a block device of the
//! kernel.
//!
//! ```text
//!   open (lock) the image -> a mount with one file, whose mount point is removed again at once
//!   -> a loop device over the file, opened with `O_DIRECT` -> ready -> serve
//!     `detach`, or a signal
//!   -> sync -> release the loop device -> after its last user the device and the mount end
//!   -> make durable -> release the image -> exit
//! ```
//! H1 The device ends with this process, which holds it open: the kernel clears it after its last
//! user.
//! H2 If this process is killed, the mount's connection ends, and users of the device get errors.
//! H3 Exit status 0 of the daemon, and of `detach`, means that everything accepted is durable.

mod list;
mod target;

pub use list::{DetachArgs, ListArgs, detach, list};

use crate::behaviours::{self, Mode, Served, Store};
use crate::control::server::ControlServer;
use crate::daemon::{self, Started};
use crate::failure::{Failure, Outcome, status};
use crate::mount::start_watchdog;
use crate::options::{CacheArgs, size};
use crate::volume::at::{self, Named};
use crate::{output, signals};
use clap::Args;
use forebay::{Cache, CacheConfig, ExportMode, LiveMode, OpenOptions, Volume};
use forebay_base::units::{MIB, format_size};
use forebay_base::world::RealWorld;
use forebay_block::loopdev::FileLoop;
use forebay_fuse::options::Via;
use forebay_fuse::watchdog::Watchdog;
use forebay_fuse::{CacheMode, Options, Session};
use forebay_live::{CacheSource, Collector};
use forebay_vfs::disk::{self, Disk};
use forebay_vfs::{Export, FileSystem, Timestamp};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use target::{CACHE_MIN, DATA_MIN, Live, ResidencyOf, Target};

/// `forebay attach`
#[derive(Args, Debug)]
pub struct AttachArgs {
    /// Image file, block device or file of a volume
    #[arg(value_name = "IMAGE|VOLUME:/PATH")]
    pub image: String,
    /// The cache, and how an image is opened below it.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Bytes of the device's blocks, 512 to 4k
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size)]
    pub sector_size: u64,
    /// Let the kernel look for partitions
    #[arg(short = 'P', long)]
    pub partitions: bool,
    /// Control socket [default: one per process in the user's runtime folder]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// This process is the daemon.
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// Runs the command and returns its exit status.
pub fn attach(args: &AttachArgs) -> Outcome<u8> {
    check(args)?;
    if args.foreground || args.daemon {
        return serve(args);
    }
    Ok(match daemon::start()? {
        Started::Failed(status) => status,
        Started::Serves(device) => {
            tell(&device);
            output::line(device);
            status::OK
        }
    })
}

/// Prints to standard error how the device is made; standard output gets its name alone.
fn tell(device: &str) {
    let mut err = std::io::stderr().lock();
    // A closed standard error does not keep the device from being served.
    let _ = writeln!(err, "forebay: {device} is a loop device over a mount with one file");
}

fn check(args: &AttachArgs) -> Outcome {
    let sector = args.sector_size;
    if !sector.is_power_of_two() || !(512..=4096).contains(&sector) {
        return Err(Failure::usage(format!("--sector-size {sector}: 512, 1k, 2k or 4k")));
    }
    let store = match Named::parse(&args.image) {
        Some(_) => Store::Volume,
        None => Store::Image,
    };
    args.cache.check_behaviours("attach", &[store])?;
    args.cache.size(CACHE_MIN).map(drop)
}

/// Requests of a device in progress at a time, whatever the size of the cache: as many as the
/// kernel's loop device has.
const DEPTH: u16 = 128;

/// What is served.
struct Source {
    export: Arc<dyn Export>,
    volume: Option<Volume>,
    served: Served,
    shown: String,
    /// Device and inode number of an image; a file of a volume has none on the host.
    identity: Option<(u64, u64)>,
    residency: ResidencyOf,
}

fn open(cache: &Cache, args: &AttachArgs, mode: &LiveMode) -> Outcome<Source> {
    let (given, read_only) = (&args.cache.behaviours, args.cache.read_only);
    let image = |path: &Path| {
        let shown = path.display().to_string();
        std::fs::canonicalize(path).map_err(|e| Failure::io(shown, &e))
    };
    let Some(Named { image: path, path: inside }) = Named::parse(&args.image) else {
        let path = image(Path::new(&args.image))?;
        let mut how = given.open_options();
        let file = how.read(true).write(!read_only).open(cache, &path)?;
        let shown = path.display().to_string();
        let meta = std::fs::metadata(&path).map_err(|e| Failure::io(shown.clone(), &e))?;
        return Ok(Source {
            export: file.export_live(mode)?,
            volume: None,
            served: Served::File(file.clone()),
            shown,
            identity: Some((meta.dev(), meta.ino())),
            residency: Box::new(move || file.residency(0, file.size()?)),
        });
    };
    let path = image(&path)?;
    let options = given.volume_options().read_only(read_only);
    let volume = cache.open_volume(&path, &options).map_err(|e| at::in_use(&path, &inside, e))?;
    let shown = format!("{}:{}", path.display(), String::from_utf8_lossy(&inside));
    let mut how = OpenOptions::new();
    let opened = how.read(true).write(!read_only).open_in(&volume, OsStr::from_bytes(&inside));
    let opened = opened.and_then(|file| Ok((file.export_live(mode)?, file)));
    let (export, file) = opened.map_err(|e| {
        let failure = Failure::from(e);
        Failure { message: format!("{shown}: {}", failure.message), ..failure }
    })?;
    let served = Served::File(file.clone());
    let residency = Box::new(move || file.residency(0, file.size()?));
    Ok(Source { export, volume: Some(volume), served, shown, identity: None, residency })
}

/// The settings of the cache and of the front end; together their memory is `--cache-size`.
fn config(args: &AttachArgs) -> Outcome<(CacheConfig, Options)> {
    let mut config = CacheConfig::default();
    let whole = args.cache.cache_size.unwrap_or(config.budget).max(CACHE_MIN);
    let how = Options {
        via: Via::Plain,
        cache: CacheMode::Own,
        inodes_max: 1024,
        request_bytes: (whole / 8).clamp(8 * MIB, 64 * MIB),
        // Each request of the loop device counts as the kernel's own.
        background_min: DEPTH,
        ..Options::default()
    };
    let (bound, shown) = (how.memory_bound(), format_size(whole));
    if whole < bound + DATA_MIN {
        let least = format_size(bound + DATA_MIN);
        return Err(Failure::usage(format!("--cache-size {shown}: {least} are needed")));
    }
    config.budget = whole - bound;
    config.aio = args.cache.aio.parse()?;
    args.cache.behaviours.configure(&mut config);
    Ok((config, how))
}

/// The mount below the device.
struct Below {
    session: Session,
    watchdog: Watchdog,
    device: FileLoop,
}

/// A private folder as mount point, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Outcome<Self> {
        let name = format!("forebay-attach-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Failure::io(path.display().to_string(), &e))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Unmounts what is mounted on it; fails if nothing is.
        let _unmounted = forebay_fuse::mount::unmount(&self.0, true);
        if let Err(e) = std::fs::remove_dir(&self.0) {
            log::warn!("{}: {e}", self.0.display());
        }
    }
}

/// Makes the mount and the device. The mount point is gone when this returns: the device alone
/// keeps the mount alive.
fn below(source: &Source, how: &Options, args: &AttachArgs) -> Outcome<Below> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = since.map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    let fs: Arc<dyn FileSystem> =
        Arc::new(Disk::new(source.export.clone(), Timestamp::new(seconds, 0)));
    let folder = Folder::new()?;
    let mounted = forebay_fuse::mount(&folder.0, how)?;
    let (dir, number) = (mounted.dir.clone(), mounted.number);
    let session = Session::start(mounted, fs, RealWorld::new(), how)?;
    let watchdog = start_watchdog(&session, &dir, number)?;
    let mut options = File::options();
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("a flag of open(2)");
    options.read(true).write(!args.cache.read_only).custom_flags(flags);
    let path = dir.join(disk::NAME);
    let file = options.open(&path).map_err(|e| Failure::io(path.display().to_string(), &e))?;
    let sector = u32::try_from(args.sector_size).expect("checked to be 4 KiB at most");
    let device =
        FileLoop::attach(&file, &source.shown, sector, args.cache.read_only, args.partitions)
            .map_err(|e| Failure::from(e).hint("block devices need root and /dev/loop-control"))?;
    Ok(Below { session, watchdog, device })
}

fn serve(args: &AttachArgs) -> Outcome<u8> {
    let (config, mut how) = config(args)?;
    let cache = Cache::new(config)?;
    let given = &args.cache.behaviours;
    let mode = LiveMode::new(given.mode(ExportMode::Direct));
    let source = open(&cache, args, &mode)?;
    given.tune(&cache)?;
    how.source.clone_from(&source.shown);
    let Below { session, watchdog, device } = below(&source, &how, args)?;
    let shown = device.path().display().to_string();
    let (mode, files) = (Mode::Export(mode), vec![source.served.clone()]);
    let target = Target::new(Live {
        collector: Collector::new(CacheSource::new("attach", &cache)),
        cache: cache.clone(),
        device,
        behaviours: behaviours::Live::new(&cache, mode, files, given.direct_io()),
        served: source.served,
        shown: source.shown.clone(),
        size: source.export.info().size,
        read_only: args.cache.read_only,
        front_bytes: how.memory_bound(),
        identity: source.identity,
        residency: source.residency,
    });
    let control = ControlServer::start(args.control.as_deref(), target.clone());
    let mut control = control.map_err(|e| e.hint("without one there is no `detach`"))?;
    watch_signals(target.clone(), control.path().to_path_buf())?;
    match args.daemon {
        true => daemon::ready(&shown)?,
        false => {
            tell(&shown);
            output::announce(std::slice::from_ref(&shown));
        }
    }
    let ending = session.wait();
    log::info!("{shown} is gone");
    target.over();
    let synced = ending.sync();
    ending.release();
    let Source { export, volume, shown, .. } = source;
    drop(export);
    let closed = volume.map_or(Ok(()), Volume::close);
    let stopped = cache.shutdown();
    let done = synced.and(closed).and(stopped);
    control.close();
    ending.finish(&done);
    watchdog.stop();
    drop(control);
    done.map(|()| status::OK).map_err(|e| {
        Failure::new(format!("{shown}: {e}"))
            .hint("the image is older than what was written, where that was not synced")
    })
}

/// The first signal releases the device, which ends after its last user. The second signal ends the
/// process.
fn watch_signals(target: Arc<Target>, control: PathBuf) -> Outcome {
    let (sender, events) = channel();
    signals::watch(sender, (), move |signal| {
        let _ = std::fs::remove_file(control);
        log::error!(
            "stopped at once by a second signal ({signal}): what was not synced may be lost"
        );
    })?;
    let work = move || {
        if events.recv().is_ok() {
            target.let_go();
        }
    };
    let thread = std::thread::Builder::new().name("forebay-detach".into()).spawn(work);
    thread.map(drop).map_err(|e| Failure::io("start a thread", &e))
}
