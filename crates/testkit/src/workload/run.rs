//! Drives a subject with generated or given operations and checks every answer.
//!
//! Invariants: U1 a run depends on its seed, its configuration and the subject only. U2 a report
//! of what is wrong names the seed, the operation, the byte, and the last operations on its block,
//! and says which write the found bytes come from. U3 an error is as much an answer as data: an
//! error that is not called for, or one that is missing, is wrong too.
//!
//! No locks.

use super::Subject;
use super::model::{ByteModel, Effect, Wrong};
use super::op::{Config, Generator, MODES, Op, fill};
use forebay_base::buf::AlignedBuf;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::fmt;

/// After this many operations everything is read and compared.
const CHECK_EVERY: u64 = 1000;
/// Operations on the block that a report shows.
const SHOWN: usize = 12;

/// What happened in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Operations.
    pub ops: u64,
    /// Of these, reads.
    pub reads: u64,
    /// Of these, writes.
    pub writes: u64,
    /// Bytes read and compared.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Successful syncs.
    pub syncs: u64,
    /// Calls that only moved the end of file.
    pub set_lens: u64,
    /// `NOWAIT` calls that would have had to wait.
    pub would_block: u64,
    /// Calls that had to be refused, and were.
    pub refused: u64,
    /// Calls that failed because of an injected fault.
    pub faults: u64,
}

/// What went wrong. Its `Display` shows all of it.
#[derive(Debug, Clone)]
pub struct Mismatch {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the operation that showed it, from 0.
    pub op_number: u64,
    /// That operation, if there is one.
    pub op: Option<Op>,
    /// What.
    pub what: String,
    /// The first wrong byte.
    pub wrong: Option<Wrong>,
    /// The last operations on its block, oldest first.
    pub history: Vec<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, op {}: {}", self.seed, self.op_number, self.what)?;
        if let Some(op) = &self.op {
            write!(f, "\n  in {op:?}")?;
        }
        if let Some(wrong) = &self.wrong {
            write!(
                f,
                "\n  at byte {}: expected {:#04x} ({} legal contents), got {:#04x}",
                wrong.offset, wrong.expected, wrong.legal, wrong.got
            )?;
        }
        self.history.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl std::error::Error for Mismatch {}

/// Shorthand of this module.
type Checked<T = ()> = std::result::Result<T, Box<Mismatch>>;

#[derive(Clone)]
struct Past {
    op: Op,
    /// Where a write really went.
    at: u64,
    outcome: &'static str,
}

/// One run: generator, model and history. A clone can check a crash state and be dropped.
#[derive(Clone)]
pub struct Runner {
    seed: u64,
    config: Config,
    generator: Generator,
    model: ByteModel,
    history: Vec<Past>,
    report: Report,
}

/// Which answers are right.
struct Expect {
    ok: bool,
    errors: Vec<ErrorKind>,
}

impl Runner {
    /// A run against a subject that durably holds `initial`.
    pub fn new(seed: u64, config: Config, initial: Vec<u8>) -> Self {
        let generator = Generator::new(seed, config.clone());
        let model = ByteModel::new(config.block, initial);
        Self { seed, config, generator, model, history: Vec::new(), report: Report::default() }
    }

    /// What happened so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// The model.
    pub fn model(&self) -> &ByteModel {
        &self.model
    }

    /// All operations so far, for `replay`.
    pub fn ops(&self) -> Vec<Op> {
        self.history.iter().map(|p| p.op).collect()
    }

    /// Generates and carries out `count` operations, then compares everything.
    pub async fn run(&mut self, subject: &dyn Subject, count: u64) -> Checked {
        for n in 1..=count {
            let op = self.generator.next_op(self.model.size());
            self.step(subject, op).await?;
            if n % CHECK_EVERY == 0 {
                self.check_all(subject).await?;
            }
        }
        self.check_all(subject).await
    }

    /// Carries out the given operations, then compares everything.
    pub async fn replay(&mut self, subject: &dyn Subject, ops: &[Op]) -> Checked {
        for op in ops {
            self.step(subject, *op).await?;
        }
        self.check_all(subject).await
    }

    /// Carries out one operation and checks its answer.
    pub async fn step(&mut self, subject: &dyn Subject, op: Op) -> Checked {
        let was_marked = self.note_mark(subject);
        self.history.push(Past { op, at: op.range().map_or(0, |r| r.start), outcome: "begun" });
        self.report.ops += 1;
        match op {
            Op::Read { offset, len, flags } => self.read(subject, offset, len, flags).await?,
            Op::Write { .. } => self.write(subject, op).await?,
            Op::Trim { offset, len } => {
                let result = subject.trim(offset, len).await;
                if self.judge(op, &result)? != Verdict::Nothing {
                    self.model.note_path(offset, self.inside(offset, len), true);
                    self.model.trim(offset, len, self.config.trim, result.is_ok());
                }
            }
            Op::Zero { offset, len } => {
                let result = subject.zero(offset, len).await;
                if let Some(effect) = self.judge(op, &result)?.effect(false) {
                    self.model.note_path(offset, self.inside(offset, len), true);
                    self.model.zero(offset, len, effect);
                }
            }
            Op::SetLen { size } => {
                let result = subject.set_len(size).await;
                if self.judge(op, &result)? == Verdict::Done {
                    self.model.set_len(size);
                    self.report.set_lens += 1;
                }
            }
            Op::Sync => {
                let result = subject.sync().await;
                if was_marked && result.is_ok() {
                    return Err(self.wrong("a marked subject synced".into(), None, &[]));
                }
                match self.judge(op, &result)? {
                    Verdict::Done => {
                        self.model.sync();
                        self.report.syncs += 1;
                    }
                    Verdict::Nothing => {}
                    _ => self.model.flush_failed(),
                }
            }
            Op::DropCaches => drop(self.judge(op, &subject.drop_caches().await)?),
            Op::Reopen => drop(self.judge(op, &subject.reopen().await)?),
        }
        self.check_size(subject)
    }

    /// As much of `len` as lies inside the subject.
    fn inside(&self, offset: u64, len: u64) -> u64 {
        self.model.readable(offset, len) as u64
    }

    fn note_mark(&mut self, subject: &dyn Subject) -> bool {
        let marked = self.config.faults && subject.marked();
        if marked {
            self.model.marked();
        }
        marked
    }

    async fn read(
        &mut self,
        subject: &dyn Subject,
        offset: u64,
        len: u64,
        flags: IoFlags,
    ) -> Checked {
        let op = Op::Read { offset, len, flags };
        let mut buf = AlignedBuf::new(len as usize);
        // Bytes that the subject forgets to fill must not look like zeros.
        buf.fill(0xee);
        let (buf, result) = subject.read(offset, buf, flags).await;
        self.report.reads += 1;
        if buf.len() as u64 != len {
            return Err(self.wrong("another buffer came back".into(), None, &[]));
        }
        self.judge(op, &result)?;
        self.note_mark(subject);
        let Ok(n) = result else { return Ok(()) };
        let want = self.model.readable(offset, len);
        if n != want {
            let what = format!("read {n} bytes instead of {want}, size {}", self.model.size());
            return Err(self.wrong(what, None, &[]));
        }
        self.report.bytes_read += n as u64;
        self.compare(offset, &buf[..n])
    }

    async fn write(&mut self, subject: &dyn Subject, op: Op) -> Checked {
        let Op::Write { offset, len, flags, stamp } = op else { return Ok(()) };
        let at = if flags.contains(IoFlags::APPEND) { self.model.size() } else { offset };
        let mut buf = AlignedBuf::new(len as usize);
        fill(stamp, at, &mut buf);
        let data = buf.to_vec();
        if let Some(past) = self.history.last_mut() {
            past.at = at;
        }
        let (buf, result) = subject.write(offset, buf, flags).await;
        self.report.writes += 1;
        if buf[..] != data[..] {
            return Err(self.wrong("the caller's data was changed".into(), None, &[]));
        }
        let durable = flags.intersects(IoFlags::DSYNC | IoFlags::SYNC);
        let Some(effect) = self.judge(op, &result)?.effect(durable) else { return Ok(()) };
        let known = self.model.readable(at, len) as u64;
        if durable && effect == Effect::Maybe {
            self.model.note_path(at, known, true);
            self.model.flush_failed();
        }
        self.model.note_path(at, known, flags.intersects(IoFlags::UNCACHED | IoFlags::DIRECT));
        if let Ok(place) = result
            && place != at
        {
            return Err(self.wrong(format!("written at {place} instead of {at}"), None, &[]));
        }
        if effect != Effect::Maybe {
            self.report.bytes_written += len;
            self.model.write(at, &data, effect);
            return Ok(());
        }
        // A failed write that would have grown the subject may have grown it in part.
        let size = subject.size();
        if size > self.model.size() && size <= at + len {
            self.model.set_size(size);
        }
        let inside = self.model.readable(at, len);
        self.model.write(at, &data[..inside], effect);
        Ok(())
    }

    /// Whether the answer is right, and what it means for the bytes.
    fn judge<T>(&mut self, op: Op, result: &Result<T>) -> Checked<Verdict> {
        let expect = self.expect(op);
        let kind = result.as_ref().err().map(Error::kind);
        let right = kind.map_or(expect.ok, |kind| expect.errors.contains(&kind));
        if !right {
            let what = match result {
                Ok(_) => format!("succeeded, but only {:?} is right", expect.errors),
                Err(e) => format!("failed: {e}"),
            };
            return Err(self.wrong(what, None, &[]));
        }
        let (verdict, outcome) = match kind {
            None => (Verdict::Done, "ok"),
            Some(ErrorKind::WouldBlock) => (Verdict::Nothing, "would block"),
            Some(ErrorKind::Unaligned | ErrorKind::OutOfRange | ErrorKind::Unsupported) => {
                (Verdict::Nothing, "refused")
            }
            Some(ErrorKind::NoSpace) if !self.config.faults => (Verdict::Nothing, "refused"),
            Some(_) => (Verdict::Unknown, "failed"),
        };
        match outcome {
            "would block" => self.report.would_block += 1,
            "refused" => self.report.refused += 1,
            "failed" => self.report.faults += 1,
            _ => {}
        }
        if let Some(past) = self.history.last_mut() {
            past.outcome = outcome;
        }
        Ok(verdict)
    }

    fn expect(&self, op: Op) -> Expect {
        let (size, align) = (self.model.size(), self.config.direct_align);
        let mut expect = Expect { ok: true, errors: Vec::new() };
        if self.config.faults {
            expect.errors.extend([ErrorKind::Io, ErrorKind::NoSpace]);
            if self.config.flushes_itself {
                expect.errors.push(ErrorKind::Corrupt);
            }
        }
        let (flags, at, len, write) = match op {
            Op::Read { offset, len, flags } => (flags, offset, len, false),
            Op::Write { len, flags, .. } if flags.contains(IoFlags::APPEND) => {
                (flags, size, len, true)
            }
            Op::Write { offset, len, flags, .. } => (flags, offset, len, true),
            Op::Trim { offset, len } | Op::Zero { offset, len } => {
                (IoFlags::empty(), offset, len, true)
            }
            Op::SetLen { .. } | Op::Sync | Op::DropCaches | Op::Reopen => return expect,
        };
        if flags.intersection(MODES).iter().count() > 1 {
            expect.errors.push(ErrorKind::Unsupported);
        }
        if flags.contains(IoFlags::NOWAIT) {
            expect.errors.push(ErrorKind::WouldBlock);
        }
        if at + len > size && if write { !self.config.grows } else { !self.config.short_reads } {
            expect.ok = len == 0;
            expect.errors.push(ErrorKind::OutOfRange);
            if write {
                expect.errors.push(ErrorKind::NoSpace);
            }
        }
        let strict = flags.contains(IoFlags::DIRECT) && !flags.contains(IoFlags::FALLBACK);
        if strict && (!at.is_multiple_of(align) || !len.is_multiple_of(align)) {
            // A direct request may reach the unaligned tail of a device or file, also a new tail.
            let grown = self.config.grows && write && at + len > size;
            let tail = at.is_multiple_of(align) && (at + len == size || grown);
            expect.ok &= tail || len == 0;
            expect.errors.push(ErrorKind::Unaligned);
        }
        expect
    }

    /// Reads the whole span and compares it.
    pub async fn check_all(&mut self, subject: &dyn Subject) -> Checked {
        self.note_mark(subject);
        let end = self.config.span.end.min(self.model.size());
        let mut at = self.config.span.start;
        while at < end {
            let len = (end - at).min(128 << 10);
            let (buf, result) =
                subject.read(at, AlignedBuf::new(len as usize), IoFlags::empty()).await;
            match result {
                Ok(n) if n as u64 == len => self.compare(at, &buf)?,
                Ok(n) => {
                    let what = format!("final check: {n} of {len} bytes at {at}");
                    return Err(self.wrong(what, None, &[]));
                }
                Err(_) if self.config.faults => {}
                Err(e) => return Err(self.wrong(format!("final check: {e}"), None, &[])),
            }
            at += len;
        }
        self.check_size(subject)
    }

    /// Reads everything from a subject that came back after a crash, and checks that it is
    /// something that the crash may leave. On success the run can go on from there.
    pub async fn check_crash(&mut self, subject: &dyn Subject) -> Checked {
        let mut found = vec![0; subject.size() as usize];
        let mut at = 0;
        for piece in found.chunks_mut(128 << 10) {
            let buf = AlignedBuf::new(piece.len());
            let (buf, result) = subject.read(at, buf, IoFlags::empty()).await;
            if let Err(e) = result {
                return Err(self.wrong(format!("after the crash: {e}"), None, &[]));
            }
            piece.copy_from_slice(&buf);
            at += piece.len() as u64;
        }
        self.model.crash(&found, &self.config.span.clone()).map_err(|wrong| {
            let at = (wrong.offset as usize).min(found.len());
            let got = &found[at..(at + 8).min(found.len())];
            self.wrong("after the crash neither old nor new".into(), Some(wrong), got)
        })
    }

    fn compare(&mut self, offset: u64, got: &[u8]) -> Checked {
        if self.config.faults && self.config.flushes_itself {
            self.model.flush_failed();
        }
        self.model.check_read(offset, got).map_err(|wrong| {
            let at = (wrong.offset - offset) as usize;
            let sample = &got[at..(at + 8).min(got.len())];
            self.wrong("wrong data".into(), Some(wrong), sample)
        })
    }

    fn check_size(&self, subject: &dyn Subject) -> Checked {
        let (got, want) = (subject.size(), self.model.size());
        let whole = self.config.span.start == 0 && self.config.span.end >= want;
        if got == want || !whole {
            return Ok(());
        }
        Err(self.wrong(format!("size is {got} instead of {want}"), None, &[]))
    }

    fn wrong(&self, mut what: String, wrong: Option<Wrong>, sample: &[u8]) -> Box<Mismatch> {
        let last = self.history.last();
        let place = wrong.as_ref().map(|w| w.offset).or_else(|| last.map(|p| p.at)).unwrap_or(0);
        if !sample.is_empty() {
            what = format!("{what}; it got {}", self.origin(place, sample));
        }
        let block = place / self.config.block * self.config.block;
        let touches = |past: &Past| match past.op.range() {
            Some(range) => range.start < block + self.config.block && block < range.end,
            None => match past.op {
                Op::Write { len, .. } => {
                    past.at < block + self.config.block && block < past.at + len
                }
                _ => true,
            },
        };
        let mut history: Vec<String> = (0..self.history.len())
            .rev()
            .filter(|i| touches(&self.history[*i]))
            .take(SHOWN)
            .map(|i| {
                format!(
                    "op {i} at {}: {:?}: {}",
                    self.history[i].at, self.history[i].op, self.history[i].outcome
                )
            })
            .collect();
        history.reverse();
        Box::new(Mismatch {
            seed: self.seed,
            op_number: (self.history.len() as u64).saturating_sub(1),
            op: last.map(|p| p.op),
            what,
            wrong,
            history,
        })
    }

    /// Which write the bytes found at `place` come from.
    fn origin(&self, place: u64, sample: &[u8]) -> String {
        if sample.iter().all(|b| *b == 0) {
            return "zeros".into();
        }
        let mut bytes = vec![0; sample.len()];
        for (i, past) in self.history.iter().enumerate().rev() {
            if let Op::Write { stamp, .. } = past.op {
                fill(stamp, place, &mut bytes);
                if bytes == sample {
                    return format!("the data of op {i}");
                }
            }
        }
        format!("bytes of no write to this place: {sample:02x?}")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Done,
    Nothing,
    Unknown,
}

impl Verdict {
    fn effect(self, durable: bool) -> Option<Effect> {
        match self {
            Self::Done if durable => Some(Effect::Durable),
            Self::Done => Some(Effect::Done),
            Self::Unknown => Some(Effect::Maybe),
            Self::Nothing => None,
        }
    }
}

/// Removes operations from a list as long as `fails` returns true for the rest. Every call of
/// `fails` must begin with a fresh subject.
pub fn shrink(ops: Vec<Op>, mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut ops = ops;
    let mut chunk = ops.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < ops.len() {
            let end = (at + chunk).min(ops.len());
            let thinner = [&ops[..at], &ops[end..]].concat();
            if fails(&thinner) {
                ops = thinner;
            } else {
                at = end;
            }
        }
        chunk /= 2;
    }
    ops
}
