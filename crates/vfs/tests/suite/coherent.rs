//! Tests of [`NotifyingFs`], with a mount that records what it is told.
//!
//! No locks.

use forebay_base::buf::AlignedBuf;
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use forebay_base::task::block_on;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::coherent::{Change, NotifyingFs, Observer, Ticket};
use forebay_vfs::*;
use hooked::Hooked;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

mod extends;
mod holes;
mod hooked;

#[derive(Default)]
struct Mount {
    told: Mutex<Vec<Change>>,
    /// Told before.
    about_to: Mutex<Vec<Ino>>,
    /// Names that are being changed.
    changing: Mutex<Vec<(Ino, Box<[u8]>)>>,
    /// Announced inodes whose change is over.
    over: Mutex<Vec<Ino>>,
    /// An append of a program is on its way for ever.
    appending: AtomicBool,
    /// Asked for and handed over; numbers that were waited for.
    handed: Mutex<Vec<(Ino, u64, u64)>>,
    waited: Mutex<Vec<u64>>,
    kept: Mutex<Vec<OpenFileRef>>,
    holds: AtomicBool,
    /// What differs from bytes that are read, if that is known.
    differing: Mutex<Option<Vec<Range<u64>>>>,
    /// Runs while bytes that were read are compared, as the mount's kernel.
    in_comparison: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Writes of stores that have taken effect.
    store_writes: AtomicU64,
    /// Telling takes for ever.
    stuck: AtomicBool,
    /// Runs when the next change is announced, as a program on the mount.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Whether no program has looked the file up.
    is_unknown: AtomicBool,
    /// A program does so when the next change is announced.
    looks_up: AtomicBool,
    /// Runs after the next lookup, as a program on the mount.
    after_lookup: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Observer for Mount {
    fn knows(&self, _: Ino) -> bool {
        let after_lookup = self.after_lookup.lock().take();
        if let Some(act) = after_lookup {
            act();
        }
        !self.is_unknown.load(Ordering::Relaxed)
    }
    fn keep(&self, file: OpenFileRef) {
        self.kept.lock().push(file);
    }
    fn holds_back(&self, _: Ino) -> bool {
        self.holds.load(Ordering::Relaxed)
    }
    fn hand_over(&self, ino: Ino, offset: u64, len: u64) -> Ticket {
        self.handed.lock().push((ino, offset, len));
        Ticket(1000)
    }
    fn differing<'a>(
        &'a self,
        _: Ino,
        offset: u64,
        bytes: &'a [u8],
    ) -> BoxFuture<'a, Vec<Range<u64>>> {
        let act = self.in_comparison.lock().take();
        if let Some(act) = act {
            act();
        }
        let all = offset..offset + bytes.len() as u64;
        let differing = self.differing.lock().take().unwrap_or_else(|| vec![all]);
        Box::pin(std::future::ready(differing))
    }
    fn store_writes(&self, _: Ino) -> u64 {
        self.store_writes.load(Ordering::SeqCst)
    }
    fn will_change(&self, ino: Ino) -> BoxFuture<'_, ()> {
        self.about_to.lock().push(ino);
        if self.looks_up.load(Ordering::Relaxed) {
            self.is_unknown.store(false, Ordering::Relaxed);
        }
        match self.appending.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => Box::pin(std::future::ready(())),
        }
    }
    fn change_over(&self, ino: Ino) {
        let is_early = self.told.lock().is_empty();
        let may_be = [&self.appending, &self.looks_up].iter().any(|b| b.load(Ordering::Relaxed));
        assert!(!is_early || may_be, "reported before it is over");
        self.over.lock().push(ino);
    }
    fn will_change_name(&self, dir: Ino, name: &[u8]) -> BoxFuture<'_, ()> {
        self.changing.lock().push((dir, name.into()));
        match self.appending.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => Box::pin(std::future::ready(())),
        }
    }
    fn name_change_over(&self, dir: Ino, name: &[u8]) {
        let mut changing = self.changing.lock();
        let at = changing.iter().position(|(d, n)| *d == dir && **n == *name);
        changing.remove(at.expect("it was begun"));
    }
    fn changed(&self, change: &Change) -> Ticket {
        let mut told = self.told.lock();
        told.push(change.clone());
        Ticket(told.len() as u64)
    }
    fn room(&self) -> BoxFuture<'_, ()> {
        let meanwhile = self.meanwhile.lock().take();
        if let Some(act) = meanwhile {
            act();
        }
        Box::pin(std::future::ready(()))
    }
    fn told(&self, ticket: Ticket) -> BoxFuture<'_, ()> {
        self.waited.lock().push(ticket.0);
        match self.stuck.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => Box::pin(std::future::ready(())),
        }
    }
}

fn lab() -> (NotifyingFs, Arc<Mount>) {
    lab_on(Arc::new(MemFs::default()))
}

fn lab_on(below: Arc<dyn FileSystem>) -> (NotifyingFs, Arc<Mount>) {
    let (notifying, mount) = (NotifyingFs::new(below), Arc::new(Mount::default()));
    let observer: Weak<Mount> = Arc::downgrade(&mount);
    notifying.observe(observer).unwrap();
    (notifying, mount)
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn entry(text: &str, gone: Option<Ino>) -> Change {
    Change::Entry { dir: Ino::ROOT, name: text.as_bytes().into(), gone }
}

const ROOT: Change = Change::Attributes(Ino::ROOT);

/// coherent.Z1: each change is reported and acknowledged by the mount before its caller returns.
#[test]
fn z1_change_is_notified_before_acknowledgement() {
    let (fs, mount) = lab();
    let root = Ino::ROOT;
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let new = NewInode::of(FileKind::File, 0o644);
    let expect = |told: &[Change]| {
        assert_eq!(*mount.told.lock(), told);
        assert_eq!(mount.waited.lock().pop(), Some(told.len() as u64), "{told:?}");
        mount.told.lock().clear();
        assert!(mount.changing.lock().is_empty(), "each change of a name is over");
    };
    let (attr, file) = block_on(fs.create(root, name("f"), &new, both)).unwrap();
    expect(&[entry("f", None), ROOT]);
    let content = |offset, len, end| Change::Content { ino: attr.ino, offset, len, end };
    file.write_slice(5, b"abc", IoFlags::empty(), Privileges::Drop).unwrap();
    expect(&[content(5, 3, Some((8, b'c')))]);
    assert!(file.try_write(5, b"abc", IoFlags::empty(), Privileges::Drop).is_none());
    block_on(file.write(1, AlignedBuf::copy_of(b"x"), IoFlags::APPEND, Privileges::Drop))
        .1
        .unwrap();
    expect(&[content(8, u64::MAX, Some((9, b'x')))]);
    block_on(file.fallocate(Fallocate::PunchHole, 1, 2, Privileges::Drop)).unwrap();
    expect(&[content(1, 2, None)]);
    block_on(fs.setattr(attr.ino, &SetAttr::size(4))).unwrap();
    expect(&[content(4, u64::MAX, Some((4, 0)))]);
    block_on(fs.setattr(attr.ino, &SetAttr::size(100))).unwrap();
    expect(&[content(4, u64::MAX, Some((100, 0)))]);
    block_on(fs.open(attr.ino, both | OpenFlags::TRUNCATE)).unwrap();
    expect(&[content(0, u64::MAX, None)]);
    block_on(fs.link(attr.ino, root, name("g"))).unwrap();
    expect(&[entry("g", None), ROOT, Change::Attributes(attr.ino)]);
    block_on(fs.rename(root, name("g"), root, name("h"), RenameFlags::empty())).unwrap();
    expect(&[entry("g", None), ROOT, entry("h", None), ROOT, Change::Attributes(attr.ino)]);
    let key = XattrName::new(b"user.a").unwrap();
    block_on(fs.setxattr(attr.ino, key, b"1", SetXattr::Any)).unwrap();
    expect(&[Change::Attributes(attr.ino)]);
    block_on(fs.rmdir(root, name("h"))).unwrap_err();
    expect(&[entry("h", None), ROOT, Change::Attributes(attr.ino)]);
    block_on(fs.unlink(root, name("h"))).unwrap();
    expect(&[entry("h", None), ROOT, Change::Attributes(attr.ino)]);
    block_on(fs.unlink(root, name("f"))).unwrap();
    expect(&[entry("f", Some(attr.ino)), ROOT, Change::Attributes(attr.ino)]);
}

/// coherent.Z1: a caller that is dropped halfway.
#[test]
fn z1_change_without_waiter_is_notified() {
    let below = Arc::new(Hooked::default());
    below.is_stuck.store(true, Ordering::Relaxed);
    let (fs, mount) = lab_on(below.clone());
    let mode = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    let mut never = fs.setattr(Ino::ROOT, &mode);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(never.as_mut().poll(&mut cx).is_pending() && mount.told.lock().is_empty());
    // An append by a program between the change and its telling went where the file had ended
    // before.
    let size = SetAttr::size(0);
    let mut write = fs.setattr(Ino(9), &size);
    assert!(write.as_mut().poll(&mut cx).is_pending());
    assert_eq!(*mount.about_to.lock(), [Ino(9)], "before it is done");
    assert!(mount.over.lock().is_empty());
    drop(write);
    assert_eq!(mount.over.lock().pop(), Some(Ino(9)));
    // Before it was made.
    mount.appending.store(true, Ordering::Relaxed);
    below.is_stuck.store(false, Ordering::Relaxed);
    let mut write = fs.setattr(Ino(8), &size);
    assert!(write.as_mut().poll(&mut cx).is_pending() && mount.over.lock().is_empty());
    drop(write);
    assert_eq!(mount.over.lock().pop(), Some(Ino(8)), "each that was begun is over");
    mount.appending.store(false, Ordering::Relaxed);
    mount.told.lock().clear();
    drop(never);
    assert_eq!(*mount.told.lock(), [ROOT]);
}

/// coherent.Z3: data held back is written before the range is read or written here.
#[test]
fn z3_data_held_by_mount_is_requested_first() {
    let (fs, mount) = lab();
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let new = NewInode::of(FileKind::File, 0o644);
    let (attr, file) = block_on(fs.create(Ino::ROOT, name("f"), &new, both)).unwrap();
    file.write_slice(0, b"abc", IoFlags::empty(), Privileges::Drop).unwrap();
    assert!(mount.handed.lock().is_empty(), "nothing is");
    assert!(file.try_read(0, &mut [0; 3], IoFlags::empty()).is_some());
    mount.holds.store(true, Ordering::Relaxed);
    assert!(file.try_read(0, &mut [0; 3], IoFlags::empty()).is_none());
    file.read_slice(1, &mut [0; 2], IoFlags::empty()).unwrap();
    file.write_slice(7, b"abc", IoFlags::empty(), Privileges::Drop).unwrap();
    assert_eq!(*mount.handed.lock(), [(attr.ino, 1, 2), (attr.ino, 7, 3)]);
    assert!(mount.waited.lock().ends_with(&[1000, mount.told.lock().len() as u64]));
}

/// A file of three pages, the second a hole, in which a mount may hold stores back.
fn held_back() -> (NotifyingFs, Arc<Mount>, OpenFileRef) {
    held_back_on(Arc::new(MemFs::default()))
}

fn held_back_on(below: Arc<dyn FileSystem>) -> (NotifyingFs, Arc<Mount>, OpenFileRef) {
    let (fs, mount) = lab_on(below);
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let new = NewInode::of(FileKind::File, 0o644);
    let (_, file) = block_on(fs.create(Ino::ROOT, name("f"), &new, both)).unwrap();
    for offset in [0, 8192] {
        file.write_slice(offset, &[7; 4096], IoFlags::empty(), Privileges::Drop).unwrap();
    }
    mount.holds.store(true, Ordering::Relaxed);
    (fs, mount, file)
}

/// coherent.Z3: a hand-over makes the mount's kernel drop pages, so a read asks for what differs
/// alone. A backup by the library dropped every page of a file that a program had open for writing.
#[test]
fn z3_read_hands_over_only_what_differs() {
    let (_fs, mount, file) = held_back();
    let none = IoFlags::empty();
    let handed = || std::mem::take(&mut *mount.handed.lock());
    let ino = file.ino();
    for (differing, wanted) in
        [(vec![], vec![]), (vec![4096..8192, 9000..9001], vec![(ino, 4096, 4096), (ino, 9000, 1)])]
    {
        let set = || *mount.differing.lock() = Some(differing.clone());
        set();
        assert_eq!(file.read_slice(0, &mut [0; 12_288], none).unwrap(), 12_288);
        assert_eq!(handed(), wanted, "read_slice");
        set();
        assert_eq!(block_on(file.read(0, AlignedBuf::new(9000), none)).1.unwrap(), 9000);
        assert_eq!(handed(), wanted, "read");
        set();
        file.hand_over(0, 12_288, none).unwrap();
        assert_eq!(handed(), wanted, "pins");
    }
}

/// coherent.Z3. Two readers: each has read a page from before a store that the mount holds back.
/// One of them has it handed over, so the kernel writes the store and drops the page. The other one
/// finds an absent page, and must not take it for an equal one.
#[test]
fn z3_read_sees_store_whose_page_is_dropped_before_its_comparison() {
    let (fs, mount, file) = held_back();
    let (none, ino) = (IoFlags::empty(), file.ino());
    let first = |store: u8, read: &dyn Fn() -> u8| {
        let (below, its_mount) = (fs.inner().clone(), mount.clone());
        let other_reader = move || {
            let file = block_on(below.open(ino, OpenFlags::WRITE)).unwrap();
            file.write_slice(0, &[store; 4096], IoFlags::empty(), Privileges::Keep).unwrap();
            its_mount.store_writes.fetch_add(1, Ordering::SeqCst);
        };
        *mount.in_comparison.lock() = Some(Box::new(other_reader));
        *mount.differing.lock() = Some(vec![]);
        let found = read();
        assert!(mount.in_comparison.lock().is_none(), "it was compared");
        found
    };
    let slice = || {
        let mut bytes = [0; 4096];
        assert_eq!(file.read_slice(0, &mut bytes, none).unwrap(), 4096);
        bytes[0]
    };
    let owned = || block_on(file.read(0, AlignedBuf::new(4096), none)).0[0];
    assert_eq!((first(1, &slice), first(2, &owned)), (1, 2));
    assert!(mount.handed.lock().is_empty(), "no page differed");
}

/// A store can only make data of a hole: a seek hands over holes. It handed over the complete
/// file.
#[test]
fn z3_seek_hands_over_holes_alone() {
    let (_fs, mount, file) = held_back();
    let seek = |what, offset| {
        let found = block_on(file.seek(what, offset)).ok();
        let handed = std::mem::take(&mut *mount.handed.lock());
        (found, handed.into_iter().map(|(_, offset, len)| (offset, len)).collect::<Vec<_>>())
    };
    assert_eq!(seek(Seek::Data, 100), (Some(100), vec![]));
    assert_eq!(seek(Seek::Data, 5000), (Some(8192), vec![(5000, 3192)]));
    assert_eq!(seek(Seek::Hole, 0), (Some(4096), vec![(4096, 4096)]));
    assert_eq!(seek(Seek::Hole, 8192), (Some(12_288), vec![]), "the end");
    assert_eq!(seek(Seek::Data, 12_288), (None, vec![]));
}

/// Each append made the mount's kernel drop all pages of the file: a record of 50 bytes evicted a
/// large log. It changes nothing in front of the end, except if it fails: then its place is
/// unknown.
#[test]
fn append_hands_over_and_reports_from_the_end_on() {
    let (fs, mount, file) = held_back();
    let (ino, append) = (file.ino(), IoFlags::APPEND);
    let seen = || {
        let Change::Content { offset, len, .. } = mount.told.lock().pop().unwrap() else {
            panic!("it is of content")
        };
        (std::mem::take(&mut *mount.handed.lock()), offset, len)
    };
    let reader = block_on(fs.open(ino, OpenFlags::READ)).unwrap();
    let from = |end, place| (vec![(ino, end, u64::MAX)], place, u64::MAX);
    file.write_slice(0, b"abc", append, Privileges::Drop).unwrap();
    assert_eq!(seen(), from(12_288, 12_288));
    block_on(file.write(0, AlignedBuf::copy_of(b"x"), append, Privileges::Drop)).1.unwrap();
    assert_eq!(seen(), from(12_291, 12_291));
    reader.write_slice(0, b"abc", append, Privileges::Drop).unwrap_err();
    assert_eq!(seen(), from(12_292, 0));
    mount.holds.store(false, Ordering::Relaxed);
    file.write_slice(0, b"abc", append, Privileges::Drop).unwrap();
    assert_eq!(seen(), (vec![], 12_292, u64::MAX));
}

/// With `NOWAIT` nothing waits for the kernel of a mount.
#[test]
fn nowait_read_does_not_wait_for_a_mount() {
    let (_fs, mount, file) = held_back();
    mount.stuck.store(true, Ordering::Relaxed);
    let flags = IoFlags::NOWAIT;
    let kind = |e: forebay_base::Error| e.kind();
    let would_block = Err(ErrorKind::WouldBlock);
    assert_eq!(file.read_slice(0, &mut [0; 3], flags).map_err(kind), would_block);
    let (buf, done) = block_on(file.read(0, AlignedBuf::new(3), flags));
    assert_eq!((buf.len(), done.map_err(kind)), (3, would_block));
    assert_eq!(file.hand_over(0, 3, flags).map_err(kind), Err(ErrorKind::WouldBlock));
    mount.holds.store(false, Ordering::Relaxed);
    file.hand_over(0, 3, flags).unwrap();
    assert_eq!(file.read_slice(0, &mut [0; 3], flags).unwrap(), 3);
}

/// coherent.Z4, and one mount at a time.
#[test]
fn z4_inode_without_name_is_kept() {
    let (fs, mount) = lab();
    let new = NewInode::of(FileKind::File, 0o644);
    let made = |text| block_on(fs.mknod(Ino::ROOT, name(text), &new)).unwrap().ino;
    let (a, b, c) = (made("a"), made("b"), made("c"));
    block_on(fs.unlink(Ino::ROOT, name("a"))).unwrap();
    block_on(fs.rename(Ino::ROOT, name("c"), Ino::ROOT, name("b"), RenameFlags::empty())).unwrap();
    let kept: Vec<Ino> = mount.kept.lock().iter().map(|file| file.ino()).collect();
    assert_eq!(kept, [a, b]);
    assert_eq!(block_on(fs.getattr(a)).unwrap().nlink, 0);
    assert_eq!(block_on(fs.lookup(Ino::ROOT, name("b"))).unwrap().ino, c);
    let other: Weak<Mount> = Arc::downgrade(&mount);
    assert_eq!(fs.observe(other.clone()).unwrap_err().kind(), ErrorKind::Busy);
    fs.forget();
    fs.observe(other).unwrap();
}

/// The story: the library checked whether its `create` would truncate a file, and found none. A
/// program on the mount created one before the truncation, and the kernel kept its cached content.
#[test]
fn create_that_truncates_a_file_made_meanwhile_reports_its_content() {
    let (fs, mount) = lab();
    let new = NewInode::of(FileKind::File, 0o644);
    let below = fs.inner().clone();
    let act = move || {
        let (_, file) =
            block_on(below.create(Ino::ROOT, name("f"), &new, OpenFlags::WRITE)).unwrap();
        file.write_slice(0, b"kept", IoFlags::empty(), Privileges::Keep).unwrap();
    };
    *mount.meanwhile.lock() = Some(Box::new(act));
    let how = OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let (attr, _) = block_on(fs.create(Ino::ROOT, name("f"), &new, how)).unwrap();
    assert_eq!(attr.size, 0);
    assert!(mount.meanwhile.lock().is_none());
    let told = mount.told.lock();
    assert!(told.contains(&Change::content(attr.ino, 0, u64::MAX)), "{told:?}");
    assert_eq!(mount.over.lock().len(), mount.about_to.lock().len());
    assert_eq!(mount.waited.lock().pop(), Some(told.len() as u64));
}

/// The library found a pipe where it was to create a file with truncation. A program removed the
/// pipe, and the library, which opened by name, created a file of which the mount was not notified.
#[test]
fn create_over_removed_pipe_makes_no_unreported_name() {
    let hooked = Arc::new(Hooked::default());
    let (library, mount) = (NotifyingFs::new(hooked.clone()), Arc::new(Mount::default()));
    let observer: Weak<Mount> = Arc::downgrade(&mount);
    library.observe(observer).unwrap();
    let pipe = NewInode::of(FileKind::Fifo, 0o600);
    let old = block_on(hooked.fs.mknod(Ino::ROOT, name("f"), &pipe)).unwrap().ino;
    let (fs, its_mount) = (hooked.fs.clone(), mount.clone());
    let remove = move || {
        block_on(fs.unlink(Ino::ROOT, name("f"))).unwrap();
        // Before the next change is announced: nothing was made without an announcement.
        let check = move || {
            let found = block_on(fs.lookup(Ino::ROOT, name("f"))).map(|attr| attr.ino);
            assert!(found.is_err(), "a name that the mount was not notified of: {found:?}");
        };
        *its_mount.meanwhile.lock() = Some(Box::new(check));
    };
    *hooked.after_lookup.lock() = Some(Box::new(remove));
    let (new, how) = (NewInode::of(FileKind::File, 0o644), OpenFlags::WRITE | OpenFlags::TRUNCATE);
    let (attr, _) = block_on(library.create(Ino::ROOT, name("f"), &new, how)).unwrap();
    assert!(attr.kind == FileKind::File && attr.ino != old);
    assert!(mount.meanwhile.lock().is_none() && hooked.after_lookup.lock().is_none());
    assert_eq!(*mount.told.lock(), [entry("f", None), ROOT, entry("f", None), ROOT]);
}

/// The story: two names of one inode were removed concurrently, one by the mount and one here. Each
/// found the other name, so neither kept the inode, and a program with an `O_PATH` descriptor got
/// ESTALE.
#[test]
fn concurrent_unlinks_of_both_names_keep_inode() {
    let (fs, mount) = lab();
    let new = NewInode::of(FileKind::File, 0o644);
    let root = Ino::ROOT;
    let make = |first, second| {
        let ino = block_on(fs.mknod(root, name(first), &new)).unwrap().ino;
        block_on(fs.link(ino, root, name(second))).unwrap();
        let below = fs.inner().clone();
        let act = move || block_on(below.unlink(Ino::ROOT, name(second))).unwrap();
        *mount.after_lookup.lock() = Some(Box::new(act));
        ino
    };
    let removed = make("a", "b");
    block_on(fs.unlink(root, name("a"))).unwrap();
    assert_eq!(block_on(fs.getattr(removed)).map(|attr| attr.nlink).ok(), Some(0), "unlink");
    block_on(fs.mknod(root, name("over"), &new)).unwrap();
    let replaced = make("c", "d");
    block_on(fs.rename(root, name("over"), root, name("c"), RenameFlags::empty())).unwrap();
    assert_eq!(block_on(fs.getattr(replaced)).map(|attr| attr.nlink).ok(), Some(0), "rename");
    let kept: Vec<Ino> = mount.kept.lock().iter().map(|file| file.ino()).collect();
    assert_eq!(kept, [removed, replaced]);
    // An inode with a name left is not kept.
    let ino = block_on(fs.mknod(root, name("x"), &new)).unwrap().ino;
    block_on(fs.link(ino, root, name("y"))).unwrap();
    block_on(fs.unlink(root, name("x"))).unwrap();
    assert_eq!(mount.kept.lock().len(), 2);
}

/// coherent.Z1: a file that the mount does not know is written without a wait. A program that
/// looked it up between the check and the write had the old size, and its append overwrote the
/// bytes.
#[test]
fn write_of_file_looked_up_meanwhile_is_announced_first() {
    let (fs, mount) = lab();
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let new = NewInode::of(FileKind::File, 0o644);
    let (attr, file) = block_on(fs.create(Ino::ROOT, name("f"), &new, both)).unwrap();
    mount.told.lock().clear();
    let write = || file.try_write(0, b"abc", IoFlags::empty(), Privileges::Drop);
    for looks_up in [false, true] {
        mount.is_unknown.store(true, Ordering::Relaxed);
        mount.looks_up.store(looks_up, Ordering::Relaxed);
        mount.about_to.lock().clear();
        mount.over.lock().clear();
        let is_done = write().is_some_and(|done| done.is_ok());
        assert_eq!(is_done, !looks_up);
        assert_eq!(*mount.about_to.lock(), [attr.ino], "announced");
        assert_eq!(*mount.over.lock(), [attr.ino]);
        assert_eq!(mount.told.lock().len(), usize::from(!looks_up));
        mount.told.lock().clear();
    }
}

/// coherent.Z1, coherent.Z4: the library looked an inode up, waited for a rename by a program, and
/// removed the inode that this had put at the name. It reported and kept the first one.
#[test]
fn unlink_during_mount_rename_reports_removed_inode() {
    let (fs, mount) = lab();
    let (root, none) = (Ino::ROOT, RenameFlags::empty());
    let new = NewInode::of(FileKind::File, 0o644);
    let put = |text| block_on(fs.mknod(root, name(text), &new)).unwrap().ino;
    for is_rename in [false, true] {
        put("f");
        let (other, over) = (put("g"), put("over"));
        let below = fs.inner().clone();
        let act = move || {
            block_on(below.rename(root, name("g"), root, name("f"), none)).unwrap();
        };
        mount.told.lock().clear();
        mount.kept.lock().clear();
        *mount.meanwhile.lock() = Some(Box::new(act));
        match is_rename {
            false => block_on(fs.unlink(root, name("f"))).unwrap(),
            true => block_on(fs.rename(root, name("over"), root, name("f"), none)).unwrap(),
        }
        let told = mount.told.lock().clone();
        assert!(told.contains(&Change::Attributes(other)), "rename: {is_rename}, {told:?}");
        assert!(!is_rename || told.contains(&Change::Attributes(over)), "{told:?}");
        let kept: Vec<Ino> = mount.kept.lock().iter().map(|file| file.ino()).collect();
        assert_eq!(kept, [other], "rename: {is_rename}");
        for text in ["f", "over"] {
            let _ = block_on(fs.inner().unlink(root, name(text)));
        }
    }
}

/// coherent.Z2: the mount, which is being told, may be answering a request for the same names and
/// files.
#[test]
fn z2_notification_holds_no_lock() {
    let (fs, mount) = lab();
    let below = fs.inner().clone();
    let new = NewInode::of(FileKind::File, 0o644);
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, file) = block_on(fs.create(Ino::ROOT, name("f"), &new, both)).unwrap();
    mount.stuck.store(true, Ordering::Relaxed);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let write = file.write(0, AlignedBuf::copy_of(b"abc"), IoFlags::empty(), Privileges::Drop);
    let mut waiting =
        (write, fs.rename(Ino::ROOT, name("f"), Ino::ROOT, name("g"), RenameFlags::empty()));
    assert!(waiting.0.as_mut().poll(&mut cx).is_pending());
    assert!(waiting.1.as_mut().poll(&mut cx).is_pending());
    // Both are done, and a request to the file system below is answered.
    let same = block_on(below.open(attr.ino, both)).unwrap();
    assert_eq!(same.read_slice(0, &mut [0; 9], IoFlags::empty()).unwrap(), 3);
    same.write_slice(1, b"x", IoFlags::empty(), Privileges::Drop).unwrap();
    block_on(below.rename(Ino::ROOT, name("g"), Ino::ROOT, name("f"), RenameFlags::empty()))
        .unwrap();
}

/// coherent.Z5: without a mount a call costs one more check.
#[test]
fn z5_without_a_mount_calls_go_through() {
    let (fs, mount) = lab();
    let new = NewInode::of(FileKind::File, 0o644);
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let (_, file) = block_on(fs.create(Ino::ROOT, name("f"), &new, both)).unwrap();
    fs.forget();
    mount.told.lock().clear();
    assert!(file.try_write(0, b"abc", IoFlags::empty(), Privileges::Drop).is_some());
    block_on(fs.unlink(Ino::ROOT, name("f"))).unwrap();
    assert!(mount.told.lock().is_empty());
}
