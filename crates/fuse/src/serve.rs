//! Answers a request by calls of the file system ([`forebay_vfs::FileSystem`]).
//!
//! [`Core::read_now`] and [`Core::write_now`] answer what needs no waiting. A thread that may wait
//! carries out other reads and writes itself ([`Core::read_here`], [`Core::write_here`]). All other
//! requests become a future ([`Core::serve`]): the reader thread polls it once, later a background
//! task does.
//!
//! Invariants: R1 inodes and openings that an answer names are counted, and noted in its [`Undo`],
//! before the answer leaves. R2 the kernel takes the errno `ENOSYS` as "do not ask again". So it is
//! used only where that is documented: `ACCESS`, `BMAP`, `POLL`, locks, DAX maps, and unknown
//! requests.
//!
//! No locks.

mod appends;
mod attrs;
mod coherent;
mod content;
mod fills;
mod late;
mod listing;
mod names;
mod openings;
mod policy;
mod ranges;
mod removals;
mod removing;

pub use coherent::Served;

use crate::device::PAYLOAD_MAX;
use crate::handles::{Handle, Handles};
use crate::inodes::Inodes;
use crate::ioctl::MountMode;
use crate::notify::Notifier;
use crate::options::{CacheMode, Options};
use crate::payload::Spares;
use crate::proto::consts::{opcode, open};
use crate::proto::reply::{Body, ENOSYS, Valid};
use crate::proto::request::{Op, ReadIn, Request, WriteIn};
use crate::trees::Trees;
use appends::{Appends, Changes};
use fills::Fills;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::{Attr, FileSystem, Ino, OpenFlags, Privileges, copy};
use ranges::WriteRanges;
use removals::Removals;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Preferred request size that the kernel is told, bytes.
const BLOCK_BYTES: u32 = 4096;
/// How long the kernel may cache names, and attributes of inodes that are settled.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the kernel may cache attributes of an inode that changed recently, because delayed
/// allocation still changes its block count.
const SHORT: Duration = Duration::from_secs(1);
/// Seconds after its last change from which an inode counts as settled.
const SETTLED_AFTER: u64 = 60;

/// The state of one mount, apart from its threads.
pub(crate) struct Core {
    pub fs: Arc<dyn FileSystem>,
    pub handles: Handles,
    pub inodes: Arc<Inodes>,
    pub trees: Trees,
    pub cache: CacheMode,
    pub mount_mode: MountMode,
    pub fills: Fills,
    pub control: Option<PathBuf>,
    pub notifier: Notifier,
    pub inodes_max: usize,
    /// Minor version of the protocol, set at `INIT`.
    pub minor: AtomicU32,
    /// Number of changes by other front ends.
    pub epoch: AtomicU64,
    /// Appends in progress to the end of file that the kernel knows.
    pub appends: Appends,
    /// Changes by other front ends that are in progress.
    pub changes: Changes,
    /// Removals of names, and changes of the same names by other front ends.
    pub removals: Removals,
    /// Ranges of writes in progress; overlapping writes are carried out one after the other.
    pub write_ranges: WriteRanges,
    /// How often an inode was added above the bound.
    pub pruned: AtomicUsize,
    /// A task is reporting names as stale, so that the kernel forgets inodes.
    pub sweeping: AtomicBool,
    /// Spare buffers for reads and writes.
    pub spares: Spares,
    pub world: WorldRef,
    pub me: Weak<Core>,
}

/// A request that may have to wait.
pub(crate) enum Work {
    Read(ReadIn),
    Write(WriteIn, AlignedBuf),
    /// Any other request: the complete message.
    Other(Vec<u8>),
}

impl Work {
    /// The most bytes that it holds until it is answered.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read(io) => u64::from(io.size),
            Self::Write(_, data) => data.len() as u64,
            Self::Other(message) => message.len() as u64 + more_bytes(message),
        }
    }
}

/// The most bytes that a request holds in addition to its message.
fn more_bytes(message: &[u8]) -> u64 {
    let code =
        message.get(4..8).and_then(|word| word.first_chunk()).map(|b| u32::from_le_bytes(*b));
    match code {
        Some(opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64) => copy::MEMORY_BYTES,
        Some(opcode::READDIR | opcode::READDIRPLUS) => match Request::parse(message) {
            Ok(Request { op: Op::ReadDir { io, .. }, .. }) => {
                u64::from(io.size).min(PAYLOAD_MAX as u64)
            }
            _ => 0,
        },
        _ => 0,
    }
}

/// The answer to the kernel.
pub(crate) enum Answer {
    Errno(i32),
    Body(Body),
    /// The number of bytes that a write has written.
    Wrote(u32),
    /// The first bytes of a buffer, with their number.
    Data(AlignedBuf, usize),
}

/// What is to be undone if the kernel does not accept the answer.
#[derive(Default)]
pub(crate) struct Undo {
    pub inodes: Vec<Ino>,
    pub opened: Option<u64>,
}

/// An answer, and what is to be undone if the kernel does not accept it.
pub(crate) struct Outcome {
    pub answer: Answer,
    pub undo: Undo,
}

impl Outcome {
    pub fn errno(errno: i32) -> Self {
        Self { answer: Answer::Errno(errno), undo: Undo::default() }
    }

    fn done() -> Self {
        Self::errno(0)
    }

    fn body(body: Body) -> Self {
        Self { answer: Answer::Body(body), undo: Undo::default() }
    }

    pub fn error(e: &Error) -> Self {
        Self::errno(errno_of(e))
    }
}

/// The errno of an error (R2).
pub(crate) fn errno_of(e: &Error) -> i32 {
    match e.errno() {
        ENOSYS => ErrorKind::Unsupported.errno(),
        errno @ 1..=511 => errno,
        _ => ErrorKind::Io.errno(),
    }
}

fn fail<T>(kind: ErrorKind, op: &'static str, why: &str) -> Result<T> {
    Err(Error::new(kind, op, why))
}

/// How long the kernel may cache attributes and names of an inode.
fn valid(attr: &Attr) -> Valid {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let age = now.abs_diff(u64::try_from(attr.ctime.sec).unwrap_or(0));
    Valid { entry: LONG, attr: if age < SETTLED_AFTER { SHORT } else { LONG } }
}

/// `O_DIRECT`, which is not the same on all architectures.
fn o_direct() -> u32 {
    rustix::fs::OFlags::DIRECT.bits()
}

/// Flags of reads on a file that was opened with these flags.
fn read_flags(flags: u32) -> IoFlags {
    match flags & o_direct() != 0 {
        true => IoFlags::DIRECT | IoFlags::FALLBACK,
        false => IoFlags::empty(),
    }
}

/// Durability of writes on a file that was opened with these flags.
fn sync_flags(flags: u32) -> IoFlags {
    if flags & open::SYNC_ONLY != 0 {
        return IoFlags::SYNC;
    }
    if flags & open::DSYNC != 0 { IoFlags::DSYNC } else { IoFlags::empty() }
}

/// The flags of [`forebay_vfs`] for an open(2) with these flags.
fn open_flags(flags: u32, keep: bool) -> OpenFlags {
    let access = match flags & open::ACCMODE {
        0 => OpenFlags::READ,
        open::WRONLY => OpenFlags::WRITE,
        open::RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::empty(),
    };
    let mut all = access;
    all.set(OpenFlags::TRUNCATE, flags & open::TRUNC != 0);
    all.set(OpenFlags::EXCLUSIVE, flags & open::EXCL != 0);
    all.set(OpenFlags::KEEP_PRIVILEGES, keep);
    all
}

/// Whether set-id bits are dropped, as the kernel's request says.
fn privileges(kill: bool) -> Privileges {
    if kill { Privileges::Drop } else { Privileges::Keep }
}

impl Core {
    /// Serves `fs`; the kernel knows no inode of it yet.
    pub fn new(
        fs: Arc<dyn FileSystem>,
        world: WorldRef,
        notifier: Notifier,
        options: &Options,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            fs,
            handles: Handles::new(notifier.refills().clone()),
            inodes: Arc::default(),
            trees: Trees::default(),
            cache: options.cache,
            mount_mode: options.mode.clone(),
            fills: Fills::default(),
            control: options.control.clone(),
            notifier,
            inodes_max: options.inodes_max,
            minor: AtomicU32::default(),
            epoch: AtomicU64::default(),
            appends: Appends::default(),
            changes: Changes::default(),
            removals: Removals::default(),
            write_ranges: WriteRanges::default(),
            pruned: AtomicUsize::default(),
            sweeping: AtomicBool::default(),
            spares: Spares::new(options.spare_bytes()),
            world,
            me: me.clone(),
        })
    }

    /// The opening of this number.
    pub fn handle(&self, fh: u64) -> Result<Arc<Handle>> {
        match self.handles.get(fh) {
            Some(handle) => Ok(handle),
            None => fail(ErrorKind::BadHandle, "find", "no such handle"),
        }
    }

    /// Counts an inode before the reply that names it leaves, and enforces the bound on known
    /// inodes.
    fn told(&self, ino: Ino, undo: &mut Undo) {
        self.inodes.told(ino);
        undo.inodes.push(ino);
        self.bound_inodes();
    }

    /// The reply that names an inode to the kernel; `seen`: the epoch before its attributes were
    /// read.
    fn entry(&self, attr: &Attr, seen: u64) -> Outcome {
        let (mut body, mut undo) = (Body::with_capacity(160), Undo::default());
        self.told(attr.ino, &mut undo);
        body.entry_out(attr, &self.valid(attr, seen), BLOCK_BYTES);
        Outcome { answer: Answer::Body(body), undo }
    }

    /// Takes back what an answer had counted, because the kernel did not accept it.
    pub fn undo(&self, undo: Undo) {
        undo.inodes.iter().for_each(|ino| self.inodes.forgot(*ino, 1));
        if let Some(fh) = undo.opened {
            drop(self.handles.remove(fh));
        }
    }

    /// Answers a request; may wait.
    pub async fn serve(self: Arc<Self>, work: Work) -> Outcome {
        let outcome = match work {
            Work::Read(io) => self.read(io).await,
            Work::Write(io, data) => self.write(io, data).await,
            Work::Other(message) => match Request::parse(&message) {
                Ok(request) => self.answer(&request).await,
                Err(e) => {
                    log::error!("{e}");
                    Err(e)
                }
            },
        };
        outcome.unwrap_or_else(|e| Outcome::error(&e))
    }

    async fn answer(&self, request: &Request<'_>) -> Result<Outcome> {
        let header = &request.header;
        let node = Ino(header.node);
        match &request.op {
            Op::Lookup { name } => self.lookup(node, name).await,
            Op::SymLink { name, target } => self.symlink(header, name, target).await,
            Op::MkNod { mode, rdev, name } => self.mknod(header, *mode, *rdev, name).await,
            Op::MkDir { mode, name } => self.mkdir(header, *mode, name).await,
            Op::Unlink { name } => self.remove(header, name, false).await,
            Op::RmDir { name } => self.remove(header, name, true).await,
            Op::Rename { new_dir, flags, name, new_name } => {
                self.rename(header, name, (Ino(*new_dir), new_name), *flags).await
            }
            Op::Link { old, name } => self.link(Ino(*old), node, name).await,
            Op::ReadLink => self.readlink(node).await,
            Op::GetAttr { .. } => self.getattr(node).await,
            Op::Statx { .. } => self.statx(node).await,
            Op::SetAttr(set) => self.setattr(node, set).await,
            Op::StatFs => self.statfs().await,
            Op::SetXattr { name, value, flags } => self.setxattr(node, name, value, *flags).await,
            Op::GetXattr { name, size } => self.getxattr(node, name, *size).await,
            Op::ListXattr { size } => self.listxattr(header, *size).await,
            Op::RemoveXattr { name } => self.removexattr(node, name).await,
            Op::Open { flags, kill } => self.open(header, *flags, *kill).await,
            Op::Create { flags, mode, kill, name } => {
                self.create(header, name, (*flags, *mode, *kill)).await
            }
            Op::TmpFile { flags, mode, kill } => self.tmpfile(header, (*flags, *mode, *kill)).await,
            Op::OpenDir { .. } => self.opendir(node).await,
            Op::ReadDir { io, plus } => self.readdir(node, io, *plus).await,
            Op::Release { fh } | Op::ReleaseDir { fh } => Ok(self.release(*fh)),
            Op::Fsync { fh, data_only } | Op::FsyncDir { fh, data_only } => {
                self.handle(*fh)?.file.sync(*data_only).await?;
                Ok(Outcome::done())
            }
            Op::SyncFs => self.fs.syncfs().await.map(|()| Outcome::done()),
            Op::Flush => Ok(Outcome::done()),
            Op::Fallocate { fh, offset, len, mode } => {
                self.fallocate(header, *fh, (*offset, *len), *mode).await
            }
            Op::Lseek { fh, offset, whence } => self.lseek(*fh, *offset, *whence).await,
            Op::CopyFileRange(copy) => self.copy(header, copy).await,
            Op::Ioctl(ioctl) => self.ioctl(header, ioctl),
            Op::Read(io) => self.read(*io).await,
            Op::Write { io, data } => self.write(*io, AlignedBuf::copy_of(data)).await,
            Op::Forget { .. } | Op::BatchForget(_) | Op::Interrupt { .. } => Ok(Outcome::done()),
            Op::Init(_) | Op::Destroy => fail(ErrorKind::Protocol, "serve", "not now"),
            Op::Unknown => Ok(Outcome::errno(ENOSYS)),
        }
    }
}
