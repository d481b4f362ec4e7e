//! Opening a volume reads segment headers and inner nodes together, not one after another.
//!
//! No locks.

use crate::tests::reuse::{self, create, setup};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::Result;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_block::{Bio, BioOp, BlockDevice, Completion, DeviceRef};
use forebay_sim::SimDisk;
use forebay_vfs::FileSystem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device that records how many reads were in progress at the same time.
struct Depth {
    lower: SimDisk,
    now: Arc<AtomicUsize>,
    most: AtomicUsize,
}

impl BlockDevice for Depth {
    forebay_block::delegate_block_device!([lower] name limits size extents);

    fn submit(&self, mut bio: Bio) {
        if bio.op == BioOp::Read {
            let now = self.now.clone();
            self.most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            bio.replace_end(|end| {
                Box::new(move |done: Completion| {
                    now.fetch_sub(1, Ordering::SeqCst);
                    end(done);
                })
            });
        }
        self.lower.submit(bio);
    }
}

fn fixture() -> Setup {
    Setup { volume_bytes: 16 << 20, ..setup(0) }
}

/// A disk with a volume of so many files, closed or after a power loss.
fn made(files: usize, is_closed: bool) -> SimDisk {
    let disk = fixture().blank();
    disk.world().run(async {
        let volume = reuse::open(&fixture(), &disk).await.unwrap();
        for n in 0..files {
            create(&volume, &format!("{n:0240}")).await.unwrap();
        }
        volume.syncfs().await.unwrap();
        if is_closed {
            volume.close().await.unwrap();
        }
    });
    disk.world().stop();
    disk.power_cut(1).in_world(SimWorld::new(2))
}

/// Opens the volume. Returns the most reads that were in progress at the same time.
fn depth_of_open(disk: &SimDisk) -> usize {
    let device = Depth { lower: disk.clone(), now: Arc::default(), most: AtomicUsize::new(0) };
    let device = Arc::new(device);
    let (lower, world): (DeviceRef, WorldRef) = (device.clone(), disk.world().clone());
    let opened: Result<()> = disk.world().run(async {
        let options = OpenOptions { read_only: true, ..fixture().options(&world) };
        Volume::open(&lower, &world, &options).await.map(drop)
    });
    opened.unwrap();
    disk.world().stop();
    device.most.load(Ordering::SeqCst)
}

/// rollforward.R30: after a crash all segments may belong to the log, 256 here.
#[test]
fn r30_segment_headers_are_read_together() {
    let depth = depth_of_open(&made(3, false));
    assert!(depth >= 32, "{depth} reads at the same time");
}

/// walk.B103: a closed volume has no log to read, and its tree has two levels of inner nodes.
#[test]
fn b103_inner_nodes_are_read_together() {
    let depth = depth_of_open(&made(4000, true));
    assert!((4..=16).contains(&depth), "{depth} reads at the same time");
}
