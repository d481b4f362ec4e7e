//! A check and a growth of a volume, and injected faults that repeat their work: the bounds of
//! [`super::meter`] find that.
//!
//! No locks.

use super::setup::Setup;
use forebay_base::Result;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_lfs::fault::Planted;
use forebay_lfs::{FsckReport, VolumeInfo, fsck, grow};

/// How often the injected fault has a volume checked.
const CHECKS: usize = 40;

impl Setup {
    /// Checks a volume as by `fsck`.
    ///
    /// # Errors
    /// Those of `fsck`.
    pub async fn fsck(&self, device: &DeviceRef, world: &WorldRef) -> Result<FsckReport> {
        let times = if self.plant == Some(Planted::FsckRepeats) { CHECKS } else { 1 };
        for _ in 1..times {
            fsck(device, world, &mut |_| ()).await?;
        }
        fsck(device, world, &mut |_| ()).await
    }

    /// Makes a volume of this setup larger.
    ///
    /// # Errors
    /// Those of `grow`.
    pub async fn grow(&self, device: &DeviceRef, bytes: u64) -> Result<(VolumeInfo, VolumeInfo)> {
        if self.plant == Some(Planted::GrownBySegments) {
            let mut to = self.volume_bytes + self.segment_bytes();
            while to < bytes {
                grow(device, Some(to)).await?;
                to += self.segment_bytes();
            }
        }
        grow(device, Some(bytes)).await
    }
}
