//! Repair after a failed flush: the data of a record is written again before the record
//! itself.
//!
//! After a failed flush a device may lose everything that it completed since the last good flush.
//! Until then a read may still return it. So the repair reads each run back, compares it with its
//! checksums, and writes it again. If the device no longer has a block, the repair takes it from
//! the page cache, which keeps it until a flush succeeds. Or it writes what has replaced the block
//! in the file since. A block is lost if no source has it, or if two writes to its place fail while
//! the device accepts writes elsewhere. A lost block is left out of its record: the file keeps the
//! earlier content there, and the next checkpoint merges that (`super::rollforward`, logged.Q2).
//! Syncs of the file fail until the block is overwritten or truncated. A write that the host
//! refuses for lack of space loses no block: that repair fails, and is repeated.
//!
//! Invariants: Q1 no record that is laid out after a failed flush refers to bytes that the flush
//! may have lost and that were not written since. Each run stores the number of failed flushes at
//! its write, or that a flush covered it. Q3 what the cache holds is not left out: a later record
//! may depend on it, such as a rename or a change of size. The repair examines each block under the
//! lock of its folio. Neither a concurrent user of the folio nor a lost neighbour block causes the
//! block to be left out. Q4 on a volume without checksums what may be lost cannot be read until a
//! repair knows what is: its place may hold content of another file.
//!
//! Locks: the state lock and folio locks, one after the other. The lock of the staging area is
//! taken below the state lock. No lock is held across a wait.

use crate::device::hold::Hold;
use crate::device::slots::read_at;
use crate::device::write::write_all;
use crate::format::change::{Change, Size};
use crate::format::extent::{Extent, Source, Sums, put_crc32c};
use crate::format::place::{Geometry, Place};
use crate::log::commit::DataRepair;
use crate::log::{Pending, Run};
use crate::map::overlay::Where;
use crate::transaction::resources::Resources;
use forebay_base::checksum::crc32c;
use forebay_base::codec::{Reader, Writer};
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::BioFlags;
use forebay_iomap::ops::is_bad;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

/// A run that the repair wrote again.
struct Again {
    /// The checksums of its blocks, as they are now.
    sums: Arc<[u32]>,
    /// Some of its blocks, or the end of the last one, were truncated or punched since the first
    /// write. They are zeros now.
    is_cut: bool,
}

/// The repair, which the log calls through [`DataRepair`].
pub(crate) struct Repair(pub Weak<Resources>);

impl DataRepair for Repair {
    fn on_write_failure(&self, offsets: &[u64]) {
        if let Some(resources) = self.0.upgrade() {
            resources.writes_failed(offsets);
        }
    }

    fn takes_writes<'a>(&'a self, hold: &'a Hold) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(resources) => resources.takes_writes(hold).await,
                None => false,
            }
        })
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
    /// Writes the runs of `records` and of the queued records again, if a flush failed since their
    /// last write. A run that a working device does not return is left out. If the device accepts
    /// no write at all, or the host has no space, this returns an error, and the caller repeats the
    /// repair. `hold` belongs to the caller's turn to write (log.L9).
    pub(crate) async fn rewrite_runs(&self, records: &mut [Pending], hold: &Hold) -> Result<()> {
        let failures = self.log.flush_failures();
        let stale = |record: &Pending| {
            let runs = record.runs.iter().filter(|run| run.is_in_doubt(failures));
            runs.cloned().collect::<Vec<_>>()
        };
        let mut runs: Vec<Run> = records.iter().flat_map(stale).collect();
        let owners = {
            let mut state = self.state.lock();
            // A dropped repair may have left it: the turn of that task ended with its last write
            // (log.L9).
            state.give_back_probed();
            runs.extend(state.queue().iter().flat_map(stale));
            let places = runs.iter().map(|run| run.at).collect();
            owners(records.iter().chain(state.queue().iter()), &places, &self.layout.geometry)?
        };
        let (mut lost, mut written, mut failed) = (Vec::new(), BTreeMap::new(), None);
        let mut cut_inos = BTreeMap::new();
        let mut refused = None;
        for run in runs {
            let owner = owners.get(&run.at).copied();
            match self.rewrite(&run, owner, hold).await {
                Ok(Some(again)) => {
                    if again.is_cut {
                        cut_inos.insert(run.at, run.ino);
                    }
                    written.insert(run.at, again);
                }
                Ok(None) => lost.push(run),
                // The run stays in doubt, and in its record.
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
        let mut state = self.state.lock();
        let cut = cut_inos.into_iter().filter_map(|(at, ino)| Some((owners.get(&at)?.0, ino)));
        let cut: Vec<(u64, u64)> = cut.collect();
        let mut sizes = cut.iter().map(|(data_id, _)| (*data_id, u64::MAX)).collect();
        // Growth in the records of these files is lowered, so the log has other sizes than the
        // memory.
        cut.iter().for_each(|(data_id, ino)| state.leave_out(*data_id, *ino));
        let geometry = &self.layout.geometry;
        let since = (failures, self.log.next_flush());
        let mut renew = |record: &mut Pending| renew(record, &written, since, &mut sizes, geometry);
        state.rewrite_records(&mut renew)?;
        records.iter_mut().rev().try_for_each(renew)?;
        for (at, again) in &written {
            if let Some((data_id, _)) = owners.get(at) {
                state.renew(*data_id, *at, &again.sums);
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Writes a run again, with the blocks from [`Resources::blocks_again`]. None: a block is lost.
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
            // A second attempt: one failed write does not make the block lost.
            write().await?;
        }
        Ok(Some(again))
    }

    /// Whether the device accepts any write. This writes to a free segment, whose content does not
    /// matter.
    async fn takes_writes(&self, hold: &Hold) -> bool {
        let taken = {
            let mut state = self.state.lock();
            // A task that was dropped may have left it.
            state.give_back_probed();
            state.take_probed()
        };
        let Ok(segment) = taken else { return false };
        let at = self.layout.device_offset(Place::new(segment, 0));
        let zeros = vec![0; self.layout.align as usize];
        let done = write_all(&self.device, vec![(at, zeros)], BioFlags::SYNC, hold.clone()).await;
        if is_bad(&done) {
            self.writes_failed(&[at]);
        }
        self.state.lock().give_back_probed();
        done.is_ok()
    }

    /// Collects the current blocks of a run: from the device if the checksum matches, or else from
    /// [`Resources::block_elsewhere`]. Without checksums the bytes from the device cannot be
    /// verified, and are not used. None: a block is lost.
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
            // If the read of the whole run failed, each block is read alone: one bad block does not
            // make the others lost.
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

    /// Finds a block of the run at `at` in another source. The sources are: the page cache, which
    /// holds the block until a flush succeeds (Q3), in that or a newer version; zeros, if the block
    /// was truncated or punched since; a later write of the block, in the staging area, or on the
    /// device if its checksum matches. `unsure`: the run has no checksums, so bytes that the cache
    /// read back from `at` are not used either. Returns true if the block is zeros, completely or
    /// behind the end of file. None: no source has the block, and `into` is unchanged.
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
            let node = state.names().node(ino).filter(|node| node.inode.data_id == data_id)?;
            node.content.clone()
        };
        if let Some(content) = content
            && content.file.copy_held(block * unit, into, unsure)
        {
            return Some(content.file.end() < (block + 1) * unit);
        }
        let newer = {
            let state = self.state.lock();
            let piece = state.map().known(data_id, block).ok()?;
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

    /// Removes the lost runs from the records and marks their files, so that their syncs fail. A
    /// file that was truncated to zero since has a new data id. It loses nothing: its current size
    /// is recorded independently.
    fn leave_out(&self, lost: &[Run], records: &mut [Pending]) -> Result<()> {
        let geometry = &self.layout.geometry;
        let places: BTreeSet<Place> = lost.iter().map(|run| run.at).collect();
        let mut state = self.state.lock();
        let owners = owners(records.iter().chain(state.queue().iter()), &places, geometry)?;
        for run in lost {
            log::error!("content of #{} is lost: {} bytes at {:?}", run.ino, run.len, run.at);
            if let Some(owner) = owners.get(&run.at) {
                state.note_lost(run, *owner);
            }
        }
        // A size must not be recorded without its bytes, so the growth of these data ids is
        // removed, too.
        let datas = owners.into_values().map(|(data_id, _)| data_id).collect();
        let mut omit = |record: &mut Pending| without(record, &places, &datas, geometry);
        records.iter_mut().try_for_each(&mut omit)?;
        state.rewrite_records(omit)
    }
}

/// The owners of the data at these places: data ids and first blocks, from the changes of the
/// records.
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

/// Updates a record whose runs were written again: its checksums, and for the runs how many flushes
/// had failed before, and which flush covers them. `sizes`: data ids with blocks
/// that were truncated or punched since the first write, and the size to which a later record
/// truncates each. No record before that one may state a larger size.
fn renew(
    record: &mut Pending,
    written: &BTreeMap<Place, Again>,
    (failures, flush): (u64, u64),
    sizes: &mut BTreeMap<u64, u64>,
    geometry: &Geometry,
) -> Result<()> {
    let mut same = sizes.is_empty();
    for run in &mut record.runs {
        let Some(Again { sums, .. }) = written.get(&run.at) else { continue };
        run.flush_failures = run.flush_failures.max(failures);
        run.flush = flush;
        same &= run.sums == *sums;
        run.sums = sums.clone();
    }
    if same {
        return Ok(());
    }
    let mut body = vec![0; record.body.len()];
    let mut writer = Writer::new("record", &mut body);
    let mut reader = Reader::new("record", &record.body);
    // A record applies as a whole, with its truncates before its growth. So its truncates limit
    // only the records before it.
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

/// Removes from a record the changes that refer to `places`, and the growth of `datas`.
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
    use crate::space::Grant;

    /// The story: a file was truncated and written again, and one record contained both changes.
    /// The repair after a failed flush took the growth in it for older than the truncate, and
    /// recorded the truncated size. After a crash, bytes that the next sync had acknowledged were
    /// behind the end of file.
    #[test]
    fn q3_growth_after_truncate_in_one_record_keeps_size() {
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
            Pending {
                ticket: 1,
                kind,
                body,
                changes: 2,
                payloads,
                runs,
                grant: Grant::default(),
                cut: None,
            }
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
            renew(one, &written, (1, 1), &mut sizes, &geometry).unwrap();
        }
        assert_eq!(sizes_in(&both), [4096, 12_288]);
        assert_eq!(sizes_in(&older), [4096], "no record before the cut says more");
    }
}
