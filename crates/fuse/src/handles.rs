//! What the kernel has open: numbers for open files.
//!
//! Invariants: H1 a number denotes one opening from the reply that gave it to its release.
//!
//! Lock: one, for the length of a look.

use forebay_base::IoFlags;
use forebay_base::sync::RwLock;
use forebay_base::sync::atomic::{AtomicU32, Ordering};
use forebay_vfs::{Ino, OpenFileRef, OpenFlags};
use std::sync::Arc;

/// An opening.
pub(crate) struct Handle {
    pub file: OpenFileRef,
    /// Durability that it was opened with; requests say the present one where they can.
    pub sync: IoFlags,
    /// The kernel's cache serves it.
    pub kernel_cached: bool,
    /// One of [`crate::ioctl`].
    mode: AtomicU32,
}

impl Handle {
    /// An opening in one of the modes of [`crate::ioctl`].
    pub fn new(file: OpenFileRef, sync: IoFlags, mode: u32, kernel_cached: bool) -> Self {
        Self { file, sync, kernel_cached, mode: AtomicU32::new(mode) }
    }

    pub fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// False: no such mode.
    pub fn set_mode(&self, mode: u32) -> bool {
        let known = crate::ioctl::mode_flags(mode).is_some();
        if known {
            self.mode.store(mode, Ordering::Relaxed);
        }
        known
    }

    /// What the mode adds to each request.
    pub fn mode_flags(&self) -> IoFlags {
        crate::ioctl::mode_flags(self.mode()).unwrap_or_default()
    }
}

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Arc<Handle>>>,
    free: Vec<u32>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Handles(RwLock<Slots>);

impl Handles {
    /// Numbers an opening.
    pub fn add(&self, handle: Handle) -> u64 {
        let mut table = self.0.write();
        let at = table.free.pop().unwrap_or_else(|| {
            table.slots.push(None);
            table.slots.len() as u32 - 1
        });
        table.slots[at as usize] = Some(Arc::new(handle));
        u64::from(at)
    }

    pub fn get(&self, fh: u64) -> Option<Arc<Handle>> {
        let table = self.0.read();
        table.slots.get(usize::try_from(fh).ok()?)?.clone()
    }

    /// Takes an opening out. The file itself goes with its last user, outside of the lock.
    pub fn remove(&self, fh: u64) -> Option<Arc<Handle>> {
        let mut table = self.0.write();
        let handle = table.slots.get_mut(usize::try_from(fh).ok()?)?.take()?;
        table.free.push(fh as u32);
        Some(handle)
    }

    /// Whether an inode is open.
    pub fn has_open(&self, ino: Ino) -> bool {
        let table = self.0.read();
        table.slots.iter().flatten().any(|handle| handle.file.ino() == ino)
    }

    /// Whether an inode is open for writing.
    pub fn has_writer(&self, ino: Ino) -> bool {
        let table = self.0.read();
        let mut files = table.slots.iter().flatten().map(|handle| &handle.file);
        files.any(|file| file.ino() == ino && file.flags().contains(OpenFlags::WRITE))
    }

    /// Takes all out.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.write());
        drop(all);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let table = self.0.read();
        table.slots.len() - table.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::task::block_on;
    use forebay_testkit::mem_fs::MemFs;
    use forebay_vfs::FileSystem;

    /// H1: a number is given again only after its release.
    #[test]
    fn h1_numbers_denote_one_opening() {
        let (fs, handles) = (MemFs::default(), Handles::default());
        let add = |ino| {
            let file = block_on(fs.open(ino, OpenFlags::READ)).unwrap();
            handles.add(Handle::new(file, IoFlags::empty(), crate::ioctl::MODE_CACHED, false))
        };
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
        assert!(handles.len() == 0 && handles.get(b).is_none());
    }
}
