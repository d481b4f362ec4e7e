//! Content of regular files: creates and drops the cache mapping that belongs to an inode. Cached
//! content of a closed file is retained; [`crate::names::closed`] finds it again.
//!
//! Invariants: D11 an inode has at most one mapping at a time, which exists while the inode is open
//! or has outstanding content. D12 a mapping that was detached from its inode makes no file longer:
//! a size is valid only if it comes from the inode's present mapping.
//!
//! Locks: `making`, then the state lock; none across a wait. A mapping is created and dropped under
//! `making`, so that an open finds a retained mapping completely or not at all. It is never created
//! or dropped under the state lock.

use crate::files::map_ops::FileOps;
use crate::files::open_files::OpenFiles;
use crate::names::closed::RetainedMapping;
use crate::names::content::{Content, Published};
use crate::names::lookup::Tried;
use crate::names::open_times::OpenTimes;
use crate::transaction::file_states::Tidied;
use forebay_base::ErrorKind;
use forebay_iomap::MappedFile;
use forebay_iomap::file::Geometry;
use forebay_vfs::Ino;
use forebay_vfs::rules::{self, refuse};
use std::sync::Arc;

impl OpenFiles {
    /// The content of a regular file; creates its mapping if necessary.
    pub fn content(&self, op: &'static str, ino: Ino) -> Tried<Arc<Content>> {
        if let Some(content) = self.content_there(op, ino)? {
            return Ok(content);
        }
        let Some(cache) = &self.options.cache else {
            return refuse(ErrorKind::Unsupported, op, "the volume was opened without a cache");
        };
        let _making = self.making.lock();
        let published = Arc::new(Published::default());
        let (size, left, ops) = {
            let mut state = self.state.lock();
            rules::regular(&*state, op, ino)?;
            let (data_id, size) = {
                let node = state.get(op, ino)?;
                if let Some(content) = &node.content {
                    return Ok(content.clone());
                }
                (node.inode.data_id, node.live_size().unwrap_or(node.inode.size))
            };
            let same = |left: &RetainedMapping| (left.data_id, left.size) == (data_id, size);
            let left = state.take_retained(ino.0).map(|left| (left.mapping, same(&left)));
            (size, left, Arc::new(FileOps::of(self, ino, &state, published.clone())))
        };
        let block_size = self.layout.geometry.block_bytes();
        let geometry = Geometry { block_size, size, read_only: false };
        let domain = self.domain.clone().expect("there is one where there is a cache");
        if let Some((mapping, false)) = left {
            debug_assert!(false, "Y11: {ino:?} is not what it was left as");
            cache.drop_left(mapping, domain.clone(), block_size);
        }
        let left = left.filter(|(_, same)| *same).map(|(mapping, _)| mapping);
        let file = MappedFile::open_in(cache, domain, ops.clone(), geometry, left)?;
        let handle = file.open_handle();
        let times = OpenTimes::default();
        let new = Arc::new(Content { file, handle, ops, ino, times, published });
        let attached = self.state.lock().attach_content(ino.0, new);
        match attached {
            Some(content) => Ok(content),
            None => refuse(ErrorKind::Stale, op, format!("{ino:?}")),
        }
    }

    /// The content of a regular file, if it has a mapping.
    fn content_there(&self, op: &'static str, ino: Ino) -> Tried<Option<Arc<Content>>> {
        let state = self.state.lock();
        rules::regular(&*state, op, ino)?;
        Ok(state.get(op, ino)?.content.clone())
    }

    /// Drops the dirty data of removed files, and the mappings of closed files that have nothing to
    /// write. Checks `first`, and at most `most` other files.
    pub fn tidy(&self, first: Option<u64>, most: usize) {
        let making = self.making.lock();
        let Tidied { removed, settled, gone } = self.state.lock().tidy(first, most);
        drop(settled);
        self.drop_retained(gone);
        drop(making);
        for content in removed {
            let task = async move {
                // The file is not reachable any more, so its dirty data is dropped.
                if let Err(error) = content.file.set_len(0).await {
                    log::debug!("dropping removed content: {error}");
                }
            };
            self.world.spawn("forebay-lfs drop", Box::pin(task));
        }
    }
}
