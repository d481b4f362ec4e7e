//! Maps and devices that stop or fail where a test wants them to.

use forebay_base::buf::DataRef;
use forebay_base::sync::{Arc as CacheArc, Mutex};
use forebay_base::task::{BoxFuture, WaitQueue};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Bio, BioOp, BlockDevice, Completion, DeviceRef, Limits, MapRuns};
use forebay_cache::PageCache;
use forebay_iomap::{
    Admit, Change, Class, Commit, Extent, Lookup, MapFuture, MapInfo, MapOps, Place, Reservation,
    Written,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Default)]
struct GateState {
    closed: bool,
    arrived: u64,
    fails: Option<ErrorKind>,
}

/// A place that calls pass, stop at, or fail at.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: WaitQueue,
}

impl Gate {
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    pub fn open(&self) {
        self.state.lock().closed = false;
        self.changed.wake_all();
    }

    /// Requests that pass from now on fail with this error.
    pub fn fail(&self, kind: Option<ErrorKind>) {
        self.state.lock().fails = kind;
    }

    /// Waits until so many have come, whether they have passed or not.
    pub async fn arrived(&self, calls: u64) {
        self.changed.wait_until(|| (self.state.lock().arrived >= calls).then_some(())).await;
    }

    async fn pass(&self) -> Result<()> {
        self.state.lock().arrived += 1;
        self.changed.wake_all();
        let open = || {
            let state = self.state.lock();
            (!state.closed).then_some(state.fails)
        };
        match self.changed.wait_until(open).await {
            Some(kind) => Err(Error::new(kind, "map", "as the test wants it")),
            None => Ok(()),
        }
    }
}

/// A map with a gate before each call that changes it.
pub struct Gated {
    pub map: Arc<dyn MapOps>,
    pub reserve: Gate,
    pub zero: Gate,
    pub truncate: Gate,
    /// From when it is set, to say where something is takes all of the private memory for a moment,
    /// as reading a tree does.
    pub tree: OnceLock<CacheArc<PageCache>>,
}

impl Gated {
    pub fn new(map: Arc<dyn MapOps>) -> Arc<Self> {
        let (reserve, zero, truncate, tree) = Default::default();
        Arc::new(Self { map, reserve, zero, truncate, tree })
    }
}

impl MapOps for Gated {
    fn device(&self) -> &DeviceRef {
        self.map.device()
    }
    fn info(&self) -> MapInfo {
        self.map.info()
    }
    fn map(&self, range: Range<u64>, why: Lookup) -> MapFuture<'_, Result<Extent>> {
        let Some(cache) = self.tree.get() else { return self.map.map(range, why) };
        MapFuture::Later(Box::pin(async move {
            drop(cache.private(cache.private_limit()).await);
            self.map.map(range, why).await
        }))
    }
    fn admit(&self, new: u64, dirty: u64, of: Admit<'_>) -> Result<()> {
        self.map.admit(new, dirty, of)
    }
    fn arrived(&self, bytes: u64) {
        self.map.arrived(bytes)
    }
    fn reserve(
        &self,
        runs: &[Range<u64>],
        class: Class,
        _places: &mut Vec<Place>,
    ) -> MapFuture<'_, Result<Reservation>> {
        let runs = runs.to_vec();
        MapFuture::Later(Box::pin(async move {
            self.reserve.pass().await?;
            self.map.reserve(&runs, class, &mut Vec::new()).await
        }))
    }
    fn sequence(&self) -> u64 {
        self.map.sequence()
    }
    fn publish(&self, reservation: &Reservation, written: &[Written], size: u64) {
        self.map.publish(reservation, written, size)
    }
    fn published_size(&self) -> Option<u64> {
        self.map.published_size()
    }
    fn commit(&self, what: Commit, here: bool) -> BoxFuture<'_, Result<()>> {
        self.map.commit(what, here)
    }
    fn change(&self, change: Change) -> MapFuture<'_, Result<()>> {
        let gate = match change {
            Change::Zero { .. } => &self.zero,
            Change::Truncate(..) => &self.truncate,
            Change::Grow(_) => return self.map.change(change),
        };
        MapFuture::Later(Box::pin(async move {
            gate.pass().await?;
            self.map.change(change).await
        }))
    }
    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.map.extents(range, max)
    }
}

/// A device that keeps flushes back while it is told to.
pub struct Flushes {
    lower: DeviceRef,
    held: Mutex<(bool, Vec<Bio>)>,
    changed: WaitQueue,
}

impl Flushes {
    pub fn new(lower: DeviceRef) -> Arc<Self> {
        Arc::new(Self { lower, held: Mutex::default(), changed: WaitQueue::new() })
    }

    /// Whether flushes from now on are kept back.
    pub fn hold(&self, on: bool) {
        self.held.lock().0 = on;
    }

    /// Waits until so many are kept back.
    pub async fn held(&self, flushes: usize) {
        self.changed.wait_until(|| (self.held.lock().1.len() == flushes).then_some(())).await;
    }

    /// The `n`th of those kept back goes to the device.
    pub fn send(&self, n: usize) {
        let bio = self.held.lock().1.remove(n);
        self.lower.submit(bio);
    }

    /// Or it fails.
    pub fn fail(&self, n: usize) {
        let bio = self.held.lock().1.remove(n);
        bio.complete(Err(Error::new(ErrorKind::Io, "flush", "as the test wants it")));
    }
}

impl BlockDevice for Flushes {
    fn name(&self) -> String {
        "flushes kept back".into()
    }
    fn limits(&self) -> Limits {
        self.lower.limits()
    }
    fn size(&self) -> u64 {
        self.lower.size()
    }
    fn submit(&self, bio: Bio) {
        {
            let mut held = self.held.lock();
            if held.0 && bio.op == BioOp::Flush {
                held.1.push(bio);
                drop(held);
                return self.changed.wake_all();
            }
        }
        self.lower.submit(bio);
    }
}

/// A device that answers the next reads with bytes of which one is wrong.
pub struct Spoils {
    lower: DeviceRef,
    /// How many.
    pub next: Arc<AtomicU64>,
}

impl Spoils {
    pub fn new(lower: DeviceRef) -> Arc<Self> {
        Arc::new(Self { lower, next: Arc::default() })
    }
}

impl BlockDevice for Spoils {
    fn name(&self) -> String {
        "reads that are spoilt".into()
    }
    fn limits(&self) -> Limits {
        self.lower.limits()
    }
    fn size(&self) -> u64 {
        self.lower.size()
    }
    fn submit(&self, mut bio: Bio) {
        let next = self.next.clone();
        if bio.op == BioOp::Read {
            bio.replace_end(|end| {
                Box::new(move |mut done: Completion| {
                    let fewer = |n: u64| n.checked_sub(1);
                    let spoil =
                        next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok();
                    if let (true, DataRef::Buf(buf)) = (spoil, &mut done.data) {
                        buf[100] ^= 1;
                    }
                    end(done);
                })
            });
        }
        self.lower.submit(bio);
    }
}

/// A device that can become longer and shorter, and refuses what the test tells it to.
pub struct Refuses {
    lower: DeviceRef,
    pub writes: AtomicBool,
    pub truncates: AtomicBool,
}

impl Refuses {
    pub fn new(lower: DeviceRef) -> Arc<Self> {
        Arc::new(Self { lower, writes: AtomicBool::new(false), truncates: AtomicBool::new(false) })
    }

    fn error(op: &'static str) -> Error {
        Error::new(ErrorKind::Io, op, "as the test wants it")
    }
}

impl BlockDevice for Refuses {
    fn name(&self) -> String {
        "refusing".into()
    }
    fn limits(&self) -> Limits {
        self.lower.limits()
    }
    fn size(&self) -> u64 {
        self.lower.size()
    }
    fn can_grow(&self) -> bool {
        true
    }
    fn grow(&self, size: u64) -> Result<()> {
        self.lower.grow(size)
    }
    fn truncate(&self, size: u64) -> Result<()> {
        match self.truncates.load(Ordering::SeqCst) {
            true => Err(Self::error("truncate")),
            false => self.lower.truncate(size),
        }
    }
    fn submit(&self, bio: Bio) {
        match bio.op == BioOp::Write && self.writes.load(Ordering::SeqCst) {
            true => bio.complete(Err(Self::error("write"))),
            false => self.lower.submit(bio),
        }
    }
}
