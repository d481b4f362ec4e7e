//! What programs ask of an open volume in addition to the file system: counts of the cleaner, names
//! in the cache, mappings of files.
//!
//! Lock: the state lock, for one answer; never across a wait.

use crate::clean::{CleanStats, Hurry};
use crate::files::map_ops::FileOps;
use crate::names::lookup::Stop;
use crate::volume::Volume;
use forebay_base::{Error, Result};
use forebay_iomap::{MapLimits, MapOps, MappedFile};
use forebay_vfs::{Attr, FileKind, Ino, Name};
use std::sync::Arc;

impl Volume {
    /// What the cleaner has done since the volume was opened.
    pub fn clean_stats(&self) -> CleanStats {
        self.0.cleaner.stats()
    }

    /// Cleans the segments with the least live data, as for a writer that waits for space;
    /// checkpoints make them free. False: there was nothing to clean.
    pub async fn clean(&self) -> Result<bool> {
        self.0.clean(Hurry::Now).await.map(|pass| pass.emptied > 0)
    }

    /// Why the volume turned read-only since it was opened: what is lost, and where.
    pub fn stopped(&self) -> Option<Error> {
        self.0.state.lock().fate.stopped.clone()
    }

    /// Names of files are remembered from now on, as they are looked up, for [`Volume::path_of`].
    pub fn remember_names(&self) {
        self.0.names.start();
    }

    /// The path by which an inode was looked up last, from the root directory on, as far as it is
    /// known.
    pub fn path_of(&self, ino: Ino) -> Option<Vec<u8>> {
        self.0.names.path(ino.0)
    }

    /// Size of a regular file that is in memory, bytes.
    pub fn size_of(&self, ino: Ino) -> Option<u64> {
        let state = self.0.state.lock();
        let node = state.nodes.get(&ino.0)?;
        Some(node.live_size().unwrap_or(node.inode.size))
    }

    /// What stands for this volume in the label of its files' mappings.
    pub fn label(&self) -> u64 {
        std::sync::Arc::as_ptr(&self.0) as u64
    }

    pub(crate) fn note(&self, dir: Ino, name: Name<'_>, found: &Attr) {
        let is_dir = found.kind == FileKind::Directory;
        self.0.names.note((found.ino.0, is_dir), dir.0, name.as_bytes());
    }

    /// The mapping in the cache of a regular file that is open, which says where its bytes are.
    /// Changes go through [`forebay_vfs::OpenFile`], which keeps times and privileges.
    pub fn mapped_file(&self, ino: Ino) -> Result<Arc<MappedFile>> {
        Ok(self.0.content("map", ino).map_err(Stop::open)?.file.clone())
    }

    /// The map below the content of a file, for tests of its contract. Nothing else may write the
    /// file meanwhile.
    pub fn map_of(&self, ino: Ino) -> Arc<dyn MapOps> {
        Arc::new(FileOps::new(&self.0, ino))
    }

    /// Block size, checksums and need for stable bytes of all files.
    pub fn content_limits(&self) -> MapLimits {
        FileOps::new(&self.0, Ino::ROOT).limits()
    }

    /// Bytes of memory in use in addition to the page cache: changes that no checkpoint has merged,
    /// the cleaner, names, nodes of the tree, content of records.
    pub fn memory_in_use(&self) -> [u64; 5] {
        let [changes, cleaning, names] = self.0.state.lock().held().parts();
        let nodes = self.0.tree.cache().used_bytes() as u64;
        [changes, cleaning, names, nodes, self.0.staging.held_bytes()]
    }

    /// Where the log ends: generation, sequence of the next record, sum of the last one. A forger
    /// has to know these in addition to the secret.
    pub fn log_end(&self) -> (u64, u64, u32) {
        let end = self.0.log.ctl.lock().durable;
        (end.generation, end.sequence, end.predecessor)
    }
}
