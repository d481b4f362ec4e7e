//! A device in memory, of a fixed size. Chunks appear when they are first written.
//!
//! Invariants: R1 every request completes inside `submit`, on the caller's thread. R2 a chunk
//! that is absent reads as zeros. R3 a request is atomic per chunk, not as a whole.
//! Lock rule: one chunk's lock at a time; no lock is held while a bio completes.

use crate::bdev::{BlockDevice, Limits, MapRuns, StableWrites};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::check::{SECTOR, check_bio, check_range};
use forebay_base::Result;
use forebay_base::sync::RwLock;
use forebay_base::task::BoxFuture;
use forebay_base::units::round_up;

/// Bytes per chunk.
const CHUNK: u64 = 64 << 10;

/// A block device in memory, of a fixed size.
pub struct RamDevice {
    chunks: Vec<RwLock<Option<Box<[u8]>>>>,
    size: u64,
    limits: Limits,
}

impl RamDevice {
    /// A device of `size` bytes of zeros. Takes about 24 bytes per 64 KiB until it is written.
    pub fn new(size: u64) -> Self {
        let limits = Limits {
            logical_block: SECTOR,
            physical_block: 4096,
            memory_align: 1,
            max_transfer: 4 << 20,
            max_segments: 1024,
            stable_writes: StableWrites {
                required: false,
                reason: "memory takes a copy at submission",
            },
            discard: true,
            write_zeroes: true,
            read_only: false,
        };
        let chunks = (0..size.div_ceil(CHUNK)).map(|_| RwLock::new(None)).collect();
        Self { chunks, size, limits }
    }

    /// Bytes of memory that hold content.
    pub fn allocated(&self) -> u64 {
        self.chunks.iter().filter(|c| c.read().is_some()).count() as u64 * CHUNK
    }

    /// Calls `f(chunk index, offset in chunk, offset in range, length)` for each piece.
    fn pieces(offset: u64, len: u64, mut f: impl FnMut(usize, usize, usize, usize)) {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let take = (CHUNK - at % CHUNK).min(len - done);
            f((at / CHUNK) as usize, (at % CHUNK) as usize, done as usize, take as usize);
            done += take;
        }
    }

    fn read_piece(&self, chunk: usize, at: usize, len: usize, f: impl FnOnce(&[u8])) {
        const ZEROS: &[u8] = &[0; CHUNK as usize];
        match &*self.chunks[chunk].read() {
            Some(bytes) => f(&bytes[at..at + len]),
            None => f(&ZEROS[..len]),
        }
    }

    fn write_piece(&self, chunk: usize, at: usize, len: usize, f: impl FnOnce(&mut [u8])) {
        let mut slot = self.chunks[chunk].write();
        let bytes = slot.get_or_insert_with(|| vec![0; CHUNK as usize].into_boxed_slice());
        f(&mut bytes[at..at + len]);
    }

    /// Bytes beyond the device's end, in the last block, are not stored: they read as zeros.
    fn clip(&self, offset: u64, len: u64) -> u64 {
        len.min(self.size.saturating_sub(offset))
    }

    fn zero(&self, offset: u64, len: u64) {
        Self::pieces(offset, self.clip(offset, len), |chunk, at, _, len| {
            let mut slot = self.chunks[chunk].write();
            if len as u64 == CHUNK {
                *slot = None;
            } else if let Some(bytes) = slot.as_mut() {
                bytes[at..at + len].fill(0);
            }
        });
    }

    fn run(&self, bio: &mut Bio) -> Result<()> {
        check_bio(bio, &self.limits, self.size)?;
        let data = &mut bio.data;
        match bio.op {
            BioOp::Read => {
                let kept = self.clip(bio.offset, bio.len);
                Self::pieces(bio.offset, kept, |chunk, at, skip, len| {
                    self.read_piece(chunk, at, len, |src| {
                        data.copy_in(skip, src);
                    });
                });
                data.copy_in(kept as usize, &vec![0; (bio.len - kept) as usize]);
            }
            BioOp::Write => {
                let kept = self.clip(bio.offset, bio.len);
                Self::pieces(bio.offset, kept, |chunk, at, skip, len| {
                    self.write_piece(chunk, at, len, |dst| {
                        data.copy_out(skip, dst);
                    });
                });
            }
            BioOp::Flush => {}
            BioOp::Discard | BioOp::WriteZeroes => self.zero(bio.offset, bio.len),
        }
        Ok(())
    }
}

impl BlockDevice for RamDevice {
    fn name(&self) -> String {
        "ram".into()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn submit(&self, mut bio: Bio) {
        let result = self.run(&mut bio);
        bio.complete(result);
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let len = dst.len() as u64;
        check_range(BioOp::Read, offset, len, &self.limits, self.size)
            .map_err(|e| e.with_range(offset, len))?;
        let kept = self.clip(offset, len);
        Self::pieces(offset, kept, |chunk, at, skip, len| {
            self.read_piece(chunk, at, len, |src| dst[skip..skip + len].copy_from_slice(src));
        });
        dst[kept as usize..].fill(0);
        Ok(())
    }

    fn write_from(&self, offset: u64, src: &[u8], _flags: BioFlags) -> Result<()> {
        let len = src.len() as u64;
        check_range(BioOp::Write, offset, len, &self.limits, self.size)
            .map_err(|e| e.with_range(offset, len))?;
        Self::pieces(offset, self.clip(offset, len), |chunk, at, skip, len| {
            self.write_piece(chunk, at, len, |dst| dst.copy_from_slice(&src[skip..skip + len]));
        });
        Ok(())
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> BoxFuture<'static, Result<MapRuns>> {
        let most = max.max(1);
        let end = (offset + len).min(round_up(self.size, CHUNK));
        let mut runs: MapRuns = Vec::new();
        Self::pieces(offset, end.saturating_sub(offset), |chunk, _, skip, take| {
            let data = self.chunks[chunk].read().is_some();
            match runs.last_mut() {
                Some(run) if run.2 == data => run.1 += take as u64,
                _ => runs.push((offset + skip as u64, take as u64, data)),
            }
        });
        runs.truncate(most);
        Box::pin(std::future::ready(Ok(runs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Completion;
    use forebay_base::ErrorKind;
    use forebay_base::buf::{AlignedBuf, DataRef};
    use forebay_base::task::block_on;

    #[test]
    fn copies_zeroes_and_forgets() {
        let ram = RamDevice::new(3 * CHUNK + 1000);
        let pattern: Vec<u8> = (0..2 * CHUNK as usize).map(|i| (i % 251) as u8).collect();
        ram.write_from(512, &pattern, BioFlags::empty()).unwrap();
        let mut back = vec![0xff; pattern.len()];
        ram.read_into(512, &mut back).unwrap();
        assert_eq!(back, pattern);
        assert_eq!(ram.allocated(), 3 * CHUNK);
        ram.zero(CHUNK, CHUNK);
        assert_eq!(ram.allocated(), 2 * CHUNK);
        assert_eq!(
            block_on(ram.extents(0, 3 * CHUNK, 9)).unwrap(),
            [(0, CHUNK, true), (CHUNK, CHUNK, false), (2 * CHUNK, CHUNK, true)]
        );
    }

    /// R1, R2: a request completes in `submit`; bytes never written read as zeros.
    #[test]
    fn ram_request_completes_in_submit_and_holes_are_zero() {
        let ram = RamDevice::new(3 * CHUNK);
        ram.write_from(CHUNK, &[9; 512], BioFlags::empty()).unwrap();
        let over = std::sync::Arc::new(std::sync::Mutex::new(None));
        let told = over.clone();
        let mut buf = AlignedBuf::new(4 * 512);
        buf.fill(0xff);
        let end = Box::new(move |done: Completion| {
            done.result.unwrap();
            let at = std::thread::current().id();
            *told.lock().unwrap() = Some((at, done.data.into_buf().unwrap()));
        });
        let (at, len) = (CHUNK - 2 * 512, 4 * 512);
        ram.submit(Bio::new(BioOp::Read, at, len, DataRef::Buf(buf), end));
        let (thread, back) = over.lock().unwrap().take().expect("R1: over inside `submit`");
        assert_eq!(thread, std::thread::current().id(), "R1");
        assert!(back[..1024].iter().all(|&b| b == 0), "R2: an absent chunk");
        assert!(back[1024..1536] == [9; 512] && back[1536..].iter().all(|&b| b == 0));
        assert_eq!(ram.allocated(), CHUNK, "reading makes no chunk");
    }

    /// R3: two writers of a full chunk and a concurrent reader, which sees one write or the other.
    #[test]
    fn full_chunk_write_is_atomic() {
        let ram = RamDevice::new(CHUNK);
        let whole = CHUNK as usize;
        std::thread::scope(|s| {
            for byte in [1, 2] {
                let ram = &ram;
                s.spawn(move || {
                    let chunk = vec![byte; whole];
                    (0..200).for_each(|_| ram.write_from(0, &chunk, BioFlags::empty()).unwrap());
                });
            }
            let mut back = vec![0; whole];
            for _ in 0..400 {
                ram.read_into(0, &mut back).unwrap();
                assert!(back.iter().all(|&b| b == back[0]), "R3: half of one, half of another");
            }
        });
    }

    #[test]
    fn ram_last_block_beyond_end_is_zero() {
        let ram = RamDevice::new(1000);
        ram.write_from(512, &[7; 512], BioFlags::empty()).unwrap();
        let mut back = [1; 512];
        ram.read_into(512, &mut back).unwrap();
        assert_eq!((back[487], back[488]), (7, 0));
        let beyond = ram.read_into(1024, &mut back).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::OutOfRange);
        assert_eq!(beyond.range(), Some((1024, 512)));
        assert_eq!(ram.read_into(100, &mut back).unwrap_err().kind(), ErrorKind::Unaligned);
    }
}
