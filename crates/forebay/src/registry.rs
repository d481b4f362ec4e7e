//! The files of a cache by what they are, not by their paths: opening one twice shares it, and what a closed
//! file leaves in the cache is found again.
//!
//! ```text
//!            claim                 share (any number of times)
//!   absent ────────▶ busy ──────▶ open ───┐
//!      ▲               ▲ ▲         │ ▲────┘
//!      │               │ │         │ the last opener goes: closing
//!      │         claim │ │ claim   ▼
//!      │               │ └──── lingering  (kept while it owes something, or held by work in the background)
//!      └─ swept ─── resident ◀─────┘  gone
//! ```
//! Invariants: R1 a file is opened and closed by one at a time: *busy*, and *open* without an opener, are
//! waited for. R2 a resident entry names blocks that are the file's content, if its stamp is the file's.
//! R3 entries of files that are gone are swept before they are more than the others.
//! Lock: one, not held while a file is opened, synced or dropped.

use crate::file::Closing;
use forebay_block::{FileDevice, FileIdentity, FileStamp};
use forebay_iomap::MappedFile;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

/// Entries below which nobody sweeps.
const FEW: usize = 1024;

/// What of a file is shown, and in which blocks: openers that share it have to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub offset: u64,
    pub size_limit: Option<u64>,
    pub block_size: u32,
}

/// A closed file whose blocks may be in the cache still.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    /// Its mapping's number.
    pub id: u32,
    pub view: View,
    /// The file as we left it.
    pub stamp: FileStamp,
}

/// A file without openers that is not gone.
#[derive(Clone)]
pub(crate) struct Lingering {
    pub file: Weak<MappedFile>,
    pub raw: Weak<FileDevice>,
    pub view: View,
    pub resident: Option<Resident>,
}

enum Entry {
    Busy,
    Open(Weak<Closing>),
    Lingering(Box<Lingering>),
    Resident(Resident),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Mutex<Entries>,
    changed: Condvar,
}

#[derive(Default)]
struct Entries {
    map: HashMap<FileIdentity, Entry>,
    /// Entries at the last sweep that were not swept.
    left: usize,
}

/// What a claim finds.
pub(crate) enum Found<'a> {
    /// The file is open.
    Open(Arc<Closing>),
    /// It is the caller's to open.
    Free(Claim<'a>),
}

/// The right to open a file, or close it; given back, with nothing changed, on drop.
pub(crate) struct Claim<'a> {
    registry: &'a Registry,
    key: FileIdentity,
    pub lingering: Option<Box<Lingering>>,
    pub resident: Option<Resident>,
    over: bool,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Claims a file, or finds it open (R1).
    pub fn claim(&self, key: FileIdentity) -> Found<'_> {
        let mut entries = self.lock();
        loop {
            match entries.map.entry(key) {
                Place::Occupied(mut place) => match place.get() {
                    Entry::Busy => {}
                    Entry::Open(closing) => {
                        if let Some(closing) = closing.upgrade() {
                            return Found::Open(closing);
                        }
                    }
                    Entry::Lingering(_) | Entry::Resident(_) => {
                        let was = place.insert(Entry::Busy);
                        return Found::Free(Claim::of(self, key, was));
                    }
                },
                Place::Vacant(place) => {
                    place.insert(Entry::Busy);
                    return Found::Free(Claim::of(self, key, Entry::Busy));
                }
            }
            entries = self.changed.wait(entries).unwrap_or_else(|p| p.into_inner());
        }
    }

    fn set(&self, key: FileIdentity, entry: Option<Entry>) {
        let mut entries = self.lock();
        // Dropped after the lock.
        let _was = match entry {
            Some(entry) => entries.map.insert(key, entry),
            None => entries.map.remove(&key),
        };
        drop(entries);
        self.changed.notify_all();
    }

    /// The last opener of a file has gone and has done what there was to do.
    pub fn closed(&self, key: FileIdentity, lingering: Lingering) {
        let entry = match (lingering.file.strong_count(), lingering.resident) {
            (0, resident) => resident.map(Entry::Resident),
            _ => Some(Entry::Lingering(Box::new(lingering))),
        };
        self.set(key, entry);
    }

    /// Forgets files that are gone, if they may be many (R3). `known`: whether a mapping owns anything.
    pub fn sweep(&self, known: impl Fn(u32) -> bool) {
        let mut entries = self.lock();
        if entries.map.len() < FEW.max(2 * entries.left) {
            return;
        }
        entries.map.retain(|_, entry| {
            if let Entry::Lingering(lingering) = entry
                && lingering.file.strong_count() == 0
            {
                let Some(resident) = lingering.resident else { return false };
                *entry = Entry::Resident(resident);
            }
            !matches!(entry, Entry::Resident(resident) if !known(resident.id))
        });
        entries.left = entries.map.len();
    }

    /// Files there are entries of.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().map.len()
    }

    /// The file, if it is open or lingers.
    pub fn find(&self, key: FileIdentity) -> Option<Arc<MappedFile>> {
        let (open, lingering) = {
            let entries = self.lock();
            match entries.map.get(&key)? {
                Entry::Open(closing) => (closing.upgrade(), None),
                Entry::Lingering(lingering) => (None, lingering.file.upgrade()),
                Entry::Busy | Entry::Resident(_) => (None, None),
            }
        };
        // Not under the lock: this may be the last opener by now.
        open.map(|closing| closing.file().clone()).or(lingering)
    }
}

impl<'a> Claim<'a> {
    fn of(registry: &'a Registry, key: FileIdentity, was: Entry) -> Self {
        let (lingering, resident) = match was {
            Entry::Lingering(lingering) => {
                let resident = lingering.resident;
                (Some(lingering), resident)
            }
            Entry::Resident(resident) => (None, Some(resident)),
            Entry::Busy | Entry::Open(_) => (None, None),
        };
        Self { registry, key, lingering, resident, over: false }
    }

    /// The file is open.
    pub fn opened(mut self, closing: &Arc<Closing>) {
        self.over = true;
        self.registry.set(self.key, Some(Entry::Open(Arc::downgrade(closing))));
    }

    /// What was in the cache of it is not its content any more.
    pub fn forget(&mut self) -> Option<Resident> {
        self.lingering = None;
        self.resident.take()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let entry = match (self.lingering.take(), self.resident) {
            (Some(lingering), _) => Some(Entry::Lingering(lingering)),
            (None, resident) => resident.map(Entry::Resident),
        };
        self.registry.set(self.key, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_files_that_are_gone_are_swept() {
        let registry = Registry::default();
        let view = View { offset: 0, size_limit: None, block_size: 4096 };
        for i in 0..10_000u32 {
            let key = FileIdentity::Inode(1, u64::from(i));
            let resident = Some(Resident { id: i, view, stamp: FileStamp::default() });
            let (file, raw) = (Weak::new(), Weak::new());
            registry.closed(key, Lingering { file, raw, view, resident });
            registry.sweep(|id| id % 10 == 0);
        }
        assert!((1000..2000 + FEW).contains(&registry.len()), "R3: {}", registry.len());
        // A claim that comes to nothing changes nothing.
        let key = FileIdentity::Inode(1, 0);
        let Found::Free(claim) = registry.claim(key) else { panic!("nobody has it open") };
        assert_eq!(claim.resident.map(|r| r.id), Some(0));
        drop(claim);
        let Found::Free(mut claim) = registry.claim(key) else { panic!("nobody has it open") };
        assert!(claim.forget().is_some());
        drop(claim);
        let Found::Free(claim) = registry.claim(key) else { panic!("nobody has it open") };
        assert!(claim.resident.is_none());
    }
}
