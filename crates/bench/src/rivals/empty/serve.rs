//! The process of the empty server: its threads read requests and answer each at once.
//!
//! Lock: the tree's, held for one access; reads, and writes that do not extend the file, take it
//! shared at most.

use super::tree::Tree;
use forebay_base::buf::AlignedBuf;
use forebay_base::{Error, ErrorKind, Result};
use forebay_fuse::device::{Device, Incoming, PAYLOAD_MAX, Read};
use forebay_fuse::options::Via;
use forebay_fuse::proto::consts::{FOpen, Valid as Set, opcode, open};
use forebay_fuse::proto::reply::{Body, ENOSYS, ENTRY_OUT_BYTES, Valid, dirent_bytes};
use forebay_fuse::proto::request::{Header, Op, ReadIn, Request, SetAttrIn, WriteIn};
use forebay_fuse::session::agreed;
use forebay_fuse::{Options, mount};
use forebay_vfs::StatFs;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// How long the kernel may cache replies.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const VALID: Valid = Valid { entry: DAY, attr: DAY };
/// Most requests of the kernel's own in progress at a time: as many as Forebay permits with a large
/// cache.
const BACKGROUND: u16 = 64;
const BLOCK_BYTES: u32 = 4096;
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EEXIST: i32 = 17;
const ENODATA: i32 = 61;
const EOPNOTSUPP: i32 = 95;

/// The answer to a request.
enum Answer {
    Errno(i32),
    Body(Body),
    /// This many bytes of arbitrary content.
    Data(usize),
    /// No answer.
    Silence,
}

struct Server {
    tree: RwLock<Tree>,
    content: AlignedBuf,
}

/// The main function of the process; arguments `DIR block|plain`. Returns the exit code.
pub fn serve(args: &[String]) -> u8 {
    let [dir, via] = args else { return 2 };
    let options =
        Options { via: if via == "plain" { Via::Plain } else { Via::Block }, ..Options::default() };
    let mut content = AlignedBuf::new(PAYLOAD_MAX);
    content.fill(0x5a);
    let server = Server { tree: RwLock::default(), content };
    std::thread::scope(|scope| {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
            let said = match begin(&server, scope, Path::new(dir), &options) {
                Ok(()) => "ready".to_string(),
                Err(e) => e.to_string(),
            };
            println!("{said}");
            let _flushed = std::io::stdout().flush();
        }
        // The unmount ends the connection, and with it the threads.
        let _gone = mount::unmount(Path::new(dir), true);
    });
    0
}

/// Mounts it, and starts as many threads as Forebay's daemon.
fn begin<'scope>(
    server: &'scope Server,
    scope: &'scope std::thread::Scope<'scope, '_>,
    dir: &Path,
    options: &Options,
) -> Result<()> {
    let device = std::sync::Arc::new(Device::new(forebay_fuse::mount(dir, options)?.into_device()));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (ready, wait) = std::sync::mpsc::channel();
    for _ in 0..cpus {
        let (device, ready) = (device.clone(), ready.clone());
        scope.spawn(move || server.read_all(&device, &ready));
    }
    drop(ready);
    let missing = |_| Error::new(ErrorKind::Io, "mount", "the connection ended at once");
    wait.recv().map_err(missing)
}

impl Server {
    fn read_all(&self, device: &Device, ready: &std::sync::mpsc::Sender<()>) {
        let mut incoming = Incoming::new();
        loop {
            match device.read(&mut incoming) {
                Ok(Read::Message) => self.take(device, &incoming, ready),
                Ok(Read::Again) => {}
                Ok(Read::Ended) | Err(_) => return,
            }
        }
    }

    fn take(&self, device: &Device, incoming: &Incoming, ready: &std::sync::mpsc::Sender<()>) {
        let Ok(header) = Header::parse(incoming.head()) else { return };
        let answer = match header.opcode {
            opcode::WRITE => match Request::parse_write(incoming.head(), incoming.rest()) {
                Ok(Request { op: Op::Write { io, .. }, .. }) => self.write(header.node, &io),
                _ => Answer::Errno(EIO),
            },
            _ => {
                let whole;
                let message = match incoming.short() {
                    Some(message) => message,
                    None => {
                        whole = incoming.whole();
                        &whole
                    }
                };
                match Request::parse(message) {
                    Ok(request) => self.answer(&request),
                    Err(_) => Answer::Errno(EIO),
                }
            }
        };
        match answer {
            Answer::Errno(errno) => device.reply(header.unique, errno, &[]),
            Answer::Body(body) => device.reply(header.unique, 0, body.as_bytes()),
            Answer::Data(len) => device.reply(header.unique, 0, &self.content[..len]),
            Answer::Silence => true,
        };
        if header.opcode == opcode::INIT {
            // The first `INIT` counts; the channel may have no receiver after that.
            let _sent = ready.send(());
        }
    }

    fn tree(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn tree_mut(&self) -> RwLockWriteGuard<'_, Tree> {
        self.tree.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &Request<'_>) -> Answer {
        let node = request.header.node;
        match &request.op {
            Op::Init(init) => {
                let mut body = Body::new();
                body.init_out(&agreed(init, BACKGROUND, 0));
                Answer::Body(body)
            }
            Op::Lookup { name } => self.lookup(node, name),
            Op::GetAttr { .. } => self.getattr(node),
            Op::SetAttr(set) => self.setattr(node, set),
            Op::MkDir { mode, name } => self.make(node, name, (*mode, true, None)),
            Op::Create { flags, mode, name, .. } => {
                self.make(node, name, (*mode, false, Some(*flags)))
            }
            Op::Unlink { name } | Op::RmDir { name } => {
                Answer::Errno(if self.tree_mut().remove(node, name) { 0 } else { ENOENT })
            }
            Op::Open { flags, .. } => {
                if flags & open::TRUNC != 0 {
                    self.tree_mut().set_size(node, 0);
                }
                opened(FOpen::DIRECT_IO | FOpen::PARALLEL_DIRECT_WRITES | FOpen::NOFLUSH)
            }
            Op::OpenDir { .. } => opened(FOpen::empty()),
            Op::Read(io) => self.read(node, io),
            Op::ReadDir { io, plus } => self.list(node, io, *plus),
            Op::StatFs => {
                let mut body = Body::new();
                body.statfs_out(&capacity());
                Answer::Body(body)
            }
            // Forebay's daemon answers so, too. `ls` asks for the ACLs and the label of one file,
            // and after this answer not again on that mount.
            Op::GetXattr { name, .. }
                if name.starts_with(b"system.") || *name == b"security.selinux" =>
            {
                Answer::Errno(EOPNOTSUPP)
            }
            Op::GetXattr { .. } => Answer::Errno(ENODATA),
            Op::ListXattr { size } => match size {
                0 => {
                    let mut body = Body::new();
                    body.size_out(0);
                    Answer::Body(body)
                }
                _ => Answer::Errno(0),
            },
            Op::Release { .. }
            | Op::ReleaseDir { .. }
            | Op::Fsync { .. }
            | Op::FsyncDir { .. }
            | Op::SyncFs
            | Op::Flush
            | Op::Destroy => Answer::Errno(0),
            Op::Forget { .. } | Op::BatchForget(_) | Op::Interrupt { .. } => Answer::Silence,
            _ => Answer::Errno(ENOSYS),
        }
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Answer {
        let tree = self.tree();
        let mut body = Body::with_capacity(ENTRY_OUT_BYTES);
        match tree.lookup(dir, name).and_then(|node| tree.attr(node)) {
            Some(attr) => body.entry_out(&attr, &VALID, BLOCK_BYTES),
            None => body.no_entry_out(DAY),
        };
        Answer::Body(body)
    }

    fn getattr(&self, node: u64) -> Answer {
        let Some(attr) = self.tree().attr(node) else { return Answer::Errno(ENOENT) };
        let mut body = Body::with_capacity(112);
        body.attr_out(&attr, &VALID, BLOCK_BYTES);
        Answer::Body(body)
    }

    fn setattr(&self, node: u64, set: &SetAttrIn) -> Answer {
        if set.valid.contains(Set::SIZE) {
            self.tree_mut().set_size(node, set.size);
        }
        self.getattr(node)
    }

    /// Creates a directory, or a file that is then opened.
    fn make(
        &self,
        dir: u64,
        name: &[u8],
        (mode, directory, open): (u32, bool, Option<u32>),
    ) -> Answer {
        let mut tree = self.tree_mut();
        let made = match tree.lookup(dir, name) {
            Some(_) if directory || open.is_some_and(|flags| flags & open::EXCL != 0) => {
                return Answer::Errno(EEXIST);
            }
            Some(node) => Some(node),
            None => tree.make(dir, name, (mode & 0o7777) as u16, directory),
        };
        let Some(attr) = made.and_then(|node| tree.attr(node)) else {
            return Answer::Errno(ENOENT);
        };
        drop(tree);
        let mut body = Body::with_capacity(ENTRY_OUT_BYTES + 16);
        body.entry_out(&attr, &VALID, BLOCK_BYTES);
        if open.is_some() {
            body.open_out(0, FOpen::DIRECT_IO | FOpen::PARALLEL_DIRECT_WRITES | FOpen::NOFLUSH);
        }
        Answer::Body(body)
    }

    fn read(&self, node: u64, io: &ReadIn) -> Answer {
        let left = self.tree().size(node).saturating_sub(io.offset);
        Answer::Data((io.size as usize).min(PAYLOAD_MAX).min(left as usize))
    }

    fn write(&self, node: u64, io: &WriteIn) -> Answer {
        let end = io.offset + u64::from(io.size);
        if self.tree().size(node) < end {
            self.tree_mut().set_size(node, end);
        }
        let mut body = Body::with_capacity(8);
        body.size_out(io.size);
        Answer::Body(body)
    }

    fn list(&self, dir: u64, io: &ReadIn, plus: bool) -> Answer {
        let max = (io.size as usize).min(PAYLOAD_MAX);
        let mut body = Body::with_capacity(max.min(64 << 10));
        let tree = self.tree();
        for entry in tree.list(dir, io.offset) {
            let Some(attr) = tree.attr(entry.node) else { continue };
            let entry_bytes = if plus { ENTRY_OUT_BYTES } else { 0 };
            if body.len() + entry_bytes + dirent_bytes(entry.name) > max {
                break;
            }
            if plus {
                body.entry_out(&attr, &VALID, BLOCK_BYTES);
            }
            body.dirent(entry.node, entry.next, attr.kind, entry.name, max);
        }
        Answer::Body(body)
    }
}

fn opened(flags: FOpen) -> Answer {
    let mut body = Body::with_capacity(16);
    body.open_out(0, flags);
    Answer::Body(body)
}

/// Practically unlimited free space.
fn capacity() -> StatFs {
    let blocks = 1 << 30;
    StatFs {
        block_size: BLOCK_BYTES,
        blocks,
        blocks_free: blocks,
        blocks_available: blocks,
        files: blocks,
        files_free: blocks,
        name_max: 255,
    }
}
