//! The ledger against a reference: random grants, and a volume that uses what it was granted. After
//! each step all claims are counted from scratch, and free segments are handed out one by one.
//!
//! No locks.

use super::*;
use crate::device::layout::Layout;
use crate::format::place::{Geometry, Place, Seal};
use crate::space::admission::Growth;
use crate::space::segment::Phase;
use forebay_base::world::split_mix;

const BLOCK: u64 = 4096;

/// A volume, and the grants of its users.
struct Model {
    rng: u64,
    space: Space,
    others: OtherNeeds,
    /// The grants that have not ended, with their bytes of the log.
    grants: Vec<(Grant, u64)>,
    /// Segments that the cleaner may still take.
    planned: u64,
    /// No claim grows without a grant, so each grant finds its space.
    is_strict: bool,
    /// Grants that were made, and that were refused.
    counts: [u64; 2],
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut rng = seed;
        let mut pick = |n: u64| split_mix(&mut rng) % n;
        let geometry = Geometry::with_segment_shift(16);
        let (seal, segments) = (Seal::new(&[1; 16]), 10 + pick(30) as u32);
        let layout =
            Layout { geometry, seal, nonce: [1; 16], data_start: 16384, segments, align: 512 };
        let mut space = Space::new(layout);
        space.take_log().unwrap();
        space.log_head(u64::from(layout.first_record()));
        let is_strict = seed.is_multiple_of(2);
        let pairs = pick(24);
        let least = if is_strict { pairs } else { pick(40) };
        let (spare, edges) = (pick(24), pick(16) * BLOCK);
        let others = OtherNeeds { pairs, spare, least, edges, ..OtherNeeds::default() };
        let (grants, planned, counts) = (Vec::new(), 0, [0; 2]);
        Self { rng, space, others, grants, planned, is_strict, counts }
    }

    fn pick(&mut self, n: u64) -> u64 {
        split_mix(&mut self.rng) % n
    }

    fn needs(&mut self, needs: [Need; 2]) -> Need {
        needs[self.pick(2) as usize]
    }

    fn balance(&self) -> Balance {
        self.space.balance(0, self.others)
    }

    /// Asks for bytes of the log.
    fn ask_log(&mut self) {
        // Urgent records use a claim, which no grant has to fill again.
        let urgent = if self.is_strict { Need::New } else { Need::Urgent };
        let (need, bytes) = (self.needs([Need::New, urgent]), 1 + self.pick(20 << 10));
        let after = self.space.balance(bytes, self.others);
        let fits = after.fits(need, &Ask::log(bytes, Growth::default()));
        assert_eq!(fits, self.has_log(need, bytes), "{need:?} {bytes}: {after:?}");
        self.counts[usize::from(!fits)] += 1;
        if fits {
            let grant = self.space.ledger.grant(&Ask::log(bytes, Growth::default()));
            self.grants.push((grant, bytes));
            self.check_spare(need, 2);
        }
    }

    /// Asks for space of content.
    fn ask_content(&mut self) {
        let need = self.needs([Need::New, Need::Overwrite]);
        let bytes = (1 + self.pick(24)) * BLOCK;
        let others = OtherNeeds { accepted: self.others.accepted + bytes, ..self.others };
        let after = self.space.balance(0, others);
        let before = std::mem::replace(&mut self.others, others);
        let fits = after.fits(need, &Ask::content(bytes));
        assert_eq!(fits, self.has_content(need), "{need:?} {bytes}: {after:?}");
        self.counts[usize::from(!fits)] += 1;
        match fits {
            true => self.check_spare(need, 5),
            false => self.others = before,
        }
    }

    /// Ends a grant or a part of it, or joins two.
    fn end_some(&mut self) {
        let Some(n) = self.grants.len().checked_sub(1) else { return };
        let n = self.pick(n as u64 + 1) as usize;
        match self.pick(3) {
            0 => {
                let part = self.pick(2 * self.grants[n].1 + 1);
                let (grant, bytes) = &mut self.grants[n];
                let part = grant.split(part, Growth::default());
                *bytes -= part.log();
                self.space.ledger.end(part);
            }
            1 => self.space.ledger.end(self.grants.swap_remove(n).0),
            _ => {
                let (grant, bytes) = self.grants.swap_remove(n);
                match self.grants.last_mut() {
                    Some((other, sum)) => {
                        other.merge(grant);
                        *sum += bytes;
                    }
                    None => self.space.ledger.end(grant),
                }
            }
        }
    }

    /// Writes records: the log takes a segment if the open one is full (space.P11).
    fn write_log(&mut self) {
        let Some((mut grant, mut bytes)) = self.grants.pop() else { return };
        while bytes > 0 {
            if self.space.log_left == 0 {
                self.space.take_log().expect("P11: what was granted is there");
                self.space.log_head(u64::from(self.space.layout.first_record()));
            }
            let part = bytes.min(self.space.log_left);
            self.space.log_left -= part;
            self.space.ledger.end(grant.split(part, Growth::default()));
            bytes -= part;
        }
        self.space.ledger.end(grant);
    }

    /// Writes accepted content out (space.P14).
    fn write_content(&mut self) {
        let mut left = self.others.accepted.min((1 + self.pick(40)) * BLOCK);
        while left > 0 {
            let kept = self.balance().kept().accepted;
            let Ok((_, taken)) = self.space.take_data(left, kept) else {
                assert!(!self.is_strict, "P14: {left} bytes: {:?}", self.balance());
                return;
            };
            self.others.accepted -= taken;
            left -= taken;
        }
    }

    /// Plans a pass of the cleaner, or fills segments of it (space.P15).
    fn clean(&mut self) {
        if self.pick(2) == 0 {
            let most = self.balance().clean_segments().min(3);
            self.planned = self.pick(most + 1);
            self.space.plan_clean(self.planned);
        } else if self.planned > 0 || self.space.clean_left() > 0 {
            let before = self.space.clean_planned();
            self.space.take_clean(40 << 10).expect("P15: what a pass counts on is there");
            self.planned -= before - self.space.clean_planned();
        }
    }

    /// Makes a checkpoint with all its nodes (space.P13). Some segments are dead after it.
    fn checkpoint(&mut self) {
        let nodes = (0..self.others.pairs).map(|_| self.space.take_node().expect("P13"));
        let nodes: Vec<[Place; 2]> = nodes.collect();
        self.check();
        for given_up in [nodes.concat(), Vec::new()] {
            for segment in self.space.nodes.settle(given_up) {
                self.space.segments.give_back(segment);
            }
        }
        for segment in 0..self.space.layout.segments {
            let is_full = self.space.segments.get(segment).unwrap().phase == Phase::Sealed;
            if is_full && self.pick(2) == 0 {
                self.space.segments.give_back(segment);
            }
        }
    }

    fn step(&mut self) {
        match self.pick(12) {
            0..=2 => self.ask_log(),
            3..=5 => self.ask_content(),
            6 => self.end_some(),
            7 => self.write_content(),
            8 => self.checkpoint(),
            // A pass takes space that it gives back at its end only. The log may take the segment
            // that is kept for removals: then accepted content waits for a checkpoint.
            _ if self.is_strict => {}
            9 => self.write_log(),
            10 => self.clean(),
            _ => self.space.log_takes_content(),
        }
        self.check();
    }

    /// The segments of each claim, in the order in which they are met. The last record of the log
    /// takes `more` bytes.
    fn claims(&self, need: Need, own: Option<Claim>, more: u64) -> [(Claim, u64); 7] {
        let OtherNeeds { pairs, spare, least, .. } = self.others;
        let pairs = match need {
            Need::New => pairs + spare,
            Need::Overwrite => pairs.max(least),
            _ => pairs,
        };
        let layout = &self.space.layout;
        let granted: u64 = self.grants.iter().map(|(_, bytes)| bytes).sum();
        let log_bytes = granted + more + 2 * layout.cost(0, 0);
        let count = |bytes: u64, open: u64, each: u64| {
            (0..).find(|n| open + n * each >= bytes).expect("some number suffices")
        };
        let log = count(log_bytes, self.space.log_left, layout.log_bytes());
        let segment = layout.segment_bytes();
        let edges = if need == Need::New { self.others.edges } else { 0 };
        let accepted = self.others.accepted + edges;
        let begins = self.space.clean.is_none_or(|at| at.offset > 0);
        [
            (Nodes, self.space.nodes.room().segments_for(pairs)),
            (Recovery, 1),
            (Log, log),
            (Cleaner, u64::from(begins).max(self.planned)),
            (Removals, u64::from(own == Some(Log) || log == 0)),
            (Accepted, count(accepted, self.space.data_left(), segment)),
            (LogContent, u64::from(self.space.ledger.log_has_content)),
        ]
    }

    /// Hands out the free segments one by one. The result: those for `need`.
    fn handed_out(&self, need: Need, own: Option<Claim>, more: u64) -> u64 {
        let mut claims = self.claims(need, own, more).to_vec();
        claims.retain(|(claim, _)| Some(*claim) != own);
        let phases = self.space.segments.iter().map(|(_, segment)| segment.phase);
        let mut mine = 0;
        for _ in phases.filter(|phase| *phase == Phase::Free) {
            let user = claims.iter_mut().find(|(_, wanted)| *wanted > 0);
            let is_mine = matches!(
                (&user, need),
                (None, _)
                    | (Some((Removals | LogContent, _)), Need::Urgent)
                    | (Some((Cleaner, _)), Need::Clean)
            );
            mine += u64::from(is_mine);
            user.into_iter().for_each(|(_, wanted)| *wanted -= 1);
        }
        mine
    }

    fn has_nodes(&self, need: Need) -> bool {
        let claims = self.claims(need, Some(Log), 0);
        let sum = |left: &[Claim]| -> u64 {
            claims.iter().filter(|(claim, _)| left.contains(claim)).map(|(_, wanted)| wanted).sum()
        };
        let free = self.space.segments.free();
        match need {
            Need::New => free >= sum(&[Nodes, Recovery, Removals, Accepted, LogContent]),
            Need::Urgent => free >= sum(&[Nodes]),
            _ => true,
        }
    }

    fn has_log(&self, need: Need, more: u64) -> bool {
        let wanted = self.claims(need, Some(Log), more)[2].1;
        self.has_nodes(need) && wanted <= self.handed_out(need, Some(Log), more)
    }

    fn has_content(&self, need: Need) -> bool {
        let wanted = self.claims(need, Some(Accepted), 0)[5].1;
        self.has_nodes(need) && wanted <= self.handed_out(need, Some(Accepted), 0)
    }

    /// After a grant for something new whose claim takes a segment, no claim is unmet.
    fn check_spare(&self, need: Need, own: usize) {
        let claims = self.claims(need, None, 0);
        let wanted: u64 = claims.iter().map(|(_, wanted)| wanted).sum();
        let is_met = wanted <= self.space.segments.free();
        assert!(need != Need::New || claims[own].1 == 0 || is_met, "{claims:?}");
    }

    /// The sums are those of all grants (ledger.M17), and the equation says what the reference
    /// says.
    fn check(&self) {
        let granted: u64 = self.grants.iter().map(|(grant, _)| grant.log()).sum();
        assert_eq!(granted, self.space.ledger.log_bytes(), "M17");
        let balance = self.balance();
        assert_eq!(balance.clean_segments(), self.handed_out(Need::Clean, None, 0));
        for need in [Need::New, Need::Overwrite] {
            let room = self.handed_out(need, Some(Accepted), 0) * self.space.layout.segment_bytes();
            let edges = if need == Need::New { self.others.edges } else { 0 };
            let left = self.space.data_left() + room;
            let left = left.saturating_sub(self.others.accepted + edges);
            assert_eq!(balance.content_left(need), left, "{need:?}: {balance:?}");
        }
    }
}

/// ledger.M17, space.P11, space.P13, space.P14, space.P15: grants are those that the reference
/// makes, and each user finds what it was granted.
#[test]
fn ledger_grants_what_a_count_from_scratch_grants() {
    let mut counts = [0; 2];
    for seed in 0..400 {
        let mut model = Model::new(seed);
        for _ in 0..400 {
            model.step();
        }
        model.grants.drain(..).for_each(|(grant, _)| model.space.ledger.end(grant));
        assert_eq!(model.space.ledger.log_bytes(), 0);
        counts = [counts[0] + model.counts[0], counts[1] + model.counts[1]];
    }
    assert!(counts.iter().all(|count| *count > 10_000), "{counts:?}");
}
