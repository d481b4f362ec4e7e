//! A cross-check without the simulated disk and the simulated world. A volume runs on a real file,
//! with direct I/O and a real engine. Below it is a disk of another make (nbdkit and nbdfuse),
//! which records its requests. The test writes every prefix of them, and subsets of the writes
//! between two flushes, to an image. It opens the image, reads it to the last byte, and compares it
//! with what was acknowledged by then. Afterwards fsck finds nothing.
//!
//! `FOREBAY_RECORDED_SEEDS` sets the number of workloads. No locks.

mod recorder;

use forebay_base::sim_world::SimWorld;
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, WorldRef, split_mix};
use forebay_block::{
    Aio, BioFlags, BlockDevice, DeviceRef, DirectIo, Engine, FileDevice, FileOptions, RamDevice,
};
use forebay_crashtest::{Base, Known, Past, Script, Setup, Synced, judge, look, sound};
use forebay_lfs::{Volume, fsck};
use forebay_sim::SimDisk;
use forebay_testkit::fs_check::{Op, Runner, Times};
use recorder::{Entry, Recorder};
use std::collections::HashSet;
use std::sync::Arc;

/// With up to this many writes between two flushes, all subsets are tried.
const ALL_UPTO: usize = 5;
/// Subsets of more.
const SAMPLES: u64 = 12;

/// The progress of a run: the length of the log when each step began and when each sync returned.
struct Done {
    script: Script,
    began: Vec<usize>,
    synced: Vec<(usize, Synced)>,
    entries: Vec<Entry>,
}

/// Makes the workloads sync more often.
fn with_syncs(script: &Script) -> Vec<Op> {
    let mut ops = Vec::new();
    for (n, op) in script.ops.iter().enumerate() {
        ops.push(op.clone());
        match n % 4 {
            1 => ops.push(Op::Sync { slot: (n % 6) as u8, data_only: n % 8 == 1 }),
            3 => ops.push(Op::SyncFs),
            _ => {}
        }
    }
    ops
}

fn carry_out(setup: &Setup, base: &Base, image: &[u8]) -> Result<Done, String> {
    let plain = Script::make(setup, setup.seed, &base.fs, setup.steps);
    let script = Script::of(setup, &base.fs, with_syncs(&plain));
    let recorder = Recorder::start(image)?;
    let engine = Engine::new(Aio::Auto).map_err(|e| e.to_string())?;
    let options = FileOptions { direct_io: DirectIo::On, ..FileOptions::default() };
    let device = FileDevice::open(recorder.path(), &options, &engine).map_err(|e| e.to_string())?;
    let device: DeviceRef = device;
    let world: WorldRef = RealWorld::with_seed(setup.seed);
    let options = setup.options(&world).map_err(|e| e.to_string())?;
    let volume = block_on(Volume::open(&device, &world, &options)).map_err(|e| e.to_string())?;
    let mut runner = Runner::new(Times::Ignore, None);
    let (mut began, mut synced) = (Vec::new(), Vec::new());
    for (n, op) in script.ops.iter().enumerate() {
        began.push(recorder.len());
        let outcome = block_on(runner.apply(&volume, op));
        if outcome != script.outcomes[n] {
            return Err(format!("step {n}, {op:?}: {outcome:?}, not {:?}", script.outcomes[n]));
        }
        let of = script.synced[n];
        if *op == Op::SyncFs || matches!(op, Op::Sync { .. }) && of.is_some() {
            synced.push((recorder.len(), (of, n + 1)));
        }
    }
    runner.close_all();
    block_on(volume.close()).map_err(|e| e.to_string())?;
    let entries = recorder.entries();
    synced.push((entries.len(), (None, script.ops.len())));
    drop((volume, device));
    Ok(Done { script, began, synced, entries })
}

/// Opens an image and compares it with what was known at this length of the log.
fn check(setup: &Setup, done: &Done, len: usize, image: &[u8]) -> Result<u64, String> {
    let ram = RamDevice::new(image.len() as u64);
    ram.write_from(0, image, BioFlags::empty()).map_err(|e| e.to_string())?;
    let device: DeviceRef = Arc::new(ram);
    let world: WorldRef = RealWorld::with_seed(1);
    let options = setup.options(&world).map_err(|e| e.to_string())?;
    let found = block_on(async {
        let volume = Volume::open(&device, &world, &options).await;
        look(&volume.map_err(|e| format!("it does not open: {e}"))?, true).await
    })?;
    let syncs: Vec<Synced> =
        done.synced.iter().filter(|(at, _)| *at <= len).map(|(_, synced)| *synced).collect();
    let progress = Known {
        opened: true,
        begun: done.began.iter().filter(|at| **at <= len).count(),
        acked: syncs.iter().map(|(_, steps)| *steps).max().unwrap_or(0),
        syncs: syncs.len(),
        stable: 0,
        rotten: 0,
    };
    judge(
        setup,
        Past {
            script: &done.script,
            progress,
            syncs: &syncs,
            stable: &[],
            decayed: &[],
            decayed_before: &[],
        },
        &found,
    )?;
    let report = block_on(fsck(&device, &world, &mut |_| ()));
    sound(&report.map_err(|e| format!("fsck: {e}"))?)?;
    Ok(found.key())
}

fn put(image: &mut [u8], entry: &Entry) {
    if let Entry::Write { offset, bytes } = entry {
        image[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// Which of `n` writes are kept: all subsets, or all prefixes and some.
fn subsets(n: usize, seed: u64) -> Vec<u64> {
    if n <= ALL_UPTO {
        return (0..1 << n).collect();
    }
    let mut rng = seed;
    let n = n.min(63);
    let prefixes = (0..=n).map(|upto| (1 << upto) - 1);
    let drops = (0..n).map(|gone| ((1 << n) - 1) & !(1 << gone));
    let drawn = (0..SAMPLES).map(|_| split_mix(&mut rng) & ((1 << n) - 1));
    prefixes.chain(drops).chain(drawn).collect()
}

#[derive(Default, Debug)]
struct Seen {
    writes: usize,
    flushes: usize,
    states: usize,
    distinct: HashSet<u64>,
}

fn every_cut(setup: &Setup, done: &Done, image: &[u8], seen: &mut Seen) -> Result<(), String> {
    let (mut durable, mut pending) = (image.to_vec(), Vec::new());
    let mut tried = HashSet::new();
    for len in 0..=done.entries.len() {
        for kept in subsets(pending.len(), setup.seed ^ len as u64) {
            let mut left = durable.clone();
            for (n, entry) in pending.iter().enumerate() {
                if kept >> n & 1 == 1 {
                    put(&mut left, entry);
                }
            }
            seen.states += usize::from(tried.insert((len, kept)));
            let key = check(setup, done, len, &left)
                .map_err(|e| format!("{len} entries, of {} kept {kept:b}: {e}", pending.len()))?;
            seen.distinct.insert(key);
        }
        match done.entries.get(len) {
            Some(Entry::Flush) => {
                seen.flushes += 1;
                pending.drain(..).for_each(|entry| put(&mut durable, &entry));
            }
            Some(write) => {
                seen.writes += 1;
                pending.push(write.clone());
            }
            None => {}
        }
    }
    Ok(())
}

/// Complete blocks of 4 KiB, whatever the host's sectors are. Without FUA: the kernel passes it to
/// `nbdfuse` (O_DSYNC as a flag of the write), which does not pass it on.
fn recorded(seed: u64, steps: usize) -> Setup {
    Setup {
        block_bytes: 4096,
        sector: 4096,
        fua: false,
        near_end: false,
        syncs_concurrently: false,
        steps,
        ..Setup::with_content(seed)
    }
}

/// The bytes of an empty volume.
fn image_of(setup: &Setup, base: &Base) -> Vec<u8> {
    let disk: SimDisk = base.disk.mount(SimWorld::new(1));
    disk.peek(0, setup.volume_bytes as usize)
}

/// Synced data survives each power loss on a disk that another program records.
#[test]
fn recorded_disk_recovers_at_every_prefix() {
    if !recorder::requires() {
        return;
    }
    // Seed 7: a client wrote a file whose inode was new and not in memory. A checkpoint searched
    // the
    // tree alone for the owner of the content, and the inode still said that nothing was
    // stored.
    let wanted = std::env::var("FOREBAY_RECORDED_SEEDS").ok().and_then(|n| n.parse().ok());
    let mut seen = Seen::default();
    for seed in 1..=wanted.unwrap_or(12) {
        let setup = recorded(seed, 36);
        let base = Base::empty(&setup).expect("space for a volume");
        let image = image_of(&setup, &base);
        let done = carry_out(&setup, &base, &image).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        every_cut(&setup, &done, &image, &mut seen)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{setup:?}"));
    }
    let Seen { writes, flushes, states, distinct } = seen;
    let distinct = distinct.len();
    println!("recorded: {writes} writes, {flushes} flushes, {states} states, {distinct} distinct");
    assert!(writes > 60 && flushes > 30 && states > 200 && distinct > 40);
}

/// The recorder keeps all requests, and the check finds a flush that did nothing.
#[test]
fn recorded_loss_is_detected() {
    if !recorder::requires() {
        return;
    }
    let setup = recorded(5, 16);
    let base = Base::empty(&setup).expect("space for a volume");
    let image = image_of(&setup, &base);
    let done = carry_out(&setup, &base, &image).expect("recorded");
    let last = done.entries.iter().rposition(|entry| *entry != Entry::Flush).expect("a write");
    let mut left = image.clone();
    done.entries[..last / 4].iter().for_each(|entry| put(&mut left, entry));
    let result = check(&setup, &done, done.entries.len(), &left);
    assert!(result.is_err(), "most flushed data is gone, and the check does not report it");
}
