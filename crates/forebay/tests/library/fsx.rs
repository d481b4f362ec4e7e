//! Seeded mixed-flag workloads on real files: each engine, direct I/O below on and off, one thread
//! and four with spans that meet in one folio, every stable strategy, folios of 4 KiB to 2 MiB.
//!
//! `FOREBAY_SEED` sets the first seed (default 11). A twentieth of `FOREBAY_FSX_RUNS` is the
//! number of seeds on each engine, four without it. The step `fsx` of `make test` runs fifty.

use crate::dir::{Dir, cache_on, config, options, skip};
use forebay::{
    Aio, Cache, DirectIo, Error, ErrorKind, File, IoFlags, OpenOptions, Result, StablePages,
    StableStrategy, UncachedStrategy,
};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_testkit::workload::{self, Blocking, BlockingSubject, Runner, TrimReads};
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

    /// The workload's model refuses what lies behind the end, as a block device does; a file
    /// ignores it.
    fn check_inside(&self, offset: u64, len: u64) -> Result<()> {
        match offset + len <= self.file.read().unwrap().size()? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::OutOfRange, "zero", "past the end")),
        }
    }
}

impl BlockingSubject for Subject {
    fn size(&self) -> u64 {
        self.file().size().unwrap()
    }
    fn read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        self.file().read_at_with(dst, offset, flags)
    }
    fn write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<u64> {
        let file = self.file();
        // One workload at a time appends.
        let offset = if flags.contains(IoFlags::APPEND) { file.size().unwrap() } else { offset };
        let done = file.write_at_with(src, offset, flags)?;
        if done < src.len() {
            assert!(flags.contains(IoFlags::NOWAIT), "only NOWAIT may write less");
            let rest = AlignedBuf::copy_of(&src[done..]);
            file.write_at_with(&rest, offset + done as u64, flags - IoFlags::NOWAIT)?;
        }
        Ok(offset)
    }
    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.check_inside(offset, len)?;
        self.file().trim(offset, len)
    }
    fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.check_inside(offset, len)?;
        self.file().zero(offset, len)
    }
    fn set_len(&self, size: u64) -> Result<()> {
        self.file().set_len(size)
    }
    fn sync(&self) -> Result<()> {
        self.file().sync_data()
    }
    fn drop_caches(&self) -> Result<()> {
        self.cache.drop_clean();
        Ok(())
    }
    fn reopen(&self) -> Result<()> {
        let fresh = self.file().reopen().unwrap();
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

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a number"))
}

/// The seeds of one engine.
fn seeds() -> Range<u64> {
    let first = env("FOREBAY_SEED", 11);
    first..first + env("FOREBAY_FSX_RUNS", 80).div_ceil(20)
}

/// The setup of one run. Each pair of the first two, and of the others, is used in turn.
#[derive(Debug, Clone, Copy)]
struct Setup {
    seed: u64,
    direct_io: DirectIo,
    threads: u64,
    stable: StableStrategy,
    folio_size: u32,
    need: StablePages,
}

impl Setup {
    fn from_seed(seed: u64) -> Self {
        let turn = seed as usize;
        let strategies = StableStrategy::ALL;
        Self {
            seed,
            direct_io: [DirectIo::Off, DirectIo::On][turn % 2],
            threads: [1, 4][turn / 2 % 2],
            stable: strategies[(turn + turn / 4) % strategies.len()],
            folio_size: [4096, 16384, 65536, 2 << 20][(turn + turn / 16) % 4],
            need: if turn.is_multiple_of(5) { StablePages::Auto } else { StablePages::On },
        }
    }

    fn cache(&self, aio: Aio) -> Option<Cache> {
        let (stable, folio_size) = (self.stable, self.folio_size);
        let budget = if folio_size == 2 << 20 { 8 << 20 } else { 4 << 20 };
        cache_on(config(budget).aio(aio).stable(stable).folio_size(folio_size))
    }
}

fn run(aio: Aio, setup: Setup) {
    let Setup { seed, direct_io, threads, .. } = setup;
    let dir = Dir::new(&format!("fsx-{aio}-{seed}"));
    let Some(cache) = setup.cache(aio) else { return };
    let options = options(SIZE).direct_io(direct_io).clone();
    let file = match options.open(&cache, dir.path("image")) {
        Ok(file) => file,
        Err(e) if direct_io == DirectIo::On && e.kind() == ErrorKind::Unsupported => {
            return skip(&e);
        }
        Err(e) => panic!("{e}"),
    };
    let direct_align = direct_unit(&file);
    file.set_stable_pages(setup.need).unwrap();
    let subject = Blocking(Subject { cache, file: RwLock::new(file), turns: AtomicUsize::new(0) });
    std::thread::scope(|scope| {
        for (i, span) in spans(threads).into_iter().enumerate() {
            let subject = &subject;
            let config = workload::Config {
                span,
                direct_align,
                block: 512,
                folio: u64::from(setup.folio_size),
                trim: TrimReads::Zeros,
                ..workload::Config::fixed(SIZE)
            };
            let mut runner = Runner::new(seed * 1000 + i as u64, config, vec![0; SIZE as usize]);
            scope.spawn(move || {
                if let Err(mismatch) = block_on(runner.run(subject, 800 / threads)) {
                    panic!("{aio}, {setup:?}\n{mismatch}");
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
    assert!(std::fs::read(dir.path("image")).unwrap() == cached, "the file differs: {setup:?}");
}

#[test]
fn threads_engine() {
    seeds().for_each(|seed| run(Aio::Threads, Setup::from_seed(seed)));
}

#[test]
fn io_uring_engine() {
    seeds().for_each(|seed| run(Aio::IoUring, Setup::from_seed(seed)));
}

/// A file that grows and is truncated: writes past the end, appends, `set_len`, everything else
/// mixed in.
fn run_growing(aio: Aio, setup: Setup) {
    let Setup { seed, direct_io, .. } = setup;
    let dir = Dir::new(&format!("fsx-grow-{aio}-{seed}"));
    let Some(cache) = setup.cache(aio) else { return };
    let options =
        OpenOptions::read_write().direct_io(direct_io).create(true).create_size(4096).clone();
    let file = match options.open(&cache, dir.path("file")) {
        Ok(file) => file,
        Err(e) if direct_io == DirectIo::On && e.kind() == ErrorKind::Unsupported => {
            return skip(&e);
        }
        Err(e) => panic!("{e}"),
    };
    let direct_align = direct_unit(&file);
    file.set_stable_pages(setup.need).unwrap();
    file.write_at(&[0; 4096], 0).unwrap();
    let config = workload::Config {
        direct_align,
        block: 512,
        folio: u64::from(setup.folio_size),
        trim: TrimReads::Zeros,
        set_len: 40,
        ..workload::Config::growing(2 << 20)
    };
    let subject = Blocking(Subject { cache, file: RwLock::new(file), turns: AtomicUsize::new(0) });
    let mut runner = Runner::new(seed, config, vec![0; 4096]);
    if let Err(mismatch) = block_on(runner.run(&subject, 800)) {
        panic!("{aio}, {setup:?}\n{mismatch}");
    }
    subject.0.file().sync_all().unwrap();
    drop(subject);
    let bytes = std::fs::read(dir.path("file")).unwrap();
    assert!(bytes == runner.model().bytes(), "the file differs");
    assert!(runner.report().set_lens > 5, "{:?}", runner.report());
}

#[test]
fn growing_files() {
    for aio in [Aio::Threads, Aio::IoUring] {
        seeds().for_each(|seed| run_growing(aio, Setup::from_seed(seed)));
    }
}
