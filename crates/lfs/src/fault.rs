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
    /// The cleaner moves what was overwritten while it copied, too.
    CleanerMovesLive,
    /// The sequence of content is drawn when its room is reserved, and not when it is fixed.
    SequenceAtReserve,
    /// What is published last counts, whenever its content was fixed.
    PublishedOutOfOrder,
    /// A segment is free when a checkpoint finds nothing in it, before that is durable; it is taken next.
    SegmentReusedEarly,
    /// A block of what is written out is taken for clean, and left out of the record.
    LostDirtyBit,
    /// A checkpoint holds the new name of a rename, and the next one that the old one is gone.
    HalfRename,
    /// A segment is discarded when it is in use again.
    DiscardAfterReuse,
    /// Roll-forward takes what is sealed without the volume's secret, too, as whoever writes a file can.
    ForgedRecord,
    /// What a checkpoint replaces stays in what the inode says is stored.
    StoredBytesDrift,
    /// A sync that begins while another client's flush is in progress waits for that flush alone.
    JoinedCommit,
    /// Two concurrent appends may get the same range.
    AppendRangeTwice,
    /// A writer publishes the size up to its own end: bytes of another one below it are missing.
    SizeOfOneWriter,
    /// A dropped task takes the records of its group with it, and later groups count as complete.
    ForgottenGroup,
    /// A dropped zeroing of a raw image releases its range while its request is in flight.
    RangeReleasedEarly,
    /// A write with `DSYNC` returns before its record is committed.
    DsyncWithoutCommit,
    /// A read does not hold blocks against their checksums.
    SkippedSum,
    /// A write of content that the host refuses for want of space counts as done.
    NoSpaceSwallowed,
    /// A write of content that fails counts as done.
    SwallowedWriteError,
    /// Recovery goes on in the segment where the log ended.
    TailReused,
    /// Content that has gone out in a record stays in memory.
    StagedKept,
    /// A commit that failed is tried again until it works.
    RetriesForever,
    /// On a volume without checksums a record is written before the flush that covers its data.
    RecordBeforeData,
    /// An opening with no record behind the checkpoint, as after a recovery that was cut, takes the
    /// count of inodes for the last of their numbers.
    InodesCountedAnew,
    /// A record keeps only the low bits of the number of a block.
    BlockNumberShort,
    /// An opening takes a volume with segments that no usage table counts, as there are until the
    /// first checkpoint behind a growth, for one that was closed: it does not read the log.
    GrownTakenForClosed,
    /// Nodes that a checkpoint replaces are free as soon as it is durable, although the checkpoint
    /// before it has them.
    NodesReusedEarly,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 36] = [
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
        Self::CleanerMovesLive,
        Self::SequenceAtReserve,
        Self::PublishedOutOfOrder,
        Self::SegmentReusedEarly,
        Self::LostDirtyBit,
        Self::HalfRename,
        Self::DiscardAfterReuse,
        Self::ForgedRecord,
        Self::StoredBytesDrift,
        Self::JoinedCommit,
        Self::AppendRangeTwice,
        Self::SizeOfOneWriter,
        Self::ForgottenGroup,
        Self::RangeReleasedEarly,
        Self::DsyncWithoutCommit,
        Self::SkippedSum,
        Self::NoSpaceSwallowed,
        Self::SwallowedWriteError,
        Self::TailReused,
        Self::StagedKept,
        Self::RetriesForever,
        Self::RecordBeforeData,
        Self::InodesCountedAnew,
        Self::BlockNumberShort,
        Self::GrownTakenForClosed,
        Self::NodesReusedEarly,
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
            Self::CleanerMovesLive => "cleaner-moves-live",
            Self::SequenceAtReserve => "sequence-at-reserve",
            Self::PublishedOutOfOrder => "published-out-of-order",
            Self::SegmentReusedEarly => "segment-reused-early",
            Self::LostDirtyBit => "lost-dirty-bit",
            Self::HalfRename => "half-rename",
            Self::DiscardAfterReuse => "discard-after-reuse",
            Self::ForgedRecord => "forged-record",
            Self::StoredBytesDrift => "stored-bytes-drift",
            Self::JoinedCommit => "joined-commit",
            Self::AppendRangeTwice => "append-range-twice",
            Self::SizeOfOneWriter => "size-of-one-writer",
            Self::ForgottenGroup => "forgotten-group",
            Self::RangeReleasedEarly => "range-released-early",
            Self::DsyncWithoutCommit => "dsync-without-commit",
            Self::SkippedSum => "skipped-sum",
            Self::NoSpaceSwallowed => "no-space-swallowed",
            Self::SwallowedWriteError => "swallowed-write-error",
            Self::TailReused => "tail-reused",
            Self::StagedKept => "staged-kept",
            Self::RetriesForever => "retries-forever",
            Self::RecordBeforeData => "record-before-data",
            Self::InodesCountedAnew => "inodes-counted-anew",
            Self::BlockNumberShort => "block-number-short",
            Self::GrownTakenForClosed => "grown-taken-for-closed",
            Self::NodesReusedEarly => "nodes-reused-early",
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

/// What a seal is without the secret of the volume.
pub const NO_SECRET: [u8; 16] = [0; 16];
