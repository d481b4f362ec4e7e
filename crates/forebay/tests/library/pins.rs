//! Pins through the library: raw images and files of a volume, on both engines.

use crate::dir::Dir;
use crate::pins_mount::Mount;
use forebay::{
    Aio, Cache, CacheConfig, CreateVolume, ErrorKind, ExportMode, File, IoFlags, OpenOptions,
    Volume, VolumeOptions,
};
use forebay_base::task::block_on;
use forebay_vfs::Extent;

const NONE: IoFlags = IoFlags::empty();

fn cache(aio: Aio) -> Cache {
    Cache::new(CacheConfig::with_budget(16 << 20).aio(aio)).unwrap()
}

/// What holds for each kind of file.
fn check(cache: &Cache, file: &File) {
    let old: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    file.write_all_at(&old, 0).unwrap();
    file.sync_data().unwrap();
    cache.drop_clean();
    let pinned = file.pin(1000, 200_000, NONE).unwrap();
    assert_eq!((pinned.len(), pinned.is_copy()), (99_000, false), "it ends with the file");
    assert_eq!(pinned.to_vec(), old[1000..]);
    let small = file.pin_no_copy(4096, 4096, NONE).unwrap().unwrap();
    assert_eq!(small.as_slice(), Some(&old[4096..8192]));
    let residency = file.residency(0, 100_000).unwrap();
    assert_eq!(residency.pinned_blocks, 100_000u64.div_ceil(u64::from(residency.block_size)));
    assert_eq!(cache.stats().pinned_frames, 25);
    // The thread writes what it has pinned itself, cuts it off and writes it again.
    file.write_all_at(&[1; 50_000], 2000).unwrap();
    file.set_len(5000).unwrap();
    file.write_all_at(&[2; 5000], 5000).unwrap();
    file.trim(0, 1000).unwrap();
    assert_eq!(pinned.to_vec(), old[1000..], "pin.P1");
    assert_eq!(small.as_slice(), Some(&old[4096..8192]), "pin.P1");
    assert_eq!(cache.stats().pinned_orphans, 25);
    let mut now = vec![0; 10_000];
    file.read_exact_at(&mut now, 0).unwrap();
    let model: Vec<u8> = [vec![0; 1000], old[1000..2000].to_vec()].concat();
    assert_eq!(now, [model, vec![1; 3000], vec![2; 5000]].concat());
    let refused = file.pin(0, 10, IoFlags::DIRECT).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let all = cache.stats().frames_total as usize * 4096;
    file.set_len(all as u64).unwrap();
    assert!(file.pin(0, all, NONE).unwrap().is_copy(), "more than an eighth");
    assert!(file.pin_no_copy(0, all, NONE).unwrap().is_none());
    let rows = cache.budget();
    assert!(rows.contains(&("pinned frames".into(), 25 * 4096, 25 * 4096)), "{rows:?}");
    drop((pinned, small));
    let stats = cache.stats();
    assert_eq!((stats.pinned_frames, stats.pinned_orphans), (0, 0));
    assert_eq!((stats.pin_copies, stats.pin_refusals), (1, 1));
}

fn engines() -> Vec<Aio> {
    let works = |aio: &Aio| match Cache::new(CacheConfig::with_budget(16 << 20).aio(*aio)) {
        Ok(_) => true,
        Err(error) => {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(allowed, "{error}");
            println!("skipped: {error}");
            false
        }
    };
    [Aio::Threads, Aio::IoUring].into_iter().filter(works).collect()
}

#[test]
fn pin_of_raw_image_shows_one_version() {
    for aio in engines() {
        let (dir, cache) = (Dir::new("pins-raw"), cache(aio));
        let mut options = OpenOptions::read_write();
        let file = options.create(true).open(&cache, dir.path("image")).unwrap();
        check(&cache, &file);
        let write_only = OpenOptions::new().write(true).open(&cache, dir.path("image")).unwrap();
        let error = write_only.pin(0, 1, NONE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadHandle);
    }
}

#[test]
fn pin_of_volume_file_shows_one_version() {
    for aio in engines() {
        let (dir, cache) = (Dir::new("pins-volume"), cache(aio));
        let image = dir.path("volume");
        Volume::create(&image, &CreateVolume::default().size(128 << 20)).unwrap();
        let volume = cache.open_volume(&image, &VolumeOptions::default()).unwrap();
        let mut options = OpenOptions::read_write();
        let file = options.create(true).open_in(&volume, "/file").unwrap();
        check(&cache, &file);
        // It outlives the file, its name and the volume.
        file.write_all_at(&[7; 4096], 0).unwrap();
        let pinned = file.pin(0, 4096, NONE).unwrap();
        drop(file);
        volume.remove_file("/file").unwrap();
        volume.close().unwrap();
        drop(cache);
        assert_eq!(pinned.as_slice(), Some(&[7; 4096][..]), "pin.P1");
    }
}

/// After its first pin an open file never asked a mount again for what the kernel held back of
/// stores into maps, so that pins showed old bytes.
#[test]
fn pin_of_mounted_volume_file_shows_stores_of_mount() {
    let (dir, cache) = (Dir::new("pins-mounted"), cache(Aio::Threads));
    let image = dir.path("volume");
    Volume::create(&image, &CreateVolume::default().size(128 << 20)).unwrap();
    let volume = cache.open_volume(&image, &VolumeOptions::default()).unwrap();
    let mut options = OpenOptions::read_write();
    let file = options.create(true).open_in(&volume, "/file").unwrap();
    file.write_all_at(&[1; 8192], 0).unwrap();
    let mount = Mount::of(&volume);
    for value in 2..5u8 {
        mount.store(&[value; 100], 4096);
        let mut bytes = [0; 100];
        match value {
            // The pin alone asks for it, the second time, too.
            2 | 3 => {
                let pinned = file.pin(4096, 100, NONE).unwrap();
                bytes.copy_from_slice(pinned.as_slice().unwrap());
            }
            _ => file.read_exact_at(&mut bytes, 4096).unwrap(),
        }
        assert_eq!(bytes, [value; 100], "Z3: the mount holds it back");
        assert_eq!(mount.asked().last(), Some(&(4096, 100)), "only the range is asked for");
    }
}

/// A program stored into a hole by a map. The mount's kernel held the store back, so the extents of
/// the file and of its export called the range a hole that reads as zeros: a sparse copy lost it.
#[test]
fn extents_of_mounted_volume_file_show_stores_of_mount() {
    let (dir, cache) = (Dir::new("extents-mounted"), cache(Aio::Threads));
    let image = dir.path("volume");
    Volume::create(&image, &CreateVolume::default().size(128 << 20)).unwrap();
    let volume = cache.open_volume(&image, &VolumeOptions::default()).unwrap();
    let mut options = OpenOptions::read_write();
    let file = options.create(true).open_in(&volume, "/file").unwrap();
    file.set_len(1 << 20).unwrap();
    let mount = Mount::of(&volume);
    let export = file.export(ExportMode::Cached).unwrap();
    let by_file = |max: usize| file.extents(0, 1 << 20).map(|all| all[..max].to_vec());
    let by_export = |max| block_on(export.clone().extents(0, 1 << 20, max));
    let all: [&dyn Fn(usize) -> forebay::Result<Vec<Extent>>; 2] = [&by_file, &by_export];
    for (extents, offset) in all.into_iter().zip([512 << 10, 256 << 10]) {
        mount.store(&[7; 4096], offset);
        let runs = [(offset, true), (4096, false)];
        let runs = runs.map(|(len, hole)| Extent { len, hole, zero: hole });
        assert_eq!(extents(2).unwrap(), runs, "Z3: the mount holds it back");
    }
    // The store fills a hole between data. The answer ends where it did before: the kernel was not
    // asked for the hole behind.
    let (start, hole) = (256 << 10, (256 << 10) - 4096);
    mount.store(&vec![7; hole], start + 4096);
    let found = block_on(export.extents(start, 768 << 10, 3)).unwrap();
    assert_eq!(mount.asked().last(), Some(&(start + 4096, hole as u64)));
    assert_eq!(found, [Extent { len: hole as u64 + 8192, hole: false, zero: false }]);
}
