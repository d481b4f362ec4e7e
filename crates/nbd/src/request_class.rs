//! Requests of few bytes that make much work: of one connection only so many are under way, the others wait
//! in line, charged and counted as under way.
//!
//! Invariant: A1 of a lane no more are under way than its limit, and none waits while there are fewer.

use crate::exec::Ticket;
use crate::proto::Command;
use std::collections::VecDeque;

/// How many lanes there are.
pub(crate) const LANES: usize = 2;
/// Requests of a lane under way: what goes in many steps, what holds ranges of the file.
const LIMITS: [u32; LANES] = [1, 16];

/// The lane of a command, if it has one.
pub(crate) fn lane_of(command: Command) -> Option<usize> {
    match command {
        Command::Cache | Command::BlockStatus => Some(0),
        Command::Trim | Command::WriteZeroes => Some(1),
        _ => None,
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Lanes([Lane; LANES]);

#[derive(Default)]
struct Lane {
    waiting: VecDeque<Ticket>,
    under_way: u32,
}

impl Lanes {
    /// Joins the line.
    pub fn push(&mut self, lane: usize, ticket: Ticket) {
        self.0[lane].waiting.push_back(ticket);
    }

    /// The next one that may begin (A1).
    pub fn next(&mut self, lane: usize) -> Option<Ticket> {
        let Lane { waiting, under_way } = &mut self.0[lane];
        if *under_way < LIMITS[lane] { waiting.pop_front() } else { None }
    }

    /// It was begun, and is not over yet.
    pub fn begun(&mut self, lane: usize) {
        self.0[lane].under_way += 1;
        debug_assert!(self.0[lane].under_way <= LIMITS[lane], "A1: beyond the limit");
    }

    /// One that was begun is over.
    pub fn over(&mut self, lane: usize) {
        debug_assert!(self.0[lane].under_way > 0, "A1: it was begun");
        self.0[lane].under_way -= 1;
    }

    /// Those that have not begun leave; what they are charged.
    pub fn drain(&mut self) -> usize {
        self.0.iter_mut().flat_map(|lane| lane.waiting.drain(..)).map(|ticket| ticket.cost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{CommandFlags, Request};

    #[test]
    fn a1_so_many_at_a_time_and_none_waits_in_vain() {
        let flags = CommandFlags::empty();
        let request = Request { flags, command: Command::Trim, cookie: 0, offset: 0, len: 1 };
        let ticket = || Ticket { key: (0, 0), request, cost: 10, structured: false };
        for (lane, limit) in LIMITS.into_iter().enumerate() {
            let mut lanes = Lanes::default();
            (0..limit + 3).for_each(|_| lanes.push(lane, ticket()));
            for _ in 0..limit {
                assert!(lanes.next(lane).is_some());
                lanes.begun(lane);
            }
            assert!(lanes.next(lane).is_none(), "A1");
            lanes.over(lane);
            assert!(lanes.next(lane).is_some(), "A1");
            lanes.begun(lane);
            assert_eq!(lanes.drain(), 20);
        }
        assert_eq!(lane_of(Command::Trim), lane_of(Command::WriteZeroes));
        assert!(lane_of(Command::Read).is_none() && lane_of(Command::Flush).is_none());
    }
}
