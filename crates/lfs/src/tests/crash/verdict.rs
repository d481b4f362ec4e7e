//! What is recovered, held against the past that it may come from.
//!
//! No locks.

use crate::tests::crash::run::{Ended, Setup};
use crate::tests::crash::script::{Script, without_content};
use crate::volume::Volume;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_sim::SimDisk;
use forebay_vfs::check::{Times, Tree};
use std::sync::Arc;

/// A sentence that says what is wrong.
pub type Checked<T> = Result<T, String>;

/// A recovered volume, looked at.
pub struct Recovered {
    pub tree: Tree,
    pub digest: u64,
    /// The step of the script that it is.
    pub step: usize,
}

/// Opens the volume on `disk` and reads all of it.
pub fn recover(setup: &Setup, disk: &SimDisk) -> Checked<(Tree, u64)> {
    let world: Arc<SimWorld> = disk.world().clone();
    let device: DeviceRef = Arc::new(disk.clone());
    let asked: WorldRef = world.clone();
    let found = world.run(async {
        let volume = Volume::open(&device, &asked, &setup.options()).await;
        let volume = volume.map_err(|e| format!("it does not open: {e}"))?;
        let digest = volume.digest();
        let tree = Tree::read(&volume, Times::Ignore).await?;
        Ok((tree, digest))
    });
    world.stop();
    found
}

/// Recovers twice, and finds the step that it is: not before what was acknowledged.
pub fn check(setup: &Setup, script: &Script, ended: &Ended, disk: &SimDisk) -> Checked<Recovered> {
    let (tree, digest) = recover(setup, disk)?;
    // What the first opening may have written lies in a volatile cache: the second one finds the same.
    let again = disk.power_cut(setup.seed).in_world(SimWorld::new(2));
    let (_, second) = recover(setup, &again)?;
    if second != digest {
        return Err("recovered again, it is something else".into());
    }
    let names = without_content(&tree);
    let found = (ended.acked..=ended.begun).rev().find(|step| *script.moments[*step].names() == names);
    match found {
        Some(step) => Ok(Recovered { tree, digest, step }),
        None => {
            let earlier = (0..ended.acked).rev().find(|s| *script.moments[*s].names() == names);
            let last = script.moments[ended.begun].names().difference(&names);
            Err(format!(
                "it is no step from {} to {}; earlier: {earlier:?}; from the last: {last:?}",
                ended.acked, ended.begun
            ))
        }
    }
}
