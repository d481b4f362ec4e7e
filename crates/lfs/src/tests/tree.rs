//! Keys, items and nodes of the tree.
//!
//! No locks.

use super::damage::{cut_anywhere, flip_anywhere};
use super::seeds;
use crate::format::extent::{Extent, Source, Sums};
use crate::format::item::{EntryItem, Item, XattrItem};
use crate::format::key::{Cookie, Key, NameHash};
use crate::format::node::{Node, NodeBuilder, NodeHeader, NodePointer};
use crate::format::place::{Geometry, Place, Seal};
use crate::fuzz::make::{Make, geometry, seal};
use forebay_base::codec::Writer;
use forebay_base::{ErrorKind, Result};

const NODE: usize = 4096;

fn leaf(seed: u64, g: &Geometry) -> (NodeHeader, Vec<(Key, Item<'static>)>, NodePointer, Vec<u8>) {
    let mut bytes = vec![0xaa; NODE];
    let (header, items, pointer) = Make(seed).leaf(&mut bytes, g);
    (header, items, pointer, bytes)
}

/// key.K1, key.K2, format.F5: keys sort as their bytes do, and only complete keys decode.
#[test]
fn keys_are_in_the_order_of_their_bytes() {
    let g = geometry(false);
    for seed in seeds(3000) {
        let mut make = Make(seed);
        let kinds = [make.below(9), make.below(9)];
        let keys = kinds.map(|kind| make.item(kind, &g).0);
        let bytes = keys.map(Key::to_bytes);
        for (key, bytes) in keys.iter().zip(&bytes) {
            let bytes = bytes.as_slice();
            assert_eq!(Key::decode(bytes).unwrap(), *key, "K2");
            for len in 0..bytes.len() {
                Key::decode(&bytes[..len]).expect_err("a cut key (K2)");
            }
            let longer: Vec<u8> = bytes.iter().chain(&[0]).copied().collect();
            Key::decode(&longer).expect_err("a longer key (K2)");
        }
        let by_bytes = bytes[0].as_slice().cmp(bytes[1].as_slice());
        let numbers = |key: &Key| match *key {
            Key::Inode(ino) => (0x10, ino, 1, 0, 0),
            Key::Target(ino, chunk) => (0x10, ino, 2, u64::from(chunk), 0),
            Key::Xattr(ino, cookie, chunk) => (0x10, ino, 3, cookie.to_u64(), chunk),
            Key::Entry(ino, cookie) => (0x10, ino, 4, cookie.to_u64(), 0),
            Key::Extent(id, block) => (0x20, id, 0, block, 0),
            Key::Dead(died, id) => (0x30, died, 0, id, 0),
            Key::Orphan(ino) => (0x40, ino, 0, 0, 0),
            Key::Usage(segment) => (0x50, u64::from(segment), 0, 0, 0),
        };
        let by_value = numbers(&keys[0]).cmp(&numbers(&keys[1]));
        assert_eq!(keys[0].cmp(&keys[1]), by_value, "seed {seed}: {keys:?} (K1)");
        assert_eq!(by_bytes, by_value, "seed {seed}: {keys:?} (K1)");
    }
}

#[test]
fn each_item_reads_back() {
    for seed in seeds(300) {
        for kind in 0..9 {
            let g = geometry(seed % 2 == 0);
            let (key, item) = Make(seed).item(kind, &g);
            let mut bytes = vec![0xaa; 1400];
            let mut w = Writer::new("item", &mut bytes);
            item.encode_into(key, &mut w, &g).unwrap_or_else(|e| panic!("{seed}, {kind}: {e}"));
            let stored = w.written();
            assert_eq!(Item::decode(key, stored, &g).unwrap(), item, "{seed}, {kind}");
            // A piece, and a list of usage entries, may end anywhere.
            if !matches!(item, Item::Piece(_) | Item::Usage(_)) {
                for len in 0..stored.len() {
                    Item::decode(key, &stored[..len], &g).expect_err("it was cut (I2)");
                }
            }
        }
    }
}

#[test]
fn each_node_reads_back() {
    let mut full = 0;
    for seed in seeds(300) {
        let g = geometry(seed % 2 == 0);
        let (header, items, pointer, bytes) = leaf(seed, &g);
        for copy in 0..2 {
            let node = Node::follow(&bytes, seal(), &pointer, copy, header.owner, 0, &g);
            let node = node.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!((node.header, node.len()), (header, items.len()), "seed {seed}");
            for (n, item) in items.iter().enumerate() {
                assert_eq!(node.item(n, &g).unwrap().as_ref(), Some(item), "seed {seed}");
                let key = item.0.to_bytes();
                assert_eq!(node.search(key.as_slice()), Ok(n));
                let mut above = key.as_slice().to_vec();
                above.push(0);
                assert_eq!(node.search(&above), Err(n + 1), "the next key there could be");
            }
            assert!(node.item(items.len(), &g).unwrap().is_none());
        }
        full += usize::from(items.len() > 8);
        let mut bytes = vec![0xaa; NODE];
        let (header, children, pointer) = Make(seed).inner(&mut bytes, &g);
        let node = Node::follow(&bytes, seal(), &pointer, 0, header.owner, header.level, &g);
        let node = node.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(node.len(), children.len());
        for (n, (key, child)) in children.iter().enumerate() {
            assert_eq!(node.child(n, &g).unwrap(), Some((&key[..], *child)));
            assert_eq!(node.child_for(key), n);
            assert_eq!(node.child_for(&[&key[..], &[0]].concat()), n, "up to the next key");
        }
        assert_eq!(node.child_for(&[]), 0, "what is below all is in the first");
    }
    assert!(full > 0, "some leaf has more than a few items");
}

/// format.F3, node.T4: a node is refused if it is cut at any length, or if any bit is flipped.
#[test]
fn damage_is_reported() {
    let g = geometry(true);
    let (header, items, _, bytes) = leaf(2, &g);
    assert!(items.len() > 2);
    cut_anywhere(&bytes, |b| Node::open(b, seal(), header.places[0], &g).map(drop));
    flip_anywhere(&bytes, |b| Node::open(b, seal(), header.places[1], &g).map(drop));
}

/// node.T3, place.P1, place.P2: a stale, a misdirected and a foreign node are refused.
#[test]
fn node_must_match_its_pointer() {
    let g = geometry(false);
    let (header, _, pointer, bytes) = leaf(7, &g);
    let follow = |pointer: &NodePointer, owner: u64, level: u8, seal: Seal| {
        Node::follow(&bytes, seal, pointer, 1, owner, level, &g).map(drop)
    };
    follow(&pointer, header.owner, 0, seal()).unwrap();
    follow(&pointer, header.owner ^ 1, 0, seal()).expect_err("another tree's (T3)");
    follow(&pointer, header.owner, 1, seal()).expect_err("of another level (T3)");
    let other = NodePointer { birth: pointer.birth ^ 1, ..pointer };
    follow(&other, header.owner, 0, seal()).expect_err("a stale one (T3)");
    let other = NodePointer { sum: pointer.sum ^ 1, ..pointer };
    follow(&other, header.owner, 0, seal()).expect_err("a stale one (T3)");
    let [first, second] = pointer.places;
    let moved =
        NodePointer { places: [first, Place { segment: second.segment ^ 1, ..second }], ..pointer };
    follow(&moved, header.owner, 0, seal()).expect_err("at another place (P2, T3)");
    let foreign = Seal::new(b"another volume's");
    follow(&pointer, header.owner, 0, foreign).expect_err("of another volume (P2)");
}

/// node.T1, node.T2: a node is refused if its checksum is right and its items are not.
#[test]
fn items_out_of_order_are_reported() {
    let g = geometry(false);
    let header = Make(1).node_header(0, &g);
    let mut bytes = vec![0; NODE];
    let mut builder = NodeBuilder::new(&mut bytes, 0, g).unwrap();
    for ino in [5, 6, 7] {
        assert!(builder.item(Key::Orphan(ino), &Item::Orphan(1)).unwrap());
    }
    let again = builder.item(Key::Orphan(7), &Item::Orphan(1));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::InvalidInput, "T1");
    builder.finish(seal(), header).unwrap();
    // Three offsets, then items of 3 + 9 + 8 bytes: the number in the second one's key, its offset,
    // its lengths.
    let cases =
        [(64 + 6 + 20 + 11, 9, "T1"), (66, 60, "T2"), (90, 21, "one of 21 bytes"), (12, 60, "T2")];
    for (at, value, text) in cases {
        let mut bytes = bytes.clone();
        assert_ne!(bytes[at], value);
        bytes[at] = value;
        let sum = seal().sum(header.places[0], &bytes, 4);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        let error = Node::open(&bytes, seal(), header.places[0], &g).expect_err(text);
        assert!(error.to_string().contains(text), "{at}: {error}");
    }
}

/// item.I1: three of the largest items fit a leaf.
#[test]
fn three_largest_items_fit_a_leaf() {
    let g = geometry(false);
    let mut bytes = vec![0; NODE];
    let mut builder = NodeBuilder::new(&mut bytes, 0, g).unwrap();
    let piece = [1; 1024];
    let name = [b'n'; 255];
    let item = Item::Xattr(XattrItem { name: &name, value_bytes: 65536, piece: &piece });
    for ino in 1..=3 {
        let cookie = Cookie::new(NameHash::new(&[0; 16], &name), 0);
        assert!(builder.item(Key::Xattr(ino, cookie, 0), &item).unwrap(), "I1");
    }
    assert_eq!(builder.len(), 3);
    let full = builder.item(
        Key::Extent(1, 0),
        &Item::Extent(Extent::plain(
            Source::Run(Place::new(0, 0)),
            128,
            1,
            Sums::crc32c(&[0; 512]),
            &g,
        )),
    );
    assert!(!full.unwrap(), "there is no room left");
}

/// change.G2, item.I2, item.I3, inode.N1..N3, extent.X1..X3, usage.U1: values that no decoder
/// accepts are refused when they are encoded, with the reason.
#[test]
fn values_out_of_range_are_named() {
    let g = geometry(false);
    let refuse = |key: Key, item: Item<'_>, text: &str| {
        let mut bytes = [0; 1400];
        let result = item.encode_into(key, &mut Writer::new("item", &mut bytes), &g);
        let error: Result<()> = result;
        let error = error.expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(text), "{error}");
    };
    let cookie = Make(1).cookie();
    let kind = Make(1).file_type();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        let entry = EntryItem { child: 1, kind, name };
        refuse(Key::Entry(1, cookie), Item::Entry(entry), "`name`");
    }
    let inode = Make(1).inode();
    let with = |change: &dyn Fn(&mut crate::format::inode::Inode)| {
        let mut inode = inode;
        change(&mut inode);
        Item::Inode(inode)
    };
    refuse(Key::Inode(1), with(&|i| i.mode = 0o70000), "`mode`");
    refuse(Key::Inode(1), with(&|i| i.mode |= 0x10000), "`mode`");
    refuse(Key::Inode(1), with(&|i| i.mtime.nanos = 1_000_000_000), "`mtime`");
    refuse(Key::Inode(1), with(&|i| i.size = 1 << 63), "`size`");
    refuse(Key::Orphan(1), with(&|_| ()), "bytes too many");
    refuse(Key::Target(1, 4), Item::Piece(b"x"), "I3");
    refuse(Key::Xattr(1, cookie, 1), Item::Piece(&[0; 1025]), "I3");
    refuse(Key::Xattr(1, cookie, 64), Item::Piece(&[0; 1]), "I3");
    let sums = [0; 8];
    let place = Place::new(1, 4096);
    let good = Extent::plain(Source::Run(place), 2, 1, Sums::crc32c(&sums), &g);
    let last = Place::new(1, g.segment_bytes() - 4096);
    let cases = [
        (Extent { blocks: 0, ..good }, "1 to 128"),
        (Extent { blocks: 129, ..good }, "1 to 128"),
        (Extent { source: Source::Run(Place::new(1, 512)), ..good }, "begin at a block"),
        (Extent { source: Source::Run(last), ..good }, "leave the segment"),
        (Extent { source: Source::Inline(0), ..good }, "relative to a record"),
        (Extent { stored_bytes: 4096, ..good }, "without a codec"),
        (Extent { sums: Sums::crc32c(&sums[..4]), ..good }, "one for each stored block"),
        (Extent { sums: Sums { algorithm: Sums::NONE.algorithm, bytes: &sums }, ..good }, "`sums`"),
        (Extent { codec: 1, ..good }, "codec without the feature"),
        (Extent { flags: 2, ..good }, "shared without the feature"),
        (Extent { flags: 4, key_id: 1, ..good }, "encryption without"),
        (Extent { flags: 8, ..good }, "unknown bits"),
    ];
    for (extent, text) in cases {
        refuse(Key::Extent(1, 0), Item::Extent(extent), text);
    }
    refuse(Key::Extent(1, g.max_blocks() - 1), Item::Extent(good), "not in a file");
    let used = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let error = crate::format::item::Usage::new(&used).unwrap_err();
    assert!(error.to_string().contains("U1"), "{error}");
}
