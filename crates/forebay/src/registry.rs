//! The files of a cache by identity (device and inode), not by path. Opening a file twice shares
//! it, and a file that is opened again finds the blocks that it had cached.
//!
//! ```text
//!            claim                 share (any number of times)
//!   absent ────────▶ busy ──────▶ open ───┐
//!      ▲               ▲ ▲         │ ▲────┘
//!      │               │ │         │ the last opener closes
//!      │         claim │ │ claim   ▼
//!      │               │ └───── closed  (pending write-back, or held by background work)
//!      └─ swept ─── resident ◀─────┘  gone
//! ```
//!
//! Invariants: R1 one thread at a time opens or closes a file: others wait while its entry is
//! *busy*, or *open* without an opener. R2 a resident entry names blocks that are the file's
//! content, if its stamp is the file's. R3 a sweep removes the entries of files without cached
//! folios before they outnumber the others, or [`FEW`]. R4 a closed file that work in the
//! background is about to release still holds the lock on the image: an opener waits for that
//! before it opens the file anew.
//!
//! Lock: one, not held while a file is opened, synced or dropped.

use crate::files::Files;
use forebay_base::task::block_on;
use forebay_block::{FileDevice, FileIdentity, FileStamp};
use forebay_iomap::MappedFile;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

/// With fewer entries than this, no sweep runs.
const FEW: usize = 1024;

/// The range of the file that is shown, and the block size. Openers that share it must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub offset: u64,
    pub size_limit: Option<u64>,
    pub block_size: u32,
}

/// A closed file that may still have blocks in the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    /// Its mapping's number.
    pub id: u32,
    pub view: View,
    /// Size and times of the file at its last close.
    pub stamp: FileStamp,
}

/// A file without openers that has pending write-back, or that work in the background holds.
#[derive(Clone)]
pub(crate) struct ClosedFile {
    pub file: Weak<MappedFile>,
    pub raw: Weak<FileDevice>,
    pub view: View,
    pub resident: Option<Resident>,
    pub locked: Locked,
}

/// A file's device holds this while the file is open on the host, and locked.
pub(crate) struct Lock(Arc<Inner>);

impl Drop for Lock {
    fn drop(&mut self) {
        // By now the file is closed, and each [`Locked`] reads as over. An opener that checked
        // before that waits by now: it checks and starts to wait under the lock taken here.
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
    Closed(Box<ClosedFile>),
    Resident(Resident),
}

/// The registry of a cache: the state of each file that is open, closing or resident.
#[derive(Clone, Default)]
pub(crate) struct Registry(Arc<Inner>);

#[derive(Default)]
pub(crate) struct Inner {
    entries: Mutex<Entries>,
    changed: Condvar,
    /// Openers that have begun to wait for a file's release (registry.R4).
    #[cfg(test)]
    waiting: std::sync::atomic::AtomicUsize,
}

#[derive(Default)]
struct Entries {
    map: HashMap<FileIdentity, Entry>,
    /// Entries that the last sweep kept.
    left: usize,
}

/// What a claim finds.
pub(crate) enum Found<'a> {
    /// The file is open.
    Open(Arc<Closing>),
    /// The file is not open: the caller may open it.
    Free(Claim<'a>),
}

/// The right to open a file or to close it. Dropping it unused restores the entry as it was.
pub(crate) struct Claim<'a> {
    registry: &'a Registry,
    key: FileIdentity,
    pub closed: Option<Box<ClosedFile>>,
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

    /// A token that the device of a file holds while it is open.
    pub fn new_lock(&self) -> Arc<Lock> {
        Arc::new(Lock(self.0.clone()))
    }

    /// Claims a file, or finds it open (registry.R1).
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
                    Entry::Closed(_) | Entry::Resident(_) => {
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

    /// Records that the last opener has closed the file and has tried to write it back.
    pub fn closed(&self, key: FileIdentity, closed: ClosedFile) {
        let entry = match (closed.locked.is_over(), closed.resident) {
            (true, resident) => resident.map(Entry::Resident),
            (false, _) => Some(Entry::Closed(Box::new(closed))),
        };
        self.set(key, entry);
    }

    /// Removes the entries of files without cached folios, if they may be many (registry.R3).
    /// `known`: whether a mapping still owns folios.
    pub fn sweep(&self, known: impl Fn(u32) -> bool) {
        let mut entries = self.lock();
        if entries.map.len() < FEW.max(2 * entries.left) {
            return;
        }
        entries.map.retain(|_, entry| {
            if let Entry::Closed(closed) = entry
                && closed.locked.is_over()
            {
                let Some(resident) = closed.resident else { return false };
                *entry = Entry::Resident(resident);
            }
            !matches!(entry, Entry::Resident(resident) if !known(resident.id))
        });
        entries.left = entries.map.len();
    }

    /// The number of files that have an entry.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().map.len()
    }

    /// The file, if it is open or closed with pending write-back.
    pub fn find(&self, key: FileIdentity) -> Option<Arc<MappedFile>> {
        let (open, closed) = {
            let entries = self.lock();
            match entries.map.get(&key)? {
                Entry::Open(closing) => (closing.upgrade(), None),
                Entry::Closed(closed) => (None, closed.file.upgrade()),
                Entry::Busy | Entry::Resident(_) => (None, None),
            }
        };
        // Outside the lock: dropping `closing` closes the file if this is the last opener by now.
        open.map(|closing| closing.file().clone()).or(closed)
    }
}

impl<'a> Claim<'a> {
    fn of(registry: &'a Registry, key: FileIdentity, was: Entry) -> Self {
        let (closed, resident) = match was {
            Entry::Closed(closed) => {
                let resident = closed.resident;
                (Some(closed), resident)
            }
            Entry::Resident(resident) => (None, Some(resident)),
            Entry::Busy | Entry::Open(_) => (None, None),
        };
        Self { registry, key, closed, resident, over: false }
    }

    /// Waits until the closed file is released (registry.R4).
    pub fn wait_gone(&mut self) {
        let Some(closed) = self.closed.take() else { return };
        let mut entries = self.registry.lock();
        #[cfg(test)]
        self.registry.0.waiting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        while !closed.locked.is_over() {
            entries = self.registry.0.wait(entries);
        }
    }

    /// Records that the file is open.
    pub fn opened(mut self, closing: &Arc<Closing>) {
        self.over = true;
        self.registry.set(self.key, Some(Entry::Open(Arc::downgrade(closing))));
    }

    /// Returns the file's cached blocks, if any, which the caller drops: they are not its content
    /// any more.
    pub fn forget(&mut self) -> Option<Resident> {
        self.closed = None;
        self.resident.take()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let entry = match (self.closed.take(), self.resident) {
            (Some(closed), _) => Some(Entry::Closed(closed)),
            (None, resident) => resident.map(Entry::Resident),
        };
        self.registry.set(self.key, entry);
    }
}

/// Closes the file when the last opener drops it. Openers are counted apart from the file itself,
/// which work in the background may hold too.
pub(crate) struct Closing {
    registry: Registry,
    files: Arc<Files>,
    file: Option<Arc<MappedFile>>,
    raw: Option<Raw>,
}

/// A raw file: its device, its identity, and the range of it that is shown.
pub(crate) struct Raw {
    pub device: Arc<FileDevice>,
    pub key: FileIdentity,
    pub view: View,
    pub locked: Locked,
}

impl Closing {
    /// Lists the file in `files` until it is closed.
    pub fn new(
        registry: &Registry,
        files: &Arc<Files>,
        file: Arc<MappedFile>,
        raw: Option<Raw>,
    ) -> Arc<Self> {
        files.list(&file);
        let (registry, files) = (registry.clone(), files.clone());
        Arc::new(Self { registry, files, file: Some(file), raw })
    }

    pub fn file(&self) -> &Arc<MappedFile> {
        self.file.as_ref().expect("there until it is dropped")
    }

    pub fn raw(&self) -> Option<(&Arc<FileDevice>, View)> {
        self.raw.as_ref().map(|raw| (&raw.device, raw.view))
    }

    pub fn identity(&self) -> Option<FileIdentity> {
        self.raw.as_ref().map(|raw| raw.key)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let file = self.file.take().expect("closed once");
        let id = file.mapping.id;
        if !file.read_only() {
            // A caller that wants to know the outcome has called `close` or a sync before.
            if let Err(error) = block_on(file.sync_deferring_errors()) {
                let (name, bytes) = (file.device().name(), file.mapping.failed_bytes());
                log::warn!("closing {name}: {error}; {bytes} bytes are kept and tried again");
            }
        }
        // Fills and released blocks hold the device, and so the lock on the image.
        block_on(file.wait_fills());
        block_on(file.mapping.domain.wait_released(id));
        let settled = file.mapping.is_settled();
        if !settled {
            file.keep_until_settled();
        }
        let weak = Arc::downgrade(&file);
        let Some(Raw { device: raw, key, view, locked }) = self.raw.take() else {
            drop(file);
            return self.files.forget(id, &weak);
        };
        let stamp = if settled { raw.final_stamp() } else { None };
        let resident = stamp.map(|stamp| Resident { id, view, stamp });
        if resident.is_some() {
            file.retain_folios();
        }
        let weak_raw = Arc::downgrade(&raw);
        drop((raw, file));
        self.files.forget(id, &weak);
        let closed = ClosedFile { file: weak, raw: weak_raw, view, resident, locked };
        self.registry.closed(key, closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_removes_entries_of_files_that_are_gone() {
        let registry = Registry::default();
        let view = View { offset: 0, size_limit: None, block_size: 4096 };
        for i in 0..10_000u32 {
            let key = FileIdentity::Inode(1, u64::from(i));
            let resident = Some(Resident { id: i, view, stamp: FileStamp::default() });
            let (file, raw) = (Weak::new(), Weak::new());
            let locked = Locked::default();
            registry.closed(key, ClosedFile { file, raw, view, resident, locked });
            registry.sweep(|id| id % 10 == 0);
        }
        assert!((1000..2000 + FEW).contains(&registry.len()), "R3: {}", registry.len());
        // An unused claim changes nothing.
        let key = FileIdentity::Inode(1, 0);
        let Found::Free(claim) = registry.claim(key) else { panic!("no opener has it") };
        assert_eq!(claim.resident.map(|r| r.id), Some(0));
        drop(claim);
        let Found::Free(mut claim) = registry.claim(key) else { panic!("no opener has it") };
        assert!(claim.forget().is_some());
        drop(claim);
        let Found::Free(claim) = registry.claim(key) else { panic!("no opener has it") };
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

    /// Opens a file while `holder` keeps it from being released. Drops `holder` when the opener
    /// waits, or has failed.
    fn open_while_held<T: Send>(
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
            opener.join().expect("it does not panic").expect("R4: no other process has the file")
        })
    }

    /// The story: the last opener had closed the file, and the flusher or a request was about to
    /// release it. The next opener found the file locked by its own process and was refused. And a
    /// file that had been opened for reading only, held by work in the background, was shared as it
    /// was, so that a writer was refused.
    #[test]
    fn opener_waits_for_release_of_closed_file() {
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
        let file = open_while_held(&cache, &path, &options(false), device);
        // A holder keeps the file, which has nothing to write back; it is opened with other blocks.
        let held = file.mapped().unwrap();
        drop(file);
        let small = options(false).block_size(512).clone();
        let file = open_while_held(&cache, &path, &small, held);
        assert_eq!(file.block_size().unwrap(), 512);
        drop(file);
        // It was open for reading only; the next opener wants to write.
        let file = options(true).open(&cache, &path).unwrap();
        let held = file.mapped().unwrap();
        drop(file);
        let file = open_while_held(&cache, &path, &options(false), held);
        file.write_at(&[2; 4096], 0).unwrap();
        let mut back = [0; 4096];
        file.read_at(&mut back, 0).unwrap();
        assert_eq!(back, [2; 4096]);
        drop((file, cache));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
