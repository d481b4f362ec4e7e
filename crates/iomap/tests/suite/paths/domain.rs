//! Flush domains: a device that is dead, slow or failing stops its own files only.

use super::harness::{Lab, NONE, both};
use forebay_base::ErrorKind;
use forebay_base::buf::AlignedBuf;
use forebay_base::world::World;
use forebay_block::BioOp;
use forebay_cache::Config;
use forebay_cache::writeback::Domain;
use forebay_iomap::file::Geometry;
use forebay_iomap::identity::Identity;
use forebay_iomap::{MappedFile, Source};
use forebay_sim::{Fault, FaultRule, SimDisk};
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 4 << 20;

fn config() -> Config {
    Config {
        dirty_bytes: Some(1 << 20),
        dirty_background_bytes: Some(256 << 10),
        ..Config::with_budget(8 << 20)
    }
}

/// A second file on a disk of its own, in `domain` or one of its own.
fn another(
    lab: &Lab,
    domain: Option<forebay_base::sync::Arc<Domain>>,
) -> (SimDisk, Arc<MappedFile>) {
    let disk = SimDisk::new(lab.world.clone(), Lab::sim(SIZE));
    let file = file_on(lab, &disk, domain.unwrap_or_else(|| lab.cache.dirty.domain(None)));
    (disk, file)
}

fn file_on(lab: &Lab, disk: &SimDisk, domain: forebay_base::sync::Arc<Domain>) -> Arc<MappedFile> {
    let ops = Arc::new(Identity::new(Arc::new(disk.clone())));
    let geometry = Geometry { block_size: 4096, size: SIZE, read_only: false };
    MappedFile::open_in(&lab.cache, domain, ops, geometry, None).unwrap()
}

async fn put(file: &Arc<MappedFile>, at: u64, len: usize) -> forebay_base::Result<usize> {
    let mut buf = AlignedBuf::new(len);
    file.write(&file.open_handle(), at, Source::Owned(&mut buf), NONE).await
}

/// Writes for two seconds of the world's time; returns the bytes accepted and the errors.
async fn write_on(lab: &Lab, file: &Arc<MappedFile>) -> (u64, u64) {
    write_for(lab, file, 2000).await
}

async fn write_for(lab: &Lab, file: &Arc<MappedFile>, ms: u64) -> (u64, u64) {
    let end = lab.world.now() + ms * 1_000_000;
    let (mut written, mut refused) = (0, 0);
    while lab.world.now() < end {
        match put(file, written % SIZE, 65536).await {
            Ok(_) => written += 65536,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io);
                refused += 1;
                lab.sleep_ms(1).await;
            }
        }
    }
    (written, refused)
}

/// The story: bytes that one device did not take counted against all. When they had filled the
/// dirty limit the device's own writers got EIO, and those of a healthy device waited for ever.
#[test]
fn dead_device_stops_only_its_own_files() {
    let alone = {
        let lab = Lab::new(config(), 4096, Lab::sim(SIZE));
        lab.run(write_on(&lab, &lab.file)).0
    };
    let lab = Lab::new(config(), 4096, Lab::sim(SIZE));
    let (disk, dead) = another(&lab, None);
    lab.run(async {
        disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).sticky());
        let ((healthy, errors), (accepted, refused)) =
            both(write_on(&lab, &lab.file), write_on(&lab, &dead)).await;
        assert!(healthy * 10 >= alone * 9, "{healthy} with a dead device, {alone} alone");
        assert_eq!(errors, 0);
        let held = dead.mapping.domain.failed_bytes();
        assert!(refused > 0 && accepted > 0, "the dead device's writers are told");
        assert!((512 << 10..=1 << 20).contains(&held), "{held} bytes are held of the dead device");
        assert_eq!(lab.cache.dirty.failed_bytes(), held, "M1");
        // It heals: all that was accepted is written, and nothing is counted failed any more.
        disk.heal();
        let handle = dead.open_handle();
        let _told = dead.sync(&handle).await;
        dead.sync(&handle).await.unwrap();
        assert_eq!((dead.mapping.domain.failed_bytes(), lab.cache.dirty.failed_bytes()), (0, 0));
        lab.sync().await.unwrap();
        let stats = lab.cache.stats();
        assert_eq!((stats.dirty_bytes, stats.writeback_bytes, stats.unflushed_bytes), (0, 0, 0));
    });
}

/// Three of five devices are dead, each with a file that fails and with new ones all the time. The
/// story: each failing domain had a quarter of the limit for itself on top of the common part, and
/// late domains' part shrank with the number of *healthy* ones. Writers waited for space that
/// failed bytes held.
#[test]
fn dead_devices_leave_healthy_ones_their_share() {
    let (alone, _) = five(0);
    let (concurrent, refused) = five(3);
    assert!(concurrent.0 * 10 >= alone.0 * 9, "{concurrent:?} with dead devices, {alone:?} alone");
    assert!(concurrent.1 * 10 >= alone.1 * 9, "{concurrent:?} with dead devices, {alone:?} alone");
    assert!(
        refused.iter().all(|&times| times > 20),
        "the dead ones' writers are told: {refused:?}"
    );
}

/// What two writers on healthy devices write, and how often those of `dead` devices are refused.
fn five(dead: usize) -> ((u64, u64), Vec<u64>) {
    let lab = Lab::new(config(), 4096, Lab::sim(SIZE));
    let (_disk, second) = another(&lab, None);
    let mut broken: Vec<_> = (0..dead).map(|_| another(&lab, None)).collect();
    for (disk, _) in &broken {
        disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).sticky());
    }
    let mut refused = vec![0; dead];
    let rates = lab.run(async {
        let on_the_dead = async {
            let mut old = Vec::new();
            for round in 0..100u64 {
                for ((disk, file), refused) in broken.iter_mut().zip(&mut refused) {
                    let done = put(file, round * 65536 % SIZE, 65536).await;
                    *refused += u64::from(done.is_err());
                    if round % 10 == 9 {
                        // A file that has not failed yet, on the same device.
                        let fresh = file_on(&lab, disk, file.mapping.domain.clone());
                        old.push(std::mem::replace(file, fresh));
                    }
                }
                lab.sleep_ms(3).await;
            }
            let held = lab.cache.dirty.failed_bytes();
            assert!(held <= (1 << 20) + dead as u64 * 65536, "W3: {held} bytes failed");
        };
        let on_the_healthy = both(write_for(&lab, &lab.file, 300), write_for(&lab, &second, 300));
        let (((one, errors), (two, more_errors)), ()) = both(on_the_healthy, on_the_dead).await;
        assert_eq!(errors + more_errors, 0, "healthy devices refuse nothing");
        (one, two)
    });
    (rates, refused)
}

/// A device that never answers keeps its part of the limit; the others keep theirs. Their flushers
/// free space for waiting writers (domain.M4) and do not wait for that device (flusher.Z2).
#[test]
fn hung_device_leaves_others_their_share() {
    let lab = Lab::new(config(), 4096, Lab::sim(SIZE));
    let (disk, hung) = another(&lab, None);
    lab.run(async {
        let hours = 3_600_000_000_000;
        disk.inject(FaultRule::on(BioOp::Write, Fault::Slow(hours)).sticky());
        let filled = async {
            for i in 0..16 {
                put(&hung, i * 65536, 65536).await.unwrap();
            }
        };
        filled.await;
        let before = lab.cache.stats().dirty_bytes + lab.cache.stats().writeback_bytes;
        assert!(
            before >= 512 << 10,
            "{before}: the hung device holds little, and the test tests little"
        );
        let (healthy, errors) = write_on(&lab, &lab.file).await;
        assert!(healthy > 8 << 20 && errors == 0, "{healthy} bytes in two seconds");
        let limit = (1 << 20) + (1 << 18) + 65536;
        let used = lab.cache.stats().dirty_bytes + lab.cache.stats().writeback_bytes;
        assert!(used <= limit, "{used} bytes dirty or in write-out");
    });
}

/// The story: a file whose data could not be written held up the flusher for its pause, and with it
/// all files of that flusher.
#[test]
fn failing_file_does_not_delay_other_files() {
    let lab = Lab::new(config(), 4096, Lab::sim(SIZE));
    let (disk, failing) = another(&lab, Some(lab.file.mapping.domain.clone()));
    lab.cache.dirty.expire_centisecs.store(1, forebay_base::sync::atomic::Ordering::Relaxed);
    lab.run(async {
        disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).sticky());
        put(&failing, 0, 65536).await.unwrap();
        // Long enough for its pauses to be seconds.
        lab.sleep_ms(5000).await;
        assert_eq!(failing.mapping.failed_bytes(), 65536);
        for round in 1..20u64 {
            put(&lab.file, round * 65536, 4096).await.unwrap();
            lab.sleep_ms(30).await;
            assert_eq!(lab.writes().1 as u64, round, "written when it is of age (K2, Z3)");
        }
        let tries = disk.log().iter().filter(|e| e.op == BioOp::Write).count();
        assert!((8..40).contains(&tries), "{tries} tries");
        disk.heal();
        lab.sleep_ms(1100).await;
        assert_eq!(failing.mapping.failed_bytes(), 0, "it was tried again");
    });
}

/// The story: every file had a flusher of its own, and a wake of one woke all. Now one task serves
/// the domain: it takes the file with the oldest dirty block first, and ends with the last file.
#[test]
fn flusher_takes_files_by_oldest_dirty_block() {
    let lab = Lab::new(config(), 4096, Lab::sim(SIZE));
    let domain = lab.file.mapping.domain.clone();
    let files: Vec<_> = (0..20).map(|_| another(&lab, Some(domain.clone()))).collect();
    lab.run(async {
        for i in [7usize, 3, 11, 0, 19, 5] {
            put(&files[i].1, 0, 32768).await.unwrap();
            lab.sleep_ms(1).await;
        }
        assert!(files.iter().all(|(disk, _)| disk.log().is_empty()), "below the limits");
        // Above the background limit: older dirty blocks of other files are written first.
        put(&files[1].1, 0, 128 << 10).await.unwrap();
        lab.sleep_ms(50).await;
        let first = |i: usize| files[i].0.log().first().map_or(u64::MAX, |e| e.at);
        let times = [7, 3, 11, 0, 19, 5, 1].map(first);
        assert!(times[0] < u64::MAX && times.is_sorted(), "{times:?}");
        for (_, file) in &files {
            file.sync(&file.open_handle()).await.unwrap();
        }
    });
    let weak = forebay_base::sync::Arc::downgrade(&domain);
    drop((domain, files));
    let Lab { world, cache, file, disk, handle, .. } = lab;
    drop((file, disk, handle));
    world.clone().run(async { world.sleep(Duration::from_millis(1)).await });
    assert!(weak.upgrade().is_none(), "the flusher goes with the last file (Z1)");
    drop(cache);
}
