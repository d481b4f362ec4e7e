//! After a failed write or flush: the data that records point at is had again before they are.
//!
//! A device may lose, after a failed flush, whatever it had completed since the last good one, although it reads
//! back until then. So every run is read back, held against its sums, and written again. What cannot be had is
//! left out of its record: the blocks stay what they were, and the file is marked.
//!
//! Invariant: Q1 no record that is laid out after a failure points at bytes that were not written since.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::commit::write_all;
use crate::log::{Pending, Run};
use crate::pending::Where;
use crate::slots::read_at;
use crate::volume::Inner;
use forebay_base::Result;
use forebay_base::checksum::crc32c;
use forebay_block::BioFlags;

impl Inner {
    /// Writes the runs of these records, and of those that are queued, again.
    pub(crate) async fn rewrite_runs(&self, records: &mut [Pending]) -> Result<()> {
        let mut runs: Vec<Run> = Vec::new();
        for record in records.iter() {
            runs.extend(record.runs.iter().cloned());
        }
        for record in &self.state.lock().queue {
            runs.extend(record.runs.iter().cloned());
        }
        for run in runs {
            self.rewrite(&run).await?;
        }
        Ok(())
    }

    async fn rewrite(&self, run: &Run) -> Result<()> {
        let Where::Run(place) = run.at else { return Ok(()) };
        let offset = self.layout.device_offset(place);
        let bytes = read_at(&self.device, offset, run.len as usize).await?;
        let blocks = bytes.chunks(self.layout.block_bytes() as usize);
        if !run.sums.is_empty() && !blocks.map(crc32c).eq(run.sums.iter().copied()) {
            let text = "content that was written is not there after a failed flush";
            return Err(forebay_base::Error::new(forebay_base::ErrorKind::Io, "repair", text)
                .with_range(offset, run.len));
        }
        write_all(&self.device, vec![(offset, bytes.to_vec())], BioFlags::SYNC).await
    }
}
