//! Names and attributes in memory, in the changes and in the tree: what is loaded, and what the
//! three have together.
//!
//! No locks.

use crate::checkpoint::How;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::names::evict::Ahead;
use crate::names::load::{self, Part};
use crate::names::lookup::Want;
use crate::tests::reuse::{create, open, setup, write};
use crate::tests::seeds;
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_base::{ErrorKind, Result};
use forebay_block::DeviceRef;
use forebay_sim::{PowerCut, SimDisk};
use forebay_vfs::{
    FileKind, FileSystem, Ino, ManualClock, Name, NewInode, RenameFlags, SetAttr, SetXattr,
    XattrName,
};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const FILE: NewInode = NewInode::of(FileKind::File, 0o644);

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

async fn set_perm(volume: &Volume, ino: Ino, perm: u16) -> Result<()> {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    volume.setattr(ino, &set).await.map(drop)
}

/// Polls a future once. True if it waits.
async fn waits<F: Future<Output = Result<()>>>(mut future: Pin<&mut F>) -> bool {
    let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    match polled {
        Poll::Ready(done) => done.unwrap(),
        Poll::Pending => return true,
    }
    false
}

async fn pause(disk: &SimDisk) {
    World::sleep(&**disk.world(), Duration::from_micros(10)).await;
}

/// Reads an inode from the newest tree, as a load does before it takes the lock.
async fn read_inode(volume: &Volume, ino: Ino) -> Part {
    let root = volume.0.state.lock().tree().root();
    let ahead = Ahead { items: 1, leaves: 1, end: None, is_window: false, meanwhile: 0 };
    load::read(&volume.0.tree, root, Want::Inode(ino.0), ahead).await.unwrap()
}

/// Inserts an inode that was read. False: it was read from an older tree.
fn insert(volume: &Volume, ino: Ino, part: Part) -> bool {
    volume.0.state.lock().insert_part(Want::Inode(ino.0), part).unwrap()
}

/// The permissions of an inode in memory.
fn perm(volume: &Volume, ino: Ino) -> Option<u16> {
    volume.0.state.lock().names().node(ino.0).map(crate::names::node::Node::perm)
}

/// load.Q21: an inode that was read from the tree before a change of it, and is inserted after the
/// change, has the change: while it is new, and while a checkpoint has frozen it. When that
/// checkpoint has replaced the tree, the inode is not inserted. An inode that was removed since is
/// not inserted either.
#[test]
fn q21_inode_read_before_change_is_inserted_with_it() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let ino = volume.mknod(Ino::ROOT, name("f"), &FILE).await.unwrap().ino;
        volume.checkpoint().await.unwrap();
        let forget = || drop(volume.0.state.lock().forget_node(ino.0));
        let [new, frozen, merged] = [
            read_inode(&volume, ino).await,
            read_inode(&volume, ino).await,
            read_inode(&volume, ino).await,
        ];
        set_perm(&volume, ino, 0o600).await.unwrap();
        forget();
        assert!(insert(&volume, ino, new));
        assert_eq!(perm(&volume, ino), Some(0o600), "Q21: the change is new");
        {
            let mut making = pin!(volume.0.checkpoints.make(How::Log));
            while volume.0.state.lock().tree().unmerged_items().is_none() {
                assert!(waits(making.as_mut()).await, "it freezes the changes first");
                pause(&disk).await;
            }
            forget();
            assert!(insert(&volume, ino, frozen));
            assert_eq!(perm(&volume, ino), Some(0o600), "Q21: the change is frozen");
            making.await.unwrap();
        }
        forget();
        assert!(!insert(&volume, ino, merged), "Q21: the tree was replaced");
        assert_eq!(perm(&volume, ino), None);
        assert_eq!(volume.getattr(ino).await.unwrap().perm, 0o600);
        let removed = read_inode(&volume, ino).await;
        volume.unlink(Ino::ROOT, name("f")).await.unwrap();
        assert!(insert(&volume, ino, removed));
        assert_eq!(perm(&volume, ino), None, "Q21: it was removed");
        assert_eq!(volume.getattr(ino).await.unwrap_err().kind(), ErrorKind::Stale);
    });
    disk.world().stop();
}

/// load.Q22: an inode in memory has openers and times that no record has. A load that ends later
/// leaves it alone.
#[test]
fn q22_load_replaces_no_inode_in_memory() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let (volume, clock) = with_clock(&setup, &disk).await;
        let (ino, file) = create(&volume, "f").await.unwrap();
        volume.syncfs().await.unwrap();
        volume.checkpoint().await.unwrap();
        let part = read_inode(&volume, ino).await;
        clock.advance(1_000_000_000);
        write(&file, 0, &[1; 100]).await.unwrap();
        let seen = || {
            let state = volume.0.state.lock();
            state.names().node(ino.0).map(|node| (node.opens, node.content.is_some()))
        };
        let (before, attr) = (seen(), volume.getattr(ino).await.unwrap());
        assert_eq!(before, Some((1, true)));
        assert!(insert(&volume, ino, part));
        assert_eq!(seen(), before, "Q22: it stays");
        assert_eq!(volume.getattr(ino).await.unwrap(), attr, "Q22: with its times and its size");
        file.sync(true).await.unwrap();
    });
    disk.world().stop();
}

/// Opens the volume with a clock that the test advances.
async fn with_clock(setup: &Setup, disk: &SimDisk) -> (Volume, Arc<ManualClock>) {
    let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
    let clock = Arc::new(ManualClock::default());
    let options = OpenOptions { clock: clock.clone(), ..setup.options(&world) };
    (Volume::open(&device, &world, &options).await.unwrap(), clock)
}

/// Names and attributes in readable form, by key in stored form.
type AllItems = BTreeMap<Vec<u8>, String>;

/// All names and attributes according to the tree and the changes over it, in readable form. A
/// checkpoint counts the stored bytes of inodes, so they are left out.
async fn items(volume: &Volume) -> AllItems {
    let (inner, geometry) = (&volume.0, volume.0.layout.geometry);
    loop {
        let root = inner.state.lock().tree().root();
        let keys = (Key::Inode(0), Key::Inode(0), Key::Extent(0, 0));
        let part = Part::read(&inner.tree, root, keys, (usize::MAX, 0)).await.unwrap();
        let Some(laid) = inner.state.lock().over(part) else { continue };
        let shown = |(bytes, value): (&[u8], &[u8])| {
            let key = Key::decode(bytes).unwrap();
            let mut item = Item::decode(key, value, &geometry).unwrap();
            if let Item::Inode(inode) = &mut item {
                inode.stored_bytes = 0;
            }
            (bytes.to_vec(), format!("{key:?}: {item:?}"))
        };
        return laid.iter().map(shown).collect();
    }
}

/// Names and attributes as a recovery finds them after a power loss.
async fn recovered(setup: &Setup, disk: &SimDisk) -> AllItems {
    let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
    let options = OpenOptions { read_only: true, ..setup.options(&world) };
    let volume = Volume::open(&device, &world, &options).await.unwrap();
    assert!(volume.0.state.lock().names().items().len() > 0, "it replays a log");
    items(&volume).await
}

/// A random change of one of 40 files; errors, such as that it does not exist, are answers.
async fn change(volume: &Volume, mut pick: impl FnMut(u64) -> u64) -> Result<()> {
    let (text, other) = (format!("f{}", pick(40)), format!("f{}", pick(40)));
    let (at, value) = (name(&text), vec![7; pick(3000) as usize]);
    let xattr = XattrName::new(if pick(2) == 0 { b"user.a" } else { b"user.b" }).unwrap();
    let ino = volume.lookup(Ino::ROOT, at).await.map(|attr| attr.ino);
    match pick(9) {
        0 | 1 => volume.mknod(Ino::ROOT, at, &FILE).await.map(drop),
        2 => volume
            .symlink(Ino::ROOT, at, &value, &NewInode::of(FileKind::Symlink, 0o777))
            .await
            .map(drop),
        3 => volume.unlink(Ino::ROOT, at).await,
        4 => volume.rename(Ino::ROOT, at, Ino::ROOT, name(&other), RenameFlags::empty()).await,
        5 => volume.link(ino?, Ino::ROOT, name(&other)).await.map(drop),
        6 => set_perm(volume, ino?, 0o400 | pick(0o400) as u16).await,
        7 => volume.setxattr(ino?, xattr, &value, SetXattr::Any).await,
        _ => volume.removexattr(ino?, xattr).await,
    }
}

/// Changes files for some rounds. Returns the items after each round, and the disk at that moment.
/// `has_checkpoints`: checkpoints follow some rounds, and change nothing in each of their steps.
fn changed_items(seed: u64, has_checkpoints: bool) -> Vec<(AllItems, PowerCut)> {
    // So large that the length of the log makes no checkpoint due.
    let setup = Setup { volume_bytes: 64 << 20, ..setup(0) };
    let mut all = Vec::new();
    let disk = setup.blank_of(seed);
    disk.world().run(async {
        let (volume, clock) = with_clock(&setup, &disk).await;
        let (ino, file) = create(&volume, "open").await.unwrap();
        let number = volume.0.checkpoints.number();
        let mut rng = seed;
        let mut pick = |n: u64| split_mix(&mut rng) % n;
        for round in 0..6 {
            for _ in 0..40 {
                clock.advance(1_000_000_000);
                // Answers are not of interest.
                drop(change(&volume, &mut pick).await);
            }
            write(&file, 0, &[round; 10]).await.unwrap();
            let before = items(&volume).await;
            let moved = volume.getattr(ino).await.unwrap().mtime.sec.to_string();
            let text = &before[Key::Inode(ino.0).to_bytes().as_slice()];
            assert!(!text.contains(&moved), "A11: a time that is ahead of the log: {text}");
            volume.0.commit_queue().await.unwrap();
            all.push((before.clone(), disk.cut_now()));
            if !has_checkpoints || round % 2 == 0 {
                continue;
            }
            let mut making = pin!(volume.0.checkpoints.make(How::Log));
            while waits(making.as_mut()).await {
                assert_eq!(items(&volume).await, before, "A11: seed {seed}, round {round}");
                pause(&disk).await;
            }
            assert_eq!(items(&volume).await, before, "A11: seed {seed}, round {round}");
        }
        assert_eq!(volume.0.checkpoints.number() > number, has_checkpoints);
    });
    disk.world().stop();
    all
}

/// items.A11: the tree, the frozen items and the active items together have what the records say:
/// the same in each step of a checkpoint, the same as without any checkpoint, and what a recovery
/// finds that replays the records. Times that are ahead of the log are in none of them.
#[test]
fn a11_tree_and_changes_have_what_all_records_say() {
    for seed in seeds(4) {
        let (merged, changed) = (changed_items(seed, true), changed_items(seed, false));
        for (round, (merged, changed)) in merged.iter().zip(&changed).enumerate() {
            assert_eq!(merged.0, changed.0, "A11: seed {seed}, round {round}: without checkpoints");
        }
        for (before, cut) in merged {
            let crashed = cut.state(&[]).mount(SimWorld::new(seed));
            let found = crashed.world().run(recovered(&setup(0), &crashed));
            crashed.world().stop();
            assert_eq!(found, before, "A11: seed {seed}: replayed");
        }
    }
}
