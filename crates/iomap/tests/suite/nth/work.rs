//! Who writes and who syncs, and what they hold the file to.

use super::part::Fired;
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::WaitQueue;
use forebay_base::world::{World, split_mix};
use forebay_iomap::{Handle, Lookup, MappedFile, Source, Target};
use forebay_sim::SimDisk;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub const BLOCK: u64 = 512;
/// Blocks of a file that are written, each by one writer, with growing values; slot `s` is block
/// `s`.
pub const SLOTS: usize = 12;
const WRITES: u8 = 14;
const SYNCS: usize = 8;

/// One file, and what is known of it.
pub struct Subject {
    pub file: Arc<MappedFile>,
    number: usize,
    disk: SimDisk,
    /// Its part of the disk.
    part: Range<u64>,
    /// Highest value of each slot whose write said OK, and highest one tried.
    accepted: [AtomicU8; SLOTS],
    tried: [AtomicU8; SLOTS],
    /// Writes that said they failed.
    refused: AtomicU64,
    /// Openers, and the errors that each was told.
    openers: Mutex<Vec<(Arc<Handle>, Arc<AtomicU64>)>>,
    lies: Mutex<Vec<String>>,
}

impl Subject {
    pub fn new(file: Arc<MappedFile>, number: usize, disk: SimDisk, part: Range<u64>) -> Self {
        let openers = (0..super::SYNCERS).map(|_| (Arc::new(file.open_handle()), Arc::default()));
        let openers = Mutex::new(openers.collect());
        let (accepted, tried, refused) = Default::default();
        let lies = Mutex::default();
        Self { file, number, disk, part, accepted, tried, refused, openers, lies }
    }

    /// What is wrong so far.
    pub fn lies(&self) -> Vec<String> {
        self.lies.lock().unwrap().clone()
    }

    fn lie(&self, text: String) {
        self.lies.lock().unwrap().push(format!("file {}: {text}", self.number));
    }

    /// What is stored of a slot's value: its file, its number, the value.
    fn content(&self, slot: usize, value: u8) -> Vec<u8> {
        let mut bytes = vec![value; BLOCK as usize];
        (bytes[0], bytes[1]) = (self.number as u8 + 1, slot as u8 + 1);
        bytes
    }

    /// The value of a slot that the bytes show, 0 if they are not the slot's.
    fn value(&self, slot: usize, bytes: &[u8]) -> u8 {
        let value = bytes[2];
        if bytes[..2] != [self.number as u8 + 1, slot as u8 + 1] {
            return 0;
        }
        if bytes == self.content(slot, value) { value } else { 0 }
    }

    /// What would be left of a slot if the power went now.
    fn durable(&self, slot: usize) -> u8 {
        let len = (self.part.end - self.part.start) as usize;
        let medium = self.disk.peek_durable(self.part.start, len);
        let at = |block: usize| self.value(slot, &medium[block * 512..][..512]);
        match self.file.ops.info().fua_suffices {
            true => at(slot),
            // Out of place: wherever the newest is.
            false => (0..len / 512).map(at).max().expect("a part has blocks"),
        }
    }

    /// What the map leads to. `None`: its answer waits, and later is another moment.
    fn mapped(&self, slot: usize) -> Option<u8> {
        let at = slot as u64 * BLOCK;
        let mut answer = pin!(self.file.ops.map(at..at + BLOCK, Lookup::Read));
        let Poll::Ready(extent) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            return None;
        };
        let Some(offset) = extent.expect("a map in memory").device_offset else { return Some(0) };
        Some(self.value(slot, &self.disk.peek(self.part.start + offset, BLOCK as usize)))
    }

    fn opener(&self, number: usize) -> (Arc<Handle>, Arc<AtomicU64>) {
        self.openers.lock().unwrap()[number].clone()
    }

    /// A sync: whether it said OK.
    async fn sync(&self, handle: &Handle, told: &AtomicU64) -> bool {
        let before: Vec<u8> = self.accepted.iter().map(|a| a.load(Ordering::Relaxed)).collect();
        if self.file.sync(handle).await.is_err() {
            told.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // No wait between the answer and the look: that is the moment at which the power goes.
        let durable: Vec<u8> = (0..SLOTS).map(|slot| self.durable(slot)).collect();
        for slot in 0..SLOTS {
            if durable[slot] < before[slot] {
                let (was, is) = (before[slot], durable[slot]);
                self.lie(format!("synced, and of slot {slot} {is} is durable instead of {was}"));
            }
            if let Some(mapped) = self.mapped(slot).filter(|&mapped| mapped < before[slot]) {
                self.lie(format!("synced, and slot {slot} is {mapped} for who looks it up"));
            }
        }
        true
    }

    /// Who was not told of an operation that failed.
    pub fn unreported(&self, fired: &Fired) -> Vec<String> {
        if self.refused.load(Ordering::Relaxed) > 0 {
            return Vec::new();
        }
        let (openers, Fired { op, offset, number }) = (self.openers.lock().unwrap(), *fired);
        let unreported = |(i, (_, told)): (usize, &(_, Arc<AtomicU64>))| {
            let text = format!("file {number}, opener {i}: no word of the {op:?} at {offset}");
            (told.load(Ordering::Relaxed) == 0).then_some(text)
        };
        openers.iter().enumerate().filter_map(unreported).collect()
    }
}

pub struct Shared {
    pub world: Arc<SimWorld>,
    pub files: Vec<Subject>,
    pub left: AtomicUsize,
    pub done: WaitQueue,
}

impl Shared {
    async fn pause(&self, rng: &mut u64, most_nanos: u64) {
        let nanos = split_mix(rng) % most_nanos;
        self.world.sleep(Duration::from_nanos(nanos)).await;
    }

    fn over(&self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
        self.done.wake_all();
    }
}

/// Writes to each third slot, in one of three ways.
pub async fn write_on(shared: Arc<Shared>, file: usize, way: usize, mut rng: u64) {
    let subject = &shared.files[file];
    let handle = subject.file.open_handle();
    for value in 1..=WRITES {
        shared.pause(&mut rng, 200_000).await;
        let slot = way + 3 * (split_mix(&mut rng) as usize % (SLOTS / 3));
        let flags = match (way, split_mix(&mut rng) % 3) {
            (0, 0) => IoFlags::START_WRITEBACK,
            (0, _) => IoFlags::empty(),
            (1, _) => IoFlags::UNCACHED,
            _ => IoFlags::DIRECT,
        };
        let mut data = AlignedBuf::copy_of(&subject.content(slot, value));
        subject.tried[slot].store(value, Ordering::Relaxed);
        let at = slot as u64 * BLOCK;
        match subject.file.write(&handle, at, Source::Owned(&mut data), flags).await {
            Ok(_) => subject.accepted[slot].store(value, Ordering::Relaxed),
            // A cached write has no request at the device that could fail.
            Err(error) if way == 0 => subject.lie(format!("a cached write failed: {error}")),
            Err(_) => _ = subject.refused.fetch_add(1, Ordering::Relaxed),
        }
    }
    shared.over();
}

/// One opener syncs now and then.
pub async fn sync_on(shared: Arc<Shared>, file: usize, opener: usize, mut rng: u64) {
    let subject = &shared.files[file];
    let (handle, told) = subject.opener(opener);
    for _ in 0..SYNCS {
        shared.pause(&mut rng, 400_000).await;
        subject.sync(&handle, &told).await;
    }
    shared.over();
}

/// All is written: each opener syncs until a sync succeeds. That must happen unless bytes that were
/// not kept were lost.
pub async fn settle(world: &SimWorld, subject: &Subject) {
    let mut good = [0; super::SYNCERS];
    for _ in 0..5 {
        for (opener, good) in good.iter_mut().enumerate() {
            let (handle, told) = subject.opener(opener);
            *good += u32::from(subject.sync(&handle, &told).await);
        }
        world.sleep(Duration::from_millis(200)).await;
    }
    let lost = subject.file.mapping.sticky.lock().is_some();
    for (opener, good) in good.into_iter().enumerate() {
        if lost && good > 0 {
            subject.lie(format!("opener {opener} synced a file that is marked"));
        }
        if !lost && good < 3 {
            subject.lie(format!("opener {opener}: {good} of 5 syncs are good"));
        }
    }
    for slot in 0..SLOTS {
        let mut found = AlignedBuf::new(BLOCK as usize);
        let target = Target::Owned(&mut found);
        let handle = subject.file.open_handle();
        let at = slot as u64 * BLOCK;
        subject.file.read(&handle, at, target, IoFlags::empty()).await.expect("no read fails");
        let [accepted, tried] =
            [&subject.accepted, &subject.tried].map(|v| v[slot].load(Ordering::Relaxed));
        let value = subject.value(slot, &found);
        let marked = subject.file.mapping.sticky.lock().is_some();
        if !marked && value != accepted && value != tried {
            subject.lie(format!("slot {slot} reads {value}, accepted {accepted}, tried {tried}"));
        }
    }
}
