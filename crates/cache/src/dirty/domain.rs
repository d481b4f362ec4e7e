//! A flush domain: the files whose dirty blocks go to one device (or volume, or host file system).
//! It has its share of the dirty limits, its own wait queue of writers and pace, its failed bytes
//! apart from the healthy ones, and one flusher, which takes files by their oldest dirty block. So
//! a slow, failed or full device stops its own files only.
//!
//! A mapping's life, as its domain sees it:
//!
//! ```text
//!          first opener              last opener closes, all durable
//!   gone ───────────────▶ open ──────────────────────────────────────▶ resident ──▶ gone
//!                          ▲ │                                            ▲  (last folio evicted)
//!                          │ │ last opener closes (one last sync)         │
//!            opened again  │ ▼                                            │
//!                        retrying ────────────────────────────────────────┘
//!                  (kept while dirty, writing,        all of it is durable, or was discarded
//!                   unflushed or failed)              on request, or the cache was dropped
//! ```
//!
//! Invariants: M1 bytes that count for a domain count for all together too. M2 a domain with
//! healthy bytes in use is counted active once. M3 a domain keeps a closed file only while it has
//! bytes that are not durable, and a file with such bytes is open or kept. M4 the flusher works
//! while a writer waits, to make space for it.
//!
//! Locks: queue, wait queue and pace, none inside another; the queue's before a file's dirty set.
//! Wakers are called after all locks are released.

use super::dirty_folios::DirtyFolios;
use super::flushes::Flushes;
use super::limits::{Gauge, Limits, Share};
use super::pass::WriteOut;
use super::queue::{CheckedOut, Queue};
use super::writer_queue::{Pace, WriterQueue};
use forebay_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
use forebay_base::sync::{Arc, Mutex, MutexGuard};
use forebay_base::task::WaitQueue;
use forebay_base::world::Nanos;
use std::task::Waker;

/// Most bytes of space that writers at the limit wait for before they continue.
const ROOM: u64 = 128 << 10;

/// What makes files belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DomainKey {
    /// Regular files of one host file system: its device number.
    HostFs(u64),
    /// A block device: its number.
    Block(u64),
    /// A device object of the library: its address, unique while it lives.
    Object(usize),
}

/// A flush domain: its limits, waiting writers, files and flusher.
pub struct Domain {
    key: Option<DomainKey>,
    pub(crate) limits: Arc<Limits>,
    gauge: Gauge,
    /// The flushes of its files: a failed one counts for all of them.
    pub flushes: Arc<Flushes>,
    queue: Mutex<Queue>,
    writer_queue: Mutex<WriterQueue>,
    /// Writers in the queue.
    waiting: AtomicU32,
    pace: Mutex<Pace>,
    /// The flusher and syncs wait here until fewer bytes are in write-out.
    progress: WaitQueue,
    pub(crate) flusher_wakes: WaitQueue,
    /// Tasks that wait for the flusher to release a file.
    released: WaitQueue,
    woken: AtomicBool,
    last_kick: AtomicU64,
    /// When the flusher next wakes by its timer; never: `u64::MAX`; 0 while it is awake.
    next_look: AtomicU64,
    /// A flush was refused (flushes.X4) since the last one that worked.
    pub(crate) is_refused: AtomicBool,
}

impl Domain {
    pub(crate) fn new(key: Option<DomainKey>, limits: Arc<Limits>) -> Arc<Self> {
        Arc::new(Self {
            key,
            limits,
            gauge: Gauge::default(),
            flushes: Arc::default(),
            queue: Mutex::default(),
            writer_queue: Mutex::default(),
            waiting: AtomicU32::new(0),
            pace: Mutex::default(),
            progress: WaitQueue::new(),
            flusher_wakes: WaitQueue::new(),
            released: WaitQueue::new(),
            woken: AtomicBool::new(false),
            last_kick: AtomicU64::new(0),
            next_look: AtomicU64::new(u64::MAX),
            is_refused: AtomicBool::new(false),
        })
    }

    /// What its files have in common; `None` for a domain of one file.
    pub fn key(&self) -> Option<DomainKey> {
        self.key
    }

    /// Bytes of its files that are dirty.
    pub fn dirty_bytes(&self) -> u64 {
        self.gauge.dirty()
    }

    /// Bytes of its files in write-out.
    pub fn writeback_bytes(&self) -> u64 {
        self.gauge.writeback()
    }

    /// Bytes of its files that are written and kept until the next flush.
    pub fn unflushed_bytes(&self) -> u64 {
        self.gauge.unflushed()
    }

    /// Bytes of its files whose last write-out failed.
    pub fn failed_bytes(&self) -> u64 {
        self.gauge.failed()
    }

    // ---- what counts (M1, M2) ----

    fn use_more(&self, bytes: i64) {
        Self::count(&self.limits.active, self.gauge.use_more(bytes), bytes);
        self.limits.total.use_more(bytes);
    }

    fn fail_more(&self, bytes: i64) {
        let (healthy, failed) = self.gauge.fail_more(bytes);
        Self::count(&self.limits.active, healthy, -bytes);
        Self::count(&self.limits.failing, failed, bytes);
        self.limits.total.fail_more(bytes);
    }

    /// The count of a domain changes from `was` by `change`: updates the number of domains above
    /// zero.
    fn count(domains: &AtomicI64, was: i64, change: i64) {
        let now = was + change;
        if was <= 0 && now > 0 {
            domains.fetch_add(1, Ordering::Relaxed);
        } else if was > 0 && now <= 0 {
            domains.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn add_dirty(&self, bytes: u64) {
        self.use_more(bytes as i64);
    }

    /// Counts bytes that are not dirty any more. The caller wakes writers once it holds no lock.
    pub(crate) fn sub_dirty(&self, bytes: u64) {
        self.use_more(-(bytes as i64));
    }

    /// Counts bytes taken for write-out. Call it before they are counted clean: in between they
    /// count twice, not never.
    pub(crate) fn begin_write(&self, bytes: u64) {
        self.use_more(bytes as i64);
        self.gauge.write_more(bytes as i64);
        self.limits.total.write_more(bytes as i64);
    }

    /// A write-out of the bytes has ended. The caller wakes waiters afterwards.
    pub(crate) fn end_write(&self, bytes: u64) {
        self.gauge.write_more(-(bytes as i64));
        self.limits.total.write_more(-(bytes as i64));
        self.use_more(-(bytes as i64));
    }

    /// Bytes of file `id` are kept until the next flush. With `much` bytes or more, which is a
    /// large part of the window, the file is flushed before others.
    pub(crate) fn keep_unflushed(
        &self,
        id: u32,
        dirty_folios: &DirtyFolios,
        bytes: u64,
        much: u64,
    ) {
        let was = dirty_folios.unflushed.fetch_add(bytes as i64, Ordering::SeqCst).max(0) as u64;
        self.gauge.keep_more(bytes as i64);
        self.limits.total.keep_more(bytes as i64);
        let first = !dirty_folios.flush_listed.swap(true, Ordering::SeqCst);
        let much = was < much && was + bytes >= much;
        if first || much {
            self.queue.lock().wants_flush(id, first, much);
        }
    }

    pub(crate) fn sub_unflushed(&self, dirty_folios: &DirtyFolios, bytes: u64) {
        dirty_folios.unflushed.fetch_sub(bytes as i64, Ordering::SeqCst);
        self.gauge.keep_more(-(bytes as i64));
        self.limits.total.keep_more(-(bytes as i64));
    }

    /// Counts bytes of file `id` whose write-out has failed, and schedules their retry. True as in
    /// [`Domain::dirtied`].
    #[must_use]
    pub(crate) fn add_failed(&self, id: u32, bytes: u64, now: Nanos) -> bool {
        self.fail_more(bytes as i64);
        let mut queue = self.queue.lock();
        queue.failed(id, now);
        self.looks_too_late(&queue)
    }

    /// Counts bytes that are failed no more; `healed`: the file has no failed ones now.
    pub(crate) fn sub_failed(&self, id: u32, bytes: u64, healed: bool) {
        self.fail_more(-(bytes as i64));
        if healed {
            self.queue.lock().healed(id);
        }
    }

    /// A folio joined or left the dirty folios of a file.
    pub(crate) fn count_dirty_folio(&self, change: i64) {
        self.limits.dirty_folios.fetch_add(change, Ordering::Relaxed);
    }

    // ---- limits ----

    fn share(&self) -> Share {
        self.limits.share(self.gauge.healthy() == 0)
    }

    /// Whether a writer may dirty more without pausing.
    #[inline]
    pub fn free_run(&self) -> bool {
        let healthy = self.limits.total.healthy();
        self.waiting.load(Ordering::SeqCst) == 0
            && (healthy <= self.limits.for_healthy().0
                || self.gauge.healthy() <= self.share().background)
    }

    /// Whether a writer may dirty more without waiting.
    pub(crate) fn below_limit(&self) -> bool {
        let share = self.share();
        self.waiting.load(Ordering::SeqCst) == 0 && self.fits(&share, share.limit, share.all)
    }

    fn fits(&self, share: &Share, own: u64, all: u64) -> bool {
        // A domain's own failed bytes count for it, those of others do not. No writer waits for
        // space that only failed bytes could free: with healthy bytes below the floor it does not
        // wait, and the write is accepted or refused.
        let (healthy, used) = (self.gauge.healthy(), self.gauge.used());
        healthy <= share.floor || (used <= own && self.limits.total.healthy() <= all)
    }

    /// Whether there is space for the first writer in the queue.
    pub(crate) fn has_room(&self) -> bool {
        let share = self.share();
        // The flusher stops at the background limit, so no writer may wait until fewer bytes are
        // dirty.
        let mark = |limit: u64, background: u64| {
            (limit - (limit / 8).min(ROOM)).max(background.min(limit))
        };
        let background = self.limits.for_healthy().0;
        self.fits(&share, mark(share.limit, share.background), mark(share.all, background))
    }

    /// Whether the flusher should write, whatever the age of the dirty blocks (M4).
    pub fn above_background(&self) -> bool {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return true;
        }
        let all = self.limits.total.healthy() > self.limits.for_healthy().0;
        all && self.gauge.healthy() > self.share().background
    }

    /// Whether writes to a file are refused, because earlier failures fill the part of the limit
    /// for failed bytes. `doomed`: dirty bytes of the file if a write-out of it has failed; they
    /// count as failed too.
    pub(crate) fn refuses(&self, doomed: Option<u64>) -> bool {
        let failed = self.gauge.failed();
        failed > 0 && self.limits.refuses(failed, doomed)
    }

    /// How long a writer of `bytes` pauses: not at all below the background limit, halfway to the
    /// limit as long as write-out takes for as many bytes, at the limit twice that. So writers run
    /// at the speed of write-out on average, evenly, also if a device completes in bursts.
    pub(crate) fn pause(&self, bytes: u64) -> Nanos {
        let share = self.share();
        let over = self.gauge.healthy().saturating_sub(share.background);
        let rate = self.pace.lock().rate;
        if over == 0 || rate == 0 {
            return 0;
        }
        let width = share.limit.saturating_sub(share.background).max(1);
        let part = (over as f64 / width as f64).min(1.0);
        (bytes as f64 / rate as f64 * part * 2e9) as Nanos
    }

    /// Bytes were written out.
    pub(crate) fn note_written(&self, now: Nanos, bytes: u64) {
        self.pace.lock().count(now, bytes);
    }

    // ---- the queue of writers ----

    pub(crate) fn take_ticket(&self) -> Place<'_> {
        let number = self.writer_queue.lock().take_ticket();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Place { domain: self, number }
    }

    /// Wakes the first waiting writer, if there may be space; with `all`, every one.
    pub(crate) fn wake_writers(&self, all: bool) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 || (!all && !self.worth_a_look()) {
            return;
        }
        let wakers = self.writer_queue.lock().first(if all { usize::MAX } else { 1 });
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether there is space for a waiting writer, or no write-out in flight that would free some.
    fn worth_a_look(&self) -> bool {
        self.has_room() || self.writeback_bytes() == 0
    }

    // ---- the flusher ----

    /// Waits until less than `depth` bytes are in write-out.
    pub(crate) async fn wait_write_room(&self, depth: u64) {
        let room = || (self.writeback_bytes() < depth).then_some(());
        self.progress.wait_until(room).await;
    }

    /// A write-out has ended. Wakes the tasks in [`Domain::wait_write_room`] only when a quarter of
    /// the depth is free: woken for each bio they would use the CPU for waking up.
    pub(crate) fn made_room(&self, depth: u64) {
        if self.writeback_bytes() <= depth - depth / 4 {
            self.progress.wake_all();
        }
    }

    /// Wakes the flusher. Cheap if it was woken already.
    pub fn wake_flusher(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.flusher_wakes.wake_all();
        }
    }

    /// Wakes the flusher if `is_needed`.
    pub(crate) fn wake_flusher_if(&self, is_needed: bool) {
        if is_needed {
            self.wake_flusher();
        }
    }

    /// Wakes the flusher, unless it was woken less than `every` ago.
    pub(crate) fn wake_flusher_at(&self, now: Nanos, every: Nanos) {
        if now >= self.last_kick.load(Ordering::Relaxed).saturating_add(every) {
            self.last_kick.store(now, Ordering::Relaxed);
            self.wake_flusher();
        }
    }

    /// Whether the flusher was woken since the last call.
    pub(crate) fn take_wake(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    /// The flusher is awake: it checks its queue before it sleeps, so no task has to wake it.
    pub(crate) fn awake(&self) {
        self.next_look.store(0, Ordering::SeqCst);
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// The flusher goes to sleep until this time, which it has computed under the queue's lock.
    pub(crate) fn set_next_look(&self, _queue: &Queue, at: Nanos) {
        self.next_look.store(at, Ordering::SeqCst);
    }

    pub(crate) fn looks_too_late(&self, queue: &Queue) -> bool {
        queue.next_look(self.limits.expire_nanos()) < self.next_look.load(Ordering::SeqCst)
    }

    /// Queues file `id`, which has dirty blocks and is not queued ([`DirtyFolios::is_queued`]).
    /// True: the flusher's timer would expire too late. The caller wakes it once it holds no lock.
    #[must_use]
    pub(crate) fn dirtied(&self, id: u32, since: Nanos) -> bool {
        let mut queue = self.queue.lock();
        queue.dirtied(id, since);
        self.looks_too_late(&queue)
    }

    /// A write-out of a file has ended. A stalled file may be writable now.
    pub(crate) fn end_stall(&self, id: u32, dirty_folios: &DirtyFolios) {
        dirty_folios.written();
        if dirty_folios.is_stalled() {
            self.queue.lock().end_stall(id);
            self.wake_flusher();
        }
    }

    /// Schedules a visit of file `id` at `at` or earlier. True as in [`Domain::dirtied`].
    #[must_use]
    pub(crate) fn look_by(&self, id: u32, at: Nanos) -> bool {
        let mut queue = self.queue.lock();
        queue.look_by(id, at);
        self.looks_too_late(&queue)
    }

    /// Adds a file, which writes out through `out`; true if the caller has to start a flusher.
    pub(crate) fn join(
        &self,
        id: u32,
        dirty_folios: Arc<DirtyFolios>,
        out: std::sync::Weak<dyn WriteOut>,
    ) -> bool {
        let mut queue = self.queue.lock();
        queue.join(id, dirty_folios, out);
        !std::mem::replace(&mut queue.running, true)
    }

    /// Removes a file that is gone.
    pub fn leave(&self, id: u32) {
        let (kept, empty) = {
            let mut queue = self.queue.lock();
            (queue.leave(id), queue.is_empty())
        };
        debug_assert!(kept.is_none(), "M3: file {id} is gone and kept");
        if empty {
            // The flusher ends.
            self.wake_flusher();
        }
    }

    /// While the result lives a running flusher does not end, even without files: for a caller that
    /// opens and closes files in turn, and would start a flusher for each.
    pub fn stay(self: &Arc<Self>) -> Stay {
        self.queue.lock().stays += 1;
        Stay(self.clone())
    }

    /// Keeps a file without openers alive until all of it is durable (M3).
    pub fn keep(&self, id: u32, out: std::sync::Arc<dyn WriteOut>, now: Nanos) {
        self.queue.lock().keep(id, out, now);
        self.wake_flusher();
    }

    /// Stops keeping the file: it has an opener again, or is given up.
    pub fn let_go(&self, id: u32) {
        // Dropped after the lock: it may be the last reference, whose drop calls `leave`.
        let kept = self.queue.lock().let_go(id);
        drop(kept);
    }

    /// Marks a file taken from the queue as checked out by the flusher, until the result is
    /// dropped. The result must outlive the future that works on the file.
    pub(crate) fn hold(&self, checked_out: CheckedOut) -> Held<'_> {
        Held { domain: self, checked_out }
    }

    /// Waits until the flusher has released the file, so that the caller can drop the last
    /// reference.
    pub async fn wait_released(&self, id: u32) {
        let free = || (!self.queue.lock().is_held(id)).then_some(());
        self.released.wait_until(free).await;
    }

    /// Files without openers that are kept because they have bytes that are not durable.
    pub fn kept(&self) -> Vec<(u32, std::sync::Arc<dyn WriteOut>)> {
        self.queue.lock().kept()
    }
}

/// Keeps the flusher running while it lives.
pub struct Stay(Arc<Domain>);

impl Drop for Stay {
    fn drop(&mut self) {
        let empty = {
            let mut queue = self.0.queue.lock();
            queue.stays -= 1;
            queue.is_empty()
        };
        if empty {
            // The flusher ends.
            self.0.wake_flusher();
        }
    }
}

/// A file that the flusher has checked out.
pub(crate) struct Held<'a> {
    domain: &'a Domain,
    checked_out: CheckedOut,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.domain.queue.lock().release(self.checked_out);
        self.domain.released.wake_all();
    }
}

/// A ticket of a waiting writer; given up on drop.
pub(crate) struct Place<'a> {
    domain: &'a Domain,
    number: u64,
}

impl Place<'_> {
    /// Registers the waker; true if this writer is first.
    pub fn first(&self, waker: &Waker) -> bool {
        let first = self.domain.writer_queue.lock().wait(self.number, waker);
        // A task that frees space checks for waiters afterwards; this writer checks for space after
        // the fence: one of the two sees the other.
        fence(Ordering::SeqCst);
        first
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.domain.writer_queue.lock().leave(self.number);
        self.domain.waiting.fetch_sub(1, Ordering::SeqCst);
        self.domain.wake_writers(false);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::config::Config;
    use crate::dirty::control::DirtyControl;
    use forebay_base::sync::atomic::Ordering;

    #[test]
    fn m2_domain_in_use_is_active_once() {
        let control = DirtyControl::new(&Config::with_budget(1 << 20), 1 << 20);
        let (one, two) = (control.domain(None), control.domain(None));
        let active = || control.active.load(Ordering::Relaxed);
        one.add_dirty(4096);
        one.add_dirty(4096);
        assert_eq!(active(), 1, "M2");
        two.add_dirty(512);
        // As write-out does it: the bytes are counted as taken first, then as clean.
        one.begin_write(8192);
        one.sub_dirty(8192);
        assert_eq!((active(), one.dirty_bytes(), one.writeback_bytes()), (2, 0, 8192), "M2");
        one.end_write(8192);
        two.sub_dirty(512);
        assert_eq!((active(), control.dirty_bytes()), (0, 0), "M1, M2");
    }

    /// Writers above the background limit are slowed smoothly to the speed of write-out. At a
    /// device of 100 MB/s, 64 KiB in the middle between the limits take as long as writing 64 KiB,
    /// at the limit twice that. At the background limit they take no pause: a buffered write costs
    /// a copy.
    #[test]
    fn pause_grows_from_zero_to_twice_write_out_time() {
        let (dirty_bytes, dirty_background_bytes) = (Some(1 << 20), Some(1 << 19));
        let config =
            Config { dirty_bytes, dirty_background_bytes, ..Config::with_budget(64 << 20) };
        let control = DirtyControl::new(&config, 64 << 20);
        let one = control.domain(None);
        one.add_dirty(1 << 20);
        assert_eq!(one.pause(1 << 16), 0, "the speed of write-out is unknown");
        one.sub_dirty(1 << 19);
        for sample in 1..=20 {
            one.note_written(sample * 10_000_000, 1_000_000);
        }
        assert_eq!(one.pause(1 << 16), 0, "at the background limit");
        one.add_dirty(1 << 18);
        assert_eq!(one.pause(1 << 16), 655_360, "in the middle");
        one.add_dirty(1 << 18);
        assert_eq!(one.pause(1 << 16), 1_310_720, "at the limit");
        one.add_dirty(1 << 20);
        assert_eq!(one.pause(1 << 16), 1_310_720, "never more");
        assert_eq!(control.portion(), 1 << 17, "eight in line fill a small limit, not one");
    }

    /// Two active devices have half of the limits each. The flusher of one starts above its half of
    /// the background limit, so that data written repeatedly reaches the device once. Its writers
    /// wait above its half of the limit, also while the total is below it, so that a slow device
    /// does not use the other's half.
    #[test]
    fn m4_each_domain_keeps_to_its_share() {
        let (dirty_bytes, dirty_background_bytes) = (Some(1 << 20), Some(1 << 19));
        let config =
            Config { dirty_bytes, dirty_background_bytes, ..Config::with_budget(64 << 20) };
        let control = DirtyControl::new(&config, 64 << 20);
        let (one, two) = (control.domain(None), control.domain(None));
        one.add_dirty(1 << 19);
        assert!(!one.above_background(), "alone, and at the limit: not above");
        one.add_dirty(4096);
        assert!(one.above_background() && one.below_limit());
        two.add_dirty(4096);
        assert!(one.above_background() && !two.above_background());
        assert!(!one.below_limit() && two.below_limit(), "more than its half, and less than all");
        one.sub_dirty(4096);
        assert!(one.below_limit() && one.above_background());
    }
}
