//! Compares a recovered volume with the history that it may come from.
//!
//! No locks.

mod read_tree;

use self::read_tree::ReadTree;
use crate::run::{Decayed, Progress, Ran, Stable, Synced};
use crate::workload::{
    Bounds, Meter, Operation, Paths, Script, Setup, Unreadable, read_all, without_content,
};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{WorldRef, split_mix};
use forebay_block::DeviceRef;
use forebay_lfs::{FindingKind, FsckReport, Volume};
use forebay_sim::{CrashState, Reads, SimDisk};
use forebay_testkit::fs_check::{Times, Tree};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// A result whose error is a sentence that describes a violation.
pub type Checked<T> = Result<T, String>;

/// The content of a recovered volume.
pub struct Found {
    /// Names and attributes.
    pub names: Tree,
    /// Content.
    pub files: Paths,
    /// Blocks that cannot be read.
    pub unreadable: Unreadable,
    /// Of the volume.
    pub digest: u64,
}

impl Found {
    /// A digest of the volume's digest, of all content, and of unreadable blocks.
    pub fn key(&self) -> u64 {
        let mut key = self.digest;
        for (path, (_, content)) in &self.files {
            key ^= u64::from(forebay_base::checksum::crc32c(path)) << 32;
            key ^= u64::from(forebay_base::checksum::crc32c(content));
            key = split_mix(&mut key);
        }
        for (ino, blocks) in &self.unreadable {
            key ^= ino << 32 | blocks.len() as u64;
            key = split_mix(&mut key);
        }
        key
    }
}

/// The history from which a crash state may come.
#[derive(Clone, Copy)]
pub struct Past<'a> {
    /// What was done.
    pub script: &'a Script,
    /// How far it was.
    pub progress: Progress,
    /// Syncs that were acknowledged until then.
    pub syncs: &'a [Synced],
    /// Writes that were durable then.
    pub stable: &'a [Stable],
    /// Blocks that had decayed then.
    pub decayed: &'a [Decayed],
    /// Blocks that had decayed in the lives before.
    pub decayed_before: &'a [Decayed],
}

impl<'a> Past<'a> {
    /// The history of a run, at a moment. A script that a run on a failing disk has recorded
    /// replaces the given one.
    pub fn new(script: &'a Script, ran: &'a Ran, progress: Progress) -> Self {
        let script = ran.script.as_ref().unwrap_or(script);
        let (syncs, stable) = (&ran.syncs[..progress.syncs], &ran.stable[..progress.stable]);
        let decayed = &ran.decayed[..progress.rotten];
        Self { script, progress, syncs, stable, decayed, decayed_before: &[] }
    }
}

/// Recoveries of one workload that are known (read_tree.N1), by whether the setup writes records
/// with FUA.
#[derive(Default)]
pub struct Recoveries {
    whole: [ReadTree<Rc<Found>>; 2],
    /// Results of the second opening.
    again: [ReadTree<u64>; 2],
    fsck: ReadTree<()>,
}

/// One in this many states with a known recovery is recovered all the same, with all later steps.
const TRIED_ALL_THE_SAME: u64 = 512;

impl Recoveries {
    /// The recovered content of a state, and whether it was unknown before.
    ///
    /// # Errors
    /// What is wrong.
    pub fn of(&mut self, setup: &Setup, state: &CrashState) -> Checked<(Rc<Found>, bool)> {
        let way = usize::from(setup.fua);
        let known = self.whole[way].of(state, |_| ()).cloned();
        if let Some(found) = &known
            && !state.sum().is_multiple_of(TRIED_ALL_THE_SAME)
        {
            return Ok((found.clone(), false));
        }
        let reads = state.reads();
        let disk = state.mount(SimWorld::new(1));
        let found = self.recover_anew(setup, &disk, Some(&reads), known.is_some())?;
        match known {
            Some(known) if known.key() != found.key() => {
                Err("N1: what reads the same was recovered as something else".into())
            }
            Some(known) => Ok((known, false)),
            None => {
                let found = Rc::new(found);
                self.whole[way].learn(&reads, found.clone())?;
                Ok((found, true))
            }
        }
    }

    /// Opens the volume on `disk` and reads all of it. Then, after another power loss, checks it
    /// with fsck, opens it again, and expects the same content. `reads`: receives each read of the
    /// state with which the disk began.
    ///
    /// # Errors
    /// What is wrong.
    pub fn recover(
        &mut self,
        setup: &Setup,
        disk: &SimDisk,
        reads: Option<&Reads>,
    ) -> Checked<Found> {
        self.recover_anew(setup, disk, reads, false)
    }

    /// Recovers as above; `anew`: also runs fsck and the second open if their result is known.
    fn recover_anew(
        &mut self,
        setup: &Setup,
        disk: &SimDisk,
        reads: Option<&Reads>,
        anew: bool,
    ) -> Checked<Found> {
        reads.into_iter().for_each(|reads| disk.record_reads(reads));
        let found = open_and(setup, disk, async |volume| look_for(setup, volume).await)?;
        // Writes of the first opening may only be in a volatile cache. The second opening, after a
        // power loss, must find the same.
        let left = disk.cut_state(setup.seed);
        on(&mut self.fsck, &left, (reads, anew), 3, |disk| check_all(setup, disk))?;
        let plain = Setup { content: false, ..setup.clone() };
        let again = &mut self.again[usize::from(setup.fua)];
        let digest = on(again, &left, (reads, anew), 2, |disk| {
            open_and(&plain, disk, async |volume| {
                volume.digest().await.map_err(|e| format!("digest: {e}"))
            })
        });
        match digest.map_err(|what| format!("again: {what}"))? {
            same if same == found.digest => Ok(found),
            _ => Err("recovered again, it is something else".into()),
        }
    }
}

/// The result of a program on a disk: the known one, or that of `run`, in the world of this seed.
/// `anew`: runs it in any case, and expects the known result (read_tree.N1).
fn on<T: Copy + PartialEq>(
    tree: &mut ReadTree<T>,
    left: &CrashState,
    (reads, anew): (Option<&Reads>, bool),
    seed: u64,
    run: impl FnOnce(&SimDisk) -> Checked<T>,
) -> Checked<T> {
    let note = |read| reads.into_iter().for_each(|reads| left.note_read(reads, read));
    let known = tree.of(left, |_| ()).copied();
    if let Some(known) = known.filter(|_| !anew) {
        tree.of(left, note);
        return Ok(known);
    }
    let (own, disk) = (left.reads(), left.mount(SimWorld::new(seed)));
    disk.record_reads(&own);
    let done = run(&disk)?;
    if known.is_some_and(|known| known != done) {
        return Err("N1: what reads the same had another outcome".into());
    }
    tree.learn(&own, done)?;
    match (own.list(), reads) {
        (Some(list), _) => list.into_iter().for_each(|(read, _)| note(read)),
        (None, Some(reads)) => reads.give_up(),
        (None, None) => {}
    }
    Ok(done)
}

/// Checks with fsck a disk after recovery. Ignores content that cannot be read if content decays.
fn check_all(setup: &Setup, disk: &SimDisk) -> Checked<()> {
    let world: Arc<SimWorld> = disk.world().clone();
    let device: DeviceRef = Arc::new(disk.clone());
    let (asked, bounds): (WorldRef, _) = (world.clone(), Bounds::of(setup));
    let meter = Meter::new(bounds, disk, bounds.run_polls);
    let report = meter.run(&world, String::new, async {
        let report = meter.ended(Operation::Fsck, setup.fsck(&device, &asked)).await;
        report.map_err(|e| format!("fsck: {e}"))
    });
    world.stop();
    let mut report = report?;
    if setup.rot {
        report.findings.retain(|finding| finding.kind != FindingKind::Content);
    }
    sound(&report)
}

/// Checks that fsck found nothing but what a power loss may cause: a torn slot.
///
/// # Errors
/// What is wrong.
pub fn sound(report: &FsckReport) -> Checked<()> {
    match report.findings.iter().find(|finding| finding.kind != FindingKind::Slot) {
        Some(finding) => Err(format!("fsck: {finding:?}")),
        None => Ok(()),
    }
}

/// Reads all of a volume.
///
/// # Errors
/// What is wrong.
pub async fn look(volume: &Volume, content: bool) -> Checked<Found> {
    look_at_all(volume, content, None, true).await
}

/// Reads all of a volume after a workload of this setup.
async fn look_for(setup: &Setup, volume: &Volume) -> Checked<Found> {
    let block = setup.rot.then_some(setup.block_bytes as usize);
    look_at_all(volume, setup.content, block, !setup.rot && !setup.large).await
}

async fn look_at_all(
    volume: &Volume,
    content: bool,
    block: Option<usize>,
    twice: bool,
) -> Checked<Found> {
    let digest = volume.digest().await.map_err(|e| format!("digest: {e}"))?;
    let (files, unreadable) = match content {
        true => read_all(volume, block).await.map_err(|e| format!("content: {e}"))?,
        false => Default::default(),
    };
    let tree = match twice {
        true => Tree::read(volume, Times::Ignore).await?,
        false => Tree::read_names(volume, Times::Ignore).await?,
    };
    Ok(Found { names: without_content(tree), files, unreadable, digest })
}

/// Opens the volume on `disk`, inspects it, and drops it as if the process died.
fn open_and<T>(
    setup: &Setup,
    disk: &SimDisk,
    look: impl AsyncFnOnce(&Volume) -> Checked<T>,
) -> Checked<T> {
    let world: Arc<SimWorld> = disk.world().clone();
    let device: DeviceRef = Arc::new(disk.clone());
    let asked: WorldRef = world.clone();
    let options = setup.options(&asked).map_err(|e| e.to_string())?;
    let bounds = Bounds::of(setup);
    let meter = Meter::new(bounds, disk, bounds.run_polls);
    let seen = meter.run(&world, String::new, async {
        let opening = Volume::open(&device, &asked, &options);
        let volume = meter.ended(Operation::Open, opening).await;
        let volume = volume.map_err(|e| format!("it does not open: {e}"))?;
        bounds.check_memory(&volume)?;
        let found = meter.ended(Operation::ReadAll, look(&volume)).await?;
        bounds.check_memory(&volume)?;
        bounds.check_cache(options.cache.as_ref()).map(|()| found)
    });
    world.stop();
    seen
}

/// Finds the step that the content shows: none before the last acknowledged sync.
///
/// # Errors
/// What is wrong.
pub fn judge(setup: &Setup, past: Past<'_>, found: &Found) -> Checked<usize> {
    let Progress { acked, begun, .. } = past.progress;
    let moments = &past.script.moments;
    let mut why = None;
    for step in (acked..=begun).rev() {
        if *moments[step].names() != found.names {
            continue;
        }
        match content(setup, past, found, step) {
            Ok(()) => return Ok(step),
            Err(what) => why = Some(format!("as step {step}: {what}")),
        }
    }
    if let Some(why) = why {
        return Err(why);
    }
    let earlier = (0..acked).rev().find(|s| *moments[*s].names() == found.names);
    let last = moments[begun].names().difference(&found.names);
    // Values of attributes are long.
    let last: String = last.unwrap_or_default().chars().take(600).collect();
    Err(format!(
        "it is no step from {acked} to {begun}; earlier: {earlier:?}; from the last: {last}"
    ))
}

/// Checks the content of every file, if the names are those of `step`.
fn content(setup: &Setup, past: Past<'_>, all: &Found, step: usize) -> Checked<()> {
    if !setup.content {
        return Ok(());
    }
    let moments = &past.script.moments;
    // The cleaner copies a decayed block unchanged, and it stays the same block of the file.
    let has_decayed =
        |block: &Decayed| past.decayed_before.contains(block) || past.decayed.contains(block);
    let mut bad = all.unreadable.iter().flat_map(|(ino, blocks)| blocks.iter().map(|n| (*ino, *n)));
    if let Some((ino, block)) = bad.find(|block| !has_decayed(block)) {
        return Err(format!("block {block} of inode {ino} cannot be read, and has not decayed"));
    }
    for (path, (here, found)) in &all.files {
        let shown = path.escape_ascii();
        let Some((ino, _)) = moments[step].files().paths.get(path) else {
            return Err(format!("{shown} is no file there"));
        };
        if past.script.unknown.contains(ino) {
            continue;
        }
        let bad = all.unreadable.get(here);
        let lowest = lowest(setup, past, *ino, step);
        let versions: Vec<(usize, &[u8])> = (lowest..=past.progress.begun)
            .filter_map(|n| moments[n].files().inodes.get(ino).map(|content| (n, &content[..])))
            .collect();
        let stable = past.stable.iter().filter(|stable| stable.ino == *ino).collect();
        File { versions, stable, block: setup.block_bytes as usize, bad }
            .check(found)
            .map_err(|e| format!("{shown} (#{ino}, since step {lowest}): {e}"))?;
    }
    Ok(())
}

/// The oldest version that a file may have.
fn lowest(setup: &Setup, past: Past<'_>, ino: u64, step: usize) -> usize {
    let syncs = past.syncs.iter().filter(|(of, _)| of.is_none_or(|of| of == ino));
    let synced = syncs.map(|(_, steps)| *steps).max().unwrap_or(0);
    // A device that fails may refuse the content of a closed file. Then syncs of other files do not
    // cover it.
    let takes_all = setup.failing.is_empty() && setup.host_bytes.is_none();
    let covers = |of: &Option<u64>| takes_all || of.is_none_or(|of| of == ino);
    let any = past.syncs.iter().filter(|(of, _)| covers(of)).map(|(_, steps)| *steps);
    let any = any.max().unwrap_or(0);
    let closed = past.script.closed.iter().filter(|(of, at)| *of == ino && *at <= any);
    let closed = closed.map(|(_, at)| *at).max().unwrap_or(0);
    let replaced = past.script.replacing.iter().filter(|(of, by)| *of == ino && *by < step);
    let replaced = replaced.map(|(_, by)| *by).max().unwrap_or(0);
    synced.max(closed).max(replaced)
}

/// The versions that a file may show.
struct File<'a> {
    /// By step.
    versions: Vec<(usize, &'a [u8])>,
    /// Writes to it that were durable.
    stable: Vec<&'a Stable>,
    block: usize,
    /// Blocks that cannot be read.
    bad: Option<&'a BTreeSet<usize>>,
}

impl File<'_> {
    /// Checks that each block is that of a version, and that no size is without its bytes.
    fn check(&self, found: &[u8]) -> Checked<()> {
        let versions: Vec<&[u8]> = self.versions.iter().map(|(_, content)| *content).collect();
        let sizes = versions.iter().map(|content| content.len());
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        let least = self.stable.iter().map(|stable| self.least(stable)).fold(least, usize::max);
        if !(least..=most).contains(&found.len()) {
            return Err(format!("{} bytes, it had {least} to {most}", found.len()));
        }
        let readable = |at: usize| !self.bad.is_some_and(|bad| bad.contains(&(at / self.block)));
        for start in (0..found.len()).step_by(self.block).filter(|at| readable(*at)) {
            let end = (start + self.block).min(found.len());
            let touches = |stable: &&&Stable| {
                stable.range.start < end as u64 && (start as u64) < stable.range.end
            };
            let since = self.stable.iter().filter(touches).map(|stable| stable.steps).max();
            let from = self.versions.partition_point(|(step, _)| *step < since.unwrap_or(0));
            one_block(&found[start..end], start, &versions[from..]).map_err(|what| {
                let sizes: Vec<usize> = versions.iter().map(|v| v.len()).collect();
                let size = found.len();
                format!(
                    "block at {start} of {size} bytes is of no version: {what}; sizes {sizes:?}, \
                     {from} too old"
                )
            })?;
        }
        Ok(())
    }

    /// The least size that the file may have since a write was durable.
    fn least(&self, stable: &Stable) -> usize {
        let since = self.versions.iter().filter(|(step, _)| *step >= stable.steps);
        let least = since.map(|(_, content)| content.len()).min().unwrap_or(0);
        least.min(stable.range.end as usize)
    }
}

/// Checks that a block is that of a version.
fn one_block(bytes: &[u8], start: usize, versions: &[&[u8]]) -> Checked<()> {
    let end = start + bytes.len();
    let zero = |bytes: &[u8]| bytes.iter().all(|b| *b == 0);
    let allowed = versions.iter().enumerate().any(|(n, content)| {
        if content.len() <= start {
            return false;
        }
        let upto = content.len().min(end);
        let same = content[start..upto] == bytes[..upto - start];
        // Behind the end of this version, a later and longer version has zeros.
        let later = &versions[n..];
        let filled = upto == end || later.iter().any(|c| c.len() >= end && zero(&c[upto..end]));
        same && zero(&bytes[upto - start..]) && filled
    });
    if allowed {
        return Ok(());
    }
    let newest = versions.last().map_or(&[][..], |v| &v[start.min(v.len())..]);
    let same = bytes.iter().zip(newest).take_while(|(a, b)| a == b).count();
    let what = if zero(&bytes[same..]) { "zeros" } else { "other bytes" };
    Err(format!("{same} bytes as in the newest, then {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_sim::SimConfig;

    /// read_tree.N1. The story: a known recovery that was tried again ran only the first open, and
    /// took the results of fsck and of the second open from the tree.
    #[test]
    fn n1_known_state_is_recovered_again_in_full() {
        let left = SimDisk::new(SimWorld::new(1), SimConfig::default()).cut_state(1);
        let mut tree = ReadTree::default();
        let mut try_it = |anew, says| on(&mut tree, &left, (None, anew), 2, |_| Ok(says));
        assert_eq!(try_it(false, 1), Ok(1));
        assert_eq!(try_it(false, 2), Ok(1), "it is known");
        assert_eq!(try_it(true, 1), Ok(1));
        assert!(try_it(true, 2).is_err_and(|what| what.starts_with("N1")));
    }
}
