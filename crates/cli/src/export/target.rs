//! Answers requests on the control socket of a running export.

use super::served::Served;
use super::sizes::{CACHE_MIN, DATA_MIN, client_memory};
use super::spec::Place;
use crate::behaviours;
use crate::control::answers;
use crate::control::proto::{Refusal, Request};
use crate::control::server::ControlTarget;
use crate::live;
use crate::volume::{at, map};
use forebay::{Cache, Error, ErrorKind, Volume};
use forebay_base::units::parse_size;
use forebay_live::metrics::label;
use forebay_live::{CacheSource, Collector, FrontEnd, Number, Server};
use forebay_vfs::FileSystem;
use serde_json::Value;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// Numbers of the part that talks to clients.
pub trait Front: Send + Sync + 'static {
    /// What it counts.
    fn numbers(&self) -> Vec<Number>;
    /// Longest poll before a sleep, microseconds; 0 is off.
    fn poll_us(&self) -> u64;
    /// Changes it live.
    fn set_poll_us(&self, micros: u64);
    /// Bytes for requests and replies of clients.
    fn requests_memory(&self) -> u64;
    /// Changes it live.
    fn set_requests_memory(&self, bytes: u64);
    /// Most memory that the server may use, bytes.
    fn memory_bound(&self) -> u64;
    /// What `memory_bound` would be with `requests` bytes for requests.
    fn memory_bound_with(&self, requests: u64) -> u64;
}

/// Everything the control socket shows and changes.
pub struct Target {
    /// The cache.
    pub cache: Cache,
    /// What is served, in the order of the command line.
    pub served: Vec<Served>,
    /// Where.
    pub place: Place,
    /// The options of docs/reference/options.md.
    pub behaviours: behaviours::Live,
    /// The server.
    pub front: Box<dyn Front>,
    /// Held while the size is changed.
    pub resizing: Mutex<()>,
    /// When the process began to serve.
    pub start: Instant,
    /// Samples of the cache, for `top` and the page.
    pub collector: Arc<Collector>,
    /// URI of the page, if there is one.
    pub page: OnceLock<String>,
}

/// The server's numbers, for the live view.
pub struct Watched(Weak<Target>);

impl Watched {
    /// A collector for a target that is being created.
    pub fn collector(cache: &Cache, target: &Weak<Target>) -> Arc<Collector> {
        let front = Arc::new(Self(target.clone()));
        Collector::new(CacheSource::new("export", cache).with_front(front))
    }
}

impl FrontEnd for Watched {
    fn name(&self) -> &str {
        "nbd"
    }

    fn numbers(&self) -> Vec<Number> {
        self.0.upgrade().map_or_else(Vec::new, |target| target.front.numbers())
    }

    fn more_metrics(&self) -> String {
        self.0.upgrade().map_or_else(String::new, |target| target.stable_needs())
    }
}

impl Target {
    /// Sets the page's URI, if there is a page; called once.
    pub fn page_is(&self, page: Option<&Server>) {
        page.into_iter().for_each(|page| drop(self.page.set(live::uri(page))));
    }

    /// The URIs of the exports, then that of the page.
    pub fn uris(&self) -> Vec<String> {
        let exports = self.served.iter().map(|served| self.place.uri(&served.name));
        exports.chain(self.page.get().cloned()).collect()
    }

    fn stat(&self) -> Value {
        let mut stat = answers::stat(&self.cache, self.start);
        stat["page"] = self.page.get().cloned().into();
        stat["exports"] = self.served.iter().map(|s| self.export(s)).collect();
        let numbers = self.front.numbers().into_iter().map(|n| (n.name, n.value));
        stat["nbd"] = answers::numbers(numbers).into();
        stat
    }

    fn export(&self, served: &Served) -> Value {
        let mut shown = self.behaviours.stat(&served.file);
        shown["name"] = served.name.clone().into();
        shown["path"] = served.shown.clone().into();
        shown["uri"] = self.place.uri(&served.name).into();
        shown["size"] = served.size().into();
        shown["read_only"] = served.read_only.into();
        shown
    }

    fn stable_needs(&self) -> String {
        let (exports, devices) = (
            |s: &Served| (s.name.clone(), s.file.stable_pages_required().0),
            |s: &Served| (s.shown.clone(), s.file.device_stable_pages_required().0),
        );
        let exports = needs("export", self.served.iter().map(exports));
        exports + &needs("device", self.served.iter().map(devices))
    }

    fn tunables(&self) -> Value {
        let mut all = self.behaviours.tunables();
        all.insert("cache_size".into(), self.cache_size().to_string().into());
        all.insert("poll_us".into(), self.front.poll_us().to_string().into());
        Value::Object(all)
    }

    fn tune(&self, name: &str, value: &str) -> forebay::Result<()> {
        match name {
            "cache_size" => self.resize(parse_size(value)?),
            "poll_us" => {
                let bad = || {
                    let text = format!("poll_us={value}: microseconds, 0 to 1000");
                    Error::new(ErrorKind::InvalidInput, "tune", text)
                };
                let micros = value.parse().ok().filter(|n| *n <= 1000).ok_or_else(bad)?;
                self.front.set_poll_us(micros);
                Ok(())
            }
            _ => self.behaviours.tune(name, value),
        }
    }

    /// The setting `cache_size`: memory of the cache and the server together, bytes.
    fn cache_size(&self) -> u64 {
        self.cache.stats().budget_bytes + self.front.memory_bound()
    }

    fn resize(&self, whole: u64) -> forebay::Result<()> {
        let _turn = self.resizing.lock().unwrap_or_else(|p| p.into_inner());
        let requests = client_memory(whole);
        let bound = self.front.memory_bound_with(requests);
        answers::whole_size(whole, CACHE_MIN.max(bound + DATA_MIN))?;
        let before = self.front.requests_memory();
        // Meanwhile both parts together stay within the larger of the old and the new size.
        self.front.set_requests_memory(requests.min(before));
        let resized = self.cache.resize(whole - bound);
        self.front.set_requests_memory(if resized.is_ok() { requests } else { before });
        resized
    }

    fn residency(&self, identity: (u64, u64)) -> Result<Value, Refusal> {
        let found = self.served.iter().find(|s| s.identity == Some(identity));
        let served = found
            .ok_or_else(|| Refusal::new("not-found", "this process does not export that file"))?;
        let r = served.residency();
        let r = r.map_err(|e| answers::refusal(&e))?;
        Ok(answers::residency(&served.name, &r))
    }
}

/// Gauges with a label: which exports or devices need stable pages.
fn needs(of: &str, all: impl Iterator<Item = (String, bool)>) -> String {
    let name = format!("forebay_{of}_stable_pages_required");
    let help = "1 if bytes in flight must not change, else 0.";
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
    for (named, need) in all {
        text.push_str(&format!("{name}{{{of}=\"{}\"}} {}\n", label(&named), u8::from(need)));
    }
    text
}

impl Target {
    fn open_volume(&self, identity: (u64, u64)) -> Option<&Volume> {
        let mut volumes = self.served.iter().filter_map(|served| served.file.volume());
        volumes.find(|volume| at::identity(volume.identity()) == identity)
    }
}

impl ControlTarget for Target {
    fn volume(&self, identity: (u64, u64)) -> Option<(Arc<dyn FileSystem>, Value)> {
        let volume = self.open_volume(identity)?;
        let about = at::about(volume).ok()?;
        Some((volume.file_system(), about))
    }

    fn answer(&self, request: Request) -> Result<Value, Refusal> {
        match request {
            Request::Stat => Ok(self.stat()),
            Request::Budget => Ok(answers::budget(&self.cache)),
            Request::Live => live::answer(&self.collector),
            Request::Prometheus => live::metrics(&self.collector),
            Request::Tunables => Ok(self.tunables()),
            Request::Tune(name, value) => match self.tune(&name, &value) {
                Ok(()) => Ok(Value::Null),
                Err(e) => Err(answers::refusal(&e)),
            },
            Request::DropClean => Ok(self.cache.drop_clean().into()),
            Request::Residency(dev, ino) => self.residency((dev, ino)),
            Request::Extents(dev, ino, file) => map::answer(self.open_volume((dev, ino)), file),
            Request::Volume(..) => Err(map::not_open()),
            Request::Detach => Err(answers::no_device()),
            Request::Sync => Err(answers::no_mount()),
        }
    }
}
