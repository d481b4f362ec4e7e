//! Holes whose stores the mount's kernel writes back before they are reported as holes.
//!
//! No locks.

use super::*;

/// coherent.Z3. Each hole of a fragmented file cost a wait for the mount's kernel, one after the
/// other; and with one wait for all of them, other changes would wait behind a million notices.
#[test]
fn holes_are_handed_over_in_groups_with_one_wait_each() {
    let (_fs, mount, file) = held_back();
    let holes: Vec<_> = (0..1000).map(|n| n * 8192..n * 8192 + 4096).collect();
    let waits = |holes: &[Range<u64>]| {
        mount.waited.lock().clear();
        mount.handed.lock().clear();
        let room = Arc::new(AtomicBool::new(false));
        let theirs = room.clone();
        let act = move || theirs.store(true, Ordering::Relaxed);
        *mount.meanwhile.lock() = Some(Box::new(act));
        assert!(block_on(file.hand_over_holes(holes)));
        assert!(room.load(Ordering::Relaxed), "it waits for space");
        assert_eq!(mount.handed.lock().len(), holes.len());
        mount.waited.lock().len()
    };
    assert_eq!((waits(&holes), waits(&holes[..1])), (4, 1));
    mount.holds.store(false, Ordering::Relaxed);
    assert!(!block_on(file.hand_over_holes(&holes)), "there is nothing to write back");
}
