//! The end of some runs on a disk that failed and works again: each name can be removed, and the
//! space comes back.
//!
//! Invariant: emptied.H1 then the volume has as much available space as one on a healthy disk in
//! which one name was made and removed, less one in a thousand of its segments, at least one.
//!
//! No locks.

use crate::workload::Setup;
use forebay_base::Error;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_lfs::Volume;
use forebay_vfs::types::FileKind;
use forebay_vfs::{Cookie, FileSystem, Ino, Name, NewInode, XattrName};
use std::sync::Arc;

/// One in this many runs on a failing disk ends so.
const SHARE: u64 = 3;

/// Segments that a checkpoint frees become available with the next one but one.
const CHECKPOINTS: usize = 3;

/// Whether a run ends so. A disk that decays may lose what is needed to remove names.
pub(super) fn is_due(setup: &Setup, volume: &Volume) -> bool {
    let is_small = setup.grown_bytes.is_none();
    setup.seed.is_multiple_of(SHARE) && is_small && !setup.rot && volume.stopped().is_none()
}

/// Removes every name, and the attributes of the root, and syncs.
pub(super) async fn empty(volume: &Volume) -> Result<(), Error> {
    let (mut dirs, mut next) = (Vec::new(), vec![Ino::ROOT]);
    while let Some(dir) = next.pop() {
        for entry in volume.readdir(dir, Cookie::START, usize::MAX).await? {
            match entry.kind {
                FileKind::Directory => {
                    next.push(entry.ino);
                    dirs.push((dir, entry));
                }
                _ => volume.unlink(dir, Name::new(&entry.name)?).await?,
            }
        }
    }
    while let Some((dir, entry)) = dirs.pop() {
        volume.rmdir(dir, Name::new(&entry.name)?).await?;
    }
    for name in volume.listxattr(Ino::ROOT).await? {
        volume.removexattr(Ino::ROOT, XattrName::new(&name)?).await?;
    }
    volume.syncfs().await?;
    for _ in 0..CHECKPOINTS {
        volume.checkpoint().await?;
    }
    Ok(())
}

/// Compares the space of an emptied volume with that of one on a healthy disk (H1).
pub(super) fn check(setup: &Setup, left: u64) -> Result<(), String> {
    let disk = setup.blank().map_err(|error| error.to_string())?;
    let world = disk.world().clone();
    let device: DeviceRef = Arc::new(disk.clone());
    let new = world.run(async {
        let asked: WorldRef = world.clone();
        let volume = Volume::open(&device, &asked, &setup.options(&asked)?).await?;
        let (name, new) = (Name::new(b"name")?, NewInode::of(FileKind::Directory, 0o755));
        volume.mkdir(Ino::ROOT, name, &new).await?;
        volume.syncfs().await?;
        volume.checkpoint().await?;
        empty(&volume).await?;
        volume.statfs().await.map(|stat| stat.blocks_available)
    });
    world.stop();
    let new = new.map_err(|error| error.to_string())?;
    let segments = setup.volume_bytes / setup.segment_bytes();
    let slack = segments.div_ceil(1000) * setup.segment_bytes() / u64::from(setup.block_bytes);
    match left + slack >= new {
        true => Ok(()),
        false => Err(format!(
            "emptied after the disk became healthy, {left} blocks are available, {new} are on a \
             healthy disk"
        )),
    }
}
