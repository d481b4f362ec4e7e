//! Tests of [`super`]: requests from a kernel whose look-up of a name is stale.

use super::*;
use crate::options::Options;
use crate::proto::consts::opcode;
use crate::proto::request::Header;
use crate::serve::{Answer, Core, Work};
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::world::RealWorld;
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::{FileKind, FileSystem, Name, NewInode, NotifyingFs, RenameFlags, SetAttr};
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};

const ENOENT: i32 = 2;
const ESTALE: i32 = 116;
/// The calling user, another user, and the owner of the directory.
const USER: u32 = 1000;
const OTHER: u32 = 1001;
const OWNER: u32 = 1002;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// A mount whose kernel never receives its notices, and the library's access to the same file
/// system. The root directory and the directory `d` in it have the sticky bit.
struct Mounted {
    core: Arc<Core>,
    library: NotifyingFs,
    dir: Ino,
}

impl Mounted {
    fn new() -> Self {
        Self::of(Arc::new(MemFs::default()))
    }

    fn of(fs: Arc<dyn FileSystem>) -> Self {
        let options = Options::default();
        let core = Core::new(fs, RealWorld::new(), Default::default(), &options);
        let library = NotifyingFs::new(core.fs.clone());
        let observer: Weak<Core> = Arc::downgrade(&core);
        library.observe(observer).unwrap();
        let new = NewInode { uid: OWNER, ..NewInode::of(FileKind::Directory, 0o1777) };
        let dir = block_on(core.fs.mkdir(Ino::ROOT, name("d"), &new)).unwrap().ino;
        core.inodes.told(dir);
        let sticky = SetAttr { perm: Some(0o1777), uid: Some(OWNER), ..SetAttr::default() };
        block_on(core.fs.setattr(Ino::ROOT, &sticky)).unwrap();
        Self { core, library, dir }
    }

    /// Creates an inode owned by `uid` in the root directory, as a request of the mount would.
    fn put(&self, text: &str, kind: FileKind, uid: u32) -> Ino {
        let new = NewInode { uid, ..NewInode::of(kind, 0o600) };
        let made = match kind {
            FileKind::Directory => block_on(self.core.fs.mkdir(Ino::ROOT, name(text), &new)),
            _ => block_on(self.core.fs.mknod(Ino::ROOT, name(text), &new)),
        };
        made.unwrap().ino
    }

    /// The library renames `from` to `to`. The change is done; its notice waits for the kernel.
    fn library_moves(&self, from: &str, to: &str) {
        let (root, none) = (Ino::ROOT, RenameFlags::empty());
        let mut moving = self.library.rename(root, name(from), root, name(to), none);
        assert!(is_pending(&mut moving), "the notice is not delivered");
        assert_eq!(self.errno_of_lookup(from), ENOENT);
    }

    fn errno_of_lookup(&self, text: &str) -> i32 {
        block_on(self.core.fs.lookup(Ino::ROOT, name(text))).map_or_else(|e| e.errno(), |_| 0)
    }

    fn uid_at(&self, text: &str) -> u32 {
        block_on(self.core.fs.lookup(Ino::ROOT, name(text))).unwrap().uid
    }

    /// Sends a request on the root directory; returns its errno.
    fn ask(&self, code: u32, uid: u32, args: &[u8]) -> i32 {
        self.send(message(code, uid, args))
    }

    fn send(&self, message: Vec<u8>) -> i32 {
        match block_on(self.core.clone().serve(Work::Other(message))).answer {
            Answer::Errno(errno) => errno,
            _ => 0,
        }
    }

    fn unlink(&self, uid: u32, text: &str) -> i32 {
        self.ask(opcode::UNLINK, uid, format!("{text}\0").as_bytes())
    }

    fn rename(&self, uid: u32, from: &str, to: (Ino, &str), flags: RenameFlags) -> i32 {
        self.ask(opcode::RENAME2, uid, &rename_args(from, to, flags))
    }
}

fn rename_args(from: &str, (dir, to): (Ino, &str), flags: RenameFlags) -> Vec<u8> {
    let mut args = dir.0.to_le_bytes().to_vec();
    args.extend_from_slice(&flags.bits().to_le_bytes());
    args.extend_from_slice(&[0; 4]);
    args.extend_from_slice(format!("{from}\0{to}\0").as_bytes());
    args
}

/// The message of a request on the root directory.
fn message(code: u32, uid: u32, args: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 40];
    message[..4].copy_from_slice(&(40 + args.len() as u32).to_le_bytes());
    message[4..8].copy_from_slice(&code.to_le_bytes());
    message[16] = 1;
    message[24..28].copy_from_slice(&uid.to_le_bytes());
    message.extend_from_slice(args);
    message
}

fn is_pending<T>(future: &mut BoxFuture<'_, T>) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// removals.R4. The story: the kernel looked up the caller's file in a directory with the sticky
/// bit. The library put another user's file there, and the daemon removed that file without
/// permission.
#[test]
fn removal_of_a_name_that_the_library_replaced_answers_estale() {
    let all = Mounted::new();
    let (root, none) = (Ino::ROOT, RenameFlags::empty());
    for text in ["f", "from", "to", "one", "both"] {
        all.put(text, FileKind::File, USER);
        all.put("new", FileKind::File, OTHER);
        all.library_moves("new", text);
    }
    all.put("own", FileKind::File, USER);
    all.put("empty", FileKind::Directory, OTHER);
    all.library_moves("empty", "directory");
    assert_eq!(all.unlink(USER, "f"), ESTALE, "R4: UNLINK");
    assert_eq!(all.rename(USER, "from", (root, "x"), none), ESTALE, "R4: RENAME, the old name");
    assert_eq!(all.rename(USER, "own", (root, "to"), none), ESTALE, "R4: RENAME, the new name");
    assert_eq!(all.rename(USER, "own", (root, "both"), RenameFlags::EXCHANGE), ESTALE);
    assert_eq!(all.rename(USER, "both", (root, "own"), RenameFlags::EXCHANGE), ESTALE);
    assert_eq!(all.ask(opcode::RMDIR, USER, b"directory\0"), ESTALE, "R4: RMDIR");
    for text in ["f", "from", "to", "both", "directory"] {
        assert_eq!(all.uid_at(text), OTHER, "{text} is there");
    }
    assert_eq!(all.uid_at("own"), USER);
    // Removals that are permitted, whatever the kernel has looked up.
    assert_eq!(all.unlink(OTHER, "f"), 0, "its own file");
    assert_eq!(all.unlink(OWNER, "from"), 0, "in its own directory");
    let plain = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    block_on(all.core.fs.setattr(root, &plain)).unwrap();
    assert_eq!(all.unlink(USER, "one"), 0, "in a directory without the bit");
}

/// removals.R4: to move a directory into another parent the caller needs write permission on the
/// directory itself. The kernel checks that also in a directory without the sticky bit.
#[test]
fn move_of_directory_replaced_by_library_answers_estale() {
    let all = Mounted::new();
    let plain = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    block_on(all.core.fs.setattr(Ino::ROOT, &plain)).unwrap();
    for (kind, errno) in [(FileKind::Directory, ESTALE), (FileKind::File, 0)] {
        all.put("other", kind, OTHER);
        all.library_moves("other", "new");
        assert_eq!(
            all.rename(USER, "new", (all.dir, "x"), RenameFlags::empty()),
            errno,
            "{kind:?}"
        );
        if kind == FileKind::Directory {
            assert_eq!(all.rename(USER, "new", (Ino::ROOT, "y"), RenameFlags::empty()), 0);
        }
    }
}

/// removals.R4: the kernel has received the notice, so its permission checks are up to date. The
/// daemon carries the removal out also for a privileged caller, whom it could not tell from another
/// user.
#[test]
fn removal_after_the_kernel_took_the_notice_is_carried_out() {
    let all = Mounted::new();
    all.put("new", FileKind::File, OTHER);
    all.library_moves("new", "f");
    assert_eq!(all.unlink(USER, "f"), ESTALE);
    all.core.notifier.deliver_all();
    assert_eq!(all.unlink(USER, "f"), 0);
    assert!(all.core.removals.counts.lock().is_empty(), "nothing is kept of a name");
}

/// removals.R5. The story: the daemon had found that the caller may remove the present inode.
/// Before the removal the library put another user's file there, which was removed instead.
#[test]
fn change_by_the_library_waits_for_a_removal_under_way() {
    let all = Mounted::new();
    all.put("f", FileKind::File, USER);
    all.put("new", FileKind::File, OTHER);
    let header = Header::parse(&[0; 40]).unwrap();
    let removal = block_on(all.core.begin_removal(&header, (Ino::ROOT, name("f")), false)).unwrap();
    assert!(removal.is_some());
    let (root, none) = (Ino::ROOT, RenameFlags::empty());
    let mut moving = all.library.rename(root, name("new"), root, name("f"), none);
    assert!(is_pending(&mut moving) && all.uid_at("f") == USER, "R5");
    assert_eq!(all.unlink(USER, "f"), ESTALE, "one that begins later sees the change");
    drop(removal);
    assert!(is_pending(&mut moving) && all.uid_at("f") == OTHER, "made, and not delivered");
    assert_eq!(all.unlink(USER, "f"), ESTALE);
    drop(moving);
    assert_eq!(all.unlink(USER, "f"), ESTALE, "its caller went, the notice is still queued");
    all.core.notifier.deliver_all();
    assert!(all.core.removals.counts.lock().is_empty(), "nothing is kept of a name");
}

/// removals.R4: `request_timeout=` answered a RENAME with EIO, and its operation went on. The
/// kernel had released the lock of the directory, and still knew the caller's file by the old name.
#[test]
fn removal_of_name_replaced_by_late_operation_answers_estale() {
    let all = Mounted::new();
    all.put("f", FileKind::File, USER);
    all.put("g", FileKind::File, OTHER);
    let none = RenameFlags::empty();
    let late = message(opcode::RENAME2, OTHER, &rename_args("g", (Ino::ROOT, "f"), none));
    all.core.begin_late(&late);
    block_on(all.core.fs.rename(Ino::ROOT, name("g"), Ino::ROOT, name("f"), none)).unwrap();
    assert_eq!(all.unlink(USER, "f"), ESTALE, "the operation goes on");
    all.core.end_late(&late);
    assert_eq!(all.unlink(USER, "f"), ESTALE, "the kernel does not know of it");
    assert_eq!(all.uid_at("f"), OTHER);
    all.core.notifier.deliver_all();
    assert_eq!(all.unlink(OTHER, "f"), 0);
    assert!(all.core.removals.counts.lock().is_empty(), "nothing is kept of a name");
}

/// A file system that counts the calls that it gets.
#[derive(Default)]
struct Counting {
    fs: MemFs,
    calls: AtomicU64,
}

impl Counting {
    fn counted(&self) -> &MemFs {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.fs
    }
}

impl FileSystem for Counting {
    forebay_vfs::delegate_file_system!(
        [counted()]
        statfs lookup parent getattr getattr_listed setattr create mknod mkdir symlink link unlink
        rmdir rename remove_keeping rename_keeping readlink readdir getxattr setxattr listxattr
        removexattr open open_with_xattr create_with_xattr syncfs
    );
}

/// removals.R6. The story: for each UNLINK, RMDIR and RENAME the daemon looked the inode up, opened
/// it because the kernel knew it, and then removed the name: three calls, each with a hold of the
/// volume's lock, and a fourth for an inode with another name.
#[test]
fn removal_enters_the_file_system_once() {
    let fs = Arc::new(Counting::default());
    let all = Mounted::of(fs.clone());
    let put = |text, kind| {
        let ino = all.put(text, kind, USER);
        all.core.inodes.told(ino);
        ino
    };
    let file = put("f", FileKind::File);
    block_on(fs.link(file, Ino::ROOT, name("link"))).unwrap();
    let target = put("target", FileKind::File);
    put("source", FileKind::File);
    let directory = put("directory", FileKind::Directory);
    let none = RenameFlags::empty();
    let calls = |op: &dyn Fn() -> i32| {
        let before = fs.calls.load(Ordering::Relaxed);
        assert_eq!(op(), 0);
        fs.calls.load(Ordering::Relaxed) - before
    };
    let found = [
        ("UNLINK, another name", calls(&|| all.unlink(USER, "f"))),
        ("UNLINK, the last name", calls(&|| all.unlink(USER, "link"))),
        ("RMDIR", calls(&|| all.ask(opcode::RMDIR, USER, b"directory\0"))),
        ("RENAME", calls(&|| all.rename(USER, "source", (Ino::ROOT, "target"), none))),
    ];
    assert!(found.iter().all(|(_, calls)| *calls == 1), "R6: {found:?}");
    for ino in [file, target, directory] {
        assert_eq!(block_on(fs.getattr(ino)).map(|attr| attr.nlink).ok(), Some(0), "it is kept");
        all.core.inodes.forgot(ino, 1);
        assert!(block_on(fs.getattr(ino)).is_err(), "until the kernel has forgotten it");
    }
}

/// The story: to create or open a file the daemon also asked for its attributes and its policy:
/// three calls, each with a hold of the volume's lock.
#[test]
fn creating_and_opening_enter_the_file_system_once() {
    let fs = Arc::new(Counting::default());
    let all = Mounted::of(fs.clone());
    let file = all.put("f", FileKind::File, USER);
    all.core.inodes.told(file);
    // Flags of open(2), mode, umask, flags of FUSE.
    let mut create = [2u32, 0o100644, 0o22, 0].map(u32::to_le_bytes).concat();
    create.extend_from_slice(b"new\0");
    let mut open = message(opcode::OPEN, USER, &[0; 8]);
    open[16..24].copy_from_slice(&file.0.to_le_bytes());
    for (what, message) in [("CREATE", message(opcode::CREATE, USER, &create)), ("OPEN", open)] {
        let before = fs.calls.load(Ordering::Relaxed);
        assert_eq!(all.send(message), 0, "{what}");
        assert_eq!(fs.calls.load(Ordering::Relaxed) - before, 1, "{what}");
    }
}
