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
//! R3 entries of files that are gone are swept before they are more than the others. R4 a file that is on
//! its way out in the hands of somebody else is waited for before it is opened anew: it holds the lock
//! until then.
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
    pub locked: Locked,
}

/// Held by a file's device for as long as the file is open below, and locked.
pub(crate) struct Lock(Arc<Inner>);

impl Drop for Lock {
    fn drop(&mut self) {
        // By now the file is closed, and no [`Locked`] sees this any more. Whoever looked before that waits
        // by now, or has not looked yet.
        drop(self.0.lock());
        self.0.changed.notify_all();
    }
}

/// Whether a file is locked still.
#[derive(Clone, Default)]
pub(crate) struct Locked(Weak<Lock>);

impl Locked {
    pub fn by(lock: &Arc<Lock>) -> Self {
        Self(Arc::downgrade(lock))
    }

    fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

enum Entry {
    Busy,
    Open(Weak<Closing>),
    Lingering(Box<Lingering>),
    Resident(Resident),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Registry(Arc<Inner>);

#[derive(Default)]
pub(crate) struct Inner {
    entries: Mutex<Entries>,
    changed: Condvar,
    /// Who waits for a file to be let go (R4).
    #[cfg(test)]
    waiting: std::sync::atomic::AtomicUsize,
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

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn wait<'a>(&self, entries: MutexGuard<'a, Entries>) -> MutexGuard<'a, Entries> {
        self.changed.wait(entries).unwrap_or_else(|p| p.into_inner())
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock()
    }

    /// What the device of a file is to hold.
    pub fn new_lock(&self) -> Arc<Lock> {
        Arc::new(Lock(self.0.clone()))
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
            entries = self.0.wait(entries);
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
        self.0.changed.notify_all();
    }

    /// The last opener of a file has gone and has done what there was to do.
    pub fn closed(&self, key: FileIdentity, lingering: Lingering) {
        let entry = match (lingering.locked.is_over(), lingering.resident) {
            (true, resident) => resident.map(Entry::Resident),
            (false, _) => Some(Entry::Lingering(Box::new(lingering))),
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
                && lingering.locked.is_over()
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

    /// Waits until the file that lingers is gone (R4).
    pub fn wait_gone(&mut self) {
        let Some(lingering) = self.lingering.take() else { return };
        let mut entries = self.registry.lock();
        #[cfg(test)]
        self.registry.0.waiting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        while !lingering.locked.is_over() {
            entries = self.registry.0.wait(entries);
        }
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
            let locked = Locked::default();
            registry.closed(key, Lingering { file, raw, view, resident, locked });
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

    use crate::{Cache, CacheConfig, DirectIo, OpenOptions};
    use std::sync::atomic::Ordering;

    const SIZE: u64 = 1 << 20;

    fn options(read_only: bool) -> OpenOptions {
        let mut how = OpenOptions::new();
        how.read(true).write(!read_only).create(!read_only);
        how.direct_io(DirectIo::Off).create_size(SIZE).clone()
    }

    /// Opens a file while `holder` keeps it from being let go; drops that when the opener waits, or has
    /// given up.
    fn open_beside<T: Send>(
        cache: &Cache,
        path: &std::path::Path,
        options: &OpenOptions,
        holder: T,
    ) -> crate::File {
        let waiting = || cache.shared.registry.0.waiting.load(Ordering::SeqCst);
        let before = waiting();
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| options.open(cache, path));
            while waiting() == before && !opener.is_finished() {
                std::thread::yield_now();
            }
            drop(holder);
            opener.join().expect("it does not panic").expect("R4: the file is nobody else's")
        })
    }

    /// The last opener had gone and the file was on its way out in the flusher's hands, or in those of a
    /// request: whoever opened it then found it locked, by us, and was refused. And one that had been read
    /// only, held by work in the background, was found again as it was, and refused to a writer.
    #[test]
    fn a_file_on_its_way_out_is_waited_for() {
        let dir = std::env::temp_dir().join(format!("forebay-on-its-way-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let cache = Cache::new(CacheConfig::with_budget(8 << 20)).unwrap();
        let path = dir.join("a");
        let file = options(false).open(&cache, &path).unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        // A request holds the device.
        let crate::file::Kind::Raw(raw) = file.kind() else { unreachable!("a raw image") };
        let device = raw.device().clone();
        drop(file);
        let file = open_beside(&cache, &path, &options(false), device);
        // Somebody holds the file, which owes nothing; it is wanted with other blocks.
        let held = file.mapped().unwrap();
        drop(file);
        let small = options(false).block_size(512).clone();
        let file = open_beside(&cache, &path, &small, held);
        assert_eq!(file.block_size().unwrap(), 512);
        drop(file);
        // It was open for reading only, and is wanted for writing.
        let file = options(true).open(&cache, &path).unwrap();
        let held = file.mapped().unwrap();
        drop(file);
        let file = open_beside(&cache, &path, &options(false), held);
        file.write_at(&[2; 4096], 0).unwrap();
        let mut back = [0; 4096];
        file.read_at(&mut back, 0).unwrap();
        assert_eq!(back, [2; 4096]);
        drop((file, cache));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
