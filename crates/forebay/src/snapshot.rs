//! A snapshot of the cache's content for monitoring: by file, with its name, and by position in
//! the file. It holds no lock of the read and write paths longer than to read one file's size.
//!
//! Invariant: Y1 the work and memory of a snapshot are bounded, whatever the size of the cache and
//! the number of files: folios as [`forebay_cache::snapshot`] says, at most [`FILES`] files, and
//! [`CELLS`] cells of each.

use crate::cache::Cache;
use crate::open_volumes::Open;
use forebay_cache::latency::Taken;
use forebay_cache::snapshot::Bytes;
use forebay_cache::streams::Stream;
use forebay_vfs::Ino;
use std::collections::HashMap;
use std::sync::Arc;

/// Most files in a snapshot; the others are summed up.
pub const FILES: usize = 48;
/// Most cells of a file. The cells divide the file into parts of the same length, at least a
/// folio.
pub const CELLS: usize = 96;
/// A stream that has read within this time is shown, ns.
const STREAM_NANOS: u64 = 3_000_000_000;

/// A file in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSnapshot {
    /// Its path: of an image on the host, or in a volume. May contain any byte that a file name
    /// can, so escape it before display.
    pub name: String,
    /// The image of the volume that it is in.
    pub volume: Option<String>,
    /// Its size in bytes; of a closed file, the end of its last cached folio.
    pub size: u64,
    /// The cached bytes of it, by state.
    pub bytes: Bytes,
    /// The cached bytes by position: at most [`CELLS`] parts of the file, of the same length.
    pub cells: Vec<Bytes>,
}

/// A sequential reader in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSnapshot {
    /// Its file.
    pub name: String,
    /// A number that tells it apart from others.
    pub reader: u64,
    /// The offset that it has reached, bytes.
    pub position: u64,
    /// Its read-ahead window, bytes.
    pub window: u64,
    /// Whether it reads uncached, and so leaves nothing in the cache.
    pub uncached: bool,
    /// Bytes that it has read since it was first seen.
    pub bytes: u64,
}

/// A snapshot of the content of a cache. [`Cache::snapshot`] takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The files with the most cached bytes, in descending order.
    pub files: Vec<FileSnapshot>,
    /// The number of all other files, and their cached bytes.
    pub others: (usize, Bytes),
    /// The cached bytes of all files.
    pub sum: Bytes,
    /// Streams that have read lately.
    pub streams: Vec<StreamSnapshot>,
    /// One in this many folios was inspected.
    pub sampled: u64,
}

/// The file of a mapping: its name, its volume and its size.
struct Named {
    name: String,
    volume: Option<String>,
    size: u64,
}

impl Cache {
    /// Takes a snapshot of the content of the cache. `turn`: how many were taken before. A snapshot
    /// of a large cache inspects a sample of the folios, another one at each turn.
    pub fn snapshot(&self, turn: usize) -> Snapshot {
        let pages = &self.shared.pages;
        let taken = pages.snapshot(turn);
        let mut files: HashMap<u32, (Bytes, u64)> = HashMap::new();
        let mut snapshot = Snapshot { sampled: taken.stands_for, ..Snapshot::default() };
        for seen in &taken.seen {
            let (bytes, end) = files.entry(seen.file).or_default();
            bytes.add(&seen.bytes, taken.stands_for);
            *end = (*end).max(seen.offset + taken.folio_bytes);
            snapshot.sum.add(&seen.bytes, taken.stands_for);
        }
        let mut order: Vec<(u32, Bytes, u64)> =
            files.into_iter().map(|(id, (bytes, end))| (id, bytes, end)).collect();
        order
            .sort_by_key(|(id, bytes, _)| (std::cmp::Reverse(bytes.resident + bytes.reading), *id));
        for (_, bytes, _) in order.iter().skip(FILES) {
            snapshot.others.1.add(bytes, 1);
        }
        snapshot.others.0 = order.len().saturating_sub(FILES);
        order.truncate(FILES);
        let open = self.shared.volumes.all();
        let mut places = HashMap::new();
        for (at, (id, bytes, end)) in order.iter().enumerate() {
            let named = self.named(*id, &open);
            let size = if named.size == 0 { *end } else { named.size };
            let cells = size.div_ceil(taken.folio_bytes).clamp(1, CELLS as u64) as usize;
            places.insert(*id, at);
            snapshot.files.push(FileSnapshot {
                name: named.name,
                volume: named.volume,
                size,
                bytes: *bytes,
                cells: vec![Bytes::default(); cells],
            });
        }
        for seen in &taken.seen {
            let Some(at) = places.get(&seen.file) else { continue };
            let file = &mut snapshot.files[*at];
            let (count, size) = (file.cells.len(), u128::from(file.size.max(1)));
            // Counted in the last cell if the file was truncated meanwhile.
            let cell = (u128::from(seen.offset) * count as u128 / size).min(count as u128 - 1);
            file.cells[cell as usize].add(&seen.bytes, taken.stands_for);
        }
        let since = pages.world.now().saturating_sub(STREAM_NANOS);
        let streams = pages.streams.since(since).into_iter();
        snapshot.streams = streams.map(|stream| self.stream(stream, &open)).collect();
        snapshot
    }

    fn stream(&self, stream: Stream, open: &[Arc<Open>]) -> StreamSnapshot {
        let Stream { file, reader, position, window, uncached, bytes, .. } = stream;
        let name = self.named(file, open).name;
        StreamSnapshot { name, reader, position, window, uncached, bytes }
    }

    /// The file of the mapping `id`.
    fn named(&self, id: u32, open: &[Arc<Open>]) -> Named {
        let (whose, number) = self.shared.pages.owners.label(id);
        if let Some(open) = open.iter().find(|open| open.volume.label() == whose) {
            let path = open.volume.path_of(Ino(number));
            let name = path.map(|path| String::from_utf8_lossy(&path).into_owned());
            return Named {
                name: name.unwrap_or_else(|| format!("inode {number}")),
                volume: Some(open.path.display().to_string()),
                size: open.volume.size_of(Ino(number)).unwrap_or(0),
            };
        }
        match self.shared.files.find(id) {
            Some(file) => Named { name: file.device().name(), volume: None, size: file.size() },
            None => Named { name: format!("closed file {id}"), volume: None, size: 0 },
        }
    }

    /// From now on keeps the names of files in volumes as they are looked up, so that a snapshot
    /// can show them. Takes up to 100 KiB for each open volume.
    pub fn remember_names(&self) {
        self.shared.volumes.all().iter().for_each(|open| open.volume.remember_names());
    }

    /// Latencies of the operations that waited for a device, since the cache was made.
    pub fn latencies(&self) -> [(&'static str, Taken); 3] {
        self.shared.pages.latencies.snapshot()
    }

    /// Bytes that the cache keeps because they could not be written.
    pub fn failed_bytes(&self) -> u64 {
        self.shared.pages.dirty.failed_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheConfig, CreateVolume, IoFlags, OpenOptions, Volume, VolumeOptions};

    #[test]
    fn files_are_shown_by_name_with_what_is_where() {
        let dir = std::env::temp_dir().join(format!("forebay-snapshot-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let cache = Cache::new(CacheConfig::with_budget(16 << 20)).unwrap();
        let raw = OpenOptions::read_write().create(true).create_size(8 << 20).clone();
        let file = raw.open(&cache, dir.join("disk.img")).unwrap();
        file.write_at(&[1; 65536], 4 << 20).unwrap();
        let size = Some(16 << 20);
        let image = dir.join("data.fby");
        Volume::create(&image, &CreateVolume { size, ..CreateVolume::default() }).unwrap();
        let volume = cache.open_volume(&image, &VolumeOptions::default()).unwrap();
        cache.remember_names();
        volume.create_dir("/d").unwrap();
        let inside = volume.create_file("/d/<script>x<script>").unwrap();
        inside.append(&[2; 8192], IoFlags::empty()).unwrap();
        let snapshot = cache.snapshot(0);
        let named = |name: &str| snapshot.files.iter().find(|f| f.name.ends_with(name)).unwrap();
        let disk = named("disk.img");
        assert_eq!((disk.size, disk.volume.clone(), disk.bytes.dirty), (8 << 20, None, 65536));
        assert_eq!(disk.cells[CELLS / 2].dirty, 65536, "in the middle");
        assert_eq!(disk.cells.iter().filter(|cell| !cell.is_empty()).count(), 1);
        let script = named("/d/<script>x<script>");
        assert_eq!((script.size, script.bytes.resident), (8192, 8192));
        assert!(script.volume.as_ref().unwrap().ends_with("data.fby"));
        assert_eq!(snapshot.sum.resident, 65536 + 8192);
        drop((file, inside));
        volume.close().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn y1_largest_files_are_shown_and_others_summed() {
        let cache = Cache::new(CacheConfig::with_budget(16 << 20)).unwrap();
        let files: Vec<_> = (1..=FILES as u64 + 9)
            .map(|n| {
                let device = Arc::new(forebay_block::RamDevice::new(1 << 20));
                let file = OpenOptions::read_write().open_device(&cache, device).unwrap();
                file.write_at(&vec![1; 4096 * n as usize], 0).unwrap();
                file
            })
            .collect();
        let snapshot = cache.snapshot(0);
        assert_eq!((snapshot.files.len(), snapshot.others.0), (FILES, 9));
        assert_eq!(snapshot.files[0].bytes.resident, 4096 * files.len() as u64);
        assert_eq!(snapshot.others.1.resident, 4096 * (1..=9).sum::<u64>());
        assert!(snapshot.files.iter().all(|file| file.cells.len() <= CELLS));
    }
}
