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
use forebay_iomap::{MapInfo, MapOps, MappedFile};
use forebay_vfs::{Attr, FileKind, Ino, Name};
use std::ops::Range;
use std::sync::Arc;

/// A file with content that the device has lost since the volume was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostFile {
    /// The inode.
    pub ino: Ino,
    /// A path of the file from the root directory on, if a lookup has shown one since the first
    /// query of lost content.
    pub path: Option<Vec<u8>>,
    /// Lost bytes, in whole blocks.
    pub bytes: u64,
    /// The first ranges that are lost, in order: offset and length, bytes.
    pub ranges: Vec<(u64, u64)>,
    /// The number of ranges after those.
    pub more_ranges: u64,
}

/// Content that the device has lost since the volume was opened, and that no cache or record holds.
/// Reads of it fail until it is written anew, punched, truncated or removed, or the volume is
/// opened again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostContent {
    /// The first files, in the order in which their data was made.
    pub files: Vec<LostFile>,
    /// The number of files after those.
    pub more_files: u64,
}

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

    /// The files with content that the device has lost since the volume was opened: at most `most`
    /// of them, with at most `most` ranges each. The first query that finds any makes the volume
    /// remember names, as [`Volume::remember_names`] does.
    pub fn lost_content(&self, most: usize) -> LostContent {
        let (mut list, unit) = (LostContent::default(), self.0.layout.block_bytes());
        {
            let state = self.0.state.lock();
            let lost = state.map().lost();
            for runs in lost.files(most) {
                let range = |run: &Range<u64>| (run.start * unit, (run.end - run.start) * unit);
                list.files.push(LostFile {
                    ino: Ino(runs.ino),
                    path: None,
                    bytes: runs.blocks * unit,
                    ranges: runs.first.iter().map(range).collect(),
                    more_ranges: runs.more,
                });
            }
            list.more_files = lost.file_count().saturating_sub(most) as u64;
        }
        if !list.files.is_empty() {
            self.remember_names();
        }
        list.files.iter_mut().for_each(|file| file.path = self.path_of(file.ino));
        list
    }

    /// Cleans the segments with the least live data, as for a writer that waits for space.
    /// Checkpoints make them free. False: there was nothing to clean.
    pub async fn clean(&self) -> Result<bool> {
        self.0.cleaner.clean(Hurry::Now).await.map(|pass| pass.emptied > 0)
    }

    /// Why the volume turned read-only since it was opened: what is lost, and where.
    pub fn stopped(&self) -> Option<Error> {
        self.0.state.lock().life().stopped().cloned()
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
        let node = state.names().node(ino.0)?;
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

    /// The properties that the maps of all files share: block size, checksums, and the need for
    /// stable bytes.
    pub fn map_info(&self) -> MapInfo {
        FileOps::new(&self.0.files, Ino::ROOT).info()
    }

    /// Bytes of memory in use in addition to the page cache: changes that no checkpoint has merged,
    /// the cleaner, names, tree nodes, content of log records.
    pub fn memory_in_use(&self) -> [u64; 5] {
        let [changes, cleaning, names] = self.0.state.lock().held().parts();
        let nodes = self.0.tree.cache().used_bytes() as u64;
        [changes, cleaning, names, nodes, self.0.staging.held_bytes()]
    }

    /// Bytes of the log that are granted: none of a closed volume.
    pub fn granted_log_bytes(&self) -> u64 {
        self.0.state.lock().space().ledger().log_bytes()
    }

    /// The end of the log: generation, sequence number of the next record, checksum of the last
    /// one. To forge a record one must know these in addition to the secret.
    pub fn log_end(&self) -> (u64, u64, u32) {
        let end = self.0.log.ctl.lock().durable;
        (end.generation, end.sequence, end.predecessor)
    }
}
