//! A cache knows files by identity, not by path: it shares them while they are open, and finds
//! their blocks again after they were closed.

use crate::dir::{Dir, cache, open, options, until};
use forebay::{Cache, DirectIo, ErrorKind, File, OpenOptions};
use std::path::Path;
use std::time::{Duration, SystemTime};

const SIZE: u64 = 1 << 20;

fn resident(file: &File) -> u64 {
    file.residency(0, SIZE).unwrap().resident_blocks
}

/// Writes and syncs, and lets the file's times grow so old that any later change shows.
fn settled(cache: &Cache, path: &Path, value: u8) -> File {
    let file = open(cache, path, SIZE);
    file.write_at(&vec![value; SIZE as usize], 0).unwrap();
    settle(&file, path);
    file
}

fn settle(file: &File, path: &Path) {
    file.sync_data().unwrap();
    let modified = std::fs::metadata(path).unwrap().modified().unwrap();
    until("the file's times are past", || {
        SystemTime::now().duration_since(modified).is_ok_and(|age| age > Duration::from_millis(50))
    });
}

/// The story: every close dropped the file's blocks, and the next open read them from the device
/// again.
#[test]
fn clean_blocks_survive_a_close() {
    let dir = Dir::new("resident");
    let cache = cache(8 << 20);
    let path = dir.path("a");
    drop(settled(&cache, &path, 3));
    let before = cache.stats().folios;
    assert!(before > 0);
    for _ in 0..3 {
        let file = open(&cache, &path, SIZE);
        assert_eq!(resident(&file), SIZE / 4096, "all of it is there");
        let (mut back, misses) = (vec![0; SIZE as usize], cache.stats().misses);
        file.read_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|b| *b == 3));
        assert_eq!(cache.stats().misses, misses);
    }
    assert_eq!(cache.stats().folios, before);
    // It stays only while it owns folios.
    cache.drop_clean();
    assert_eq!(cache.stats().folios, 0);
    assert_eq!(resident(&open(&cache, &path, SIZE)), 0);
    // And a path that leads to another file leads to other blocks.
    drop(settled(&cache, &path, 4));
    drop(settled(&cache, &dir.path("b"), 5));
    std::fs::rename(dir.path("b"), &path).unwrap();
    let mut back = [0; 4096];
    open(&cache, &path, SIZE).read_at(&mut back, 0).unwrap();
    assert_eq!(back, [5; 4096]);
}

/// The cached blocks of a closed file are its content only as long as no other program changes it
/// (registry.R2).
#[test]
fn closed_file_changed_outside_is_read_from_device() {
    let dir = Dir::new("changed");
    let cache = cache(8 << 20);
    for round in 0..4u8 {
        let path = dir.path(&format!("{round}"));
        drop(settled(&cache, &path, 1));
        match round {
            0 => std::fs::write(&path, vec![2; SIZE as usize]).unwrap(),
            // The same size, and the time of the last change put back.
            1 => {
                let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
                std::fs::write(&path, vec![2; SIZE as usize]).unwrap();
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.set_modified(modified).unwrap();
            }
            // By another cache.
            2 => drop(settled(&crate::dir::cache(4 << 20), &path, 2)),
            // In other blocks: the old ones cannot be used.
            _ => {
                let options = options(SIZE).block_size(512).clone();
                let file = options.open(&cache, &path).unwrap();
                file.write_at(&vec![2; SIZE as usize], 0).unwrap();
            }
        }
        let file = open(&cache, &path, SIZE);
        assert_eq!(resident(&file), 0, "round {round}");
        let mut back = vec![0; SIZE as usize];
        file.read_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|b| *b == 2), "round {round}: old bytes");
    }
}

/// A change so soon after the close that the file's times cannot show it.
#[test]
fn recently_changed_file_is_read_from_device() {
    let dir = Dir::new("fresh");
    let cache = cache(8 << 20);
    for round in 0..50u8 {
        let path = dir.path(&format!("{round}"));
        let file = open(&cache, &path, 4096);
        file.write_at(&[1; 4096], 0).unwrap();
        drop(file);
        let outside = std::fs::File::options().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&outside, &[2; 4096], 0).unwrap();
        let mut back = [0; 4096];
        open(&cache, &path, 4096).read_at(&mut back, 0).unwrap();
        assert_eq!(back, [2; 4096], "round {round}");
    }
}

/// The size belongs to the file, not to an opener: the next opener finds the size that the last one
/// set. Where the file was truncated and grown again it reads as zeros, whether or not its blocks
/// are still in the cache.
#[test]
fn changed_size_survives_reopen() {
    let dir = Dir::new("sizes");
    let cache = cache(8 << 20);
    for (round, settles) in [(1u8, true), (2, false)] {
        let path = dir.path(&format!("{round}"));
        std::fs::write(&path, vec![round; SIZE as usize]).unwrap();
        let options = OpenOptions::read_write().direct_io(DirectIo::Off).clone();
        let file = options.open(&cache, &path).unwrap();
        file.read_at(&mut vec![0; SIZE as usize], 0).unwrap();
        let (cut, end) = (300_000, SIZE + 100_000);
        file.set_len(cut).unwrap();
        file.set_len(end).unwrap();
        if settles {
            settle(&file, &path);
        }
        drop(file);
        let mut want = vec![round; cut as usize];
        want.resize(end as usize, 0);
        assert!(std::fs::read(&path).unwrap() == want);
        let file = options.open(&cache, &path).unwrap();
        assert_eq!(file.size().unwrap(), end);
        let there = file.residency(0, end).unwrap().resident_blocks;
        assert!(!settles || there >= cut / 4096, "{there}: what was not cut off stays");
        let mut back = vec![9; want.len() + 10];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), want.len());
        assert!(back[..want.len()] == want);
        // Appended where the file ends now.
        assert_eq!(file.append(&[7; 10], forebay::IoFlags::empty()).unwrap(), end);
        drop(file);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), end + 10);
    }
}

#[test]
fn openers_share_what_they_agree_on() {
    let dir = Dir::new("share");
    let cache = cache(8 << 20);
    let path = dir.path("a");
    let one = open(&cache, &path, SIZE);
    std::os::unix::fs::symlink(&path, dir.path("link")).unwrap();
    let two = open(&cache, dir.path("link"), SIZE);
    one.write_at(&[6; 4096], 4096).unwrap();
    let mut back = [0; 4096];
    two.read_at(&mut back, 4096).unwrap();
    assert_eq!(back, [6; 4096], "dirty data of one opener is content for the other");
    // An opener for reading only cannot write.
    let reader = options(SIZE).write(false).create(false).clone().open(&cache, &path).unwrap();
    for reader in [&reader, &reader.reopen().unwrap()] {
        reader.read_at(&mut back, 4096).unwrap();
        let refused = [
            reader.write_at(&[1], 0).unwrap_err(),
            reader.trim(0, 4096).unwrap_err(),
            reader.discard_failed().unwrap_err(),
            reader.set_len(0).unwrap_err(),
            reader.append(&[1], forebay::IoFlags::empty()).unwrap_err(),
        ];
        assert!(refused.iter().all(|e| e.kind() == ErrorKind::BadHandle));
        let export = reader.export(forebay::ExportMode::Cached).unwrap();
        assert!(export.info().read_only);
        let error = export.try_write(0, &[1], forebay::IoFlags::empty()).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    }
    // An opener with other options is refused, and changes nothing.
    for other in [
        options(SIZE).offset(4096).clone(),
        options(SIZE).size_limit(4096).clone(),
        options(SIZE).block_size(512).clone(),
        options(SIZE).direct_io(DirectIo::On).clone(),
    ] {
        assert_eq!(other.open(&cache, &path).err().unwrap().kind(), ErrorKind::Busy, "{other:?}");
    }
    drop((one, reader));
    two.write_at(&[7; 4096], 0).unwrap();
    drop(two);
    assert_eq!(std::fs::read(&path).unwrap()[..8192], [vec![7; 4096], vec![6; 4096]].concat());
    // Readers that came first keep writers out, here as in another process.
    let reader = options(SIZE).write(false).create(false).clone().open(&cache, &path).unwrap();
    assert_eq!(options(SIZE).open(&cache, &path).err().unwrap().kind(), ErrorKind::Busy);
    drop(reader);
    open(&cache, &path, SIZE).write_at(&[8; 512], 0).unwrap();
}

/// Many threads open, write and close the same few files: no open fails, and no write is lost
/// (registry.R1).
#[test]
fn opens_and_closes_race() {
    let dir = Dir::new("races");
    let cache = cache(8 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (cache, dir) = (&cache, &dir);
            scope.spawn(move || {
                for round in 0..200u64 {
                    let file = open(cache, dir.path(&format!("{}", round % 3)), SIZE);
                    let at = (thread * 64 + round / 3 % 64) * 4096;
                    file.write_at(&[thread as u8 + 1; 4096], at).unwrap();
                }
            });
        }
    });
    for i in 0..3 {
        let bytes = std::fs::read(dir.path(&format!("{i}"))).unwrap();
        for (block, bytes) in bytes.chunks(4096).enumerate() {
            let want = (block / 64) as u8 + 1;
            assert!(bytes.iter().all(|b| *b == want), "file {i} block {block}");
        }
    }
}
