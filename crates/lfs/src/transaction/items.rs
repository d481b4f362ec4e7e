//! Reads names and attributes that an opening needs from the tree.
//!
//! No locks: during opening nothing else uses the volume.

use crate::btree::{Cursor, Tree};
use crate::format::key::Key;
use crate::format::superblock::TreeRoot;
use crate::transaction::state::State;
use forebay_base::Result;

/// Reads the orphans in the tree below `root` into the state.
pub(crate) async fn load_orphans(tree: &Tree, root: &TreeRoot, state: &mut State) -> Result<()> {
    let mut orphans = Cursor::new(Key::Orphan(0), Some(Key::Usage(0)));
    while let Some(found) = orphans.next(tree, root).await? {
        if let (Key::Orphan(ino), _) = found.decode(tree.geometry())? {
            state.load_orphan(ino);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::layout::Layout;
    use crate::format::change::Change;
    use crate::format::corrupt;
    use crate::format::extent::Extent;
    use crate::format::inode::Inode;
    use crate::format::key::{Cookie, NameHash};
    use crate::format::place::{Geometry, Seal};

    const NONCE: [u8; 16] = [1; 16];
    const INO: u64 = 7;

    fn apply(state: &mut State, change: &Change<'_>) {
        let nowhere = |_: &Extent<'_>| Err(corrupt("test", "there is no content"));
        state.apply(change, &nowhere).unwrap();
    }

    /// items.A12: an attribute keeps its cookie when its value is replaced, and when another one
    /// with the same hash is removed. A new name gets the lowest number that is free then.
    #[test]
    fn a12_attribute_keeps_its_cookie_while_it_exists() {
        let (geometry, seal) = (Geometry::with_segment_shift(20), Seal::new(&NONCE));
        let (nonce, data_start, align) = (NONCE, 16384, 512);
        let mut state =
            State::new(Layout { geometry, seal, nonce, data_start, segments: 9, align });
        let inode = Inode { mode: 0o100_644, nlink: 1, data_id: 5, ..Inode::default() };
        apply(&mut state, &Change::CreateInode(INO, inode, &[]));
        let (first, second) = (&b"user.a"[..], &b"user.b"[..]);
        let cookie = |nth| Cookie::new(NameHash::new(&NONCE, second), nth);
        let of = |state: &State| state.names.node(INO).unwrap().cookies.get(second).copied();
        let has = |state: &State, nth| {
            state
                .names
                .items()
                .get(Key::Xattr(INO, cookie(nth), 0))
                .is_some_and(|item| item.is_some())
        };
        apply(&mut state, &Change::SetXattr(INO, first, b"1"));
        // As if both names had this hash.
        state.names.update(INO, |node| node.cookies.insert(first.into(), cookie(0)));
        apply(&mut state, &Change::SetXattr(INO, second, b"2"));
        assert_eq!((of(&state), has(&state, 1)), (Some(cookie(1)), true), "the first has 0");
        apply(&mut state, &Change::RemoveXattr(INO, first));
        apply(&mut state, &Change::SetXattr(INO, second, b"3"));
        assert_eq!((of(&state), has(&state, 1)), (Some(cookie(1)), true), "A12: it keeps its own");
        assert!(!has(&state, 0));
        apply(&mut state, &Change::RemoveXattr(INO, second));
        assert_eq!((of(&state), has(&state, 1)), (None, false));
        apply(&mut state, &Change::SetXattr(INO, second, b"4"));
        assert_eq!((of(&state), has(&state, 0)), (Some(cookie(0)), true), "A12: the lowest");
    }
}
