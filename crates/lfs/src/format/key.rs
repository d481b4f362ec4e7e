//! Keys of the tree: their order is the order of their bytes.
//!
//! ```text
//!   inode        10 ino(8) 01                    value: inode
//!   target       10 ino(8) 02 chunk(2)           value: piece of a symbolic link's target
//!   attribute    10 ino(8) 03 cookie(8) chunk(2) value: name, piece of the value
//!   entry        10 dir(8) 04 cookie(8)          value: child, type, name
//!   extent       20 data_id(8) block(8)          value: extent
//!   dead         30 died(8) data_id(8)           value: how far it is reaped
//!   orphan       40 ino(8)                       value: sequence of the record that made it one
//!   usage        50 segment(4)                   value: entries of the usage table from there on
//! ```
//! Invariants: K1 numbers are big-endian, so keys are ordered by (kind, numbers). K2 a key decodes
//! to the value that was encoded, and no other bytes decode. K3 changes of a directory do not
//! reorder its entries: a cookie stays with its entry.
//!
//! No locks, no state.

use super::MAX_DATA_ID;
use super::corrupt;
use super::place::MAX_SEGMENT;
use forebay_base::Result;
use std::cmp::Ordering;

/// Longest key, bytes.
pub const MAX_KEY_BYTES: usize = 20;

const WHAT: &str = "key";
const INODE: u8 = 0x10;
const EXTENT: u8 = 0x20;
const DEAD: u8 = 0x30;
const ORPHAN: u8 = 0x40;
const USAGE: u8 = 0x50;
const OF_INODE: u8 = 1;
const TARGET: u8 = 2;
const XATTR: u8 = 3;
const ENTRY: u8 = 4;

/// A key, ordered as its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// An inode.
    Inode(u64),
    /// A piece of a symbolic link's target: inode, number of the piece.
    Target(u64, u16),
    /// A piece of an extended attribute: inode, cookie of its name, number of the piece.
    Xattr(u64, Cookie, u16),
    /// An entry: directory, cookie of its name.
    Entry(u64, Cookie),
    /// Blocks: data id, first block.
    Extent(u64, u64),
    /// Dead data: sequence of its death, data id.
    Dead(u64, u64),
    /// An inode that is open and has no name.
    Orphan(u64),
    /// Entries of the usage table: first segment, a multiple of 64.
    Usage(u32),
}

/// The bytes of a key. Those behind its length are zero.
#[derive(Debug, Clone, Copy)]
pub struct KeyBytes {
    bytes: [u8; MAX_KEY_BYTES],
    len: usize,
}

impl KeyBytes {
    /// Lower than all keys.
    pub(crate) const EMPTY: Self = Self { bytes: [0; MAX_KEY_BYTES], len: 0 };

    /// A key from a node, where keys are never longer than this type; of longer input, the first
    /// bytes.
    pub(crate) fn copy_of(stored: &[u8]) -> Self {
        let mut key = Self::EMPTY;
        key.put(&stored[..stored.len().min(MAX_KEY_BYTES)]);
        key
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// All bytes and the length, as numbers in the order of the keys: a key that is the start of
    /// another one, or differs from it only by zeros at the end, is shorter.
    fn words(&self) -> (u128, u32, usize) {
        let (high, low) = self.bytes.split_first_chunk().expect("a key has more bytes");
        let low = low.first_chunk().expect("a key has these bytes, too");
        (u128::from_be_bytes(*high), u32::from_be_bytes(*low), self.len)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl PartialEq for KeyBytes {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl Eq for KeyBytes {}

impl Ord for KeyBytes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.words().cmp(&other.words())
    }
}

impl PartialOrd for KeyBytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.to_bytes().as_slice().cmp(other.to_bytes().as_slice())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Key {
    /// The stored form.
    pub fn to_bytes(self) -> KeyBytes {
        let mut key = KeyBytes::EMPTY;
        let mut head = |space: u8, number: u64| {
            key.put(&[space]);
            key.put(&number.to_be_bytes());
        };
        match self {
            Self::Inode(ino) => {
                head(INODE, ino);
                key.put(&[OF_INODE]);
            }
            Self::Target(ino, chunk) => {
                head(INODE, ino);
                key.put(&[TARGET]);
                key.put(&chunk.to_be_bytes());
            }
            Self::Xattr(ino, cookie, chunk) => {
                head(INODE, ino);
                key.put(&[XATTR]);
                key.put(&cookie.0.to_be_bytes());
                key.put(&chunk.to_be_bytes());
            }
            Self::Entry(dir, cookie) => {
                head(INODE, dir);
                key.put(&[ENTRY]);
                key.put(&cookie.0.to_be_bytes());
            }
            Self::Extent(id, number) => {
                head(EXTENT, id);
                key.put(&number.to_be_bytes());
            }
            Self::Dead(died, id) => {
                head(DEAD, died);
                key.put(&id.to_be_bytes());
            }
            Self::Orphan(ino) => head(ORPHAN, ino),
            Self::Usage(segment) => {
                key.put(&[USAGE]);
                key.put(&segment.to_be_bytes());
            }
        }
        key
    }

    /// Reads a key.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |why: &str| corrupt(WHAT, format!("{why}: {bytes:02x?}"));
        let (space, rest) = bytes.split_first().ok_or_else(|| bad("empty"))?;
        if *space == USAGE {
            let segment = rest.try_into().map(u32::from_be_bytes);
            return match segment {
                Ok(segment @ 0..=MAX_SEGMENT) if segment.is_multiple_of(64) => {
                    Ok(Self::Usage(segment))
                }
                _ => Err(bad("no segment that entries of the usage table begin with")),
            };
        }
        let (number, rest) = rest.split_first_chunk().ok_or_else(|| bad("too short"))?;
        let number = u64::from_be_bytes(*number);
        match *space {
            INODE => Self::decode_of_inode(number, rest).ok_or_else(|| bad("no item of an inode")),
            EXTENT => match rest.try_into().map(u64::from_be_bytes) {
                Ok(block) if (1..=MAX_DATA_ID).contains(&number) => Ok(Self::Extent(number, block)),
                _ => Err(bad("no extent")),
            },
            DEAD => match rest.try_into().map(u64::from_be_bytes) {
                Ok(id @ 1..=MAX_DATA_ID) => Ok(Self::Dead(number, id)),
                _ => Err(bad("no dead data")),
            },
            ORPHAN if rest.is_empty() && number != 0 => Ok(Self::Orphan(number)),
            _ => Err(bad("of no known kind")),
        }
    }

    fn decode_of_inode(ino: u64, rest: &[u8]) -> Option<Self> {
        let (kind, rest) = rest.split_first().filter(|_| ino != 0)?;
        let chunk = |bytes: &[u8]| bytes.try_into().ok().map(u16::from_be_bytes);
        match *kind {
            OF_INODE if rest.is_empty() => Some(Self::Inode(ino)),
            TARGET => Some(Self::Target(ino, chunk(rest)?)),
            XATTR => {
                let (cookie, rest) = rest.split_first_chunk()?;
                Some(Self::Xattr(ino, Cookie::from_bytes(*cookie)?, chunk(rest)?))
            }
            ENTRY => Some(Self::Entry(ino, Cookie::from_bytes(rest.try_into().ok()?)?)),
            _ => None,
        }
    }
}

/// Position of a name in its directory: 47 bits of its hash, then 16 bits that distinguish names of
/// equal hash, in order of creation. As a signed number it is never negative. 0 and 1, which
/// readdir uses for `.` and `..`, are not cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(u64);

impl Cookie {
    /// The lowest cookie.
    pub const FIRST: Self = Self(1 << 16);

    /// The cookie of a name with this hash, the `nth` one with an equal hash.
    pub fn new(hash: NameHash, nth: u16) -> Self {
        Self(hash.0 << 16 | u64::from(nth))
    }

    /// The cookie of a number that was stored or given to a client.
    pub fn from_u64(cookie: u64) -> Option<Self> {
        (1 << 16..1 << 63).contains(&cookie).then_some(Self(cookie))
    }

    /// The number.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The hash of the name.
    pub fn hash(self) -> NameHash {
        NameHash(self.0 >> 16)
    }

    fn from_bytes(bytes: [u8; 8]) -> Option<Self> {
        Self::from_u64(u64::from_be_bytes(bytes))
    }
}

/// 47 bits of the hash of a name; never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash(u64);

impl NameHash {
    /// The hash of a name in a volume: SipHash-2-4 with the volume's nonce as its key, so that
    /// clients cannot construct names that collide.
    pub fn new(nonce: &[u8; 16], name: &[u8]) -> Self {
        Self((siphash24(nonce, name) >> 17).max(1))
    }
}

/// SipHash-2-4 of Aumasson and Bernstein, 64 bits.
fn siphash24(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let (k0, k1) = key.split_at(8);
    let k0 = u64::from_le_bytes(k0.try_into().expect("8 of 16 bytes"));
    let k1 = u64::from_le_bytes(k1.try_into().expect("8 of 16 bytes"));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    for word in words.iter().chain([&last]) {
        let word = u64::from_le_bytes(*word);
        v[3] ^= word;
        sip_rounds(&mut v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    sip_rounds(&mut v, 4);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_rounds(v: &mut [u64; 4], rounds: u32) {
    for _ in 0..rounds {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hashed_as_published() {
        // The test vectors of the reference implementation: key 00..0f, input 00..(n-1).
        let key: [u8; 16] = std::array::from_fn(|n| n as u8);
        let input: Vec<u8> = (0..15).collect();
        assert_eq!(siphash24(&key, &input), 0xa129_ca61_49be_45e5);
        assert_eq!(siphash24(&key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(siphash24(&key, &input[..8]), 0x93f5_f579_9a93_2462);
        assert_eq!(NameHash::new(&key, &input).0, 0xa129_ca61_49be_45e5u64 >> 17);
    }

    /// The order of keys in memory is that of their bytes, also of those that end in zeros or are
    /// the start of another one.
    #[test]
    fn key_bytes_are_in_order_of_their_bytes() {
        let mut all: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0; 2], vec![0; MAX_KEY_BYTES]];
        for len in 1..=MAX_KEY_BYTES {
            for last in [0, 1, 0x7f, 0x80, 0xff] {
                let mut key = vec![1; len];
                key[len - 1] = last;
                all.push(key);
            }
        }
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            let (x, y) = (KeyBytes::copy_of(a), KeyBytes::copy_of(b));
            assert_eq!((x.cmp(&y), x == y), (a.cmp(b), a == b), "{a:?} {b:?}");
        }
    }

    /// K3: a cookie consists of hash and number, and is valid for readdir.
    #[test]
    fn cookies_hold_hash_and_number() {
        let hash = NameHash::new(&[7; 16], b"name");
        let cookie = Cookie::new(hash, 65535);
        assert_eq!((cookie.hash(), cookie.to_u64() & 0xffff), (hash, 65535));
        assert!(Cookie::new(hash, 0) < cookie && i64::try_from(cookie.to_u64()).is_ok());
        for no in [0, 1, 2, 65535, 1 << 63, u64::MAX] {
            assert_eq!(Cookie::from_u64(no), None, "{no}");
        }
        assert_eq!(Cookie::from_u64(cookie.to_u64()), Some(cookie));
    }
}
