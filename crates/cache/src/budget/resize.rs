//! Changes the budget while the cache is in use.
//!
//! To shrink: first the limits stop new use above the new share; then reclaim evicts the coldest
//! folios until the rest fits; then folios and frames above the new limits move below; then the
//! memory above is released. To grow: the tables are extended, and the limits raised.
//!
//! Invariants: Y1 one resize at a time. Y2 memory is released only when no frame and no slot in it
//! is in use (frames.A1, slots.B1). Y3 the budget shown is never less than the sum of the parts'
//! maxima. Y4 a resize that is dropped, or fails because a dirty block cannot be written out,
//! leaves the budget unchanged.
//!
//! Locks: the allocators' and the index', one after the other, none across a wait.

use crate::cache::PageCache;
use crate::config::Division;
use crate::memory::arena::FRAME_SIZE;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::yield_now;
use forebay_base::units::format_size;
use forebay_base::{Error, ErrorKind, Result};
use std::time::Duration;

/// Frames evicted at a time: other tasks reclaim in between.
const PORTION: usize = 16384;
/// A resize gives up when it has not come closer to its end for this long.
const PATIENCE: Duration = Duration::from_secs(10);
/// The patience when only pinned frames remain: only their owners can end the pins.
const PINS_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two checks of folios that are in use.
const PAUSE: Duration = Duration::from_millis(1);

/// The right to resize (Y1).
pub(super) struct Turn<'a>(&'a PageCache);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.resizing.store(false, Ordering::SeqCst);
        self.0.resize_wait.wake_all();
    }
}

/// Limits that were lowered before everything fits: raised again on drop (Y4).
struct Lowered<'a> {
    cache: &'a PageCache,
    from: Division,
}

impl Drop for Lowered<'_> {
    fn drop(&mut self) {
        self.cache.set_limits(&self.from);
        debug_assert_eq!(self.cache.sizes.frames(), self.from.frames, "Y4: as it was");
        self.cache.frame_wait.wake_all();
    }
}

impl PageCache {
    /// Smallest and largest budget that the cache can be given now, bytes.
    pub fn budget_range(&self) -> (u64, u64) {
        (self.sizes.floor.budget, self.sizes.max.budget)
    }

    /// Sets the budget to `bytes` while the cache is in use. When shrinking, evicts the coldest
    /// blocks and writes out dirty ones among them. Returns when the memory is released. Errors: a
    /// size outside [`PageCache::budget_range`] (`InvalidInput`); dirty blocks that cannot be
    /// written out; pinned frames above the limit (`Busy`, with their number). After an error the
    /// budget is unchanged.
    pub async fn resize(&self, bytes: u64) -> Result<()> {
        let (least, most) = self.budget_range();
        if !(least..=most).contains(&bytes) {
            let (least, most) = (format_size(least), format_size(most));
            let text = format!("{bytes}: a running cache can be given {least} to {most}");
            return Err(Error::new(ErrorKind::InvalidInput, "resize", text));
        }
        let whole = self.config.divide_of(bytes)?;
        let _turn = self.resize_turn().await;
        let (mut to, from) = (self.less_files(whole), self.division_now(whole));
        if to.budget > from.budget {
            // Growing takes no frames away, even if files leave fewer: `fit_files` does that next.
            to.frames = to.frames.max(from.frames);
            self.grow(&to);
            return Ok(());
        }
        self.shrink(&from, &to).await?;
        self.sizes.set_budget(&to);
        log::info!("cache size {} (was {})", format_size(bytes), format_size(from.budget));
        Ok(())
    }

    /// The current parts. `like`: any division, for the values that all have in common.
    pub(super) fn division_now(&self, like: Division) -> Division {
        Division {
            budget: self.sizes.budget(),
            frames: self.sizes.frames(),
            slots: self.sizes.slots(),
            io_reserve: self.sizes.io_reserve(),
            ..like
        }
    }

    /// Shrinks all parts, or leaves them as they were (Y4).
    pub(super) async fn shrink(&self, from: &Division, to: &Division) -> Result<()> {
        let lowered = Lowered { cache: self, from: *from };
        self.set_limits(to);
        self.make_fit(to).await?;
        std::mem::forget(lowered);
        self.give_back(to);
        Ok(())
    }

    pub(super) async fn resize_turn(&self) -> Turn<'_> {
        let free = || (!self.resizing.swap(true, Ordering::SeqCst)).then_some(());
        self.resize_wait.wait_until(free).await;
        Turn(self)
    }

    /// Sets the limits of all parts: no caller gets more from now on, and what is in use above them
    /// stays in use for now.
    pub(super) fn set_limits(&self, to: &Division) {
        debug_assert!(self.resizing.load(Ordering::SeqCst), "Y1: in a turn of its own");
        let parts = to.frames as u64 * FRAME_SIZE as u64 + to.io_reserve;
        debug_assert!(parts <= self.sizes.budget(), "Y3: the budget shown covers the parts");
        self.sizes.set_parts(to.frames, to.slots, to.io_reserve);
        self.frames.lock().set_limit(to.frames);
        self.free_slots.lock().set_limit(to.slots);
        self.arena.set_limit(to.frames);
        self.trim_attached();
        self.apply_dirty_wishes();
    }

    fn grow(&self, to: &Division) {
        self.sizes.set_budget(to);
        self.index.rehash(&self.table, self.free_slots.lock().fresh(), to.slots);
        self.age.lock().resize(to.slots, to.frames);
        self.set_limits(to);
        self.advise_tables();
        self.prefault();
        self.frame_wait.wake_all();
        self.private_wait.wake_all();
        log::info!("cache size {}", format_size(to.budget));
    }

    /// Evicts and moves until everything is below the limits.
    async fn make_fit(&self, to: &Division) -> Result<()> {
        let (mut best, mut since) = (usize::MAX, self.world.now());
        let mut pressing = None;
        loop {
            let left = self.too_much(to);
            if left == 0 {
                return Ok(());
            }
            let now = self.world.now();
            if left < best {
                (best, since) = (left, now);
                yield_now().await;
            } else {
                // The remaining folios are dirty, or in use for a moment.
                pressing.get_or_insert_with(|| self.press_for_frames());
                self.world.sleep(PAUSE).await;
            }
            let pinned = self.words.pinned() as usize;
            let patience = if left <= pinned { PINS_PATIENCE } else { PATIENCE };
            if now - since > patience.as_nanos() as u64 {
                let text = format!(
                    "{left} frames and folios are in use and cannot be evicted, \
                     or are pinned; pins hold {pinned} frames"
                );
                return Err(Error::new(ErrorKind::Busy, "resize", text));
            }
            self.fit_once(to);
        }
    }

    /// How far the cache is from `to`, 0 if it fits: frames, folio descriptors and bytes of buffers
    /// that are too many or lie above the limits, and pinned frames and folios beyond an eighth.
    fn too_much(&self, to: &Division) -> usize {
        let frames = {
            let alloc = self.frames.lock();
            alloc.used().saturating_sub(to.frames) + alloc.above()
        };
        let slots = {
            let slots = self.free_slots.lock();
            slots.used().saturating_sub(to.slots) + slots.above()
        };
        let buffers = self.counters.private_bytes.load(Ordering::Relaxed);
        let pins = self.words.pinned().saturating_sub(to.frames as u64 / 8) as usize;
        let folio_pins = self.words.folio_pins().saturating_sub((to.slots as u64 / 8).max(1));
        frames.max(pins).max(folio_pins as usize)
            + slots
            + buffers.saturating_sub(to.io_reserve) as usize
    }

    fn fit_once(&self, to: &Division) {
        let frames = self.frames.lock().used().saturating_sub(to.frames);
        let slots = self.free_slots.lock().used().saturating_sub(to.slots);
        if slots > 0 && frames == 0 {
            self.drop_empty();
        }
        let slots = self.free_slots.lock().used().saturating_sub(to.slots);
        let over = frames.max(slots);
        if over > 0 {
            self.evict(over.min(PORTION));
            return;
        }
        if self.free_slots.lock().above() > 0 {
            self.migrate_slots(to.slots);
        }
        if self.frames.lock().above() > 0 {
            self.migrate_frames(to.frames);
        }
    }

    /// Gives the memory above the limits back (Y2: the allocators assert it).
    fn give_back(&self, to: &Division) {
        assert_eq!(self.frames.lock().above(), 0, "Y2: released memory is not in use");
        self.frames.lock().forget_above();
        let ever = self.free_slots.lock().fresh();
        self.free_slots.lock().forget_above();
        self.arena.release_above();
        self.table.forget_above(to.slots, ever);
        self.words.table().forget(to.frames);
        self.index.rehash(&self.table, self.free_slots.lock().fresh(), to.slots);
        self.age.lock().resize(to.slots, to.frames);
        self.advise_tables();
    }

    /// Asks for huge pages under the parts of the tables that may be used.
    pub(crate) fn advise_tables(&self) {
        if self.config.huge_pages {
            self.table.advise(self.sizes.slots());
            self.words.table().advise(self.sizes.frames());
        }
    }

    /// Populates all memory now, if the configuration asks for it.
    pub(crate) fn prefault(&self) {
        if self.config.prefault {
            self.arena.prefault();
            self.table.prefault(self.sizes.slots());
            self.words.table().prefault(self.sizes.frames());
            self.index.prefault();
        }
    }

    /// Writers wait above `bytes` dirty or in write-out, divided among the active domains, as far
    /// as the cache holds that many. A higher background limit is lowered to it. Errors: zero, or
    /// more than the cache holds now.
    pub fn set_dirty_bytes(&self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            let text = "dirty_bytes=0: nothing could be written";
            return Err(Error::new(ErrorKind::InvalidInput, "tune", text));
        }
        self.check_dirty("dirty_bytes", bytes)?;
        self.dirty_wishes.lock().limit = Some(bytes);
        self.apply_dirty_wishes();
        Ok(())
    }

    /// Write-out starts above `bytes` dirty bytes, but at the latest at the dirty limit. Errors:
    /// more than the dirty limit is now.
    pub fn set_dirty_background_bytes(&self, bytes: u64) -> Result<()> {
        self.check_dirty("dirty_background_bytes", bytes)?;
        let limit = self.dirty.limit.load(Ordering::Relaxed);
        if bytes > limit {
            let text = format!("dirty_background_bytes={bytes}: dirty_bytes is {limit}");
            return Err(Error::new(ErrorKind::InvalidInput, "tune", text));
        }
        self.dirty_wishes.lock().background = Some(bytes);
        self.apply_dirty_wishes();
        Ok(())
    }

    fn check_dirty(&self, name: &str, bytes: u64) -> Result<()> {
        let arena = self.sizes.frame_bytes();
        if bytes > arena {
            let text = format!("{name}={bytes}: the cache holds {arena} bytes");
            return Err(Error::new(ErrorKind::InvalidInput, "tune", text));
        }
        Ok(())
    }

    /// Applies the dirty limits to the current size of the cache: a share of it, or the requested
    /// bytes as far as they fit.
    fn apply_dirty_wishes(&self) {
        let (arena, wishes) = (self.sizes.frame_bytes(), *self.dirty_wishes.lock());
        if let Some(wish) = wishes.limit.filter(|&wish| wish > arena) {
            log::warn!("dirty_bytes={wish} is more than the cache holds: {arena} as long as it is");
        }
        let limit = wishes.limit.unwrap_or(arena / 5).min(arena);
        let background = wishes.background.unwrap_or(arena / 10).min(limit);
        self.dirty.set_arena(arena);
        self.dirty.limit.store(limit, Ordering::Relaxed);
        self.dirty.background.store(background, Ordering::Relaxed);
        self.dirty.wake_all_flushers();
        self.dirty.wake_all_writers();
    }
}
