//! The simulated disk without faults, and with every fault.

use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::sim_world::SimWorld;
use forebay_base::task::block_on;
use forebay_base::world::World;
use forebay_base::{ErrorKind, Result};
use forebay_block::bdev::{BlockDevice, io};
use forebay_block::bio::{BioFlags, BioOp};
use forebay_sim::{Fault, FaultRule, SimConfig, SimDisk};
use std::time::Duration;

fn disk(seed: u64) -> SimDisk {
    disk_with(seed, SimConfig::default())
}

fn disk_with(seed: u64, config: SimConfig) -> SimDisk {
    SimDisk::new(SimWorld::new(seed), config)
}

async fn write(disk: &SimDisk, offset: u64, byte: u8, len: usize, flags: BioFlags) -> Result<()> {
    let data = DataRef::Buf(AlignedBuf::copy_of(&vec![byte; len]));
    io(disk, BioOp::Write, offset, len as u64, data, flags).await.result
}

async fn plain(disk: &SimDisk, offset: u64, byte: u8, len: usize) -> Result<()> {
    write(disk, offset, byte, len, BioFlags::empty()).await
}

async fn read(disk: &SimDisk, offset: u64, len: usize) -> Result<Vec<u8>> {
    let data = DataRef::Buf(AlignedBuf::new(len));
    let done = io(disk, BioOp::Read, offset, len as u64, data, BioFlags::empty()).await;
    done.result.map(|()| done.data.into_buf().unwrap().to_vec())
}

async fn bare(disk: &SimDisk, op: BioOp, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
    io(disk, op, offset, len, DataRef::None, flags).await.result
}

async fn flush(disk: &SimDisk) -> Result<()> {
    bare(disk, BioOp::Flush, 0, 0, BioFlags::empty()).await
}

fn all(bytes: &[u8], value: u8) -> bool {
    bytes.iter().all(|b| *b == value)
}

/// disk.D1, disk.D2: FUA is durable at once, the rest with the flush.
#[test]
fn writes_read_back_and_flush_makes_them_durable() {
    let d = disk(1);
    d.world().run(async {
        plain(&d, 4096, 7, 8192).await.unwrap();
        assert!(all(&read(&d, 4096, 8192).await.unwrap(), 7));
        assert!(all(&d.peek_durable(4096, 8192), 0));
        assert_eq!(d.pending_writes(), 1);
        flush(&d).await.unwrap();
        assert!(all(&d.peek_durable(4096, 8192), 7));
        write(&d, 4096, 8, 512, BioFlags::FUA).await.unwrap();
        assert!(all(&d.peek_durable(4096, 512), 8) && all(&d.peek_durable(4608, 512), 7));
        assert_eq!(d.pending_writes(), 0);
    });
}

/// disk.D1: a flush does not cover a write that was in flight at its submission.
#[test]
fn flush_covers_only_writes_completed_before_submission() {
    let mut uncovered = 0;
    for seed in 0..50 {
        let d = disk(seed);
        d.world().run(async {
            plain(&d, 0, 1, 512).await.unwrap();
            // The second write is in flight when the flush is submitted.
            let (second, flushed) = (plain(&d, 512, 2, 512), flush(&d));
            let (a, b) = futures_join(second, flushed).await;
            a.unwrap();
            b.unwrap();
            assert!(all(&d.peek_durable(0, 512), 1));
            uncovered += u64::from(all(&d.peek_durable(512, 512), 0));
        });
    }
    assert_eq!(uncovered, 50, "a write in flight at submission is not covered");
}

/// Polls both on one task, the first one first.
async fn futures_join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    let (mut left, mut right) = (None, None);
    std::future::poll_fn(move |cx| {
        use std::task::Poll;
        if left.is_none()
            && let Poll::Ready(v) = a.as_mut().poll(cx)
        {
            left = Some(v);
        }
        if right.is_none()
            && let Poll::Ready(v) = b.as_mut().poll(cx)
        {
            right = Some(v);
        }
        match (left.is_some(), right.is_some()) {
            (true, true) => Poll::Ready((left.take().unwrap(), right.take().unwrap())),
            _ => Poll::Pending,
        }
    })
    .await
}

#[test]
fn requests_complete_out_of_order() {
    let d = disk(3);
    for i in 0..32u64 {
        let d2 = d.clone();
        let task = async move { plain(&d2, i * 512, i as u8, 512).await.unwrap() };
        d.world().spawn("writer", Box::pin(task));
    }
    d.world().run(d.world().sleep(Duration::from_millis(50)));
    let ends: Vec<_> = d.log().iter().map(|e| e.done.unwrap().0).collect();
    assert_eq!(ends.len(), 32);
    assert!(ends.windows(2).any(|w| w[0] > w[1]));
}

#[test]
fn same_seed_gives_same_run() {
    let run = |seed| {
        let d = disk(seed);
        d.inject(FaultRule::on(BioOp::Write, Fault::Torn).sticky().one_in(3));
        for i in 0..16u64 {
            let d2 = d.clone();
            let task = async move { plain(&d2, i * 4096, i as u8, 8192).await.unwrap() };
            d.world().spawn("writer", Box::pin(task));
        }
        d.world().run(d.world().sleep(Duration::from_millis(50)));
        (d.world().digest(), d.content_digest(), d.power_cut(5).content_digest())
    };
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}

#[test]
fn discard_and_zeroes() {
    let config = SimConfig { discard_zeroes: true, ..SimConfig::default() };
    let d = disk_with(4, config);
    d.world().run(async {
        plain(&d, 0, 9, 4096).await.unwrap();
        bare(&d, BioOp::Discard, 0, 1024, BioFlags::empty()).await.unwrap();
        bare(&d, BioOp::WriteZeroes, 1024, 1024, BioFlags::empty()).await.unwrap();
        bare(&d, BioOp::WriteZeroes, 2048, 1024, BioFlags::NO_UNMAP).await.unwrap();
        let got = read(&d, 0, 4096).await.unwrap();
        assert!(all(&got[..3072], 0) && all(&got[3072..], 9));
        assert_eq!(
            block_on(d.extents(0, 4096, 9)).unwrap(),
            [(0, 2048, false), (2048, 2048, true)]
        );
        assert_eq!(d.allocated(), 2048);
    });
    let kinds: Vec<u8> = (0..30)
        .map(|seed| {
            let d = disk(seed);
            d.poke(0, &[9; 512]);
            d.world().run(bare(&d, BioOp::Discard, 0, 512, BioFlags::empty())).unwrap();
            let got = d.peek(0, 512);
            if all(&got, 0) {
                0
            } else if all(&got, 9) {
                1
            } else {
                2
            }
        })
        .collect();
    for kind in 0..3 {
        assert!(kinds.contains(&kind), "a discarded sector may read as anything");
    }
}

#[test]
fn bad_requests_are_refused_by_kind() {
    let config = SimConfig {
        size: 1 << 20,
        sector: 4096,
        discard: false,
        write_zeroes: false,
        ..SimConfig::default()
    };
    let d = disk_with(5, config.clone());
    d.world().run(async {
        let kind = |r: Result<()>| r.unwrap_err().kind();
        assert_eq!(kind(plain(&d, 512, 1, 4096).await), ErrorKind::Unaligned);
        assert_eq!(kind(plain(&d, 0, 1, 512).await), ErrorKind::Unaligned);
        assert_eq!(kind(plain(&d, 1 << 20, 1, 4096).await), ErrorKind::OutOfRange);
        assert_eq!(kind(plain(&d, u64::MAX - 4095, 1, 4096).await), ErrorKind::OutOfRange);
        assert_eq!(kind(read(&d, 0, 2 << 20).await.map(drop)), ErrorKind::OutOfRange);
        let fast = BioFlags::FAST_ONLY;
        assert_eq!(kind(bare(&d, BioOp::WriteZeroes, 0, 4096, fast).await), ErrorKind::Unsupported);
        assert_eq!(kind(bare(&d, BioOp::Discard, 0, 4096, fast).await), ErrorKind::Unsupported);
        let short = DataRef::Buf(AlignedBuf::new(512));
        let done = io(&d, BioOp::Read, 0, 4096, short, BioFlags::empty()).await;
        assert_eq!(kind(done.result), ErrorKind::InvalidInput);
    });
    let d = disk_with(5, SimConfig { read_only: true, ..config });
    d.world().run(async {
        assert_eq!(plain(&d, 0, 1, 4096).await.unwrap_err().kind(), ErrorKind::ReadOnly);
        read(&d, 0, 4096).await.unwrap();
    });
}

/// fault.F1: each failure is counted.
#[test]
fn fail_nth_single_sticky_and_range() {
    let d = disk(6);
    d.world().run(async {
        d.inject(FaultRule::on(BioOp::Read, Fault::Fail(ErrorKind::Io)).nth(2));
        let mut failures = Vec::new();
        for i in 0..4 {
            failures.push(read(&d, i * 512, 512).await.is_err());
        }
        assert_eq!(failures, [false, true, false, false]);
        d.heal();
        d.inject(FaultRule::on(BioOp::Read, Fault::Fail(ErrorKind::Io)).nth(2).sticky());
        let mut failures = Vec::new();
        for i in 0..4 {
            failures.push(read(&d, i * 512, 512).await.is_err());
        }
        assert_eq!(failures, [false, true, true, true]);
        d.heal();
        let bad = 1024..2048;
        d.inject(FaultRule::any(Fault::Fail(ErrorKind::Io)).within(bad).sticky());
        let e = read(&d, 0, 4096).await.unwrap_err();
        assert_eq!((e.kind(), e.range()), (ErrorKind::Io, Some((0, 4096))));
        read(&d, 2048, 4096).await.unwrap();
        flush(&d).await.unwrap();
        assert!(plain(&d, 1536, 1, 512).await.is_err());
        assert_eq!(d.fault_counts().failed, 1 + 3 + 2);
    });
}

#[test]
fn failed_write_leaves_old_or_new_sectors() {
    let mut seen = [false; 3];
    for seed in 0..40 {
        let d = disk(seed);
        d.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)));
        d.world().run(async {
            assert!(write(&d, 0, 1, 4096, BioFlags::FUA).await.is_err());
            let new = read(&d, 0, 4096).await.unwrap().chunks(512).filter(|s| all(s, 1)).count();
            seen[usize::from(new > 0) + usize::from(new == 8)] = true;
        });
        assert!(d.power_cut(0).peek(0, 4096).chunks(512).all(|s| all(s, 0) || all(s, 1)));
    }
    assert_eq!(seen, [true; 3]);
}

/// fault.F1: they are counted.
#[test]
fn short_transfers_are_errors() {
    let d = disk(7);
    d.poke(0, &[5; 4096]);
    d.inject(FaultRule::on(BioOp::Read, Fault::Short));
    d.inject(FaultRule::on(BioOp::Write, Fault::Short));
    d.world().run(async {
        assert_eq!(read(&d, 0, 4096).await.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(plain(&d, 0, 6, 4096).await.unwrap_err().kind(), ErrorKind::Io);
        let got = read(&d, 0, 4096).await.unwrap();
        let new = got.iter().take_while(|b| **b == 6).count();
        assert!(new < 4096 && new % 512 == 0 && all(&got[new..], 5));
    });
    assert_eq!(d.fault_counts().short, 2);
}

/// fault.F1: refusals for lack of space are counted.
#[test]
fn full_disk_refuses_new_sectors_only() {
    let d = disk_with(8, SimConfig { discard_zeroes: true, ..SimConfig::default() });
    d.limit_space(4096);
    d.world().run(async {
        plain(&d, 0, 1, 4096).await.unwrap();
        assert_eq!(plain(&d, 4096, 1, 512).await.unwrap_err().kind(), ErrorKind::NoSpace);
        plain(&d, 0, 2, 4096).await.unwrap();
        bare(&d, BioOp::Discard, 0, 512, BioFlags::empty()).await.unwrap();
        plain(&d, 4096, 1, 512).await.unwrap();
        d.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace)));
        assert_eq!(plain(&d, 4096, 3, 512).await.unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(all(&read(&d, 4096, 512).await.unwrap(), 1));
    });
    assert_eq!(d.fault_counts().no_space, 2);
}

/// fault.F1: each is counted by its kind.
#[test]
fn torn_lost_and_misdirected_writes_report_success() {
    for seed in 0..30 {
        let d = disk(seed);
        d.inject(FaultRule::on(BioOp::Write, Fault::Torn).times(2));
        d.inject(FaultRule::on(BioOp::Write, Fault::Lost));
        d.inject(FaultRule::on(BioOp::Write, Fault::Misdirect).nth(1));
        d.world().run(async {
            plain(&d, 0, 1, 4096).await.unwrap();
            let new = d.peek(0, 4096).chunks(512).filter(|s| all(s, 1)).count();
            assert!(new < 8, "some of it is old");
            plain(&d, 8192, 2, 512).await.unwrap();
            let got = d.peek(8192, 512);
            assert!(!all(&got, 2) && !all(&got, 0), "a single sector is torn inside");
            plain(&d, 16384, 3, 512).await.unwrap();
            assert!(all(&d.peek(16384, 512), 0));
            plain(&d, 32768, 4, 1024).await.unwrap();
            assert!(!all(&d.peek(32768, 1024), 4));
            let landed = d.allocated();
            assert_eq!(landed, (new as u64 + 1 + 2) * 512);
        });
        let counts = d.fault_counts();
        assert_eq!((counts.torn, counts.lost, counts.misdirected), (2, 1, 1));
    }
}

/// fault.F1: both are counted.
#[test]
fn bit_rot_lasts_and_a_flipped_transfer_does_not() {
    let d = disk(11);
    d.poke(0, &[0xff; 1024]);
    let wrong = |bytes: &[u8]| bytes.iter().map(|b| b.count_zeros()).sum::<u32>();
    d.world().run(async {
        d.inject(FaultRule::on(BioOp::Read, Fault::Flip));
        assert_eq!(wrong(&read(&d, 0, 1024).await.unwrap()), 1);
        assert_eq!(wrong(&read(&d, 0, 1024).await.unwrap()), 0);
        d.rot(700);
        assert_eq!(wrong(&read(&d, 0, 512).await.unwrap()), 0);
        assert_eq!(wrong(&read(&d, 512, 512).await.unwrap()), 1);
        assert_eq!(wrong(&d.power_cut(1).peek(512, 512)), 1);
        d.heal();
        d.inject(FaultRule::on(BioOp::Write, Fault::Flip));
        plain(&d, 0, 0xff, 1024).await.unwrap();
        assert_eq!(wrong(&read(&d, 0, 1024).await.unwrap()), 1);
    });
    let counts = d.fault_counts();
    assert_eq!((counts.rotten, counts.flipped), (1, 2));
}

/// fault.F1: it is counted.
#[test]
fn slow_request_takes_injected_time() {
    let d = disk(12);
    d.inject(FaultRule::on(BioOp::Flush, Fault::Slow(5_000_000_000)));
    d.world().run(flush(&d)).unwrap();
    assert!(d.world().now() > 5_000_000_000);
    assert_eq!(d.fault_counts().slow, 1);
}

#[test]
fn failed_flush_leaves_durability_unknown() {
    let (mut lost_quietly, mut reverted, mut durable) = (0, 0, 0);
    for seed in 0..200 {
        let d = disk(seed);
        d.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
        d.world().run(async {
            plain(&d, 0, 1, 512).await.unwrap();
            assert_eq!(flush(&d).await.unwrap_err().kind(), ErrorKind::Io);
            durable += u64::from(d.peek_durable(0, 1)[0] == 1);
            let reads = d.peek(0, 1)[0];
            flush(&d).await.unwrap();
            let kept = d.peek_durable(0, 1)[0];
            lost_quietly += u64::from(reads == 1 && kept == 0);
            reverted += u64::from(reads == 0);
        });
    }
    assert!(durable > 20 && lost_quietly > 20 && reverted > 20);
}

/// fault.F1: it is counted.
#[test]
fn lost_flush_makes_nothing_durable() {
    let d = disk(13);
    d.inject(FaultRule::on(BioOp::Flush, Fault::Lost));
    d.world().run(async {
        plain(&d, 0, 1, 512).await.unwrap();
        flush(&d).await.unwrap();
    });
    assert_eq!((d.peek_durable(0, 1)[0], d.fault_counts().lost), (0, 1));
}

#[test]
fn blocking_calls_work_at_once_inside_the_world() {
    let d = disk(14);
    d.world().run(async {
        d.write_from(0, &[3; 1024], BioFlags::empty()).unwrap();
        let mut out = [0; 512];
        d.read_into(512, &mut out).unwrap();
        assert!(all(&out, 3) && all(&d.peek_durable(0, 512), 0));
        d.write_from(0, &[4; 512], BioFlags::FUA).unwrap();
        assert!(all(&d.peek_durable(0, 512), 4));
        d.inject(FaultRule::any(Fault::Fail(ErrorKind::Io)).times(2));
        assert!(d.read_into(0, &mut out).is_err());
        assert!(d.write_from(0, &out, BioFlags::empty()).is_err());
        assert_eq!(d.read_into(1, &mut out).unwrap_err().kind(), ErrorKind::Unaligned);
    });
}

#[test]
fn changes_in_flight_and_overlaps_are_counted() {
    let d = disk_with(15, SimConfig { stable_writes: true, ..SimConfig::default() });
    assert!(d.limits().stable_writes.required);
    let shared = std::sync::Arc::new(forebay_base::sync::Mutex::new(AlignedBuf::new(512)));
    d.world().run(async {
        let mem = DataRef::Mem(Box::new(Shaky(shared.clone())));
        let first = async { io(&d, BioOp::Write, 0, 512, mem, BioFlags::empty()).await.result };
        let poke = async { shared.lock()[0] = 1 };
        let ((a, ()), b) = futures_join(futures_join(first, poke), plain(&d, 0, 2, 1024)).await;
        a.unwrap();
        b.unwrap();
        plain(&d, 4096, 2, 1024).await.unwrap();
    });
    assert_eq!((d.unstable_writes(), d.overlapping_writes()), (1, 1));
}

/// Memory that its owner changes while the disk borrows it.
struct Shaky(std::sync::Arc<forebay_base::sync::Mutex<AlignedBuf>>);

// SAFETY: the buffer lives as long as this value and never moves; the test is single-threaded and
// changes it only between the device's copies.
unsafe impl forebay_base::buf::IoMem for Shaky {
    fn segments(&mut self, out: &mut Vec<forebay_base::buf::Segment>) {
        self.0.lock().segments(out);
    }
}
