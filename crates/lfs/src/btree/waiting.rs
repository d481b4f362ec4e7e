//! Items that wait to be put into nodes. They are kept in stored form, contiguous, so that the
//! items of an unchanged leaf are copied as they are.
//!
//! Invariants: B56 the waiting items can form a node: keys ascend, no value exceeds the maximum.
//! B57 [`Waiting::cost`] is the space that they take in a node.
//!
//! No locks.

use crate::format::item::MAX_VALUE_BYTES;
use crate::format::key::{KeyBytes, MAX_KEY_BYTES};
use crate::format::node::{ITEM_HEADER_BYTES, ITEM_OVERHEAD_BYTES, Node, item_at};
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of an item in a node in addition to its stored form.
const OFFSET_BYTES: usize = ITEM_OVERHEAD_BYTES - ITEM_HEADER_BYTES;

/// Items that wait to be put into nodes.
#[derive(Default)]
pub(super) struct Waiting {
    /// Items in stored form from `start` on; bytes before were consumed.
    bytes: Vec<u8>,
    start: usize,
    /// Length of each item.
    lens: VecDeque<u16>,
}

impl Waiting {
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Bytes that all items take in a node.
    pub fn cost(&self) -> usize {
        self.bytes.len() - self.start + OFFSET_BYTES * self.lens.len()
    }

    /// Bytes that each item takes in a node.
    pub fn costs(&self) -> impl Iterator<Item = usize> {
        self.lens.iter().map(|len| OFFSET_BYTES + usize::from(*len))
    }

    /// Appends an item.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        debug_assert!(key.len() <= MAX_KEY_BYTES && value.len() <= MAX_VALUE_BYTES, "B56");
        debug_assert!(self.last().is_none_or(|(last, _)| last < key), "B56");
        self.bytes.push(key.len() as u8);
        self.bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.lens.push_back((ITEM_HEADER_BYTES + key.len() + value.len()) as u16);
    }

    /// Appends some items of a node. `Err`: the number of an item whose value is too long; nothing
    /// is appended.
    pub fn push_items(&mut self, node: &Node<'_>, items: Range<usize>) -> Result<(), usize> {
        let (first, mut count) = (items.start, 0);
        let lens_before = self.lens.len();
        debug_assert!(
            self.last().zip(node.raw(first)).is_none_or(|((last, _), (key, _))| last < key),
            "B56"
        );
        for (key, value) in items.map_while(|n| node.raw(n)) {
            if value.len() > MAX_VALUE_BYTES {
                self.lens.truncate(lens_before);
                return Err(first + count);
            }
            self.lens.push_back((ITEM_HEADER_BYTES + key.len() + value.len()) as u16);
            count += 1;
        }
        let bytes = node.stored(first..first + count);
        debug_assert_eq!(
            bytes.len(),
            self.lens.iter().skip(lens_before).map(|len| usize::from(*len)).sum::<usize>(),
            "T2: one behind the other"
        );
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Key and value of the first one.
    pub fn first(&self) -> Option<(&[u8], &[u8])> {
        (!self.is_empty()).then(|| item_at(&self.bytes[self.start..]))
    }

    /// Key and value of the last one.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        let len = usize::from(*self.lens.back()?);
        Some(item_at(&self.bytes[self.bytes.len() - len..]))
    }

    pub fn pop_last(&mut self) {
        let len = self.lens.pop_back().unwrap_or_default();
        self.bytes.truncate(self.bytes.len() - usize::from(len));
    }

    /// Puts other items before these.
    pub fn put_before(&mut self, mut first: Self) {
        debug_assert!(
            first.last().zip(self.first()).is_none_or(|((last, _), (next, _))| last < next),
            "B56"
        );
        first.bytes.extend_from_slice(&self.bytes[self.start..]);
        first.lens.append(&mut self.lens);
        *self = first;
    }

    /// The first `count` items in stored form, and the length of each.
    pub fn first_items(&self, count: usize) -> (&[u8], impl Iterator<Item = u16> + use<'_>) {
        let lens = self.lens.iter().take(count).copied();
        let len = lens.clone().map(usize::from).sum::<usize>();
        (&self.bytes[self.start..self.start + len], lens)
    }

    /// Removes the first `count` items.
    pub fn drop_first(&mut self, count: usize) {
        let count = count.min(self.lens.len());
        self.start += self.lens.drain(..count).map(usize::from).sum::<usize>();
        // On average each removed byte moves at most one byte.
        if self.start >= self.bytes.len() - self.start {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// The key of the first item.
    pub fn low(&self) -> KeyBytes {
        self.first().map_or(KeyBytes::EMPTY, |(key, _)| KeyBytes::copy_of(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;

    /// B57, and items come out as they went in, for any order of calls.
    #[test]
    fn b57_items_go_in_and_out_as_in_a_list() {
        let mut rng = 1;
        let mut pick = |n: u64| split_mix(&mut rng) % n;
        for _ in 0..200 {
            let (mut waiting, mut list) = (Waiting::default(), VecDeque::new());
            let (mut low, mut high) = (1u64 << 32, 1u64 << 32);
            for _ in 0..200 {
                let value = vec![pick(256) as u8; pick(90) as usize];
                match pick(6) {
                    0..=2 => {
                        high += 1;
                        waiting.push(&high.to_be_bytes(), &value);
                        list.push_back((high, value));
                    }
                    3 => {
                        let mut first = Waiting::default();
                        low -= 1;
                        first.push(&low.to_be_bytes(), &value);
                        waiting.put_before(first);
                        list.push_front((low, value));
                    }
                    4 => {
                        waiting.pop_last();
                        list.pop_back();
                    }
                    _ => {
                        let count = pick(5) as usize;
                        waiting.drop_first(count);
                        list.drain(..count.min(list.len()));
                    }
                }
                let cost = |(_, value): &(u64, Vec<u8>)| ITEM_OVERHEAD_BYTES + 8 + value.len();
                assert_eq!(waiting.cost(), list.iter().map(cost).sum::<usize>(), "B57");
                assert!(waiting.costs().eq(list.iter().map(cost)), "B57");
                let first = list.front().map(|(key, value)| (key.to_be_bytes(), value.clone()));
                let found = waiting.first().map(|(key, value)| (key.to_vec(), value.to_vec()));
                assert_eq!(found, first.map(|(key, value)| (key.to_vec(), value)));
                let (bytes, _) = waiting.first_items(list.len());
                let mut rest = bytes;
                for (key, value) in &list {
                    assert_eq!(item_at(rest), (&key.to_be_bytes()[..], &value[..]));
                    rest = &rest[ITEM_HEADER_BYTES + 8 + value.len()..];
                }
                assert!(rest.is_empty() && waiting.len() == list.len());
            }
        }
    }
}
