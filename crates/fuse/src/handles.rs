//! Files that the kernel has open, by handle number.
//!
//! Invariants: handle.H1 a number denotes one opening, from the reply that contains it to its
//! release. handle.H2 the counts of an inode are those of its openings in the table; an inode
//! without openings has no counts.
//!
//! Lock: one, held for a few steps. Open files are dropped after it is released.

use crate::drops::Behind;
use crate::refills::Refills;
use forebay_base::IoFlags;
use forebay_base::sync::atomic::{AtomicU32, Ordering};
use forebay_base::sync::{Mutex, RwLock};
use forebay_vfs::{Ino, OpenFileRef, OpenFlags};
use std::collections::HashMap;
use std::sync::Arc;

/// How the kernel treats the content of an opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Caching {
    /// The kernel's cache serves its reads, and keeps the bytes of its writes.
    pub is_cached: bool,
    /// The kernel's cached pages of the file are dropped when its last opening is released.
    pub drops_at_end: bool,
    /// The file is executable: the kernel may map its pages, also through an uncached opening.
    pub is_program: bool,
}

/// One opening.
pub(crate) struct Handle {
    pub file: OpenFileRef,
    /// Durability flags at open; requests that carry their own flags override them.
    pub sync: IoFlags,
    pub caching: Caching,
    /// Ranges that this opening has brought into the kernel's cache and that are to be dropped.
    pub behind: Mutex<Behind>,
    /// One of the modes of [`crate::ioctl`].
    mode: AtomicU32,
}

impl Handle {
    /// An opening in `mode`, one of the modes of [`crate::ioctl`].
    pub fn new(file: OpenFileRef, sync: IoFlags, mode: u32, caching: Caching) -> Self {
        Self { file, sync, caching, behind: Mutex::default(), mode: AtomicU32::new(mode) }
    }

    pub fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// Sets the mode. False: there is no such mode.
    pub fn set_mode(&self, mode: u32) -> bool {
        let known = crate::ioctl::mode_flags(mode).is_some();
        if known {
            self.mode.store(mode, Ordering::Relaxed);
        }
        known
    }

    /// The flags that the mode adds to each request.
    pub fn mode_flags(&self) -> IoFlags {
        crate::ioctl::mode_flags(self.mode()).unwrap_or_default()
    }

    /// Whether a shared map of this opening can be written: mmap(2) requires read and write access.
    fn is_writer(&self) -> bool {
        self.file.flags().contains(OpenFlags::READ | OpenFlags::WRITE)
    }

    /// Whether the kernel's cache keeps what this opening writes.
    fn is_cached_writer(&self) -> bool {
        self.caching.is_cached && self.file.flags().contains(OpenFlags::WRITE)
    }
}

/// Numbers of openings of an inode.
#[derive(Default)]
struct Count {
    all: u32,
    writers: u32,
}

#[derive(Default)]
struct Table {
    slots: Vec<Option<Arc<Handle>>>,
    free: Vec<u32>,
    /// Counts of openings by inode (handle.H2).
    counts: HashMap<u64, Count>,
}

/// The table of open files.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table>,
    refills: Refills,
}

impl Handles {
    /// An empty table; `refills` is notified of cached openings for writing.
    pub fn new(refills: Refills) -> Self {
        Self { table: RwLock::default(), refills }
    }

    /// Adds an opening and returns its number.
    pub fn add(&self, handle: Handle) -> u64 {
        if handle.is_cached_writer() {
            self.refills.opened(handle.file.ino().0);
        }
        let mut table = self.table.write();
        let at = table.free.pop().unwrap_or_else(|| {
            table.slots.push(None);
            table.slots.len() as u32 - 1
        });
        let count = table.counts.entry(handle.file.ino().0).or_default();
        count.all += 1;
        count.writers += u32::from(handle.is_writer());
        table.slots[at as usize] = Some(Arc::new(handle));
        u64::from(at)
    }

    pub fn get(&self, fh: u64) -> Option<Arc<Handle>> {
        let table = self.table.read();
        table.slots.get(usize::try_from(fh).ok()?)?.clone()
    }

    /// Removes an opening. The file is closed when the last reference to the result is dropped.
    pub fn remove(&self, fh: u64) -> Option<Arc<Handle>> {
        let mut table = self.table.write();
        let handle = table.slots.get_mut(usize::try_from(fh).ok()?)?.take()?;
        table.free.push(fh as u32);
        let ino = handle.file.ino().0;
        let count = table.counts.get_mut(&ino).expect("handle.H2: an opening is counted");
        count.all -= 1;
        count.writers -= u32::from(handle.is_writer());
        if count.all == 0 {
            table.counts.remove(&ino);
        }
        drop(table);
        if handle.is_cached_writer() {
            self.refills.closed(ino);
        }
        Some(handle)
    }

    /// Whether the inode has an opening.
    pub fn has_open(&self, ino: Ino) -> bool {
        self.table.read().counts.contains_key(&ino.0)
    }

    /// Whether an inode is open for reading and writing.
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.table.read().counts.get(&ino.0).is_some_and(|count| count.writers > 0)
    }

    /// Removes all openings.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.table.write());
        drop(all);
        self.refills.clear();
    }

    /// The number of openings.
    pub fn len(&self) -> usize {
        let table = self.table.read();
        table.slots.len() - table.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::task::block_on;
    use forebay_testkit::mem_fs::MemFs;
    use forebay_vfs::{FileKind, FileSystem, Name, NewInode};

    fn cached(file: OpenFileRef) -> Handle {
        Handle::new(file, IoFlags::empty(), crate::ioctl::MODE_CACHED, Caching::default())
    }

    /// H1: a number is reused only after its release.
    #[test]
    fn h1_numbers_denote_one_opening() {
        let (fs, handles) = (MemFs::default(), Handles::default());
        let add = |ino| handles.add(cached(block_on(fs.open(ino, OpenFlags::READ)).unwrap()));
        let (a, b) = (add(Ino::ROOT), add(Ino::ROOT));
        assert!(a != b && handles.len() == 2 && handles.has_open(Ino::ROOT));
        let held = handles.get(a).unwrap();
        assert!(held.set_mode(crate::ioctl::MODE_UNCACHED) && !held.set_mode(9));
        assert_eq!(held.mode_flags(), IoFlags::UNCACHED);
        assert!(handles.remove(a).is_some() && handles.remove(a).is_none());
        assert!(handles.get(a).is_none() && handles.get(u64::MAX).is_none());
        assert_eq!(add(Ino::ROOT), a);
        assert_eq!(handles.get(a).unwrap().mode(), crate::ioctl::MODE_CACHED, "a new opening");
        handles.clear();
        assert!(handles.len() == 0 && handles.get(b).is_none() && !handles.has_open(Ino::ROOT));
    }

    /// H2: the counts follow the openings.
    #[test]
    fn h2_openings_are_counted_by_inode() {
        let (fs, handles) = (MemFs::default(), Handles::default());
        let new = NewInode::of(FileKind::File, 0o600);
        let name = Name::new(b"f").unwrap();
        let ino = block_on(fs.mknod(Ino::ROOT, name, &new)).unwrap().ino;
        let add = |flags| handles.add(cached(block_on(fs.open(ino, flags)).unwrap()));
        let (reader, writer) = (add(OpenFlags::READ), add(OpenFlags::READ | OpenFlags::WRITE));
        let seen = || (handles.has_open(ino), handles.has_writer(ino));
        assert_eq!((seen(), handles.has_open(Ino::ROOT)), ((true, true), false));
        handles.remove(writer);
        assert_eq!(seen(), (true, false));
        handles.remove(reader);
        assert_eq!(seen(), (false, false));
        assert!(handles.table.read().counts.is_empty(), "H2: nothing is left of it");
    }
}
