//! The storage of a simulated disk: the durable image, the volatile cache on top of it, and the
//! effect of each kind of fault on them.
//!
//! Invariants: M1 `current` is `durable` with all of `pending` applied in order, except for
//! sectors that a failed flush has lost (they read new until rewritten or evicted). M2 pending
//! writes are in completion order. M3 a sector that became durable out of turn (FUA) is taken out
//! of older pending writes, so that no crash state can bring the older content back.
//!
//! No locks: the disk's own lock covers it.

use crate::config::SimConfig;
use crate::fault::{Fault, FaultCounts};
use crate::image::{Change, Image, split};
use forebay_base::world::split_mix;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::bio::BioOp;

/// A completed write (or zeroing, or discard) that no flush has covered yet.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub serial: u64,
    pub op: BioOp,
    pub changes: Vec<Change>,
}

/// The durable image and the volatile cache of a disk.
#[derive(Clone)]
pub(crate) struct Media {
    pub sector: usize,
    pub sectors: u64,
    /// Completed writes stay volatile until a flush.
    pub volatile: bool,
    /// Most sectors that may be allocated.
    pub space: Option<u64>,
    pub durable: Image,
    pub current: Image,
    pub pending: Vec<Pending>,
    pub next_serial: u64,
    pub rng: u64,
    pub counts: FaultCounts,
}

fn failed(kind: ErrorKind, op: BioOp) -> Error {
    let op_name = match op {
        BioOp::Read => "read",
        BioOp::Write => "write",
        BioOp::Flush => "flush",
        BioOp::Discard => "discard",
        BioOp::WriteZeroes => "write zeroes",
    };
    Error::new(kind, op_name, "simulated fault")
}

impl Media {
    /// Media that durably hold `image`, with nothing pending.
    pub fn new(config: &SimConfig, image: Image, rng: u64) -> Self {
        Self {
            sector: config.sector as usize,
            sectors: config.size / u64::from(config.sector),
            volatile: config.volatile_cache,
            space: None,
            current: image.clone(),
            durable: image,
            pending: Vec::new(),
            next_serial: 0,
            rng,
            counts: FaultCounts::default(),
        }
    }

    /// The media as the next user of the disk finds them: sectors that a failed flush has lost read
    /// as what is durable, and nothing limits the space.
    pub fn for_next_user(mut self) -> Self {
        self.current = self.durable.clone();
        for change in self.pending.iter().flat_map(|p| &p.changes) {
            self.current.set(change.clone());
        }
        self.space = None;
        self
    }

    fn pick(&mut self, n: u64) -> u64 {
        split_mix(&mut self.rng) % n.max(1)
    }

    /// Reads; `offset` and length may be anything inside the disk.
    pub fn read(&mut self, offset: u64, dst: &mut [u8], fault: Option<Fault>) -> Result<()> {
        match fault {
            Some(Fault::Fail(kind)) => return Err(failed(kind, BioOp::Read)),
            Some(Fault::Short) => {
                let part = self.pick(dst.len() as u64) as usize;
                self.current.read(offset, &mut dst[..part]);
                return Err(Error::new(ErrorKind::Io, "read", "simulated short transfer"));
            }
            _ => self.current.read(offset, dst),
        }
        if fault == Some(Fault::Flip) && !dst.is_empty() {
            let bit = self.pick(dst.len() as u64 * 8) as usize;
            dst[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(())
    }

    /// Stores the changes of one write, zeroing or discard.
    pub fn change(
        &mut self,
        op: BioOp,
        mut changes: Vec<Change>,
        fua: bool,
        fault: Option<Fault>,
    ) -> Result<()> {
        let mut result = Ok(());
        match fault {
            Some(Fault::Fail(kind)) => {
                result = Err(failed(kind, op));
                let mode = if kind == ErrorKind::NoSpace { 0 } else { self.pick(3) };
                changes.retain(|_| mode == 2 || mode == 1 && split_mix(&mut self.rng) & 1 == 0);
            }
            Some(Fault::Short) => {
                result = Err(Error::new(ErrorKind::Io, "write", "simulated short transfer"));
                changes.truncate(self.pick(changes.len() as u64) as usize);
            }
            Some(Fault::Torn) => self.tear(&mut changes),
            Some(Fault::Lost) => changes.clear(),
            Some(Fault::Misdirect) => self.misdirect(&mut changes),
            Some(Fault::Flip) => {
                let victim = self.pick(changes.len() as u64) as usize;
                if let Some(change) = changes.get_mut(victim) {
                    self.flip(change);
                }
            }
            Some(Fault::Slow(_)) | None => {}
        }
        if !self.has_room(&changes) {
            self.counts.no_space += 1;
            return Err(failed(ErrorKind::NoSpace, op));
        }
        // A failed write promises nothing, so its leftovers are volatile even with FUA.
        self.store(op, changes, fua && result.is_ok());
        result
    }

    fn has_room(&self, changes: &[Change]) -> bool {
        let Some(space) = self.space else { return true };
        let news = |c: &&Change| c.1.is_some() && self.current.get(c.0).is_none();
        let wanted = changes.iter().filter(news).count() as u64;
        wanted == 0 || self.current.allocated() + wanted <= space
    }

    pub fn store(&mut self, op: BioOp, changes: Vec<Change>, durable: bool) {
        if changes.is_empty() {
            return;
        }
        for change in &changes {
            self.current.set(change.clone());
        }
        if durable || !self.volatile {
            self.make_durable(changes);
        } else {
            let last = self.pending.last().map(|p| p.serial);
            debug_assert!(last.is_none_or(|last| last < self.next_serial), "M2: {last:?}");
            self.pending.push(Pending { serial: self.next_serial, op, changes });
            self.next_serial += 1;
        }
    }

    /// Puts changes into the durable image out of turn (media.M3). The changes of one call are in
    /// ascending order of sectors.
    fn make_durable(&mut self, changes: Vec<Change>) {
        let (first, last) = (changes[0].0, changes[changes.len() - 1].0);
        let newer = |n: u64| {
            (first..=last).contains(&n) && changes.binary_search_by_key(&n, |c| c.0).is_ok()
        };
        for old in &mut self.pending {
            old.changes.retain(|c| !newer(c.0));
        }
        self.pending.retain(|p| !p.changes.is_empty());
        let left = |c: &Change| self.pending.iter().any(|p| p.changes.iter().any(|d| d.0 == c.0));
        debug_assert!(!changes.iter().any(left), "M3: an older write of a durable sector is left");
        changes.into_iter().for_each(|c| self.durable.set(c));
    }

    /// Makes durable what completed before serial `until`.
    pub fn flush(&mut self, until: u64, fault: Option<Fault>) -> Result<()> {
        match fault {
            Some(Fault::Lost) => return Ok(()),
            Some(Fault::Fail(kind)) => {
                self.fail_flush(until);
                return Err(failed(kind, BioOp::Flush));
            }
            _ => {}
        }
        let covered = self.pending.partition_point(|p| p.serial < until);
        for done in self.pending.drain(..covered) {
            done.changes.into_iter().for_each(|c| self.durable.set(c));
        }
        Ok(())
    }

    /// Applies a failed flush: makes each covered write durable, pending, or lost. A lost one reads
    /// new for a while or old at once, and no later flush makes it durable.
    fn fail_flush(&mut self, until: u64) {
        for mut done in std::mem::take(&mut self.pending) {
            let fate = if done.serial < until { self.pick(4) } else { 0 };
            match fate {
                0 => self.pending.push(done),
                1 => {
                    let earlier = &mut self.pending;
                    for old in earlier.iter_mut() {
                        old.changes.retain(|c| !done.changes.iter().any(|d| d.0 == c.0));
                    }
                    for change in done.changes.drain(..) {
                        // An older write that was lost may have made it read old.
                        self.current.set(change.clone());
                        self.durable.set(change);
                    }
                }
                2 => done.changes.drain(..).for_each(|c| self.current.set(c)),
                _ => {
                    for (number, _) in &done.changes {
                        self.current.set((*number, self.durable.get(*number).cloned()));
                    }
                }
            }
        }
        self.pending.retain(|p| !p.changes.is_empty());
        // Later pending writes still read as written (media.M1).
        for change in self.pending.iter().flat_map(|p| &p.changes) {
            self.current.set(change.clone());
        }
    }

    /// Keeps a part of the changes: a prefix, a suffix, or some; of a single sector the first
    /// bytes.
    pub fn tear(&mut self, changes: &mut Vec<Change>) {
        let n = changes.len() as u64;
        if n == 1 {
            let (number, content) = &changes[0];
            let mut bytes = vec![0; self.sector];
            self.current.read(number * self.sector as u64, &mut bytes);
            let cut = 1 + split_mix(&mut self.rng) as usize % (self.sector - 1);
            match content {
                Some(new) => bytes[..cut].copy_from_slice(&new.bytes()[..cut]),
                None => bytes[..cut].fill(0),
            }
            *changes = split(*number, bytes, self.sector);
        } else if n > 1 {
            let cut = 1 + self.pick(n - 1) as usize;
            match self.pick(3) {
                0 => changes.truncate(cut),
                1 => drop(changes.drain(..cut)),
                _ => {
                    changes.remove(cut);
                    changes.retain(|_| split_mix(&mut self.rng) & 1 == 0);
                }
            }
        }
    }

    /// Moves the changes unchanged to another offset on the disk.
    fn misdirect(&mut self, changes: &mut Vec<Change>) {
        let n = changes.len() as u64;
        if n == 0 || n >= self.sectors {
            changes.clear();
            return;
        }
        let from = changes[0].0;
        let mut to = self.pick(self.sectors - n);
        if to >= from {
            to += 1;
        }
        for (i, change) in changes.iter_mut().enumerate() {
            change.0 = to + i as u64;
        }
    }

    /// Flips one bit of a sector's content.
    fn flip(&mut self, change: &mut Change) {
        let mut bytes = match &change.1 {
            Some(sector) => sector.bytes().to_vec(),
            None => vec![0; self.sector],
        };
        let bit = self.pick(bytes.len() as u64 * 8) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        change.1 = split(change.0, bytes, self.sector)[0].1.clone();
    }

    /// Bit rot: flips one bit of the sector's current content, durably.
    pub fn rot(&mut self, number: u64) {
        let mut change = (number, self.current.get(number).cloned());
        self.flip(&mut change);
        self.counts.rotten += 1;
        self.current.set(change.clone());
        self.make_durable(vec![change]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SECTORS: u64 = 6;

    /// Sectors that hold the number of the write that stored them.
    fn numbered(first: u64, count: u64, number: u64) -> Vec<Change> {
        let content = |_| [number.to_le_bytes().to_vec(), vec![1; 504]].concat();
        split(first, (0..count).flat_map(content).collect(), 512)
    }

    fn number_in(image: &Image, sector: u64) -> u64 {
        let bytes = image.get(sector).map(|found| found.bytes()[..8].try_into());
        bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.expect("8 bytes")))
    }

    /// media.M1. The story: of two writes of a sector a failed flush lost the older one, and made
    /// the newer one durable. From then on reads gave the content from before both. Only a sector
    /// that was lost, and not written since, may read as something else, which is newer.
    #[test]
    fn m1_reads_give_durable_content_with_pending_writes() {
        let (mut newer, mut failed) = (0, 0);
        for seed in 0..2000 {
            let config = SimConfig { size: SECTORS * 512, sector: 512, ..SimConfig::default() };
            let mut media = Media::new(&config, Image::new(512), seed);
            let (mut rng, mut lost) = (seed, BTreeSet::new());
            let mut pick = |n: u64| split_mix(&mut rng) % n;
            for number in 1..40 {
                let until = media.next_serial;
                match pick(8) {
                    0 => media.flush(until, None).unwrap(),
                    1 => {
                        lost.extend(media.pending.iter().flat_map(|p| &p.changes).map(|c| c.0));
                        media.flush(until, Some(Fault::Fail(ErrorKind::Io))).unwrap_err();
                        failed += 1;
                    }
                    kind => {
                        let first = pick(SECTORS);
                        let changes = numbered(first, 1 + pick(SECTORS - first), number);
                        changes.iter().for_each(|change| _ = lost.remove(&change.0));
                        media.store(BioOp::Write, changes, kind == 2);
                    }
                }
                let mut wanted = media.durable.clone();
                let pending = media.pending.iter().flat_map(|p| &p.changes);
                pending.for_each(|change| wanted.set(change.clone()));
                for sector in 0..SECTORS {
                    let (found, wanted) =
                        (number_in(&media.current, sector), number_in(&wanted, sector));
                    let is_newer = lost.contains(&sector) && found > wanted;
                    newer += u64::from(is_newer);
                    let what = || format!("M1: seed {seed}, {number}: {found}, not {wanted}");
                    assert!(found == wanted || is_newer, "{}", what());
                }
            }
        }
        assert!(newer > 100 && failed > 100, "{newer} lost sectors, {failed} failed flushes");
    }
}
