//! The accounting before the ledger, on the same figures. It runs beside the ledger in tests and
//! states where the two differ.
//!
//! No locks.

use super::{Ask, Balance, Claim, MARKS, Need, OtherNeeds, RECOVERY, REMOVALS};
use std::sync::atomic::{AtomicU64, Ordering};

/// How often the ledger was asked, and how often it refused what was granted before.
static COMPARED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

impl Balance {
    fn nodes_for(&self, pairs: u64) -> u64 {
        self.nodes.segments_for(pairs)
    }

    fn accepted_segments(&self, accepted: u64) -> u64 {
        accepted.saturating_sub(self.open).div_ceil(self.segment_bytes)
    }

    fn log_segments(&self) -> u64 {
        self.log.saturating_sub(self.log_left).div_ceil(self.log_bytes)
    }

    fn content_kept(&self) -> u64 {
        u64::from(self.log_has_content)
    }

    fn kept_least(&self, pairs: u64) -> u64 {
        RECOVERY + self.content_kept() + self.nodes_for(pairs) + self.log_segments().max(REMOVALS)
    }

    /// Whether the log took its grants.
    fn old_log(&self, need: Need) -> bool {
        let OtherNeeds { pairs, accepted, edges, .. } = self.others;
        let free = self.free.saturating_sub(RECOVERY + self.cleaner + self.nodes_for(pairs));
        let free = match need {
            Need::New => {
                let accepted = self.accepted_segments(accepted + edges);
                free.saturating_sub(REMOVALS + self.content_kept() + accepted)
            }
            _ => {
                let accepted = self.accepted_segments(accepted);
                free.saturating_sub(accepted).max(REMOVALS.min(free))
            }
        };
        self.log <= self.log_left + free * self.log_bytes
    }

    /// Whether checkpoints lacked nodes.
    fn old_lacks_nodes(&self, need: Need) -> bool {
        let OtherNeeds { pairs, spare, accepted, edges, .. } = self.others;
        let accepted = self.accepted_segments(accepted + edges);
        let wanted = match need {
            Need::New => {
                let kept = RECOVERY + REMOVALS + self.content_kept();
                kept + accepted + self.nodes_for(pairs + spare)
            }
            Need::Urgent => self.nodes_for(pairs),
            _ => 0,
        };
        self.free < wanted
    }

    /// Whether accepted content had its space.
    fn old_content(&self, need: Need) -> bool {
        let OtherNeeds { pairs, spare, least, accepted, edges, .. } = self.others;
        let (pairs, content) = match need {
            Need::New => (pairs + spare, accepted + edges),
            _ => (pairs.max(least), accepted),
        };
        let free = self.free.saturating_sub(self.kept_least(pairs) + self.cleaner);
        content <= self.open + free * self.segment_bytes
    }

    /// What fits now has fitted before. Only new records are refused more often: they leave the
    /// nodes of operations that make space.
    pub(super) fn compare(&self, need: Need, ask: &Ask, fits: bool) {
        let old_log = ask.log == 0 || self.old_log(need);
        let old_content = ask.content == 0 || self.old_content(need);
        let old = old_log && old_content && !self.old_lacks_nodes(need);
        let is_new_record = need == Need::New && ask.log > 0;
        assert!(fits == old || old && is_new_record, "{need:?} {ask:?}: {old}, {self:?}");
        COMPARED[usize::from(fits != old)].fetch_add(1, Ordering::Relaxed);
        let counts = COMPARED.each_ref().map(|count| count.load(Ordering::Relaxed));
        if counts[usize::from(fits != old)].is_power_of_two() {
            log::debug!("the ledger agreed {} times, and refused {} more", counts[0], counts[1]);
        }
        debug_assert!(self.log >= MARKS, "marks are counted");
    }

    /// The cleaner gets what it got before, and what a pass counts on.
    pub(super) fn compare_clean(&self, segments: u64) {
        let OtherNeeds { pairs, accepted, .. } = self.others;
        let kept = self.kept_least(pairs) + self.accepted_segments(accepted);
        let old = self.free.saturating_sub(kept);
        let least = RECOVERY + self.nodes_for(pairs) + self.log_segments();
        let old = old.max(self.free.saturating_sub(least).min(self.cleaner));
        assert_eq!(segments, old, "{:?} {self:?}", Claim::Cleaner);
    }
}
