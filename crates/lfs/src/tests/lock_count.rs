//! How often each operation takes the state lock, the one lock that all files of a volume share.
//!
//! No locks.

use crate::tests::reuse::{create, open, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::IoFlags;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_sim::{CrashState, SimDisk};
use forebay_vfs::types::relatime;
use forebay_vfs::{
    Attr, FileKind, FileSystem, Ino, ManualClock, Name, NewInode, OpenFileRef, OpenFlags,
    Privileges, RenameFlags, SetAttr, SetTime,
};
use std::sync::Arc;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A volume whose clock the test moves.
struct Fixture {
    volume: Volume,
    clock: Arc<ManualClock>,
    disk: SimDisk,
}

fn test_setup() -> Setup {
    Setup { inode_cache_bytes: 1 << 20, ..setup(64 << 10) }
}

impl Fixture {
    /// Runs `test` on a new volume. Files `a` and `b`, of one block each, exist and are in memory.
    fn run<F: Future<Output = ()>>(test: impl FnOnce(Self) -> F) {
        let setup = test_setup();
        let disk = setup.blank();
        disk.world().run(async {
            let device: DeviceRef = Arc::new(disk.clone());
            let world: WorldRef = disk.world().clone();
            let clock = Arc::new(ManualClock::default());
            let options = OpenOptions { clock: clock.clone(), ..setup.options(&world) };
            let volume = Volume::open(&device, &world, &options).await.unwrap();
            for name in ["a", "b"] {
                let (_, file) = create(&volume, name).await.unwrap();
                write(&file, 0, &[1; 4096]).await.unwrap();
                file.sync(false).await.unwrap();
            }
            world.sleep(Duration::from_secs(1)).await;
            clock.advance(SECOND);
            test(Self { volume, clock, disk: disk.clone() }).await;
        });
        disk.world().stop();
    }

    /// How often `op` takes the lock, and its result.
    async fn count<T>(&self, op: impl Future<Output = T>) -> (u64, T) {
        self.clock.advance(SECOND);
        let before = self.volume.0.state.acquisitions();
        let done = op.await;
        (self.volume.0.state.acquisitions() - before, done)
    }

    async fn open(&self, name: &str) -> OpenFileRef {
        let ino = self.look_up(name).await.ino;
        self.volume.open(ino, BOTH).await.unwrap()
    }

    async fn look_up(&self, name: &str) -> Attr {
        self.volume.lookup(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await.unwrap()
    }

    async fn attr(&self, file: &OpenFileRef) -> Attr {
        self.volume.getattr(file.ino()).await.unwrap()
    }
}

/// The attributes of file `a` after a power loss.
fn after_crash(state: &CrashState) -> Attr {
    let disk = state.mount(SimWorld::new(2));
    let attr = disk.world().run(async {
        let volume = open(&test_setup(), &disk).await.unwrap();
        volume.lookup(Ino::ROOT, Name::new(b"a").unwrap()).await.unwrap()
    });
    disk.world().stop();
    attr
}

/// times_wanted.S23: an fsync makes the times of a file durable, with the content that it writes,
/// or without any; an fdatasync does not.
#[test]
fn s23_fsync_makes_times_durable_with_or_without_content() {
    let mut cuts = Vec::new();
    Fixture::run(async |fixture| {
        let file = fixture.open("a").await;
        for written in [&[][..], &[true], &[true, false]] {
            fixture.clock.advance(SECOND);
            let before = fixture.attr(&file).await.mtime;
            write(&file, 0, &[2; 4096]).await.unwrap();
            let now = fixture.attr(&file).await.mtime;
            assert!(now > before);
            for data_only in written.iter().copied().chain([false]) {
                file.sync(data_only).await.unwrap();
                let wanted = if data_only { before } else { now };
                cuts.push((fixture.disk.cut_state(1), wanted));
            }
        }
    });
    for (n, (state, wanted)) in cuts.iter().enumerate() {
        assert_eq!(after_crash(state).mtime, *wanted, "S23: sync {n}");
    }
}

fn read_cached(file: &OpenFileRef) {
    let mut bytes = [0; 4096];
    let done = file.try_read(0, &mut bytes, IoFlags::empty()).expect("it is cached");
    assert_eq!(done.unwrap(), 4096);
}

fn overwrite(file: &OpenFileRef) {
    let done = file.try_write(0, &[2; 4096], IoFlags::empty(), Privileges::Drop);
    done.expect("its block is dirty").unwrap();
}

/// admission.P27. The story: each write that dirtied a new block took the lock to ask for its
/// space, so threads that wrote different files waited for each other. Now one hold grants the
/// space of many such writes. A look at the ledger ends the rest of it.
#[test]
fn lock_count_of_new_blocks_is_zero_within_advance() {
    Fixture::run(async |fixture| {
        let (a, b) = (fixture.open("a").await, fixture.open("b").await);
        for file in [&a, &b] {
            // The first growth of an opened file looks what is behind its end.
            write(file, 4096, &[2; 4096]).await.unwrap();
        }
        let look = || fixture.volume.room_bytes();
        let count = async |file: &OpenFileRef, block: u64| {
            fixture.count(write(file, 4096 * block, &[2; 4096])).await.0
        };
        look();
        assert_eq!(count(&a, 2).await, 1, "it asks for space, and for more in advance");
        assert_eq!(count(&a, 3).await, 0, "a new block at the end");
        assert_eq!(count(&b, 4).await, 0, "a new block of another file, behind a hole");
        look();
        assert_eq!(count(&b, 3).await, 1, "P27: the look has ended the advance");
        assert_eq!(count(&b, 2).await, 0, "a block in the hole");
    });
}

/// The story: each cached read and each write took the lock to move times, which mostly did not
/// have to move. Threads that used different files waited for each other. Only the first access
/// after a change still takes it.
#[test]
fn lock_count_of_cached_reads_and_overwrites_is_zero() {
    Fixture::run(async |fixture| {
        let file = fixture.open("a").await;
        read_cached(&file);
        assert_eq!(fixture.count(async { read_cached(&file) }).await.0, 0, "a cached read");
        write(&file, 0, &[2; 4096]).await.unwrap();
        assert_eq!(
            fixture.count(async { overwrite(&file) }).await.0,
            0,
            "an overwrite, dirty block"
        );
        // The write moved the times, so the read that follows moves its own once.
        assert_eq!(
            fixture.count(async { read_cached(&file) }).await.0,
            1,
            "the first read behind it"
        );
        assert_eq!(fixture.count(async { read_cached(&file) }).await.0, 0, "the second one");
        assert_eq!(fixture.count(async { overwrite(&file) }).await.0, 0, "an overwrite again");
        // A day later relatime moves the time of reads.
        let attr = fixture.attr(&file).await;
        fixture.clock.advance(24 * 60 * 60 * SECOND);
        read_cached(&file);
        assert!(fixture.attr(&file).await.atime > attr.atime);
    });
}

/// state.S14, inode_table.S16, open_times.S20: times that moved without the lock are those that
/// `stat` shows, that a sync makes durable, and that `utimensat` replaces. The next write drops
/// privileges (set-user-id) that were set in between.
#[test]
fn times_moved_without_the_lock_are_shown_synced_and_replaced() {
    Fixture::run(async |fixture| {
        let file = fixture.open("a").await;
        write(&file, 0, &[2; 4096]).await.unwrap();
        let first = fixture.attr(&file).await;
        fixture.count(async { overwrite(&file) }).await;
        let second = fixture.attr(&file).await;
        assert!(second.mtime > first.mtime && second.ctime == second.mtime, "S20: stat shows them");
        let state = || fixture.volume.0.state.lock();
        let recorded = |time: &dyn Fn(&crate::format::inode::Inode) -> i64| {
            time(&state().names().node(file.ino().0).unwrap().recorded)
        };
        assert!(recorded(&|inode| inode.mtime.seconds) < second.mtime.sec, "S14: not yet");
        file.sync(false).await.unwrap();
        assert_eq!(
            recorded(&|inode| inode.mtime.seconds),
            second.mtime.sec,
            "S16: a sync has them"
        );
        // An explicit time holds until the next write.
        write(&file, 0, &[3; 4096]).await.unwrap();
        let set = SetAttr {
            mtime: Some(SetTime::To(first.mtime)),
            perm: Some(0o4755),
            ..SetAttr::default()
        };
        fixture.volume.setattr(file.ino(), &set).await.unwrap();
        assert_eq!(fixture.attr(&file).await.mtime, first.mtime, "S20: utimensat replaces them");
        fixture.count(async { overwrite(&file) }).await;
        let last = fixture.attr(&file).await;
        assert_eq!(last.perm, 0o755, "S20: the write dropped set-user-id");
        assert!(last.mtime > second.mtime);
        assert!(relatime(&last, last.mtime), "a read moves its time now");
        read_cached(&file);
        assert!(fixture.attr(&file).await.atime >= last.mtime, "S21");
    });
}

/// One hold for a change of names. An fdatasync takes three, one in each of its steps: the grant,
/// with the bound on changes; the publish, with the end of the reservation; the group, which is
/// taken, planned and counted as log, with the check of what is due. The next hold of any task
/// learns that the group is durable (state_lock.S22). For an fsync the publish records the times
/// (times_wanted.S23). A clean fdatasync takes none: sizes, tickets, outstanding content and errors
/// are read from atomics (content.D13, queue.L14).
#[test]
fn lock_count_of_names_and_syncs_stays_low() {
    Fixture::run(async |fixture| {
        let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
        let mut found = Vec::new();
        let (locks, made) = fixture.count(create(&fixture.volume, "c")).await;
        let (_, file) = made.unwrap();
        found.push(("create", locks));
        // The close, and one check of closed files with pending write-back.
        found.push(("close", fixture.count(async { drop(file) }).await.0));
        let looked_up = fixture.volume.lookup(Ino::ROOT, name("a"));
        found.push(("look up", fixture.count(looked_up).await.0));
        let ino = fixture.look_up("a").await.ino;
        let (locks, file) = fixture.count(fixture.volume.open(ino, BOTH)).await;
        let file = file.unwrap();
        found.push(("open of a cached file", locks));
        // The mapping is looked up, continued and attached; the fourth is for `atime`.
        found.push(("its first read", fixture.count(async { read_cached(&file) }).await.0));
        found.push(("getattr", fixture.count(fixture.volume.getattr(ino)).await.0));
        // Nothing of the file is cached, so it needs no look at the cache.
        let unlinked = fixture.volume.unlink(Ino::ROOT, name("c"));
        found.push(("unlink", fixture.count(unlinked).await.0));
        write(&file, 0, &[2; 4096]).await.unwrap();
        found.push(("fdatasync, one dirty block", fixture.count(file.sync(true)).await.0));
        found.push(("fdatasync, clean", fixture.count(file.sync(true)).await.0));
        write(&file, 0, &[2; 4096]).await.unwrap();
        found.push(("fsync, one dirty block", fixture.count(file.sync(false)).await.0));
        found.push(("fsync, clean", fixture.count(file.sync(false)).await.0));
        write(&file, 4096, &[2; 4096]).await.unwrap();
        found.push(("fdatasync, one new block", fixture.count(file.sync(true)).await.0));
        // The attributes of the reply are those of the hold that has set them.
        let set = SetAttr { perm: Some(0o640), ..SetAttr::default() };
        found.push(("setattr", fixture.count(fixture.volume.setattr(ino, &set)).await.0));
        let wanted = [
            ("create", 1),
            ("close", 2),
            ("look up", 1),
            ("open of a cached file", 1),
            ("its first read", 4),
            ("getattr", 1),
            ("unlink", 1),
            ("fdatasync, one dirty block", 3),
            ("fdatasync, clean", 0),
            ("fsync, one dirty block", 3),
            ("fsync, clean", 1),
            ("fdatasync, one new block", 3),
            ("setattr", 1),
        ];
        assert_eq!(found, wanted);
    });
}

/// A mount removes names by one call (removals.R6 of the FUSE server). The story: it looked the
/// inode up and opened it before, with a hold for each, so an unlink took the lock four times.
#[test]
fn lock_count_of_removals_by_a_mount_is_one() {
    Fixture::run(async |fixture| {
        let (volume, root) = (&fixture.volume, Ino::ROOT);
        let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
        let (ino, other) = (fixture.look_up("a").await.ino, fixture.look_up("b").await.ino);
        let directory = NewInode::of(FileKind::Directory, 0o700);
        let directory = volume.mkdir(root, name("d"), &directory).await.unwrap().ino;
        volume.link(ino, root, name("l")).await.unwrap();
        create(volume, "c").await.unwrap();
        let unlink = |text| volume.remove_keeping(root, name(text), false, &|_| true);
        let (locks, kept) = fixture.count(unlink("a")).await;
        assert!(locks == 1 && kept.unwrap().is_none(), "{locks} holds: it has another name");
        let (locks, kept) = fixture.count(unlink("l")).await;
        let file = kept.unwrap().expect("it lost its last name");
        assert_eq!((locks, file.ino()), (1, ino), "UNLINK");
        let rmdir = volume.remove_keeping(root, name("d"), true, &|_| true);
        let (locks, kept) = fixture.count(rmdir).await;
        let removed = kept.unwrap().expect("a directory has one name");
        assert_eq!((locks, removed.ino()), (1, directory), "RMDIR");
        let none = RenameFlags::empty();
        let rename = volume.rename_keeping((root, name("c")), (root, name("b")), none, &|_| true);
        let (locks, kept) = fixture.count(rename).await;
        let replaced = kept.unwrap().expect("it lost its last name");
        assert_eq!((locks, replaced.ino()), (2, other), "RENAME, with the look at mappings");
        // fs.F3: the inodes live as long as they are open.
        for (file, ino) in [(file, ino), (removed, directory), (replaced, other)] {
            assert_eq!(volume.getattr(ino).await.unwrap().nlink, 0);
            drop(file);
            assert!(volume.getattr(ino).await.is_err(), "{ino:?} has neither name nor opener");
        }
        let kept = volume.remove_keeping(root, name("b"), false, &|_| false).await;
        assert!(kept.unwrap().is_none(), "the kernel does not know it");
        // A removal that fails opens nothing.
        let full = NewInode::of(FileKind::Directory, 0o700);
        let full = volume.mkdir(root, name("full"), &full).await.unwrap().ino;
        let new = NewInode::of(FileKind::File, 0o600);
        volume.mknod(full, name("f"), &new).await.unwrap();
        for is_directory in [true, false] {
            let done = volume.remove_keeping(root, name("full"), is_directory, &|_| true).await;
            assert!(done.is_err(), "it is a directory with an entry");
        }
        let same = (root, name("full"));
        assert!(volume.rename_keeping(same, same, none, &|_| true).await.unwrap().is_none());
        assert_eq!(volume.0.state.lock().names().node(full.0).unwrap().opens, 0);
    });
}
