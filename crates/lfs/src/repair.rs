//! After a failed write or flush: the data that records point at is had again before they are.
//!
//! A device may lose, after a failed flush, whatever it had completed since the last good one, although it
//! reads back until then. So every run is read back, held against its sums, and written again. What cannot
//! be had is left out of its record: the blocks stay what they were, and the file is marked.
//!
//! Invariant: Q1 no record that is laid out after a failure points at bytes that were not written since.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::commit::write_all;
use crate::format::change::Change;
use crate::format::extent::{Extent, Source};
use crate::format::place::{Geometry, Place};
use crate::log::{Pending, Run};
use crate::slots::read_at;
use crate::state::Lost;
use crate::volume::Inner;
use forebay_base::Result;
use forebay_base::checksum::crc32c;
use forebay_base::codec::{Reader, Writer};
use forebay_block::BioFlags;
use std::collections::BTreeSet;

impl Inner {
    /// Writes the runs of these records, and of those that are queued, again. What a device that works does
    /// not give back is left out; if it does not work, that is an error, and all of it is tried again.
    pub(crate) async fn rewrite_runs(&self, records: &mut [Pending]) -> Result<()> {
        let mut runs: Vec<Run> = Vec::new();
        for record in records.iter() {
            runs.extend(record.runs.iter().cloned());
        }
        for record in &self.state.lock().queue {
            runs.extend(record.runs.iter().cloned());
        }
        let mut lost = Vec::new();
        for run in runs {
            if !self.rewrite(&run).await? {
                lost.push(run);
            }
        }
        if !lost.is_empty() {
            self.leave_out(&lost, records)?;
        }
        Ok(())
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
            state.unpublished.insert((run.ino, Lost::Data));
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
