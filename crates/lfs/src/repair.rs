//! After a failed write or flush: the data that records point at is had again before they are.
//!
//! A device may lose, after a failed flush, whatever it had completed since the last good one, although it
//! reads back until then. So every run is read back, held against its sums, and written again. What cannot
//! be had, or takes no write where it lies, twice in a row, on a device that works elsewhere, is left out of
//! its record: the blocks stay what they were, and the file is marked, until they are written anew or cut
//! off.
//!
//! Invariants: Q1 no record that is laid out after a failure points at bytes that were not written since:
//! each run knows how many failures there were before its write. Q2 what is lost gets into no tree: what the
//! blocks were before is known to the log alone, so no checkpoint is made until they are written anew, or cut
//! off.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::commit::write_all;
use crate::format::change::Change;
use crate::format::extent::{Extent, Source};
use crate::format::place::{Geometry, Place};
use crate::format::usage::Stream;
use crate::log::{Pending, Run};
use crate::pending::{Overlay, Where};
use crate::slots::read_at;
use crate::state::{Lost, State};
use crate::volume::Inner;
use forebay_base::checksum::crc32c;
use forebay_base::codec::{Reader, Writer};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::BioFlags;
use std::collections::{BTreeMap, BTreeSet};

impl Inner {
    /// Writes the runs of these records, and of those that are queued, again, if something failed since they
    /// were written. What a device that works does not give back is left out; if nothing of it works, that is
    /// an error, and all of it is tried again.
    pub(crate) async fn rewrite_runs(&self, records: &mut [Pending]) -> Result<()> {
        let failures = self.log.failures();
        let stale = |record: &Pending| {
            let runs = record.runs.iter().filter(|run| run.failures < failures);
            runs.cloned().collect::<Vec<_>>()
        };
        let mut runs: Vec<Run> = records.iter().flat_map(stale).collect();
        runs.extend(self.state.lock().queue.iter().flat_map(stale));
        let (mut lost, mut written, mut failed) = (Vec::new(), BTreeSet::new(), None);
        for run in runs {
            let mut done = self.rewrite(&run).await;
            if done.is_err() {
                // One that fails once is no loss.
                done = self.rewrite(&run).await;
            }
            match done {
                Ok(true) => drop(written.insert((run.at.segment, run.at.offset))),
                Ok(false) => lost.push(run),
                Err(error) => {
                    lost.push(run);
                    failed = Some(error);
                }
            }
        }
        if let Some(error) = failed.filter(|_| written.is_empty())
            && !self.takes_writes().await
        {
            return Err(error);
        }
        if !lost.is_empty() {
            self.leave_out(&lost, records)?;
        }
        let mut state = self.state.lock();
        for run in records.iter_mut().chain(&mut state.queue).flat_map(|record| &mut record.runs) {
            if written.contains(&(run.at.segment, run.at.offset)) {
                run.failures = run.failures.max(failures);
            }
        }
        Ok(())
    }

    /// Whether the device takes a write at all: to a free segment, of which nothing is known until it is
    /// written anew.
    async fn takes_writes(&self) -> bool {
        let Ok(segment) = self.state.lock().space.segments.take(Stream::Log) else { return false };
        let at = self.layout.device_offset(Place::new(segment, 0));
        let zeros = vec![0; self.layout.align as usize];
        let done = write_all(&self.device, vec![(at, zeros)], BioFlags::SYNC).await;
        self.state.lock().space.segments.give_back(segment);
        done.is_ok()
    }

    /// False: what is there is not what was written.
    async fn rewrite(&self, run: &Run) -> Result<bool> {
        let offset = self.layout.device_offset(run.at);
        let bytes = read_at(&self.device, offset, run.len as usize).await?;
        let blocks = bytes.chunks(self.layout.block_bytes() as usize);
        if !run.sums.is_empty() && !blocks.map(crc32c).eq(run.sums.iter().copied()) {
            return Ok(false);
        }
        write_all(&self.device, vec![(offset, bytes.to_vec())], BioFlags::SYNC).await?;
        Ok(true)
    }

    /// Takes what is lost out of the records; its files cannot be synced any more.
    fn leave_out(&self, lost: &[Run], records: &mut [Pending]) -> Result<()> {
        let places: Vec<Place> = lost.iter().map(|run| run.at).collect();
        let mut state = self.state.lock();
        for run in lost {
            log::error!("content of #{} is lost: {} bytes at {:?}", run.ino, run.len, run.at);
            state.unpublished.insert((run.ino, Lost::Run));
            state.lost.push((run.at, run.len));
            if let Some(written) = state.owed_written.get_mut(&run.ino) {
                written.lost += 1;
            }
            if let Some(node) = state.nodes.get_mut(&run.ino) {
                node.regrow = true;
            }
        }
        // No size without its bytes: what is told of these files' sizes goes, too.
        let inodes: BTreeSet<u64> = lost.iter().map(|run| run.ino).collect();
        for record in records.iter_mut().chain(&mut state.queue) {
            without(record, &places, &inodes, &self.layout.geometry)?;
        }
        Ok(())
    }
}

impl State {
    /// `Io` if some of this content is lost (Q2).
    pub fn check_lost(&self, data: &BTreeMap<u64, Overlay>) -> Result<()> {
        let block_bytes = self.layout.block_bytes();
        match self.lost.iter().any(|lost| is_in(data.values(), *lost, block_bytes)) {
            true => {
                Err(Error::new(ErrorKind::Io, "checkpoint", "content that was accepted is lost"))
            }
            false => Ok(()),
        }
    }

    /// Why an inode cannot be synced, after a commit that worked: not for content that was written anew
    /// since, or cut off. A size that was taken out beside it is told again first.
    pub fn unpublished_of(&mut self, ino: u64) -> Option<Lost> {
        let block_bytes = self.layout.block_bytes();
        if self.unpublished.contains(&(ino, Lost::Run))
            && let Some(node) = self.nodes.get(&ino).filter(|node| !node.regrow)
        {
            let data_id = node.inode.data_id;
            let frozen = self.frozen.as_ref().filter(|frozen| !frozen.is_merged);
            let frozen = frozen.and_then(|frozen| frozen.data.get(&data_id));
            let mut overlays = self.data.get(&data_id).into_iter().chain(frozen);
            let is_there = |overlay: &Overlay| {
                self.lost.iter().any(|lost| is_in([overlay], *lost, block_bytes))
            };
            if !overlays.any(is_there) {
                self.unpublished.remove(&(ino, Lost::Run));
            }
        }
        let (first, last) = ((ino, Lost::Size), (ino, Lost::Data));
        self.unpublished.range(first..=last).next_back().map(|(_, lost)| *lost)
    }

    /// A checkpoint is durable: what is lost and was overruled before it is nobody's any more.
    pub fn forget_lost(&mut self) {
        let (data, block_bytes) = (&self.data, self.layout.block_bytes());
        self.lost.retain(|lost| is_in(data.values(), *lost, block_bytes));
    }
}

/// Whether some of this content is in these bytes.
fn is_in<'a>(
    overlays: impl IntoIterator<Item = &'a Overlay>,
    (lost, len): (Place, u64),
    block_bytes: u64,
) -> bool {
    let (start, end) = (u64::from(lost.offset), u64::from(lost.offset) + len);
    overlays.into_iter().flat_map(Overlay::pieces).any(|(_, piece)| match piece.at {
        Where::Run(at) if at.segment == lost.segment => {
            let from = u64::from(at.offset);
            from < end && start < from + piece.blocks * block_bytes
        }
        _ => false,
    })
}

/// Takes the changes that point at `places`, and the growth of `inodes`, out of a record.
fn without(
    record: &mut Pending,
    places: &[Place],
    inodes: &BTreeSet<u64>,
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
            Change::Grow(size) if inodes.contains(&size.ino) => {}
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
