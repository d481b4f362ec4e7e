//! Faults that tests plant, to see that the suite finds them. Nobody else asks for any.
//!
//! No locks.

/// A mistake to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
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

impl Planted {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::AckBeforeFlush,
        Self::TornRecord,
        Self::PublishedEarly,
        Self::StaleTail,
        Self::UnflushedRecovery,
        Self::SizeBeforeData,
        Self::SwallowedFlushError,
        Self::RenameBeforeData,
        Self::UnverifiedData,
        Self::EarlyFua,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AckBeforeFlush => "ack-before-flush",
            Self::TornRecord => "torn-record",
            Self::PublishedEarly => "published-early",
            Self::StaleTail => "stale-tail",
            Self::UnflushedRecovery => "unflushed-recovery",
            Self::SizeBeforeData => "size-before-data",
            Self::SwallowedFlushError => "swallowed-flush-error",
            Self::RenameBeforeData => "rename-before-data",
            Self::UnverifiedData => "unverified-data",
            Self::EarlyFua => "early-fua",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// What is planted in a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plant(pub Option<Planted>);

impl Plant {
    /// Whether to make this mistake.
    #[inline]
    pub fn has(self, fault: Planted) -> bool {
        self.0 == Some(fault)
    }
}
