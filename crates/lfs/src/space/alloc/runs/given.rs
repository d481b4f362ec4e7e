//! Runs are given out of the space, and taken back. The invariants are those of
//! [`crate::space::alloc::runs`].
//!
//! No locks: the volume's state lock covers it.

use crate::space::Space;
use crate::space::alloc::Run;
#[cfg(doc)]
use crate::space::alloc::runs::Room;
use crate::space::ledger::Kept;
use forebay_base::{ErrorKind, Result};

/// Runs that are given out and taken back.
impl Space {
    /// Takes a run of `want` bytes, or a shorter one of at least `least` bytes. If there is none of
    /// that length, it takes any run. `NoSpace` if no byte is left.
    pub fn fresh_run(&mut self, kept: Kept, want: u64, least: u64) -> Result<Run> {
        let tail = self.data_left();
        if let Some((at, _)) = self.room.left.best(want) {
            return Ok(self.room.left.cut(at, want));
        }
        if tail >= want {
            return self.more_from(want, kept.new);
        }
        if let Some((at, _)) = self.room.left.best(least) {
            return Ok(self.room.left.cut(at, want));
        }
        if tail >= least {
            return self.more_from(want, kept.new);
        }
        if tail > 0 && self.has_segment(kept.new) {
            let rest = self.more_from(tail, kept.new)?;
            self.room.left.join(rest);
        }
        self.any_run(kept, want)
    }

    /// Takes any run of up to `want` bytes: from the open end of the segments, then from leftover
    /// runs, then from windows. Last it takes space that is kept from new content: the caller was
    /// admitted already.
    pub fn any_run(&mut self, kept: Kept, want: u64) -> Result<Run> {
        match self.more_from(want, kept.new) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            done => return done,
        }
        for _ in 0..2 {
            if let Some((at, _)) = self.room.left.longest() {
                return Ok(self.room.left.cut(at, want));
            }
            self.return_windows();
            if let Ok(run) = self.more_from(want, kept.new) {
                return Ok(run);
            }
        }
        self.more_from(want, kept.accepted)
    }

    fn more_from(&mut self, want: u64, kept: u64) -> Result<Run> {
        let (at, len) = self.take_data(want, kept)?;
        Ok((self.room.sizes.address(at), len))
    }

    /// Takes a run for a request without a stream. Such requests get adjacent runs, whatever their
    /// files, so that many of them are written with one device write.
    pub fn pooled_run(&mut self, kept: Kept, want: u64) -> Result<Run> {
        let (at, len) = match self.room.pool.take() {
            Some(pool) => pool,
            None if want >= self.room.sizes.pool => return self.fresh_run(kept, want, want),
            None => self.fresh_run(kept, self.room.sizes.pool, want)?,
        };
        let taken = len.min(want);
        self.room.pool = (taken < len).then_some((at + taken, len - taken));
        Ok((at, taken))
    }

    /// Returns the rest of the pool if it alone keeps a segment in use (segment.W15). It becomes a
    /// leftover run.
    pub fn leave_pool(&mut self) {
        let Some((at, len)) = self.room.pool else { return };
        let segment = self.room.sizes.place(at).segment;
        if self.segments.is_idle(segment, len + self.room.left_of(segment)) {
            self.room.pool = None;
            self.give_back_run((at, len));
        }
    }

    /// Seals the open data segment. Its unused end becomes a leftover run.
    pub fn leave_data(&mut self) {
        let tail = self.data_left();
        if tail > 0
            && let Ok(rest) = self.more_from(tail, 0)
        {
            self.room.left.join(rest);
        }
        self.seal_data();
    }

    /// Notes a failed write to this segment: other space is used first (runs.R24).
    pub fn fail_runs(&mut self, segment: u32) {
        self.room.left.fail(u64::from(segment));
        if self.is_open(segment) {
            self.leave_data();
        }
        // Some windows or the pool may lie in this segment.
        self.return_windows();
    }

    /// Forgets the leftover runs of a segment that died.
    pub fn forget_runs(&mut self, segment: u32) {
        for at in self.room.left.within(u64::from(segment)) {
            if let Some((_, len)) = self.room.left.remove(at) {
                self.segments.hold(segment, -(len as i64));
            }
        }
    }

    /// Returns a run that is no longer in use, or never was.
    pub fn give_back_run(&mut self, run: Run) {
        let (at, len) = self.room.left.join(run);
        let place = self.room.sizes.place(at);
        let goes = if len == self.room.sizes.segment && !self.is_open(place.segment) {
            self.release(place.segment);
            true
        } else {
            self.give_back_data(place, len)
        };
        if goes {
            self.room.left.remove(at);
        }
    }

    fn returned(&mut self, runs: Vec<Run>) {
        // In reverse order, so that the open data segment can take back the run that it gave out
        // last.
        for run in runs.into_iter().rev() {
            self.room.stats.returned_bytes += run.1;
            self.give_back_run(run);
        }
    }

    /// Returns the windows of a file that has no openers any more, is truncated, or is deleted.
    pub fn close_windows(&mut self, ino: u64) {
        let runs = self.room.windows.close(ino);
        self.returned(runs);
    }

    /// Returns all windows and the pool, so that any request can use their space (alloc.A13).
    pub fn return_windows(&mut self) {
        let runs = self.room.windows.close_all();
        self.returned(runs);
        let pool = self.room.pool.take();
        self.returned(pool.into_iter().collect());
    }

    /// Closes the least recently used windows until at most `bytes` bytes are held.
    pub fn shrink_windows(&mut self, bytes: u64) {
        while self.room.windows.held() > bytes {
            let Some((ino, start)) = self.room.windows.oldest() else { break };
            let runs = self.room.windows.close_one(ino, start);
            self.returned(runs);
        }
    }

    /// Closes the windows that were not used since `since`, a time of the world's clock.
    pub fn return_idle_windows(&mut self, since: u64) {
        while let Some((ino, start)) = self.room.windows.oldest_before(since) {
            let runs = self.room.windows.close_one(ino, start);
            self.returned(runs);
        }
    }

    /// The most bytes that windows may hold: an eighth of the free self.
    pub fn windows_limit(&self, kept: Kept) -> u64 {
        let free = self.segments.free().saturating_sub(kept.new);
        (free * self.room.sizes.segment + self.data_left() + self.room.bytes()) / 8
    }
}
