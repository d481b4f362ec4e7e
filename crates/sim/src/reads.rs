//! Records the reads of a crash state: a program that reads the same of two states does the same on
//! both.
//!
//! Invariants: B1 on a disk that began with a state, the record has each read of a sector that
//! still has the state's content; sectors written since do not belong to the state. B2 the record
//! is in the order in which the data moved. So two runs of one program first differ in the content
//! that they read, not in the position.
//!
//! Locks: one, a leaf.

use crate::image::Image;
use forebay_base::sync::Mutex;
use std::sync::Arc;

/// Some sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// The first one.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// Reads of one crash state, by all disks that record them. Clones are handles to the same record.
#[derive(Clone)]
pub struct Reads(Arc<Mutex<Noted>>);

struct Noted {
    base: Image,
    /// Each read with the sum of the sectors' content.
    list: Vec<(Read, u64)>,
    given_up: bool,
}

impl Reads {
    pub(crate) fn of(base: Image) -> Self {
        Self(Arc::new(Mutex::new(Noted { base, list: Vec::new(), given_up: false })))
    }

    /// The reads and their sums. `None`: a request depended on more than content.
    pub fn list(&self) -> Option<Vec<(Read, u64)>> {
        let noted = self.0.lock();
        (!noted.given_up).then(|| noted.list.clone())
    }

    /// Gives up the record, because a request depends on more than content.
    pub fn give_up(&self) {
        self.0.lock().given_up = true;
    }

    pub(crate) fn note_bytes(&self, now: &Image, offset: u64, len: u64) {
        let size = now.sector_bytes();
        let (first, end) = (offset / size, (offset + len).div_ceil(size));
        self.note(now, Read { first, count: end - first });
    }

    /// Records which of these sectors still have the state's content (reads.B1).
    pub(crate) fn note(&self, now: &Image, read: Read) {
        let noted = &mut *self.0.lock();
        let (mut at, end) = (read.first, read.first + read.count);
        while at < end {
            let first = at;
            while at < end && now.is_from(&noted.base, at) {
                at += 1;
            }
            if at > first {
                let read = Read { first, count: at - first };
                noted.list.push((read, noted.base.sum_of(read.first, read.count)));
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Read, SimConfig, SimDisk};
    use forebay_base::sim_world::SimWorld;
    use forebay_block::{BioFlags, BlockDevice};

    /// B1, B2: sectors written since, also before another power loss, are not recorded; the others
    /// are, in order.
    #[test]
    fn reads_of_first_state_are_recorded() {
        let disk = |seed| SimDisk::new(SimWorld::new(seed), SimConfig::default());
        let first = disk(1);
        first.poke(0, &[7; 4096]);
        let state = first.cut_state(1);
        let (reads, disk) = (state.reads(), state.mount(SimWorld::new(2)));
        disk.record_reads(&reads);
        let mut out = vec![0; 4096];
        disk.write_from(1024, &[8; 1024], BioFlags::FUA).unwrap();
        disk.read_into(512, &mut out[..2048]).unwrap();
        disk.read_into(0, &mut out[..512]).unwrap();
        disk.read_into(1024, &mut out[..512]).unwrap();
        let read = |first, count| Read { first, count };
        let found: Vec<Read> = reads.list().unwrap().into_iter().map(|(read, _)| read).collect();
        assert_eq!(found, [read(1, 1), read(4, 1), read(0, 1)]);
        let again = disk.cut_state(1);
        again.note_read(&reads, read(2, 4));
        let list = reads.list().unwrap();
        assert_eq!(list[3], (read(4, 2), state.sum_of(read(4, 2))));
        assert_ne!(again.sum_of(read(2, 4)), state.sum_of(read(2, 4)));
        assert_eq!(list.len(), 4);
    }
}
