//! The history of one file's content: which operation changed which bytes, from when to when.
//!
//! Each change puts a pattern of its own over its range ([`stamp`]), so a byte names the change
//! that wrote it. A clock counts the begins and ends of operations. A change takes effect at one
//! instant per block, after its begin. So a truncate may take effect between two blocks of a
//! write, and the later ones make the file longer again. An acknowledged change took effect before
//! its end. A change that failed or was dropped at time `latest` takes effect or not, for each
//! block, and perhaps later. It cannot take effect any more once another change of the block, which
//! began after `latest`, has been acknowledged.
//!
//! Invariants: history.C1 a read shows each block as it was at one instant of the read.
//! history.C2 after a crash each block is as it was at one instant that is not before the newest
//! sync of the file that was acknowledged. history.C3 a size that is found is one that some
//! order of the changes explains. history.C4 zeros below the size are zeros that a change wrote,
//! or a gap that a change left.
//!
//! No locks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// No time: later than every other.
pub const NEVER: u64 = u64::MAX;
/// The time at which the initial content of files was written.
pub const FIRST: u64 = 1;
/// The pattern of a range that becomes zeros.
pub const ZEROS: u8 = 0;

/// The byte that change `id` puts at `offset`.
#[inline]
pub fn stamp(id: u8, offset: u64) -> u8 {
    match offset % 16 {
        _ if id == ZEROS => 0,
        15 => ((offset / 16) ^ (offset / 4096)) as u8,
        _ => id,
    }
}

/// Fills `bytes`, which lie at `offset`, with the pattern of a change.
pub fn fill(id: u8, offset: u64, bytes: &mut [u8]) {
    for (at, byte) in (offset..).zip(bytes) {
        *byte = stamp(id, at);
    }
}

/// How a change moves the end of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// At least to the end of its range.
    Write,
    /// At least to the end of its range, which begins at the end of file.
    Append,
    /// Not at all.
    Zero,
    /// To the begin of its range.
    Truncate,
}

/// One change of a file.
#[derive(Debug, Clone)]
pub struct Change {
    /// Its pattern.
    pub id: u8,
    /// What it is.
    pub kind: Kind,
    /// Bytes; an append does not know its own until it ends.
    pub range: Range<u64>,
    /// Bytes that an append adds.
    pub len: u64,
    /// Begin.
    pub begin: u64,
    /// When the change has taken effect for certain: when it was acknowledged, else [`NEVER`].
    pub end: u64,
    /// The change takes no effect after the end of one of the same block that began after this.
    pub latest: u64,
    /// The acknowledgement of the change says that its bytes are durable.
    pub durable: bool,
    /// It bypasses the cache.
    pub is_direct: bool,
    /// By block: when a read has shown it, before its end.
    pub shown: BTreeMap<u64, u64>,
    /// Content that an earlier life has left, instead of a pattern.
    pub content: Option<Arc<Vec<u8>>>,
}

impl Change {
    /// A change that begins.
    pub fn begun(id: u8, kind: Kind, range: Range<u64>, begin: u64) -> Self {
        let len = range.end.saturating_sub(range.start);
        let (end, latest, shown) = (NEVER, NEVER, BTreeMap::new());
        Self {
            id,
            kind,
            range,
            len,
            begin,
            end,
            latest,
            shown,
            durable: false,
            is_direct: false,
            content: None,
        }
    }

    fn covers(&self, atom: &Range<u64>) -> bool {
        self.range.start <= atom.start && atom.end <= self.range.end
    }

    fn meets(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    fn is_placed(&self) -> bool {
        self.kind != Kind::Append || self.range.end != NEVER
    }

    /// The byte that it puts at `offset`. An append puts its id there: it learns its place later.
    fn byte(&self, offset: u64) -> u8 {
        match &self.content {
            Some(content) => content.get(offset as usize).copied().unwrap_or(ZEROS),
            None if self.kind == Kind::Append => self.id,
            None => stamp(self.id, offset),
        }
    }

    fn grows(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Append)
    }

    /// When the change has surely taken effect in a block: at its end, or when a read has shown it.
    fn effective(&self, block: u64) -> u64 {
        self.shown.get(&block).map_or(self.end, |shown| self.end.min(*shown))
    }
}

/// The instants between which a block or the size may have had the state that was found.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
    /// After a crash: a change that a read has shown does not count as done, a durable one does.
    pub crashed: bool,
}

/// All changes of one file.
#[derive(Debug, Clone, Default)]
pub struct FileHistory {
    /// In the order of their begins.
    pub changes: Vec<Change>,
}

impl FileHistory {
    /// A file that has `size` bytes with the pattern `id`, durable from the start.
    pub fn new(id: u8, size: u64) -> Self {
        let mut history = Self::default();
        if size > 0 {
            let first = Change::begun(id, Kind::Write, 0..size, FIRST);
            history.changes.push(Change { end: FIRST, latest: FIRST, durable: true, ..first });
        }
        history
    }

    /// A file that has this content, durable from the start.
    pub fn of(id: u8, content: Arc<Vec<u8>>) -> Self {
        let mut history = Self::new(id, content.len() as u64);
        history.changes.iter_mut().for_each(|first| first.content = Some(content.clone()));
        history
    }

    /// The least and the largest size that the file may have had in a span (C3).
    pub fn sizes(&self, span: Span) -> (u64, u64) {
        let Span { from, to, crashed } = span;
        let first = Change { end: 0, latest: 0, ..Change::begun(0, Kind::Truncate, 0..NEVER, 0) };
        let sets = || {
            let sets = self.changes.iter().filter(|c| c.kind == Kind::Truncate && c.begin < to);
            std::iter::once(&first).chain(sets)
        };
        let surely = |c: &Change| c.end < from || crashed && c.durable && c.end < to;
        let floating: u64 = self.changes.iter().filter(|c| !c.is_placed()).map(|c| c.len).sum();
        let (mut least, mut most) = (NEVER, 0);
        for set in sets() {
            let is_undone = |by: &&Change| by.begin > set.latest && surely(by);
            if sets().any(|by| is_undone(&by)) {
                continue;
            }
            let grows = || self.changes.iter().filter(|c| c.grows() && c.is_placed());
            let after = grows().filter(|c| c.begin > set.latest && surely(c));
            let perhaps = grows().filter(|c| c.latest > set.begin && c.begin < to);
            let size = set.range.start;
            least = least.min(after.map(|c| c.range.end).max().unwrap_or(0).max(size));
            most = most.max(perhaps.map(|c| c.range.end).max().unwrap_or(0).max(size));
        }
        // An append of unknown place may be at any end of file that the file may have had.
        (least, most + floating)
    }

    /// Whether the size is one that some order explains.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_size(&self, size: u64, span: Span) -> Result<(), String> {
        let (least, most) = self.sizes(span);
        match (least..=most).contains(&size) {
            true => Ok(()),
            false => {
                let story = self.story(&(0..NEVER), |c| c.kind != Kind::Zero);
                Err(format!("{size} bytes, may be {least} to {most} in {span:?}\n{story}"))
            }
        }
    }

    /// Whether a read of `asked` bytes shows a state of the span, and ends where the file may have
    /// ended.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_read(
        &self,
        (at, asked): (u64, u64),
        bytes: &[u8],
        block: u64,
        span: Span,
    ) -> Result<(), String> {
        let ((least, most), end) = (self.sizes(span), at + bytes.len() as u64);
        if end < least.min(at + asked) || end > most && !bytes.is_empty() {
            let story = self.story(&(0..NEVER), |c| c.kind != Kind::Zero);
            let got = bytes.len();
            return Err(format!(
                "{got} of {asked} bytes at {at}; the size is {least} to {most} in {span:?}\n{story}"
            ));
        }
        self.check(at, bytes, block, span)
    }

    /// Whether each block of these bytes is as it was at an instant of the span (C1, C2, C4).
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, offset: u64, bytes: &[u8], block: u64, span: Span) -> Result<(), String> {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let upto = end.min(at / block * block + block);
            let part = &bytes[(at - offset) as usize..(upto - offset) as usize];
            self.check_block(at..upto, part, block, span)?;
            at = upto;
        }
        Ok(())
    }

    /// As [`FileHistory::check`] from the begin of the file on, for the blocks that `readable`
    /// names by their numbers.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_where(
        &self,
        bytes: &[u8],
        block: u64,
        span: Span,
        readable: impl Fn(u64) -> bool,
    ) -> Result<(), String> {
        let parts = (0..).zip(bytes.chunks(block as usize));
        parts
            .filter(|(number, _)| readable(*number))
            .try_for_each(|(number, part)| self.check(number * block, part, block, span))
    }

    fn check_block(
        &self,
        range: Range<u64>,
        bytes: &[u8],
        block: u64,
        span: Span,
    ) -> Result<(), String> {
        let mine: Vec<&Change> =
            self.changes.iter().filter(|c| c.begin < span.to && c.meets(&range)).collect();
        let instants: Vec<u64> = std::iter::once(span.from.max(FIRST + 1))
            .chain(self.changes.iter().map(|c| c.begin + 1))
            .filter(|at| (span.from.max(FIRST + 1)..=span.to).contains(at))
            .collect();
        let mut borders = Vec::new();
        for id in mine.iter().filter(|c| !c.is_placed()).map(|c| c.id) {
            // Borders at which an append of unknown place may begin or end.
            let differ = bytes.windows(2).zip(range.start + 1..);
            borders.extend(differ.filter(|(b, _)| (b[0] == id) != (b[1] == id)).map(|(_, at)| at));
        }
        let atoms = atoms(&mine, &range, borders);
        // The changes that hold the bytes of an atom; `None`: nothing was ever written there.
        let held: Vec<Vec<Option<&Change>>> = atoms
            .iter()
            .map(|atom| {
                let (start, end) = (atom.start - range.start, atom.end - range.start);
                let part = &bytes[start as usize..end as usize];
                let says = |c: &Change| (atom.start..).zip(part).all(|(at, b)| *b == c.byte(at));
                let by = mine.iter().filter(|c| c.covers(atom) && says(c)).map(|c| Some(*c));
                by.chain(part.iter().all(|b| *b == ZEROS).then_some(None)).collect()
            })
            .collect();
        let fits = |instant: u64| {
            atoms.iter().zip(&held).all(|(atom, held)| {
                held.iter().any(|by| self.may_be(*by, atom, &mine, (instant, block), span))
            })
        };
        if instants.iter().any(|at| fits(*at)) {
            return Ok(());
        }
        let shown: Vec<String> = atoms
            .iter()
            .zip(&held)
            .map(|(atom, held)| {
                let byte = bytes[(atom.start - range.start) as usize];
                let by: Vec<u8> = held.iter().map(|by| by.map_or(0, |c| c.id)).collect();
                format!("{atom:?} begins with {byte:#x}, of {by:?}")
            })
            .collect();
        let story = self.story(&range, |c| c.begin < span.to);
        Err(format!(
            "block {range:?} is as at no instant of {span:?}: {}\n{story}",
            shown.join("; ")
        ))
    }

    /// Whether an atom may hold the content that the change `by` left there, at an instant.
    fn may_be(
        &self,
        by: Option<&Change>,
        atom: &Range<u64>,
        mine: &[&Change],
        (instant, block): (u64, u64),
        span: Span,
    ) -> bool {
        if by.is_some_and(|by| by.begin >= instant) {
            return false;
        }
        let latest = by.map_or(0, |by| by.latest);
        let number = atom.start / block;
        let is_over = |c: &Change| match span.crashed {
            true => c.end < instant || c.durable && c.end < span.to,
            false => c.effective(number) < instant,
        };
        // An append that never ended has no known place, so it counts as covering nothing.
        let later =
            |c: &&&Change| c.is_placed() && c.covers(atom) && c.begin > latest && is_over(c);
        if mine.iter().any(|c| later(&c)) {
            return false;
        }
        // C4: a gap is left by a change that lies behind it, or moves the end of file past it; or
        // by the later blocks of a write, if a truncate takes effect between its blocks.
        let is_gap = by.is_none_or(|by| by.kind == Kind::Truncate);
        let (since, block_end) = (by.map_or(0, |by| by.begin), (number + 1) * block);
        let leaves = |c: &Change| {
            let is_behind =
                !matches!(c.kind, Kind::Append | Kind::Zero) && c.range.start >= atom.end;
            let is_cut = c.grows()
                && c.is_placed()
                && c.range.end > block_end.max(c.range.start / block * block + block)
                && by.is_some_and(|by| by.latest > c.begin);
            (is_behind || is_cut) && c.begin < instant && c.latest > since
        };
        !is_gap || self.changes.iter().any(leaves)
    }

    /// Notes the end of a read: each change that it has shown took effect before.
    pub fn note_read(&mut self, offset: u64, bytes: &[u8], block: u64, now: u64) {
        let end = offset + bytes.len() as u64;
        for change in self.changes.iter_mut().filter(|c| c.id != ZEROS && c.end > now) {
            let (from, to) = (change.range.start.max(offset), change.range.end.min(end));
            for number in from / block..to.div_ceil(block) {
                let at = (number * block).max(from);
                let upto = (number * block + block).min(to);
                let mut bytes = (at..upto).map(|at| (at, bytes[(at - offset) as usize]));
                let plain = bytes.find(|(at, _)| at % 16 != 15);
                if plain.is_some_and(|(_, byte)| byte == change.id) {
                    change.shown.entry(number).or_insert(now);
                }
            }
        }
    }

    /// Checks an append that has ended: no other append has its place.
    ///
    /// # Errors
    /// Which one has.
    pub fn check_append(&self, at: usize) -> Result<(), String> {
        let new = &self.changes[at];
        let cut = |c: &&Change| c.kind == Kind::Truncate;
        for (n, old) in self.changes.iter().enumerate() {
            let taken = n != at
                && old.kind == Kind::Append
                && old.end != NEVER
                && old.is_placed()
                && old.meets(&new.range);
            let since = old.begin.min(new.begin);
            let is_cut = self.changes.iter().filter(cut).any(|c| c.latest > since);
            if taken && !is_cut {
                return Err(format!("two appends have one place: {old:?} and {new:?}"));
            }
        }
        Ok(())
    }

    fn story(&self, range: &Range<u64>, asked: impl Fn(&Change) -> bool) -> String {
        let time = |at: u64| if at == NEVER { "-".into() } else { at.to_string() };
        let line = |c: &Change| {
            let Change { id, kind, range, begin, .. } = c;
            let (end, latest) = (time(c.end), time(c.latest));
            let durable = if c.durable { " durable" } else { "" };
            format!("  {id}: {kind:?} {range:?} from {begin} to {end}, latest {latest}{durable}")
        };
        let mine = self.changes.iter().filter(|c| c.meets(range) && asked(c));
        mine.map(line).collect::<Vec<_>>().join("\n")
    }
}

/// The atoms of a range: its parts between the borders of changes, and between those in `more`.
fn atoms(changes: &[&Change], range: &Range<u64>, more: Vec<u64>) -> Vec<Range<u64>> {
    let mut borders: Vec<u64> = changes
        .iter()
        .flat_map(|c| [c.range.start, c.range.end])
        .chain([range.start, range.end])
        .chain(more)
        .map(|at| at.clamp(range.start, range.end))
        .collect();
    borders.sort_unstable();
    borders.dedup();
    borders.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

#[cfg(test)]
mod tests;
