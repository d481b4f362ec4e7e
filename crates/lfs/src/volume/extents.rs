//! The places of the content of files, for users and programs that inspect them: `forebay extents`,
//! the bench.
//!
//! Lock: the state lock, for one extent at a time. It is not held across a wait.

use crate::files::map_ops::FileOps;
use crate::log::staging::Staging;
use crate::space::alloc::{AllocMode, AllocStats};
use crate::volume::Volume;
use forebay_base::Result;
use forebay_base::units::round_up;
use forebay_vfs::{FileSystem, Ino, OpenFlags};

/// A run of a file that is contiguous on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the device. None: its log record is not durable yet, so the content is in
    /// memory.
    pub physical: Option<u64>,
    /// Length in bytes, whole blocks.
    pub len: u64,
    /// The content is in a log record, as small synced content is.
    pub inline: bool,
}

impl FileExtent {
    fn goes_on(&self, next: &Self) -> bool {
        let behind = match (self.physical, next.physical) {
            (Some(at), Some(next)) => at + self.len == next,
            (None, None) => true,
            _ => false,
        };
        behind && self.logical + self.len == next.logical && self.inline == next.inline
    }
}

/// Free space, and how fragmented it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes in free segments, in the free end of the open segment, in windows, and in leftover
    /// runs.
    pub bytes: u64,
    /// The number of contiguous runs of this space.
    pub runs: u64,
    /// Bytes of all data segments in use.
    pub data_bytes: u64,
    /// Of these, the bytes in the free end of the open segment, which the next request gets.
    pub open_bytes: u64,
}

impl Volume {
    /// Returns all extents of a file in order. Content that is dirty in the page cache has no
    /// extent yet.
    pub async fn extents(&self, ino: Ino) -> Result<Vec<FileExtent>> {
        // The inode stays in memory while it is open.
        let _open = self.open(ino, OpenFlags::READ).await?;
        let end = self.getattr(ino).await?.size;
        let map = FileOps::new(&self.0.files, ino);
        let (mut extents, mut at) = (Vec::<FileExtent>::new(), 0);
        while at < end {
            let (found, _) = map.look_up(at..round_up(end, u64::from(map.unit))).await?;
            let len = found.len;
            if let Some(offset) = found.device_offset {
                let extent = self.extent(at, offset, len);
                match extents.last_mut() {
                    Some(last) if last.goes_on(&extent) => last.len += len,
                    _ => extents.push(extent),
                }
            }
            at += len;
        }
        Ok(extents)
    }

    fn extent(&self, logical: u64, offset: u64, len: u64) -> FileExtent {
        if Staging::is_staged(offset) {
            return FileExtent { logical, physical: None, len, inline: true };
        }
        let place = self.0.layout.place_at(offset);
        let inline = place.is_some_and(|at| self.0.state.lock().space().is_log(at.segment));
        FileExtent { logical, physical: Some(offset), len, inline }
    }

    /// The free space.
    pub fn free_space(&self) -> FreeSpace {
        let state = self.0.state.lock();
        let (segments, runs) = state.space().free_runs();
        let segment = state.layout().segment_bytes();
        let (room, open) = (state.space().room(), state.space().data_left());
        FreeSpace {
            bytes: segments * segment + open + room.bytes(),
            runs: runs + u64::from(open > 0) + room.runs(),
            data_bytes: state.space().data_segments() * segment,
            open_bytes: open,
        }
    }

    /// The allocation statistics since the volume was opened.
    pub fn alloc_stats(&self) -> AllocStats {
        self.0.state.lock().space().room().stats()
    }

    /// The strategy that allocates blocks for data.
    pub fn alloc_mode(&self) -> AllocMode {
        self.0.alloc.mode
    }

    /// For the strategy `serialized`: sets the number of 4 KiB pages from which on direct writes
    /// allocate one after the other. It applies to later requests.
    pub fn set_serialized_dio_pages(&self, pages: u32) {
        self.0.alloc.set_pages(pages);
    }

    /// The current value of [`Volume::set_serialized_dio_pages`].
    pub fn serialized_dio_pages(&self) -> u32 {
        self.0.alloc.pages()
    }

    /// Bytes of new content that can be written now, including the space in windows.
    pub fn room_bytes(&self) -> u64 {
        self.0.state.lock().new_room()
    }
}
