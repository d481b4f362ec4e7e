//! Faults that tests plant, to see that the suite finds them. In the shipped program there are none.
//!
//! No locks.

/// A mistake to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A commit returns when its group is written, before the flush.
    AckBeforeFlush,
    /// Roll-forward takes a record whose checksum is wrong.
    TornRecord,
    /// A run's record is appended while its data is on its way.
    PublishedEarly,
    /// Roll-forward follows what an older generation left behind instead of the younger one.
    StaleTail,
    /// A slot tells of what recovery has read before that is flushed.
    UnflushedRecovery,
    /// A size is published before the bytes below it.
    SizeBeforeData,
    /// A flush that failed counts as done.
    SwallowedFlushError,
    /// A rename does not write out what it puts in another file's place.
    RenameBeforeData,
    /// Out-of-line data above the durable part of the log is not looked at.
    UnverifiedData,
    /// A new group goes out with FUA while an earlier one is not flushed.
    EarlyFua,
}

/// What is planted in a volume.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plant(#[cfg(test)] pub Option<Planted>);

impl Plant {
    /// Whether to make this mistake.
    #[inline]
    pub fn has(self, fault: Planted) -> bool {
        #[cfg(test)]
        return self.0 == Some(fault);
        #[cfg(not(test))]
        {
            let _ = fault;
            false
        }
    }
}
