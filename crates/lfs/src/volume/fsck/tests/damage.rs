//! Findings on volumes with several kinds of damage do not depend on the memory of the check
//! (fsck.E16), and a check writes nothing (fsck.E12).

use super::super::scan::{Name, Scan, inode_of};
use super::*;
use crate::btree::Seen;
use crate::format::item::Item;
use crate::map::overlay::Where;
use crate::tests::reuse::flip;
use forebay_block::BioOp;
use forebay_vfs::{FileKind, FileSystem, Ino, NewInode, OpenFlags};

const FILES: u64 = 150;

/// A volume with files of a block in nested directories.
struct Lab {
    volume: Volume,
    files: Vec<u64>,
    dirs: Vec<u64>,
}

impl Lab {
    async fn new(disk: &SimDisk) -> Self {
        let volume = open(&setup(0), disk).await.unwrap();
        let (mut files, mut dirs) = (Vec::new(), vec![ROOT_INO]);
        for n in 0..FILES {
            let dir = Ino(*dirs.last().unwrap());
            let (name, of) = (format!("n{n}"), |kind| NewInode::of(kind, 0o755));
            let name = forebay_vfs::Name::new(name.as_bytes()).unwrap();
            if n % 30 == 29 {
                let made = volume.mkdir(dir, name, &of(FileKind::Directory)).await;
                dirs.push(made.unwrap().ino.0);
                continue;
            }
            let made = volume.create(dir, name, &of(FileKind::File), OpenFlags::WRITE).await;
            let (attr, file) = made.unwrap();
            write(&file, 0, &[n as u8; 4096]).await.unwrap();
            files.push(attr.ino.0);
        }
        volume.syncfs().await.unwrap();
        volume.checkpoint().await.unwrap();
        Self { volume, files, dirs }
    }

    async fn inode(&self, ino: u64) -> Inode {
        inode_of(&self.volume.0, ino).await.unwrap().unwrap()
    }

    async fn change(&self, ino: u64, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(ino).await;
        change(&mut inode);
        let (item, mut state) = (Item::Inode(inode), self.volume.0.state.lock());
        state.put_item(Key::Inode(ino), &item);
    }

    fn remove(&self, ino: u64) {
        self.volume.0.state.lock().remove_item(Key::Inode(ino).to_bytes());
    }

    /// Device offsets of both copies of each leaf, without the root.
    async fn leaves(&self) -> Vec<[u64; 2]> {
        let (root, mut leaves) = (self.volume.0.state.lock().tree().root(), Vec::new());
        let mut seen = |seen: Seen<'_>| {
            if let Seen::Node(places, 0) = seen {
                leaves.push(places.map(|place| self.volume.0.layout.device_offset(place)));
            }
        };
        self.volume.0.tree.check(&root, &mut seen).await.unwrap();
        leaves
    }

    /// How many of the leaves, which begin with them, have inodes and entries.
    async fn name_leaves(&self) -> usize {
        let (root, mut leaves, mut names) = (self.volume.0.state.lock().tree().root(), 0, 0);
        let mut seen = |seen: Seen<'_>| match seen {
            Seen::Node(_, 0) => leaves += 1,
            Seen::Item(Key::Inode(_) | Key::Entry(..), _) => names = leaves,
            _ => {}
        };
        self.volume.0.tree.check(&root, &mut seen).await.unwrap();
        names
    }

    /// Device offset of the block of a file.
    async fn block(&self, ino: u64) -> u64 {
        let (piece, _) = self.volume.0.piece_at(self.inode(ino).await.data_id, 0).await.unwrap();
        let Where::Run(place) = piece.at else { panic!("{piece:?}") };
        self.volume.0.layout.device_offset(place)
    }

    /// Maps the block of a file into another one, too.
    async fn share(&self, from: u64, to: u64) {
        let [from, to] = [self.inode(from).await.data_id, self.inode(to).await.data_id];
        let (piece, _) = self.volume.0.piece_at(from, 0).await.unwrap();
        self.volume.0.state.lock().put_piece(to, 7, &piece);
    }
}

/// The findings after this damage, which a checkpoint stores. It returns device offsets at which a
/// bit is flipped afterwards.
fn damaged(damage: impl AsyncFnOnce(&Lab) -> Vec<u64>) -> Vec<Finding> {
    let disk = setup(0).blank();
    let flips = disk.world().run(async {
        let lab = Lab::new(&disk).await;
        let flips = damage(&lab).await;
        lab.volume.checkpoint().await.unwrap();
        flips
    });
    disk.world().stop();
    flips.iter().for_each(|at| flip(&disk, *at));
    findings(&disk)
}

fn count(findings: &[Finding], kind: FindingKind) -> usize {
    findings.iter().filter(|finding| finding.kind == kind).count()
}

async fn damage_links(lab: &Lab) -> Vec<u64> {
    for n in 0..40 {
        lab.change(lab.files[3 * n], |inode| inode.nlink += 1 + n as u32 % 2).await;
    }
    lab.change(lab.dirs[1], |inode| inode.nlink += 1).await;
    lab.change(lab.dirs[2], |inode| inode.parent = ROOT_INO).await;
    lab.remove(lab.dirs[3]);
    lab.remove(lab.files[1]);
    Vec::new()
}

async fn damage_stored(lab: &Lab) -> Vec<u64> {
    for n in 0..20 {
        lab.change(lab.files[5 * n], |inode| inode.stored_bytes += 4096 * n as u64).await;
        lab.remove(lab.files[5 * n + 1]);
    }
    Vec::new()
}

async fn damage_places(lab: &Lab) -> Vec<u64> {
    for n in 0..30 {
        lab.share(lab.files[n], lab.files[n + 60]).await;
    }
    Vec::new()
}

async fn damage_content(lab: &Lab) -> Vec<u64> {
    let mut flips = Vec::new();
    for n in 0..30 {
        flips.push(lab.block(lab.files[4 * n]).await);
    }
    flips
}

/// fsck.E16, window.E17: with tables that hold one segment, one inode and one data id the findings
/// are the same. [`findings`] compares them.
#[test]
fn findings_do_not_depend_on_memory() {
    use FindingKind::{Content, Name as Named, Tree, Usage};
    assert_eq!(damaged(async |_| Vec::new()), []);
    let found = damaged(damage_links);
    assert!(count(&found, Named) > 60 && count(&found, Tree) > 0, "{found:#?}");
    let found = damaged(damage_stored);
    assert_eq!([Usage, Tree].map(|kind| count(&found, kind)), [19, 20], "{found:#?}");
    let found = damaged(damage_places);
    assert!(count(&found, Tree) == 30 && found.iter().any(|f| f.text.contains("overlap")));
    let found = damaged(damage_content);
    assert_eq!(count(&found, Content), found.len());
    assert_eq!(found.len(), 30);
    let is_named = |f: &Finding| f.path.as_ref().is_some_and(|path| path.starts_with(b"/n"));
    assert!(found.iter().all(is_named), "{found:#?}");
    let found = damaged(async |lab| {
        let flips = damage_content(lab).await;
        damage_places(lab).await;
        damage_links(lab).await;
        damage_stored(lab).await;
        flips
    });
    for kind in [Content, Named, Tree, Usage] {
        assert!(count(&found, kind) > 10, "{kind:?}: {found:#?}");
    }
}

/// stored.E14, names.E23: nothing is reported about stored bytes, usage, links and loops if a leaf
/// is lost, not even the loop that lies in front of it. Of another leaf one copy is bad.
#[test]
fn lost_leaf_hides_counts_of_the_rest() {
    use FindingKind::{Copy, Name as Named, Tree, Usage};
    let found = damaged(async |lab| {
        damage_links(lab).await;
        damage_stored(lab).await;
        lab.change(lab.dirs[1], |inode| inode.parent = lab.dirs[1]).await;
        // The names are more than a part of a scan, and the leaf is in the last part.
        for n in 0..100 {
            let name = format!("m{n}");
            let name = forebay_vfs::Name::new(name.as_bytes()).unwrap();
            let new = NewInode::of(FileKind::File, 0o644);
            lab.volume.mknod(Ino::ROOT, name, &new).await.unwrap();
        }
        lab.volume.checkpoint().await.unwrap();
        let (leaves, names) = (lab.leaves().await, lab.name_leaves().await);
        let lost = leaves[names - 1];
        assert!(names > 4, "{leaves:?}");
        vec![leaves[1][0], lost[0], lost[1]]
    });
    let counts = [Copy, Named, Tree, Usage].map(|kind| count(&found, kind));
    assert_eq!(counts, [1, 0, 2, 0], "{found:#?}");
    assert!(found.last().unwrap().text.starts_with("names cannot be read"), "{found:#?}");
}

/// The story: a check lists the first thousand problems of a tree. With more bad copies than that
/// it did not count a lost leaf behind them, and called the volume complete.
#[test]
fn leaf_lost_behind_many_bad_copies_is_damage() {
    let mut setup = setup(0);
    setup.volume_bytes = 32 << 20;
    let disk = setup.blank();
    let leaves = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        {
            let mut state = volume.0.state.lock();
            let item = Item::Inode(Inode { mode: 0o100_644, nlink: 1, ..Inode::default() });
            for ino in 2..32_000 {
                state.put_item(Key::Inode(ino), &item);
            }
        }
        volume.checkpoint().await.unwrap();
        Lab { volume, files: Vec::new(), dirs: Vec::new() }.leaves().await
    });
    disk.world().stop();
    assert!(leaves.len() > 1001, "{}", leaves.len());
    leaves.iter().for_each(|leaf| flip(&disk, leaf[0]));
    // An opening reads the last leaf, for orphans.
    flip(&disk, leaves[leaves.len() - 2][1]);
    let report = crate::tests::reuse::check(&disk.in_world(SimWorld::new(2)));
    let counts = [FindingKind::Copy, FindingKind::Usage].map(|kind| count(&report.findings, kind));
    assert_eq!(counts, [1001, 0], "the last one counts the rest");
    let more = report.findings.iter().find(|f| f.text == "tree 1: 1 more problems").unwrap();
    assert!(more.kind == FindingKind::Tree && !report.is_complete(), "{more:?}");
}

/// scan.E21: a scan in parts returns the inodes and entries of the tree and of later changes.
#[test]
fn scan_returns_all_names_in_order() {
    let disk = setup(0).blank();
    disk.world().run(async {
        let lab = Lab::new(&disk).await;
        damage_links(&lab).await;
        let volume = &lab.volume.0;
        let mut all = Vec::new();
        for (key, value) in volume.names().await.unwrap() {
            let key = Key::decode(key.as_slice()).unwrap();
            match Item::decode(key, &value, &volume.layout.geometry).unwrap() {
                Item::Inode(inode) => all.push((key, Some(inode), None)),
                Item::Entry(entry) => all.push((key, None, Some(entry.name.to_vec()))),
                _ => {}
            }
        }
        assert!(all.len() > 280, "more than a part: {}", all.len());
        let (mut scan, mut wanted) = (Scan::all(volume), all.into_iter());
        while let Some(item) = scan.next().await.unwrap() {
            let wanted = wanted.next().expect("E21: one more item");
            match item {
                Name::Inode(ino, inode) => assert_eq!(wanted, (Key::Inode(ino), Some(inode), None)),
                Name::Entry { dir, name, .. } => {
                    assert!(matches!(wanted.0, Key::Entry(of, _) if of == dir));
                    assert_eq!(wanted.2.as_deref(), Some(&*name));
                }
            }
        }
        assert_eq!(wanted.next(), None, "E21");
    });
    disk.world().stop();
}

/// fsck.E12: a check writes nothing, neither to a healthy volume nor to a damaged one.
#[test]
fn check_writes_nothing() {
    for is_damaged in [false, true] {
        let disk = setup(0).blank();
        disk.world().run(async {
            let lab = Lab::new(&disk).await;
            if is_damaged {
                damage_links(&lab).await;
                damage_stored(&lab).await;
                lab.volume.checkpoint().await.unwrap();
            }
        });
        disk.world().stop();
        let disk = disk.power_cut(1).in_world(SimWorld::new(2));
        let device: DeviceRef = Arc::new(disk.clone());
        let world: WorldRef = disk.world().clone();
        let report = disk.world().run(fsck(&device, &world, &mut |_| ())).unwrap();
        disk.world().stop();
        assert_eq!(report.is_clean(), !is_damaged, "{:?}", report.findings);
        let log = disk.log();
        assert!(!log.is_empty() && log.iter().all(|entry| entry.op == BioOp::Read), "E12");
    }
}
