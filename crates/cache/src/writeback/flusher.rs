//! The flusher of one file: a task that writes out what has come of age, what is above the limits, and
//! what stands in the way of somebody who waits for frames; and flushes the device before the window
//! of unflushed blocks is full.

use crate::cache::PageCache;
use crate::mapping::{DirtyFolio, Mapping};
use crate::writeback::control::{Which, WriteOut, WriteOutPass};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::BoxFuture;
use forebay_base::units::MIB;
use forebay_base::world::Nanos;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Uncached dirt waits no longer than this before its write-out starts.
const UNCACHED_AGE: Nanos = 100_000_000;
/// A flusher with data that could not be written waits this long before it tries again.
const RETRY_FIRST: Nanos = 5_000_000;
/// And this long in the end.
const RETRY_LAST: Nanos = 1_000_000_000;

/// The flusher of one file: sleeps until it is kicked or dirt comes of age, then writes. Ends when
/// the file is closed.
pub async fn run_flusher(
    cache: Arc<PageCache>,
    mapping: Arc<Mapping>,
    out: std::sync::Weak<dyn WriteOut>,
) {
    let mut pause = RETRY_FIRST;
    loop {
        wait_for_work(&cache, &mapping).await;
        if mapping.failed_bytes() == 0 {
            pause = RETRY_FIRST;
        } else {
            // What failed makes dirt, and dirt wakes the flusher: not at the pace of the failures.
            cache.world.sleep(std::time::Duration::from_nanos(pause)).await;
            pause = (pause * 2).min(RETRY_LAST);
        }
        let Some(out) = out.upgrade() else { return };
        flush_once(&cache, &mapping, out).await;
    }
}

async fn wait_for_work(cache: &PageCache, mapping: &Mapping) {
    let kicked = || mapping.take_kick().then_some(());
    mapping.set_next_look(u64::MAX);
    let Some(oldest) = mapping.oldest_dirt() else {
        return mapping.kick.wait_until(kicked).await;
    };
    let expire = cache.dirty.expire_nanos();
    let mut alarm = (oldest + expire).max(cache.world.now() + 1_000_000);
    if mapping.uncached_dirty.load(Ordering::Relaxed) > 0 {
        alarm = alarm.min(cache.world.now() + UNCACHED_AGE);
    }
    mapping.set_next_look(alarm);
    let mut kick = pin!(mapping.kick.wait_until(kicked));
    let mut timer = cache.world.sleep_until(alarm);
    std::future::poll_fn(|cx| {
        if kick.as_mut().poll(cx).is_ready() || timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

async fn flush_once(cache: &PageCache, mapping: &Mapping, out: std::sync::Arc<dyn WriteOut>) {
    let pass = |which, max_bytes| WriteOutPass {
        range: 0..u64::MAX >> 1,
        which,
        max_bytes,
        sync: false,
        fua: false,
    };
    let now = cache.world.now();
    let uncached = mapping.uncached_dirty.load(Ordering::Relaxed);
    if uncached > 0 && uncached_due(cache, mapping, uncached, now) {
        mapping.uncached_dirty.store(0, Ordering::Relaxed);
        out.clone().write_out(pass(Which::Uncached, u64::MAX)).await;
    }
    let expire = cache.dirty.expire_nanos();
    if mapping.oldest_dirt().is_some_and(|t| t + expire <= now) {
        out.clone().write_out(pass(Which::Before(now.saturating_sub(expire) + 1), u64::MAX)).await;
    }
    let mut flush = Flush::default();
    while cache.dirty.above_background() || cache.is_starved() {
        flush.keep_window_open(cache, mapping, &out).await;
        let issued = flush.beside(out.clone().write_out(pass(Which::All, 16 * MIB))).await;
        // Only what has failed before: later.
        if issued <= mapping.failed_bytes() {
            break;
        }
        flush.beside(cache.wait_write_room()).await;
    }
    flush.keep_window_open(cache, mapping, &out).await;
    flush.end(cache).await;
}

/// A flush of the device that write-out goes on beside.
#[derive(Default)]
struct Flush {
    under_way: Option<BoxFuture<'static, ()>>,
    /// Most of the window is other files', which may have nothing more to write.
    others: bool,
}

impl Flush {
    /// Carries out `work`, and the flush while that waits.
    async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            if self.under_way.as_mut().is_some_and(|flush| flush.as_mut().poll(cx).is_ready()) {
                self.under_way = None;
            }
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Starts to flush when the window of written but unflushed blocks is half full, and waits for it
    /// before the window is full: what does not fit could not be written again if a flush failed.
    async fn keep_window_open(
        &mut self,
        cache: &PageCache,
        mapping: &Mapping,
        out: &std::sync::Arc<dyn WriteOut>,
    ) {
        let (all, window) = (cache.dirty.unflushed_bytes(), cache.unflushed_window());
        let own = mapping.unflushed.pinned_blocks() * mapping.block_size();
        if self.under_way.is_some() && (all > window / 4 * 3 || cache.is_starved()) {
            self.end(cache).await;
        }
        if self.under_way.is_none() && own > 0 && (all > window / 2 || cache.is_starved()) {
            self.under_way = Some(out.clone().flush());
            self.others = own < all / 2;
            if all > window / 4 * 3 || cache.is_starved() {
                self.end(cache).await;
            }
        }
    }

    /// Waits for the flush that is under way.
    async fn end(&mut self, cache: &PageCache) {
        if let Some(flush) = self.under_way.take() {
            flush.await;
        }
        if std::mem::take(&mut self.others) {
            cache.dirty.kick_all();
        }
    }
}

fn uncached_due(cache: &PageCache, mapping: &Mapping, bytes: u64, now: Nanos) -> bool {
    let oldest = |d: &DirtyFolio| d.uncached && d.since + UNCACHED_AGE <= now;
    bytes >= cache.dirty.uncached_window.load(Ordering::Relaxed) / 4
        || !mapping.dirty_folios(0..u64::MAX, 1, oldest).is_empty()
}
