//! Seeded mixed-flag workloads on real files: each engine, direct I/O below on and off, one thread
//! and four with spans that meet in one folio.
//!
//! `FOREBAY_SEED` sets the seed.

use crate::dir::{Dir, config, options};
use forebay::{
    Aio, Cache, CacheConfig, DirectIo, ErrorKind, File, IoFlags, RawOptions, Result,
    UncachedStrategy,
};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_sim::workload::{self, Blocking, BlockingSubject, Runner, TrimReads};
use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZE: u64 = (3 << 20) + 4096;

/// A file of the library; `reopen` makes a new opener.
struct Subject {
    cache: Cache,
    file: RwLock<File>,
    turns: AtomicUsize,
}

impl Subject {
    fn file(&self) -> File {
        // All of them mixed: the strategy changes while other threads are in the middle of theirs.
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(7) {
            let words = UncachedStrategy::WORDS;
            self.cache.tune("uncached_strategy", words[turn / 7 % words.len()]).unwrap();
        }
        self.file.read().unwrap().clone()
    }
}

impl BlockingSubject for Subject {
    fn size(&self) -> u64 {
        self.file().size()
    }
    fn read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        self.file().read_at_with(dst, offset, flags)
    }
    fn write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<u64> {
        let file = self.file();
        // One workload at a time appends.
        let offset = if flags.contains(IoFlags::APPEND) { file.size() } else { offset };
        let done = file.write_at_with(src, offset, flags)?;
        if done < src.len() {
            assert!(flags.contains(IoFlags::NOWAIT), "only NOWAIT may write less");
            let rest = AlignedBuf::copy_of(&src[done..]);
            file.write_at_with(&rest, offset + done as u64, flags - IoFlags::NOWAIT)?;
        }
        Ok(offset)
    }
    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.file().trim(offset, len)
    }
    fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.file().zero(offset, len)
    }
    fn sync(&self) -> Result<()> {
        self.file().sync_data()
    }
    fn drop_caches(&self) -> Result<()> {
        self.cache.drop_clean();
        Ok(())
    }
    fn reopen(&self) -> Result<()> {
        let fresh = self.file().reopen();
        *self.file.write().unwrap() = fresh;
        Ok(())
    }
}

/// Smallest unit that a direct write takes on this file.
fn direct_unit(file: &File) -> u64 {
    let sector = AlignedBuf::new(512);
    match file.write_at_with(&sector, 512, IoFlags::DIRECT) {
        Ok(_) => 512,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Unaligned);
            4096
        }
    }
}

fn spans(threads: u64) -> Vec<Range<u64>> {
    // Borders within one folio: 1 MiB + 512, + 4608, + 40960.
    let four = [0, (1 << 20) + 512, (1 << 20) + 4608, (1 << 20) + 40960, SIZE];
    let borders = if threads == 1 { &[0, SIZE] } else { &four[..] };
    borders.windows(2).map(|w| w[0]..w[1]).collect()
}

/// A way of running is not to be had here: a failure, or with `FOREBAY_ALLOW_SKIP=1` a skip that is said.
pub fn skip(why: &forebay::Error) {
    assert_eq!(std::env::var("FOREBAY_ALLOW_SKIP").as_deref(), Ok("1"), "{why}");
    println!("skipped: {why}");
}

fn run(aio: Aio, direct_io: DirectIo, threads: u64) {
    let seed = std::env::var("FOREBAY_SEED").map_or(11, |s| s.parse().unwrap());
    let dir = Dir::new(&format!("fsx-{aio}-{direct_io}-{threads}"));
    let cache = match Cache::new(CacheConfig { aio, ..config(4 << 20) }) {
        Ok(cache) => cache,
        // Containers forbid io_uring; the threads run in any case.
        Err(e) if aio == Aio::IoUring && e.kind() == ErrorKind::Unsupported => return skip(&e),
        Err(e) => panic!("{e}"),
    };
    let options = RawOptions { direct_io, ..options(SIZE) };
    let file = match cache.open_raw(dir.path("image"), &options) {
        Ok(file) => file,
        Err(e) if direct_io == DirectIo::On && e.kind() == ErrorKind::Unsupported => {
            return skip(&e);
        }
        Err(e) => panic!("{e}"),
    };
    let direct_align = direct_unit(&file);
    let subject = Blocking(Subject { cache, file: RwLock::new(file), turns: AtomicUsize::new(0) });
    std::thread::scope(|scope| {
        for (i, span) in spans(threads).into_iter().enumerate() {
            let subject = &subject;
            let config = workload::Config {
                span,
                direct_align,
                block: 512,
                trim: TrimReads::Zeros,
                ..workload::Config::fixed(SIZE)
            };
            let mut runner = Runner::new(seed + i as u64, config, vec![0; SIZE as usize]);
            scope.spawn(move || {
                if let Err(mismatch) = block_on(runner.run(subject, 800 / threads)) {
                    panic!("{aio}, direct I/O {direct_io}, {threads} threads\n{mismatch}");
                }
            });
        }
    });
    // What is in the cache is what a sync brings to the file.
    let file = subject.0.file();
    let mut cached = vec![0; SIZE as usize];
    assert_eq!(file.read_at(&mut cached, 0).unwrap(), cached.len());
    file.sync_all().unwrap();
    drop(file);
    drop(subject);
    assert!(std::fs::read(dir.path("image")).unwrap() == cached, "the file differs");
}

#[test]
fn threads_engine() {
    for threads in [1, 4] {
        run(Aio::Threads, DirectIo::Off, threads);
        run(Aio::Threads, DirectIo::On, threads);
    }
}

#[test]
fn io_uring_engine() {
    for threads in [1, 4] {
        run(Aio::IoUring, DirectIo::Off, threads);
        run(Aio::IoUring, DirectIo::On, threads);
    }
}

/// A file that grows: writes past the end, appends, everything else mixed in.
fn run_growing(aio: Aio, direct_io: DirectIo) {
    let seed = std::env::var("FOREBAY_SEED").map_or(12, |s| s.parse().unwrap());
    let dir = Dir::new(&format!("grow-{aio}-{direct_io}"));
    let cache = match Cache::new(CacheConfig { aio, ..config(4 << 20) }) {
        Ok(cache) => cache,
        Err(e) if aio == Aio::IoUring && e.kind() == ErrorKind::Unsupported => return skip(&e),
        Err(e) => panic!("{e}"),
    };
    let options = RawOptions { direct_io, create_size: Some(4096), ..RawOptions::default() };
    let file = match cache.open_raw(dir.path("file"), &options) {
        Ok(file) => file,
        Err(e) if direct_io == DirectIo::On && e.kind() == ErrorKind::Unsupported => {
            return skip(&e);
        }
        Err(e) => panic!("{e}"),
    };
    let direct_align = direct_unit(&file);
    file.write_at(&[0; 4096], 0).unwrap();
    let config = workload::Config {
        direct_align,
        block: 512,
        trim: TrimReads::Zeros,
        ..workload::Config::growing(2 << 20)
    };
    let subject = Blocking(Subject { cache, file: RwLock::new(file), turns: AtomicUsize::new(0) });
    let mut runner = Runner::new(seed, config, vec![0; 4096]);
    if let Err(mismatch) = block_on(runner.run(&subject, 800)) {
        panic!("{aio}, direct I/O {direct_io}\n{mismatch}");
    }
    subject.0.file().sync_all().unwrap();
    drop(subject);
    let bytes = std::fs::read(dir.path("file")).unwrap();
    assert!(bytes.len() > 1 << 20 && bytes == runner.model().bytes(), "the file differs");
}

#[test]
fn growing_files() {
    for aio in [Aio::Threads, Aio::IoUring] {
        run_growing(aio, DirectIo::Off);
        run_growing(aio, DirectIo::On);
    }
}
