//! The files of a cache that are open or have pending write-back, by the number of their mapping.
//!
//! Lock: one, for the length of a call.

use forebay_iomap::MappedFile;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The list of one cache.
#[derive(Default)]
pub(crate) struct Files(Mutex<HashMap<u32, Weak<MappedFile>>>);

impl Files {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Weak<MappedFile>>> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Adds an open file.
    pub fn list(&self, file: &Arc<MappedFile>) {
        let mut files = self.lock();
        if files.len() == files.capacity() {
            // Removes also the entries of files that background work held at their close, so that
            // `forget` did not remove them.
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(file.mapping.id, Arc::downgrade(file));
    }

    /// Removes a closed file from the list, unless work in the background still holds it.
    pub fn forget(&self, id: u32, file: &Weak<MappedFile>) {
        let mut files = self.lock();
        if file.strong_count() == 0 && files.get(&id).is_some_and(|listed| listed.ptr_eq(file)) {
            files.remove(&id);
        }
    }

    /// All files that are open or have pending write-back.
    pub fn live(&self) -> Vec<Arc<MappedFile>> {
        self.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// The file with this mapping, if it is listed.
    pub fn find(&self, id: u32) -> Option<Arc<MappedFile>> {
        self.lock().get(&id).and_then(Weak::upgrade)
    }

    /// Entries, those of closed files among them.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().len()
    }
}
