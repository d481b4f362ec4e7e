//! Classes of requests with few bytes and much work: each connection runs a limited number of a
//! class. The others wait in a queue; their memory is charged, and they count as in flight.
//!
//! Invariant: A1 no more requests of a class run than its limit, and none waits while fewer run.

use crate::exec::Ticket;
use crate::proto::Command;
use std::collections::VecDeque;

/// Number of request classes.
pub(crate) const CLASSES: usize = 2;
/// Most requests of each class that run at a time: commands of many steps, and commands that lock
/// ranges of the export.
const LIMITS: [u32; CLASSES] = [1, 16];

/// The class of a command; `None` for commands without a limit.
pub(crate) fn class_of(command: Command) -> Option<usize> {
    match command {
        Command::Cache | Command::BlockStatus => Some(0),
        Command::Trim | Command::WriteZeroes => Some(1),
        _ => None,
    }
}

/// The requests of each class on one connection: those that run are counted, the others wait.
#[derive(Default)]
pub(crate) struct RequestClasses([RequestClass; CLASSES]);

#[derive(Default)]
struct RequestClass {
    waiting: VecDeque<Ticket>,
    under_way: u32,
}

impl RequestClasses {
    /// Adds a request to the queue of its class.
    pub fn push(&mut self, class: usize, ticket: Ticket) {
        self.0[class].waiting.push_back(ticket);
    }

    /// Removes the next request that may begin (A1).
    pub fn next(&mut self, class: usize) -> Option<Ticket> {
        let RequestClass { waiting, under_way } = &mut self.0[class];
        if *under_way < LIMITS[class] { waiting.pop_front() } else { None }
    }

    /// Counts a request that has begun and not ended.
    pub fn begun(&mut self, class: usize) {
        self.0[class].under_way += 1;
        debug_assert!(self.0[class].under_way <= LIMITS[class], "A1: beyond the limit");
    }

    /// Counts the end of a request that had begun.
    pub fn over(&mut self, class: usize) {
        debug_assert!(self.0[class].under_way > 0, "A1: it was begun");
        self.0[class].under_way -= 1;
    }

    /// Removes the requests that have not begun; returns the memory charged for them, bytes.
    pub fn drain(&mut self) -> usize {
        self.0.iter_mut().flat_map(|class| class.waiting.drain(..)).map(|ticket| ticket.cost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{CommandFlags, Request};

    #[test]
    fn a1_class_limit_holds_and_waiters_start() {
        let flags = CommandFlags::empty();
        let request = Request { flags, command: Command::Trim, cookie: 0, offset: 0, len: 1 };
        let ticket = || Ticket { key: (0, 0), request, cost: 10, structured: false };
        for (class, limit) in LIMITS.into_iter().enumerate() {
            let mut classes = RequestClasses::default();
            (0..limit + 3).for_each(|_| classes.push(class, ticket()));
            for _ in 0..limit {
                assert!(classes.next(class).is_some());
                classes.begun(class);
            }
            assert!(classes.next(class).is_none(), "A1");
            classes.over(class);
            assert!(classes.next(class).is_some(), "A1");
            classes.begun(class);
            assert_eq!(classes.drain(), 20);
        }
        assert_eq!(class_of(Command::Trim), class_of(Command::WriteZeroes));
        assert!(class_of(Command::Read).is_none() && class_of(Command::Flush).is_none());
    }
}
