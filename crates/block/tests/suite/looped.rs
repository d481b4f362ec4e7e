//! Properties that need a loop device under a file: eligibility for direct I/O, requests that
//! complete once, limits from the device below, sparse files. Ids are those of the checklist.

use crate::common::{PATIENCE, Rng, engines, is_root, path, pattern, requires};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind};
use forebay_block::{
    Aio, Bio, BioFlags, BioOp, BlockDevice, DirectIo, Engine, FileDevice, FileOptions, io,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A loop device with sectors of its own size; detached when dropped.
struct Sectors(PathBuf, PathBuf);

impl Sectors {
    fn new(name: &str, sector: u32) -> Option<Self> {
        let backing = path(name);
        std::fs::File::create(&backing).unwrap().set_len(16 << 20).unwrap();
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--sector-size", &sector.to_string()]).arg(&backing);
        let out = command.output().ok().filter(|out| out.status.success())?;
        Some(Self(String::from_utf8_lossy(&out.stdout).trim().into(), backing))
    }

    /// Gives the device sectors of another size.
    fn resize(&self, sector: &str) {
        let mut command = Command::new("losetup");
        let done = command.args(["--sector-size", sector]).arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()), "losetup --sector-size {sector}");
    }

    fn stable(&self, on: bool) -> std::io::Result<()> {
        let name = self.0.file_name().unwrap().to_string_lossy().into_owned();
        let file = Path::new("/sys/block").join(name).join("queue/stable_writes");
        std::fs::write(file, if on { "1" } else { "0" })
    }
}

impl Drop for Sectors {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
        let _ = std::fs::remove_file(&self.1);
    }
}

fn open(path: &Path, options: &FileOptions) -> forebay_base::Result<Arc<FileDevice>> {
    FileDevice::open(path, options, &Engine::new(Aio::Threads).unwrap())
}

fn with_sectors(name: &str, sector: u32) -> Option<Sectors> {
    if !requires("root, to attach loop devices", is_root()) {
        return None;
    }
    let made = Sectors::new(name, sector);
    requires("a free loop device", made.is_some()).then(|| made.unwrap())
}

/// A block smaller than direct I/O needs: buffered with a message, and an error if direct I/O was
/// demanded.
#[test]
fn l1_block_below_direct_io_size_is_reported() {
    let Some(below) = with_sectors("l1-sectors", 4096) else { return };
    let small = FileOptions { logical_block: 512, ..Default::default() };
    let (on, why) = open(&below.0, &small).unwrap().direct_io();
    assert!(!on && why.contains("4096") && why.contains("512"), "{why}");
    let forced = FileOptions { direct_io: DirectIo::On, ..small };
    let error = open(&below.0, &forced).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("4096"), "{error}");
    // The offset: a multiple of what direct I/O needs, or none of it.
    let shifted = FileOptions { offset: 512, ..Default::default() };
    let (on, why) = open(&below.0, &shifted).unwrap().direct_io();
    assert!(!on && why.contains("offset 512"), "{why}");
    assert!(open(&below.0, &FileOptions::default()).unwrap().direct_io().0);
}

/// The device below got blocks larger than the image's: direct I/O was still said to be on, and its
/// requests failed. The outcome is decided again, both ways; a mode that was demanded stays.
#[test]
fn l1_outcome_is_decided_again_when_the_device_below_changes() {
    let Some(below) = with_sectors("l1-again", 512) else { return };
    let options = FileOptions { logical_block: 512, read_only: true, ..Default::default() };
    let device = open(&below.0, &options).unwrap();
    assert!(device.direct_io().0 && !device.is_direct_io_outdated());
    below.resize("4096");
    assert!(device.is_direct_io_outdated(), "{:?}", device.direct_io());
    device.set_direct_io(DirectIo::Auto).unwrap();
    let (on, why) = device.direct_io();
    assert!(!on && why.starts_with("auto: ") && why.contains("4096"), "{why}");
    assert!(!device.is_direct_io_outdated());
    let forced = device.set_direct_io(DirectIo::On).unwrap_err();
    assert_eq!(forced.kind(), ErrorKind::Unsupported);
    let mut bytes = AlignedBuf::new(4096);
    device.read_into(0, &mut bytes).unwrap();
    below.resize("512");
    assert!(device.is_direct_io_outdated());
    device.set_direct_io(DirectIo::Auto).unwrap();
    assert_eq!(device.direct_io(), (true, "auto: the file is eligible".to_string()));
    device.set_direct_io(DirectIo::Off).unwrap();
    assert!(!device.is_direct_io_outdated(), "it was switched off");
}

/// A front end found that the device below had changed, and wrote everything out to decide again.
/// Meanwhile a user switched direct I/O off. The decision came last and turned it on again.
#[test]
fn refresh_during_a_switch_leaves_the_mode_that_was_set() {
    let Some(below) = with_sectors("l1-refresh", 512) else { return };
    let options = FileOptions { logical_block: 512, read_only: true, ..Default::default() };
    let device = open(&below.0, &options).unwrap();
    below.resize("4096");
    std::thread::scope(|scope| {
        let write_out = || {
            let (ended, end) = channel();
            let user = device.clone();
            scope.spawn(move || {
                user.set_direct_io(DirectIo::Off).unwrap();
                let _is_waited_for = ended.send(());
            });
            // Time enough for one that is not held back.
            let _is_held_back = end.recv_timeout(Duration::from_millis(300));
            Ok(())
        };
        assert!(device.refresh_direct_io(write_out).unwrap(), "it has changed");
    });
    assert_eq!(device.direct_io(), (false, "switched off".to_string()));
    assert_eq!(device.direct_io_mode(), DirectIo::Off);
    let not_asked = || -> forebay_base::Result<()> { panic!("it is not `Auto` any more") };
    assert!(!device.refresh_direct_io(not_asked).unwrap());
}

/// What [`FileDevice::refresh_direct_io`] answers to another front end, which asks now.
fn refresh_of_another(device: &Arc<FileDevice>) -> forebay_base::Result<bool> {
    let (ended, end) = channel();
    let other = device.clone();
    std::thread::spawn(move || {
        let not_asked = || -> forebay_base::Result<()> { panic!("there is nothing to write out") };
        let _is_waited_for = ended.send(other.refresh_direct_io(not_asked));
    });
    end.recv_timeout(PATIENCE).expect("it does not wait")
}

/// A front end looks every 2 s whether the device below has changed. While a switch was stuck in
/// its write-out, that look waited for it, and with it the looks at all other devices.
#[test]
fn refresh_of_an_unchanged_device_waits_for_no_switch() {
    let (_, engine) = engines().next().unwrap();
    let options = FileOptions { create_size: Some(1 << 20), ..Default::default() };
    let device = FileDevice::open(path("l1-look"), &options, &engine).unwrap();
    let write_out = || refresh_of_another(&device).map(|changed| assert!(!changed));
    device.switch_direct_io(DirectIo::Off, write_out).unwrap();
}

/// The same if the device below has changed: a write-out that was stuck left it so, and the look of
/// a second front end waited behind the switch.
#[test]
fn refresh_during_switch_of_changed_device_returns_at_once() {
    let Some(below) = with_sectors("l1-behind", 512) else { return };
    let options = FileOptions { logical_block: 512, read_only: true, ..Default::default() };
    let device = open(&below.0, &options).unwrap();
    below.resize("4096");
    let write_out = || {
        let changed = refresh_of_another(&device)?;
        assert!(device.is_direct_io_outdated() && !changed);
        Ok(())
    };
    assert!(device.refresh_direct_io(write_out).unwrap());
}

/// Valid and invalid requests of all kinds, some while the gate is closed for a switch, with the
/// device dropped while they are in flight: each completes once.
#[test]
fn l4_every_request_completes_exactly_once() {
    for (aio, engine) in engines() {
        let options = FileOptions { create_size: Some(4 << 20), ..Default::default() };
        let name = path(&format!("l4-{aio}"));
        let device = FileDevice::open(&name, &options, &engine).unwrap();
        let block = u64::from(device.limits().logical_block);
        let counts: Arc<Vec<AtomicU32>> = Arc::new((0..600).map(|_| AtomicU32::new(0)).collect());
        let failed = Arc::new(AtomicU32::new(0));
        let mut rng = Rng(7);
        let mut wrong = 0;
        std::thread::scope(|scope| {
            let switching = device.clone();
            scope.spawn(move || {
                for mode in [DirectIo::Off, DirectIo::Auto].into_iter().cycle().take(20) {
                    switching.set_direct_io(mode).unwrap();
                }
            });
            for i in 0..counts.len() {
                let (op, offset, len, bad) = match rng.below(6) {
                    0 => (BioOp::Read, 0, 8192, false),
                    1 => (BioOp::Flush, 0, 0, false),
                    2 => (BioOp::WriteZeroes, 2 << 20, 8192, false),
                    3 => (BioOp::Write, 4 << 20, 4096, true),
                    4 => (BioOp::Read, block / 2, 4096, true),
                    _ => (BioOp::Write, rng.below(512) * 4096, 4096, false),
                };
                wrong += u32::from(bad);
                let data = match op {
                    BioOp::Read | BioOp::Write => DataRef::Buf(pattern(len as usize, i as u64)),
                    _ => DataRef::None,
                };
                let (counts, failed) = (counts.clone(), failed.clone());
                let done = Box::new(move |c: forebay_block::Completion| {
                    failed.fetch_add(u32::from(c.result.is_err()), Ordering::Relaxed);
                    counts[i].fetch_add(1, Ordering::Release);
                });
                device.submit(Bio::new(op, offset, len, data, done));
            }
        });
        drop(device);
        let all = || counts.iter().all(|c| c.load(Ordering::Acquire) > 0);
        while !all() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(engine);
        assert!(counts.iter().all(|c| c.load(Ordering::Acquire) == 1));
        assert_eq!(failed.load(Ordering::Relaxed), wrong);
    }
}

/// Logical and physical block come from the device below and are not fixed at 512: a device with 4
/// KiB sectors shows 4 KiB, one with 512 shows 512.
#[test]
fn l13_block_sizes_come_from_below() {
    for sector in [512, 4096] {
        let Some(below) = with_sectors(&format!("l13-{sector}"), sector) else { return };
        for direct_io in [DirectIo::Off, DirectIo::On] {
            let options = FileOptions { direct_io, ..Default::default() };
            let device = open(&below.0, &options).unwrap();
            let limits = device.limits();
            assert_eq!(limits.logical_block, sector, "{direct_io}");
            assert!(limits.physical_block >= sector);
            let data = DataRef::Buf(pattern(512, 1));
            let odd = io(&*device, BioOp::Write, 512, 512, data, BioFlags::empty());
            assert_eq!(block_on(odd).result.is_ok(), sector == 512, "{direct_io}");
        }
    }
}

/// While the device is direct its need for stable writes is that of the device below: also after a
/// switch, and already when the switch is announced. A page cache between them copies, so there is
/// no need.
#[test]
fn x1_stable_writes_need_is_inherited_from_device_below() {
    let Some(below) = with_sectors("x1", 512) else { return };
    for on in [true, false] {
        let set = below.stable(on);
        if !requires(&format!("stable_writes of a loop device: {set:?}"), set.is_ok()) {
            return;
        }
        let options = FileOptions { direct_io: DirectIo::On, ..Default::default() };
        let device = open(&below.0, &options).unwrap();
        let need = || device.limits().stable_writes;
        assert_eq!(need().required, on, "{}", need().reason);
        device.set_direct_io(DirectIo::Off).unwrap();
        assert!(!need().required && need().reason.contains("page cache"));
        let failed = device.switch_direct_io(DirectIo::On, || {
            assert_eq!(need().required, on, "what begins now is under way when it is switched");
            Err(Error::new(ErrorKind::Io, "sync", "for the test"))
        });
        assert_eq!(failed.map_err(|e| e.kind()), Err(ErrorKind::Io));
        assert!(!need().required && !device.direct_io().0, "nothing was switched");
        device.switch_direct_io(DirectIo::On, || Ok(())).unwrap();
        assert_eq!(need().required, on);
    }
}

/// A sparse file takes random writes at depth 16, each into a hole. The submitting thread
/// (io_uring) or workers make the system calls. The written bytes are there, the rest is zeros, and
/// the length is unchanged.
#[test]
fn l14_sparse_file_takes_random_writes_at_depth() {
    for (aio, engine) in engines() {
        let options = FileOptions { create_size: Some(64 << 20), ..Default::default() };
        let name = path(&format!("l14-{aio}"));
        let device = FileDevice::open(&name, &options, &engine).unwrap();
        let mut rng = Rng(3);
        let mut written = std::collections::BTreeSet::new();
        for round in 0..40u64 {
            let left = Arc::new(AtomicU32::new(16));
            for _ in 0..16 {
                let at = rng.below(16384);
                written.insert(at);
                let left = left.clone();
                let done = Box::new(move |c: forebay_block::Completion| {
                    c.result.unwrap();
                    left.fetch_sub(1, Ordering::Release);
                });
                let data = DataRef::Buf(pattern(4096, at));
                device.submit(Bio::new(BioOp::Write, at * 4096, 4096, data, done));
            }
            while left.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
            if round % 10 == 0 {
                crate::common::plain(&*device, BioOp::Flush, 0, 0).unwrap();
            }
        }
        let mut back = AlignedBuf::new(4096);
        for at in 0..16384 {
            device.read_into(at * 4096, &mut back).unwrap();
            let right =
                if written.contains(&at) { pattern(4096, at) } else { AlignedBuf::new(4096) };
            assert!(back[..] == right[..], "block {at}");
        }
        assert_eq!(std::fs::metadata(&name).unwrap().len(), 64 << 20);
        drop(device);
        std::fs::remove_file(name).unwrap();
    }
}
