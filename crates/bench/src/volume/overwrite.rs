//! Random overwrites of a file, in windows that end with a sync; in this process, or in a child in
//! a memory cgroup.
//!
//! Invariant: O1 the time of a window ends when all its bytes are durable; latencies are of the
//! write calls alone.

use super::places::Opened;
use crate::harness::hist::Hist;
use crate::harness::image::{Rng, open_with};
use crate::rivals::kernel::KernelFile;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use rustix::fs::OFlags;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// Parameters of the overwrites.
#[derive(Clone, Copy, Debug)]
pub struct Overwrite {
    /// Bytes of the file.
    pub len: u64,
    /// Bytes of a write.
    pub block: u64,
    /// Bytes to write in all.
    pub total: u64,
    /// Bytes written between two syncs.
    pub window: u64,
    /// Seed of offsets and content.
    pub seed: u64,
    /// Nine of ten writes go to a tenth of the blocks, which are spread over the file. Otherwise
    /// all blocks are drawn alike.
    pub skewed: bool,
}

/// Result of the overwrites.
#[derive(Debug, Default)]
pub struct Overwritten {
    /// Bytes and seconds of each window.
    pub windows: Vec<(u64, f64)>,
    /// Latencies of the write calls, ns.
    pub hist: Hist,
}

impl Overwrite {
    /// Draws the number of a block.
    fn draw_block(&self, rng: &mut Rng) -> u64 {
        let blocks = self.len / self.block;
        let tenth = blocks / 10;
        match self.skewed && tenth > 0 {
            false => rng.below(blocks),
            true if rng.below(10) > 0 => 10 * rng.below(tenth),
            // The other blocks lie between the blocks of that tenth.
            true => {
                let n = rng.below(9 * tenth);
                n / 9 * 10 + 1 + n % 9
            }
        }
    }

    /// Runs the overwrites on a file.
    pub fn run(&self, file: &dyn Opened) -> Result<Overwritten> {
        let mut rng = Rng::new(self.seed);
        let mut buf = AlignedBuf::new(self.block as usize);
        let (mut out, mut left) = (Overwritten::default(), self.total);
        while left > 0 {
            let bytes = left.min(self.window);
            let start = Instant::now();
            let mut now = start;
            for _ in 0..bytes / self.block {
                let offset = self.draw_block(&mut rng) * self.block;
                buf[..8].copy_from_slice(&rng.draw().to_le_bytes());
                file.write(&buf, offset)?;
                let after = Instant::now();
                out.hist.record((after - now).as_nanos() as u64);
                now = after;
            }
            file.sync()?;
            out.windows.push((bytes, start.elapsed().as_secs_f64()));
            left -= bytes;
        }
        Ok(out)
    }

    /// Encodes the overwrites as a job for a child, on a file of the kernel's page cache.
    pub fn job(&self, path: &Path) -> Value {
        json!({ "job": "overwrite", "path": path, "len": self.len, "block": self.block,
            "total": self.total, "window": self.window, "seed": self.seed,
            "skewed": self.skewed })
    }
}

/// The child's side of [`Overwrite::job`].
pub fn overwrite_job(job: &Value) -> Result<Value> {
    let count = |key: &str| job[key].as_u64().unwrap_or(0);
    let spec = Overwrite {
        len: count("len"),
        block: count("block").max(1),
        total: count("total"),
        window: count("window").max(1),
        seed: count("seed"),
        skewed: job["skewed"] == true,
    };
    let path = Path::new(job["path"].as_str().unwrap_or_default());
    let file = KernelFile::new(open_with(path, OFlags::empty())?);
    spec.run(&file).map(|done| done.to_json())
}

impl Overwritten {
    fn to_json(&self) -> Value {
        json!({ "windows": self.windows, "hist": self.hist.occupied() })
    }

    /// Decodes the answer of a child.
    pub fn from_json(answer: &Value) -> Self {
        let mut out = Self::default();
        for window in answer["windows"].as_array().into_iter().flatten() {
            let (bytes, seconds) = (window[0].as_u64(), window[1].as_f64());
            out.windows.push((bytes.unwrap_or(0), seconds.unwrap_or(f64::NAN)));
        }
        for pair in answer["hist"].as_array().into_iter().flatten() {
            out.hist.record_n(pair[0].as_u64().unwrap_or(0), pair[1].as_u64().unwrap_or(0));
        }
        out
    }

    /// Bytes of all windows.
    pub fn bytes(&self) -> u64 {
        self.windows.iter().map(|w| w.0).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that records, in order, the bytes written before each sync.
    #[derive(Default)]
    struct Counting(std::sync::Mutex<Vec<u64>>);

    impl crate::harness::load::Target for Counting {
        fn read(&self, _: &mut [u8], _: u64) -> Result<()> {
            unreachable!("an overwrite reads nothing")
        }

        fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
            assert!(offset.is_multiple_of(4096) && offset < 64 << 10);
            *self.0.lock().unwrap().last_mut().unwrap() += buf.len() as u64;
            Ok(())
        }
    }

    impl Opened for Counting {
        fn sync(&self) -> Result<()> {
            self.0.lock().unwrap().push(0);
            Ok(())
        }

        fn sync_all(&self) -> Result<()> {
            self.sync()
        }
    }

    fn spec(skewed: bool) -> Overwrite {
        let (total, window) = (40 << 10, 16 << 10);
        Overwrite { len: 64 << 10, block: 4096, total, window, seed: 3, skewed }
    }

    #[test]
    fn skewed_load_writes_nine_of_ten_to_a_tenth() {
        let spec = Overwrite { len: 1000 * 4096, ..spec(true) };
        let mut rng = Rng::new(1);
        let mut counts = vec![0u32; 1000];
        (0..100_000).for_each(|_| counts[spec.draw_block(&mut rng) as usize] += 1);
        let hot: u32 = counts.iter().step_by(10).sum();
        assert!((89_000..91_000).contains(&hot), "{hot}");
        let missed = counts.iter().filter(|count| **count == 0).count();
        assert!(missed < 5, "blocks that are not written: {missed}");
        let spec = Overwrite { skewed: false, ..spec };
        (0..1000).for_each(|_| assert!(spec.draw_block(&mut rng) < 1000));
    }

    #[test]
    fn o1_every_window_ends_with_a_sync() {
        let file = Counting(std::sync::Mutex::new(vec![0]));
        let spec = spec(false);
        let done = spec.run(&file).unwrap();
        assert_eq!(*file.0.lock().unwrap(), [16 << 10, 16 << 10, 8 << 10, 0]);
        assert!(done.windows.iter().all(|w| w.1 > 0.0), "O1");
    }

    #[test]
    fn windows_cover_the_total_and_survive_the_pipe() {
        let path = std::env::temp_dir().join(format!("forebay-overwrite-{}", std::process::id()));
        std::fs::write(&path, vec![0; 64 << 10]).unwrap();
        let spec = spec(false);
        let answer = overwrite_job(&spec.job(&path)).unwrap();
        let done = Overwritten::from_json(&answer);
        let bytes: Vec<u64> = done.windows.iter().map(|w| w.0).collect();
        assert_eq!(bytes, [16 << 10, 16 << 10, 8 << 10]);
        assert_eq!((done.bytes(), done.hist.count()), (40 << 10, 10));
        assert!(std::fs::read(&path).unwrap().iter().any(|b| *b != 0));
        std::fs::remove_file(&path).unwrap();
    }
}
