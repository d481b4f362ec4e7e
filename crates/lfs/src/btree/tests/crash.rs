//! Power losses during a checkpoint of a tree on a device: the old root can be read in every state
//! that the power loss may leave.
//!
//! No locks.

use super::work::{Shape, batch};
use super::{Model, apply, geometry, scan};
use crate::btree::{
    Change, DeviceStore, Ledger, NodeCache, Tree, TreeChanges, checkpoint, empty_root,
};
use crate::format::superblock::TreeRoot;
use crate::fuzz::make::{Make, seal};
use forebay_base::sim_world::SimWorld;
use forebay_base::{ErrorKind, Result};
use forebay_block::bdev::flush_blocking;
use forebay_block::bio::BioOp;
use forebay_sim::{Fault, FaultRule, SimConfig, SimDisk};
use std::sync::Arc;

const DATA_START: u64 = 16_384;

fn config(max_transfer: u32) -> SimConfig {
    let size = DATA_START + (4 << geometry().segment_shift);
    SimConfig { size, max_transfer, ..SimConfig::default() }
}

fn open(disk: &SimDisk, used: u32) -> (Arc<DeviceStore>, Tree) {
    let device = Arc::new(disk.clone());
    let store = DeviceStore::new(device, geometry(), DATA_START, 0..4, used).unwrap();
    let store = Arc::new(store);
    let tree = Tree::new(store.clone(), Arc::new(NodeCache::new(0)), geometry(), seal());
    (store, tree)
}

fn read_back(disk: &SimDisk, root: &TreeRoot) -> Result<Model> {
    let (_, tree) = open(disk, 0);
    disk.world().run(scan(&tree, root))
}

/// The files' tree and another one, both changed by one checkpoint.
async fn change(
    tree: &Tree,
    roots: &[TreeRoot],
    changes: &[Vec<Change>],
    birth: u64,
) -> Result<Vec<TreeRoot>> {
    let mut streams: Vec<_> = changes.iter().map(|changes| changes.iter().cloned()).collect();
    let mut trees: Vec<TreeChanges<'_>> = roots
        .iter()
        .zip(&mut streams)
        .map(|(root, changes)| TreeChanges { root: *root, changes })
        .collect();
    let done = checkpoint(tree, &mut trees, birth, &mut Ledger::default()).await?;
    Ok(done.into_iter().map(|merged| merged.root).collect())
}

struct Setup {
    disk: SimDisk,
    used: u32,
    roots: Vec<TreeRoot>,
    models: [Model; 2],
    changes: Vec<Vec<Change>>,
    after: [Model; 2],
}

fn setup(seed: u64, max_transfer: u32) -> Setup {
    let mut make = Make(seed);
    let world = SimWorld::new(seed);
    let disk = SimDisk::new(world.clone(), config(max_transfer));
    let (store, tree) = open(&disk, 0);
    let mut models = [Model::new(), Model::new()];
    let shapes = [Shape::LongExtents, Shape::Clustered];
    let first = [0, 1].map(|n| batch(&mut make, shapes[n], 30, &models[n]));
    let empty = [empty_root(1, 0), empty_root(16, 0)];
    let all = store.pairs_left();
    let roots = world.run(async {
        let roots = change(&tree, &empty, &first, 1).await.unwrap();
        flush_blocking(&disk).await.result.unwrap();
        roots
    });
    let used = (all - store.pairs_left()) as u32;
    models.iter_mut().zip(&first).for_each(|(model, changes)| apply(model, changes));
    let changes = vec![
        batch(&mut make, Shape::LongExtents, 12, &models[0]),
        batch(&mut make, Shape::DeleteRun, 9, &models[1]),
    ];
    let mut after = models.clone();
    after.iter_mut().zip(&changes).for_each(|(model, changes)| apply(model, changes));
    assert_ne!(models, after);
    Setup { disk, used, roots, models, changes, after }
}

/// btree.B11, write.B54, checkpoint.B71, checkpoint.B72 at every request of the checkpoint.
#[test]
fn old_roots_read_after_any_power_loss() {
    let setup = setup(3, 8192);
    let (mut states, mut torn) = (0, 0);
    let mut n = 0;
    loop {
        let disk = setup.disk.in_world(SimWorld::new(100 + n));
        disk.power_off_after(n);
        let (_, tree) = open(&disk, setup.used);
        let done = disk.world().run(change(&tree, &setup.roots, &setup.changes, 2));
        for (at, state) in disk.crash_states().enumerate() {
            states += 1;
            let after = state.mount(SimWorld::new(at as u64));
            for (root, model) in setup.roots.iter().zip(&setup.models) {
                let found = read_back(&after, root);
                assert_eq!(found.as_ref().ok(), Some(model), "request {n}, {}", state.label);
            }
            // Without a flush a new tree reads completely or is corrupt; it never has other
            // content.
            for (root, model) in done.iter().flatten().zip(&setup.after) {
                match read_back(&after, root) {
                    Ok(found) => assert_eq!(found, *model, "request {n}, {}", state.label),
                    Err(e) => {
                        torn += 1;
                        assert!(matches!(e.kind(), ErrorKind::Corrupt), "{e}");
                    }
                }
            }
        }
        if let Ok(roots) = done {
            assert!(!disk.is_off());
            flushed(&setup, &disk, &roots);
            break;
        }
        assert!(disk.is_off(), "request {n}: only the power loss fails it");
        n += 1;
    }
    assert!(n > 12 && states > 1000 && torn > 10, "{n} requests, {states} states, {torn} torn");
}

/// checkpoint.B71: after a flush the new roots are in every state, and the old ones still are.
fn flushed(setup: &Setup, disk: &SimDisk, roots: &[TreeRoot]) {
    disk.heal();
    let again = disk.in_world(SimWorld::new(1));
    again.world().run(async { flush_blocking(&again).await.result.unwrap() });
    for state in again.crash_states() {
        let after = state.mount(SimWorld::new(2));
        for (root, model) in roots.iter().zip(&setup.after) {
            assert_eq!(read_back(&after, root).unwrap(), *model, "{}", state.label);
        }
        for (root, model) in setup.roots.iter().zip(&setup.models) {
            assert_eq!(read_back(&after, root).unwrap(), *model, "{}", state.label);
        }
    }
}

/// device.B91, device.B92: adjacent nodes are written in one transfer. When no place is free, the
/// merge fails, and the places that it took can be given back.
#[test]
fn neighbouring_nodes_are_written_in_long_transfers() {
    let setup = setup(5, 1 << 20);
    let writes: Vec<_> = setup.disk.log();
    let writes = writes.iter().filter(|entry| entry.op == BioOp::Write);
    let (count, bytes) = writes.fold((0, 0), |(n, bytes), entry| (n + 1, bytes + entry.len));
    assert_eq!(bytes, u64::from(setup.used) * 2 * 4096, "each copy once");
    assert!(count <= 4 * (1 + setup.used / 32), "{count} transfers for {} nodes", setup.used);
    let (store, tree) = open(&setup.disk, setup.used);
    let world = setup.disk.world().clone();
    let mut make = Make(5);
    let large = batch(&mut make, Shape::LongExtents, 4000, &Model::new());
    let mut ledger = Ledger::default();
    let root = setup.roots[0];
    let left = store.pairs_left();
    let mut stream = large.into_iter();
    let failed = world.run(tree.merge(&root, &mut stream, 3, &mut ledger)).unwrap_err();
    assert_eq!((failed.kind(), store.pairs_left()), (ErrorKind::NoSpace, 0));
    store.give_back(&ledger.taken);
    assert_eq!(store.pairs_left(), left);
    assert_eq!(world.run(scan(&tree, &root)).unwrap(), setup.models[0], "the old one is there");
}

/// One sector of each node is damaged on the medium, in one copy or the other.
#[test]
fn bad_sector_in_one_copy_loses_nothing() {
    let setup = setup(6, 1 << 20);
    let segments = u64::from(geometry().segment_bytes()) * 2;
    for n in 0..u64::from(setup.used) {
        let copy = if n % 2 == 0 { 0 } else { segments };
        setup.disk.rot(DATA_START + copy + n * 4096 + n % 8 * 512);
    }
    for (root, model) in setup.roots.iter().zip(&setup.models) {
        assert_eq!(read_back(&setup.disk, root).unwrap(), *model);
    }
}

/// device.B93: one transfer fails; when that is reported, no other transfer of the batch is in
/// flight.
#[test]
fn failed_batch_leaves_no_write_in_flight() {
    for nth in 1..=8 {
        let setup = setup(7, 8192);
        let disk = setup.disk.in_world(SimWorld::new(nth));
        disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).nth(nth));
        let (_, tree) = open(&disk, setup.used);
        let done = disk.world().run(change(&tree, &setup.roots, &setup.changes, 2));
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Io, "write {nth}");
        let log = disk.log();
        assert!(log.iter().all(|entry| entry.done.is_some()), "write {nth}: some are in flight");
        assert!(log.iter().any(|entry| entry.fault.is_some()), "write {nth} was to fail");
        for (root, model) in setup.roots.iter().zip(&setup.models) {
            assert_eq!(read_back(&disk, root).unwrap(), *model, "write {nth}");
        }
    }
}

/// A device that reports one write as done but loses, tears, flips or misdirects it. The copies of
/// each node are far apart, so the other copy is intact.
#[test]
fn misreported_write_of_one_copy_loses_nothing() {
    let setup = setup(8, 8192);
    for fault in [Fault::Lost, Fault::Torn, Fault::Flip, Fault::Misdirect] {
        for nth in 1..=8 {
            let disk = setup.disk.in_world(SimWorld::new(nth));
            disk.inject(FaultRule::on(BioOp::Write, fault).nth(nth));
            let (_, tree) = open(&disk, setup.used);
            let done = disk.world().run(change(&tree, &setup.roots, &setup.changes, 2));
            let what = format!("{fault:?} at write {nth}");
            let roots = done.expect(&what);
            assert!(disk.log().iter().any(|entry| entry.fault.is_some()), "{what}");
            for (root, model) in roots.iter().zip(&setup.after) {
                assert_eq!(read_back(&disk, root).expect(&what), *model, "{what}");
            }
        }
    }
}
