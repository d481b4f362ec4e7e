//! The ledger of space: the claims on free segments, and the one equation that says how many of
//! them a need may take.
//!
//! ```text
//!   free segments = nodes | recovery | log | cleaner | removals | accepted content | log content
//!                 | the rest
//! ```
//! The claims are met in this order. A need gets the rest, and the segments of claims that it may
//! use:
//!
//! | need      | uses                  | leaves nodes for                                     |
//! | --------- | --------------------- | ---------------------------------------------------- |
//! | New       | -                     | the next checkpoints, and removals                   |
//! | Overwrite | -                     | the next checkpoints, at least those of capacity.P25 |
//! | Urgent    | removals, log content | the next checkpoints                                 |
//! | Clean     | cleaner               | the next checkpoints                                 |
//!
//! A change that was admitted before, or without which the volume cannot continue, has no need: its
//! grant is counted and never refused. A grant is space of one user: its owner splits, joins and
//! ends it.
//!
//! Invariants: M17 the sums are those of all grants that have not ended. M18 a record of a
//! reservation takes log space from its grant first. The order of the claims gives the invariants
//! of [`crate::space`].
//!
//! No locks: the volume's state lock covers it.

mod grants;
#[cfg(test)]
mod model;

pub(crate) use self::grants::{Ask, Grant, Ledger};

use crate::space::Space;
use crate::space::nodes::NodeRoom;
use crate::space::stats::HeldBack;

/// The claim for an opening, the mark of a checkpoint, and a log that failed; segments.
const RECOVERY: u64 = 1;
/// The claim for records that make space; segments.
const REMOVALS: u64 = 1;
/// Segments that data never takes (space.P12).
pub(crate) const KEPT_SEGMENTS: u64 = RECOVERY + REMOVALS;
/// Number of checkpoint marks for which the log keeps space in addition to all grants: it takes two
/// checkpoints to free space.
const MARKS: u64 = 2;

/// Why the log leaves a segment that is not full (space.P26).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Behind the mark of a checkpoint, so that the segment becomes free.
    Mark,
    /// A write or a flush failed.
    Failed,
    /// The device takes writes, but not at this place (log.L17).
    BadPlace,
}

/// What needs space, and so which claims it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// New content, or a new name: it uses no claim.
    New,
    /// Content that was accepted before, or that replaces stored content (capacity.P25).
    Overwrite,
    /// A record that makes space, or makes accepted content durable.
    Urgent,
    /// A copy of the cleaner.
    Clean,
}

/// A claim on free segments. Claims are met in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Nodes of checkpoints (space.P13, space.P24).
    Nodes,
    /// An opening, the mark of a checkpoint, and a log that failed (space.P12).
    Recovery,
    /// The grants of the log (space.P11).
    Log,
    /// The cleaner (space.P15).
    Cleaner,
    /// Records that make space, so that the log continues while two checkpoints shorten it
    /// (space.P12).
    Removals,
    /// Accepted content (space.P14), and the last blocks of truncated files (admission.P23).
    Accepted,
    /// An open log segment with content is not free after the log has left it. This one is kept
    /// instead.
    LogContent,
}

use Claim::{Accepted, Cleaner, Log, LogContent, Nodes, Recovery, Removals};

const CLAIMS: [Claim; 7] = [Nodes, Recovery, Log, Cleaner, Removals, Accepted, LogContent];

impl Need {
    /// The claims whose segments this need may use.
    fn uses(self) -> &'static [Claim] {
        match self {
            Self::New | Self::Overwrite => &[],
            Self::Urgent => &[Removals, LogContent],
            Self::Clean => &[Cleaner],
        }
    }
}

/// The claims that [`Space`] does not count itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OtherNeeds {
    /// Bytes of segments that accepted content will take (space.P14).
    pub accepted: u64,
    /// Bytes for the last blocks of files that are truncated (admission.P23).
    pub edges: u64,
    /// Bytes of segments that were given out and are not in use. Accepted content may use them.
    pub held: u64,
    /// Pairs of nodes that checkpoints may need (space.P13).
    pub pairs: u64,
    /// Pairs of nodes that the next of these checkpoints may need.
    pub next_pairs: u64,
    /// Pairs of nodes that new content leaves to operations that make space (space.P24).
    pub spare: u64,
    /// Pairs that content always leaves to checkpoints, whether they need them now or not
    /// (capacity.P25).
    pub least: u64,
}

/// Free segments that data leaves alone, apart from those for accepted content.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Kept {
    /// For new content.
    pub new: u64,
    /// For accepted content and overwrites.
    pub accepted: u64,
}

/// The claims at a moment, including those of what is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Balance {
    free: u64,
    segment_bytes: u64,
    /// Bytes of the log that a segment takes.
    log_bytes: u64,
    nodes: NodeRoom,
    /// Bytes of all grants of the log, with [`MARKS`] marks.
    log: u64,
    /// Bytes that the open log segment can take in any case.
    log_left: u64,
    /// Bytes of open and held runs, which accepted content may use.
    open: u64,
    cleaner: u64,
    log_has_content: bool,
    others: OtherNeeds,
}

impl Space {
    /// The claims, if `log` more bytes of the log are granted.
    pub fn balance(&self, log: u64, others: OtherNeeds) -> Balance {
        let segment_bytes = self.layout.segment_bytes();
        Balance {
            free: self.segments.free(),
            segment_bytes,
            log_bytes: self.layout.log_bytes(),
            nodes: self.nodes.room(),
            log: self.ledger.log_bytes() + log + MARKS * self.layout.cost(0, 0),
            log_left: self.log_left,
            open: self.data_left() + others.held,
            // One segment into which it can move all live data of another one, or those that a pass
            // counts on.
            cleaner: u64::from(self.clean_left() < segment_bytes).max(self.ledger.clean),
            log_has_content: self.ledger.log_has_content,
            others,
        }
    }
}

impl Balance {
    /// The segments of a claim, as `need` has to leave them if it takes space for `own`.
    fn claim(&self, claim: Claim, need: Need, own: Option<Claim>) -> u64 {
        match claim {
            Nodes => {
                let OtherNeeds { pairs, spare, least, .. } = self.others;
                self.nodes.segments_for(match need {
                    Need::New => pairs + spare,
                    Need::Overwrite => pairs.max(least),
                    Need::Urgent | Need::Clean => pairs,
                })
            }
            Recovery => RECOVERY,
            Log => self.log.saturating_sub(self.log_left).div_ceil(self.log_bytes),
            Cleaner => self.cleaner,
            Removals if own == Some(Log) => REMOVALS,
            // The grants of the log may lie in it.
            Removals => REMOVALS.saturating_sub(self.claim(Log, need, own)),
            Accepted => self.content(need).saturating_sub(self.open).div_ceil(self.segment_bytes),
            LogContent => u64::from(self.log_has_content),
        }
    }

    /// The equation: the segments that `need` may take for its claim `own`.
    fn segments(&self, need: Need, own: Option<Claim>) -> u64 {
        let (mut free, mut usable) = (self.free, 0);
        for claim in CLAIMS.into_iter().filter(|claim| Some(*claim) != own) {
            let met = self.claim(claim, need, own).min(free);
            free -= met;
            usable += if need.uses().contains(&claim) { met } else { 0 };
        }
        free + usable
    }

    /// Bytes of accepted content, and of what `need` leaves to truncates.
    fn content(&self, need: Need) -> u64 {
        let edges = if need == Need::New { self.others.edges } else { 0 };
        self.others.accepted + edges
    }

    /// Bytes of segments that `need` may fill with content, accepted content included.
    fn content_room(&self, need: Need) -> u64 {
        self.open + self.segments(need, Some(Accepted)) * self.segment_bytes
    }

    /// Bytes that `need` may fill with content in addition to accepted content.
    pub fn content_left(&self, need: Need) -> u64 {
        self.content_room(need).saturating_sub(self.content(need))
    }

    /// Whether `need` gets what it asks for, which these claims include.
    pub fn fits(&self, need: Need, ask: &Ask) -> bool {
        let has_content = ask.content == 0 || self.content(need) <= self.content_room(need);
        let has_log = ask.log == 0 || self.has_log(need, 0);
        self.has_nodes(need) && has_content && has_log
    }

    /// Whether the log takes all its grants (space.P11), and `more` bytes.
    pub fn has_log(&self, need: Need, more: u64) -> bool {
        self.log + more <= self.log_left + self.segments(need, Some(Log)) * self.log_bytes
    }

    /// Whether the log can leave its segment, and the free segments still take the nodes of the
    /// next checkpoints and all grants of the log (space.P26). `given_back`: segments that become
    /// free.
    pub fn can_leave_log(&self, given_back: u64, why: Leave) -> bool {
        let nodes = match why {
            Leave::Mark => self.claim(Nodes, Need::Urgent, Some(Log)),
            Leave::Failed => self.claim(Nodes, Need::Urgent, Some(Log)) + RECOVERY,
            Leave::BadPlace => self.nodes.segments_for(self.others.next_pairs),
        };
        let log = self.log.div_ceil(self.log_bytes);
        // As many as become free.
        let is_even = why == Leave::BadPlace && given_back >= log;
        is_even || self.free + given_back >= nodes + log
    }

    /// Whether checkpoints will have their nodes. Otherwise no more changes are accepted, even if
    /// open segments have space for them (space.P24).
    fn has_nodes(&self, need: Need) -> bool {
        let claims: &[Claim] = match need {
            Need::New => &[Nodes, Recovery, Removals, Accepted, LogContent],
            Need::Urgent => &[Nodes],
            Need::Overwrite | Need::Clean => &[],
        };
        self.free >= claims.iter().map(|claim| self.claim(*claim, need, Some(Log))).sum()
    }

    /// The segments that the cleaner may fill. It may also use those for nodes of operations that
    /// make space (space.P24), because it makes space.
    pub fn clean_segments(&self) -> u64 {
        self.segments(Need::Clean, None)
    }

    /// The free segments that are kept from data.
    pub fn kept(&self) -> Kept {
        let sum = |need| {
            let claims = CLAIMS.into_iter().filter(|claim| *claim != Accepted);
            claims.map(|claim| self.claim(claim, need, Some(Accepted))).sum()
        };
        Kept { new: sum(Need::New), accepted: sum(Need::Overwrite) }
    }

    /// What is kept from new content, in bytes, without what is kept for overwrites.
    pub fn held_back(&self) -> HeldBack {
        let bytes = |claims: &[Claim]| {
            let segments = claims.iter().map(|claim| self.claim(*claim, Need::New, Some(Accepted)));
            segments.sum::<u64>() * self.segment_bytes
        };
        HeldBack {
            recovery_bytes: bytes(&[Recovery]),
            log_bytes: bytes(&[Log, Removals, LogContent]),
            checkpoint_bytes: bytes(&[Nodes]),
            cleaner_bytes: bytes(&[Cleaner]),
            accepted_bytes: self.others.accepted,
            truncate_bytes: self.others.edges,
            overwrite_bytes: 0,
        }
    }
}
