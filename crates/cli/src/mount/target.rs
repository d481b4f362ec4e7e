//! Answers requests on the control socket of the process of a mount.
//!
//! Lock: one for what is served, held shared while a request is answered, and exclusively when
//! serving begins and ends. After the end nothing here keeps the image open.

use super::words::{CACHE_MIN, DATA_MIN};
use crate::behaviours::{self, Served};
use crate::control::answers;
use crate::control::proto::{Refusal, Request};
use crate::control::server::ControlTarget;
use crate::live;
use crate::volume::{at, map};
use forebay::{Cache, Volume};
use forebay_base::task::block_on;
use forebay_base::units::parse_size;
use forebay_fuse::{CacheMode, MountKind};
use forebay_live::{CacheSource, Collector, FrontEnd, Number};
use forebay_vfs::{FileSystem, Ino};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Instant;

/// What is served.
pub struct Live {
    /// The cache.
    pub cache: Cache,
    /// The volume.
    pub volume: Volume,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// How it was mounted.
    pub kind: MountKind,
    /// Number of the mount's device, as stat(2) gives it.
    pub number: u64,
    /// The options of docs/reference/options.md.
    pub behaviours: behaviours::Live,
    /// Which cache keeps the content of files.
    pub cache_mode: CacheMode,
    /// Most memory of the front end, bytes.
    pub front_bytes: u64,
    /// The numbers of the mount.
    pub figures: Figures,
    /// Returns the number of process trees that have a mode of their own.
    pub trees: Box<dyn Fn() -> usize + Send + Sync>,
    /// Samples of the cache, for `top` and the page.
    pub collector: Arc<Collector>,
    /// URI of the page, if there is one.
    pub page: Option<String>,
}

/// The numbers of a mount, now.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    /// Inodes that the kernel knows.
    pub inodes_known: usize,
    /// Files and directories that the kernel has open.
    pub open_files: usize,
    /// Requests by which the kernel has filled its cache.
    pub kernel_fills: u64,
    /// Bytes of these.
    pub kernel_fill_bytes: u64,
}

/// Returns the numbers of a mount.
pub type Figures = Arc<dyn Fn() -> Numbers + Send + Sync>;

/// Numbers of the mount, for the live page.
pub struct Watched(Figures);

impl Watched {
    /// A collector for a mount.
    pub fn collector(cache: &Cache, figures: &Figures) -> Arc<Collector> {
        let front = Arc::new(Self(figures.clone()));
        Collector::new(CacheSource::new("mount", cache).with_front(front))
    }
}

impl FrontEnd for Watched {
    fn name(&self) -> &str {
        "mount"
    }

    fn numbers(&self) -> Vec<Number> {
        let now = (self.0)();
        let (fills, bytes) = (now.kernel_fills, now.kernel_fill_bytes);
        vec![
            Number::gauge("inodes_known", "Inodes that the kernel knows.", now.inodes_known as u64),
            Number::gauge("open_files", "Files that the kernel has open.", now.open_files as u64),
            Number::counter("kernel_fills", "Reads into the kernel's page cache.", fills),
            Number::counter("kernel_fill_bytes", "Bytes read into the kernel's cache.", bytes),
        ]
    }
}

/// Answers requests from [`Target::serve`] until [`Target::over`].
pub struct Target {
    live: RwLock<Option<Live>>,
    start: Instant,
}

fn over() -> Refusal {
    Refusal::new("not-found", "this process is about to mount, or the mount is over")
}

impl Target {
    /// Nothing is served yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { live: RwLock::new(None), start: Instant::now() })
    }

    /// Serves `live` from now on.
    pub fn serve(&self, live: Live) {
        *self.live.write().unwrap_or_else(|p| p.into_inner()) = Some(live);
    }

    /// The mount has ended: waits for requests in progress, then drops everything.
    pub fn over(&self) {
        let live = self.live.write().unwrap_or_else(|p| p.into_inner()).take();
        if let Some(live) = live {
            // Watching clients hold the collector, which holds the cache.
            live.collector.close();
        }
    }

    fn live(&self) -> RwLockReadGuard<'_, Option<Live>> {
        self.live.read().unwrap_or_else(|p| p.into_inner())
    }
}

impl Live {
    fn stat(&self, start: Instant) -> Value {
        let mut stat = answers::stat(&self.cache, start);
        let now = (self.figures)();
        let mut shown = json!({
            "dir": self.dir.display().to_string(),
            "volume": self.volume.path().display().to_string(),
            "kind": match self.kind { MountKind::Block => "block", MountKind::Plain => "plain" },
            "read_only": self.volume.read_only() || self.volume.damage().is_some(),
            "damage": self.volume.damage().map(|error| error.to_string()),
            "cache": self.cache_mode.word(),
            "inodes_known": now.inodes_known,
            "open_files": now.open_files,
            "kernel_fills": now.kernel_fills,
            "kernel_fill_bytes": now.kernel_fill_bytes,
            "process_trees": (self.trees)(),
            "page": self.page,
        });
        if let (Value::Object(shown), Value::Object(more)) =
            (&mut shown, self.behaviours.stat(&Served::Volume(self.volume.clone())))
        {
            shown.extend(more);
        }
        stat["mounts"] = json!([shown]);
        stat
    }

    fn tunables(&self) -> Value {
        let mut all = self.behaviours.tunables();
        let whole = self.cache.stats().budget_bytes + self.front_bytes;
        all.insert("cache_size".into(), whole.to_string().into());
        all.into()
    }

    fn tune(&self, name: &str, value: &str) -> forebay::Result<()> {
        if name != "cache_size" {
            return self.behaviours.tune(name, value);
        }
        let least = CACHE_MIN.max(self.front_bytes + DATA_MIN);
        let whole = answers::whole_size(parse_size(value)?, least)?;
        self.cache.resize(whole - self.front_bytes)
    }

    fn residency(&self, device: u64, ino: u64) -> Result<Value, Refusal> {
        if device != self.number {
            return Err(Refusal::new("not-found", "this process does not serve that file"));
        }
        let found = self.volume.residency(Ino(ino)).map_err(|e| answers::refusal(&e))?;
        Ok(answers::residency(&format!("inode {ino}"), &found))
    }

    fn is(&self, identity: (u64, u64)) -> bool {
        at::identity(self.volume.identity()) == identity
    }
}

impl ControlTarget for Target {
    fn volume(&self, identity: (u64, u64)) -> Option<(Arc<dyn FileSystem>, Value)> {
        let live = self.live();
        let live = live.as_ref().filter(|live| live.is(identity))?;
        let mut about = at::about(&live.volume).ok()?;
        about["mounted_on"] = live.dir.display().to_string().into();
        Some((live.volume.file_system(), about))
    }

    fn answer(&self, request: Request) -> Result<Value, Refusal> {
        let live = self.live();
        let live = live.as_ref().ok_or_else(over)?;
        match request {
            Request::Stat => Ok(live.stat(self.start)),
            Request::Budget => Ok(answers::budget(&live.cache)),
            Request::Live => live::answer(&live.collector),
            Request::Prometheus => live::metrics(&live.collector),
            Request::Tunables => Ok(live.tunables()),
            Request::Tune(name, value) => match live.tune(&name, &value) {
                Ok(()) => Ok(Value::Null),
                Err(e) => Err(answers::refusal(&e)),
            },
            Request::DropClean => Ok(live.cache.drop_clean().into()),
            Request::Residency(device, ino) => live.residency(device, ino),
            Request::Extents(device, ino, file) => {
                map::answer(live.is((device, ino)).then_some(&live.volume), file)
            }
            Request::Volume(..) => Err(map::not_open()),
            Request::Detach => Err(answers::no_device()),
            Request::Sync => {
                let synced = block_on(live.volume.file_system().syncfs());
                synced.map(|()| Value::Null).map_err(|e| answers::refusal(&e))
            }
        }
    }
}
