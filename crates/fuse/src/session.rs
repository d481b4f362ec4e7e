//! A mount that is served: threads, the first message and the last.
//!
//! ```text
//!   INIT ─▶ negotiated, ready ─▶ requests ─▶ DESTROY, or the connection is over ─▶ Ending: sync, give the
//!   file system back, answer DESTROY, join the threads
//! ```
//! Invariants: S1 before `INIT` was answered nothing else is. S2 an [`Ending`] lets go of the file system
//! after the last request is answered. S3 a reader thread that ends for another reason than the end of the
//! connection says so in the log, and the session ends when none is left.
//!
//! Locks: the session's state, a leaf; and the slot of the file system, which is held for reading while a
//! reader thread handles a request, and for writing once, at the end.

use crate::device::{Device, Incoming, PAYLOAD_MAX, Read};
use crate::mount::Mounted;
use crate::notify::Notifier;
use crate::options::Options;
use crate::payload::Payload;
use crate::proto::consts::{InitFlags, VERSION_MAJOR, VERSION_MINOR, VERSION_MINOR_MIN, opcode};
use crate::proto::reply::{Body, InitOut};
use crate::proto::request::{Header, InitIn, Op, Request};
use crate::serve::{Answer, Core, Outcome, Served, Undo, Work, errno_of};
use crate::watchdog::Alive;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::RwLock;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::block_on;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, Result, io_flusher};
use forebay_vfs::{Beside, Ino};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

const EIO: i32 = 5;
const EPROTO: i32 = 71;
const ENOTCONN: i32 = 107;

/// What we take of what the kernel has. Not `ATOMIC_O_TRUNC`: the kernel refuses to truncate a program that
/// runs only after such an `OPEN`.
const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::ABORT_ERROR)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::INIT_EXT)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP);

#[derive(Default)]
struct State {
    ready: bool,
    failed: Option<Error>,
    /// The request to answer last.
    destroy: Option<u64>,
    readers: usize,
    /// Requests that background tasks have.
    tasks: usize,
    /// Requests that the kernel may have under way of its own accord.
    background: u16,
    ended: bool,
}

struct Shared {
    device: Device,
    core: RwLock<Option<Arc<Core>>>,
    /// Who else uses the file system, and has to tell us.
    beside: Weak<Beside>,
    world: WorldRef,
    notifier: Notifier,
    payload: Arc<Payload>,
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module.
pub struct Session {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    alive: Alive,
}

/// A session that is over, but for its last answer.
pub struct Ending {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Answers a request with EIO if nobody else does (U1).
struct Unanswered<'a> {
    shared: &'a Shared,
    unique: u64,
}

impl Unanswered<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.shared.device.reply(self.unique, EIO, &[]);
    }
}

impl Session {
    /// Serves a file system on a mount; returns when the kernel has agreed and requests are answered. Others
    /// use it by the [`Beside`] that is given here, or not at all.
    pub fn start(
        mounted: Mounted,
        fs: impl Into<Served>,
        world: WorldRef,
        options: &Options,
    ) -> Result<Self> {
        let notifier = Notifier::default();
        let Served { fs, beside } = fs.into();
        let core = Core::new(fs, world.clone(), notifier.clone(), options);
        if let Some(beside) = &beside {
            // Before the kernel can ask for anything.
            let mount: Weak<Core> = Arc::downgrade(&core);
            beside.observe(mount)?;
        }
        let shared = Arc::new(Shared {
            device: Device::new(mounted.into_device()),
            core: RwLock::new(Some(core)),
            beside: beside.map_or_else(Weak::new, |beside| Arc::downgrade(&beside)),
            world,
            notifier,
            payload: Payload::new(options.payload_max()),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        shared.lock().background = options.background();
        let count = options.thread_count();
        shared.lock().readers = count;
        let mut threads = Vec::new();
        for n in 0..count {
            let theirs = shared.clone();
            threads.push(spawn(&format!("forebay-fuse-{n}"), move || theirs.read_all())?);
        }
        let theirs = shared.clone();
        threads.push(spawn("forebay-notify", move || {
            io_flusher::mark_thread();
            theirs.notifier.run(&theirs.device);
        })?);
        let theirs = shared.clone();
        let (alive, thread) = Alive::start(move || theirs.wait(|state| state.ended))?;
        threads.push(thread);
        let session = Self { shared, threads, alive };
        match session.until_ready() {
            Ok(()) => Ok(session),
            Err(e) => {
                // Readers end with the mount, whoever takes that away.
                session.shared.leave();
                session.shared.notifier.close();
                session.shared.change(|state| state.ended = true);
                Err(e)
            }
        }
    }

    fn until_ready(&self) -> Result<()> {
        self.shared.wait(|state| state.ready || state.readers == 0);
        let mut state = self.shared.lock();
        match state.failed.take() {
            Some(e) => Err(e),
            None if state.ready => Ok(()),
            None => Err(Error::new(ErrorKind::Io, "mount", "the connection ended at once")),
        }
    }

    /// Tells the kernel what others than its own callers have changed.
    pub fn notifier(&self) -> Notifier {
        self.shared.notifier.clone()
    }

    /// What a watchdog looks at.
    pub fn alive(&self) -> Alive {
        self.alive
    }

    /// Asks for figures: inodes that the kernel knows, and what it has open.
    pub fn figures(&self) -> impl Fn() -> (usize, usize) + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || {
            let core = shared.core.read();
            core.as_ref().map_or((0, 0), |core| (core.inodes.len(), core.handles.len()))
        }
    }

    /// What the mount takes of memory: what, bytes now, bound in bytes. Does not hold the session.
    pub fn memory_rows(
        &self,
        options: &Options,
    ) -> impl Fn() -> Vec<(String, u64, u64)> + Send + Sync + 'static {
        let (shared, options) = (Arc::downgrade(&self.shared), options.clone());
        move || {
            let Some(shared) = shared.upgrade() else { return Vec::new() };
            let inodes = shared.core.read().as_ref().map_or(0, |core| core.inodes.len());
            options.memory_rows(shared.payload.used(), inodes as u64)
        }
    }

    /// Asks for another: trees of processes that have a mode of their own.
    pub fn trees(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.core.read().as_ref().map_or(0, |core| core.trees.len())
    }

    /// Serves until the mount is gone.
    pub fn wait(self) -> Ending {
        self.shared.wait(|state| state.destroy.is_some() || state.readers == 0);
        Ending { shared: self.shared, threads: self.threads }
    }
}

impl Ending {
    /// Makes everything durable, when the last request is answered.
    pub fn sync(&self) -> Result<()> {
        self.shared.wait(|state| state.tasks == 0);
        let core = self.shared.core.read().clone();
        match core {
            Some(core) => block_on(core.fs.syncfs()),
            None => Ok(()),
        }
    }

    /// Lets go of the file system.
    pub fn release(&self) {
        self.shared.wait(|state| state.tasks == 0);
        self.shared.leave();
        let core = self.shared.core.write().take();
        if let Some(core) = core {
            core.handles.clear();
            core.inodes.clear();
        }
    }

    /// Answers `DESTROY`: umount(2) returns. `synced` is what it is told; nobody looks at it.
    pub fn finish(self, synced: &Result<()>) {
        self.release();
        let destroy = self.shared.lock().destroy.take();
        if let Some(unique) = destroy {
            let errno = synced.as_ref().map_or_else(errno_of, |()| 0);
            self.shared.device.reply(unique, errno, &[]);
        }
        self.shared.wait(|state| state.readers == 0);
        self.shared.notifier.close();
        self.shared.change(|state| state.ended = true);
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the mount panicked");
            }
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.to_string());
    builder.spawn(work).map_err(|e| Error::from_io("start a thread", e))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        let mut state = self.lock();
        while !until(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// The work of a reader thread.
    fn read_all(self: &Arc<Self>) {
        io_flusher::mark_thread();
        let (mut incoming, mut out) = (Incoming::new(), AlignedBuf::new(PAYLOAD_MAX));
        loop {
            self.payload.room();
            match self.device.read(&mut incoming) {
                Ok(Read::Message) => {
                    let take = AssertUnwindSafe(|| self.take(&mut incoming, &mut out));
                    if catch_unwind(take).is_err() {
                        log::error!("a request panicked and was answered EIO");
                    }
                }
                Ok(Read::Again) => {}
                Ok(Read::Ended) => break,
                Err(e) => {
                    log::error!("/dev/fuse: {e}");
                    break;
                }
            }
        }
        self.change(|state| state.readers -= 1);
    }

    /// Answers a message, or sees to it that it is answered.
    fn take(self: &Arc<Self>, incoming: &mut Incoming, out: &mut AlignedBuf) {
        let header = match Header::parse(incoming.head()) {
            Ok(header) => header,
            Err(e) => return log::error!("{} bytes of /dev/fuse: {e}", incoming.len),
        };
        match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => return self.forget(&incoming.whole()),
            // Requests are not called back: those of one file system end by themselves.
            opcode::INTERRUPT | opcode::NOTIFY_REPLY => return,
            _ => {}
        }
        let unanswered = Unanswered { shared: self, unique: header.unique };
        match header.opcode {
            opcode::INIT => self.init(&header, &incoming.whole()),
            opcode::DESTROY => self.change(|state| state.destroy = Some(header.unique)),
            code => {
                // Held meanwhile: who takes the file system out waits for this (S2).
                let core = self.core.read();
                match &*core {
                    None => drop(self.device.reply(header.unique, ENOTCONN, &[])),
                    Some(core) => self.serve(core, header, code, incoming, out),
                }
            }
        }
        unanswered.answered();
    }

    fn forget(&self, message: &[u8]) {
        let core = self.core.read();
        let Some(core) = &*core else { return };
        match Request::parse(message).map(|request| (request.header.node, request.op)) {
            Ok((node, Op::Forget { count })) => core.inodes.forgot(Ino(node), count),
            Ok((_, Op::BatchForget(all))) => {
                all.iter().for_each(|(node, count)| core.inodes.forgot(Ino(node), count));
            }
            Ok(_) => {}
            Err(e) => log::error!("{e}"),
        }
    }

    fn serve(
        self: &Arc<Self>,
        core: &Arc<Core>,
        header: Header,
        code: u32,
        incoming: &mut Incoming,
        out: &mut AlignedBuf,
    ) {
        let work = match code {
            // A read is as long as the head.
            opcode::READ => match Request::parse(incoming.short().unwrap_or_default()) {
                Ok(Request { op: Op::Read(io), .. }) => match core.read_now(&io, out) {
                    Some(Ok(len)) => {
                        self.device.reply(header.unique, 0, &out[..len]);
                        return;
                    }
                    Some(Err(e)) => return self.refuse(&header, &e),
                    None => Work::Read(io),
                },
                Ok(_) => Work::Other(incoming.whole()),
                Err(e) => return self.refuse(&header, &e),
            },
            opcode::WRITE => match Request::parse_write(incoming.head(), incoming.rest()) {
                Ok(Request { op: Op::Write { io, data }, .. }) => match core.write_now(&io, data) {
                    Some(Ok(outcome)) => return self.finish(core, header.unique, outcome),
                    Some(Err(e)) => return self.refuse(&header, &e),
                    None => Work::Write(io, incoming.take_payload()),
                },
                Ok(_) => Work::Other(incoming.whole()),
                Err(e) => return self.refuse(&header, &e),
            },
            _ => Work::Other(incoming.whole()),
        };
        self.start(core, header.unique, work);
    }

    fn refuse(&self, header: &Header, e: &Error) {
        if e.kind() == ErrorKind::Protocol {
            log::error!("{e}");
        }
        self.device.reply(header.unique, errno_of(e), &[]);
    }

    /// Polls once; what has to wait goes on as a background task.
    fn start(self: &Arc<Self>, core: &Arc<Core>, unique: u64, work: Work) {
        let bytes = work.bytes();
        let mut future = Box::pin(core.clone().serve(work));
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut cx) {
            return self.finish(core, unique, outcome);
        }
        self.change(|state| state.tasks += 1);
        let held = self.payload.hold(bytes);
        let (shared, core) = (self.clone(), core.clone());
        self.world.spawn(
            "fuse request",
            Box::pin(async move {
                let task = Task(shared);
                let unanswered = Unanswered { shared: &task.0, unique };
                let outcome = future.await;
                unanswered.answered();
                task.0.finish(&core, unique, outcome);
                drop(held);
                // The file system may be given back when nobody counts any more (S2).
                drop(core);
            }),
        );
    }

    fn finish(&self, core: &Core, unique: u64, outcome: Outcome) {
        let told = match &outcome.answer {
            Answer::Errno(errno) => self.device.reply(unique, *errno, &[]),
            Answer::Body(body) => self.device.reply(unique, 0, body.as_bytes()),
            Answer::Data(buf, len) => self.device.reply(unique, 0, &buf[..*len]),
        };
        let Undo { inodes, opened } = &outcome.undo;
        if !told && (!inodes.is_empty() || opened.is_some()) {
            core.undo(outcome.undo);
        }
    }

    /// Others have nothing to tell any more.
    fn leave(&self) {
        if let Some(beside) = self.beside.upgrade() {
            beside.forget();
        }
    }

    fn init(&self, header: &Header, message: &[u8]) {
        let init = match Request::parse(message).map(|request| request.op) {
            Ok(Op::Init(init)) => init,
            Ok(_) => return,
            Err(e) => return self.fail(header, e),
        };
        let mut body = Body::new();
        if init.major > VERSION_MAJOR {
            body.init_version(VERSION_MINOR);
            self.device.reply(header.unique, 0, body.as_bytes());
            return;
        }
        if init.major < VERSION_MAJOR || init.minor < VERSION_MINOR_MIN {
            let text = format!(
                "the kernel speaks FUSE {}.{}; {VERSION_MAJOR}.{VERSION_MINOR_MIN} (Linux 6.6) is needed",
                init.major, init.minor
            );
            return self.fail(header, Error::new(ErrorKind::Unsupported, "mount", text));
        }
        let out = agreed(&init, self.lock().background);
        if let Some(core) = &*self.core.read() {
            core.minor.store(out.minor, Ordering::Relaxed);
        }
        body.init_out(&out);
        let told = self.device.reply(header.unique, 0, body.as_bytes());
        self.change(|state| state.ready = told);
    }

    fn fail(&self, header: &Header, e: Error) {
        self.device.reply(header.unique, EPROTO, &[]);
        self.change(|state| state.failed = Some(e));
    }
}

/// What both sides can do.
fn agreed(init: &InitIn, background: u16) -> InitOut {
    log::debug!("FUSE {}.{}, {:?}", init.major, init.minor, init.flags);
    InitOut {
        minor: init.minor.min(VERSION_MINOR),
        max_readahead: init.max_readahead.min(PAYLOAD_MAX as u32),
        flags: init.flags & WANTED,
        max_background: background,
        congestion_threshold: (background / 4 * 3).max(1),
        max_write: PAYLOAD_MAX as u32,
        max_pages: (PAYLOAD_MAX / 4096) as u16,
    }
}

/// A request that a background task has, counted as long as the task lives.
struct Task(Arc<Shared>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.change(|state| state.tasks -= 1);
    }
}

#[cfg(test)]
mod tests;
