//! Files, and other users of the budget ([`crate::budget::claim`]), take their memory from the
//! frames' part of it.
//!
//! A budget is divided as if there were few files. The memory of files beyond three quarters of the
//! share of requests and files (`io_reserve`) is taken from the frames, in steps and a little ahead
//! of need. It is given back when files are closed. Both happen in the background, like a change of
//! the budget. Claims are taken from the frames in full.
//!
//! Invariants: T1 once no more files are opened, frames and files together are within their parts
//! of the budget, as long as a quarter of the frames remains; what files take beyond that exceeds
//! the budget. T2 one task at a time adjusts the frames; it excludes resizes.
//!
//! Locks: those of a resize.

use crate::cache::PageCache;
use crate::config::{Division, FRAME_BOOKS};
use crate::memory::arena::FRAME_SIZE;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::units::{KIB, MIB, format_size};

/// Bytes by which the frames' part of `budget` changes at a time.
fn step(budget: u64) -> u64 {
    (budget / 64).clamp(256 * KIB, 32 * MIB)
}

impl PageCache {
    /// The division `whole`, with only as many frames as files and claims leave.
    pub(super) fn less_files(&self, whole: Division) -> Division {
        let beyond = self.files_beyond(whole.io_reserve) + self.claimed_beyond();
        if beyond == 0 {
            return whole;
        }
        let step = step(whole.budget);
        let taken =
            (beyond + step / 2).next_multiple_of(step) / (FRAME_SIZE as u64 + FRAME_BOOKS) + 1;
        let least = (whole.frames / 4).max(self.sizes.floor.frames.min(whole.frames));
        Division { frames: whole.frames.saturating_sub(taken as usize).max(least), ..whole }
    }

    /// Bytes taken from the frames for files.
    pub(super) fn taken_off_frames(&self) -> u64 {
        let frames = self.sizes.frames();
        let Ok(whole) = self.config.divide_of(self.sizes.budget()) else { return 0 };
        let off = whole.frames.saturating_sub(frames) as u64 * (FRAME_SIZE as u64 + FRAME_BOOKS);
        off.saturating_sub(self.claimed_beyond())
    }

    /// Bytes by which the frames' part changes at a time. A claim adjusts the frames when it has
    /// changed by a quarter of that.
    pub(super) fn claim_step(&self) -> u64 {
        step(self.sizes.budget())
    }

    /// The division to adjust the frames to, if files and claims leave a different number of
    /// frames, by enough to be worth it.
    fn misfit(&self) -> Option<Division> {
        let whole = self.config.divide_of(self.sizes.budget()).ok()?;
        let (to, now) = (self.less_files(whole), self.sizes.frames());
        let few = 2 * step(whole.budget) as usize / FRAME_SIZE;
        let back = to.frames == whole.frames && now < to.frames;
        (to.frames < now || to.frames > now + few || back).then_some(to)
    }

    /// A file was opened or will be closed, or a claim has changed: adjusts the frames in the
    /// background if their number is wrong.
    pub fn fit_files(self: &Arc<Self>) {
        if self.misfit().is_some() && !self.fitting.swap(true, Ordering::SeqCst) {
            let cache = self.clone();
            self.world.spawn("forebay-memory", Box::pin(async move { cache.fit().await }));
        }
    }

    async fn fit(&self) {
        // Checked again after the flag is cleared: a file opened just before started no task.
        while self.fit_in_turn().await {
            self.fitting.store(false, Ordering::SeqCst);
            if self.misfit().is_none() || self.fitting.swap(true, Ordering::SeqCst) {
                return;
            }
        }
        self.fitting.store(false, Ordering::SeqCst);
    }

    /// Adjusts the frames until they fit (T1); false if too many are in use for now.
    async fn fit_in_turn(&self) -> bool {
        while let Some(to) = self.misfit() {
            // A resize in progress ends first. It may have changed the budget: then begins anew.
            let _turn = self.resize_turn().await;
            let from = self.division_now(to);
            if from.budget != to.budget {
                continue;
            }
            if to.frames > from.frames {
                self.set_limits(&to);
                self.prefault();
                self.frame_wait.wake_all();
            } else if let Err(error) = self.shrink(&from, &to).await {
                log::info!("no room for {} of files: {error}", format_size(self.file_bytes()));
                return false;
            }
            debug_assert_eq!(self.sizes.frames(), to.frames, "T2: others resize in this turn");
            debug_assert!(
                self.frames.lock().used() <= to.frames,
                "T1: frames and files within their parts"
            );
        }
        true
    }
}
