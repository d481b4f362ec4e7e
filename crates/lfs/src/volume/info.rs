//! The content of a volume's superblock, for programs that do not open the volume.
//!
//! No locks, no state.

use crate::device::slots;
use crate::format::place::SumAlgorithm;
use crate::format::superblock::{STATE_CLEAN, STATE_DAMAGED, Superblock};
use crate::volume::CreateOptions;
use forebay_base::Result;
use forebay_block::DeviceRef;

/// The properties of a volume, as the newest slot of its superblock has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Identifies the volume among all volumes.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// The number of segments.
    pub segments: u32,
    /// Blocks of files have checksums.
    pub sums: bool,
    /// End of the volume on its device, bytes.
    pub end_bytes: u64,
    /// Number of the newest checkpoint.
    pub checkpoint: u64,
    /// The generation of the volume. Each opening for writing raises it.
    pub generation: u64,
    /// The volume was closed after its last change.
    pub clean: bool,
    /// Corruption was found in the volume.
    pub damaged: bool,
    /// The time of creation, in nanoseconds since 1970.
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

/// Reads the newest superblock slot of a device. `Corrupt` if no slot is valid.
pub async fn probe(device: &DeviceRef) -> Result<VolumeInfo> {
    slots::read_newest(device).await.map(|(superblock, _)| VolumeInfo::from(&superblock))
}

impl crate::Volume {
    /// The damage of the log that the opening found; the changes after it are missing. Or the loss
    /// since the opening, after which the volume turned read-only ([`Self::stopped`]).
    pub fn damage(&self) -> Option<forebay_base::Error> {
        self.0.damage.clone().or_else(|| self.stopped())
    }
}

impl CreateOptions {
    /// Whether a volume of `size` bytes can be created with these options; else `InvalidInput`.
    pub fn check(&self, size: u64) -> Result<()> {
        crate::volume::new_superblock(size, self).map(drop)
    }
}
