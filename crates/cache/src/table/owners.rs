//! The files that own folios: the hot part of each, a few words that exist while it is open or owns
//! a folio. A list through the slots links a file's folios, so that closing it visits its own
//! folios and not the table.
//!
//! Invariants: H1 a slot whose key names a file is on that file's list, except under its folio lock
//! while it is made or evicted. H2 the count of a file is the length of its list. H3 a file that is
//! neither open nor owns a folio is forgotten. H4 a file has one mapping at a time.
//!
//! Locks: one per shard of files, taken inside the folio lock when a folio is made, evicted or
//! moved; an index bucket is taken inside it when a folio moves.

use crate::table::{Slot, Table};
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;

const SHARDS: usize = 64;

/// The hot part of a file.
#[derive(Default)]
struct Hot {
    head: Slot,
    folios: u32,
    open: bool,
    label: Label,
}

/// The identity of a file in the layer that maps it: its owner, and its number within that owner.
/// All 0: unknown.
pub type Label = (u64, u64);

/// The files that own folios, in shards.
pub struct Owners {
    shards: Box<[Mutex<HashMap<u32, Hot>>]>,
    /// Files in all shards.
    known: AtomicUsize,
}

impl Owners {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, known: AtomicUsize::new(0) }
    }

    fn shard(&self, id: u32) -> &Mutex<HashMap<u32, Hot>> {
        &self.shards[id as usize % SHARDS]
    }

    /// The hot part of a file, made if it is not known.
    fn hot<'a>(&self, shard: &'a mut HashMap<u32, Hot>, id: u32) -> &'a mut Hot {
        shard.entry(id).or_insert_with(|| {
            self.known.fetch_add(1, Ordering::Relaxed);
            Hot::default()
        })
    }

    fn forget(&self, shard: &mut HashMap<u32, Hot>, id: u32) {
        shard.remove(&id);
        self.known.fetch_sub(1, Ordering::Relaxed);
    }

    /// A new file has a mapping from now on.
    pub(crate) fn open(&self, id: u32) {
        self.hot(&mut self.shard(id).lock(), id).open = true;
    }

    /// The file has a mapping again. False: it was forgotten (H3), or still has a mapping (H4).
    pub(crate) fn open_again(&self, id: u32) -> bool {
        let mut shard = self.shard(id).lock();
        let Some(hot) = shard.get_mut(&id).filter(|hot| !hot.open) else { return false };
        hot.open = true;
        true
    }

    /// The mapping of the file is dropped. Forgets the file if it owns no folio (H3).
    pub(crate) fn close(&self, id: u32) {
        let mut shard = self.shard(id).lock();
        let Some(hot) = shard.get_mut(&id) else { return };
        hot.open = false;
        if hot.folios == 0 {
            self.forget(&mut shard, id);
        }
    }

    /// Whether the file is open or owns folios.
    pub fn knows(&self, id: u32) -> bool {
        self.shard(id).lock().contains_key(&id)
    }

    /// Sets the label of a file; it is kept while the file is known.
    pub fn set_label(&self, id: u32, label: Label) {
        if let Some(hot) = self.shard(id).lock().get_mut(&id) {
            hot.label = label;
        }
    }

    /// The label that was set; (0, 0) if none was, or the file is not known.
    pub fn label(&self, id: u32) -> Label {
        self.shard(id).lock().get(&id).map_or((0, 0), |hot| hot.label)
    }

    /// Files known.
    pub fn files(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// Folios of the file.
    pub fn folios(&self, id: u32) -> u32 {
        self.shard(id).lock().get(&id).map_or(0, |hot| hot.folios)
    }

    /// The slot has become the file's. Its folio lock is held and its key set.
    pub(crate) fn link(&self, table: &Table, id: u32, slot: Slot) {
        let mut shard = self.shard(id).lock();
        let hot = self.hot(&mut shard, id);
        table.set_links(slot, (0, hot.head));
        if hot.head != 0 {
            let (before, after) = table.links(hot.head);
            debug_assert_eq!(before, 0, "H1: the head of file {id} has one before it");
            table.set_links(hot.head, (slot, after));
        }
        hot.head = slot;
        hot.folios += 1;
    }

    /// The slot is about to lose its key. Its folio lock is held.
    pub(crate) fn unlink(&self, table: &Table, id: u32, slot: Slot) {
        let mut shard = self.shard(id).lock();
        let hot = shard.get_mut(&id).expect("the owner of a folio is known (H3)");
        let (before, after) = table.links(slot);
        match before {
            0 => {
                debug_assert_eq!(hot.head, slot, "H1: slot {slot} is not on the list of file {id}");
                hot.head = after;
            }
            before => table.set_links(before, (table.links(before).0, after)),
        }
        if after != 0 {
            table.set_links(after, (before, table.links(after).1));
        }
        hot.folios -= 1;
        debug_assert_eq!(hot.folios == 0, hot.head == 0, "H2: file {id}");
        if hot.folios == 0 && !hot.open {
            self.forget(&mut shard, id);
        }
    }

    /// Moves the folio in slot `from` to `to`, by `relocate`. A walk along the list sees it in
    /// exactly one of them. The folio locks of both are held.
    pub(crate) fn relocate(
        &self,
        table: &Table,
        (from, to): (Slot, Slot),
        relocate: impl FnOnce(),
    ) {
        let id = table.key(from).0;
        let mut shard = self.shard(id).lock();
        let hot = shard.get_mut(&id).expect("the owner of a folio is known (H3)");
        let (before, after) = table.links(from);
        relocate();
        table.set_links(to, (before, after));
        match before {
            0 => {
                assert_eq!(hot.head, from, "H1: slot {from} is not on the list of file {id}");
                hot.head = to;
            }
            before => table.set_links(before, (table.links(before).0, to)),
        }
        if after != 0 {
            table.set_links(after, (to, table.links(after).1));
        }
    }

    /// Indices of the file's folios that `wanted` holds, in no order.
    pub(crate) fn indices(
        &self,
        table: &Table,
        id: u32,
        wanted: &std::ops::Range<u64>,
    ) -> Vec<u64> {
        let shard = self.shard(id).lock();
        let Some(hot) = shard.get(&id) else { return Vec::new() };
        let (mut found, mut slot, mut seen) = (Vec::new(), hot.head, 0);
        while slot != 0 {
            let (owner, index) = table.key(slot);
            debug_assert_eq!(owner, id, "H1: slot {slot} is on the list of another file");
            if wanted.contains(&index) {
                found.push(index);
            }
            slot = table.links(slot).1;
            seen += 1;
        }
        debug_assert_eq!(seen, hot.folios, "H2: file {id}");
        found
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::table::Layout;
    use forebay_base::world::split_mix;

    #[test]
    fn owner_lists_hold_linked_slots_in_every_layout() {
        for shift in 12..=21 {
            let (table, owners) = (Table::new(Layout::new(1 << shift), 40).unwrap(), Owners::new());
            [7, 8].into_iter().for_each(|id| owners.open(id));
            assert!(!owners.open_again(7) && !owners.open_again(9), "H4");
            let (mut seed, mut model) = (u64::from(shift as u32), [0u32; 41]);
            for _ in 0..2000 {
                let r = split_mix(&mut seed);
                let slot = (r % 40) as Slot + 1;
                let owner = &mut model[slot as usize];
                if *owner == 0 {
                    *owner = 7 + (r >> 20) as u32 % 2;
                    table.set_key(slot, *owner, u64::from(slot) * 3);
                    owners.link(&table, *owner, slot);
                } else {
                    owners.unlink(&table, *owner, slot);
                    table.set_key(slot, 0, 0);
                    *owner = 0;
                }
                for id in [7, 8] {
                    let mut found = owners.indices(&table, id, &(0..u64::MAX));
                    found.sort_unstable();
                    let want = (1..41u64).filter(|&s| model[s as usize] == id).map(|s| s * 3);
                    assert_eq!(found, want.collect::<Vec<_>>());
                    assert_eq!(owners.folios(id) as usize, found.len());
                }
            }
            owners.close(7);
            for slot in 1..41 {
                if model[slot as usize] == 7 {
                    assert!(owners.knows(7));
                    owners.unlink(&table, 7, slot);
                }
            }
            assert!(!owners.knows(7) && owners.knows(8) && owners.files() == 1);
        }
    }

    /// The story: each close scanned the complete table of slots for the file's folios: with ten
    /// thousand files open, all of theirs.
    #[test]
    fn close_visits_only_folios_of_its_file() {
        use crate::table::KEYS_LOOKED_AT;
        use crate::{Config, PageCache};
        let all = 0..u64::MAX >> 1;
        let mut looked_at = Vec::new();
        for others in [1u32, 500] {
            let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
            let cache =
                PageCache::new(config, forebay_base::world::RealWorld::with_seed(1)).unwrap();
            let files: Vec<_> = (0..=others).map(|_| cache.new_mapping(4096, 1 << 30)).collect();
            for file in &files {
                (0..3).for_each(|i| drop(cache.lock_or_make(file, i * 1000, false).unwrap()));
            }
            let before = KEYS_LOOKED_AT.get();
            let file = &files[others as usize / 2];
            for index in cache.folios_present(file, &all) {
                let folio = cache.lock_folio(file, index).unwrap();
                folio.discard(file.blocks_touched(index, &all));
            }
            looked_at.push(KEYS_LOOKED_AT.get() - before);
        }
        assert!(looked_at[1] <= 2 * looked_at[0] && looked_at[1] < 60, "{looked_at:?}");
    }
}
