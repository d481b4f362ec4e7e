//! Lists directories, and all names for tools.
//!
//! Locks: the state lock, taken briefly. No lock is held across a wait.

use crate::format::corrupt;
use crate::format::item::Item;
use crate::format::key::{Cookie, Key, KeyBytes};
use crate::names::directory::Child;
use crate::names::evict::Ahead;
use crate::names::inode::kind_of;
use crate::names::load::{Laid, Part};
use crate::volume::Inner;
use forebay_base::Result;
use forebay_vfs::{DirEntry, Ino, rules};
use std::collections::BTreeMap;

impl Inner {
    /// All tree items of names and attributes. For tests and tools.
    pub(crate) async fn names(&self) -> Result<BTreeMap<KeyBytes, Box<[u8]>>> {
        let keys = (Key::Inode(0), Key::Inode(0), Key::Extent(0, 0));
        loop {
            let root = self.state.lock().tree().root();
            let part = Part::read(&self.tree, root, keys, (usize::MAX, 0)).await;
            let state = self.state.lock();
            if state.tree().root() == root
                && let Some(laid) = state.over(part?)
            {
                let items = laid.iter().map(|(key, value)| (KeyBytes::copy_of(key), value.into()));
                return Ok(items.collect());
            }
        }
    }

    /// Returns up to `max` entries of a directory after a cookie. They come from memory if all
    /// following entries are there, otherwise from the tree and the changes. Entries from the tree
    /// are not cached.
    pub(crate) async fn list(
        &self,
        dir: Ino,
        after: forebay_vfs::Cookie,
        max: usize,
    ) -> Result<Vec<DirEntry>> {
        let (mut listed, mut after) = (Vec::new(), after.0);
        loop {
            let noatime = self.options.noatime;
            let first = self.tried(|state, now| {
                rules::live_directory(state, "readdir", dir)?;
                let left = max - listed.len();
                let node = state.get("readdir", dir)?;
                let (entries, ahead) =
                    (node.entries.list(after, left), Ahead::of_entries(node.inode.size));
                let there = entries.map(|entries| entries.map(listed_entry).collect::<Vec<_>>());
                state.touch_atime(dir, now, noatime);
                Ok((there, state.tree().root(), ahead))
            });
            let (root, ahead) = match first.await? {
                (Some(there), ..) => {
                    listed.extend(there);
                    return Ok(listed);
                }
                (None, root, ahead) => (root, ahead),
            };
            let Some(from) = next_cookie(after) else { return Ok(listed) };
            let end = Key::Inode(dir.0 + 1);
            let keys = (Key::Entry(dir.0, from), Key::Entry(dir.0, from), end);
            let part = Part::read(&self.tree, root, keys, (max - listed.len(), ahead)).await;
            let state = self.state.lock();
            if state.tree().root() != root {
                continue;
            }
            let part = part?;
            let upto = part.end();
            let laid = state.over(part);
            drop(state);
            for (key, value) in laid.iter().flat_map(Laid::iter) {
                let key = Key::decode(key)?;
                let item = Item::decode(key, value, &self.layout.geometry)?;
                let (Key::Entry(_, cookie), Item::Entry(entry)) = (key, item) else {
                    return Err(corrupt("tree", format!("{key:?} among entries")));
                };
                after = cookie.to_u64();
                listed.push(listed_entry((after, entry.name, (entry.child, entry.kind))));
                if listed.len() == max {
                    return Ok(listed);
                }
            }
            match Key::decode(upto.as_slice()) {
                // The next read begins with the entry at `upto`.
                Ok(Key::Entry(there, cookie)) if there == dir.0 => after = cookie.to_u64() - 1,
                _ => return Ok(listed),
            }
        }
    }
}

/// The first cookie above `after`. None: there is none.
fn next_cookie(after: u64) -> Option<Cookie> {
    let next = after.saturating_add(1).max(Cookie::FIRST.to_u64());
    Cookie::from_u64(next)
}

fn listed_entry((cookie, name, (ino, kind)): (u64, &[u8], Child)) -> DirEntry {
    let cookie = forebay_vfs::Cookie(cookie);
    DirEntry { cookie, ino: Ino(ino), kind: kind_of(kind), name: name.into() }
}
