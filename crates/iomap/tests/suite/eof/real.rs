//! On real threads and both real engines, with direct I/O on and off.

use super::driver::{Driver, Subject, verify};
use super::first_size;
use super::history::History;
use crate::engines::engine;
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, split_mix};
use forebay_block::{Aio, BlockDevice, DirectIo, Engine, FileDevice, FileOptions};
use forebay_cache::{Config, PageCache};
use forebay_iomap::MappedFile;
use forebay_iomap::identity::Identity;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const THREADS: usize = 4;
/// Steps of a thread before everybody stops and all is verified.
const STEPS: usize = 200;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-eof-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(
    folder: &Folder,
    i: usize,
    engine: &Engine,
    direct: bool,
    block: u32,
    size: u64,
) -> Arc<FileDevice> {
    let options = FileOptions {
        direct_io: if direct { DirectIo::Auto } else { DirectIo::Off },
        create_size: Some(size),
        logical_block: block,
        ..FileOptions::default()
    };
    FileDevice::open(folder.0.join(format!("{i}.img")), &options, engine).unwrap()
}

fn round(seed: u64, folder: &Folder, engine: &Engine) {
    let mut rng = seed;
    let world = RealWorld::with_seed(seed);
    let config = Config { huge_pages: false, poison_frames: true, ..Config::with_budget(1 << 20) };
    let cache = PageCache::new(config, world).unwrap();
    let direct = split_mix(&mut rng).is_multiple_of(2);
    let block = [512, 4096][(split_mix(&mut rng) % 2) as usize];
    let truncates = split_mix(&mut rng).is_multiple_of(2);
    let files: Vec<Subject> = (0..2)
        .map(|i| {
            let size = first_size(&mut rng);
            let _ = std::fs::remove_file(folder.0.join(format!("{i}.img")));
            let device = open(folder, i, engine, direct, block, size);
            assert_eq!(device.size(), size);
            let ops = Arc::new(Identity::new(device));
            let file = MappedFile::new(&cache, ops, 4096, size, false).unwrap();
            let history = History::new(i as u8, size);
            Subject { file, history, truncates }
        })
        .collect();
    let (files, wrong) = (Arc::new(files), Mutex::new(None));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (cache, files, rng) = (&cache, &files, split_mix(&mut rng));
            let (wrong, stop) = (&wrong, &stop);
            scope.spawn(move || {
                let unit = u64::from(block);
                let mut driver = Driver::new(cache, files, (rng, unit, true));
                for _ in 0..STEPS {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Err(text) = block_on(driver.step()) {
                        wrong.lock().unwrap().get_or_insert(text);
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                driver.close();
            });
        }
    });
    let wrong = wrong
        .into_inner()
        .unwrap()
        .or_else(|| files.iter().find_map(|subject| block_on(verify(subject, &cache)).err()));
    if let Some(wrong) = wrong {
        panic!("seed {seed}, direct {direct}, block {block}: {wrong}");
    }
}

fn rounds(aio: Aio, name: &str) {
    let seconds = std::env::var("FOREBAY_EOF_SECONDS").map_or(2, |v| v.parse().expect("seconds"));
    let first = std::env::var("FOREBAY_EOF_SEED").map_or(1, |v| v.parse().expect("a number"));
    let folder = Folder::new(name);
    let Some(engine) = engine(aio) else { return };
    let until = Instant::now() + Duration::from_secs(seconds);
    for seed in first.. {
        round(seed, &folder, &engine);
        if Instant::now() >= until {
            break;
        }
    }
}

#[test]
fn d4_d14_no_foreign_and_no_lost_byte_on_threads() {
    rounds(Aio::Threads, "threads");
}

#[test]
fn d4_d14_no_foreign_and_no_lost_byte_on_io_uring() {
    rounds(Aio::IoUring, "uring");
}
