//! Values by key for as many keys as fit. Later passes over the same input fill the windows that
//! follow, so a check of any size needs bounded memory.
//!
//! Invariant: E17 a window never has more values than its limit. After a pass it has a value for
//! exactly the keys of the pass from its first key on and below its end, and each value saw the
//! complete pass.
//!
//! No locks.

use std::collections::BTreeMap;

/// The values of the keys from `from` on that fit.
pub(super) struct Window<K, V> {
    from: K,
    /// Keys from here on belong to later windows. `None`: all fit.
    end: Option<K>,
    values: BTreeMap<K, V>,
    values_max: usize,
}

impl<K: Ord + Copy, V> Window<K, V> {
    /// An empty window that begins with `from`, of `values_max` values, at least one.
    pub fn new(from: K, values_max: usize) -> Self {
        Self { from, end: None, values: BTreeMap::new(), values_max: values_max.max(1) }
    }

    /// Whether a key lies in the window.
    pub fn covers(&self, key: K) -> bool {
        key >= self.from && self.end.is_none_or(|end| key < end)
    }

    /// The value of a key, which is `new` at first. `None`: the key is not in this window. If the
    /// window is full, the highest key leaves it, and the window ends there.
    pub fn get(&mut self, key: K, new: impl FnOnce() -> V) -> Option<&mut V> {
        if !self.covers(key) {
            return None;
        }
        if self.values.len() >= self.values_max && !self.values.contains_key(&key) {
            let highest = self.values.last_key_value().map_or(key, |(highest, _)| *highest);
            if key > highest {
                self.end = Some(key);
                return None;
            }
            self.values.pop_last();
            self.end = Some(highest);
        }
        Some(self.values.entry(key).or_insert_with(new))
    }

    /// The value of a key that a pass has met.
    pub fn found(&self, key: K) -> Option<&V> {
        self.values.get(&key)
    }

    /// The values that a pass has met, in order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.values.iter()
    }

    /// The window that follows. `None`: this one was the last.
    pub fn into_next(self) -> Option<Self> {
        self.end.map(|end| Self::new(end, self.values_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;

    /// fsck.E16, window.E17: for any limit the windows together are as one without a limit.
    #[test]
    fn windows_of_any_size_have_each_key_once() {
        for seed in 0..200u64 {
            let mut rng = seed;
            let keys: Vec<u64> = (0..100).map(|_| split_mix(&mut rng) % 60).collect();
            let mut counts = BTreeMap::<u64, u64>::new();
            keys.iter().for_each(|key| *counts.entry(*key).or_default() += 1);
            for most in [1, 2, 7, 59, 60, 1000] {
                let (mut all, mut windows) = (Vec::new(), 0);
                let mut next = Some(Window::new(0, most));
                while let Some(mut window) = next {
                    for key in &keys {
                        window.get(*key, || 0).into_iter().for_each(|count| *count += 1);
                        assert!(window.values.len() <= most);
                    }
                    assert!(keys.iter().all(|k| window.covers(*k) == window.found(*k).is_some()));
                    all.extend(window.iter().map(|(key, count)| (*key, *count)));
                    windows += 1;
                    next = window.into_next();
                }
                assert_eq!(all, counts.clone().into_iter().collect::<Vec<_>>(), "{seed} {most}");
                assert_eq!(windows, counts.len().div_ceil(most), "{seed} {most}");
            }
        }
    }
}
