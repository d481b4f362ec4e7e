//! Serves a mount: its threads, its first and its last message.
//!
//! ```text
//!   INIT ─▶ negotiated, ready ─▶ requests ─▶ DESTROY, or the connection is over
//!     ─▶ Ending: sync, give the file system back, answer DESTROY, join the threads
//! ```
//! Invariants: S1 the reply to `INIT` comes before any other reply. S2 an [`Ending`] releases the
//! file system after the last request is answered. S3 a reader thread that ends before the
//! connection does logs why, and the session ends when no reader thread is left. S4 `DESTROY` is
//! answered also without an [`Ending`]: a session that did not start, or is dropped, answers it at
//! once.
//!
//! Locks: the session's state, a leaf; those of its modules; and the slot of the file system. A
//! reader thread holds the slot's lock shared while it handles a request; the end of the session
//! takes it exclusively, once.

mod overdue;
mod readers;
mod requests;
mod shared;
mod syncs;
mod thread;
mod waiting;

use crate::device::{Device, Incoming, PAYLOAD_MAX, Read};
use crate::mount::Mounted;
use crate::notify::{Notice, Notifier};
use crate::options::Options;
use crate::payload::Payload;
use crate::proto::consts::{InitFlags, VERSION_MAJOR, VERSION_MINOR, VERSION_MINOR_MIN, opcode};
use crate::proto::notify::RetrieveReply;
use crate::proto::reply::{Body, InitOut};
use crate::proto::request::{Header, InitIn, Op, Request};
use crate::serve::{Core, Served, errno_of};
use crate::watchdog::Alive;
use forebay_base::sync::RwLock;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::block_on;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, Result, io_flusher};
use forebay_vfs::Ino;
use readers::Readers;
use requests::Own;
use shared::Shared;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use syncs::Syncs;
use thread::spawn;
use waiting::Tasks;

const EIO: i32 = 5;
const EPROTO: i32 = 71;
const ENOTCONN: i32 = 107;

/// Capabilities that the daemon uses if the kernel has them. Not `ATOMIC_O_TRUNC`: with it the
/// kernel refuses to truncate a running executable only after `OPEN` has truncated the file.
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

/// A mount that is being served.
pub struct Session {
    shared: Arc<Shared>,
    /// Empty after they were moved to an [`Ending`].
    threads: Vec<JoinHandle<()>>,
    alive: Alive,
}

/// A session that has ended, except that `DESTROY` is not answered yet.
pub struct Ending {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Answers a request with EIO on drop, if it was not answered (fuse.U1).
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
    /// Serves a file system on a mount; returns when `INIT` is answered and requests are served.
    /// Other front ends may change the file system only through the [`forebay_vfs::NotifyingFs`] in
    /// `fs`.
    pub fn start(
        mounted: Mounted,
        fs: impl Into<Served>,
        world: WorldRef,
        options: &Options,
    ) -> Result<Self> {
        let notifier = Notifier::default();
        let Served { fs, notifying } = fs.into();
        let core = Core::new(fs, world.clone(), notifier.clone(), options);
        if let Some(notifying) = &notifying {
            // Set before the kernel can send a request.
            let mount: Weak<Core> = Arc::downgrade(&core);
            notifying.observe(mount)?;
        }
        let device = Device::with_limit(mounted.into_device(), options.request_timeout);
        let device = Arc::new(device);
        notifier.attach(&device);
        let shared = Arc::new(Shared {
            device,
            inodes: core.inodes.clone(),
            core: RwLock::new(Some(core)),
            notifying: notifying.map_or_else(Weak::new, |notifying| Arc::downgrade(&notifying)),
            notifier,
            payload: Payload::new(options.payload_max(), options.request_timeout),
            readers: Readers::new(options.thread_count()),
            syncs: Syncs::new(&world),
            tasks: Arc::new(Tasks(world)),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        shared.lock().background = options.background();
        shared.lock().kernel_timeout = options.kernel_timeout();
        match shared.spawn_all(options.thread_count()) {
            Ok((threads, alive)) => {
                let session = Self { shared, threads, alive };
                session.until_ready().map(|()| session)
            }
            Err(e) => {
                shared.abandon();
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

    /// Sends notices about changes by other front ends to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.shared.notifier.clone()
    }

    /// The thread that a watchdog observes.
    pub fn alive(&self) -> Alive {
        self.alive
    }

    /// Returns a function for two figures: inodes that the kernel knows, and files that it has
    /// open.
    pub fn figures(&self) -> impl Fn() -> (usize, usize) + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || {
            let core = shared.core.read();
            core.as_ref().map_or((0, 0), |core| (core.inodes.len(), core.handles.len()))
        }
    }

    /// Returns a function for two figures: requests and bytes by which the kernel has filled its
    /// cache.
    pub fn fills(&self) -> impl Fn() -> (u64, u64) + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.core.read().as_ref().map_or((0, 0), |core| core.fills.totals())
    }

    /// Returns a function for the mount's memory: label, bytes now, bound in bytes. It does not
    /// keep the session alive.
    pub fn memory_rows(
        &self,
        options: &Options,
    ) -> impl Fn() -> Vec<(String, u64, u64)> + Send + Sync + 'static {
        let (shared, options) = (Arc::downgrade(&self.shared), options.clone());
        move || {
            let Some(shared) = shared.upgrade() else { return Vec::new() };
            let of = |core: &Arc<Core>| (core.inodes.len() as u64, core.spares.bytes());
            let (inodes, spare) = shared.core.read().as_ref().map_or((0, 0), of);
            let drops = shared.notifier.drops().bytes();
            options.memory_rows(shared.payload.used(), spare, inodes, drops)
        }
    }

    /// Returns a function for the number of process trees with a mode.
    pub fn trees(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.core.read().as_ref().map_or(0, |core| core.trees.len())
    }

    /// Serves until the mount has ended.
    pub fn wait(mut self) -> Ending {
        self.shared.wait(|state| state.destroy.is_some() || state.readers == 0);
        Ending { shared: self.shared.clone(), threads: std::mem::take(&mut self.threads) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.shared.abandon();
        }
    }
}

impl Ending {
    /// Waits for the last request and makes everything durable.
    pub fn sync(&self) -> Result<()> {
        self.shared.wait(|state| state.tasks == 0);
        let core = self.shared.core.read().clone();
        match core {
            Some(core) => block_on(core.fs.syncfs()),
            None => Ok(()),
        }
    }

    /// Waits for the last request and releases the file system.
    pub fn release(&self) {
        self.shared.wait(|state| state.tasks == 0);
        self.shared.leave();
        let core = self.shared.core.write().take();
        if let Some(core) = core {
            core.handles.clear();
            core.inodes.clear();
        }
    }

    /// Answers `DESTROY`, so umount(2) returns. `synced` becomes its errno, which the kernel
    /// ignores.
    pub fn finish(self, synced: &Result<()>) {
        self.release();
        let destroy = self.shared.lock().destroy.take();
        if let Some(unique) = destroy {
            let errno = synced.as_ref().map_or_else(errno_of, |()| 0);
            self.shared.device.reply(unique, errno, &[]);
        }
        self.shared.wait(|state| state.readers == 0);
        self.shared.syncs.close();
        self.shared.notifier.close();
        self.shared.device.deadlines.close();
        self.shared.change(|state| state.ended = true);
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the mount panicked");
            }
        }
    }
}

impl Shared {
    fn spawn_all(self: &Arc<Self>, readers: usize) -> Result<(Vec<JoinHandle<()>>, Alive)> {
        self.lock().readers = readers;
        let mut threads = Vec::new();
        for n in 0..readers {
            let theirs = self.clone();
            threads.push(spawn(&format!("forebay-fuse-{n}"), move || theirs.read_all())?);
        }
        let theirs = self.clone();
        threads.push(spawn("forebay-notify", move || {
            io_flusher::mark_thread();
            theirs.notifier.run(&theirs.device);
        })?);
        let theirs = self.clone();
        threads.push(spawn("forebay-drop", move || {
            io_flusher::mark_thread();
            let notify = |notice: &Notice| {
                let _is_unknown = theirs.notifier.tell(&theirs.device, notice);
            };
            theirs.notifier.drops().run(&theirs.inodes, notify);
        })?);
        if self.device.deadlines.has_limit() {
            threads.push(self.watch_deadlines()?);
        }
        let theirs = self.clone();
        let (alive, thread) = Alive::start(move || theirs.wait(|state| state.ended))?;
        threads.push(thread);
        Ok((threads, alive))
    }

    /// Ends the session without an [`Ending`]. Reader threads end when the mount does (S4).
    fn abandon(&self) {
        self.leave();
        self.notifier.close();
        self.device.deadlines.close();
        let mut destroy = None;
        self.change(|state| {
            state.abandoned = true;
            state.ended = true;
            destroy = state.destroy.take();
        });
        if let Some(unique) = destroy {
            self.device.reply(unique, 0, &[]);
        }
    }

    fn destroy(&self, unique: u64) {
        let mut abandoned = false;
        self.change(|state| {
            abandoned = state.abandoned;
            state.destroy = (!abandoned).then_some(unique);
        });
        if abandoned {
            self.device.reply(unique, 0, &[]);
        }
    }

    /// The work of a reader thread.
    fn read_all(self: &Arc<Self>) {
        io_flusher::mark_thread();
        let (mut incoming, mut own) = (Incoming::new(), Own::new());
        loop {
            self.payload.wait_for_space();
            let listens = self.readers.listen();
            let read = self.device.read(&mut incoming);
            drop(listens);
            match read {
                Ok(Read::Message) => {
                    let take = AssertUnwindSafe(|| self.take(&mut incoming, &mut own));
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
        if self.lock().readers == 0 {
            self.syncs.stop();
            // No answer can arrive any more.
            self.notifier.retriever().close();
        }
    }

    /// Answers a message, or hands it to a task or thread that does.
    fn take(self: &Arc<Self>, incoming: &mut Incoming, own: &mut Own) {
        let header = match Header::parse(incoming.head()) {
            Ok(header) => header,
            Err(e) => return log::error!("{} bytes of /dev/fuse: {e}", incoming.len),
        };
        match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => return self.forget(&incoming.whole()),
            // Interrupts are ignored: each request of the file system ends by itself.
            opcode::INTERRUPT => return,
            opcode::NOTIFY_REPLY => return self.retrieved(header.unique, incoming),
            _ => {}
        }
        let unanswered = Unanswered { shared: self, unique: header.unique };
        match header.opcode {
            opcode::INIT => self.init(&header, &incoming.whole()),
            opcode::DESTROY => self.destroy(header.unique),
            // A release is carried out in any case: the kernel does not repeat it.
            code if self.payload.is_stuck()
                && !matches!(code, opcode::RELEASE | opcode::RELEASEDIR) =>
            {
                self.device.reply(header.unique, EIO, &[]);
            }
            code => {
                self.device.deadlines.begin(header.unique, || overdue::changes(code, incoming));
                // Held while the request is handled: the end of the session waits for this lock
                // (S2).
                let core = self.core.read();
                match &*core {
                    None => drop(self.device.reply(header.unique, ENOTCONN, &[])),
                    Some(core) => self.serve(core, header, code, incoming, own),
                }
            }
        }
        unanswered.answered();
    }

    /// Handles the reply to a `RETRIEVE`, a copy of cached pages; see [`crate::retrieve`].
    fn retrieved(&self, number: u64, incoming: &Incoming) {
        match RetrieveReply::parse(incoming.head()) {
            Ok(RetrieveReply { offset, size }) => {
                let data = incoming.rest();
                let data = &data[..data.len().min(size as usize)];
                self.notifier.retriever().answered(number, offset, data);
            }
            Err(e) => log::error!("{e}"),
        }
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
        let out = {
            let state = self.lock();
            agreed(&init, state.background, state.kernel_timeout)
        };
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

/// The reply to `INIT`: the capabilities that both sides have; most requests of the kernel's own at
/// a time (`background`); the kernel's time limit for a request (`timeout`, seconds).
pub fn agreed(init: &InitIn, background: u16, timeout: u16) -> InitOut {
    log::debug!("FUSE {}.{}, {:?}", init.major, init.minor, init.flags);
    let limit = if timeout > 0 { InitFlags::REQUEST_TIMEOUT } else { InitFlags::empty() };
    let wanted = WANTED | limit;
    InitOut {
        minor: init.minor.min(VERSION_MINOR),
        max_readahead: init.max_readahead.min(PAYLOAD_MAX as u32),
        flags: init.flags & wanted,
        max_background: background,
        congestion_threshold: (background / 4 * 3).max(1),
        max_write: PAYLOAD_MAX as u32,
        max_pages: (PAYLOAD_MAX / 4096) as u16,
        request_timeout: timeout,
    }
}

#[cfg(test)]
mod tests;
