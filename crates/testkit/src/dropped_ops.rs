//! What holds of every map: an operation that is dropped at any of its polls leaves nothing locked,
//! counted or lost, and nothing of it happens later. For tests of maps, here and above.
//!
//! A test makes a [`Subject`] for each drop, an empty file in a cache of its own, and calls
//! [`Subject::drop_one`] with more and more polls, until the operation ends before it is dropped.
//!
//! No locks.

use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::world::WorldRef;
use forebay_block::RamDevice;
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{PageCache, State};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::identity::Identity;
use forebay_iomap::{Handle, MappedFile, Source, Target};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Bytes of the file before the operation.
pub const SIZE: usize = 16 * BLOCK;
/// Bytes that an append adds.
pub const APPENDED: usize = 2 * BLOCK;
/// Bytes of the other file that fills the cache before it is made smaller.
const FILL: usize = 2 << 20;
/// The range written after the drop.
const LATER: Range<usize> = 5 * BLOCK + 100..9 * BLOCK;
/// Most checks for operations in progress, [`PAUSE`] apart.
const LOOKS: u32 = 10_000;
const PAUSE: Duration = Duration::from_millis(1);
const NONE: IoFlags = IoFlags::empty();

/// What failed, in words.
pub type Checked<T> = Result<T, String>;

/// The end of an operation that was to be dropped after some polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ended before.
    Ended,
    /// It was dropped.
    Dropped {
        /// The device had a request of the operation then, and went on with it.
        is_on_device: bool,
    },
}

/// The operation to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Of the whole file.
    Read(IoFlags),
    /// At an offset, of a length.
    Write(IoFlags, usize, usize),
    /// Of two blocks.
    Append(IoFlags),
    /// At an offset, of a length; the space is given back.
    Trim(usize, usize),
    /// At an offset, of a length; the space is kept.
    Zero(usize, usize),
    /// To a size.
    Truncate(usize),
    /// To this size at least.
    Grow(usize),
    /// To a size, smaller or larger, while another append is in flight.
    TruncateDuringAppend(usize),
    /// To this size at least, while another append is in flight.
    GrowDuringAppend(usize),
    /// Of two blocks, while another append is in flight.
    AppendDuringAppend(IoFlags),
    /// Of the complete file.
    Sync,
    /// The sync when the last opener closes the file.
    Close,
    /// The cache is made as small as it can be.
    Shrink,
}

impl Op {
    /// Every operation, with the flags that change its code path. `can_grow`: the size of the file
    /// may change.
    pub fn all(can_grow: bool) -> Vec<Self> {
        let direct = IoFlags::DIRECT | IoFlags::FALLBACK;
        let mut ops = vec![
            Self::Sync,
            Self::Close,
            Self::Shrink,
            Self::Trim(2 * BLOCK, 8 * BLOCK),
            Self::Trim(2 * BLOCK + 7, 6 * BLOCK),
            Self::Zero(2 * BLOCK, 8 * BLOCK),
            Self::Zero(2 * BLOCK + 7, 6 * BLOCK),
            // Both edges lie in blocks that are not cached: the operation reads one after the
            // other.
            Self::Trim(7 * BLOCK + 7, 3 * BLOCK),
            Self::Zero(7 * BLOCK + 7, 3 * BLOCK),
            Self::Write(NONE, 7 * BLOCK + 50, 2 * BLOCK),
        ];
        for flags in [NONE, IoFlags::UNCACHED, direct, IoFlags::DSYNC, direct | IoFlags::DSYNC] {
            ops.push(Self::Write(flags, 3 * BLOCK, 4 * BLOCK));
            ops.push(Self::Write(flags, 3 * BLOCK + 50, 4 * BLOCK));
        }
        ops.extend([NONE, IoFlags::UNCACHED, direct].map(Self::Read));
        if can_grow {
            ops.extend([NONE, IoFlags::UNCACHED, direct, IoFlags::DSYNC].map(Self::Append));
            // The last size lies within a block that is not cached, so it has to be read.
            let sizes = [3 * BLOCK, 3 * BLOCK + 9, 6 * BLOCK + 9, SIZE + 5000, 10 * BLOCK + 9];
            ops.extend(sizes.map(Self::Truncate));
            ops.push(Self::Grow(SIZE + 5000));
            let to = SIZE + APPENDED + 5000;
            ops.extend([
                Self::TruncateDuringAppend(to),
                Self::TruncateDuringAppend(10 * BLOCK + 9),
            ]);
            ops.push(Self::GrowDuringAppend(to));
            ops.extend([NONE, IoFlags::UNCACHED, direct].map(Self::AppendDuringAppend));
        }
        ops
    }

    /// Its kind, for counts. A buffered write waits for the device only where it has to read. An
    /// append of complete blocks, or a growth, waits only for another task that moves the end of
    /// file.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(flags, ..) if flags.is_empty() => "buffered write",
            Self::Write(..) => "write",
            Self::Append(flags) if flags.is_empty() => "buffered append alone",
            Self::AppendDuringAppend(flags) if flags.is_empty() => "buffered append",
            Self::Append(_) | Self::AppendDuringAppend(_) => "append",
            Self::Trim(..) => "trim",
            Self::Zero(..) => "zero",
            Self::TruncateDuringAppend(to) if to > SIZE => "lengthen",
            Self::Truncate(_) | Self::TruncateDuringAppend(_) => "truncate",
            Self::Grow(_) => "grow alone",
            Self::GrowDuringAppend(_) => "grow",
            Self::Sync => "sync",
            Self::Close => "close",
            Self::Shrink => "shrink",
        }
    }

    /// Whether its code path depends on the strategy for uncached requests.
    pub fn is_uncached(self) -> bool {
        match self {
            Self::Read(flags)
            | Self::Write(flags, ..)
            | Self::Append(flags)
            | Self::AppendDuringAppend(flags) => flags.contains(IoFlags::UNCACHED),
            _ => false,
        }
    }

    /// Whether another append is in flight when it begins.
    fn is_during_append(self) -> bool {
        matches!(
            self,
            Self::TruncateDuringAppend(_) | Self::GrowDuringAppend(_) | Self::AppendDuringAppend(_)
        )
    }

    /// The end of file without what the operation adds.
    fn end_before(self) -> usize {
        if self.is_during_append() { SIZE + APPENDED } else { SIZE }
    }

    /// Whether it needs an answer of the device to end.
    fn needs_device(self) -> bool {
        match self {
            Self::Sync | Self::Close | Self::Read(_) => true,
            Self::Write(flags, ..) | Self::Append(flags) => {
                flags.intersects(IoFlags::DIRECT | IoFlags::DSYNC)
            }
            _ => false,
        }
    }

    /// The value that the operation may have left in a byte, of the file or behind its old end.
    fn may_have_made(self, at: usize) -> Option<u8> {
        match self {
            Self::Write(_, from, len) if (from..from + len).contains(&at) => Some(2),
            Self::Append(_) | Self::AppendDuringAppend(_) if at >= self.end_before() => Some(2),
            Self::Trim(from, len) | Self::Zero(from, len) if (from..from + len).contains(&at) => {
                Some(0)
            }
            Self::Truncate(to) if at >= to.min(SIZE) => Some(0),
            Self::TruncateDuringAppend(to) if at >= to.min(self.end_before()) => Some(0),
            Self::Grow(_) | Self::GrowDuringAppend(_) if at >= self.end_before() => Some(0),
            _ => None,
        }
    }

    fn may_be_size(self, size: usize) -> bool {
        let before = self.end_before();
        let changed = match self {
            Self::Append(_) | Self::AppendDuringAppend(_) => before + APPENDED,
            Self::Truncate(to) | Self::Grow(to) => to.max(LATER.end),
            Self::GrowDuringAppend(to) | Self::TruncateDuringAppend(to) => to.max(LATER.end),
            _ => before,
        };
        size == before || size == changed
    }
}

/// Polls a future at most `most` times, and drops it then. True if it has ended.
pub async fn ended_after(most: u32, future: impl Future) -> bool {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls == most => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Polls both futures until both have ended, in each round `a` before `b`.
async fn both<A>(a: impl Future<Output = A>, b: impl Future<Output = A>) -> [Option<A>; 2] {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let mut done = [None, None];
    poll_fn(|cx| {
        if done[0].is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            done[0] = Some(value);
        }
        if done[1].is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            done[1] = Some(value);
        }
        match done.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    done
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Checked<()> {
    if holds { Ok(()) } else { Err(text()) }
}

fn pattern() -> Vec<u8> {
    (0..SIZE).map(|at| 16 + (at / 512 % 64) as u8).collect()
}

/// A file of [`SIZE`] bytes, or an empty one that can grow, alone in its cache.
pub struct Subject {
    /// Its blocks are of 4 KiB.
    pub file: Arc<MappedFile>,
    /// Of the file.
    pub handle: Handle,
    /// The world of its cache.
    pub world: WorldRef,
}

impl Subject {
    fn cache(&self) -> &PageCache {
        &self.file.cache
    }

    async fn read(&self, at: usize, len: usize) -> Checked<Vec<u8>> {
        let mut buf = AlignedBuf::new(len);
        let dst = Target::Owned(&mut buf);
        let done = self.file.read(&self.handle, at as u64, dst, NONE).await;
        let len = done.map_err(|error| format!("read: {error}"))?;
        Ok(buf[..len].to_vec())
    }

    async fn write(&self, at: usize, bytes: &[u8]) -> Checked<()> {
        let mut buf = AlignedBuf::copy_of(bytes);
        let src = Source::Owned(&mut buf);
        let done = self.file.write(&self.handle, at as u64, src, NONE).await;
        done.map(drop).map_err(|error| format!("write: {error}"))
    }

    async fn sync(&self) -> Checked<()> {
        let done = self.file.sync(&self.handle).await;
        done.map_err(|error| format!("sync: {error}"))
    }

    /// Reads another file into the cache: more frames than the smallest cache has.
    async fn fill_cache(&self) -> Checked<Arc<MappedFile>> {
        let map = Arc::new(Identity::new(Arc::new(RamDevice::new(FILL as u64))));
        let file = MappedFile::new(&self.file.cache, map, BLOCK as u32, FILL as u64, false);
        let file = file.map_err(|error| format!("another file: {error}"))?;
        let handle = file.open_handle();
        for at in (0..FILL).step_by(SIZE) {
            let mut buf = AlignedBuf::new(SIZE);
            let done = file.read(&handle, at as u64, Target::Owned(&mut buf), NONE).await;
            done.map_err(|error| format!("another file: {error}"))?;
        }
        Ok(file)
    }

    /// Carries the operation out and ignores its result.
    pub async fn run(&self, op: Op) {
        let (file, handle) = (&self.file, &self.handle);
        let bytes = |len| AlignedBuf::copy_of(&vec![2; len]);
        let zero = async |at: usize, len: usize, keep_allocated| {
            let flags = ZeroFlags { keep_allocated, fast_only: false };
            drop(file.zero(at as u64, len as u64, flags).await);
        };
        match op {
            Op::Read(flags) => {
                let mut buf = bytes(SIZE);
                drop(file.read(handle, 0, Target::Owned(&mut buf), flags).await);
            }
            Op::Write(flags, at, len) => {
                let mut buf = bytes(len);
                drop(file.write(handle, at as u64, Source::Owned(&mut buf), flags).await);
            }
            Op::Append(flags) | Op::AppendDuringAppend(flags) => {
                let (mut buf, flags) = (bytes(APPENDED), flags | IoFlags::APPEND);
                drop(file.write(handle, 0, Source::Owned(&mut buf), flags).await);
            }
            Op::Trim(at, len) => zero(at, len, false).await,
            Op::Zero(at, len) => zero(at, len, true).await,
            Op::Truncate(to) | Op::TruncateDuringAppend(to) => drop(file.set_len(to as u64).await),
            Op::Grow(to) | Op::GrowDuringAppend(to) => drop(file.grow_to(to as u64).await),
            Op::Sync => drop(file.sync(handle).await),
            Op::Close => drop(file.sync_deferring_errors().await),
            Op::Shrink => drop(self.cache().resize(self.cache().budget_range().0).await),
        }
    }

    /// Appends past the cache. Until the bytes are on the device no other task moves the end of
    /// file.
    async fn append_past_cache(&self) -> Checked<()> {
        let mut buf = AlignedBuf::copy_of(&[3; APPENDED]);
        let flags = IoFlags::DIRECT | IoFlags::FALLBACK | IoFlags::APPEND;
        let done = self.file.write(&self.handle, 0, Source::Owned(&mut buf), flags).await;
        done.map(drop).map_err(|error| format!("another append: {error}"))
    }

    /// Polls `running` until it ends, or `polls` times, and then drops it. With
    /// [`Op::is_during_append`] another append begins before, and goes on after the drop.
    async fn ended_of(&self, op: Op, polls: u32, running: impl Future) -> Checked<bool> {
        if !op.is_during_append() {
            return Ok(ended_after(polls, running).await);
        }
        let mut other = pin!(async { self.append_past_cache().await.map(|()| false) });
        let begun = poll_fn(|cx| match other.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(done) = begun.await {
            // A real engine may have ended the append already.
            done?;
            return Ok(ended_after(polls, running).await);
        }
        let operation = async { Ok(ended_after(polls, running).await) };
        // The first poll of the operation comes while the other append is on the device.
        let [ended, other] = both(operation, other).await;
        other.transpose()?;
        ended.unwrap_or(Ok(false))
    }

    /// Writes known bytes: some are only on the device, some also cached, some dirty.
    async fn prepare(&self, old: &[u8]) -> Checked<()> {
        self.write(0, old).await?;
        self.sync().await?;
        self.cache().drop_clean();
        self.read(4 * BLOCK, 3 * BLOCK).await?;
        self.write(2 * BLOCK, &old[2 * BLOCK..4 * BLOCK]).await?;
        self.write(12 * BLOCK, &old[12 * BLOCK..13 * BLOCK]).await
    }

    /// Drops the operation after `polls` polls, continues with the file at once, and checks the
    /// result. Returns whether the operation ended before.
    pub async fn drop_one(&self, op: Op, polls: u32) -> Checked<Outcome> {
        self.drop_running(op, polls, self.run(op)).await
    }

    /// As `drop_one`, where `running` carries the operation out, through an interface above the
    /// map.
    pub async fn drop_running(&self, op: Op, polls: u32, running: impl Future) -> Checked<Outcome> {
        let old = pattern();
        self.prepare(&old).await?;
        // A cache whose frames are mostly free becomes smaller without a wait, so it is filled
        // first.
        let filler = match op {
            Op::Shrink => Some(self.fill_cache().await?),
            _ => None,
        };
        let sizes = || (self.cache().stats().budget_bytes, self.cache().stats().frames_total);
        let sizes_before = sizes();
        let ended = self.ended_of(op, polls, running).await?;
        let old = [&old[..], &[3; APPENDED][..op.end_before() - SIZE]].concat();
        // After the drop only a request of the device holds anything of the file.
        let is_on_device = !ended && self.moving().is_some();
        drop(filler);
        ensure(ended || sizes() == sizes_before, || "the budget has changed in part".into())?;
        let later = async {
            self.write(LATER.start, &vec![9; LATER.len()]).await?;
            self.sync().await
        };
        // This read compares nothing: the checks below do.
        let other = async { self.read(0, SIZE).await.map(drop) };
        for done in both(later, other).await.into_iter().flatten() {
            done?;
        }
        self.settle().await?;
        self.sync().await?;
        self.check_nothing_held()?;
        let cached = self.read(0, 2 * SIZE).await?;
        check_bytes(op, &cached, &old)?;
        self.cache().drop_clean();
        let stats = self.cache().stats();
        ensure(stats.frames_free == stats.frames_total, || "frames are missing".into())?;
        let stored = self.read(0, 2 * SIZE).await?;
        ensure(stored == cached, || "the device has other bytes than the cache".into())?;
        ensure(self.file.mapping.is_settled(), || "it could not be closed".into())?;
        Ok(if ended { Outcome::Ended } else { Outcome::Dropped { is_on_device } })
    }

    /// Waits until no operation on the file is in progress.
    async fn settle(&self) -> Checked<()> {
        let mut moving = self.moving();
        for _ in 0..LOOKS {
            if moving.is_none() {
                return Ok(());
            }
            self.world.sleep(PAUSE).await;
            moving = self.moving();
        }
        Err(moving.unwrap_or_default())
    }

    fn moving(&self) -> Option<String> {
        let mapping = &self.file.mapping;
        let bounds = &mapping.bounds;
        let moving = [
            (mapping.write_outs() > 0, "a ticket is left"),
            (bounds.is_exclusive(&(0..1 << 30)), "a range is held"),
            (bounds.try_resize().is_none(), "the size may not move"),
            (self.has(State::Reading), "blocks are being read"),
            (self.has(State::Writing), "blocks are being written"),
            (self.cache().stats().private_bytes > 0, "private memory is taken"),
        ];
        moving.into_iter().find(|(is, _)| *is).map(|(_, what)| what.to_string())
    }

    fn check_nothing_held(&self) -> Checked<()> {
        if let Some(what) = self.moving() {
            return Err(what);
        }
        ensure(self.file.size() == self.file.end(), || "bytes lie behind the end".into())?;
        for state in [State::Dirty, State::Unflushed] {
            ensure(!self.has(state), || format!("{state:?} blocks after a sync"))?;
        }
        Ok(())
    }

    /// Whether a block of the file has a state.
    fn has(&self, state: State) -> bool {
        let (mapping, all) = (&*self.file.mapping, 0..1 << 20);
        self.cache().folios_present(mapping, &all).into_iter().any(|index| {
            let folio = self.cache().lock_folio(mapping, index);
            folio.is_some_and(|folio| folio.any(state, mapping.blocks_touched(index, &all)))
        })
    }
}

fn check_bytes(op: Op, bytes: &[u8], old: &[u8]) -> Checked<()> {
    ensure(op.may_be_size(bytes.len()), || format!("a size of {}", bytes.len()))?;
    for (at, &byte) in bytes.iter().enumerate() {
        let was = old.get(at).copied().unwrap_or(0);
        let is_right = match LATER.contains(&at) {
            true => byte == 9,
            false => byte == was || Some(byte) == op.may_have_made(at),
        };
        ensure(is_right, || format!("{byte} at {at}, which was {was}"))?;
    }
    Ok(())
}

/// Kinds of operations that wait at least once on a file that can grow. On a file of a fixed size
/// they are these without [`GROWING_KINDS`].
pub const WAITING_KINDS: [&str; 13] = [
    "read",
    "buffered write",
    "write",
    "append",
    "buffered append",
    "grow",
    "lengthen",
    "trim",
    "zero",
    "truncate",
    "sync",
    "close",
    "shrink",
];
/// The one of [`WAITING_KINDS`] that waits only once. All others wait twice, one wait after the
/// other.
pub const ONCE_WAITING_KIND: &str = "shrink";
/// Those of [`WAITING_KINDS`] that need a file that can grow.
pub const GROWING_KINDS: [&str; 5] = ["append", "buffered append", "grow", "lengthen", "truncate"];
/// Kinds of operations that end in their first poll: alone, they wait for nothing.
pub const KINDS_WITHOUT_WAIT: [&str; 2] = ["buffered append alone", "grow alone"];

/// Counts of the drops so far.
#[derive(Debug, Clone, Default)]
pub struct Drops {
    /// Operations, each dropped after its first, second, .. poll.
    pub operations: u32,
    /// Those of the operations that need an answer of the device to end.
    pub on_device: u32,
    /// Those of `on_device` that were dropped at least once. In a simulated world: all.
    pub on_device_dropped: u32,
    /// Drops.
    pub drops: u32,
    /// By [`Op::kind`]: all drops, those while the device had a request of the operation, and those
    /// after more than one poll.
    pub by_kind: BTreeMap<&'static str, [u32; 3]>,
}

impl Drops {
    /// Drops every operation after each of its polls. `run` makes a [`Subject`] for each drop, with
    /// the strategy of uncached requests, and returns the result of [`Subject::drop_one`]. Panics
    /// with the error.
    pub fn add_all(
        &mut self,
        can_grow: bool,
        mut run: impl FnMut(Op, u32, UncachedStrategy) -> Checked<Outcome>,
    ) {
        for &strategy in UncachedStrategy::ALL {
            for op in Op::all(can_grow) {
                if strategy != UncachedStrategy::Ours && !op.is_uncached() {
                    continue;
                }
                let mut drops = 0;
                while let Outcome::Dropped { is_on_device } = run(op, drops + 1, strategy)
                    .unwrap_or_else(|what| {
                        panic!("{op:?} dropped after {} polls, {strategy:?}: {what}", drops + 1)
                    })
                {
                    drops += 1;
                    let [of_kind, on_device, later] = self.by_kind.entry(op.kind()).or_default();
                    *of_kind += 1;
                    *on_device += u32::from(is_on_device);
                    *later += u32::from(drops > 1);
                    assert!(drops < 1000, "{op:?} ends");
                }
                self.operations += 1;
                self.drops += drops;
                self.on_device += u32::from(op.needs_device());
                self.on_device_dropped += u32::from(op.needs_device() && drops > 0);
            }
        }
    }

    /// Drops of operations of this kind while the device was at work for them.
    pub fn on_device_of(&self, kind: &str) -> u32 {
        self.by_kind.get(kind).map_or(0, |[_, on_device, _]| *on_device)
    }

    /// The first of these kinds of which no operation was dropped.
    pub fn never_dropped(&self, kinds: &[&'static str]) -> Option<&'static str> {
        kinds.iter().find(|kind| !self.by_kind.contains_key(*kind)).copied()
    }

    /// The first of these kinds of which no operation was dropped after more than one poll, but
    /// [`ONCE_WAITING_KIND`].
    pub fn never_dropped_later(&self, kinds: &[&'static str]) -> Option<&'static str> {
        let later = |kind: &str| self.by_kind.get(kind).is_some_and(|[.., later]| *later > 0);
        kinds.iter().find(|kind| **kind != ONCE_WAITING_KIND && !later(kind)).copied()
    }

    /// The first of these kinds of which an operation was dropped, so that it must have waited.
    pub fn dropped_of(&self, kinds: &[&'static str]) -> Option<&'static str> {
        kinds.iter().find(|kind| self.by_kind.contains_key(*kind)).copied()
    }
}
