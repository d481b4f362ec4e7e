//! The workload harness: passes what is right, finds what is wrong.

use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::sim_world::SimWorld;
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::world::World;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::bdev::{BlockDevice, io};
use forebay_block::bio::{BioFlags, BioOp};
use forebay_sim::{Fault, FaultRule, SimConfig, SimDisk};
use forebay_testkit::workload::mem::{Bug, MemSubject};
use forebay_testkit::workload::{
    Blocking, Config, Mismatch, Op, Runner, Subject, TrimReads, shrink,
};
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 512 << 10;

/// Runs, crashes and runs on, a few times.
fn rounds(seed: u64, grows: bool, bug: Option<Bug>) -> std::result::Result<Runner, Box<Mismatch>> {
    let (config, initial) = match grows {
        true => (Config { set_len: 40, ..Config::growing(SIZE) }, Vec::new()),
        false => (Config::fixed(SIZE), vec![0x55; SIZE as usize]),
    };
    let subject = Blocking(MemSubject::new(initial.clone(), grows, bug));
    let mut runner = Runner::new(seed, config, initial);
    for round in 0..4 {
        block_on(runner.run(&subject, 400))?;
        subject.0.crash(seed * 10 + round);
        block_on(runner.check_crash(&subject))?;
    }
    Ok(runner)
}

#[test]
fn correct_subject_passes() {
    for seed in 0..6 {
        for grows in [false, true] {
            let runner = rounds(seed, grows, None).unwrap_or_else(|e| panic!("{e}"));
            let report = runner.report();
            assert!(report.reads > 300 && report.writes > 300 && report.syncs > 20, "{report:?}");
            assert!(report.refused > 10 && report.would_block > 5, "{report:?}");
            assert_eq!(report.set_lens > 20, grows, "{report:?}");
        }
    }
}

#[test]
fn every_planted_bug_is_found() {
    let bugs = [
        Bug::TailLostAtFolio,
        Bug::StaleAfterDirect,
        Bug::GapNotZeroed,
        Bug::ZeroTooMuch,
        Bug::DsyncIgnored,
        Bug::HalfSync,
        Bug::NowaitHalfDone,
        Bug::AppendElsewhere,
        Bug::DirectUnaligned,
        Bug::CutTailComesBack,
    ];
    for bug in bugs {
        let found = (0..6).filter_map(|seed| rounds(seed, true, Some(bug)).err()).count();
        assert!(found >= 3, "{bug:?} was found by {found} of 6 seeds");
    }
}

/// A mismatch names seed, operation, byte and history (run.U2).
#[test]
fn mismatch_report_has_history_and_shrinks() {
    let fresh = || {
        let subject =
            Blocking(MemSubject::new(vec![0; SIZE as usize], false, Some(Bug::ZeroTooMuch)));
        (subject, Runner::new(3, Config::fixed(SIZE), vec![0; SIZE as usize]))
    };
    let (subject, mut runner) = fresh();
    let story = block_on(runner.run(&subject, 2000)).unwrap_err().to_string();
    for part in ["seed 3, op ", "wrong data", "at byte ", "it got zeros", "Zero {"] {
        assert!(story.contains(part), "no `{part}` in: {story}");
    }
    let few = shrink(runner.ops(), |ops| {
        let (subject, mut runner) = fresh();
        block_on(runner.replay(&subject, ops)).is_err()
    });
    assert_eq!(few.len(), 2, "{few:?}");
    assert!(matches!(few[..], [Op::Write { .. }, Op::Zero { .. }]));
}

/// The thinnest stack: no cache, sectors read, changed and written, one call at a time.
struct Raw {
    disk: SimDisk,
    busy: forebay_base::sync::Mutex<bool>,
    free: forebay_base::task::WaitQueue,
}

impl Raw {
    fn new(disk: SimDisk) -> Self {
        let busy = forebay_base::sync::Mutex::new(false);
        Self { disk, busy, free: forebay_base::task::WaitQueue::new() }
    }

    async fn lock(&self) -> Unlock<'_> {
        self.free
            .wait_until(|| (!std::mem::replace(&mut *self.busy.lock(), true)).then_some(()))
            .await;
        Unlock(self)
    }

    async fn bio(
        &self,
        op: BioOp,
        at: u64,
        buf: AlignedBuf,
        flags: BioFlags,
    ) -> Result<AlignedBuf> {
        let len = buf.len() as u64;
        let done = io(&self.disk, op, at, len, DataRef::Buf(buf), flags).await;
        done.result.map(|()| done.data.into_buf().expect("comes back"))
    }

    async fn change(&self, offset: u64, bytes: &[u8], flags: BioFlags) -> Result<()> {
        let (from, to) = (offset / 512 * 512, (offset + bytes.len() as u64).div_ceil(512) * 512);
        if to > self.disk.size() {
            return Err(Error::new(ErrorKind::OutOfRange, "raw", ""));
        }
        let _lock = self.lock().await;
        let old = AlignedBuf::new((to - from) as usize);
        let mut buf = self.bio(BioOp::Read, from, old, BioFlags::empty()).await?;
        let skip = (offset - from) as usize;
        buf[skip..skip + bytes.len()].copy_from_slice(bytes);
        self.bio(BioOp::Write, from, buf, flags).await.map(drop)
    }
}

struct Unlock<'a>(&'a Raw);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        *self.0.busy.lock() = false;
        self.0.free.wake_all();
    }
}

impl Subject for Raw {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read(
        &self,
        offset: u64,
        mut buf: AlignedBuf,
        _: IoFlags,
    ) -> BoxFuture<'_, (AlignedBuf, Result<usize>)> {
        Box::pin(async move {
            let end = (offset + buf.len() as u64).min(self.disk.size());
            let n = end.saturating_sub(offset) as usize;
            let (from, to) = (offset / 512 * 512, end.div_ceil(512) * 512);
            if n == 0 {
                return (buf, Ok(0));
            }
            let whole = AlignedBuf::new((to - from) as usize);
            let result = self.bio(BioOp::Read, from, whole, BioFlags::empty()).await.map(|whole| {
                let skip = (offset - from) as usize;
                buf[..n].copy_from_slice(&whole[skip..skip + n]);
                n
            });
            (buf, result)
        })
    }

    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'_, (AlignedBuf, Result<u64>)> {
        Box::pin(async move {
            let durable = flags.intersects(IoFlags::DSYNC | IoFlags::SYNC);
            let fua = if durable { BioFlags::FUA } else { BioFlags::empty() };
            let result = self.change(offset, &buf, fua).await.map(|()| offset);
            (buf, result)
        })
    }

    fn trim(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (from, to) = (offset.div_ceil(512) * 512, (offset + len) / 512 * 512);
            let _lock = self.lock().await;
            let len = to.saturating_sub(from);
            io(&self.disk, BioOp::Discard, from, len, DataRef::None, BioFlags::empty()).await.result
        })
    }

    fn zero(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(
            async move { self.change(offset, &vec![0; len as usize], BioFlags::empty()).await },
        )
    }

    fn sync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            io(&self.disk, BioOp::Flush, 0, 0, DataRef::None, BioFlags::empty()).await.result
        })
    }

    fn drop_caches(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn reopen(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

fn raw_config() -> Config {
    let flags = IoFlags::DSYNC | IoFlags::SYNC | IoFlags::UNCACHED;
    Config { flags, trim: TrimReads::Anything, ..Config::fixed(SIZE) }
}

fn raw_disk(seed: u64) -> SimDisk {
    SimDisk::new(SimWorld::new(seed), SimConfig { size: SIZE, ..SimConfig::default() })
}

/// Runs on the simulated disk, then checks many power losses.
fn cut_rounds(seed: u64, disk: &SimDisk, config: Config) -> std::result::Result<(), Box<Mismatch>> {
    let mut runner = Runner::new(seed, config, vec![0; SIZE as usize]);
    let subject = Raw::new(disk.clone());
    disk.world().run(runner.run(&subject, 150))?;
    for cut in 0..10 {
        let after = disk.power_cut(cut);
        let mut judge = runner.clone();
        after.world().run(judge.check_crash(&Raw::new(after.clone())))?;
    }
    Ok(())
}

#[test]
fn power_cuts_of_a_right_stack_pass() {
    for seed in 0..10 {
        cut_rounds(seed, &raw_disk(seed), raw_config()).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn faults_of_a_right_stack_pass() {
    for seed in 0..10 {
        let disk = raw_disk(seed);
        disk.inject(FaultRule::any(Fault::Fail(ErrorKind::Io)).sticky().one_in(12));
        disk.inject(FaultRule::any(Fault::Short).sticky().one_in(20));
        let config = Config { faults: true, ..raw_config() };
        let mut runner = Runner::new(seed, config, vec![0; SIZE as usize]);
        let subject = Raw::new(disk.clone());
        let result = disk.world().run(async {
            for op in faulty_ops(seed) {
                runner.step(&subject, op).await?;
            }
            runner.check_all(&subject).await
        });
        result.unwrap_or_else(|e| panic!("{e}"));
        assert!(runner.report().faults > 5 && disk.fault_counts().failed > 5);
    }
}

/// Without flushes: a failed flush may take back what was read, and a raw stack lets it.
fn faulty_ops(seed: u64) -> Vec<Op> {
    let odds = [400, 400, 30, 40, 0, 0, 0];
    let mut g = forebay_testkit::workload::Generator::new(seed, Config { odds, ..raw_config() });
    (0..200).map(|_| g.next_op(SIZE)).collect()
}

#[test]
fn lost_flush_is_found() {
    let found = (0..10).filter(|seed| {
        let disk = raw_disk(*seed);
        disk.inject(FaultRule::on(BioOp::Flush, Fault::Lost).sticky());
        cut_rounds(*seed, &disk, raw_config()).is_err()
    });
    assert!(found.count() >= 8);
}

#[test]
fn lost_torn_misdirected_and_rotten_data_is_found() {
    for fault in [Fault::Lost, Fault::Torn, Fault::Misdirect, Fault::Flip] {
        let found = (0..6).filter(|seed| {
            let disk = raw_disk(*seed);
            disk.inject(FaultRule::on(BioOp::Write, fault).nth(5).sticky().one_in(10));
            cut_rounds(*seed, &disk, raw_config()).is_err()
        });
        assert!(found.count() >= 5, "{fault:?}");
    }
}

/// A run depends on its seed alone (run.U1).
#[test]
fn several_workloads_share_a_subject_and_replay_by_seed() {
    let run = |seed| {
        let disk = raw_disk(seed);
        let subject = Arc::new(Raw::new(disk.clone()));
        for i in 0..4u64 {
            let config =
                Config { span: i * SIZE / 4 + 100..(i + 1) * SIZE / 4 + 100, ..raw_config() };
            let config = Config { span: config.span.start..config.span.end.min(SIZE), ..config };
            let subject = subject.clone();
            let task = async move {
                let mut runner = Runner::new(seed * 8 + i, config, vec![0; SIZE as usize]);
                runner.run(&*subject, 60).await.unwrap_or_else(|e| panic!("{e}"));
            };
            disk.world().spawn("workload", Box::pin(task));
        }
        disk.world().run(disk.world().sleep(Duration::from_secs(60)));
        (disk.world().digest(), disk.content_digest())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
