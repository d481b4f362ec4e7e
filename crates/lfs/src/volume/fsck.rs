//! Checks a whole volume: slots, both copies of every node, the usage table against the extents,
//! names and links, every checksum of content, and the log. It writes nothing.
//!
//! ```text
//!   slots > open for reading > trees, usage > stored bytes > names > content > paths of findings
//!               (log)           space.rs       stored.rs     names.rs content.rs   paths.rs
//! ```
//! Invariants: E11 each finding names its subject, with file and offset where there are any, and
//! the check continues after it. E12 fsck writes nothing. E13 what a power loss may leave behind is
//! no finding, except a torn slot. E16 memory does not grow with the number of extents, names and
//! inodes. Tables have at most [`FsckOptions::table_bytes`]. The open volume takes its caches, what
//! it has for each segment, all orphans, and the changes of its log in addition. A finding takes at
//! most some kilobytes, and a report lists at most 4000 of each kind.
//!
//! A volume for which the tables are too small takes more passes (`window.rs`). So does one with
//! findings: a pass over a healthy volume finds out only that there are none (`tally.rs`).
//!
//! What a hostile image can still do: inodes that share a data id make a check slow, because it
//! reads their content and extents once for each of them. Orphans are all in memory, also of an
//! open volume. If bounds of leaves are no keys, a part of a scan grows until there is a bound that
//! is one. For findings the names of all directories above them are in memory.
//!
//! Locks: the state lock, taken briefly. No lock is held across a wait.

mod content;
mod names;
mod paths;
mod report;
mod scan;
mod space;
mod stored;
mod tally;
mod window;

use self::content::check_content;
use self::names::check_names;
use self::paths::add_paths;
pub use self::report::{Finding, FindingKind, FsckOptions, FsckProgress, FsckReport};
use self::space::check_trees;
use crate::checkpoint::root_of;
use crate::device::slots::read_at;
use crate::format::superblock::{FILES_TREE, SLOT_BYTES, Superblock, slot_offsets};
use crate::volume::{OpenOptions, Volume};
use forebay_base::world::WorldRef;
use forebay_base::{ErrorKind, Result};
use forebay_block::DeviceRef;

/// Checks the volume on a device on which no program has it open for writing. An error means that
/// there is no volume, or one of a kind that cannot be read.
pub async fn fsck(
    device: &DeviceRef,
    world: &WorldRef,
    progress: &mut (dyn FnMut(FsckProgress) + Send),
) -> Result<FsckReport> {
    fsck_with(device, world, &FsckOptions::default(), progress).await
}

/// As [`fsck`], with this memory.
pub async fn fsck_with(
    device: &DeviceRef,
    world: &WorldRef,
    options: &FsckOptions,
    progress: &mut (dyn FnMut(FsckProgress) + Send),
) -> Result<FsckReport> {
    let mut report = FsckReport::default();
    let superblock = check_slots(device, &mut report).await?;
    report.was_closed = superblock.state & crate::format::superblock::STATE_CLEAN != 0;
    let node_cache_bytes = options.node_cache_bytes;
    let open = OpenOptions { read_only: true, node_cache_bytes, ..OpenOptions::default() };
    let volume = match Volume::open(device, world, &open).await {
        Ok(volume) => volume,
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Err(error) => {
            report
                .add(FindingKind::Tree, format!("it does not open, not even for reading: {error}"));
            return Ok(report);
        }
    };
    if let Some(damage) = &volume.0.damage {
        let finding = report.add(FindingKind::Log, damage);
        if let Some((offset, bytes)) = damage.range() {
            (finding.offset, finding.bytes) = (Some(offset), Some(bytes));
        }
    }
    let stored = check_trees(&volume, &superblock, options, &mut report).await?;
    let root = root_of(&superblock, FILES_TREE)?;
    if let Some(stored) = &stored
        && let Err(error) = stored.report((&volume.0.tree, &root), options, &mut report).await
    {
        report.add(FindingKind::Tree, format!("stored bytes cannot be compared: {error}"));
    }
    let checkpoint = stored.is_some().then_some(&root);
    let names = check_names(&volume.0, checkpoint, options, &mut report).await;
    let done = match names {
        Ok(totals) => {
            report.inodes = totals.inodes;
            check_content(&volume.0, &totals, &mut report, progress).await
        }
        Err(error) => Err(error),
    };
    let done = match done {
        Ok(()) => add_paths(&volume.0, &mut report.findings).await,
        Err(error) => Err(error),
    };
    report.end();
    if let Err(error) = done {
        report.push(FindingKind::Tree, format!("names cannot be read: {error}"));
    }
    Ok(report)
}

async fn check_slots(device: &DeviceRef, report: &mut FsckReport) -> Result<Superblock> {
    let (newest, _) = crate::device::slots::read_newest(device).await?;
    for (slot, offset) in slot_offsets(newest.recorded_end_bytes).into_iter().enumerate() {
        let found = match read_at(device, offset, SLOT_BYTES).await {
            Ok(bytes) => Superblock::decode(&bytes, slot as u32),
            Err(error) => Err(error),
        };
        if let Err(error) = found {
            let finding = report.add(FindingKind::Slot, format!("slot {slot}: {error}"));
            (finding.offset, finding.bytes) = (Some(offset), Some(SLOT_BYTES as u64));
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests;
