//! Answers requests on the control socket of a process that serves a block device.
//!
//! Lock: one for what is served, held shared while a request is answered, and exclusively to
//! release the device and everything else.

use crate::behaviours::{self, Served};
use crate::control::answers;
use crate::control::proto::{Refusal, Request};
use crate::control::server::ControlTarget;
use crate::live;
use crate::volume::map;
use forebay::{Cache, Residency};
use forebay_base::units::{MIB, parse_size};
use forebay_block::loopdev::FileLoop;
use forebay_live::Collector;
use serde_json::{Value, json};
use std::sync::{Arc, RwLock};
use std::time::Instant;

/// Smallest `--cache-size`, bytes.
pub const CACHE_MIN: u64 = 32 * MIB;
/// Least memory that the front end leaves to the cache, bytes.
pub const DATA_MIN: u64 = 4 * MIB;

/// What is served.
pub struct Live {
    /// The cache.
    pub cache: Cache,
    /// Samples of the cache, for `top` and the page.
    pub collector: Arc<Collector>,
    /// The device.
    pub device: FileLoop,
    /// The options of docs/reference/options.md.
    pub behaviours: behaviours::Live,
    /// The image or file below the device.
    pub served: Served,
    /// Its name as users see it.
    pub shown: String,
    /// Bytes.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Most memory of the front end, bytes.
    pub front_bytes: u64,
    /// Device and inode number of an image; a file of a volume has none on the host.
    pub identity: Option<(u64, u64)>,
    /// Returns which of its blocks are cached.
    pub residency: ResidencyOf,
}

/// Returns which blocks of a file are cached; keeps the file open.
pub type ResidencyOf = Box<dyn Fn() -> forebay::Result<Residency> + Send + Sync>;

/// Answers requests on the control socket of one attached device, until the device is released.
pub struct Target {
    live: RwLock<Option<Live>>,
    start: Instant,
}

impl Target {
    /// A target for `live`.
    pub fn new(live: Live) -> Arc<Self> {
        Arc::new(Self { live: RwLock::new(Some(live)), start: Instant::now() })
    }

    /// Releases the device, which ends after its last user. The kernel's dirty pages of it are
    /// written first.
    pub fn let_go(&self) {
        if let Some(live) = &*self.live.read().unwrap_or_else(|p| p.into_inner())
            && let Err(e) = live.device.sync()
        {
            log::error!("{e}");
        }
        self.over();
    }

    /// Drops everything that is served.
    pub fn over(&self) {
        let live = self.live.write().unwrap_or_else(|p| p.into_inner()).take();
        drop(live);
    }

    fn detach(&self) -> Result<Value, Refusal> {
        let sync = |live: &Live| live.device.check_free().and_then(|()| live.device.sync());
        let live = self.live.read().unwrap_or_else(|p| p.into_inner());
        live.as_ref().map_or(Ok(()), sync).map_err(|e| answers::refusal(&e))?;
        drop(live);
        self.over();
        Ok(Value::Null)
    }
}

impl Live {
    fn stat(&self, start: Instant) -> Value {
        let mut stat = answers::stat(&self.cache, start);
        let mut shown = self.behaviours.stat(&self.served);
        shown["device"] = self.device.path().display().to_string().into();
        shown["path"] = self.shown.clone().into();
        shown["by"] = "device (loop over FUSE)".into();
        shown["size"] = self.size.into();
        shown["read_only"] = self.read_only.into();
        stat["devices"] = json!([shown]);
        stat
    }

    fn tunables(&self) -> Value {
        let mut all = self.behaviours.tunables();
        let whole = self.cache.stats().budget_bytes + self.front_bytes;
        all.insert("cache_size".into(), whole.to_string().into());
        all.into()
    }

    fn tune(&self, name: &str, value: &str) -> forebay::Result<()> {
        match name {
            "cache_size" => {
                let least = CACHE_MIN.max(self.front_bytes + DATA_MIN);
                let whole = answers::whole_size(parse_size(value)?, least)?;
                self.cache.resize(whole - self.front_bytes)
            }
            _ => self.behaviours.tune(name, value),
        }
    }

    fn residency(&self, identity: (u64, u64)) -> Result<Value, Refusal> {
        if self.identity != Some(identity) {
            return Err(Refusal::new("not-found", "this process does not serve that file"));
        }
        let found = (self.residency)().map_err(|e| answers::refusal(&e))?;
        Ok(answers::residency(&self.shown, &found))
    }
}

impl ControlTarget for Target {
    fn answer(&self, request: Request) -> Result<Value, Refusal> {
        if request == Request::Detach {
            return self.detach();
        }
        let live = self.live.read().unwrap_or_else(|p| p.into_inner());
        let live = live.as_ref().ok_or_else(answers::no_device)?;
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
            Request::Residency(device, ino) => live.residency((device, ino)),
            Request::Extents(..) | Request::Volume(..) => Err(map::not_open()),
            Request::Detach => Err(answers::no_device()),
            Request::Sync => Err(answers::no_mount()),
        }
    }
}
