//! The disks from which workloads start.
//!
//! No locks.

use super::crowding;
use super::furniture::furniture;
use super::ground::Ground;
use super::setup::Setup;
use forebay_base::Error;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_lfs::{OpenOptions, Volume};
use forebay_sim::{CrashState, Fate, SimDisk};
use forebay_testkit::fs_check::{Op, Runner, Times};
use forebay_testkit::mem_fs::MemFs;
use std::sync::Arc;

/// The disk from which a workload starts.
pub struct Base {
    /// The disk.
    pub disk: CrashState,
    /// The content of the volume on it.
    pub fs: MemFs,
    /// What workloads of several clients know of it.
    pub(crate) ground: Ground,
}

impl Base {
    /// An empty volume.
    ///
    /// # Errors
    /// Those of creating the volume.
    pub fn empty(setup: &Setup) -> Result<Self, Error> {
        let disk = all_kept(&setup.blank()?);
        Ok(Self { disk, fs: MemFs::default(), ground: Ground::default() })
    }

    /// A few files and directories, everything durable.
    ///
    /// # Errors
    /// What the volume says.
    pub fn furnished(setup: &Setup) -> Result<Self, Error> {
        Self::made(setup, furniture())
    }

    /// Files with content all over the volume, and a block or two live in each segment.
    ///
    /// # Errors
    /// What the volume says.
    pub fn crowded(setup: &Setup) -> Result<Self, Error> {
        Self::made(setup, crowding::before())
    }

    fn made(setup: &Setup, ops: Vec<Op>) -> Result<Self, Error> {
        let disk = setup.blank()?;
        let (fs, world) = (MemFs::default(), disk.world().clone());
        let device: DeviceRef = Arc::new(disk.clone());
        let asked: WorldRef = world.clone();
        let options = OpenOptions { clean_percent: 0, ..setup.options(&asked)? };
        let made = world.run(async {
            let volume = Volume::open(&device, &asked, &options).await?;
            let mut here = Runner::new(Times::Ignore, None);
            let mut there = Runner::new(Times::Ignore, None);
            for op in ops {
                let (done, wanted) = (here.apply(&volume, &op).await, there.apply(&fs, &op).await);
                debug_assert_eq!(done, wanted, "{op:?}");
            }
            here.close_all();
            there.close_all();
            volume.close().await
        });
        world.stop();
        made.map(|()| Self { disk: all_kept(&disk), fs, ground: Ground::default() })
    }
}

/// The state of a disk that keeps all pending writes.
pub fn all_kept(disk: &SimDisk) -> CrashState {
    let cut = disk.cut_now();
    cut.state(&vec![Fate::Whole; cut.pending()])
}
