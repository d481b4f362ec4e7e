//! Looks at all of a tree: both copies of every node, and everything that must hold between them.
//!
//! Invariants: B81 it ends: no place is looked at twice, no path is longer than the root's level. B82 a
//! node of which one copy is sound is gone into, whatever the other is like. B83 what cannot be read is
//! named with its places and the keys that are lost with it; the rest is looked at all the same. B84
//! nothing is written.
//!
//! In memory are one path of nodes and the places that were seen, about 50 bytes for each node.
//!
//! No locks.

use super::store::{StoredNode, both_bad};
use super::write::min_used_bytes;
use super::{Link, Tree};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use forebay_base::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Problems that are kept with their text; more are counted.
pub const MAX_PROBLEMS: usize = 1000;

/// Something is wrong.
#[derive(Debug, Clone)]
pub enum Problem {
    /// One copy is bad, the other one holds: nothing is lost.
    Copy(Place, Error),
    /// Neither copy of a node can be had: what lies between the keys is lost.
    Lost {
        /// Its places.
        places: [Place; 2],
        /// The lowest key that may be lost, in stored form.
        low: Vec<u8>,
        /// The lowest key above it; none: everything up to the last one.
        high: Option<Vec<u8>>,
        /// Why.
        error: Error,
    },
    /// Something refers to a place that another node, or the other copy, has already.
    Twice(Place),
    /// An item is none.
    Item([Place; 2], Error),
    /// A node uses less than it should (B15), bytes. Everything is there.
    Underfull([Place; 2], usize),
}

/// What a check met, for whoever wants to compare it with something else.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A node, and whether it is a leaf.
    Node([Place; 2], u8),
    /// An item.
    Item(Key, Item<'a>),
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// Nodes at each level, from the leaves up.
    pub nodes: Vec<u64>,
    /// Items.
    pub items: u64,
    /// Bytes of items in leaves, with their overhead.
    pub used_bytes: u64,
    /// What is wrong, the first [`MAX_PROBLEMS`].
    pub problems: Vec<Problem>,
    /// Problems that are not in the list.
    pub more_problems: u64,
}

impl Report {
    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Everything is there and can be read.
    pub fn is_complete(&self) -> bool {
        let harmless = |p: &Problem| matches!(p, Problem::Copy(..) | Problem::Underfull(..));
        self.more_problems == 0 && self.problems.iter().all(harmless)
    }

    fn add(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        } else {
            self.more_problems += 1;
        }
    }
}

struct Frame {
    link: Link,
    node: Arc<StoredNode>,
    next: usize,
}

impl Tree {
    /// Checks the tree below `root` and hands what it meets to `seen`. Places that are in `places` already
    /// belong to somebody else; those of this tree are added.
    ///
    /// Fails only for a root that cannot be one.
    pub async fn check(
        &self,
        root: &TreeRoot,
        places: &mut BTreeSet<Place>,
        seen: &mut (dyn FnMut(Seen<'_>) + Send),
    ) -> Result<Report> {
        let mut report = Report::default();
        let mut path: Vec<Frame> = Vec::new();
        let mut next = Link::root(root)?;
        report.nodes.resize(next.map_or(0, |link| usize::from(link.level) + 1), 0);
        loop {
            if let Some(link) = next.take()
                && let Some(node) = self.check_node(&link, places, &mut report).await
            {
                seen(Seen::Node(link.pointer.places, link.level));
                if link.level == 0 {
                    self.check_items(&node, &mut report, seen);
                } else {
                    path.push(Frame { link, node, next: 0 });
                }
            }
            let Some(frame) = path.last_mut() else { return Ok(report) };
            let n = frame.next;
            frame.next += 1;
            match frame.link.child(&frame.node.node(), n, &self.geometry) {
                Ok(Some(child)) => next = Some(child),
                Ok(None) => drop(path.pop()),
                Err(e) => report.add(Problem::Item(frame.link.pointer.places, e)),
            }
        }
    }

    /// The node, from the copy that is sound.
    async fn check_node(
        &self,
        link: &Link,
        places: &mut BTreeSet<Place>,
        report: &mut Report,
    ) -> Option<Arc<StoredNode>> {
        for place in link.pointer.places {
            if self.overlaps(places, place) {
                report.add(Problem::Twice(place));
                return None;
            }
            places.insert(place);
        }
        let copies = [self.load_copy(link, 0).await, self.load_copy(link, 1).await];
        let node = match copies {
            [Ok(node), Ok(_)] => node,
            [Ok(node), Err(e)] => {
                report.add(Problem::Copy(link.pointer.places[1], e));
                node
            }
            [Err(e), Ok(node)] => {
                report.add(Problem::Copy(link.pointer.places[0], e));
                node
            }
            [Err(first), Err(second)] => {
                let high = link.high.map(|key| key.as_slice().to_vec());
                let (low, error) = (link.low.as_slice().to_vec(), both_bad(link, &first, &second));
                report.add(Problem::Lost { places: link.pointer.places, low, high, error });
                return None;
            }
        };
        let used = node.node().used_bytes();
        if !link.is_root && used < min_used_bytes(&self.geometry) {
            report.add(Problem::Underfull(link.pointer.places, used));
        }
        if let Some(count) = report.nodes.get_mut(usize::from(link.level)) {
            *count += 1;
        }
        Some(node)
    }

    fn overlaps(&self, places: &BTreeSet<Place>, place: Place) -> bool {
        let less_one = self.geometry.node_bytes() as u32 - 1;
        let low = Place::new(place.segment, place.offset.saturating_sub(less_one));
        let high = Place::new(place.segment, place.offset.saturating_add(less_one));
        places.range(low..=high).next().is_some()
    }

    fn check_items(
        &self,
        leaf: &StoredNode,
        report: &mut Report,
        seen: &mut (dyn FnMut(Seen<'_>) + Send),
    ) {
        let node = leaf.node();
        report.used_bytes += node.used_bytes() as u64;
        for n in 0..node.len() {
            match node.item(n, &self.geometry) {
                Ok(Some((key, item))) => {
                    report.items += 1;
                    seen(Seen::Item(key, item));
                }
                Ok(None) => {}
                Err(e) => report.add(Problem::Item(leaf.places(), e)),
            }
        }
    }
}
