//! A subject in memory: the simplest correct one, or, with a [`Bug`], a wrong one that the harness
//! must find. It holds the durable bytes apart, so that it can simulate a crash.
//!
//! Locks: one, never held across a wait.

use super::BlockingSubject;
use forebay_base::sync::Mutex;
use forebay_base::world::split_mix;
use forebay_base::{Error, ErrorKind, IoFlags, Result};

/// A mistake that storage stacks make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The last bytes of an unaligned write are lost when it crosses a folio.
    TailLostAtFolio,
    /// A direct write leaves a cached copy behind: after it, reads see the old bytes until the
    /// caches are dropped.
    StaleAfterDirect,
    /// Growing over a gap shows old bytes instead of zeros.
    GapNotZeroed,
    /// Zeroing clears whole blocks.
    ZeroTooMuch,
    /// A write with `DSYNC` is not durable.
    DsyncIgnored,
    /// A sync makes only the first half durable.
    HalfSync,
    /// `NOWAIT` says it would block, after having written.
    NowaitHalfDone,
    /// Appends go to where the last write ended.
    AppendElsewhere,
    /// Unaligned direct writes are accepted.
    DirectUnaligned,
    /// Bytes that a truncate removed show again when the file grows.
    CutTailComesBack,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// What cached reads see instead, with `StaleAfterDirect`.
    stale: Option<(u64, Vec<u8>)>,
    last_end: u64,
    /// What the last truncate cut off.
    behind: Vec<u8>,
    rng: u64,
}

/// Bytes in memory, correct or with an injected [`Bug`].
pub struct MemSubject {
    state: Mutex<State>,
    bug: Option<Bug>,
    grows: bool,
}

const BLOCK: u64 = 512;
const FOLIO: u64 = 64 << 10;

impl MemSubject {
    /// A subject that durably holds `bytes`.
    pub fn new(bytes: Vec<u8>, grows: bool, bug: Option<Bug>) -> Self {
        let state = State { durable: bytes.clone(), bytes, rng: 1, ..State::default() };
        Self { state: Mutex::new(state), bug, grows }
    }

    /// Loses, per block and by the seed, what is not durable.
    pub fn crash(&self, seed: u64) {
        let mut state = self.state.lock();
        let mut rng = seed;
        let mut bytes = state.durable.clone();
        if split_mix(&mut rng) & 1 == 0 {
            bytes.resize(state.bytes.len(), 0);
        }
        for (old, new) in bytes.chunks_mut(BLOCK as usize).zip(state.bytes.chunks(BLOCK as usize)) {
            if split_mix(&mut rng) & 1 == 0 {
                let n = old.len().min(new.len());
                old[..n].copy_from_slice(&new[..n]);
            }
        }
        (state.durable, state.bytes, state.stale) = (bytes.clone(), bytes, None);
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "memory subject", "")
}

impl State {
    fn put(&mut self, at: u64, src: &[u8], gap: u8) {
        let end = at as usize + src.len();
        if end > self.bytes.len() && !src.is_empty() {
            self.bytes.resize(end, gap);
        }
        self.bytes[at as usize..end.max(at as usize)].copy_from_slice(src);
        self.last_end = end as u64;
    }

    fn would_block(&mut self, flags: IoFlags) -> bool {
        flags.contains(IoFlags::NOWAIT) && split_mix(&mut self.rng).is_multiple_of(3)
    }
}

fn unaligned(flags: IoFlags, at: u64, len: usize) -> bool {
    let direct = flags.contains(IoFlags::DIRECT) && !flags.contains(IoFlags::FALLBACK);
    direct && !(at | len as u64).is_multiple_of(BLOCK)
}

impl BlockingSubject for MemSubject {
    fn size(&self) -> u64 {
        self.state.lock().bytes.len() as u64
    }

    fn read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        flags.check(false)?;
        if unaligned(flags, offset, dst.len()) {
            return Err(error(ErrorKind::Unaligned));
        }
        let mut state = self.state.lock();
        if state.would_block(flags) {
            return Err(error(ErrorKind::WouldBlock));
        }
        let rest = state.bytes.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        if let Some((at, old)) = &state.stale
            && !flags.contains(IoFlags::DIRECT)
        {
            for (i, byte) in dst[..n].iter_mut().enumerate() {
                let place = (offset + i as u64).checked_sub(*at).map(|p| p as usize);
                *byte = place.and_then(|p| old.get(p)).copied().unwrap_or(*byte);
            }
        }
        Ok(n)
    }

    fn write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<u64> {
        flags.check(true)?;
        let mut state = self.state.lock();
        let size = state.bytes.len() as u64;
        let append = flags.contains(IoFlags::APPEND);
        let end = if self.has(Bug::AppendElsewhere) { state.last_end.min(size) } else { size };
        let at = if append { end } else { offset };
        if unaligned(flags, at, src.len()) && !self.has(Bug::DirectUnaligned) {
            return Err(error(ErrorKind::Unaligned));
        }
        if !self.grows && at + src.len() as u64 > size {
            return Err(error(ErrorKind::OutOfRange));
        }
        if src.is_empty() {
            return Ok(at);
        }
        let blocks = state.would_block(flags);
        if blocks && !self.has(Bug::NowaitHalfDone) {
            return Err(error(ErrorKind::WouldBlock));
        }
        let old = state.bytes.get(at as usize..).unwrap_or_default();
        let old = old[..old.len().min(src.len())].to_vec();
        let crosses = at / FOLIO != (at + src.len() as u64) / FOLIO;
        let torn = self.has(Bug::TailLostAtFolio) && crosses && src.len() > 8 && at % BLOCK != 0;
        state.put(at, src, if self.has(Bug::GapNotZeroed) { 0xaa } else { 0 });
        if torn && old.len() == src.len() {
            let tail = (at as usize + src.len() - 4)..(at as usize + src.len());
            state.bytes[tail].copy_from_slice(&old[src.len() - 4..]);
        }
        if self.has(Bug::StaleAfterDirect) {
            state.stale = flags.contains(IoFlags::DIRECT).then_some((at, old));
        }
        if flags.intersects(IoFlags::DSYNC | IoFlags::SYNC) && !self.has(Bug::DsyncIgnored) {
            let reach = state.durable.len().max(at as usize + src.len()).min(state.bytes.len());
            state.durable.resize(reach, 0);
            state.durable[at as usize..at as usize + src.len()].copy_from_slice(src);
        }
        if blocks { Err(error(ErrorKind::WouldBlock)) } else { Ok(at) }
    }

    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let blocks = offset.div_ceil(BLOCK)..(offset + len) / BLOCK;
        let (from, to) = (blocks.start * BLOCK, blocks.end * BLOCK);
        if from < to { self.zero(from, to - from) } else { Ok(()) }
    }

    fn zero(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let size = state.bytes.len() as u64;
        if offset + len > size {
            return Err(error(ErrorKind::OutOfRange));
        }
        let end = if self.has(Bug::ZeroTooMuch) {
            ((offset + len).div_ceil(BLOCK) * BLOCK).min(size)
        } else {
            offset + len
        };
        state.bytes[offset as usize..end as usize].fill(0);
        state.stale = None;
        Ok(())
    }

    fn set_len(&self, size: u64) -> Result<()> {
        if !self.grows {
            return Err(error(ErrorKind::Unsupported));
        }
        let mut state = self.state.lock();
        if !self.has(Bug::CutTailComesBack) {
            state.behind.clear();
        }
        // The bytes removed are kept only for the bug.
        let old = state.bytes.len();
        let cut = state.bytes.split_off(old.min(size as usize));
        let back = std::mem::replace(&mut state.behind, cut);
        state.bytes.extend(back.into_iter().take((size as usize).saturating_sub(old)));
        state.bytes.resize(size as usize, 0);
        state.stale = None;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        let half = if self.has(Bug::HalfSync) { state.bytes.len() / 2 } else { state.bytes.len() };
        let keep = state.durable.get(half..).unwrap_or_default().to_vec();
        let mut durable = state.bytes[..half].to_vec();
        durable.extend(keep);
        durable.resize(state.bytes.len(), 0);
        state.durable = durable;
        Ok(())
    }

    fn drop_caches(&self) -> Result<()> {
        self.state.lock().stale = None;
        Ok(())
    }

    fn reopen(&self) -> Result<()> {
        self.drop_caches()
    }
}
