//! Checks a complete tree: both copies of every node, and all invariants between nodes.
//!
//! Invariants: B81 it ends: no path is longer than the root's level. The pointers of a level have
//! ranges of keys that do not overlap, so a node with two keys is valid below one pointer only
//! (btree.B12), whatever places the pointers name. B82 a node with one valid copy is visited,
//! whatever the other copy is like. B83 an unreadable node is reported with its places and the
//! range of keys that is lost with it; the rest of the tree is checked all the same. B84 it writes
//! nothing. B85 in memory are one path of nodes, and a bounded number of problems.
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
use std::sync::Arc;

/// Most problems that are kept with their text; further ones are only counted.
pub const MAX_PROBLEMS: usize = 1000;

/// A problem that was found.
#[derive(Debug, Clone)]
pub enum Problem {
    /// One copy is bad, the other one is valid: no data is lost.
    Copy(Place, Error),
    /// Neither copy of a node is valid: the items between these keys are lost.
    Lost {
        /// The places of the node.
        places: [Place; 2],
        /// The lowest key that may be lost, in stored form.
        low: Vec<u8>,
        /// The lowest key above the lost range; `None`: no upper bound.
        high: Option<Vec<u8>>,
        /// Why.
        error: Error,
    },
    /// An item is invalid.
    Item([Place; 2], Error),
    /// A node uses less space than it must (btree.B15), bytes. No data is lost.
    Underfull([Place; 2], usize),
}

impl Problem {
    /// Whether nothing is lost.
    fn is_harmless(&self) -> bool {
        matches!(self, Self::Copy(..) | Self::Underfull(..))
    }
}

/// What the check visits, for callers that compare it with other state.
#[derive(Debug)]
pub enum Seen<'a> {
    /// The places that a pointer names, before they are read.
    Pointer([Place; 2]),
    /// The places of a node that could be read, and its level.
    Node([Place; 2], u8),
    /// An item.
    Item(Key, Item<'a>),
}

/// Result of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// Nodes at each level, from the leaves up.
    pub nodes: Vec<u64>,
    /// Items.
    pub items: u64,
    /// Bytes of items in leaves, with their overhead.
    pub used_bytes: u64,
    /// The first [`MAX_PROBLEMS`] problems.
    pub problems: Vec<Problem>,
    /// Number of further problems with which nothing is lost.
    pub more_harmless: u64,
    /// Number of other further problems.
    pub more_problems: u64,
}

impl Report {
    /// Whether no problem was found.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Whether all items can be read.
    pub fn is_complete(&self) -> bool {
        self.more_problems == 0 && self.problems.iter().all(Problem::is_harmless)
    }

    fn add(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        } else if problem.is_harmless() {
            self.more_harmless += 1;
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
    /// Checks the tree below `root` and passes pointers, nodes and items to `seen`.
    ///
    /// Fails only for an invalid root.
    pub async fn check(
        &self,
        root: &TreeRoot,
        seen: &mut (dyn FnMut(Seen<'_>) + Send),
    ) -> Result<Report> {
        let mut report = Report::default();
        let mut path: Vec<Frame> = Vec::new();
        let mut next = Link::root(root)?;
        report.nodes.resize(next.map_or(0, |link| usize::from(link.level) + 1), 0);
        loop {
            if let Some(link) = next.take() {
                seen(Seen::Pointer(link.pointer.places));
                if let Some(node) = self.check_node(&link, &mut report).await {
                    seen(Seen::Node(link.pointer.places, link.level));
                    if link.level == 0 {
                        self.check_items(&node, &mut report, seen);
                    } else {
                        path.push(Frame { link, node, next: 0 });
                    }
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

    /// The node, from its valid copy.
    async fn check_node(&self, link: &Link, report: &mut Report) -> Option<Arc<StoredNode>> {
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
