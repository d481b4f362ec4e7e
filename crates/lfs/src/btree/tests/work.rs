//! Random batches of changes from a seed, in patterns as a volume makes them.
//!
//! No locks.

use super::{Model, geometry};
use crate::btree::Change;
use crate::format::extent::{Extent, Source, Sums};
use crate::format::inode::FileType;
use crate::format::item::{CHUNK_BYTES, EntryItem, Item, MAX_VALUE_BYTES, XattrItem};
use crate::format::key::{Cookie, Key, NameHash};
use crate::format::place::Place;
use crate::format::{MAX_NAME_BYTES, MAX_XATTR_BYTES};
use crate::fuzz::make::{Make, NONCE};
use std::collections::BTreeMap;

/// The shape of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Items of all kinds, anywhere.
    Random,
    /// Extents of one block behind the last one of a file.
    Sequential,
    /// Names in a few directories.
    Clustered,
    /// Nine deletes for each new item.
    Deletes,
    /// Deletes of adjacent keys.
    DeleteRun,
    /// Extents of 128 blocks with their sums.
    LongExtents,
    /// The largest items there are.
    Largest,
    /// One or two changes.
    Few,
}

pub(crate) const SHAPES: [Shape; 8] = [
    Shape::Random,
    Shape::Sequential,
    Shape::Clustered,
    Shape::Deletes,
    Shape::DeleteRun,
    Shape::LongExtents,
    Shape::Largest,
    Shape::Few,
];

fn put(key: Key, item: &Item<'_>) -> Change {
    Change::put(key, item, &geometry()).expect("a sound item")
}

/// An extent of this many blocks with sums.
pub(crate) fn extent(make: &mut Make, id: u64, block: u64, blocks: u16) -> Change {
    let g = geometry();
    let places = u64::from(g.blocks_per_segment() - u32::from(blocks) + 1);
    let offset = (make.below(places) as u32) << g.block_shift;
    let place = Place::new(make.below(1000) as u32, offset);
    let sums = Sums::crc32c(make.slice(usize::from(blocks) * 4));
    put(
        Key::Extent(id, block),
        &Item::Extent(Extent::plain(Source::Run(place), blocks, make.any(), sums, &g)),
    )
}

fn name(make: &mut Make, dir: u64, nth: u64) -> Change {
    let name = format!("name of {nth} in {dir}").repeat(1 + make.below(3) as usize);
    let cookie = Cookie::new(NameHash::new(&NONCE, &nth.to_le_bytes()), 0);
    let (child, kind, name) = (1 + make.below(1 << 40), FileType::Regular, name.as_bytes());
    put(Key::Entry(dir, cookie), &Item::Entry(EntryItem { child, kind, name }))
}

fn largest(make: &mut Make, ino: u64, nth: u64) -> Change {
    let cookie = Cookie::new(NameHash::new(&NONCE, &nth.to_le_bytes()), 0);
    let name: Vec<u8> = (0..MAX_NAME_BYTES).map(|n| b'a' + (n as u8 ^ nth as u8) % 26).collect();
    let (name, value_bytes) = (&name[..], MAX_XATTR_BYTES as u32);
    let change = if make.below(4) > 0 {
        let piece = make.slice(CHUNK_BYTES);
        let item = Item::Xattr(XattrItem { name, value_bytes, piece });
        put(Key::Xattr(ino, cookie, 0), &item)
    } else {
        put(
            Key::Xattr(ino, cookie, 1 + make.below(63) as u16),
            &Item::Piece(make.slice(CHUNK_BYTES)),
        )
    };
    assert!(change.value().is_some_and(|value| value.len() <= MAX_VALUE_BYTES));
    change
}

/// A key of the model; `None` if it is empty.
fn any_key(make: &mut Make, keys: &[&Vec<u8>]) -> Option<Key> {
    let n = make.below(keys.len().max(1) as u64) as usize;
    keys.get(n).map(|key| Key::decode(key).expect("a key of the model"))
}

/// About `count` changes in the order of their keys.
pub(crate) fn batch(make: &mut Make, shape: Shape, count: u64, model: &Model) -> Vec<Change> {
    let g = geometry();
    let keys: Vec<&Vec<u8>> = model.keys().collect();
    let mut out: BTreeMap<Vec<u8>, Change> = BTreeMap::new();
    let (dir, first) = (1 + make.below(3), make.below(1 << 30));
    let run = make.below(keys.len().max(1) as u64) as usize;
    for n in 0..count {
        let change = match shape {
            Shape::Random | Shape::Few => {
                let kind = make.below(8);
                let (key, item) = make.item(kind, &g);
                match any_key(make, &keys).filter(|_| make.below(3) == 0) {
                    Some(key) => Change::delete(key),
                    None => put(key, &item),
                }
            }
            Shape::Sequential => extent(make, 7, (model.len() as u64) * 4 + n, 1),
            Shape::Clustered => {
                let nth = first + make.below(3 * count);
                name(make, dir, nth)
            }
            Shape::Deletes => match any_key(make, &keys).filter(|_| make.below(10) > 0) {
                Some(key) => Change::delete(key),
                None => extent(make, 9, make.0 % (1 << 40), 3),
            },
            Shape::DeleteRun => match keys.get(run + n as usize) {
                Some(key) => Change::delete(Key::decode(key).expect("a key of the model")),
                None => break,
            },
            Shape::LongExtents => {
                let (id, block) = (1 + make.below(3), make.below(1 << 20) * 128);
                extent(make, id, block, 128)
            }
            Shape::Largest => {
                let (ino, nth) = (1 + make.below(5), make.below(1 << 20));
                largest(make, ino, nth)
            }
        };
        out.insert(change.key().to_vec(), change);
        if shape == Shape::Few && n == 1 {
            break;
        }
    }
    out.into_values().collect()
}
