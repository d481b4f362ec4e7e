//! `live`: the cost of the live page. Random 4 KiB reads of cached data by as many threads as CPUs,
//! with and without a client that requests the page's figures as often as a browser does.
//!
//! The two variants alternate, and their order changes with each round.

use crate::harness::image::Rng;
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use forebay::{Cache, CacheConfig, File, OpenOptions};
use forebay_base::units::{MIB, format_size};
use forebay_base::{Error, Result};
use forebay_block::RamDevice;
use forebay_live::{CacheSource, Collector, Options as Http, Server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
/// Reads between two checks of the time.
const BATCH: u64 = 256;

/// Runs the bench.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let size = options.size_or(16 * MIB, 512 * MIB);
    let cache = Cache::new(CacheConfig::with_budget(size + size / 2 + 8 * MIB))?;
    let device = Arc::new(RamDevice::new(size));
    let file = OpenOptions::read_write().open_device(&cache, device)?;
    let mut buf = vec![0; MIB as usize];
    for at in (0..size / MIB).map(|n| n * MIB) {
        file.read_at(&mut buf, at)?;
    }
    let collector = Collector::new(CacheSource::new("bench", &cache));
    let server = Server::start(&collector, &Http::parse("127.0.0.1:0", false)?)?;
    let address = server.address();
    let slice = options.seconds.unwrap_or(if options.quick { 0.3 } else { 5.0 });
    let slice = Duration::from_secs_f64(slice);
    let (mut rates, mut asked) = ([Vec::new(), Vec::new()], 0);
    for round in 0..options.rounds_or(2, 8) {
        for turn in 0..2 {
            let watched = (turn + round) % 2 == 1;
            let (rate, answers) = once(&file, size, slice, watched.then_some(address))?;
            rates[usize::from(watched)].push(rate);
            asked += answers;
        }
    }
    let pictures: Vec<f64> = (0..5)
        .map(|turn| {
            let start = Instant::now();
            let picture = cache.snapshot(turn);
            assert!(picture.sum.resident > 0, "what was read is cached");
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    server.stop();
    report.row("unwatched", "live_read_rate", "1/s", &rates[0]);
    report.row("watched", "live_read_rate", "1/s", &rates[1]);
    report.row("watched", "live_answers", "1", &[asked as f64]);
    report.row("watched", "live_picture_time", "ms", &pictures);
    let pairs: Vec<f64> = rates[1].iter().zip(&rates[0]).map(|(on, off)| on / off).collect();
    report.ratio_with_bar("live_watched_vs_unwatched", median(&pairs), Good::AtLeast, 0.99);
    report.note(format!("live: {} cached, a look every second", format_size(size)));
    Ok(report)
}

/// Reads per second, and the number of answers that the client got.
fn once(
    file: &File,
    size: u64,
    slice: Duration,
    watched: Option<SocketAddr>,
) -> Result<(f64, u64)> {
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        let flag = &over;
        let watcher = watched.map(|address| scope.spawn(move || watch(address, flag)));
        let reader = |seed| {
            let over = &over;
            scope.spawn(move || read(file, size, seed, over))
        };
        let readers: Vec<_> = (1..=cpus).map(reader).collect();
        std::thread::sleep(slice);
        over.store(true, Ordering::Relaxed);
        let seconds = start.elapsed().as_secs_f64();
        let mut reads = 0;
        for reader in readers {
            reads += reader.join().expect("a reader returns")?;
        }
        let answers = watcher.map_or(Ok(0), |w| w.join().expect("the watcher returns"))?;
        Ok((reads as f64 / seconds, answers))
    })
}

fn read(file: &File, size: u64, seed: u64, over: &AtomicBool) -> Result<u64> {
    let (mut rng, mut reads, mut buf) = (Rng::new(seed), 0, [0; BLOCK as usize]);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            file.read_at(&mut buf, rng.below(size / BLOCK) * BLOCK)?;
        }
        reads += BATCH;
    }
    Ok(reads)
}

/// Requests figures as the page does: again a second after each answer.
fn watch(address: SocketAddr, over: &AtomicBool) -> Result<u64> {
    let failed = |e| Error::from_io("watch", e);
    let mut answers = 0;
    loop {
        let mut stream = TcpStream::connect(address).map_err(failed)?;
        let request = format!("GET /live.json HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map_err(failed)?;
        if !answer.starts_with(b"HTTP/1.1 200 ") {
            let text = String::from_utf8_lossy(&answer).into_owned();
            return Err(Error::new(forebay_base::ErrorKind::Io, "watch", text));
        }
        answers += 1;
        let next = Instant::now() + Duration::from_secs(1);
        while Instant::now() < next {
            if over.load(Ordering::Relaxed) {
                return Ok(answers);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
