//! Checks both trees, and what the places in them use: each block at most once, and as many bytes
//! of each segment as the usage table says.
//!
//! Invariants: E19 of the pointers and extents that share a block, all but the first one in the
//! order of the trees are found, each with one that it shares a block with. The first
//! [`MAX_PROBLEMS`] are reported, the others counted. E20 the uses of a
//! window of segments are in bit maps, one bit for each block. A volume whose segments do not fit
//! takes more passes over its trees. Segments behind the last one have no bit maps.
//!
//! No locks.

use super::report::{FindingKind, FsckOptions, FsckReport};
use super::stored::Stored;
use super::window::Window;
use crate::btree::check::{MAX_PROBLEMS, Report};
use crate::btree::{Problem, Seen};
use crate::checkpoint::root_of;
use crate::device::layout::Layout;
use crate::format::extent::Source;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::{Geometry, Place};
use crate::format::superblock::{FILES_TREE, Superblock, USAGE_TREE};
use crate::format::usage::Segment as Entry;
use crate::recover::open::usage_entries;
use crate::volume::Volume;
use forebay_base::Result;
use std::fmt;

/// What uses a place: an extent of this data id, or a node of this tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum User {
    Data(u64),
    Node(u64),
}

/// The use of a place by the `number`th extent or copy of a node in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub place: Place,
    pub bytes: u64,
    pub user: User,
    pub number: u64,
}

impl Use {
    fn shares_with(&self, other: &Self) -> bool {
        self.place.overlap(self.bytes, (other.place, other.bytes)).is_some()
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.user {
            User::Data(data_id) => write!(f, "data {data_id} at {:?}", self.place),
            User::Node(tree) => write!(f, "a node of tree {tree} at {:?}", self.place),
        }
    }
}

/// The places that a pointer or an extent uses. `next`: the number of the next use in the pass.
fn uses_of(
    tree: u64,
    seen: &Seen<'_>,
    node_bytes: u64,
    next: &mut u64,
) -> impl Iterator<Item = Use> {
    let found = match seen {
        Seen::Pointer(places) => places.map(|place| Some((place, node_bytes, User::Node(tree)))),
        Seen::Item(Key::Extent(data_id, _), Item::Extent(extent)) => match extent.source {
            Source::Run(place) => {
                let bytes = u64::from(extent.stored_bytes);
                [Some((place, bytes, User::Data(*data_id))), None]
            }
            Source::Inline(_) => [None; 2],
        },
        _ => [None; 2],
    };
    let number = *next;
    let found = found.into_iter().flatten().zip(number..);
    *next += found.clone().count() as u64;
    found.map(|((place, bytes, user), number)| Use { place, bytes, user, number })
}

/// A segment in the window.
struct Segment {
    live_bytes: u64,
    /// A set bit means that the block is used.
    used: Box<[u64]>,
}

/// What uses the blocks of a window of segments.
pub(super) struct Uses {
    geometry: Geometry,
    segments: u32,
    window: Window<u32, Segment>,
    /// The number of the next use in the pass.
    next: u64,
    /// Uses that share a block with an earlier one; the first [`MAX_PROBLEMS`].
    second: Vec<Use>,
    /// The number of further ones.
    more: u64,
    /// Uses of segments behind the last one in the pass.
    behind: u64,
}

impl Uses {
    pub fn new(geometry: Geometry, segments: u32, options: &FsckOptions) -> Self {
        let segment_bytes = 128 + geometry.blocks_per_segment() as usize / 8;
        let window = Window::new(0, options.map_bytes() / segment_bytes);
        let (second, more, behind) = (Vec::new(), 0, 0);
        Self { geometry, segments, window, next: 0, second, more, behind }
    }

    /// Goes on to the segments that did not fit, which takes another pass. False: there are none.
    pub fn next_window(&mut self) -> bool {
        let window = std::mem::replace(&mut self.window, Window::new(0, 1));
        let next = window.into_next();
        let is_more = next.is_some();
        next.into_iter().for_each(|next| {
            (self.window, self.next, self.behind) = (next, 0, 0);
        });
        is_more
    }

    /// Notes what a pass sees.
    pub fn see(&mut self, tree: u64, seen: &Seen<'_>) {
        let node_bytes = self.geometry.node_bytes() as u64;
        if let Seen::Node(places, _) = seen {
            places.iter().for_each(|place| self.add_live(*place, node_bytes));
        }
        let mut next = self.next;
        for this in uses_of(tree, seen, node_bytes, &mut next) {
            if let User::Data(_) = this.user {
                self.add_live(this.place, this.bytes);
            }
            self.add_use(this);
        }
        self.next = next;
    }

    fn segment(&mut self, segment: u32) -> Option<&mut Segment> {
        if segment >= self.segments {
            return None;
        }
        let words = self.geometry.blocks_per_segment().div_ceil(64) as usize;
        self.window.get(segment, || Segment { live_bytes: 0, used: vec![0; words].into() })
    }

    pub fn add_live(&mut self, place: Place, bytes: u64) {
        if let Some(segment) = self.segment(place.segment) {
            segment.live_bytes += bytes;
        }
    }

    pub fn add_use(&mut self, this: Use) {
        let shift = self.geometry.block_shift;
        self.behind += u64::from(this.place.segment >= self.segments);
        let Some(segment) = self.segment(this.place.segment) else { return };
        let (first, end) =
            (u64::from(this.place.offset), u64::from(this.place.offset) + this.bytes);
        let mut is_second = false;
        for block in first >> shift..(end + (1 << shift) - 1) >> shift {
            let Some(word) = segment.used.get_mut((block / 64) as usize) else { continue };
            is_second |= *word & 1 << (block % 64) != 0;
            *word |= 1 << (block % 64);
        }
        match is_second {
            true if self.second.len() < MAX_PROBLEMS => self.second.push(this),
            true => self.more += 1,
            false => {}
        }
    }

    /// The segments of the window whose live bytes differ from their entries.
    pub fn differing<'a>(
        &'a self,
        entries: &'a [Entry],
    ) -> impl Iterator<Item = (u32, Entry, u64)> {
        let all = (0u32..).zip(entries).filter(|(segment, _)| self.window.covers(*segment));
        let all = all.map(|(segment, entry)| {
            let found = self.window.found(segment).map_or(0, |found| found.live_bytes);
            (segment, *entry, found)
        });
        all.filter(|(_, entry, found)| u64::from(entry.live_bytes) != *found)
    }

    /// Reports the uses of segments that the volume does not have, after a pass.
    pub fn report_behind(&self, report: &mut FsckReport) {
        if self.behind > 0 {
            let text = format!("{} nodes and extents lie behind the last segment", self.behind);
            report.add(FindingKind::Tree, text);
        }
    }

    pub fn into_second(self) -> Second {
        let mut all: Vec<_> = self.second.into_iter().map(|this| (this, None)).collect();
        all.sort_unstable();
        let bytes_max = all.iter().map(|(this, _)| this.bytes).max().unwrap_or(0);
        Second { all, bytes_max, more: self.more }
    }
}

/// Uses that share a block with an earlier one, and the first other use that a pass has met.
pub(super) struct Second {
    /// In order of places.
    all: Vec<(Use, Option<Use>)>,
    /// The longest use.
    bytes_max: u64,
    more: u64,
}

impl Second {
    pub fn add_use(&mut self, other: Use) {
        let Place { segment, offset } = other.place;
        let low = u64::from(offset).saturating_sub(self.bytes_max) as u32;
        let from = self.all.partition_point(|(this, _)| this.place < Place::new(segment, low));
        let end = u64::from(offset) + other.bytes;
        let near = self.all[from..].iter_mut().take_while(|(this, _)| {
            this.place.segment == segment && u64::from(this.place.offset) < end
        });
        for (this, found) in near {
            if found.is_none() && this.number != other.number && this.shares_with(&other) {
                *found = Some(other);
            }
        }
    }

    /// `is_same`: all passes have read the same nodes, so the numbers of uses are the same.
    pub fn report(self, layout: &Layout, is_same: bool, report: &mut FsckReport) {
        for (this, other) in self.all {
            let (last, text) = match other.filter(|_| is_same) {
                Some(other) => {
                    let (first, last) = (this.min(other), this.max(other));
                    (last, format!("{first} and {last} overlap"))
                }
                None => (this, format!("{this} overlaps another use, which is not known")),
            };
            let finding = report.add(FindingKind::Tree, text);
            finding.offset = Some(layout.device_offset(last.place));
        }
        if self.more > 0 {
            let text = format!("{} more nodes and extents overlap others", self.more);
            report.add(FindingKind::Tree, text);
        }
    }
}

/// Checks both trees with all node copies, the blocks that they use, and the usage table. Returns
/// what the trees say about stored bytes; `None`: they could not be read completely.
pub(super) async fn check_trees(
    volume: &Volume,
    superblock: &Superblock,
    options: &FsckOptions,
    report: &mut FsckReport,
) -> Result<Option<Stored>> {
    let tree = &volume.0.tree;
    let layout = volume.0.layout;
    let roots = [root_of(superblock, FILES_TREE)?, root_of(superblock, USAGE_TREE)?];
    let mut uses = Uses::new(layout.geometry, layout.segments, options);
    let mut stored = Stored::new(options, volume.0.world.random());
    for root in &roots {
        let mut seen = |seen: Seen<'_>| {
            uses.see(root.tree, &seen);
            stored.see(&seen);
        };
        let found = tree.check(root, &mut seen).await?;
        report.nodes += found.nodes.iter().sum::<u64>();
        add_problems(&layout, root.tree, found, report);
    }
    stored.finish();
    let (first_nodes, mut is_same) = (report.nodes, true);
    let mut is_complete = report.is_complete();
    let entries = usage_entries(tree, superblock).await;
    let entries = entries.unwrap_or_else(|error| {
        report.add(FindingKind::Usage, error);
        Vec::new()
    });
    loop {
        if is_complete {
            add_usage(&layout, uses.differing(&entries), report);
        }
        if !uses.next_window() {
            break;
        }
        let mut nodes = 0;
        for root in &roots {
            let found = tree.check(root, &mut |seen| uses.see(root.tree, &seen)).await?;
            nodes += found.nodes.iter().sum::<u64>();
            if is_complete && !found.is_complete() {
                // The first pass could read it.
                is_complete = false;
                add_problems(&layout, root.tree, found, report);
            }
        }
        is_same &= nodes == first_nodes;
    }
    uses.report_behind(report);
    let mut second = uses.into_second();
    if !second.all.is_empty() {
        let (mut next, mut nodes) = (0, 0);
        let node_bytes = layout.geometry.node_bytes() as u64;
        for root in &roots {
            let mut seen = |seen: Seen<'_>| {
                let uses = uses_of(root.tree, &seen, node_bytes, &mut next);
                uses.for_each(|other| second.add_use(other));
            };
            nodes += tree.check(root, &mut seen).await?.nodes.iter().sum::<u64>();
        }
        second.report(&layout, is_same && nodes == first_nodes, report);
    }
    Ok(is_complete.then_some(stored))
}

fn add_problems(layout: &Layout, tree: u64, found: Report, report: &mut FsckReport) {
    let node_bytes = layout.geometry.node_bytes() as u64;
    for problem in found.problems {
        let (kind, at) = match &problem {
            Problem::Copy(at, _) => (FindingKind::Copy, *at),
            Problem::Underfull(at, _) => (FindingKind::Underfull, at[0]),
            Problem::Lost { places: at, .. } | Problem::Item(at, _) => (FindingKind::Tree, at[0]),
        };
        let finding = report.add(kind, format!("tree {tree}: {problem:?}"));
        (finding.offset, finding.bytes) = (Some(layout.device_offset(at)), Some(node_bytes));
    }
    let more = [(FindingKind::Copy, found.more_harmless), (FindingKind::Tree, found.more_problems)];
    for (kind, more) in more.into_iter().filter(|(_, more)| *more > 0) {
        report.add(kind, format!("tree {tree}: {more} more problems"));
    }
}

pub(super) fn add_usage(
    layout: &Layout,
    differing: impl Iterator<Item = (u32, Entry, u64)>,
    report: &mut FsckReport,
) {
    for (segment, entry, found) in differing {
        let text = format!("segment {segment}: {found} bytes are live, {entry:?}");
        let finding = report.add(FindingKind::Usage, text);
        finding.offset = Some(layout.device_offset(Place::new(segment, 0)));
        finding.figures = Some((u64::from(entry.live_bytes), found));
    }
}
