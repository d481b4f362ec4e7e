//! A bit of an image is flipped, in some sectors in turn. Opening and reading the volume gives an
//! error that says where, or the content that was written; never other bytes, a name too many or
//! too few, or a panic.
//!
//! `FOREBAY_FLIPS` sets how many sectors are drawn (default 150); with as many as the image has,
//! each is drawn once.
//!
//! No locks.

use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, WorldRef, split_mix};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{BioFlags, BlockDevice, DeviceRef, RamDevice};
use forebay_cache::{Config, PageCache};
use forebay_vfs::{
    Cookie, FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges, SetXattr, Timestamp,
    XattrName,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const IMAGE_BYTES: u64 = 4 << 20;
const SECTOR: u64 = 512;

/// By name: the bytes of a file, of the target of a link, or of an attribute.
type Found = BTreeMap<String, Vec<u8>>;

fn cache(world: &WorldRef) -> Arc<PageCache> {
    let config = Config { huge_pages: false, ..Config::with_budget(2 << 20) };
    PageCache::new(config, world.clone()).unwrap()
}

fn open(device: &DeviceRef, world: &WorldRef) -> Result<Volume> {
    let options =
        OpenOptions { cache: Some(cache(world)), noatime: true, ..OpenOptions::default() };
    block_on(Volume::open(device, world, &options))
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn bytes_of(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed;
    (0..len.div_ceil(8))
        .flat_map(|_| split_mix(&mut state).to_le_bytes())
        .take(len as usize)
        .collect()
}

/// How the image is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Closed: nothing follows the checkpoint.
    Closed,
    /// After a power loss: most of it is in the log. The record of the name `last` may count as
    /// torn, because no later record says that it was durable. Then the name is missing.
    Cut,
}

/// Makes a volume with content in records and in runs, holes, overwrites, names and attributes.
/// Returns the image, and what a reader must find.
fn make(world: &WorldRef, sums: bool, left: Left) -> (Vec<u8>, Found) {
    let device: DeviceRef = Arc::new(RamDevice::new(IMAGE_BYTES));
    let options = CreateOptions {
        segment_bytes: 64 << 10,
        sums,
        ..CreateOptions::new([5; 16], [6; 16], Timestamp::new(1, 0))
    };
    block_on(Volume::create(&device, world, &options)).unwrap();
    let volume = open(&device, world).unwrap();
    let (new, keep) = (NewInode::of(FileKind::File, 0o644), Privileges::Keep);
    let dir = block_on(volume.mkdir(Ino::ROOT, name("dir"), &new)).unwrap().ino;
    let mut wanted = Found::from([("dir".into(), Vec::new())]);
    let both = OpenFlags::READ | OpenFlags::WRITE;
    for (n, len) in [10, 4096, 20_000, 70_000, 300_000, 500_000].into_iter().enumerate() {
        let (at, text) = (if n % 2 == 0 { dir } else { Ino::ROOT }, format!("file{n}"));
        let (_, file) = block_on(volume.create(at, name(&text), &new, both)).unwrap();
        let mut bytes = bytes_of(n as u64, len);
        file.write_slice(0, &bytes, IoFlags::empty(), keep).unwrap();
        file.sync_here(false).unwrap();
        // A second write: over the first content, or behind a hole.
        let over = bytes_of(100 + n as u64, 5000);
        let offset = len / 2 + if n == 4 { 200_000 } else { 0 };
        file.write_slice(offset, &over, IoFlags::empty(), keep).unwrap();
        if n % 3 > 0 {
            file.sync_here(true).unwrap();
        }
        bytes.resize(bytes.len().max(offset as usize + over.len()), 0);
        bytes[offset as usize..][..over.len()].copy_from_slice(&over);
        wanted.insert(text, bytes);
    }
    let link = volume.symlink(dir, name("link"), b"over/there", &new);
    block_on(link).unwrap();
    wanted.insert("link".into(), b"over/there".to_vec());
    let key = XattrName::new(b"user.colour").unwrap();
    block_on(volume.setxattr(dir, key, b"green", SetXattr::Any)).unwrap();
    wanted.insert("dir user.colour".into(), b"green".to_vec());
    match left {
        Left::Closed => block_on(volume.close()).unwrap(),
        Left::Cut => {
            block_on(volume.syncfs()).unwrap();
            block_on(volume.mkdir(Ino::ROOT, name("last"), &new)).unwrap();
            block_on(volume.syncfs()).unwrap();
        }
    }
    let mut image = vec![0; IMAGE_BYTES as usize];
    device.read_into(0, &mut image).unwrap();
    (image, wanted)
}

/// Everything, or the first error.
fn read_all(volume: &Volume) -> Result<Found> {
    let mut found = Found::new();
    let mut dirs = vec![Ino::ROOT];
    while let Some(dir) = dirs.pop() {
        for entry in block_on(volume.readdir(dir, Cookie::START, 1000))? {
            let text = String::from_utf8_lossy(&entry.name).into_owned();
            for key in block_on(volume.listxattr(entry.ino))? {
                let value = block_on(volume.getxattr(entry.ino, XattrName::new(&key)?))?;
                found.insert(format!("{text} {}", String::from_utf8_lossy(&key)), value);
            }
            let bytes = match entry.kind {
                FileKind::Directory => {
                    dirs.push(entry.ino);
                    Vec::new()
                }
                FileKind::Symlink => block_on(volume.readlink(entry.ino))?,
                _ => {
                    let size = block_on(volume.getattr(entry.ino))?.size;
                    let file = block_on(volume.open(entry.ino, OpenFlags::READ))?;
                    let mut bytes = vec![0; size as usize];
                    let len = file.read_slice(0, &mut bytes, IoFlags::empty())?;
                    bytes.truncate(len);
                    bytes
                }
            };
            found.insert(text, bytes);
        }
    }
    Ok(found)
}

/// Whether the error reports damage and its place: a range of bytes, a slot or a segment.
fn says_where(error: &Error) -> bool {
    let text = error.to_string();
    let names = |what: &str| {
        let mut behind = text.match_indices(what).map(|(at, _)| &text[at + what.len()..]);
        behind.any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let placed =
        error.range().is_some() || ["slot ", "segment ", "segment: "].into_iter().any(names);
    error.kind() == ErrorKind::Corrupt && placed
}

fn sectors() -> Vec<u64> {
    let all = IMAGE_BYTES / SECTOR;
    let asked = std::env::var("FOREBAY_FLIPS").ok().and_then(|text| text.parse().ok());
    let count = asked.unwrap_or(150).min(all);
    let mut sectors: Vec<u64> = (0..all).collect();
    let mut state = crate::tests::seeds(1).next().unwrap_or(1);
    for at in 0..count {
        let other = at + split_mix(&mut state) % (all - at);
        sectors.swap(at as usize, other as usize);
    }
    sectors.truncate(count as usize);
    sectors
}

#[test]
fn flipped_bit_is_reported_or_harmless() {
    flip_each(Left::Closed);
}

/// As above, for an image of which most content is only in the log.
#[test]
fn flipped_bit_of_log_is_reported_or_harmless() {
    flip_each(Left::Cut);
}

fn flip_each(left: Left) {
    let world: WorldRef = RealWorld::with_seed(1);
    let (image, wanted) = make(&world, true, left);
    let (mut refused, mut told, mut harmless) = (0, 0, 0);
    for sector in sectors() {
        // A fresh image each time: opening may write.
        let ram = RamDevice::new(IMAGE_BYTES);
        ram.write_from(0, &image, BioFlags::SYNC).unwrap();
        let mut state = sector;
        let draw = split_mix(&mut state);
        let byte = sector * SECTOR + draw % SECTOR;
        let flipped = image[byte as usize] ^ (1 << (draw >> 32 & 7));
        let at = byte / SECTOR * SECTOR;
        let mut bytes = image[at as usize..][..SECTOR as usize].to_vec();
        bytes[(byte - at) as usize] = flipped;
        ram.write_from(at, &bytes, BioFlags::SYNC).unwrap();
        let device: DeviceRef = Arc::new(ram);
        let what = format!("sector {sector}, byte {byte}");
        match open(&device, &world) {
            Err(error) => {
                assert!(says_where(&error), "{what}: {error}");
                refused += 1;
            }
            Ok(volume) => match read_all(&volume) {
                Ok(mut found) => {
                    let last = found.remove("last").is_some();
                    assert!(!last || left == Left::Cut, "{what}: a name too many");
                    same(&found, &wanted, &what);
                    harmless += 1;
                }
                Err(error) => {
                    let (file, range) = (error.path().is_some(), error.range().is_some());
                    assert!(says_where(&error) && file && range, "{what}: {error}");
                    told += 1;
                }
            },
        }
    }
    eprintln!("flips, {left:?}: {refused} told by opening, {told} by reading, {harmless} harmless");
    assert!(refused + told > 0 && harmless > 0);
}

fn same(found: &Found, wanted: &Found, what: &str) {
    let names: Vec<_> = found.keys().collect();
    assert_eq!(names, wanted.keys().collect::<Vec<_>>(), "{what}");
    for (name, bytes) in wanted {
        let differs = found[name].iter().zip(bytes).position(|(a, b)| a != b);
        assert!(differs.is_none(), "{what}: {name} differs at {differs:?}");
        assert_eq!(found[name].len(), bytes.len(), "{what}: size of {name}");
    }
}

/// The test can fail: without checksums a flipped bit of content is served.
#[test]
fn without_checksums_a_flipped_bit_of_content_is_served() {
    let world: WorldRef = RealWorld::with_seed(1);
    let (mut image, wanted) = make(&world, false, Left::Closed);
    let needle = &wanted["file5"][8192..8192 + 512];
    let at = (0..image.len()).step_by(512).find(|at| image[*at..][..512] == *needle).unwrap();
    image[at] ^= 1;
    let device: DeviceRef = Arc::new(RamDevice::new(IMAGE_BYTES));
    device.write_from(0, &image, BioFlags::SYNC).unwrap();
    let found = read_all(&open(&device, &world).unwrap()).unwrap();
    assert_eq!(found["file5"][8192], wanted["file5"][8192] ^ 1);
}
