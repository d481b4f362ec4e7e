//! Inserts what was loaded from the tree into the state, below newer changes.
//!
//! No locks: the volume's state lock covers it. load.Q21 and load.Q22 (`names/load.rs`) hold here.

use crate::format::corrupt;
use crate::format::item::Item;
use crate::format::key::{Cookie, Key};
use crate::names::directory::COOKIES_END;
use crate::names::load::{Assembly, Changed, Laid, Part, lone};
use crate::names::lookup::Want;
use crate::names::node::Node;
use crate::transaction::state::State;
use forebay_base::Result;
use std::ops::Range;

impl State {
    /// A part of the tree with newer changes laid over it. None: the part is of an old tree
    /// (load.Q21).
    pub fn over(&self, part: Part) -> Option<Laid> {
        if *part.root() != self.tree.root() {
            return None;
        }
        let mut changed = Changed::new();
        // Frozen changes that are merged are in the tree already, so they are skipped.
        for items in self.tree.unmerged_items().into_iter().chain([self.names.items()]) {
            let items = items.range(part.keys());
            changed.extend(items.map(|(key, value)| (*key, value.map(Into::into))));
        }
        Some(Laid::new(part, changed))
    }

    /// The change of an item that is not in the tree yet: a new value, or a removal. None: there is
    /// no change.
    pub fn changed(&self, key: Key) -> Option<Option<&[u8]>> {
        let frozen = || self.tree.unmerged_items().and_then(|items| items.get(key));
        self.names.items().get(key).or_else(frozen)
    }
}

impl State {
    /// Inserts a part that was missing. False: the tree was replaced since the part was read.
    pub fn insert_part(&mut self, want: Want, part: Part) -> Result<bool> {
        let end = part.end();
        let Some(laid) = self.over(part) else { return Ok(false) };
        match want {
            Want::Inode(ino) => self.insert_inodes(ino, &laid)?,
            Want::Entries(dir, cookie) => {
                let from = Cookie::new(cookie.hash(), 0).to_u64();
                let upto = match Key::decode(end.as_slice()) {
                    Ok(Key::Entry(there, end)) if there == dir => end.to_u64(),
                    _ => COOKIES_END,
                };
                self.insert_entries(dir, from..upto, &laid)?;
            }
        }
        Ok(true)
    }

    /// Inserts the missing inode, and the inodes after it in the same part. Parts overlap: each
    /// begins with an inode, not with a leaf. So what is in memory is not decoded again.
    fn insert_inodes(&mut self, wanted: u64, laid: &Laid) -> Result<()> {
        let geometry = self.layout.geometry;
        let (mut last, mut is_there, mut known) = (wanted, false, 0);
        let mut found: Option<Assembly> = None;
        for (key, value) in laid.iter() {
            let key = Key::decode(key)?;
            match key {
                Key::Inode(ino) => {
                    self.insert_inode(found.take());
                    (last, is_there) = (ino, is_there || ino == wanted);
                    match self.names.has_node(ino) {
                        true => known = ino,
                        false => found = Some(Assembly::new(ino, key, value, &geometry)?),
                    }
                }
                Key::Target(ino, _) | Key::Xattr(ino, ..) if ino == known => {}
                // Newer changes may contain entries, which are skipped here.
                Key::Entry(..) => {}
                _ => match &mut found {
                    Some(found) => found.add(key, value, &geometry)?,
                    None => return Err(lone(key)),
                },
            }
        }
        self.insert_inode(found);
        if !is_there && !self.names.has_node(wanted) {
            self.names.note_absent(wanted);
        }
        self.names.loaded_to(last.saturating_add(1));
        Ok(())
    }

    /// Inserts an inode, unless it is in memory already (load.Q22).
    fn insert_inode(&mut self, found: Option<Assembly>) {
        let Some((ino, mut node)) = found.map(Assembly::finish) else { return };
        // An inode number that was never given out is not accepted, even if an image contains it.
        if self.names.has_node(ino) || ino >= self.names.counters().next_ino() {
            return;
        }
        if node.inode.data_id != 0 {
            self.map.set_owner(node.inode.data_id, ino);
        }
        let end = node.inode.size.div_ceil(self.layout.block_bytes());
        self.map.end_lost(node.inode.data_id, end);
        // The log may have a smaller size, which a checkpoint corrects (logged.Q2). No record may
        // have a larger one while content is lost.
        let data_id = node.inode.data_id;
        node.regrow |=
            self.files.sync_errors().left_out().contains_key(&data_id) || self.has_lost(data_id);
        self.names.keep(ino, node);
    }

    fn insert_entries(&mut self, dir: u64, cookies: Range<u64>, laid: &Laid) -> Result<()> {
        let (now, kept_from) = (self.names.cache().now(), self.names.cache().kept_from());
        let geometry = self.layout.geometry;
        let insert = |node: &mut Node| {
            for (key, value) in laid.iter() {
                let key = Key::decode(key)?;
                let (Key::Entry(_, cookie), Item::Entry(entry)) =
                    (key, Item::decode(key, value, &geometry)?)
                else {
                    return Err(corrupt("tree", format!("{key:?} among entries")));
                };
                node.entries.load(cookie, entry.name, (entry.child, entry.kind));
            }
            node.entries.loaded(cookies, now, kept_from);
            Ok(())
        };
        let done = self.names.update(dir, insert).unwrap_or(Ok(()));
        self.names.recount(dir);
        done
    }
}
