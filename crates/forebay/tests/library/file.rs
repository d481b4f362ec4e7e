//! One type for raw images and files of a volume: the same calls, with the same results and
//! errors.

use crate::dir::{Dir, cache};
use forebay::vfs::{Fallocate, Seek};
use forebay::{
    AlignedBuf, Cache, CreateVolume, Error, ErrorKind, ExportMode, File, IoFlags, OpenOptions,
    Volume, VolumeOptions, block_on,
};
use forebay_block::RamDevice;
use forebay_testkit::target::{ErrorDevice, Fault};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek as _, SeekFrom, Write};
use std::sync::Arc;

/// Where files are opened by the same names: on the host, and in a volume.
struct Places {
    dir: Dir,
    cache: Cache,
    volume: Volume,
}

impl Places {
    fn new(name: &str) -> Self {
        let (dir, cache) = (Dir::new(name), cache(16 << 20));
        let image = dir.path("volume.fby");
        Volume::create(&image, &CreateVolume::default().size(32 << 20)).unwrap();
        let volume = cache.open_volume(&image, &VolumeOptions::default()).unwrap();
        Self { dir, cache, volume }
    }

    /// The file in each place.
    fn open(&self, options: &OpenOptions, name: &str) -> [forebay::Result<File>; 2] {
        [
            options.open(&self.cache, self.dir.path(name)),
            options.open_in(&self.volume, format!("/{name}")),
        ]
    }

    fn made(&self, name: &str) -> [File; 2] {
        self.open(OpenOptions::read_write().create(true), name).map(Result::unwrap)
    }
}

#[track_caller]
fn refused<T>(result: forebay::Result<T>, kind: ErrorKind, named: &str) {
    let error = result.map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(named), "`{named}` is not in: {error}");
}

#[test]
fn file_is_shown_cloned_and_shared_between_threads() {
    fn check<T: std::fmt::Debug + Clone + Send + Sync + 'static>(_: &T) {}
    let places = Places::new("file-shared");
    for file in places.made("f") {
        check(&file);
        check(&file.stream());
        let shown = format!("{file:?}");
        assert!(shown.contains("readable: true, writable: true"), "{shown}");
        std::thread::scope(|scope| {
            for n in 0..4u8 {
                let file = file.clone();
                scope.spawn(move || file.write_all_at(&[n; 1000], u64::from(n) * 1000));
            }
        });
        let mut back = vec![9; 4000];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!((0..4000).all(|at| usize::from(back[at]) == at / 1000));
    }
    check(&places.cache);
    check(&places.volume);
}

#[test]
fn reads_and_writes_of_both_kinds_do_the_same() {
    let places = Places::new("file-same");
    for file in places.made("f") {
        file.write_all_at(b"0123456789", 5).unwrap();
        assert_eq!(file.size().unwrap(), 15);
        let mut back = [1; 20];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 15);
        assert_eq!(&back[..15], b"\0\0\0\0\x000123456789");
        let error = file.read_exact_at(&mut back, 10).unwrap_err();
        assert_eq!((error.kind(), error.range()), (ErrorKind::UnexpectedEof, Some((10, 20))));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(file.append(b"abc", IoFlags::DSYNC).unwrap(), 15);
        let (mut one, mut two) = ([0; 4], [0; 40]);
        let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        assert_eq!(file.read_vectored_at(&mut bufs, 12, IoFlags::UNCACHED).unwrap(), 6);
        assert_eq!((&one, &two[..2]), (b"789a", &b"bc"[..]));
        file.fallocate(Fallocate::Allocate { keep_size: false }, 0, 100_000).unwrap();
        assert_eq!(file.size().unwrap(), 100_000);
        file.fallocate(Fallocate::ZeroRange { keep_size: true }, 0, 7).unwrap();
        file.trim(50_000, 100_000).unwrap();
        assert_eq!(file.size().unwrap(), 100_000, "a hole past the end adds nothing");
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 20);
        assert_eq!(&back[..10], b"\0\0\0\0\0\0\x00234"[..10].as_ref());
        refused(file.fallocate(Fallocate::PunchHole, 0, 0), ErrorKind::InvalidInput, "empty");
        refused(file.fallocate(Fallocate::PunchHole, u64::MAX, 2), ErrorKind::FileTooLarge, "");
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[7; 4096], 512 << 10).unwrap();
        assert_eq!(file.seek(Seek::Data, 64 << 10).unwrap(), 512 << 10);
        assert_eq!(file.seek(Seek::Hole, 512 << 10).unwrap(), (512 << 10) + 4096);
        refused(file.seek(Seek::Data, 1 << 20), ErrorKind::PastEnd, "");
        assert_eq!(file.residency(512 << 10, 4096).unwrap().dirty_blocks, 1);
        assert_eq!(file.block_size().unwrap(), 4096);
        assert_eq!(file.reopen().unwrap().size().unwrap(), 1 << 20);
        file.close().unwrap();
    }
    let stored = std::fs::read(places.dir.path("f")).unwrap();
    assert!(stored[512 << 10..][..4096].iter().all(|b| *b == 7), "close makes it durable");
}

/// A gathered write is one request up to 1 MiB, and complete beyond that.
#[test]
fn vectored_write_of_any_length_is_complete() {
    let places = Places::new("file-vectored");
    // 20 MiB, with a budget of 16 MiB.
    let block = vec![7; 1 << 20];
    let many = [IoSlice::new(&block); 20];
    for file in places.made("f") {
        for len in [0, 1, 5000, (1 << 20) + 4097, 3 << 20] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let bufs: Vec<IoSlice<'_>> = bytes.chunks(4093).map(IoSlice::new).collect();
            assert_eq!(file.write_vectored_at(&bufs, 3, IoFlags::empty()).unwrap(), len);
            let mut back = vec![0; len];
            file.read_exact_at(&mut back, 3).unwrap();
            assert!(back == bytes, "{len}");
        }
        let end = file.size().unwrap();
        let bufs = [IoSlice::new(b"at "), IoSlice::new(b""), IoSlice::new(b"the end")];
        assert_eq!(file.write_vectored_at(&bufs, 0, IoFlags::APPEND).unwrap(), 10);
        assert_eq!(file.size().unwrap(), end + 10);
        let error = file.write_vectored_at(&many, 0, IoFlags::APPEND).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::NoMemory, 12), "{error}");
        assert_eq!(file.size().unwrap(), end + 10);
        assert_eq!(file.write_vectored_at(&many, 0, IoFlags::empty()).unwrap(), 20 << 20);
    }
    for file in places.open(OpenOptions::new().read(true), "f").map(Result::unwrap) {
        let error = file.write_vectored_at(&many, 0, IoFlags::APPEND).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadHandle, "rights before memory");
    }
}

#[test]
fn opener_may_do_only_what_it_was_opened_for() {
    let places = Places::new("file-access");
    places.made("f").iter().for_each(|file| file.write_all_at(b"content", 0).unwrap());
    let mut back = [0; 4];
    for file in places.open(OpenOptions::new().read(true), "f").map(Result::unwrap) {
        for error in [
            file.write_at(b"x", 0).unwrap_err(),
            file.append(b"x", IoFlags::empty()).unwrap_err(),
            file.set_len(0).unwrap_err(),
            file.trim(0, 1).unwrap_err(),
            file.trim(0, 0).unwrap_err(),
            file.fallocate(Fallocate::PunchHole, 0, 1).unwrap_err(),
            block_on(file.write_at_async(AlignedBuf::new(1), 0, IoFlags::empty())).1.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.errno()), (ErrorKind::BadHandle, 9), "{error}");
        }
        let export = file.export(ExportMode::Cached).unwrap();
        let error = export.try_write(0, b"x", IoFlags::empty()).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "a client of an export asks for no opening");
        file.close().unwrap();
    }
    for file in places.open(OpenOptions::new().write(true), "f").map(Result::unwrap) {
        refused(file.read_at(&mut back, 0), ErrorKind::BadHandle, "");
        let read = block_on(file.read_at_async(AlignedBuf::new(1), 0, IoFlags::empty())).1;
        refused(read, ErrorKind::BadHandle, "");
        file.write_all_at(b"C", 0).unwrap();
    }
    for file in places.open(OpenOptions::new().append(true), "f").map(Result::unwrap) {
        file.write_all_at(b"!", 0).unwrap();
        assert_eq!(file.size().unwrap(), 8);
    }
}

#[test]
fn options_make_empty_and_refuse_in_both_places() {
    let places = Places::new("file-options");
    let mut how = OpenOptions::read_write();
    places.open(&how, "f").into_iter().for_each(|f| refused(f, ErrorKind::NotFound, "f"));
    for file in places.open(how.create_new(true), "f") {
        file.unwrap().write_all_at(b"old", 0).unwrap();
    }
    places.open(&how, "f").into_iter().for_each(|f| refused(f, ErrorKind::Exists, "f"));
    for file in places.open(OpenOptions::read_write().truncate(true), "f") {
        assert_eq!(file.unwrap().size().unwrap(), 0);
    }
    for nonsense in [
        OpenOptions::new().clone(),
        OpenOptions::new().read(true).create(true).clone(),
        OpenOptions::read_write().append(true).truncate(true).clone(),
    ] {
        let refuse = |f| refused(f, ErrorKind::InvalidInput, "");
        places.open(&nonsense, "f").into_iter().for_each(refuse);
    }
    let unknown = IoFlags::from_bits_retain(1 << 30);
    let how = OpenOptions::read_write().io_flags(unknown).clone();
    let refuse = |f| refused(f, ErrorKind::Unsupported, "0x40000000");
    places.open(&how, "f").into_iter().for_each(refuse);
    let raw_only = OpenOptions::read_write().offset(4096).clone();
    refused(raw_only.open_in(&places.volume, "/f"), ErrorKind::InvalidInput, "offset");
    // The flags of an opener apply to each of its requests.
    let how = OpenOptions::read_write().create(true).io_flags(IoFlags::UNCACHED).clone();
    for file in places.open(&how, "g").map(Result::unwrap) {
        file.write_all_at(&[1; 1 << 20], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.residency(0, 1 << 20).unwrap().resident_blocks, 0);
    }
}

/// So the same call is refused for the same reason again, and not because the file exists.
#[test]
fn refused_open_leaves_no_new_file() {
    let places = Places::new("file-refused");
    let path = places.dir.path("f");
    for create_size in [0, 1 << 20] {
        let mut how = OpenOptions::read_write();
        how.create_new(true).block_size(300).create_size(create_size);
        for _ in 0..2 {
            refused(how.open(&places.cache, &path), ErrorKind::InvalidInput, "f");
            assert!(!path.exists());
        }
    }
    std::fs::write(&path, "").unwrap();
    let how = OpenOptions::read_write().create(true).block_size(300).clone();
    refused(how.open(&places.cache, &path), ErrorKind::InvalidInput, "f");
    assert!(path.exists(), "it was there before");
}

/// The target is neither opened, also if the cache has it open already, nor made.
#[test]
fn link_with_no_follow_is_refused_in_both_places() {
    let places = Places::new("file-no-follow");
    let kept = places.made("kept");
    for (name, target) in [("open", "kept"), ("dangling", "missing")] {
        std::os::unix::fs::symlink(places.dir.path(target), places.dir.path(name)).unwrap();
        places.volume.symlink(format!("/{target}"), format!("/{name}")).unwrap();
    }
    let mut options = OpenOptions::read_write();
    for create in [false, true] {
        options.create(create).no_follow(true);
        for name in ["open", "dangling"] {
            for opened in places.open(&options, name) {
                refused(opened, ErrorKind::SymlinkLoop, name);
            }
        }
    }
    for opened in places.open(OpenOptions::new().read(true), "missing") {
        refused(opened, ErrorKind::NotFound, "missing");
    }
    for file in places.open(&options, "kept").into_iter().chain(places.open(&options, "new")) {
        file.unwrap().close().unwrap();
    }
    drop(kept);
}

#[test]
fn host_inode_after_rename_is_that_of_opened_file() {
    use std::os::unix::fs::MetadataExt;
    let places = Places::new("file-host-inode");
    let [host, inside] = places.made("a");
    let found = std::fs::metadata(places.dir.path("a")).unwrap();
    std::fs::rename(places.dir.path("a"), places.dir.path("b")).unwrap();
    std::fs::write(places.dir.path("a"), "another file").unwrap();
    assert_eq!(host.host_inode(), Some((found.dev(), found.ino())));
    assert_eq!(inside.host_inode(), None);
}

#[test]
fn stream_reads_writes_and_seeks_as_std_does() {
    let places = Places::new("file-stream");
    for file in places.made("f") {
        let mut stream = file.stream();
        writeln!(stream, "first").unwrap();
        stream.write_all(b"second\n").unwrap();
        stream.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first\nsecond\n");
        assert_eq!(stream.seek(SeekFrom::End(-7)).unwrap(), 6);
        assert_eq!(stream.seek(SeekFrom::Current(2)).unwrap(), 8);
        let error = stream.seek(SeekFrom::End(-100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(stream.stream_position().unwrap(), 8, "a refused seek moves nothing");
        let copied = io::copy(&mut file.stream(), &mut io::sink()).unwrap();
        assert_eq!(copied, 13);
    }
    for file in places.open(OpenOptions::new().append(true), "f").map(Result::unwrap) {
        let mut stream = file.stream();
        stream.write_all(b"third\n").unwrap();
        assert_eq!(stream.stream_position().unwrap(), 19, "an append ends at the end");
    }
    // The size is fixed: no space behind it, and `std` hears of it by kind and errno.
    let path = places.dir.path("fixed");
    let how = OpenOptions::read_write().create(true).create_size(8192).size_limit(8192).clone();
    let mut stream = how.open(&places.cache, &path).unwrap().stream();
    stream.seek(SeekFrom::Start(8192)).unwrap();
    let error = stream.write_all(b"x").unwrap_err();
    assert_eq!((error.kind(), Error::errno_of(&error)), (io::ErrorKind::StorageFull, Some(28)));
}

#[test]
fn futures_of_two_files_run_concurrently_and_return_buffers() {
    let places = Places::new("file-async");
    let [raw, inside] = places.made("f");
    let one = |file: File, byte: u8| async move {
        let (buf, wrote) =
            file.write_at_async(AlignedBuf::copy_of(&[byte; 8192]), 0, IoFlags::empty()).await;
        assert_eq!((wrote.unwrap(), buf.len()), (8192, 8192));
        let (_, place) = file.append_async(AlignedBuf::copy_of(b"end"), IoFlags::empty()).await;
        assert_eq!(place.unwrap(), 8192);
        file.sync_data_async().await.unwrap();
        file.sync_all_async().await.unwrap();
        let (buf, read) = file.read_at_async(AlignedBuf::new(9000), 4096, IoFlags::UNCACHED).await;
        (read.unwrap(), buf[0], buf[4096])
    };
    let threads = [(raw, 3), (inside, 4)]
        .map(|(file, byte)| std::thread::spawn(move || block_on(one(file, byte))));
    let done = threads.map(|thread| thread.join().unwrap());
    assert_eq!(done, [(4099, 3, b'e'), (4099, 4, b'e')]);
}

/// Dropping the last opener could only log that its bytes are not durable.
#[test]
fn close_reports_what_drop_can_only_log() {
    let cache = cache(8 << 20);
    let device = ErrorDevice::new(Arc::new(RamDevice::new(1 << 20)));
    let fault = device.arm(Fault { ops: vec![forebay_block::BioOp::Write], ..Fault::default() });
    let file = OpenOptions::read_write().open_device(&cache, device.clone()).unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    let other = file.clone();
    refused(file.close(), ErrorKind::Io, "");
    assert_eq!(other.failed_bytes().unwrap(), 4096, "the bytes are kept");
    device.disarm(fault);
    other.sync_data().unwrap();
    other.close().unwrap();
    let reader = OpenOptions::new().read(true).open_device(&cache, device).unwrap();
    let mut back = [0; 4096];
    reader.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, [7; 4096]);
    reader.close().unwrap();
}

/// A directory has no content, and can be synced.
#[test]
fn directory_of_a_volume_is_synced_and_not_read() {
    let places = Places::new("file-directory");
    places.volume.create_dir("/d").unwrap();
    let dir = OpenOptions::new().read(true).open_in(&places.volume, "/d").unwrap();
    dir.sync_all().unwrap();
    refused(dir.read_at(&mut [0; 1], 0), ErrorKind::IsDirectory, "");
    refused(dir.residency(0, 1), ErrorKind::IsDirectory, "");
    refused(dir.export(ExportMode::Cached), ErrorKind::IsDirectory, "");
    assert!(dir.ino().is_some() && dir.volume().is_some());
}

#[test]
fn prefetch_fills_and_drop_clean_evicts_a_range() {
    let places = Places::new("file-prefetch");
    for file in places.made("f") {
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        file.drop_clean(0, u64::MAX).unwrap();
        // Write-out may have begun: dirty blocks and blocks in write-out stay, clean ones are
        // evictable.
        let mut all = vec![0; 1 << 20];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all.iter().all(|byte| *byte == 7), "what was written is there");
        file.sync_all().unwrap();
        file.drop_clean(64 << 10, 128 << 10).unwrap();
        assert_eq!(file.residency(0, 1 << 20).unwrap().resident_blocks, 256 - 32);
        file.drop_clean(0, u64::MAX).unwrap();
        assert_eq!(file.residency(0, 1 << 20).unwrap().resident_blocks, 0);
        file.prefetch(4096, 8192).unwrap();
        let mut back = [0; 8192];
        file.read_exact_at(&mut back, 4096).unwrap();
        assert_eq!((back, file.residency(4096, 8192).unwrap().resident_blocks), ([7; 8192], 2));
    }
    let write_only = OpenOptions::new().write(true).clone();
    for file in places.open(&write_only, "f") {
        refused(file.unwrap().prefetch(0, 1), ErrorKind::BadHandle, "prefetch");
    }
}
