//! A request answered by the contract of `vfs`.
//!
//! What can be answered without waiting is ([`Core::read_now`], [`Core::write_now`]); a thread that may wait
//! does the rest of that itself ([`Core::read_here`], [`Core::write_here`]); else there is a future
//! ([`Core::serve`]), which the reader thread polls once and a background task from then on.
//!
//! Invariants: R1 what an answer tells the kernel is counted, and noted in its [`Undo`], before it leaves.
//! R2 the errno `ENOSYS` means to the kernel "do not ask again", so it is only given where that is
//! documented: `ACCESS`, `BMAP`, `POLL`, locks, maps of DAX, and what is not known.
//!
//! No locks.

mod appends;
mod attrs;
mod beside;
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

pub use beside::Served;

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

/// Preferred size of requests that the kernel is told, bytes.
const BLOCK_BYTES: u32 = 4096;
/// How long the kernel may keep names and settled attributes.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// How long it may keep the attributes of what changed a moment ago: storage is still being assigned.
const SHORT: Duration = Duration::from_secs(1);
/// Until then after its last change an inode is not settled, seconds.
const SETTLED_AFTER: u64 = 60;

/// What is served.
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
    /// Minor version of the protocol, once it is agreed on.
    pub minor: AtomicU32,
    /// Changes that others than the kernel have made.
    pub epoch: AtomicU64,
    /// Appends on their way to the end that the kernel knows.
    pub appends: Appends,
    /// Changes by others on their way.
    pub changes: Changes,
    /// Removals of names, and changes of the same names by other interfaces.
    pub removals: Removals,
    /// Writes on their way, where they overlap one after the other.
    pub write_ranges: WriteRanges,
    /// How often the bound was met.
    pub pruned: AtomicUsize,
    /// Names are being called stale.
    pub sweeping: AtomicBool,
    /// Buffers for what is read and written.
    pub spares: Spares,
    pub world: WorldRef,
    pub me: Weak<Core>,
}

/// A request that may have to wait.
pub(crate) enum Work {
    Read(ReadIn),
    Write(WriteIn, AlignedBuf),
    /// Any other, the whole message.
    Other(Vec<u8>),
}

impl Work {
    /// Bytes that it holds at most until it is answered.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read(io) => u64::from(io.size),
            Self::Write(_, data) => data.len() as u64,
            Self::Other(message) => message.len() as u64 + more_bytes(message),
        }
    }
}

/// What a request holds beside its message.
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

/// What the kernel is answered.
pub(crate) enum Answer {
    Errno(i32),
    Body(Body),
    /// So many bytes of a buffer.
    Data(AlignedBuf, usize),
}

/// What is to be taken back if the kernel cannot be told.
#[derive(Default)]
pub(crate) struct Undo {
    pub inodes: Vec<Ino>,
    pub opened: Option<u64>,
}

/// An answer and what depends on it.
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

/// What an error is to the kernel (R2).
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

/// How long the kernel may keep what it is told of an inode.
fn valid(attr: &Attr) -> Valid {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let age = now.abs_diff(u64::try_from(attr.ctime.sec).unwrap_or(0));
    Valid { entry: LONG, attr: if age < SETTLED_AFTER { SHORT } else { LONG } }
}

/// `O_DIRECT`, which is not the same on all architectures.
fn o_direct() -> u32 {
    rustix::fs::OFlags::DIRECT.bits()
}

/// What an open file's flags say of reads.
fn read_flags(flags: u32) -> IoFlags {
    match flags & o_direct() != 0 {
        true => IoFlags::DIRECT | IoFlags::FALLBACK,
        false => IoFlags::empty(),
    }
}

/// What they say of durability.
fn sync_flags(flags: u32) -> IoFlags {
    if flags & open::SYNC_ONLY != 0 {
        return IoFlags::SYNC;
    }
    if flags & open::DSYNC != 0 { IoFlags::DSYNC } else { IoFlags::empty() }
}

/// How the contract opens what the kernel opens.
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

/// The kernel says when privileges go.
fn privileges(kill: bool) -> Privileges {
    if kill { Privileges::Drop } else { Privileges::Keep }
}

impl Core {
    /// Serves `fs`; nothing is known of it yet.
    pub fn new(
        fs: Arc<dyn FileSystem>,
        world: WorldRef,
        notifier: Notifier,
        options: &Options,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            fs,
            handles: Handles::default(),
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
            spares: Spares::new(options.thread_count()),
            world,
            me: me.clone(),
        })
    }

    /// What the kernel has open under this number.
    pub fn handle(&self, fh: u64) -> Result<Arc<Handle>> {
        match self.handles.get(fh) {
            Some(handle) => Ok(handle),
            None => fail(ErrorKind::BadHandle, "find", "no such handle"),
        }
    }

    /// Counts an inode that the kernel is about to be told of, and sees to the bound.
    fn told(&self, ino: Ino, undo: &mut Undo) {
        self.inodes.told(ino);
        undo.inodes.push(ino);
        self.bound_inodes();
    }

    /// The reply that names an inode to the kernel; its attributes were asked for at that epoch.
    fn entry(&self, attr: &Attr, seen: u64) -> Outcome {
        let (mut body, mut undo) = (Body::with_capacity(160), Undo::default());
        self.told(attr.ino, &mut undo);
        body.entry_out(attr, &self.valid(attr, seen), BLOCK_BYTES);
        Outcome { answer: Answer::Body(body), undo }
    }

    /// Takes back what the kernel could not be told.
    pub fn undo(&self, undo: Undo) {
        undo.inodes.iter().for_each(|ino| self.inodes.forgot(*ino, 1));
        if let Some(fh) = undo.opened {
            drop(self.handles.remove(fh));
        }
    }

    /// Answers a request, however long it takes.
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
