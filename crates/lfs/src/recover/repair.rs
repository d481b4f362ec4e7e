//! After a failed flush: the data that records point at is written again before they are.
//!
//! A device may lose, after a failed flush, whatever it had completed since the last good one, although it
//! reads back until then. So every run is read back, held against its sums, and written again; a block that
//! the device does not have any more is had from the cache, which holds it until a flush has worked, or is
//! written as what has taken its place in the file since. What cannot be had from any of them, or takes no
//! write where it lies, twice in a row, on a device that works elsewhere, is left out of its record: the
//! blocks stay what they were, and the file is marked, until they are written anew or cut off.
//! A host without space does not make the repair omit a run: that repair fails, and is tried again.
//!
//! Invariants: Q1 no record that is laid out after a failed flush points at bytes that the flush may have
//! lost and that were not written since: each run knows how many flushes had failed before its write. Q2 what is lost gets into no tree: what the
//! blocks were before is known to the log alone, so no checkpoint is made until they are written anew, or cut
//! off. Q3 what the cache holds is not left out: a record behind it may rely on it, as a rename does, or a
//! size. Each block is looked at for itself, under its folio's lock: neither who uses the folio meanwhile nor
//! a loss beside it takes it out.
//!
//! Locks: the state lock and folio locks in turn, below the state lock the staging area's; none across a
//! wait.

use crate::device::hold::Hold;
use crate::device::slots::read_at;
use crate::device::write::write_all;
use crate::format::change::{Change, Size};
use crate::format::extent::{Extent, Source, Sums, put_crc32c};
use crate::format::place::{Geometry, Place};
use crate::format::usage::Stream;
use crate::log::commit::DataRepair;
use crate::log::{Pending, Run};
use crate::map::overlay::{Overlay, Where};
use crate::names::node::Node;
use crate::transaction::resources::Resources;
use crate::transaction::state::State;
use crate::transaction::sync_errors::Lost;
use forebay_base::checksum::crc32c;
use forebay_base::codec::{Reader, Writer};
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::BioFlags;
use forebay_iomap::ops::is_bad;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// A run that was written again.
struct Again {
    /// Of its blocks, as they are now.
    sums: Arc<[u32]>,
    /// Some of them, or the end of the last one, were cut off or punched since they were written first: they
    /// are zeros.
    is_cut: bool,
}

/// The repair as the log knows it.
pub(crate) struct Repair(pub Weak<Resources>);

impl DataRepair for Repair {
    fn on_write_failure(&self, offsets: &[u64]) {
        if let Some(resources) = self.0.upgrade() {
            resources.writes_failed(offsets);
        }
    }

    fn rewrite_runs<'a>(
        &'a self,
        records: &'a mut [Pending],
        hold: &'a Hold,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let gone = || Error::new(ErrorKind::Shutdown, "commit", "the volume is closed");
            let resources = self.0.upgrade().ok_or_else(gone)?;
            resources.rewrite_runs(records, hold).await
        })
    }
}

impl Resources {
    /// Writes the runs of these records, and of those that are queued, again, if a flush has failed since
    /// they were written. What a device that works does not give back is left out; if nothing of it works,
    /// that is an error, and all of it is tried again.
    /// `hold` is of the caller's write turn (L9).
    pub(crate) async fn rewrite_runs(&self, records: &mut [Pending], hold: &Hold) -> Result<()> {
        let failures = self.log.flush_failures();
        let stale = |record: &Pending| {
            let runs = record.runs.iter().filter(|run| run.is_in_doubt(failures));
            runs.cloned().collect::<Vec<_>>()
        };
        let mut runs: Vec<Run> = records.iter().flat_map(stale).collect();
        let owners = {
            let state = self.state.lock();
            runs.extend(state.queue.iter().flat_map(stale));
            let places = runs.iter().map(|run| run.at).collect();
            owners(records.iter().chain(state.queue.iter()), &places, &self.layout.geometry)?
        };
        let (mut lost, mut written, mut failed) = (Vec::new(), BTreeMap::new(), None);
        let mut refused = None;
        for run in runs {
            let owner = owners.get(&run.at).copied();
            match self.rewrite(&run, owner, hold).await {
                Ok(Some(again)) => drop(written.insert(run.at, again)),
                Ok(None) => lost.push(run),
                // It stays in doubt, and in its record.
                Err(error) if error.kind() == ErrorKind::NoSpace => refused = Some(error),
                Err(error) => {
                    lost.push(run);
                    failed = Some(error);
                }
            }
        }
        if let Some(error) = failed.filter(|_| written.is_empty())
            && !self.takes_writes(hold).await
        {
            return Err(error);
        }
        if !lost.is_empty() {
            self.leave_out(&lost, records)?;
        }
        let cut =
            written.iter().filter(|(_, again)| again.is_cut).filter_map(|(at, _)| owners.get(at));
        let mut sizes = cut.map(|(data_id, _)| (*data_id, u64::MAX)).collect();
        let mut state = self.state.lock();
        let geometry = &self.layout.geometry;
        let mut renew =
            |record: &mut Pending| renew(record, &written, failures, &mut sizes, geometry);
        state.queue.rewrite(&mut renew)?;
        records.iter_mut().rev().try_for_each(renew)?;
        for (at, again) in &written {
            if let Some((data_id, _)) = owners.get(at) {
                state.map.renew(*data_id, *at, &again.sums);
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Writes a run again, each block as [`Resources::blocks_again`] has it. None: nobody has one of them.
    async fn rewrite(
        &self,
        run: &Run,
        owner: Option<(u64, u64)>,
        hold: &Hold,
    ) -> Result<Option<Again>> {
        let Some((bytes, again)) = self.blocks_again(run, owner).await? else { return Ok(None) };
        let offset = self.layout.device_offset(run.at);
        let write =
            || write_all(&self.device, vec![(offset, bytes.clone())], BioFlags::SYNC, hold.clone());
        let done = write().await;
        if is_bad(&done) {
            self.writes_failed(&[offset]);
        }
        if done.is_err() {
            // One that fails once is no loss.
            write().await?;
        }
        Ok(Some(again))
    }

    /// Whether the device takes a write at all: to a free segment, of which nothing is known until it is
    /// written anew.
    async fn takes_writes(&self, hold: &Hold) -> bool {
        let Ok(segment) = self.state.lock().space.segments.take(Stream::Log) else { return false };
        let at = self.layout.device_offset(Place::new(segment, 0));
        let zeros = vec![0; self.layout.align as usize];
        let done = write_all(&self.device, vec![(at, zeros)], BioFlags::SYNC, hold.clone()).await;
        if is_bad(&done) {
            self.writes_failed(&[at]);
        }
        self.state.lock().space.segments.give_back(segment);
        done.is_ok()
    }

    /// What the blocks of a run are now: each as the device gives it back, if its sum matches, or
    /// else as [`Resources::block_elsewhere`] has it. Without sums what the device gives back cannot
    /// be verified, and counts for nothing. None: one of the blocks is lost.
    async fn blocks_again(
        &self,
        run: &Run,
        owner: Option<(u64, u64)>,
    ) -> Result<Option<(Vec<u8>, Again)>> {
        let (offset, unit) = (self.layout.device_offset(run.at), self.layout.block_bytes());
        let whole = read_at(&self.device, offset, run.len as usize).await.ok();
        let mut bytes = whole.as_ref().map_or_else(|| vec![0; run.len as usize], |b| b.to_vec());
        let (mut same, mut is_cut) = (true, false);
        for (n, block) in (0..).zip(bytes.chunks_mut(unit as usize)) {
            // One that fails once is no loss, and one bad block not that of the others.
            let back = match whole {
                Some(_) => Ok(()),
                None => read_at(&self.device, offset + n * unit, unit as usize)
                    .await
                    .map(|there| block.copy_from_slice(&there)),
            };
            let sum = run.sums.get(n as usize);
            if back.is_ok() && sum.is_some_and(|sum| crc32c(block) == *sum) {
                continue;
            }
            let at = Place::new(run.at.segment, run.at.offset + (n * unit) as u32);
            let owner = owner.map(|(data_id, first)| (data_id, first + n));
            let unsure = run.sums.is_empty();
            match self.block_elsewhere(run.ino, owner, (at, unsure), block).await {
                Some(cut) => (same, is_cut) = (false, is_cut | cut),
                None => return back.map(|()| None),
            }
        }
        let sums = match same || run.sums.is_empty() {
            true => run.sums.clone(),
            false => bytes.chunks(unit as usize).map(crc32c).collect(),
        };
        Ok(Some((bytes, Again { sums, is_cut })))
    }

    /// A block of a run at `at` that is not to be had from there: from the cache, which holds what no flush
    /// has made durable (Q3), as it was then, or newer bytes that were accepted since; zeros if it was cut
    /// off or punched since; what was written past the cache since, if that is sound where it lies. `unsure`:
    /// the run has no sums, and what the cache has read back from there counts for nothing, either. True:
    /// zeros, all of it or behind the end of file. None, and nothing was changed: none of these.
    async fn block_elsewhere(
        &self,
        ino: u64,
        owner: Option<(u64, u64)>,
        (at, unsure): (Place, bool),
        into: &mut [u8],
    ) -> Option<bool> {
        let (data_id, block) = owner?;
        let unit = self.layout.block_bytes();
        let content = {
            let state = self.state.lock();
            let node = state.nodes.get(ino).filter(|node| node.inode.data_id == data_id)?;
            node.content.clone()
        };
        if let Some(content) = content
            && content.file.copy_held(block * unit, into, unsure)
        {
            return Some(content.file.end() < (block + 1) * unit);
        }
        let newer = {
            let state = self.state.lock();
            let piece = state.map.known(data_id, block).ok()?;
            match piece.at {
                Where::Hole => {
                    into.fill(0);
                    return Some(true);
                }
                Where::Staged(from) => {
                    let bytes = self.staging.share(&(from..from + unit)).ok()?;
                    into.copy_from_slice(&bytes[..unit as usize]);
                    return Some(false);
                }
                Where::Run(place) => piece.own_sums().first().map(|sum| (place, *sum)),
            }
        };
        let (place, sum) = newer.filter(|(place, _)| *place != at)?;
        let bytes = read_at(&self.device, self.layout.device_offset(place), unit as usize).await;
        let bytes = bytes.ok().filter(|bytes| crc32c(bytes) == sum)?;
        into.copy_from_slice(&bytes);
        Some(false)
    }

    /// Takes what is lost out of the records; its files cannot be synced any more. Of a file that has other
    /// data by now, for it was cut to nothing since, nothing is lost: its size of now is told without it.
    fn leave_out(&self, lost: &[Run], records: &mut [Pending]) -> Result<()> {
        let geometry = &self.layout.geometry;
        let places: BTreeSet<Place> = lost.iter().map(|run| run.at).collect();
        let mut state = self.state.lock();
        let owners = owners(records.iter().chain(state.queue.iter()), &places, geometry)?;
        for run in lost {
            log::error!("content of #{} is lost: {} bytes at {:?}", run.ino, run.len, run.at);
            state.sync_errors.add_run(run.at, run.len);
            let owner = owners.get(&run.at).map(|(data_id, _)| *data_id);
            let lose = |node: &mut Node| {
                let is_own = owner == Some(node.inode.data_id);
                node.regrow |= is_own;
                is_own
            };
            if state.nodes.update(run.ino, lose) != Some(true) {
                continue;
            }
            state.sync_errors.add(run.ino, Lost::Run);
            state.outstanding.note_lost(run.ino);
        }
        // No size without its bytes: what is told of the size of that data goes, too.
        let datas = owners.into_values().map(|(data_id, _)| data_id).collect();
        let mut omit = |record: &mut Pending| without(record, &places, &datas, geometry);
        records.iter_mut().try_for_each(&mut omit)?;
        state.queue.rewrite(omit)
    }
}

impl State {
    /// `Corrupt` if some of this content is lost (Q2): the error names the inode and the range.
    pub fn check_lost(&self, data: &BTreeMap<u64, Overlay>) -> Result<()> {
        match self.find_lost(data.values()) {
            Some((ino, lost)) => Err(lost_error(ErrorKind::Corrupt, "checkpoint", ino, lost)),
            None => Ok(()),
        }
    }

    /// The first content of an inode that is lost, as the error of its syncs.
    pub fn lost_of(&self, ino: u64) -> Error {
        let data_id = self.nodes.get(ino).map_or(0, |node| node.inode.data_id);
        let lost = self.find_lost(self.overlays_of(data_id)).map(|(_, lost)| lost);
        lost_error(ErrorKind::Io, "commit", ino, lost.unwrap_or_default())
    }

    /// Owner and range of the first content in here that is lost.
    fn find_lost<'a>(
        &self,
        mut overlays: impl Iterator<Item = &'a Overlay>,
    ) -> Option<(u64, Range<u64>)> {
        if self.sync_errors.lost_runs().is_empty() {
            return None;
        }
        let block_bytes = self.layout.block_bytes();
        overlays.find_map(|overlay| {
            let mut lost = self.sync_errors.lost_runs().iter();
            lost.find_map(|lost| lost_in(overlay, *lost, block_bytes))
                .map(|range| (overlay.owner, range))
        })
    }

    /// What is known of some data beyond the tree.
    fn overlays_of(&self, data_id: u64) -> impl Iterator<Item = &Overlay> {
        let is_merged = self.frozen.as_ref().is_some_and(|frozen| frozen.is_merged);
        let changed = self.map.overlay(data_id).into_iter();
        changed.chain(self.map.frozen().filter(|_| !is_merged).and_then(|all| all.get(&data_id)))
    }

    /// Why an inode cannot be synced, after a commit that worked: not for content that was written anew
    /// since, or cut off. A size that was taken out beside it is told again first.
    pub fn unpublished_of(&mut self, ino: u64) -> Option<Lost> {
        if self.sync_errors.has(ino, Lost::Run)
            && let Some(node) = self.nodes.get(ino).filter(|node| !node.regrow)
        {
            let data_id = node.inode.data_id;
            if !self.has_lost(data_id) {
                self.sync_errors.remove(ino, Lost::Run);
            }
        }
        self.sync_errors.worst(ino)
    }

    /// Whether some of this data is lost, and was neither written anew nor cut off.
    pub fn has_lost(&self, data_id: u64) -> bool {
        self.find_lost(self.overlays_of(data_id)).is_some()
    }

    /// A checkpoint is durable: what is lost and was overruled before it is nobody's any more.
    pub fn forget_lost(&mut self) {
        let (data, block_bytes) = (self.map.changes(), self.layout.block_bytes());
        let is_in = |lost| data.values().any(|one| lost_in(one, lost, block_bytes).is_some());
        self.sync_errors.retain_runs(is_in);
    }
}

fn lost_error(kind: ErrorKind, op: &'static str, ino: u64, lost: Range<u64>) -> Error {
    let Range { start, end } = lost;
    let text = format!("content of inode {ino} that was accepted is lost: bytes {start} to {end}");
    Error::new(kind, op, text).with_range(start, end - start)
}

/// The first range of a file, bytes, of which the content is in these bytes of the device.
fn lost_in(overlay: &Overlay, (lost, len): (Place, u64), block_bytes: u64) -> Option<Range<u64>> {
    let (start, end) = (u64::from(lost.offset), u64::from(lost.offset) + len);
    overlay.pieces().find_map(|(block, piece)| match piece.at {
        Where::Run(at) if at.segment == lost.segment => {
            let from = u64::from(at.offset);
            let (first, last) = (from.max(start), (from + piece.blocks * block_bytes).min(end));
            let in_file = block * block_bytes;
            (first < last).then(|| in_file + first - from..in_file + last - from)
        }
        _ => None,
    })
}

/// Whose data is at these places: data ids and first blocks, as records say.
fn owners<'a>(
    records: impl Iterator<Item = &'a Pending>,
    places: &BTreeSet<Place>,
    geometry: &Geometry,
) -> Result<BTreeMap<Place, (u64, u64)>> {
    let mut owners = BTreeMap::new();
    for record in records.filter(|record| !record.runs.is_empty()) {
        let mut reader = Reader::new("record", &record.body);
        while reader.remaining() > 0 {
            if let Some(Change::Map(data_id, block, extent)) =
                Change::decode(&mut reader, geometry)?
                && let Source::Run(at) = extent.source
                && places.contains(&at)
            {
                owners.insert(at, (data_id, block));
            }
        }
    }
    Ok(owners)
}

/// Runs of a record were written again, and have other sums now. `sizes`: of data of which something was cut
/// off or punched behind this record, what it is cut to later; no record says more before.
fn renew(
    record: &mut Pending,
    written: &BTreeMap<Place, Again>,
    failures: u64,
    sizes: &mut BTreeMap<u64, u64>,
    geometry: &Geometry,
) -> Result<()> {
    let mut same = sizes.is_empty();
    for run in &mut record.runs {
        let Some(Again { sums, .. }) = written.get(&run.at) else { continue };
        run.flush_failures = run.flush_failures.max(failures);
        same &= run.sums == *sums;
        run.sums = sums.clone();
    }
    if same {
        return Ok(());
    }
    let mut body = vec![0; record.body.len()];
    let mut writer = Writer::new("record", &mut body);
    let mut reader = Reader::new("record", &record.body);
    // A record holds as a whole: what it cuts lies before what it grows afterwards, and counts for those
    // before.
    let mut cuts = Vec::new();
    while reader.remaining() > 0 {
        let Some(change) = Change::decode(&mut reader, geometry)? else { continue };
        let mut stored = Vec::new();
        let change = match change {
            Change::Map(data_id, block, extent) => {
                let sums = match extent.source {
                    Source::Run(at) => written.get(&at).filter(|again| !again.sums.is_empty()),
                    Source::Inline(_) => None,
                };
                let sums = sums.map(|again| {
                    put_crc32c(&again.sums, &mut stored);
                    Sums::crc32c(&stored)
                });
                Change::Map(data_id, block, Extent { sums: sums.unwrap_or(extent.sums), ..extent })
            }
            Change::Grow(size) => {
                let most = sizes.get(&size.data_id).copied().unwrap_or(u64::MAX);
                Change::Grow(Size { size: size.size.min(most), ..size })
            }
            change => change,
        };
        if let Change::Truncate(size) = &change {
            cuts.push((size.data_id, size.size));
        }
        change.encode_into(&mut writer, geometry)?;
    }
    for (data_id, size) in cuts {
        if let Some(most) = sizes.get_mut(&data_id) {
            *most = size.min(*most);
        }
    }
    let len = writer.position();
    body.truncate(len);
    record.body = body;
    Ok(())
}

/// Takes the changes that point at `places`, and the growth of `datas`, out of a record.
fn without(
    record: &mut Pending,
    places: &BTreeSet<Place>,
    datas: &BTreeSet<u64>,
    geometry: &Geometry,
) -> Result<()> {
    let mut body = vec![0; record.body.len()];
    let mut writer = Writer::new("record", &mut body);
    let mut reader = Reader::new("record", &record.body);
    let mut changes = 0;
    while reader.remaining() > 0 {
        let Some(change) = Change::decode(&mut reader, geometry)? else { continue };
        match change {
            Change::Map(_, _, Extent { source: Source::Run(at), .. }) if places.contains(&at) => {}
            Change::Grow(size) if datas.contains(&size.data_id) => {}
            change => {
                change.encode_into(&mut writer, geometry)?;
                changes += 1;
            }
        }
    }
    let len = writer.position();
    body.truncate(len);
    record.runs.retain(|run| !places.contains(&run.at));
    (record.body, record.changes) = (body, changes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::RecordKind;

    /// A file was cut and written again, and one record said both. The repair after a failed flush held the
    /// growth in it for older than the cut, and said the size of the cut: what the next sync acknowledged lay
    /// behind the end after a crash.
    #[test]
    fn q3_what_grew_behind_a_cut_keeps_its_size() {
        let geometry = Geometry::with_segment_shift(20);
        let size = |size| Size { ino: 7, data_id: 9, size, sequence: 3 };
        let record = |changes: &[Change<'_>]| {
            let mut body = vec![0; 4096];
            let mut writer = Writer::new("record", &mut body);
            changes.iter().for_each(|c| c.encode_into(&mut writer, &geometry).unwrap());
            let len = writer.position();
            body.truncate(len);
            let (payloads, runs) = (Vec::new(), Vec::new());
            let kind = RecordKind::Changes;
            Pending { ticket: 1, kind, body, changes: 2, payloads, runs, cost: 0, cut: None }
        };
        let sizes_in = |record: &Pending| {
            let mut reader = Reader::new("record", &record.body);
            let mut sizes = Vec::new();
            while reader.remaining() > 0 {
                match Change::decode(&mut reader, &geometry).unwrap() {
                    Some(Change::Grow(size) | Change::Truncate(size)) => sizes.push(size.size),
                    other => panic!("{other:?}"),
                }
            }
            sizes
        };
        let mut older = record(&[Change::Grow(size(131_072))]);
        let mut both = record(&[Change::Truncate(size(4096)), Change::Grow(size(12_288))]);
        let (written, mut sizes) = (BTreeMap::new(), BTreeMap::from([(9, u64::MAX)]));
        for one in [&mut both, &mut older] {
            renew(one, &written, 1, &mut sizes, &geometry).unwrap();
        }
        assert_eq!(sizes_in(&both), [4096, 12_288]);
        assert_eq!(sizes_in(&older), [4096], "no record before the cut says more");
    }
}
