//! Many concurrent tasks: writers above the limits, uncached writers among buffered ones, and
//! readers. All times are the simulated world's.

use super::gates::Gated;
use super::harness::{Lab, NONE, at_once};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::world::{Nanos, World};
use forebay_block::BioOp;
use forebay_cache::Config;
use forebay_iomap::file::Geometry;
use forebay_iomap::identity::Identity;
use forebay_iomap::{MappedFile, Source, Target};
use forebay_sim::SimConfig;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

const UNCACHED: IoFlags = IoFlags::UNCACHED;
const MIB: u64 = 1 << 20;

/// A disk that takes milliseconds, so that limits are reached.
fn slow(size: u64) -> SimConfig {
    // Sectors as large as the blocks: eight times fewer of them to keep.
    SimConfig { latency: (4_000_000, 6_000_000), sector: 4096, ..Lab::sim(size) }
}

fn limits(background: u64, limit: u64) -> Config {
    Config {
        dirty_bytes: Some(limit),
        dirty_background_bytes: Some(background),
        ..Config::with_budget(16 << 20)
    }
}

/// Polls all of them until all are done.
async fn all<T: Unpin>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *done = Some(value);
            }
        }
        match done.iter().all(Option::is_some) {
            true => {
                Poll::Ready(done.iter_mut().map(|value| value.take().expect("all are")).collect())
            }
            false => Poll::Pending,
        }
    })
    .await
}

/// Another file on the same disk, and of the same domain. They share no bytes in what the tests
/// write.
fn neighbour(lab: &Lab) -> Arc<MappedFile> {
    let ops = Arc::new(Identity::new(lab.disk.clone()));
    let geometry = Geometry { block_size: 4096, size: lab.file.size(), read_only: false };
    MappedFile::open_in(&lab.cache, lab.file.mapping.domain.clone(), ops, geometry, None).unwrap()
}

/// Writes a part of a file over and over.
struct Writer {
    file: Arc<MappedFile>,
    part: Range<u64>,
    piece: u64,
    flags: IoFlags,
}

impl Writer {
    fn new(file: &Arc<MappedFile>, part: Range<u64>, piece: u64, flags: IoFlags) -> Self {
        Self { file: file.clone(), part, piece, flags }
    }

    /// Until the time is over; the times of the writes.
    async fn run(self, lab: &Lab, end: Nanos) -> Vec<Nanos> {
        let (handle, piece) = (self.file.open_handle(), self.piece);
        let (mut times, mut at) = (Vec::new(), self.part.start);
        while lab.world.now() < end {
            let start = lab.world.now();
            let mut buf = AlignedBuf::new(piece as usize);
            let source = Source::Owned(&mut buf);
            self.file.write(&handle, at, source, self.flags).await.unwrap();
            times.push(lab.world.now() - start);
            at = if at + 2 * piece <= self.part.end { at + piece } else { self.part.start };
            // Memory takes time too: a microsecond for a block.
            lab.world.sleep(std::time::Duration::from_nanos(piece / 4)).await;
        }
        times
    }
}

fn percentile(times: &[Nanos], percent: f64) -> Nanos {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[((sorted.len() - 1) as f64 * percent / 100.0) as usize]
}

/// Runs writers for a while of simulated time; the times of the writes of each.
fn race(lab: &Lab, millis: u64, writers: Vec<Writer>) -> Vec<Vec<Nanos>> {
    lab.run(async {
        let end = lab.world.now() + millis * 1_000_000;
        let run = |w: Writer| Box::pin(w.run(lab, end)) as BoxFuture<'_, _>;
        all(writers.into_iter().map(run).collect()).await
    })
}

fn bytes(times: &[Vec<Nanos>], piece: u64) -> u64 {
    times.iter().map(|times| times.len() as u64 * piece).sum()
}

/// Above the background limit writers pause at the pace of write-out. Without the pauses they run
/// to the limit at the speed of memory and stop there, each for as long as a write takes.
#[test]
fn writers_above_background_limit_progress_evenly() {
    let lab = Lab::new(limits(MIB / 2, 2 * MIB), 4096, slow(32 * MIB));
    let part = 0..32 * MIB;
    let times = race(&lab, 300, vec![Writer::new(&lab.file, part, 16384, NONE)]).remove(0);
    let steady = &times[times.len() / 2..];
    let [median, most] = [50.0, 99.0].map(|p| percentile(steady, p));
    assert!(median > 20_000, "half of the writes did not pause: {median} ns");
    assert!(most < 5 * median, "uneven: {median} ns in the middle, {most} ns of one in a hundred");
    assert!(lab.cache.stats().throttled_nanos > 0);
}

/// A request is held back once for each of its bytes, however it is cut on its way, and write-out
/// is not held back again: writers of small and of large requests both go at the speed of the disk.
#[test]
fn l10_request_of_any_size_is_throttled_once() {
    let rates = [16384, 65536, MIB, 4 * MIB].map(|piece| {
        let lab = Lab::new(limits(MIB, 2 * MIB), 4096, slow(32 * MIB));
        let times = race(&lab, 500, vec![Writer::new(&lab.file, 0..32 * MIB, piece, NONE)]);
        bytes(&times, piece)
    });
    let (least, most) = (rates.iter().min().unwrap(), rates.iter().max().unwrap());
    assert!(*least * 100 >= *most * 85, "{rates:?}");
    // What fits in flight below the limit, in the time of a write: nothing more can be had.
    assert!(*least > 500 / 6 * MIB / 2, "{rates:?}");
}

/// Many uncached writers, on one file or on a file each: as fast together as buffered ones, none
/// behind the others, no longer delays. The device gets long writes, not each writer's own
/// requests.
#[test]
fn u10_uncached_writers_are_as_fast_as_buffered() {
    for (count, one_file) in [(2, true), (8, true), (8, false)] {
        let [buffered, uncached] = [NONE, UNCACHED].map(|flags| {
            let lab = Lab::new(limits(2 * MIB, 4 * MIB), 4096, slow(64 * MIB));
            let each = 64 * MIB / count;
            let writers = (0..count).map(|i| {
                let file = if one_file { lab.file.clone() } else { neighbour(&lab) };
                Writer::new(&file, i * each..(i + 1) * each, 65536, flags)
            });
            let times = race(&lab, 250, writers.collect());
            let log = lab.disk.log();
            let writes: Vec<u64> =
                log.iter().filter(|e| e.op == BioOp::Write).map(|e| e.len).collect();
            let mean = writes.iter().sum::<u64>() / writes.len() as u64;
            assert!(mean > 96 << 10, "{count} {one_file} {flags:?}: writes of {mean} bytes");
            let counts = times.iter().map(Vec::len);
            let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
            assert!(least * 100 >= most * 85, "{count} {one_file} {flags:?}: {least}..{most}");
            (bytes(&times, 65536), percentile(&times.concat(), 99.0))
        });
        let what = format!("{count} writers, one file {one_file}: {buffered:?} {uncached:?}");
        assert!(uncached.0 * 100 >= buffered.0 * 95, "{what}");
        assert!(uncached.1 <= buffered.1 * 2, "{what}");
    }
}

/// An uncached writer concurrent with a buffered one, on one disk and under one dirty limit: each
/// gets half, whatever the size of its requests.
#[test]
fn u18_uncached_and_buffered_writer_get_half_each() {
    for (a, b) in [(65536, 65536), (16384, 65536), (65536, 16384), (65536, MIB), (MIB, 65536)] {
        let lab = Lab::new(limits(MIB, 2 * MIB), 4096, slow(64 * MIB));
        let uncached = Writer::new(&lab.file, 0..32 * MIB, a, UNCACHED);
        let buffered = Writer::new(&neighbour(&lab), 32 * MIB..64 * MIB, b, NONE);
        let times = race(&lab, 500, vec![uncached, buffered]);
        let (uncached, buffered) = (bytes(&times[..1], a), bytes(&times[1..], b));
        let ratio = uncached as f64 / buffered as f64;
        assert!((0.9..1.1).contains(&ratio), "{a} {b}: {uncached} against {buffered}");
    }
}

/// Readers of what is not cached wait for the disk and not for writers, uncached or buffered.
#[test]
fn u18_readers_with_writers_are_as_fast_as_alone() {
    for flags in [NONE, UNCACHED] {
        let [alone, concurrent] = [false, true].map(|crowded| {
            let lab = Lab::new(limits(MIB, 2 * MIB), 4096, slow(64 * MIB));
            lab.run(async {
                let end = lab.world.now() + 800_000_000;
                let reading = read_misses(&lab, neighbour(&lab), flags, end);
                let mut tasks: Vec<BoxFuture<'_, _>> = vec![Box::pin(reading)];
                if crowded {
                    let one = Writer::new(&lab.file, 0..16 * MIB, 65536, UNCACHED);
                    let two = Writer::new(&neighbour(&lab), 16 * MIB..32 * MIB, 65536, NONE);
                    tasks.push(Box::pin(one.run(&lab, end)));
                    tasks.push(Box::pin(two.run(&lab, end)));
                }
                let times = all(tasks).await.remove(0);
                [50.0, 90.0].map(|p| percentile(&times, p))
            })
        });
        for (alone, concurrent) in alone.into_iter().zip(concurrent) {
            assert!(
                concurrent * 100 <= alone * 115,
                "{flags:?}: {concurrent} ns, {alone} ns alone"
            );
        }
    }
}

/// Reads single blocks of the upper half of the file, none of them twice; the times.
async fn read_misses(lab: &Lab, file: Arc<MappedFile>, flags: IoFlags, end: Nanos) -> Vec<Nanos> {
    let (handle, mut times) = (file.open_handle(), Vec::new());
    let blocks = 32 * MIB / 4096;
    for i in (0u64..).take_while(|_| lab.world.now() < end) {
        let at = 32 * MIB + i * 3037 % blocks * 4096;
        let start = lab.world.now();
        let mut buf = AlignedBuf::new(4096);
        file.read(&handle, at, Target::Owned(&mut buf), flags).await.unwrap();
        times.push(lab.world.now() - start);
    }
    times
}

/// Twelve clients write one image, each from its own offset on, a block at a time and in turn: each
/// is a stream of its own, and is written out in long writes.
#[test]
fn x7_each_writer_of_image_is_its_own_stream() {
    const CLIENTS: u64 = 12;
    for flags in [NONE, UNCACHED] {
        let lab = Lab::new(limits(2 * MIB, 4 * MIB), 4096, Lab::sim(48 * MIB));
        lab.run(async {
            let each = 48 * MIB / CLIENTS;
            let handles: Vec<_> = (0..CLIENTS).map(|_| lab.file.open_handle()).collect();
            for round in 0..512 {
                for (i, handle) in handles.iter().enumerate() {
                    let at = i as u64 * each + round * 4096;
                    let mut buf = AlignedBuf::copy_of(&[i as u8 + 1; 4096]);
                    lab.file.write(handle, at, Source::Owned(&mut buf), flags).await.unwrap();
                }
                lab.world.sleep(std::time::Duration::from_micros(50)).await;
            }
            lab.sync().await.unwrap();
            for i in 0..CLIENTS {
                let written = lab.disk.peek_durable(i * each, 512 * 4096);
                assert!(written.iter().all(|&b| b == i as u8 + 1), "client {i}");
            }
            let (bytes, writes) = lab.writes();
            assert_eq!(bytes, CLIENTS * 512 * 4096, "{flags:?}: nothing is written twice");
            let mean = bytes / writes as u64;
            assert!(mean >= 48 << 10, "{flags:?}: {mean} bytes to a write, {writes} writes");
        });
    }
}

/// `stat` counts all the time that writers were held back, whether they paused or waited in the
/// queue.
#[test]
fn writer_throttle_time_is_counted() {
    for (background, limit) in [(256 << 10, 4 * MIB), (2 * MIB, 2 * MIB)] {
        let lab = Lab::new(limits(background, limit), 4096, slow(32 * MIB));
        lab.run(async {
            let mut spent = 0;
            for at in (0..24 * MIB).step_by(65536) {
                let start = lab.world.now();
                lab.write(at, &[1; 65536], NONE).await;
                spent += lab.world.now() - start;
            }
            let counted = lab.cache.stats().throttled_nanos;
            assert!(spent > 1_000_000, "no writer was held back: nothing tested");
            assert!(
                counted <= spent && counted * 10 >= spent * 9,
                "{counted} of {spent} ns, limits {background} {limit}"
            );
            lab.sync().await.unwrap();
        });
    }
}

/// The story: a reader past the cache held private memory while it asked the map where bytes are
/// stored. A map that reads a tree for that takes such memory itself, and the remainder was not
/// enough, for ever.
#[test]
fn v1_map_lookup_holds_no_private_memory() {
    use std::sync::OnceLock;
    let keep: OnceLock<Arc<Gated>> = OnceLock::new();
    let lab = Lab::with_map(Config::with_budget(8 << 20), 4096, Lab::sim(MIB), MIB, |disk| {
        keep.get_or_init(|| Gated::new(Arc::new(Identity::new(disk)))).clone()
    });
    let gated = keep.get().unwrap();
    let old = |at: u64| (at..at + 5000).map(Lab::old).collect::<Vec<u8>>();
    lab.run(async {
        // It waits for memory that another task has, and asks the map again when it has it.
        let held = lab.cache.try_private(lab.cache.private_limit()).unwrap();
        let mut read = Box::pin(lab.read(5, 5000, UNCACHED));
        assert!(at_once(read.as_mut()).is_none());
        gated.tree.get_or_init(|| lab.cache.clone());
        drop(held);
        assert!(read.await == old(5));
        // The edges of a write are read into the cache.
        lab.write(MIB / 2 + 7, &[0xab; 5000], UNCACHED).await;
        let mut back = old(MIB / 2);
        back[7..].fill(0xab);
        assert!(lab.read(MIB / 2, 5000, UNCACHED).await == back);
        // No frame is to be had: a read goes past the cache.
        let frames = lab.cache.take_frames(lab.cache.stats().frames_free as usize).unwrap();
        assert!(lab.read(MIB / 4, 5000, NONE).await == old(MIB / 4));
        drop(frames);
    });
}
