//! Several writers write the same blocks through the map of a file, each at its own pace: reserve
//! space, capture content, write, publish, in every order that a seed gives. Syncs, checkpoints and
//! the cleaner run concurrently. Of the published contents the one captured last counts, on the
//! running volume and after a power loss, at the end or earlier.
//!
//! Files never have two writes of a block in flight, so no workload of files tests this. Another
//! user of the map may do so.
//!
//! No locks.

use crate::seeds;
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::checksum::crc32c;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::yield_now;
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_base::{IoFlags, Result};
use forebay_block::{BioFlags, BioOp, DeviceRef, io};
use forebay_crashtest::{Depth, Seen, Setup, Spot, Violation};
use forebay_iomap::{Class, Commit, Lookup, MapOps, Reservation, Written};
use forebay_lfs::Volume;
use forebay_sim::{PowerCut, SimDisk};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const BLOCKS: u64 = 3;
const HANDS: usize = 3;
const STEPS: u64 = 60;
/// Power losses before the end, about.
const MIDST: u64 = 4;
const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// What a writer is about to publish.
enum Hand {
    Idle,
    Reserved(Reservation),
    /// Sequence and byte.
    Fixed(Reservation, u64, u8),
    Written(Reservation, u64, u8),
}

/// The contents that a block may have: published sequences and bytes, the first one from before all
/// writers.
type Past = Vec<Vec<(u64, u8)>>;

struct Table {
    ops: Arc<dyn MapOps>,
    unit: u64,
    past: Past,
    /// The lowest sequence that is durable, by block.
    synced: Vec<u64>,
}

fn newest(past: &[(u64, u8)]) -> (u64, u8) {
    past.iter().copied().max().unwrap_or_default()
}

impl Table {
    /// Checks the content of all blocks now.
    async fn check(&self) -> std::result::Result<(), String> {
        for (block, past) in (0..).zip(&self.past) {
            let range = block * self.unit..(block + 1) * self.unit;
            let extent = self.ops.map(range, Lookup::Read).await.map_err(|e| e.to_string())?;
            let at = extent.device_offset.ok_or("a hole")?;
            let data = DataRef::Buf(AlignedBuf::new(self.unit as usize));
            let done =
                io(&**self.ops.device(), BioOp::Read, at, self.unit, data, BioFlags::SYNC).await;
            let found = done.data.into_buf().ok_or("no buffer")?[7];
            let wanted = newest(past).1;
            if found != wanted {
                return Err(format!("block {block} is {found}, not {wanted}, of {past:?}"));
            }
        }
        Ok(())
    }

    /// One step of a writer.
    async fn step(&mut self, hand: Hand, draw: &mut impl FnMut(u64) -> u64) -> Result<Hand> {
        let (ops, unit) = (&self.ops, self.unit);
        Ok(match hand {
            Hand::Idle => {
                let first = draw(BLOCKS);
                let end = first + 1 + draw(BLOCKS - first);
                let class = [Class::Background, Class::Sync, Class::Direct][draw(3) as usize];
                let run = first * unit..end * unit;
                Hand::Reserved(
                    ops.reserve(std::slice::from_ref(&run), class, &mut Vec::new()).await?,
                )
            }
            Hand::Reserved(room) => Hand::Fixed(room, ops.sequence(), 1 + draw(250) as u8),
            Hand::Fixed(room, sequence, byte) => {
                for place in room.places() {
                    let mut buf = AlignedBuf::new(place.len as usize);
                    buf.fill(byte);
                    let (at, data) = (place.device_offset, DataRef::Buf(buf));
                    let flags = BioFlags::SYNC;
                    io(&**ops.device(), BioOp::Write, at, place.len, data, flags).await.result?;
                }
                Hand::Written(room, sequence, byte)
            }
            Hand::Written(room, sequence, byte) => {
                let sum = crc32c(&vec![byte; unit as usize]);
                let written: Vec<Written> = room
                    .places()
                    .iter()
                    .map(|place| {
                        let sums = vec![sum; (place.len / unit) as usize];
                        Written { place: place.clone(), sequence, sums }
                    })
                    .collect();
                ops.publish(&room, &written, BLOCKS * unit);
                for place in room.places() {
                    for block in place.offset / unit..(place.offset + place.len) / unit {
                        self.past[block as usize].push((sequence, byte));
                    }
                }
                Hand::Idle
            }
        })
    }

    async fn commit(&mut self) -> Result<()> {
        let upto: Vec<u64> = self.past.iter().map(|past| newest(past).0).collect();
        self.ops.commit(Commit::Data, false).await?;
        self.synced = upto;
        Ok(())
    }
}

async fn open(disk: &SimDisk, setup: &Setup) -> Result<Volume> {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    Volume::open(&device, &world, &setup.options(&world)?).await
}

/// A moment: the state of the disk at a power loss, and the contents that blocks may have then.
struct Moment {
    cut: PowerCut,
    past: Past,
    synced: Vec<u64>,
}

impl Moment {
    fn now(disk: &SimDisk, table: &Table) -> Self {
        Self { cut: disk.cut_now(), past: table.past.clone(), synced: table.synced.clone() }
    }
}

/// Makes the file and runs the writers. Returns some moments; the last one is at the end.
async fn work(disk: &SimDisk, setup: &Setup) -> std::result::Result<Vec<Moment>, String> {
    let text = |e: forebay_base::Error| e.to_string();
    let volume = open(disk, setup).await.map_err(text)?;
    let (name, new) = (Name::new(b"f").map_err(text)?, NewInode::of(FileKind::File, 0o644));
    let (attr, file) = volume.create(Ino::ROOT, name, &new, BOTH).await.map_err(text)?;
    let unit = u64::from(setup.block_bytes);
    let mut first = AlignedBuf::new((BLOCKS * unit) as usize);
    first.fill(255);
    file.write(0, first, IoFlags::DIRECT, Privileges::Keep).await.1.map_err(text)?;
    file.sync(false).await.map_err(text)?;
    let ops = volume.map_of(attr.ino);
    let mut table = Table {
        ops,
        unit,
        past: vec![vec![(0, 255)]; BLOCKS as usize],
        synced: vec![0; BLOCKS as usize],
    };
    let mut rng = setup.seed ^ 0x07d;
    let mut draw = |n: u64| split_mix(&mut rng) % n;
    let mut hands: Vec<Hand> = (0..HANDS).map(|_| Hand::Idle).collect();
    let (running, mut moments) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    for _ in 0..STEPS {
        if draw(STEPS / MIDST) == 0 {
            moments.push(Moment::now(disk, &table));
        }
        match draw(14) {
            0 => table.commit().await.map_err(text)?,
            n @ (1 | 2) => {
                let (volume, running) = (volume.clone(), running.clone());
                running.fetch_add(1, Ordering::AcqRel);
                let task = async move {
                    let done = match n {
                        1 => volume.checkpoint().await,
                        _ => volume.clean().await.map(drop),
                    };
                    assert!(done.is_ok(), "{done:?}");
                    running.fetch_sub(1, Ordering::AcqRel);
                };
                disk.world().spawn("concurrent", Box::pin(task));
                yield_now().await;
            }
            _ => {
                let n = draw(HANDS as u64) as usize;
                let hand = std::mem::replace(&mut hands[n], Hand::Idle);
                hands[n] = table.step(hand, &mut draw).await.map_err(text)?;
                table.check().await?;
            }
        }
    }
    // Unpublished reservations are given back, and no task waits for them any more.
    drop(hands);
    while running.load(Ordering::Acquire) > 0 {
        World::sleep(&**disk.world(), Duration::from_micros(100)).await;
    }
    table.check().await?;
    if draw(2) == 0 {
        table.commit().await.map_err(text)?;
    }
    moments.push(Moment::now(disk, &table));
    Ok(moments)
}

/// Each block holds the newest content that was durable, or something newer.
fn check_recovered(
    setup: &Setup,
    disk: &SimDisk,
    Moment { past, synced, .. }: &Moment,
) -> std::result::Result<(), String> {
    let unit = setup.block_bytes as usize;
    let found = disk.world().run(async {
        let volume = open(disk, setup).await?;
        let ino = volume.lookup(Ino::ROOT, Name::new(b"f")?).await?.ino;
        let file = volume.open(ino, OpenFlags::READ).await?;
        let (buf, done) =
            file.read(0, AlignedBuf::new(BLOCKS as usize * unit), IoFlags::empty()).await;
        done.map(|len| buf[..len].to_vec())
    });
    disk.world().stop();
    let found = found.map_err(|e| e.to_string())?;
    for (n, bytes) in found.chunks(unit).enumerate() {
        let may = past[n].iter().filter(|(sequence, _)| *sequence >= synced[n]);
        if !may.clone().any(|(_, byte)| bytes.iter().all(|b| b == byte)) {
            let may: Vec<_> = may.collect();
            return Err(format!("block {n} is {} and so on, not of {may:?}", bytes[0]));
        }
    }
    Ok(())
}

/// One seed.
pub fn ordered(
    setup: &Setup,
    _depth: Depth,
    seen: &mut Seen,
) -> std::result::Result<(), Violation> {
    let violation = |what| Violation { spot: Spot::Running, what };
    let blank = setup.blank().map_err(|e| violation(e.to_string()))?;
    let disk = blank.in_world(SimWorld::new(setup.seed));
    let done = disk.world().clone().run(work(&disk, setup));
    disk.world().stop();
    let moments = done.map_err(violation)?;
    seen.counts.workloads += 1;
    for (n, moment) in moments.iter().enumerate() {
        let most = if n + 1 == moments.len() { 24 } else { 8 };
        for state in moment.cut.states(5).take(most) {
            seen.counts.states += 1;
            let recovered = state.mount(SimWorld::new(3));
            check_recovered(setup, &recovered, moment)
                .map_err(|what| violation(format!("moment {n}, {}: {what}", state.label)))?;
        }
    }
    Ok(())
}

/// ops.O1, ops.O2, state.S15, checkpoint.H14: the sequence decides, never the order of publishing,
/// replay or checkpoints.
#[test]
fn content_captured_last_counts() {
    let mut seen = Seen::default();
    for seed in seeds(40) {
        let setup = Setup::with_content(seed);
        ordered(&setup, Depth::FULL, &mut seen).unwrap_or_else(|e| panic!("{setup:?}\n{e:?}"));
    }
    println!("orders: {}", seen.line());
}
