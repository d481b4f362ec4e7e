//! What a volume's superblock says, for who is not going to open it.
//!
//! No locks, no state.

use crate::device::slots;
use crate::format::place::SumAlgorithm;
use crate::format::superblock::{STATE_CLEAN, STATE_DAMAGED, Superblock};
use crate::volume::CreateOptions;
use forebay_base::Result;
use forebay_block::DeviceRef;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Name of the volume among all volumes.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Segments.
    pub segments: u32,
    /// Blocks of files have checksums.
    pub sums: bool,
    /// End of the volume on its device, bytes.
    pub end_bytes: u64,
    /// Number of the newest checkpoint.
    pub checkpoint: u64,
    /// Times that the volume was opened for writing, at least.
    pub generation: u64,
    /// Closed since it was written last.
    pub clean: bool,
    /// Corruption was found.
    pub damaged: bool,
    /// When it was made, nanoseconds since 1970.
    pub created_ns: i64,
}

impl From<&Superblock> for VolumeInfo {
    fn from(superblock: &Superblock) -> Self {
        let geometry = superblock.geometry;
        Self {
            uuid: superblock.uuid,
            block_bytes: geometry.block_bytes(),
            segment_bytes: geometry.segment_bytes(),
            segments: superblock.segment_count,
            sums: geometry.sum == SumAlgorithm::Crc32c,
            end_bytes: superblock.recorded_end_bytes,
            checkpoint: superblock.checkpoint,
            generation: superblock.generation,
            clean: superblock.state & STATE_CLEAN != 0,
            damaged: superblock.state & STATE_DAMAGED != 0,
            created_ns: superblock.created_ns,
        }
    }
}

/// What the newest superblock slot of a device says; `Corrupt` if none is valid.
pub async fn probe(device: &DeviceRef) -> Result<VolumeInfo> {
    slots::read_newest(device).await.map(|(superblock, _)| VolumeInfo::from(&superblock))
}

impl crate::Volume {
    /// What was found wrong in the log when it was opened, so that what lies behind that place is
    /// not there; or what was lost since, so that the volume turned read-only ([`Self::stopped`]).
    pub fn damage(&self) -> Option<forebay_base::Error> {
        self.0.damage.clone().or_else(|| self.stopped())
    }
}

impl CreateOptions {
    /// Whether a volume of `size` bytes can be made so: `InvalidInput`.
    pub fn check(&self, size: u64) -> Result<()> {
        crate::volume::new_superblock(size, self).map(drop)
    }
}
