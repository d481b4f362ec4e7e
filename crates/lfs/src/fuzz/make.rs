//! Makes valid structures from a seed, for round-trip tests and as first inputs of the fuzzer.
//! Numbers are often at the ends of their ranges.
//!
//! No locks.

use crate::format::change::{Blocks, Change, Entry, Rename, Size};
use crate::format::extent::{ENCRYPTED, Extent, SHARED, Source, Sums, UNWRITTEN};
use crate::format::features::{COMPRESSION, ENCRYPTION, Features, SHARED_EXTENTS, SHORT_EXTENTS};
use crate::format::inode::{FileType, Inode, SetAttributes, Time};
use crate::format::key::Cookie;
use crate::format::place::{Geometry, MAX_SEGMENT, Place, Seal, SumAlgorithm};
use crate::format::record::{Finished, RECORD_ALIGN, RecordBuilder, RecordFields, RecordKind};
use crate::format::segment::SegmentHeader;
use crate::format::superblock::{FILES_TREE, Superblock, TreeRoot};
use crate::format::usage::{SUMMARY, Segment, SegmentState, Stream, WARM};
use crate::format::{MAX_DATA_ID, MAX_FILE_BYTES, MAX_TARGET_BYTES};
use forebay_base::world::split_mix;
use std::sync::LazyLock;

/// The nonce of everything that is made here.
pub const NONCE: [u8; 16] = *b"not so secret 16";
const POOL_BYTES: usize = 1 << 17;

/// Pools of random bytes: one with any bytes, one with bytes that names may have.
static POOLS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let mut seed = 5;
    let any: Vec<u8> = (0..POOL_BYTES).map(|_| split_mix(&mut seed) as u8).collect();
    let name = any.iter().map(|byte| if matches!(byte, 0 | b'/') { b'_' } else { *byte });
    let names = name.collect();
    [any, names]
});

/// The seal of everything that is made here.
pub fn seal() -> Seal {
    Seal::new(&NONCE)
}

/// A geometry with blocks and nodes of 4 KiB and segments of 1 MiB, with all features of extents or
/// none.
pub fn geometry(features: bool) -> Geometry {
    let incompat = if features { COMPRESSION | ENCRYPTION | SHARED_EXTENTS } else { 0 };
    Geometry { incompat, ..Geometry::with_segment_shift(20) }
}

/// The geometry without these features, but with short extents.
pub fn short_geometry() -> Geometry {
    Geometry { incompat: SHORT_EXTENTS, ..geometry(false) }
}

/// A generator of values from a seed.
#[derive(Debug, Clone)]
pub struct Make(pub u64);

impl Make {
    /// Any number.
    pub fn any(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end
    }

    /// A number from `low` to `high`, often one of the two ends.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        match self.below(6) {
            0 => low,
            1 => high,
            2 => low + self.below((high - low).min(15) + 1),
            _ => low + self.any().checked_rem((high - low).wrapping_add(1)).unwrap_or(self.0),
        }
    }

    /// A random bool.
    pub fn flip(&mut self) -> bool {
        self.any() & 1 == 1
    }

    /// One element of a slice.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Any bytes.
    pub fn slice(&mut self, len: usize) -> &'static [u8] {
        let start = self.below((POOL_BYTES - len + 1) as u64) as usize;
        &POOLS[0][start..start + len]
    }

    /// A name of 3 to 255 bytes, so neither `.` nor `..`.
    pub fn name(&mut self) -> &'static [u8] {
        let len = self.within(3, 255) as usize;
        let start = self.below((POOL_BYTES - len + 1) as u64) as usize;
        &POOLS[1][start..start + len]
    }

    /// A place for `bytes` bytes, aligned to `align`.
    pub fn place(&mut self, g: &Geometry, bytes: u32, align: u32) -> Place {
        let last = u64::from((g.segment_bytes() - bytes) / align);
        let segment = self.within(0, u64::from(MAX_SEGMENT)) as u32;
        Place::new(segment, self.within(0, last) as u32 * align)
    }

    fn sums(&mut self, count: u32) -> Sums<'static> {
        match self.below(4) {
            0 => Sums::NONE,
            _ => Sums::crc32c(self.slice(count as usize * SumAlgorithm::Crc32c.width())),
        }
    }

    /// An extent. It may be inline if a payload of `payload` bytes has space for it.
    pub fn extent(&mut self, g: &Geometry, payload: u32) -> Extent<'static> {
        let block = g.block_bytes();
        let blocks = self.within(1, 128) as u32;
        let inline = payload > 0 && self.flip();
        let blocks = if inline { blocks.min(payload / block) } else { blocks };
        let mapped = blocks * block;
        let encrypted = g.incompat & ENCRYPTION != 0 && self.flip();
        let coded = g.incompat & COMPRESSION != 0 && self.flip();
        let (stored_bytes, decoded_bytes, decoded_offset) = match (coded || encrypted) && !inline {
            true => {
                let decoded = self.within(u64::from(mapped), u64::from(128 * block)) as u32;
                let offset = self.within(0, u64::from((decoded - mapped) / block)) as u32 * block;
                (self.within(1, u64::from(128 * block)) as u32, decoded, offset)
            }
            false => (mapped, mapped, 0),
        };
        let mut flags = 0;
        if g.incompat & SHARED_EXTENTS != 0 && self.flip() {
            flags |= SHARED;
        }
        flags |= if encrypted { ENCRYPTED } else { 0 };
        let unwritten = !inline && self.below(8) == 0;
        flags |= if unwritten { UNWRITTEN } else { 0 };
        let source = match inline {
            true => {
                let last = u64::from((payload - mapped) / block);
                Source::Inline(self.within(0, last) as u32 * block)
            }
            false => Source::Run(self.place(g, stored_bytes, block)),
        };
        let sums = if unwritten { 0 } else { stored_bytes.div_ceil(block) };
        Extent {
            source,
            stored_bytes,
            decoded_bytes,
            decoded_offset,
            blocks: blocks as u16,
            codec: if coded { self.within(1, 255) as u8 } else { 0 },
            flags,
            key_id: if encrypted { self.within(1, u64::from(u32::MAX)) as u32 } else { 0 },
            birth: self.any(),
            tree: match g.incompat & SHORT_EXTENTS != 0 && self.flip() {
                true => FILES_TREE,
                false => self.any(),
            },
            sums: self.sums(sums),
        }
    }

    /// A time.
    pub fn time(&mut self) -> Time {
        Time { seconds: self.any() as i64, nanos: self.within(0, 999_999_999) as u32 }
    }

    /// A type of file.
    pub fn file_type(&mut self) -> FileType {
        let all = [1, 2, 4, 6, 8, 10, 12];
        FileType::from_code(self.pick(&all)).expect("these are the types")
    }

    /// An inode.
    pub fn inode(&mut self) -> Inode {
        Inode {
            mode: (self.file_type() as u32) << 12 | self.below(4096) as u32,
            uid: self.any() as u32,
            gid: self.any() as u32,
            nlink: self.within(0, u64::from(u32::MAX)) as u32,
            flags: self.any() as u32,
            data_id: self.within(0, MAX_DATA_ID),
            size: self.within(0, MAX_FILE_BYTES),
            stored_bytes: self.any(),
            rdev: self.any(),
            parent: self.any(),
            version: self.any(),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
            btime: self.time(),
        }
    }

    fn set_attributes(&mut self) -> SetAttributes {
        let (inode, set) = (self.inode(), self.any());
        let mut bit = 0;
        let mut on = || {
            bit += 1;
            set & 1 << bit != 0
        };
        SetAttributes {
            mode: on().then_some(inode.mode),
            uid: on().then_some(inode.uid),
            gid: on().then_some(inode.gid),
            nlink: on().then_some(inode.nlink),
            flags: on().then_some(inode.flags),
            parent: on().then_some(inode.parent),
            version: on().then_some(inode.version),
            atime: on().then_some(inode.atime),
            mtime: on().then_some(inode.mtime),
            ctime: on().then_some(inode.ctime),
            btime: on().then_some(inode.btime),
        }
    }

    /// An inode number.
    pub fn id(&mut self) -> u64 {
        self.within(1, u64::MAX)
    }

    /// A data id.
    pub fn data_id(&mut self) -> u64 {
        self.within(1, MAX_DATA_ID)
    }

    /// A cookie.
    pub fn cookie(&mut self) -> Cookie {
        Cookie::from_u64(self.within(1 << 16, (1 << 63) - 1)).expect("within what cookies are")
    }

    fn entry(&mut self) -> Entry<'static> {
        Entry {
            dir: self.id(),
            cookie: self.cookie(),
            child: self.id(),
            kind: self.file_type(),
            name: self.name(),
        }
    }

    fn rename(&mut self) -> Rename<'static> {
        let (from, to) = (self.entry(), self.entry());
        match self.flip() {
            true => Rename { from, to, replaced: 0, exchange: true },
            false => {
                let to = Entry { child: from.child, kind: from.kind, ..to };
                Rename { from, to, replaced: self.any(), exchange: false }
            }
        }
    }

    fn size(&mut self) -> Size {
        Size {
            ino: self.id(),
            data_id: self.data_id(),
            size: self.within(0, MAX_FILE_BYTES),
            sequence: self.any(),
        }
    }

    fn blocks(&mut self, g: &Geometry, most: u64) -> Blocks {
        let blocks = self.within(1, most);
        let block = self.within(0, g.max_blocks() - blocks);
        Blocks { data_id: self.data_id(), block, blocks }
    }

    /// An entry of the usage table.
    pub fn segment(&mut self) -> Segment {
        let states = [SegmentState::Free, SegmentState::Open, SegmentState::Sealed];
        let more = [SegmentState::Dead, SegmentState::Discarding, SegmentState::Reserved];
        let state = match self.flip() {
            true => self.pick(&states),
            false => self.pick(&[more[0], more[1], more[2], SegmentState::Bad]),
        };
        let empty = [SegmentState::Free, SegmentState::Dead, SegmentState::Discarding];
        Segment {
            live_bytes: if empty.contains(&state) { 0 } else { self.any() as u32 },
            state,
            stream: self.pick(&[Stream::None, Stream::Data, Stream::Log, Stream::Tree]),
            flags: self.pick(&[0, WARM, SUMMARY, WARM | SUMMARY]),
            since: self.any(),
        }
    }

    /// A change of the kind with this number, 1 to 19.
    pub fn change(&mut self, kind: u16, g: &Geometry, payload: u32) -> Change<'static> {
        match kind {
            1 => {
                let inode = self.inode();
                let link = inode.file_type() == Some(FileType::Symlink);
                let len = if link { self.within(1, MAX_TARGET_BYTES as u64) } else { 0 };
                Change::CreateInode(self.id(), inode, self.slice(len as usize))
            }
            2 => Change::SetAttributes(self.id(), self.set_attributes()),
            3 => Change::InsertEntry(self.entry()),
            4 => Change::RemoveEntry(self.entry()),
            5 => Change::Rename(self.rename()),
            6 => {
                let extent = self.extent(g, payload);
                let last = g.max_blocks() - u64::from(extent.blocks);
                Change::Map(self.data_id(), self.within(0, last), extent)
            }
            7 => Change::Grow(self.size()),
            8 => Change::Truncate(self.size()),
            9 => Change::ReplaceData(self.size(), self.data_id()),
            10 => Change::Punch(self.blocks(g, g.max_blocks()), self.any()),
            11 => {
                let len = self.within(0, 4000) as usize;
                Change::SetXattr(self.id(), self.name(), self.slice(len))
            }
            12 => Change::RemoveXattr(self.id(), self.name()),
            13 => Change::AddOrphan(self.id()),
            14 => Change::RemoveOrphan(self.id()),
            15 => Change::RemoveInode(self.id(), self.within(0, MAX_DATA_ID), self.any()),
            16 => Change::ReapDead { died: self.any(), data_id: self.data_id(), upto: self.any() },
            17 => {
                let blocks = self.blocks(g, 128);
                let block = g.block_bytes();
                let stored_bytes = match g.stores_pieces() && self.flip() {
                    true => self.within(1, u64::from(128 * block)) as u32,
                    false => (blocks.blocks << g.block_shift) as u32,
                };
                let from = self.place(g, stored_bytes, block);
                let to = self.place(g, stored_bytes, block);
                Change::Move { blocks, stored_bytes, from, to }
            }
            18 => Change::SetSegment(self.within(0, u64::from(MAX_SEGMENT)) as u32, self.segment()),
            _ => Change::NextSegment(self.within(0, u64::from(MAX_SEGMENT)) as u32),
        }
    }

    /// The fields of a record header that its writer chooses.
    pub fn fields(&mut self, kind: RecordKind) -> RecordFields {
        let sequence = self.within(1, u64::MAX);
        RecordFields {
            kind,
            tree: self.any(),
            sequence,
            generation: self.any(),
            predecessor: self.any() as u32,
            durable_through: self.within(0, sequence - 1),
        }
    }

    /// A record at `place`, encoded into `bytes`. Returns what was encoded, and the result.
    pub fn record(
        &mut self,
        bytes: &mut [u8],
        place: Place,
        g: &Geometry,
    ) -> (RecordFields, Vec<Change<'static>>, &'static [u8], Finished) {
        let block = g.block_bytes();
        let mark = self.below(8) == 0;
        let payload = if mark || self.flip() { 0 } else { self.within(1, 16) as u32 * block };
        let mut builder = RecordBuilder::new(bytes, place, *g).expect("there is room for a header");
        let mut changes = Vec::new();
        for _ in 0..if mark { 0 } else { self.within(0, 12) } {
            let kind = self.within(1, 19) as u16;
            let change = self.change(kind, g, payload);
            builder.change(&change).expect("there is room for a dozen");
            changes.push(change);
        }
        let content = self.slice(payload as usize);
        if payload > 0 {
            builder.payload(content.len()).expect("room").copy_from_slice(content);
        }
        let fields = self.fields(if mark { RecordKind::Mark } else { RecordKind::Changes });
        let align = self.pick(&[RECORD_ALIGN, 512, 4096]);
        let finished = builder.finish(seal(), fields, align).expect("room for padding");
        (fields, changes, content, finished)
    }

    /// The header of a log segment.
    pub fn segment_header(&mut self, g: &Geometry) -> SegmentHeader {
        SegmentHeader {
            segment: self.within(0, u64::from(MAX_SEGMENT)) as u32,
            generation: self.any(),
            first_sequence: self.id(),
            previous: self.flip().then(|| self.within(0, u64::from(MAX_SEGMENT)) as u32),
            first_record: self.within(2, u64::from(g.segment_bytes() / 64) - 1) as u32 * 64,
            predecessor: self.any() as u32,
            key_id: self.any() as u32,
            object_tag: self.any(),
        }
    }

    /// A superblock slot.
    pub fn superblock(&mut self) -> Superblock {
        let node_shift = self.within(12, 15) as u8;
        let geometry = Geometry {
            block_shift: self.within(9, 12) as u8,
            node_shift,
            segment_shift: self.within(16, 30) as u8,
            sum: self.pick(&[SumAlgorithm::None, SumAlgorithm::Crc32c]),
            incompat: 0,
        };
        let segment_count = self.within(1, u64::from(MAX_SEGMENT)) as u32;
        let data_start_bytes = self.within(16384, 1 << 30);
        let segments = u64::from(segment_count) << geometry.segment_shift;
        let segment = |make: &mut Self| make.within(0, u64::from(segment_count) - 1) as u32;
        let tree_count = self.within(0, 64);
        let trees = (0..tree_count).map(|n| TreeRoot {
            tree: n * 7 + 1,
            places: self.flip().then(|| {
                let bytes = geometry.node_bytes() as u32;
                [(); 2].map(|()| Place {
                    segment: segment(self),
                    ..self.place(&geometry, bytes, bytes)
                })
            }),
            birth: self.any(),
            sum: self.any() as u32,
            level: self.any() as u8,
            since: self.any(),
        });
        let trees = trees.collect();
        Superblock {
            slot: self.below(8) as u32,
            features: Features { compat: self.any(), ro_compat: self.any(), incompat: 0 },
            uuid: self.slice(16).try_into().expect("16 bytes"),
            nonce: self.slice(16).try_into().expect("16 bytes"),
            geometry,
            state: self.below(4) as u32,
            checkpoint: self.any(),
            generation: self.any(),
            log_head: Place::new(segment(self), self.below(1 << 16) as u32),
            log_predecessor: self.any() as u32,
            log_sequence: self.id(),
            data_start_bytes,
            recorded_end_bytes: data_start_bytes + segments + self.within(16384, 1 << 40),
            segment_count,
            inode_count: self.any(),
            next_ino: self.id(),
            next_data_id: self.data_id(),
            next_tree: self.within(16, u64::MAX),
            next_sequence: self.id(),
            arena_uuid: self.slice(16).try_into().expect("16 bytes"),
            arena_generation: self.any(),
            created_ns: self.any() as i64,
            key_area: [0; 128],
            trees,
        }
    }
}
