//! The load of the bench: clients that write files, flush and read them as dbench's do, in regions
//! of their own of one image; and pages of files lately written that are written again, at a stated
//! rate.
//!
//! Invariants: M1 the mix of a seed is the same for every variant. M2 each write is timed, rewrites
//! among them; throughput counts the clients' writes only, because rewrites come at a set rate.

use crate::harness::hist::Hist;
use crate::harness::image::Rng;
use crate::harness::load::{Slice, Target};
use crate::harness::meter::Usage;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Clients.
pub const CLIENTS: u64 = 4;
/// Bytes of a client's region.
pub const REGION: u64 = 16 << 20;
/// Bytes of a file of a client.
const FILE: u64 = 256 << 10;
/// Bytes of a write or read of a client.
const PIECE: usize = 64 << 10;
/// Files that a client writes for each that it flushes.
const FILES_PER_FLUSH: u64 = 3;
/// Bytes of a rewrite, somewhere in a page.
const REWRITE: usize = 100;
const PAGE: u64 = 4096;
/// Pages of a file that are rewritten: its first. All of them would be written out one by one, and
/// how many requests that makes is chance.
const HOT: u64 = 16;

/// What the mix runs on.
pub trait Store: Target + Sync {
    /// Makes what was written durable.
    fn flush(&self) -> Result<()>;
}

/// How long a slice is.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// So long.
    Time(Duration),
    /// So many files of each client: on a slow device time would cut off flushes under way.
    Files(u64),
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// How long.
    pub length: Length,
    /// Rewrites per second, of all clients' files.
    pub rewrites_per_second: u64,
    /// Files and pages follow from this.
    pub seed: u64,
}

/// What a slice of it gave in addition to its [`Slice`].
#[derive(Debug, Default)]
pub struct Flushes {
    /// How long they took, ns.
    pub hist: Hist,
}

/// Bytes that the mix needs.
pub const SIZE: u64 = CLIENTS * REGION;

struct Shared<'a> {
    store: &'a dyn Store,
    mix: Mix,
    deadline: Option<Instant>,
    /// Clients that are not done.
    busy: AtomicU64,
    /// File that each client wrote last.
    latest: Vec<AtomicU64>,
    writes: Mutex<Hist>,
    flushes: Mutex<Hist>,
    pieces: AtomicU64,
}

/// Runs one slice: the latencies of all writes, the rate of the clients' writes.
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
        // What was held up is not made up for in a burst: no more than 10 ms worth of it.
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

    /// M2.
    #[test]
    fn it_counts_what_it_writes() {
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
