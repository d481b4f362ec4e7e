//! The load of the bench: clients write, flush and read files as dbench's clients do, each in its
//! own region of one image. In addition, pages of recently written files are rewritten at a fixed
//! rate.
//!
//! Invariants: M1 the mix of a seed is equal for every variant. M2 each write is timed, rewrites
//! included; throughput counts only the clients' writes, because rewrites have a fixed rate.

use crate::harness::hist::Hist;
use crate::harness::image::Rng;
use crate::harness::load::{Slice, Target};
use crate::harness::meter::Usage;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of clients.
pub const CLIENTS: u64 = 4;
/// Size of a client's region, bytes.
pub const REGION: u64 = 16 << 20;
/// Size of a client's file, bytes.
const FILE: u64 = 256 << 10;
/// Size of a client's write or read, bytes.
const PIECE: usize = 64 << 10;
/// Files that a client writes per flush.
const FILES_PER_FLUSH: u64 = 3;
/// Size of a rewrite at a random offset in a page, bytes.
const REWRITE: usize = 100;
const PAGE: u64 = 4096;
/// Pages at the start of a file that are rewritten. If all pages were, they would be written back
/// one by one, and the number of requests would depend on chance.
const HOT: u64 = 16;

/// The file that the mix uses.
pub trait Store: Target + Sync {
    /// Makes all writes durable.
    fn flush(&self) -> Result<()>;
}

/// Length of a slice.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// A duration.
    Time(Duration),
    /// A number of files for each client: on a slow device a duration would interrupt flushes.
    Files(u64),
}

/// Parameters of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Length of the slice.
    pub length: Length,
    /// Rewrites per second, over the files of all clients.
    pub rewrites_per_second: u64,
    /// Seed of files and pages.
    pub seed: u64,
}

/// Results of a slice in addition to its [`Slice`].
#[derive(Debug, Default)]
pub struct Flushes {
    /// Duration of the flushes, ns.
    pub hist: Hist,
}

/// Size of the file for the mix, bytes.
pub const SIZE: u64 = CLIENTS * REGION;

struct Shared<'a> {
    store: &'a dyn Store,
    mix: Mix,
    deadline: Option<Instant>,
    /// Clients that have not ended.
    busy: AtomicU64,
    /// The file that each client wrote last.
    latest: Vec<AtomicU64>,
    writes: Mutex<Hist>,
    flushes: Mutex<Hist>,
    pieces: AtomicU64,
}

/// Runs one slice; its latencies are those of all writes, its rate that of the clients' writes.
pub fn run(store: &dyn Store, mix: &Mix) -> Result<(Slice, Flushes)> {
    let (before, start) = (Usage::own(), Instant::now());
    let shared = Shared {
        store,
        mix: *mix,
        deadline: match mix.length {
            Length::Time(time) => Some(start + time),
            Length::Files(_) => None,
        },
        busy: AtomicU64::new(CLIENTS),
        latest: (0..CLIENTS).map(|client| AtomicU64::new(client * REGION)).collect(),
        writes: Mutex::default(),
        flushes: Mutex::default(),
        pieces: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let shared = &shared;
        let mut threads: Vec<_> =
            (0..CLIENTS).map(|c| scope.spawn(move || client(shared, c))).collect();
        threads.push(scope.spawn(move || rewriter(shared)));
        threads.into_iter().try_for_each(|t| t.join().expect("a thread of the mix returns"))
    })?;
    let pieces = shared.pieces.load(Ordering::Relaxed);
    let slice = Slice {
        ops: pieces,
        bytes: pieces * PIECE as u64,
        seconds: start.elapsed().as_secs_f64(),
        usage: Usage::own().since(&before),
        hist: recorded(shared.writes),
        ..Slice::default()
    };
    Ok((slice, Flushes { hist: recorded(shared.flushes) }))
}

fn recorded(hist: Mutex<Hist>) -> Hist {
    hist.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    fn timed(&self, hist: &Mutex<Hist>, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let from = Instant::now();
        work()?;
        let nanos = from.elapsed().as_nanos() as u64;
        hist.lock().unwrap_or_else(PoisonError::into_inner).record(nanos);
        Ok(())
    }

    fn over(&self) -> bool {
        self.deadline.is_some_and(|at| Instant::now() >= at)
            || self.busy.load(Ordering::Relaxed) == 0
    }
}

fn client(shared: &Shared<'_>, client: u64) -> Result<()> {
    let done = files(shared, client);
    shared.busy.fetch_sub(1, Ordering::Relaxed);
    done
}

fn files(shared: &Shared<'_>, client: u64) -> Result<()> {
    let mut rng = Rng::new(shared.mix.seed.wrapping_mul(31) + client);
    let mut buf = AlignedBuf::new(PIECE);
    let count = match shared.mix.length {
        Length::Time(_) => u64::MAX / 2,
        Length::Files(count) => count,
    };
    for turn in client..client + count {
        if shared.over() {
            break;
        }
        let file = client * REGION + rng.below(REGION / FILE) * FILE;
        buf.fill(rng.draw() as u8);
        for at in (file..file + FILE).step_by(PIECE) {
            shared.timed(&shared.writes, || shared.store.write(&buf, at))?;
            shared.pieces.fetch_add(1, Ordering::Relaxed);
        }
        shared.latest[client as usize].store(file, Ordering::Relaxed);
        if turn % FILES_PER_FLUSH == 0 {
            shared.timed(&shared.flushes, || shared.store.flush())?;
        }
        for at in (file..file + FILE).step_by(PIECE) {
            shared.store.read(&mut buf, at)?;
        }
    }
    Ok(())
}

fn rewriter(shared: &Shared<'_>) -> Result<()> {
    let mut rng = Rng::new(shared.mix.seed ^ 0x5eed);
    let bytes = AlignedBuf::copy_of(&[0x5a; REWRITE]);
    let (start, rate) = (Instant::now(), shared.mix.rewrites_per_second);
    let mut done = 0;
    while !shared.over() {
        let due = start.elapsed().as_micros() as u64 * rate / 1_000_000;
        // Rewrites that were delayed are not made up for in a burst: at most 10 ms worth of them.
        done = done.max(due.saturating_sub(rate / 100));
        while done < due && !shared.over() {
            let file = shared.latest[rng.below(CLIENTS) as usize].load(Ordering::Relaxed);
            let at = file + rng.below(HOT) * PAGE + rng.below(PAGE - REWRITE as u64);
            shared.timed(&shared.writes, || shared.store.write(&bytes, at))?;
            done += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Null(AtomicU64, AtomicU64);

    impl Target for Null {
        fn read(&self, _: &mut [u8], _: u64) -> Result<()> {
            Ok(())
        }
        fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
            assert!(offset + buf.len() as u64 <= SIZE);
            self.0.fetch_add(u64::from(buf.len() == PIECE), Ordering::Relaxed);
            self.1.fetch_add(u64::from(buf.len() == REWRITE), Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(50));
            Ok(())
        }
    }

    impl Store for Null {
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    /// M2: the slice counts the clients' writes, and times all.
    #[test]
    fn mix_counts_its_writes() {
        let store = Null(AtomicU64::new(0), AtomicU64::new(0));
        let lengths = [Length::Time(Duration::from_millis(60)), Length::Files(50)];
        let mut before = (0, 0);
        for length in lengths {
            let (slice, _) =
                run(&store, &Mix { length, rewrites_per_second: 1000, seed: 1 }).unwrap();
            let now = (store.0.load(Ordering::Relaxed), store.1.load(Ordering::Relaxed));
            let (pieces, rewrites) = (now.0 - before.0, now.1 - before.1);
            assert_eq!(slice.ops, pieces);
            assert!(rewrites > 0 && slice.hist.count() == pieces + rewrites);
            if let Length::Files(count) = length {
                assert_eq!(pieces, count * CLIENTS * FILE / PIECE as u64);
            }
            before = now;
        }
    }
}
