//! The interface of write-back to the layer above, which knows files and devices: passes of
//! write-out, flushes, and whether all of a file is durable. Plain data and one trait; no locks.

use forebay_base::task::FutureSlot;
use forebay_base::world::Nanos;
use std::ops::Range;

/// Which dirty folios a pass takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// Folios with dirty blocks of uncached writes.
    Uncached,
    /// Those dirty since before this time.
    Before(Nanos),
}

/// One pass of write-out.
#[derive(Debug, Clone)]
pub struct WriteOutPass {
    /// Bytes of the file.
    pub range: Range<u64>,
    /// Which folios.
    pub which: Which,
    /// Stop after about this many bytes.
    pub max_bytes: u64,
    /// A sync: blocks dirty *and* in write-out are waited for and written again; otherwise they
    /// are left for the next pass.
    pub sync: bool,
}

impl WriteOutPass {
    /// All dirty blocks of a range, for a sync.
    pub fn for_sync(range: Range<u64>) -> Self {
        Self { range, which: Which::All, max_bytes: u64::MAX, sync: true }
    }
}

/// Writes dirty folios out. Implemented by the layer above.
pub trait WriteOut: Send + Sync {
    /// Stores in `slot` the future that issues the pass and returns the bytes issued. It does not
    /// wait for completion.
    fn write_out(self: std::sync::Arc<Self>, pass: WriteOutPass, slot: &mut FutureSlot<u64>);

    /// Stores in `slot` the future that flushes the device, so that written blocks need not be kept
    /// any longer.
    fn flush(self: std::sync::Arc<Self>, slot: &mut FutureSlot<()>);

    /// Whether all that was accepted is durable, or given up: nothing is dirty, in write-out,
    /// unflushed or failed.
    fn is_settled(&self) -> bool;
}
