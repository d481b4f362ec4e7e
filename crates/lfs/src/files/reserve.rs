//! Reservations for a file's content: places, and space for their records in the log and for their
//! extents in the tree.
//!
//! Invariants: M12 the log space for a reservation's records is granted with the reservation, and
//! its growth of the tree is counted from then on. M14 accepted content is not refused: if the log
//! has no space for all of it, it waits for two checkpoints, and is written in smaller parts. M15 a
//! reservation waits while too many changes are only in memory. M16 content of small files goes
//! into records if there is space, also in write-back: a device write for each would be most of the
//! work.
//!
//! Locks: the state lock, and below it the staging area's; none across a wait.

use crate::fault::Planted;
use crate::files::map_ops::FileOps;
use crate::files::open_files::OpenFiles;
use crate::files::parts::CHANGE_BYTES;
use crate::files::places::Taken;
use crate::log::staging::Staging;
use crate::space::admission::{Growth, PART_BYTES, extents_of};
use crate::space::reservations::Reserved;
use crate::space::{Ask, Need};
use crate::transaction::relief::{Patience, Relief};
use crate::transaction::state::State;
use forebay_base::units::round_down;
use forebay_base::{Error, ErrorKind, Result};
use forebay_iomap::{Class, GiveBack, MapFuture, Place, Reservation};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Runs that are tried before space is requested, if there is none for all runs.
const FEW: usize = 16;

/// Requests for space without success, in a row, before the write is refused.
const ROUNDS: u32 = 3;

fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::NoSpace
}

/// The error of a reservation that has to wait until changes are written (M15).
fn too_many_changes() -> Error {
    Error::new(ErrorKind::WouldBlock, "reserve", "too many changes wait to be written")
}

fn is_waiting_for_changes(error: &Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

/// Whether a reservation was refused at once for lack of space.
fn is_refused(taken: &Result<MapFuture<'_, Result<Reservation>>>) -> bool {
    match taken {
        Ok(MapFuture::Now(Some(Err(error)))) | Err(error) => is_full(error),
        Ok(_) => false,
    }
}

/// For which class of request places are, and whether they overwrite stored content (capacity.P25).
#[derive(Clone, Copy)]
struct How {
    class: Class,
    over: bool,
    /// The bound on changes in memory is checked in the hold that makes the grant, because no
    /// earlier one has done so (M15). Only for content that goes into records.
    checks_bound: bool,
}

impl OpenFiles {
    /// Whether there is space for an uncached write of these runs now. If so after a refusal,
    /// another request had taken the space.
    fn has_direct_room(&self, runs: &[Range<u64>], over: bool) -> bool {
        let bytes = runs.iter().map(|run| run.end - run.start).sum();
        self.state.lock().kept_by(bytes, Class::Direct, over).is_ok()
    }
}

/// Releases a reservation when it is dropped.
pub(crate) struct Share {
    files: Weak<OpenFiles>,
    key: u64,
}

impl GiveBack for Share {
    fn give_back(&self, places: &[Place]) {
        let Some(files) = self.files.upgrade() else { return };
        let mut state = files.state.lock();
        let is_waited_for = files.end_grant(&mut state, self.key);
        for place in places.iter().filter(|place| Staging::is_staged(place.device_offset)) {
            files.staging.forget(&(place.device_offset..place.device_offset + place.len));
        }
        state.give_back_reserved(places);
        drop(state);
        if is_waited_for {
            files.reservation_ended.wake_all();
        }
    }

    fn write_failed(&self, place: &Place) {
        if let Some(files) = self.files.upgrade() {
            files.writes_failed(&[place.device_offset]);
        }
    }
}

impl OpenFiles {
    /// Ends the grant of a reservation: in the hold that publishes its last piece, or when it is
    /// dropped with places that were not published. True: the caller has to wake the checkpoint
    /// that waits for it (checkpoint.H14), after the lock.
    pub fn end_grant(&self, state: &mut State, key: u64) -> bool {
        state.end_reservation(key, self.plant.has(Planted::GrantKept))
    }
}

/// Parameters of a reservation.
struct Wanted<'a> {
    key: u64,
    places: &'a [Place],
    /// The content goes into log records.
    staged: bool,
    how: How,
    /// Number of failed flushes before the reservation.
    flush_failures: u64,
}

impl FileOps {
    /// Number of extents of a place, and bytes of its changes in records.
    fn changes_of(&self, place: &Place) -> (u64, u64) {
        let blocks = place.len / u64::from(self.unit);
        let extents = extents_of(place.len, u64::from(self.unit));
        (extents, (extents + 2) * CHANGE_BYTES + blocks * 4)
    }

    /// Log space for records of these runs, if each part gets a record of its own.
    fn log_cost_of(&self, files: &OpenFiles, places: &[Place], staged: bool) -> u64 {
        let each = |place: &Place| {
            let body = self.changes_of(place).1;
            let parts = if staged { 0 } else { place.len / PART_BYTES };
            let more = parts * files.layout.cost(CHANGE_BYTES, 0);
            more + files.layout.cost(body, if staged { place.len } else { 0 })
        };
        places.iter().map(each).sum()
    }

    /// Log space for content that is published at once: its places share records.
    fn log_cost_at_once(&self, files: &OpenFiles, places: &[Place]) -> u64 {
        let body: u64 = places.iter().map(|place| self.changes_of(place).1).sum();
        // Two successive records together exceed `room`; otherwise they would be one.
        let room = files.layout.max_record() / 2;
        let records = 2 * body.div_ceil(room) + 1;
        body + records * files.layout.cost(CHANGE_BYTES, 0)
    }

    fn growth_of(&self, places: &[Place]) -> Growth {
        let each = places.iter().map(|place| Growth::of_content(place.len, u64::from(self.unit)));
        each.fold(Growth::default(), Growth::plus)
    }

    /// Grants the log space for the records (M12).
    fn share(&self, files: &Arc<OpenFiles>, wanted: &Wanted<'_>) -> Result<Arc<Share>> {
        let Wanted { key, places, staged, how, flush_failures } = *wanted;
        let growth = self.growth_of(places);
        let direct = how.class == Class::Direct;
        let cost = match direct {
            true => self.log_cost_at_once(files, places),
            false => self.log_cost_of(files, places, staged),
        };
        // An uncached write was not accepted before.
        let flying = places.iter().map(|place| place.len).sum();
        let placed = if direct { 0 } else { flying };
        let need = if direct && !how.over || staged { Need::New } else { Need::Urgent };
        let mut state = files.state.lock();
        // M15: no change comes between this check and the grant.
        if staged && how.checks_bound && files.relief(&state) != Relief::None {
            return Err(too_many_changes());
        }
        if staged && !state.takes_content(cost, growth) {
            let text = "no room for content in the log";
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        let grant = state.grant(&Ask { placed, flying, ..Ask::log(cost, growth) }, need)?;
        if staged {
            state.log_takes_content();
        }
        let at = |place: &Place| Some((files.layout.place_at(place.device_offset)?, place.len));
        let places: Vec<_> = places.iter().filter_map(at).collect();
        let segments = places.iter().map(|(at, _)| at.segment).collect();
        let sequence = state.counters().next_sequence();
        let reserved = Reserved { grant, flush_failures, sequence, segments };
        state.reserve(key, reserved, &places);
        Ok(Arc::new(Share { files: self.files.clone(), key }))
    }

    /// Reserves space in the staging area: the bytes go into the record itself.
    fn take_staged(
        &self,
        files: &Arc<OpenFiles>,
        runs: &[Range<u64>],
        total: u64,
        how: How,
    ) -> Result<Reservation> {
        let flush_failures = files.log.flush_failures();
        let mut at = files.staging.take(total).start;
        let key = at;
        let mut places = Vec::with_capacity(runs.len());
        for run in runs {
            let len = run.end - run.start;
            places.push(Place { offset: run.start, len, device_offset: at });
            at += len;
        }
        let wanted = Wanted { key, places: &places, staged: true, how, flush_failures };
        match self.share(files, &wanted) {
            Ok(owner) => Ok(Reservation::new(places, owner)),
            Err(error) => {
                files.staging.forget(&(key..key + total));
                Err(error)
            }
        }
    }

    /// Makes a reservation of places.
    fn reservation(
        &self,
        files: &Arc<OpenFiles>,
        taken: Taken<'_>,
        how: How,
        flush_failures: u64,
    ) -> Result<Reservation> {
        let Some(key) = taken.places().first().map(|place| place.device_offset) else {
            return Ok(Reservation::in_place(taken.keep()));
        };
        let wanted = Wanted { key, places: taken.places(), staged: false, how, flush_failures };
        let owner = self.share(files, &wanted)?;
        Ok(Reservation::new(taken.keep(), owner))
    }

    async fn take_waiting(&self, runs: Vec<Range<u64>>, how: How) -> Result<Reservation> {
        let files = self.files()?;
        let flush_failures = files.log.flush_failures();
        let taken = files.take_places(self.ino.0, &runs, (how.class, how.over)).await?;
        files.alloc.point().await;
        self.reservation(&files, taken, how, flush_failures)
    }

    /// Reserves at once, or returns a future.
    fn take<'a>(
        &'a self,
        files: &Arc<OpenFiles>,
        runs: &[Range<u64>],
        how: How,
    ) -> Result<MapFuture<'a, Result<Reservation>>> {
        let class = how.class;
        let joins = class == Class::Sync
            || class == Class::Background && files.state.lock().is_small(self.ino.0);
        if fits_record(files, runs) && joins {
            let total = runs.iter().map(|run| run.end - run.start).sum();
            match self.take_staged(files, runs, total, how) {
                // If space is low, the log is kept for records.
                Err(error) if is_full(&error) => {}
                done => return Ok(MapFuture::Now(Some(done))),
            }
        }
        if !files.alloc.at_once() {
            return Ok(MapFuture::Later(Box::pin(self.take_waiting(runs.to_vec(), how))));
        }
        let flush_failures = files.log.flush_failures();
        let taken = files.take_reserved(self.ino.0, runs, (class, how.over))?;
        Ok(MapFuture::Now(Some(self.reservation(files, taken, how, flush_failures))))
    }

    /// Reserves after a failure for lack of space (M14).
    async fn take_again(&self, mut runs: Vec<Range<u64>>, class: Class) -> Result<Reservation> {
        let (files, unit) = (self.files()?, u64::from(self.unit));
        let (mut rounds, mut over) = (0, class == Class::Direct);
        let mut patience = Patience::of(ROUNDS - 1);
        let mut waits = true;
        for run in &runs {
            over = over && files.ask_stored(self.ino.0, &self.told, run).await?;
        }
        loop {
            // Space that the cleaner is about to free may suffice; if not, the next round requests
            // more.
            let waited = std::mem::take(&mut waits) && files.wait_for_cleaner().await;
            let made = waited || patience.make_space(&files.requests).await;
            let how = How { class, over, checks_bound: false };
            let taken = match self.take(&files, &runs, how) {
                Ok(taken) => taken.await,
                Err(error) => Err(error),
            };
            let error = match taken {
                Err(error) if is_full(&error) => error,
                done => return done,
            };
            if !made {
                return Err(error);
            }
            if waited {
                continue;
            }
            waits = true;
            if class == Class::Direct {
                // An uncached write is refused completely; nothing of it was accepted.
                rounds += 1;
                if rounds == ROUNDS || !self.files()?.has_direct_room(&runs, over) {
                    return Err(error);
                }
                continue;
            }
            let total: u64 = runs.iter().map(|run| run.end - run.start).sum();
            let half = round_down(total / 2, unit);
            if half > 0 {
                shorten(&mut runs, half);
                continue;
            }
            // The content was accepted: if other tasks take the space, it only waits (M14).
            if !patience.lasts(files.state.lock().space().recorded()) {
                return Err(error);
            }
        }
    }

    /// The class of a request, and whether it overwrites. That matters only for uncached writes,
    /// which were not accepted before.
    fn how(&self, files: &OpenFiles, runs: &[Range<u64>], class: Class) -> How {
        let over = class == Class::Direct && {
            let state = files.state.lock();
            runs.iter().all(|run| state.is_stored(self.ino.0, run, &self.told))
        };
        How { class, over, checks_bound: false }
    }

    /// M15: changes are written before more space is reserved.
    async fn take_relieved(&self, runs: Vec<Range<u64>>, class: Class) -> Result<Reservation> {
        let files = self.files()?;
        if let Err(error) = files.relieve_now().await {
            files.check_running("reserve")?;
            // read_only.F12: accepted content stays dirty, and is tried again.
            if files.state.lock().overfull().is_some() {
                return Err(error);
            }
            log::warn!("changes wait to be written: {error}");
        }
        match self.take(&files, &runs, self.how(&files, &runs, class)) {
            Ok(taken) => match taken.await {
                Err(error) if is_full(&error) => self.take_again(runs, class).await,
                done => done,
            },
            Err(error) if is_full(&error) => self.take_again(runs, class).await,
            Err(error) => Err(error),
        }
    }

    /// Reserves space for `runs` as [`forebay_iomap::MapOps::reserve`] requires, and makes space
    /// first if none is free (M14).
    pub fn reserve_runs(
        &self,
        runs: &[Range<u64>],
        class: Class,
    ) -> MapFuture<'_, Result<Reservation>> {
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => return MapFuture::Now(Some(Err(error))),
        };
        if let Err(error) = files.check_running("reserve") {
            return MapFuture::Now(Some(Err(error)));
        }
        let relieved = || MapFuture::Later(Box::pin(self.take_relieved(runs.to_vec(), class)) as _);
        // Content of a sync that goes into records needs one hold: the grant checks the bound.
        let checks_bound = class == Class::Sync && fits_record(&files, runs);
        if !checks_bound && files.is_crowded() {
            return relieved();
        }
        let again = || MapFuture::Later(Box::pin(self.take_again(runs.to_vec(), class)) as _);
        let how = How { checks_bound, ..self.how(&files, runs, class) };
        let mut taken = self.take(&files, runs, how);
        if runs.len() > FEW && is_refused(&taken) {
            // Each run counts with a separate record, so a few of them may fit without more space.
            taken = self.take(&files, &runs[..FEW], how);
        }
        match taken {
            Ok(MapFuture::Now(Some(Err(error)))) if is_waiting_for_changes(&error) => relieved(),
            Ok(MapFuture::Now(Some(Err(error)))) if is_full(&error) => again(),
            Ok(MapFuture::Later(taken)) => {
                let runs = runs.to_vec();
                MapFuture::Later(Box::pin(async move {
                    match taken.await {
                        Err(error) if is_full(&error) => self.take_again(runs, class).await,
                        done => done,
                    }
                }))
            }
            Ok(now) => now,
            Err(error) if is_full(&error) => again(),
            Err(error) => MapFuture::Now(Some(Err(error))),
        }
    }
}

/// Whether records may have the content of these runs.
fn fits_record(files: &OpenFiles, runs: &[Range<u64>]) -> bool {
    let total: u64 = runs.iter().map(|run| run.end - run.start).sum();
    total <= u64::from(files.options.inline_max).min(files.layout.max_inline())
}

/// The first `bytes` bytes of runs.
fn shorten(runs: &mut Vec<Range<u64>>, bytes: u64) {
    let mut left = bytes;
    runs.retain_mut(|run| {
        run.end = run.end.min(run.start + left);
        left -= run.end - run.start;
        run.start < run.end
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorten_keeps_first_bytes_of_runs() {
        let mut runs = vec![0..8, 16..24, 32..40];
        shorten(&mut runs, 12);
        assert_eq!(runs, [0..8, 16..20]);
        shorten(&mut runs, 8);
        assert_eq!((runs.len(), &runs[0]), (1, &(0..8)));
    }
}
