//! Operations and their generator.
//!
//! Invariant: O1 an operation is complete in itself: what a write stores follows from its `stamp`
//! and the offset alone, so that a list of operations can be replayed, cut short or thinned out.
//!
//! No locks.

use super::model::TrimReads;
use forebay_base::IoFlags;
use forebay_base::world::split_mix;
use std::ops::Range;

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Read.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// How.
        flags: IoFlags,
    },
    /// Write of the bytes that [`fill`] makes of `stamp`.
    Write {
        /// First byte; with `APPEND` it is ignored.
        offset: u64,
        /// Bytes.
        len: u64,
        /// How.
        flags: IoFlags,
        /// What.
        stamp: u64,
    },
    /// Trim: the file releases the range.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Make the range zeros.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Move the end.
    SetLen {
        /// Bytes from now on.
        size: u64,
    },
    /// Make everything durable.
    Sync,
    /// Forget clean cached data.
    DropCaches,
    /// Close and open.
    Reopen,
}

impl Op {
    /// The bytes that it reads or changes; `None` for `APPEND`.
    pub fn range(&self) -> Option<Range<u64>> {
        match *self {
            Self::Write { flags, .. } if flags.contains(IoFlags::APPEND) => None,
            Self::Read { offset, len, .. }
            | Self::Write { offset, len, .. }
            | Self::Trim { offset, len }
            | Self::Zero { offset, len } => Some(offset..offset.saturating_add(len)),
            Self::SetLen { size } => Some(size..u64::MAX),
            Self::Sync | Self::DropCaches | Self::Reopen => None,
        }
    }
}

/// What a write with `stamp` stores at `offset` on: every byte follows from its own place, and
/// none is zero, so that zeros are never taken for data.
pub fn fill(stamp: u64, offset: u64, out: &mut [u8]) {
    let (mut at, mut rest) = (offset, out);
    while !rest.is_empty() {
        let mut state = stamp.rotate_left(24) ^ (at >> 3);
        let word = (split_mix(&mut state) | 0x0101_0101_0101_0101).to_le_bytes();
        let skip = (at & 7) as usize;
        let (head, tail) = rest.split_at_mut((8 - skip).min(rest.len()));
        head.copy_from_slice(&word[skip..skip + head.len()]);
        at += head.len() as u64;
        rest = tail;
    }
}

/// The flags of which one decides the path; two of them at once may be refused.
pub const MODES: IoFlags = IoFlags::UNCACHED.union(IoFlags::DIRECT).union(IoFlags::START_WRITEBACK);

/// What to generate and what to expect.
#[derive(Debug, Clone)]
pub struct Config {
    /// Only bytes in here are touched; several workloads with disjoint spans may share a subject.
    /// The end is where a growing subject stops growing.
    pub span: Range<u64>,
    /// Writes past the end extend the subject. Otherwise they fail with `OutOfRange` or `NoSpace`.
    pub grows: bool,
    /// Reads stop short at the end. Otherwise a read that crosses it fails with `OutOfRange`.
    pub short_reads: bool,
    /// Longest request, bytes.
    pub len_max: u64,
    /// The unit that a crash leaves old or new, bytes: the sector of the device.
    pub block: u64,
    /// The cache's folio, bytes: many requests cross its borders.
    pub folio: u64,
    /// Offsets and lengths of `DIRECT` are multiples of this, or the call fails with `Unaligned`.
    pub direct_align: u64,
    /// Flags that may be used.
    pub flags: IoFlags,
    /// What a trimmed range reads as.
    pub trim: TrimReads,
    /// `Io` and `NoSpace` errors are expected, because the device is made to fail.
    pub faults: bool,
    /// The subject flushes by itself, too: bytes written past a cache may be lost before a sync
    /// reports it. With faults a checksum, if there is one, may find them missing: `Corrupt`.
    pub flushes_itself: bool,
    /// Relative odds of read, write, trim, zero, sync, drop caches, reopen.
    pub odds: [u32; 7],
    /// Relative odds of moving the end by itself, for a subject that grows and fills the span. A
    /// crash may then leave anything of a file that was truncated since the last sync.
    pub set_len: u32,
}

impl Config {
    /// A subject of fixed size, all flags but `APPEND`, everything on, no faults.
    pub fn fixed(size: u64) -> Self {
        Self {
            span: 0..size,
            grows: false,
            short_reads: true,
            len_max: 160 << 10,
            block: 512,
            folio: 64 << 10,
            direct_align: 512,
            flags: IoFlags::all().difference(IoFlags::APPEND),
            trim: TrimReads::OldOrZeros,
            faults: false,
            flushes_itself: false,
            odds: [400, 400, 30, 40, 40, 15, 5],
            set_len: 0,
        }
    }

    /// A file that grows up to `size_max`.
    pub fn growing(size_max: u64) -> Self {
        Self { grows: true, flags: IoFlags::all(), ..Self::fixed(size_max) }
    }
}

/// Draws operations from a seed.
#[derive(Debug, Clone)]
pub struct Generator {
    config: Config,
    rng: u64,
    stamp: u64,
    last: Range<u64>,
}

impl Generator {
    /// A generator for one run.
    pub fn new(seed: u64, config: Config) -> Self {
        let mut rng = seed;
        let stamp = split_mix(&mut rng) << 20;
        let last = config.span.start..config.span.start;
        Self { config, rng, stamp, last }
    }

    fn below(&mut self, n: u64) -> u64 {
        split_mix(&mut self.rng) % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// The next operation, for a subject that is `size` bytes long now.
    pub fn next_op(&mut self, size: u64) -> Op {
        let odds = self.config.odds;
        let total = odds.iter().sum::<u32>() + self.config.set_len;
        let mut draw = self.below(u64::from(total)) as u32;
        let kind = odds.iter().position(|odd| {
            let hit = draw < *odd;
            draw = draw.saturating_sub(*odd);
            hit
        });
        match kind {
            Some(0) => {
                let flags = self.read_flags();
                let (offset, len) = self.place(size, flags, self.config.span.end);
                Op::Read { offset, len, flags }
            }
            Some(1) => {
                let flags = self.write_flags(size);
                let (offset, len) = self.place(size, flags, self.config.span.end);
                self.stamp += 1;
                Op::Write { offset, len, flags, stamp: self.stamp }
            }
            Some(k @ (2 | 3)) => {
                let end = size.min(self.config.span.end);
                let (offset, len) = self.place(size, IoFlags::empty(), end);
                if k == 2 { Op::Trim { offset, len } } else { Op::Zero { offset, len } }
            }
            Some(4) => Op::Sync,
            Some(5) => Op::DropCaches,
            Some(_) => Op::Reopen,
            None => Op::SetLen { size: self.new_size(size) },
        }
    }

    /// A size near the present one, at a border of a folio, or anywhere.
    fn new_size(&mut self, size: u64) -> u64 {
        let (end, block) = (self.config.span.end, self.config.block);
        let to = match self.below(8) {
            0..=2 => (size + self.below(6 * block)).saturating_sub(3 * block),
            3 => size / 4096 * 4096,
            4 => size + self.below(2 * self.config.folio),
            5 => self.last.start + self.below(self.last.end - self.last.start + 1),
            6 => self.below(end) / self.config.folio * self.config.folio,
            _ => self.below(end),
        };
        to.min(end)
    }

    fn read_flags(&mut self) -> IoFlags {
        let modes = [IoFlags::empty(), IoFlags::empty(), IoFlags::UNCACHED, IoFlags::DIRECT];
        let mut flags = modes[self.below(4) as usize];
        if self.one_in(20) {
            flags |= modes[self.below(4) as usize];
        }
        self.extra(&mut flags, IoFlags::NOWAIT, 6);
        self.extra(&mut flags, IoFlags::HIPRI, 12);
        self.extra(&mut flags, IoFlags::HELD_ABOVE, 10);
        self.finish_flags(flags)
    }

    fn write_flags(&mut self, size: u64) -> IoFlags {
        let modes = [
            IoFlags::empty(),
            IoFlags::empty(),
            IoFlags::UNCACHED,
            IoFlags::DIRECT,
            IoFlags::START_WRITEBACK,
        ];
        let mut flags = modes[self.below(5) as usize];
        if self.one_in(20) {
            flags |= modes[self.below(5) as usize];
        }
        self.extra(&mut flags, IoFlags::NOWAIT, 6);
        self.extra(&mut flags, IoFlags::HIPRI, 12);
        self.extra(&mut flags, IoFlags::HELD_ABOVE, 10);
        self.extra(&mut flags, IoFlags::DSYNC, 12);
        self.extra(&mut flags, IoFlags::SYNC, 16);
        if self.config.grows && size < self.config.span.end {
            self.extra(&mut flags, IoFlags::APPEND, 8);
        }
        self.finish_flags(flags)
    }

    fn extra(&mut self, flags: &mut IoFlags, flag: IoFlags, n: u64) {
        if self.one_in(n) {
            flags.insert(flag);
        }
    }

    fn finish_flags(&mut self, mut flags: IoFlags) -> IoFlags {
        if flags.contains(IoFlags::DIRECT) && self.one_in(3) {
            flags.insert(IoFlags::FALLBACK);
        }
        let flags = flags & self.config.flags;
        // FALLBACK means something with DIRECT only.
        if flags.contains(IoFlags::DIRECT) { flags } else { flags - IoFlags::FALLBACK }
    }

    fn length(&mut self) -> u64 {
        let (block, folio) = (self.config.block, self.config.folio);
        let len = match self.below(16) {
            0..=2 => 1 + self.below(64),
            3..=5 => 1 + self.below(3 * block),
            6..=8 => block * (1 + self.below(16)),
            9 | 10 => 4096 * (1 + self.below(4)),
            11 => folio,
            12 => folio - 1 + self.below(3),
            13 => 4096,
            _ => 1 + self.below(self.config.len_max),
        };
        if self.one_in(200) { 0 } else { len.min(self.config.len_max) }
    }

    fn start(&mut self, size: u64, end: u64) -> u64 {
        let first = self.config.span.start;
        let room = end.saturating_sub(first);
        let (block, folio) = (self.config.block, self.config.folio);
        match self.below(16) {
            0..=3 => first + self.below(room),
            4..=6 => (first + self.below(room)) / block * block,
            7 | 8 => (first + self.below(room)) / 4096 * 4096,
            9 | 10 => {
                let border = (first + self.below(room)) / folio * folio;
                (border + self.below(4 * block)).saturating_sub(2 * block)
            }
            11 => (first + self.below(room)) / folio * folio,
            12 => (size + self.below(3 * block)).saturating_sub(2 * block),
            13 => self.last.start,
            _ => self.last.end,
        }
    }

    /// Where a request goes: mostly before `end`, sometimes across the end of the subject.
    fn place(&mut self, size: u64, flags: IoFlags, end: u64) -> (u64, u64) {
        let first = self.config.span.start;
        let whole_file = first == 0 && self.config.span.end >= size;
        let crossing = !self.config.grows && whole_file && self.one_in(24);
        let (mut offset, mut len) = (self.start(size, end), self.length());
        let align = self.config.direct_align;
        if flags.contains(IoFlags::DIRECT) && !self.one_in(6) {
            offset = offset / align * align;
            len = len.div_ceil(align) * align;
        }
        let limit = if crossing { size + 4 * align } else { end };
        if crossing {
            offset = (size + self.below(2 * align)).saturating_sub(align) / align * align;
            len = len.max(2 * align);
        }
        if offset < first || offset >= limit {
            offset = first;
        }
        len = len.min(limit.saturating_sub(offset));
        self.last = offset..offset + len;
        (offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_draws_same_operations_of_all_classes() {
        let draw = |seed| {
            let mut g = Generator::new(seed, Config::growing(1 << 20));
            (0..20_000).map(|i| g.next_op(i * 50)).collect::<Vec<_>>()
        };
        let ops = draw(3);
        assert_eq!(ops, draw(3));
        assert_ne!(ops, draw(4));
        let has = |what: &dyn Fn(&Op) -> bool| assert!(ops.iter().filter(|o| what(o)).count() > 50);
        let flagged = |flag: IoFlags| {
            move |o: &Op| {
                matches!(o, Op::Read { flags, .. } | Op::Write { flags, .. }
                if flags.contains(flag))
            }
        };
        for flag in IoFlags::all().iter() {
            has(&flagged(flag));
        }
        has(&flagged(IoFlags::DIRECT | IoFlags::DSYNC));
        has(&flagged(IoFlags::DIRECT | IoFlags::UNCACHED));
        has(&|o| o.range().is_some_and(|r| r.start % 512 != 0 && r.end % 512 != 0));
        has(&|o| o.range().is_some_and(|r| r.start % 65536 == 0 && r.end == r.start + 65536));
        has(&|o| o.range().is_some_and(|r| r.start % 65536 != 0 && r.start >> 16 != r.end >> 16));
        has(&|o| *o == Op::Reopen);
        assert!(ops.iter().filter_map(Op::range).all(|r| r.end <= 1 << 20));
    }

    #[test]
    fn fixed_subject_gets_requests_past_end_within_span() {
        let mut g = Generator::new(1, Config::fixed(1 << 20));
        let past = (0..5000).filter_map(|_| g.next_op(1 << 20).range()).filter(|r| r.end > 1 << 20);
        assert!(past.count() > 20);
        let span = (100 << 10)..(300 << 10);
        let mut g = Generator::new(1, Config { span: span.clone(), ..Config::fixed(1 << 20) });
        for _ in 0..5000 {
            if let Some(r) = g.next_op(1 << 20).range() {
                assert!(r.start >= span.start && r.end <= span.end, "{r:?}");
            }
        }
    }

    /// Bytes follow from stamp and offset alone (O1).
    #[test]
    fn fill_depends_on_the_place_only() {
        let (mut a, mut b) = ([0; 100], [0; 50]);
        fill(7, 1000, &mut a);
        fill(7, 1033, &mut b);
        assert_eq!(a[33..83], b);
        assert!(a.iter().all(|x| *x != 0));
    }
}
