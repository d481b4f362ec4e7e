//! Faults that tests inject, to check that the test suite finds them. No other code sets any.
//! Outside of this crate's tests and without the feature `faults` a volume has none, and the
//! compiler removes the code of each.
//!
//! No locks.

/// A fault that a test injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A commit returns when its group is written, before the flush.
    AckBeforeFlush,
    /// Roll-forward accepts a record whose checksum is wrong.
    TornRecord,
    /// The record of a run is appended while its data is still being written.
    PublishedEarly,
    /// Roll-forward follows old records of an earlier generation instead of those of the younger
    /// one.
    StaleTail,
    /// A slot with the state that recovery has read is written before that state is flushed.
    UnflushedRecovery,
    /// A size is published before the bytes that it covers.
    SizeBeforeData,
    /// A failed flush counts as done.
    SwallowedFlushError,
    /// A rename does not write out the file that replaces another one.
    RenameBeforeData,
    /// Recovery does not verify the data runs of records after the durable part of the log.
    UnverifiedData,
    /// A new group is written with FUA while an earlier one is not flushed.
    EarlyFua,
    /// The cleaner also moves blocks that were overwritten while it copied them.
    CleanerMovesLive,
    /// The sequence number of content is drawn when its space is reserved, not when its bytes are
    /// fixed.
    SequenceAtReserve,
    /// The content that is published last wins, whenever its bytes were fixed.
    PublishedOutOfOrder,
    /// A segment is free as soon as a checkpoint finds it empty, before that checkpoint is durable.
    /// It is taken next.
    SegmentReusedEarly,
    /// One dirty block of a write-out is taken for clean, and is left out of the record.
    LostDirtyBit,
    /// One checkpoint contains the new name of a rename, and only the next one removes the old
    /// name.
    HalfRename,
    /// A segment is discarded when it is in use again.
    DiscardAfterReuse,
    /// Roll-forward also accepts records that are sealed without the secret of the volume. Any
    /// writer of a file can make such records.
    ForgedRecord,
    /// Replaced bytes are not subtracted from the stored bytes of an inode by a checkpoint.
    StoredBytesDrift,
    /// A sync that begins during the flush of another client waits only for that flush.
    JoinedCommit,
    /// Two concurrent appends may get the same range.
    AppendRangeTwice,
    /// A writer publishes the size up to the end of its own write, although bytes of another writer
    /// before it are missing.
    SizeOfOneWriter,
    /// When a task is dropped, the records of its group are lost, and later groups count as
    /// complete.
    ForgottenGroup,
    /// When a zeroing of a raw image is dropped, it releases its range while its request is in
    /// flight.
    RangeReleasedEarly,
    /// A write with `DSYNC` returns before its record is committed.
    DsyncWithoutCommit,
    /// A read does not compare blocks with their checksums.
    SkippedSum,
    /// A write of content that the host refuses for lack of space counts as done.
    NoSpaceSwallowed,
    /// A failed write of content counts as done.
    SwallowedWriteError,
    /// Recovery continues the log in the segment where it ended.
    TailReused,
    /// Content that was written in a log record stays in memory.
    StagedKept,
    /// A failed commit is tried again until it succeeds.
    RetriesForever,
    /// On a volume without checksums a record is written before the flush that covers its data.
    RecordBeforeData,
    /// An opening that finds no record after the checkpoint, as after an interrupted recovery,
    /// takes the number of inodes for the last inode number.
    InodesCountedAnew,
    /// A record keeps only the low bits of a block number.
    BlockNumberShort,
    /// After a growth, and until the first checkpoint, a volume has segments that are in no usage
    /// table. An opening takes such a volume for a closed one, and does not read the log.
    GrownTakenForClosed,
    /// Nodes that a checkpoint replaces are free as soon as it is durable, although the checkpoint
    /// before it refers to them.
    NodesReusedEarly,
    /// After each record of the log recovery reads all segment headers again, once for each record
    /// before it.
    RecoveryQuadratic,
    /// A close makes checkpoints and does not end.
    CloseRepeats,
    /// A checkpoint is made again and again, 300 times.
    CheckpointRepeats,
    /// A digest reads all names again and again, and does not end.
    DigestRepeats,
    /// A check with fsck is carried out 40 times. The crash test injects this one itself.
    FsckRepeats,
    /// A volume is grown segment by segment. The crash test injects this one itself.
    GrownBySegments,
    /// 32 copies of each write of content stay in memory.
    WritesKept,
    /// A checkpoint forgets which content the device has lost: reads of it show older content.
    LostForgotten,
    /// When a reservation ends, the log space that its records did not take stays granted.
    GrantKept,
    /// The nodes of a failed checkpoint are free for the next one, although a slot may name them.
    NamedNodesFreed,
    /// The flush that began last counts as covering a write that completed after its begin.
    EarlierFlush,
    /// The slots of a checkpoint are written before the flush that covers its nodes.
    SlotBeforeNodes,
}

impl Planted {
    /// All faults.
    pub const ALL: [Self; 48] = [
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
        Self::RecoveryQuadratic,
        Self::CloseRepeats,
        Self::CheckpointRepeats,
        Self::DigestRepeats,
        Self::FsckRepeats,
        Self::GrownBySegments,
        Self::WritesKept,
        Self::LostForgotten,
        Self::GrantKept,
        Self::NamedNodesFreed,
        Self::EarlierFlush,
        Self::SlotBeforeNodes,
    ];

    /// The name of the fault, for command lines.
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
            Self::RecoveryQuadratic => "recovery-quadratic",
            Self::CloseRepeats => "close-repeats",
            Self::CheckpointRepeats => "checkpoint-repeats",
            Self::DigestRepeats => "digest-repeats",
            Self::FsckRepeats => "fsck-repeats",
            Self::GrownBySegments => "grown-by-segments",
            Self::WritesKept => "writes-kept",
            Self::LostForgotten => "lost-forgotten",
            Self::GrantKept => "grant-kept",
            Self::NamedNodesFreed => "named-nodes-freed",
            Self::EarlierFlush => "earlier-flush",
            Self::SlotBeforeNodes => "slot-before-nodes",
        }
    }

    /// The fault with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// The fault that is injected into a volume, if any.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plant(#[cfg(any(test, feature = "faults"))] pub Option<Planted>);

impl Plant {
    /// Whether this fault is injected.
    #[cfg(any(test, feature = "faults"))]
    #[inline]
    pub fn has(self, fault: Planted) -> bool {
        self.0 == Some(fault)
    }

    /// Whether this fault is injected: none is in this build.
    #[cfg(not(any(test, feature = "faults")))]
    #[inline]
    pub fn has(self, _fault: Planted) -> bool {
        false
    }
}

/// The seal key of records that are made without the secret of the volume.
pub const NO_SECRET: [u8; 16] = [0; 16];
