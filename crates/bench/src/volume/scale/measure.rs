//! The child's side of `scale`: makes a volume with a number of extents, and measures it.

use super::disk::SparseDisk;
use crate::harness::meter::{Usage, resident_bytes};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::units::{KIB, MIB};
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::DeviceRef;
use forebay_cache::{Config, PageCache};
use forebay_lfs::{CreateOptions, OpenOptions, Volume};
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, Timestamp,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const BUDGET: u64 = 128 * MIB;
const BLOCK: u64 = 4 * KIB;
/// Passes in which the file with the extents is written. Pass n writes the blocks whose number is n
/// modulo PASSES. So adjacent blocks have distant places, and each block is an extent.
const PASSES: u64 = 4;
/// The file whose segments the cleaner empties has the bytes of this many segments at least, and
/// this fraction (an eighth) of the bytes of the file with the extents.
const VICTIMS_LEAST: u64 = 4;
const VICTIMS_SHARE: u64 = 8;
/// Every other run of this many bytes of that file is overwritten.
const VICTIMS_RUN: u64 = 64 * KIB;

/// What is to be measured.
struct Spec {
    extents: u64,
    bytes: u64,
    rounds: u64,
    writes: u64,
    syncs: u64,
}

/// The values of each figure, one for each round.
type Figures = BTreeMap<&'static str, Vec<f64>>;

/// Runs the job `scale`.
pub fn scale_job(job: &Value) -> Result<Value> {
    let count = |key: &str| job[key].as_u64().unwrap_or(0);
    let spec = Spec {
        extents: count("extents").max(1),
        bytes: count("bytes"),
        rounds: count("rounds").max(1),
        writes: count("writes").max(1),
        syncs: count("syncs").max(1),
    };
    let sim = SimWorld::new(1);
    sim.set_step_limit(u64::MAX);
    let bench = Bench { device: Arc::new(SparseDisk::new(spec.bytes)?), world: sim.clone(), spec };
    let measured = sim.run(bench.measure());
    sim.stop();
    Ok(json!(measured?))
}

/// A device with the volume.
struct Bench {
    device: DeviceRef,
    world: WorldRef,
    spec: Spec,
}

impl Bench {
    async fn measure(&self) -> Result<Figures> {
        let mut figures = Figures::new();
        let mut add = |key, value| figures.entry(key).or_default().push(value);
        let empty = resident();
        let start = cpu();
        self.create().await?;
        let volume = self.open().await?;
        self.build(&volume).await?;
        volume.close().await?;
        drop(volume);
        add("build", cpu() - start);
        for round in 0..self.spec.rounds {
            let start = cpu();
            let volume = self.open().await?;
            add("open", cpu() - start);
            let file = file(&volume, "extents").await?;
            let (cpu_per_byte, moved) = self.clean(&volume, round).await?;
            add("clean", cpu_per_byte);
            add("moved", moved);
            let (cpu_per_write, nodes_per_leaf) = self.writes(&volume, &file, round).await?;
            add("write", cpu_per_write);
            add("nodes_per_leaf", nodes_per_leaf);
            add("sync", self.syncs(&volume, &file, round).await?);
            add("memory", resident() - empty);
            add("tree", volume.space_stats().live_tree_bytes as f64);
            drop(file);
            volume.close().await?;
        }
        Ok(figures)
    }

    async fn create(&self) -> Result<()> {
        let options = CreateOptions {
            segment_bytes: forebay::segment_for(self.spec.bytes),
            ..CreateOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
        };
        Volume::create(&self.device, &self.world, &options).await
    }

    /// Opens the volume with an empty cache. Checkpoints are made only when the changes take their
    /// share of the budget.
    async fn open(&self) -> Result<Volume> {
        let config = Config { huge_pages: false, ..Config::with_budget(BUDGET) };
        let options = OpenOptions {
            cache: Some(PageCache::new(config, self.world.clone())?),
            noatime: true,
            of_budget: true,
            checkpoint_age: Duration::ZERO,
            checkpoint_bytes: u64::MAX,
            ..OpenOptions::default()
        };
        Volume::open(&self.device, &self.world, &options).await
    }

    /// Writes a file, each block of which is an extent of its own.
    async fn build(&self, volume: &Volume) -> Result<()> {
        let file = file(volume, "extents").await?;
        let mut buf = AlignedBuf::new(BLOCK as usize);
        for pass in 0..PASSES {
            for block in (pass..self.spec.extents).step_by(PASSES as usize) {
                buf = write(&file, buf, block * BLOCK).await?;
            }
            file.sync(true).await?;
        }
        volume.checkpoint().await
    }

    /// Makes segments half of which are dead, and cleans. Returns the CPU time of a pass for each
    /// byte that it moved, and these bytes.
    async fn clean(&self, volume: &Volume, round: u64) -> Result<(f64, f64)> {
        let segment = u64::from(forebay::segment_for(self.spec.bytes));
        let share = self.spec.extents * BLOCK / VICTIMS_SHARE;
        let bytes = share.max(VICTIMS_LEAST * segment).next_multiple_of(MIB);
        let file = file(volume, &format!("victims{round}")).await?;
        let mut buf = AlignedBuf::new(MIB as usize);
        for at in (0..bytes).step_by(MIB as usize) {
            buf = write(&file, buf, at).await?;
        }
        settle(volume, &file).await?;
        let mut buf = AlignedBuf::new(VICTIMS_RUN as usize);
        for at in (0..bytes).step_by(2 * VICTIMS_RUN as usize) {
            buf = write(&file, buf, at).await?;
        }
        settle(volume, &file).await?;
        let (before, start) = (volume.clean_stats().moved_bytes, cpu());
        volume.clean().await?;
        let (seconds, moved) = (cpu() - start, volume.clean_stats().moved_bytes - before);
        settle(volume, &file).await?;
        Ok((seconds / moved as f64, moved as f64))
    }

    /// Overwrites blocks far from each other, and makes them durable. Returns the CPU time of a
    /// write, and the nodes that the checkpoint after them writes for each changed leaf.
    async fn writes(&self, volume: &Volume, file: &OpenFileRef, round: u64) -> Result<(f64, f64)> {
        let mut buf = AlignedBuf::new(BLOCK as usize);
        let (before, start) = (volume.checkpoint_stats(), cpu());
        for n in 0..self.spec.writes {
            let block = self.block(2 * round, n, self.spec.writes);
            buf = write(file, buf, block * BLOCK).await?;
        }
        file.sync(true).await?;
        let seconds = cpu() - start;
        without_checkpoint(volume, before.checkpoints)?;
        volume.checkpoint().await?;
        let after = volume.checkpoint_stats();
        let nodes = after.written_nodes - before.written_nodes;
        let leaves = after.changed_leaves - before.changed_leaves;
        Ok((seconds / self.spec.writes as f64, nodes as f64 / leaves as f64))
    }

    /// Overwrites blocks far from each other, each with a sync. Returns the CPU time of a write
    /// with its sync.
    async fn syncs(&self, volume: &Volume, file: &OpenFileRef, round: u64) -> Result<f64> {
        let mut buf = AlignedBuf::new(BLOCK as usize);
        let (before, start) = (volume.checkpoint_stats().checkpoints, cpu());
        for n in 0..self.spec.syncs {
            let block = self.block(2 * round + 1, n, self.spec.syncs);
            buf = write(file, buf, block * BLOCK).await?;
            file.sync(true).await?;
        }
        let seconds = cpu() - start;
        without_checkpoint(volume, before)?;
        volume.checkpoint().await?;
        Ok(seconds / self.spec.syncs as f64)
    }

    /// The `n`th block of a series of `count` distinct blocks that are spread over the file in an
    /// order that is not that of the blocks.
    fn block(&self, series: u64, n: u64, count: u64) -> u64 {
        let gap = (self.spec.extents / count).max(1);
        // 7919 is a prime, so the places are distinct unless it divides `count`.
        let place = n * 7919 % count;
        (place * gap + series % gap) % self.spec.extents
    }
}

async fn settle(volume: &Volume, file: &OpenFileRef) -> Result<()> {
    file.sync(true).await?;
    volume.checkpoint().await?;
    volume.checkpoint().await
}

fn without_checkpoint(volume: &Volume, before: u64) -> Result<()> {
    match volume.checkpoint_stats().checkpoints == before {
        true => Ok(()),
        false => {
            let text = "a checkpoint fell into the measured writes";
            Err(Error::new(ErrorKind::InvalidInput, "scale", text))
        }
    }
}

/// Opens a file; creates it if it does not exist.
async fn file(volume: &Volume, name: &str) -> Result<OpenFileRef> {
    let (name, new) = (Name::new(name.as_bytes())?, NewInode::of(FileKind::File, 0o644));
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    Ok(volume.create(Ino::ROOT, name, &new, flags).await?.1)
}

/// Writes a buffer, which the caller gets back.
async fn write(file: &OpenFileRef, buf: AlignedBuf, offset: u64) -> Result<AlignedBuf> {
    let (buf, done) = file.write(offset, buf, IoFlags::empty(), Privileges::Keep).await;
    done.map(|_| buf)
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    Usage::own().cpu_seconds
}

/// Resident bytes of this process.
fn resident() -> f64 {
    resident_bytes(std::process::id()).unwrap_or(0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::units::GIB;

    fn in_bench<T>(extents: u64, work: impl AsyncFnOnce(&Bench) -> Result<T>) -> T {
        let spec = Spec { extents, bytes: GIB, rounds: 1, writes: 100, syncs: 10 };
        let sim = SimWorld::new(1);
        let device = Arc::new(SparseDisk::new(spec.bytes).unwrap());
        let bench = Bench { device, world: sim.clone(), spec };
        let done = sim.run(work(&bench));
        sim.stop();
        done.unwrap()
    }

    #[test]
    fn each_block_of_the_file_is_an_extent() {
        let found = in_bench(1000, async |bench| {
            bench.create().await?;
            let volume = bench.open().await?;
            bench.build(&volume).await?;
            let ino = volume.lookup(Ino::ROOT, Name::new(b"extents")?).await?.ino;
            volume.extents(ino).await
        });
        assert_eq!(found.len(), 1000);
    }

    #[test]
    fn blocks_of_a_series_are_distinct() {
        in_bench(1000, async |bench| {
            let series = |n| (0..100).map(move |i| bench.block(n, i, 100));
            let mut all: Vec<u64> = series(0).chain(series(1)).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 200);
            Ok(())
        });
    }
}
