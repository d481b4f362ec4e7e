//! Information that programs query from an open volume in addition to the file system: cleaner
//! statistics, names in memory, mappings of files.
//!
//! Lock: the state lock, for one query. It is not held across a wait.

use crate::checkpoint::CheckpointStats;
use crate::clean::{CleanStats, Hurry};
use crate::files::map_ops::FileOps;
use crate::names::lookup::Stop;
use crate::space::stats::SpaceStats;
use crate::volume::Volume;
use forebay_base::{Error, Result};
use forebay_iomap::{MapLimits, MapOps, MappedFile};
use forebay_vfs::{Attr, FileKind, Ino, Name};
use std::sync::Arc;

impl Volume {
    /// The statistics of the cleaner since the volume was opened.
    pub fn clean_stats(&self) -> CleanStats {
        self.0.cleaner.stats()
    }

    /// The use of the volume's segments now, and the free space that writers do not get.
    pub fn space_stats(&self) -> SpaceStats {
        self.0.state.lock().space_stats()
    }

    /// The counters of checkpoints since the volume was opened.
    pub fn checkpoint_stats(&self) -> CheckpointStats {
        self.0.checkpoints.stats()
    }

    /// Cleans the segments with the least live data, as for a writer that waits for space.
    /// Checkpoints make them free. False: there was nothing to clean.
    pub async fn clean(&self) -> Result<bool> {
        self.0.cleaner.clean(Hurry::Now).await.map(|pass| pass.emptied > 0)
    }

    /// Why the volume turned read-only since it was opened: what is lost, and where.
    pub fn stopped(&self) -> Option<Error> {
        self.0.state.lock().life.stopped().cloned()
    }

    /// From now on the volume remembers names of files at each lookup, for [`Volume::path_of`].
    pub fn remember_names(&self) {
        self.0.names.start();
    }

    /// The path by which an inode was last looked up, from the root directory on, as far as it is
    /// known.
    pub fn path_of(&self, ino: Ino) -> Option<Vec<u8>> {
        self.0.names.path(ino.0)
    }

    /// The size of a regular file whose inode is in memory, bytes.
    pub fn size_of(&self, ino: Ino) -> Option<u64> {
        let state = self.0.state.lock();
        let node = state.nodes.get(ino.0)?;
        Some(node.live_size().unwrap_or(node.inode.size))
    }

    /// The number that identifies this volume in the labels of file mappings.
    pub fn label(&self) -> u64 {
        Arc::as_ptr(&self.0.files) as u64
    }

    pub(crate) fn note(&self, dir: Ino, name: Name<'_>, found: &Attr) {
        let is_dir = found.kind == FileKind::Directory;
        self.0.names.note((found.ino.0, is_dir), dir.0, name.as_bytes());
    }

    /// The mapping of an open regular file in the page cache, which shows where its bytes are.
    /// Changes must use [`forebay_vfs::OpenFile`], which also updates times and privileges.
    pub fn mapped_file(&self, ino: Ino) -> Result<Arc<MappedFile>> {
        Ok(self.0.files.content("map", ino).map_err(Stop::open)?.file.clone())
    }

    /// The map of a file's content, for tests of its contract. Meanwhile no other task may write
    /// the file.
    pub fn map_of(&self, ino: Ino) -> Arc<dyn MapOps> {
        Arc::new(FileOps::new(&self.0.files, ino))
    }

    /// The limits that apply to all files: block size, checksums, and the need for stable bytes.
    pub fn content_limits(&self) -> MapLimits {
        FileOps::new(&self.0.files, Ino::ROOT).limits()
    }

    /// Bytes of memory in use in addition to the page cache: changes that no checkpoint has merged,
    /// the cleaner, names, tree nodes, content of log records.
    pub fn memory_in_use(&self) -> [u64; 5] {
        let [changes, cleaning, names] = self.0.state.lock().held().parts();
        let nodes = self.0.tree.cache().used_bytes() as u64;
        [changes, cleaning, names, nodes, self.0.staging.held_bytes()]
    }

    /// The end of the log: generation, sequence number of the next record, checksum of the last
    /// one. To forge a record one must know these in addition to the secret.
    pub fn log_end(&self) -> (u64, u64, u32) {
        let end = self.0.log.ctl.lock().durable;
        (end.generation, end.sequence, end.predecessor)
    }
}
