//! Makes keys, items, nodes and summaries from a seed, with the generator of [`super::make`].
//!
//! No locks.

use super::make::{Make, seal};
use crate::format::extent::Source;
use crate::format::inode::Inode;
use crate::format::item::{CHUNK_BYTES, DeadItem, EntryItem, Item, Usage, XattrItem};
use crate::format::key::Key;
use crate::format::node::{MAX_LEVEL, NodeBuilder, NodeHeader, NodePointer};
use crate::format::place::{Geometry, MAX_SEGMENT};
use crate::format::summary::{
    Summary, SummaryEntry, SummaryHeader, blocks_before_summary, summary_bytes,
};
use crate::format::{MAX_DATA_ID, MAX_XATTR_BYTES};
use forebay_base::codec::Writer;

impl Make {
    /// An item of the kind with this number, 0 to 8.
    pub fn item(&mut self, kind: u64, g: &Geometry) -> (Key, Item<'static>) {
        match kind {
            0 => (Key::Inode(self.id()), Item::Inode(Inode { ..self.inode() })),
            1 => {
                let chunk = self.within(0, 3);
                let most = if chunk == 3 { 1023 } else { CHUNK_BYTES as u64 };
                let piece = self.within(1, most) as usize;
                (Key::Target(self.id(), chunk as u16), Item::Piece(self.slice(piece)))
            }
            2 => {
                let value_bytes = self.within(0, MAX_XATTR_BYTES as u64) as u32;
                let piece = self.slice((value_bytes as usize).min(CHUNK_BYTES));
                let item = Item::Xattr(XattrItem { name: self.name(), value_bytes, piece });
                (Key::Xattr(self.id(), self.cookie(), 0), item)
            }
            3 => {
                let piece = self.within(1, CHUNK_BYTES as u64) as usize;
                let chunk = self.within(1, 63) as u16;
                (Key::Xattr(self.id(), self.cookie(), chunk), Item::Piece(self.slice(piece)))
            }
            4 => {
                let (child, kind, name) = (self.id(), self.file_type(), self.name());
                let item = Item::Entry(EntryItem { child, kind, name });
                (Key::Entry(self.id(), self.cookie()), item)
            }
            5 => {
                let extent = self.extent(g, 0);
                assert!(matches!(extent.source, Source::Run(_)), "there is no payload");
                let last = g.max_blocks() - u64::from(extent.blocks);
                (Key::Extent(self.data_id(), self.within(0, last)), Item::Extent(extent))
            }
            6 => {
                let dead = DeadItem {
                    reaped_upto: self.any(),
                    stored_bytes: self.any(),
                    tree: self.any(),
                    oldest_birth: self.any(),
                };
                (Key::Dead(self.any(), self.data_id()), Item::Dead(dead))
            }
            7 => (Key::Orphan(self.id()), Item::Orphan(self.any())),
            _ => {
                let mut bytes = vec![0; self.within(1, 64) as usize * 16];
                let mut w = Writer::new("usage", &mut bytes);
                while w.remaining() > 0 {
                    self.segment().encode_into(&mut w).expect("there is room");
                }
                // This leaks at most 1 KiB, because the item borrows its bytes.
                let bytes: &'static [u8] = Box::leak(bytes.into_boxed_slice());
                let first = self.within(0, u64::from(MAX_SEGMENT)) as u32 & !63;
                (Key::Usage(first), Item::Usage(Usage::new(bytes).expect("they are entries")))
            }
        }
    }

    /// The header of a node.
    pub fn node_header(&mut self, level: u8, g: &Geometry) -> NodeHeader {
        let bytes = g.node_bytes() as u32;
        let places = [(); 2].map(|()| self.place(g, bytes, bytes));
        NodeHeader { places, owner: self.any(), birth: self.any(), level }
    }

    /// A leaf of any fill, perhaps empty, encoded into `bytes`. Returns its content, and the
    /// pointer to it.
    pub fn leaf(
        &mut self,
        bytes: &mut [u8],
        g: &Geometry,
    ) -> (NodeHeader, Vec<(Key, Item<'static>)>, NodePointer) {
        let mut items: Vec<_> = (0..self.within(0, 40)).map(|n| self.item(n % 9, g)).collect();
        items.sort_by_key(|(key, _)| *key);
        items.dedup_by_key(|(key, _)| *key);
        let mut builder = NodeBuilder::new(bytes, 0, *g).expect("bytes of a node");
        items.retain(|(key, item)| builder.item(*key, item).expect("it is in order"));
        let header = self.node_header(0, g);
        let pointer = builder.finish(seal(), header).expect("it fits");
        (header, items, pointer)
    }

    /// An inner node of any fill, perhaps empty, encoded into `bytes`.
    pub fn inner(
        &mut self,
        bytes: &mut [u8],
        g: &Geometry,
    ) -> (NodeHeader, Vec<(Vec<u8>, NodePointer)>, NodePointer) {
        let level = self.within(1, u64::from(MAX_LEVEL)) as u8;
        let mut keys: Vec<Vec<u8>> = (0..self.within(0, 90))
            .map(|n| self.item(n % 8, g).0.to_bytes().as_slice().to_vec())
            .collect();
        if self.flip() {
            keys.push(Vec::new());
        }
        keys.sort();
        keys.dedup();
        let mut builder = NodeBuilder::new(bytes, level, *g).expect("bytes of a node");
        let mut children = Vec::new();
        for key in keys {
            let NodeHeader { places, birth, .. } = self.node_header(0, g);
            let pointer = NodePointer { places, birth, sum: self.any() as u32 };
            if builder.child(&key, &pointer).expect("it is in order") {
                children.push((key, pointer));
            }
        }
        let header = self.node_header(level, g);
        let pointer = builder.finish(seal(), header).expect("it fits");
        (header, children, pointer)
    }

    /// A summary, encoded into `bytes`. Returns its content.
    pub fn summary(
        &mut self,
        bytes: &mut [u8],
        g: &Geometry,
    ) -> (SummaryHeader, Vec<SummaryEntry>) {
        let birth = |make: &mut Self| make.within(0, (1 << 26) - 1);
        let entries: Vec<SummaryEntry> = (0..blocks_before_summary(g))
            .map(|_| match self.below(4) {
                0 => SummaryEntry::Empty,
                1 => SummaryEntry::Node(birth(self)),
                _ => {
                    let block = self.within(0, g.max_blocks() - 1);
                    SummaryEntry::Data(self.within(1, MAX_DATA_ID), block, birth(self))
                }
            })
            .collect();
        let first = self.any();
        let header = SummaryHeader {
            segment: self.within(0, u64::from(MAX_SEGMENT)) as u32,
            generation: self.any(),
            sequences: (first, self.within(first, u64::MAX)),
            base_birth: self.any(),
            key_id: self.any() as u32,
            object_tag: self.any(),
            stream: self.below(4) as u8,
            entries: entries.len() as u32,
        };
        let stored: Vec<u8> =
            entries.iter().flat_map(|e| e.to_bytes().expect("it is in range")).collect();
        let room = &mut bytes[..summary_bytes(g) as usize];
        Summary::encode_into(&header, &stored, seal(), g, room).expect("it is sound");
        (header, entries)
    }
}
