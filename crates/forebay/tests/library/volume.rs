//! Volumes: creating, opening, sharing and closing them; files on them by path, with flags; volumes
//! and raw files on one budget.

use crate::dir::{Dir, cache, open as open_raw};
use forebay::vfs::{FileKind, SetAttr};
use forebay::{
    Cache, CreateVolume, DirectIo, ErrorKind, ExportMode, IoFlags, OpenOptions, Volume,
    VolumeOptions,
};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn make(path: &Path, size: u64) {
    Volume::create(path, &CreateVolume::default().size(size)).unwrap();
}

fn open(cache: &Cache, path: &Path) -> Volume {
    cache.open_volume(path, &VolumeOptions::default()).unwrap()
}

#[track_caller]
fn refused<T>(result: forebay::Result<T>, kind: ErrorKind, named: &str) {
    let error = result.map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(named), "{error}");
}

#[test]
fn create_refuses_existing_content() {
    let dir = Dir::new("volume-create");
    let path = dir.path("v");
    let sized = |size| CreateVolume::default().size(size);
    refused(Volume::create(&path, &CreateVolume::default()), ErrorKind::InvalidInput, "size");
    refused(Volume::create(&path, &sized(64 << 10)), ErrorKind::InvalidInput, "segments");
    assert!(!path.exists(), "what could not be made leaves nothing");
    make(&path, 32 << 20);
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.size(), 32 << 20);
    assert!(meta.blocks() * 512 < 4 << 20, "sparse: {} blocks", meta.blocks());
    refused(Volume::create(&path, &sized(8 << 20)), ErrorKind::Exists, "a volume");
    let plain = dir.path("plain");
    std::fs::write(&plain, b"precious").unwrap();
    refused(Volume::create(&plain, &sized(8 << 20)), ErrorKind::Exists, "not empty");
    assert_eq!(std::fs::read(&plain).unwrap(), b"precious");
    // What makes no sense destroys nothing, either.
    let nonsense = sized(8 << 20).block_size(5000).force(true);
    refused(Volume::create(&plain, &nonsense), ErrorKind::InvalidInput, "5000");
    assert_eq!(std::fs::read(&plain).unwrap(), b"precious");
    for path in [&plain, &path] {
        let cache = cache(8 << 20);
        Volume::create(path, &sized(8 << 20).force(true)).unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().size(), 8 << 20);
        let volume = open(&cache, path);
        refused(Volume::create(path, &sized(8 << 20)), ErrorKind::Busy, "holds");
        assert_eq!(volume.read_dir("/").unwrap().count(), 0);
        let info = volume.info().unwrap();
        assert_eq!((info.block_bytes, info.segment_bytes, info.sums), (4096, 64 << 10, true));
        assert_eq!(info.end_bytes, 8 << 20);
    }
}

/// The story: a bench wrote its images first, so that no variant would pay for the host's
/// allocations, and `create` made the volume's image sparse again.
#[test]
fn create_with_keep_blocks_keeps_allocated_blocks() {
    let dir = Dir::new("volume-keeps");
    let path = dir.path("v");
    let keeping = |size| CreateVolume::default().size(size).force(true).keep_blocks(true);
    let stored = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let cache = cache(8 << 20);
    // A volume with content, in an image that is written to its end.
    make(&path, 16 << 20);
    let volume = open(&cache, &path);
    volume.write("/old", &vec![0x5a; 4 << 20]).unwrap();
    volume.close().unwrap();
    let content = std::fs::read(&path).unwrap();
    std::fs::write(&path, &content).unwrap();
    // ext4 counts a block more for a file of many extents.
    assert!((16 << 20..17 << 20).contains(&stored()), "{}", stored());
    // As large, smaller, and larger: what is added is a hole.
    for (size, least) in [(16 << 20, 16 << 20), (12 << 20, 12 << 20), (24 << 20, 12 << 20)] {
        Volume::create(&path, &keeping(size)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().size(), size);
        assert!(stored() >= least && stored() < least + (2 << 20), "{} of {size}", stored());
        let volume = open(&cache, &path);
        assert_eq!(volume.read_dir("/").unwrap().count(), 0, "what was there is gone");
        volume.write("/new", &vec![0xa5; 2 << 20]).unwrap();
        volume.close().unwrap();
        let volume = open(&cache, &path);
        assert_eq!(volume.read("/new").unwrap(), vec![0xa5; 2 << 20]);
        volume.close().unwrap();
    }
    Volume::create(&path, &keeping(24 << 20).keep_blocks(false)).unwrap();
    assert!(stored() < 4 << 20, "sparse: {}", stored());
}

#[test]
fn names_behave_as_on_host() {
    let dir = Dir::new("volume-names");
    make(&dir.path("v"), 64 << 20);
    let cache = cache(8 << 20);
    let options = VolumeOptions::default().owner((7, 8));
    let volume = cache.open_volume(dir.path("v"), &options).unwrap();
    volume.create_dir_all("a/b/c").unwrap();
    volume.create_dir_all("/a/b/c").unwrap();
    refused(volume.create_dir("/a"), ErrorKind::Exists, "/a");
    volume.write("/a/file", b"one").unwrap();
    volume.symlink("b/../file", "/a/link").unwrap();
    assert_eq!(volume.read("/a/link").unwrap(), b"one");
    assert_eq!(volume.read_link("/a/link").unwrap(), Path::new("b/../file"));
    assert_eq!(volume.symlink_metadata("/a/link").unwrap().kind, FileKind::Symlink);
    volume.hard_link("/a/file", "/a/b/hard").unwrap();
    let attr = volume.metadata("/a/b/hard").unwrap();
    assert_eq!((attr.nlink, attr.size, attr.uid, attr.gid, attr.perm), (2, 3, 7, 8, 0o644));
    volume.set_attr("/a/file", &SetAttr::perm(0o600)).unwrap();
    assert_eq!(volume.metadata("/a/b/hard").unwrap().perm, 0o600);
    // A link that leads to nothing says where a file is made.
    volume.symlink("b/made", "/a/dangling").unwrap();
    volume.write("/a/dangling", b"two").unwrap();
    assert_eq!(volume.read("/a/b/made").unwrap(), b"two");
    let mut new = OpenOptions::new();
    refused(
        new.write(true).create_new(true).open_in(&volume, "/a/dangling"),
        ErrorKind::Exists,
        "",
    );
    volume.rename("/a/b/made", "/a/file").unwrap();
    assert_eq!(volume.read("a/file").unwrap(), b"two");
    refused(volume.read("/a/b/made"), ErrorKind::NotFound, "/a/b/made");
    refused(volume.read("/a/file/x"), ErrorKind::NotDirectory, "/a/file/x");
    refused(volume.remove_dir("/a/b"), ErrorKind::NotEmpty, "/a/b");
    refused(volume.remove_file("/a/b"), ErrorKind::IsDirectory, "/a/b");
    refused(volume.create_dir("/"), ErrorKind::InvalidInput, "/");
    volume.set_xattr("/a/file", "user.colour", b"green").unwrap();
    assert_eq!(volume.xattr("/a/file", "user.colour").unwrap(), b"green");
    assert_eq!(volume.xattrs("/a/file").unwrap(), ["user.colour"]);
    volume.remove_xattr("/a/file", "user.colour").unwrap();
    refused(volume.xattr("/a/file", "user.colour"), ErrorKind::NoAttribute, "/a/file");
    for n in 0..600 {
        volume.write(format!("/a/b/c/{n}"), &[]).unwrap();
    }
    let mut names: Vec<_> = volume.read_dir("/a/b/c").unwrap().map(|e| e.unwrap().name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 600, "more than one step, each once");
    volume.remove_dir_all("/a").unwrap();
    assert_eq!(volume.read_dir("/").unwrap().count(), 0);
}

#[test]
fn every_request_has_its_flags() {
    let dir = Dir::new("volume-flags");
    make(&dir.path("v"), 32 << 20);
    let cache = cache(8 << 20);
    let volume = open(&cache, &dir.path("v"));
    let file = volume.create_file("/f").unwrap();
    file.write_at_with(&[1; 1 << 20], 0, IoFlags::UNCACHED).unwrap();
    file.sync_data().unwrap();
    assert_eq!(file.residency(0, 1 << 20).unwrap().resident_blocks, 0, "it has passed through");
    let aligned = AlignedBuf::copy_of(&[2; 8192]);
    let direct = IoFlags::DIRECT | IoFlags::DSYNC;
    assert_eq!(file.write_at_with(&aligned, 4096, direct).unwrap(), 8192);
    let mut back = vec![0; 16384];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 16384);
    assert_eq!((back[4095], back[4096], back[12287], back[12288]), (1, 2, 2, 1));
    refused(file.write_at_with(&[3; 10], 1, IoFlags::DIRECT), ErrorKind::Unaligned, "");
    refused(file.read_at_with(&mut back, 0, IoFlags::APPEND), ErrorKind::Unsupported, "");
    assert_eq!(file.append(b"end", IoFlags::empty()).unwrap(), 1 << 20);
    assert_eq!(file.read_at_with(&mut back, 1 << 20, IoFlags::UNCACHED).unwrap(), 3);
    let log = OpenOptions::new().append(true).open_in(&volume, "/f").unwrap();
    log.write_at(b"!", 0).unwrap();
    assert_eq!(file.size().unwrap(), (1 << 20) + 4, "an append goes to the end");
    refused(log.read_at(&mut back, 0), ErrorKind::BadHandle, "");
    let quiet =
        OpenOptions::new().read(true).io_flags(IoFlags::UNCACHED).open_in(&volume, "/f").unwrap();
    cache.drop_clean();
    quiet.read_at(&mut back, 512 << 10).unwrap();
    assert_eq!(quiet.residency(512 << 10, 16384).unwrap().resident_blocks, 0);
    let (buf, read) = block_on(file.read_at_async(AlignedBuf::new(3), 1 << 20, IoFlags::empty()));
    assert_eq!((&buf[..], read.unwrap()), (&b"end"[..], 3));
    file.trim(0, 1 << 19).unwrap();
    file.set_len(3 << 20).unwrap();
    let holes = file.extents(0, 3 << 20).unwrap();
    assert!(holes[0].hole && !holes[1].hole && holes.last().unwrap().hole, "{holes:?}");
    let before = file.metadata().unwrap();
    let export = file.export(ExportMode::Cached).unwrap();
    let (_, wrote) = block_on(export.clone().write(0, AlignedBuf::new(512), IoFlags::DSYNC));
    wrote.unwrap();
    assert!(file.metadata().unwrap().mtime > before.mtime, "Z1: an export's writes move times");
    refused(volume.open_file("/f").unwrap().write_at(b"x", 0), ErrorKind::BadHandle, "");
}

/// The last opener of a volume had dropped it, and its close was still running. The next opener
/// must neither be refused because of this process's own lock, nor get a second volume on one image
/// (open_volumes.W1).
#[test]
fn one_image_is_one_volume() {
    let dir = Dir::new("volume-shared");
    let path = dir.path("v");
    make(&path, 16 << 20);
    let cache = cache(8 << 20);
    let volume = open(&cache, &path);
    let again = open(&cache, &path);
    volume.write("/f", b"here").unwrap();
    assert_eq!(again.read("/f").unwrap(), b"here", "V1");
    let other = crate::dir::cache(8 << 20);
    refused(other.open_volume(&path, &VolumeOptions::default()), ErrorKind::Busy, "holds");
    refused(OpenOptions::read_write().open(&other, &path), ErrorKind::Busy, "holds");
    let file = again.open_file("/f").unwrap();
    drop((volume, again));
    assert_eq!(open(&cache, &path).read("/f").unwrap(), b"here");
    drop(file);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (cache, path) = (&cache, &path);
            scope.spawn(move || {
                for turn in 0..25 {
                    let volume = open(cache, path);
                    volume.write(format!("/{n}"), format!("{turn}").as_bytes()).unwrap();
                    drop(volume);
                }
            });
        }
    });
    let volume = open(&other, &path);
    for n in 0..4 {
        assert_eq!(volume.read(format!("/{n}")).unwrap(), b"24", "V3");
    }
}

#[test]
fn reading_only_leaves_no_trace() {
    let dir = Dir::new("volume-read-only");
    let path = dir.path("v");
    make(&path, 16 << 20);
    let first = cache(8 << 20);
    open(&first, &path).write("/f", b"here").unwrap();
    let before = std::fs::read(&path).unwrap();
    let options = VolumeOptions::default().read_only(true);
    let second = cache(8 << 20);
    let (one, two) = (first.open_volume(&path, &options), second.open_volume(&path, &options));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.read("/f").unwrap(), two.read("/f").unwrap());
    refused(one.write("/f", b"x"), ErrorKind::ReadOnly, "/f");
    refused(one.remove_file("/f"), ErrorKind::ReadOnly, "/f");
    refused(first.open_volume(&path, &VolumeOptions::default()), ErrorKind::Busy, "reading only");
    one.sync().unwrap();
    first.shutdown().unwrap();
    drop((one, two));
    assert!(std::fs::read(&path).unwrap() == before, "the image changed");
}

/// Volumes and raw files together stay within one budget (volume.V2), and one shutdown writes out
/// all of them.
#[test]
fn volumes_and_files_share_a_budget() {
    let dir = Dir::new("volume-budget");
    let cache = cache(8 << 20);
    let mut files = Vec::new();
    for n in 0..3 {
        let path = dir.path(&format!("v{n}"));
        make(&path, 64 << 20);
        files.push(open(&cache, &path).create_file("/big").unwrap());
    }
    let raw = open_raw(&cache, dir.path("raw"), 16 << 20);
    for at in (0..16 << 20).step_by(1 << 20) {
        let piece = vec![(at >> 20) as u8; 1 << 20];
        files.iter().for_each(|file| assert_eq!(file.write_at(&piece, at).unwrap(), 1 << 20));
        raw.write_at(&piece, at).unwrap();
        let rows = cache.budget();
        assert!(rows.iter().map(|row| row.1).sum::<u64>() <= 8 << 20, "{rows:?}");
    }
    cache.shutdown().unwrap();
    assert_eq!(cache.unwritten_bytes(), 0);
    for file in &files {
        let mut back = [0; 3];
        file.read_at(&mut back, 15 << 20).unwrap();
        assert_eq!(back, [15; 3]);
    }
}

/// With and without direct I/O below, with blocks of 512 bytes and without checksums.
#[test]
fn volumes_of_all_kinds() {
    let dir = Dir::new("volume-kinds");
    for (n, (block_size, checksums, direct_io)) in
        [(4096, true, DirectIo::Auto), (512, true, DirectIo::Off), (1024, false, DirectIo::Off)]
            .into_iter()
            .enumerate()
    {
        let path = dir.path(&format!("{n}"));
        let options = CreateVolume::default()
            .size(8 << 20)
            .block_size(block_size)
            .segment_size(128 << 10)
            .checksums(checksums);
        Volume::create(&path, &options).unwrap();
        let cache = cache(8 << 20);
        let options = VolumeOptions::default().direct_io(direct_io);
        let content: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        let volume = cache.open_volume(&path, &options).unwrap();
        volume.write("/f", &content).unwrap();
        volume.close().unwrap();
        let volume = cache.open_volume(&path, &options).unwrap();
        assert!(volume.read("/f").unwrap() == content, "{n}");
        let info = volume.info().unwrap();
        assert_eq!((info.block_bytes, info.sums), (block_size, checksums));
        assert_eq!(info.segment_bytes, 128 << 10);
    }
}
