//! The order in which waiting requests are issued.
//!
//! Invariants: J1 SYNC goes before readahead, readahead before write-back; within a class the order
//! is that of arrival. J2 after [`TURN`] other picks a background request is picked, if one waits,
//! and after [`TURN_BACK`] readahead requests write-back, so no class starves. J3 at most
//! `background_max` background requests are issued at a time. J4 `done` is called once for each
//! request picked.

use super::request::{Boxed, Class};
use std::collections::VecDeque;

/// A waiting background request is picked after this many others.
const TURN: u32 = 16;
/// Waiting write-back is picked after this many readahead requests.
const TURN_BACK: u32 = 4;

pub(crate) struct Queue {
    /// SYNC requests, and in front of them started requests that have more to do.
    front: VecDeque<Boxed>,
    readahead: VecDeque<Boxed>,
    write_back: VecDeque<Boxed>,
    background_max: usize,
    background_out: usize,
    /// Picks since the last background one; background picks since the last write-back.
    picks: u32,
    picks_back: u32,
}

impl Queue {
    pub(crate) fn new(background_max: usize) -> Self {
        Self {
            front: VecDeque::new(),
            readahead: VecDeque::new(),
            write_back: VecDeque::new(),
            background_max,
            background_out: 0,
            picks: 0,
            picks_back: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.front.len() + self.readahead.len() + self.write_back.len()
    }

    pub(crate) fn push(&mut self, request: Boxed) {
        match request.class() {
            Class::Sync => self.front.push_back(request),
            Class::Readahead => self.readahead.push_back(request),
            Class::WriteBack => self.write_back.push_back(request),
        }
    }

    /// Queues a picked request again, which has more to do. It still counts as issued (J3).
    pub(crate) fn push_again(&mut self, request: Boxed) {
        self.front.push_front(request);
    }

    pub(crate) fn pick(&mut self) -> Option<Boxed> {
        let waits = !self.readahead.is_empty() || !self.write_back.is_empty();
        let may = waits && self.background_out < self.background_max;
        if may && (self.front.is_empty() || self.picks >= TURN) {
            self.picks = 0;
            self.background_out += 1;
            return self.pick_background();
        }
        self.picks += 1;
        self.front.pop_front()
    }

    fn pick_background(&mut self) -> Option<Boxed> {
        let turn = self.picks_back >= TURN_BACK && !self.write_back.is_empty();
        if turn || self.readahead.is_empty() {
            self.picks_back = 0;
            return self.write_back.pop_front();
        }
        self.picks_back += 1;
        self.readahead.pop_front()
    }

    /// Background requests that were picked and are not over.
    pub(crate) fn background_out(&self) -> usize {
        self.background_out
    }

    /// A picked request is over.
    pub(crate) fn done(&mut self, class: Class) {
        assert!(!class.is_background() || self.background_out > 0, "J4: given back what was out");
        self.background_out -= usize::from(class.is_background());
    }

    /// Removes all waiting requests; their order does not matter.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Boxed> + '_ {
        let back = self.readahead.drain(..).chain(self.write_back.drain(..));
        self.front.drain(..).chain(back)
    }
}
