//! What is recovered, held against the past that it may come from.
//!
//! No locks.

use crate::tests::crash::run::{Ended, Setup};
use crate::tests::crash::script::{Paths, Script, read_files, without_content};
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
    pub digest: u64,
    /// The step of the script that it is.
    pub step: usize,
    pub files: Paths,
}

/// What was found on a disk.
pub struct Found {
    pub tree: Tree,
    pub files: Paths,
    pub digest: u64,
}

/// Opens the volume on `disk` and reads all of it.
pub fn recover(setup: &Setup, disk: &SimDisk) -> Checked<Found> {
    let world: Arc<SimWorld> = disk.world().clone();
    let device: DeviceRef = Arc::new(disk.clone());
    let asked: WorldRef = world.clone();
    let found = world.run(async {
        let volume = Volume::open(&device, &asked, &setup.options(&asked)).await;
        let volume = volume.map_err(|e| format!("it does not open: {e}"))?;
        let digest = volume.digest().await.map_err(|e| format!("digest: {e}"))?;
        let files = match setup.content {
            true => read_files(&volume).await.map_err(|e| format!("content: {e}"))?,
            false => Paths::new(),
        };
        let tree = Tree::read(&volume, Times::Ignore).await?;
        Ok(Found { tree, files, digest })
    });
    world.stop();
    found
}

/// Opens the volume on `disk`.
fn digest(setup: &Setup, disk: &SimDisk) -> Checked<u64> {
    let world: Arc<SimWorld> = disk.world().clone();
    let device: DeviceRef = Arc::new(disk.clone());
    let asked: WorldRef = world.clone();
    let options = Setup { content: false, ..setup.clone() }.options(&asked);
    let digest = world.run(async {
        let volume = Volume::open(&device, &asked, &options).await?;
        volume.digest().await
    });
    world.stop();
    digest.map_err(|e| format!("it does not open again: {e}"))
}

/// Recovers twice, and finds the step that it is: not before what was acknowledged.
pub fn check(setup: &Setup, script: &Script, ended: &Ended, disk: &SimDisk) -> Checked<Recovered> {
    let found = recover(setup, disk)?;
    // What the first opening may have written lies in a volatile cache: the second one finds the same.
    let again = disk.power_cut(setup.seed).in_world(SimWorld::new(2));
    if digest(setup, &again)? != found.digest {
        return Err("recovered again, it is something else".into());
    }
    let names = without_content(&found.tree);
    let mut why = None;
    for step in (ended.acked..=ended.begun).rev() {
        if *script.moments[step].names() != names {
            continue;
        }
        match content(setup, script, ended, &found.files, step) {
            Ok(()) => return Ok(Recovered { digest: found.digest, step, files: found.files }),
            Err(what) => why = Some(format!("as step {step}: {what}")),
        }
    }
    if let Some(why) = why {
        return Err(why);
    }
    let earlier = (0..ended.acked).rev().find(|s| *script.moments[*s].names() == names);
    let last = script.moments[ended.begun].names().difference(&names);
    Err(format!(
        "it is no step from {} to {}; earlier: {earlier:?}; from the last: {last:?}",
        ended.acked, ended.begun
    ))
}

/// The content of every file, if the names are those of `step`.
fn content(
    setup: &Setup,
    script: &Script,
    ended: &Ended,
    files: &Paths,
    step: usize,
) -> Checked<()> {
    if !setup.content {
        return Ok(());
    }
    for (path, (_, found)) in files {
        let shown = path.escape_ascii();
        let Some((ino, _)) = script.moments[step].files().paths.get(path) else {
            return Err(format!("{shown} is no file there"));
        };
        let lowest = lowest(script, ended, *ino, step);
        let versions: Vec<&[u8]> = (lowest..=ended.begun)
            .filter_map(|n| script.moments[n].files().inodes.get(ino))
            .map(|content| &content[..])
            .collect();
        one_file(found, &versions, setup.block_bytes as usize)
            .map_err(|e| format!("{shown} (#{ino}, since step {lowest}): {e}"))?;
    }
    Ok(())
}

/// The oldest version that a file may have.
fn lowest(script: &Script, ended: &Ended, ino: u64, step: usize) -> usize {
    let syncs = ended.syncs.iter().filter(|(of, _)| of.is_none_or(|of| of == ino));
    let synced = syncs.map(|(_, steps)| *steps).max().unwrap_or(0);
    let any = ended.syncs.iter().map(|(_, steps)| *steps).max().unwrap_or(0);
    let closed = script.closed.iter().filter(|(of, at)| *of == ino && *at <= any);
    let closed = closed.map(|(_, at)| *at).max().unwrap_or(0);
    let replaced = script.replacing.iter().filter(|(of, by)| *of == ino && *by < step);
    let replaced = replaced.map(|(_, by)| *by).max().unwrap_or(0);
    synced.max(closed).max(replaced)
}

/// Each block is that of a version, and no size is without its bytes.
fn one_file(found: &[u8], versions: &[&[u8]], block: usize) -> Checked<()> {
    let sizes = versions.iter().map(|content| content.len());
    let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    if !(least..=most).contains(&found.len()) {
        return Err(format!("{} bytes, it had {least} to {most}", found.len()));
    }
    for start in (0..found.len()).step_by(block) {
        let end = (start + block).min(found.len());
        let bytes = &found[start..end];
        let zero = |bytes: &[u8]| bytes.iter().all(|b| *b == 0);
        let allowed = versions.iter().enumerate().any(|(n, content)| {
            if content.len() <= start {
                return false;
            }
            let upto = content.len().min(end);
            let same = content[start..upto] == bytes[..upto - start];
            // Behind its end: a later version has zeros there.
            let later = &versions[n..];
            let filled = upto == end || later.iter().any(|c| c.len() >= end && zero(&c[upto..end]));
            same && zero(&bytes[upto - start..]) && filled
        });
        if !allowed {
            let first = bytes.iter().take(8).collect::<Vec<_>>();
            let sizes: Vec<usize> = versions.iter().map(|v| v.len()).collect();
            return Err(format!(
                "block at {start} of {} is of no version: {first:?}.., sizes {sizes:?}",
                found.len()
            ));
        }
    }
    Ok(())
}
