//! Carries out requests: starts each request of an event-loop thread's connections, and answers
//! those that had to wait when their tasks end.
//!
//! Invariants:
//! 1. A request of an open connection is answered exactly once: at once, or when its task ends.
//! 2. Cached data is read directly into the connection's replies, and written directly from its
//!    input, without an allocation.
//! 3. Memory charged for a task is released when the task ends, or passes to the reply that uses
//!    its buffer. That also holds if the connection is closed by then.

use crate::config::{DropReason, RECEIVE_MIN, receive_memory};
use crate::conn::{Book, Conn, Phase};
use crate::exec::{Executor, Outcome, Ticket, Work};
use crate::handshake::{Session, Step};
use crate::out::Freed;
use crate::pool::{CHUNK_LEN, Pool};
use crate::proto::{self, Command, CommandFlags, READ_HEADER_MAX, Request, errno};
use crate::receive_buffer::ReceiveBuffer;
use crate::request_class::class_of;
use crate::shared::Shared;
use crate::stats::{LoopStats, Verdict, bump, kind};
use crate::tls::SESSION_BYTES;
use crate::transmission::{Gate, Incoming};
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{Error, IoFlags, Result};
use forebay_vfs::{Export, Extent, ZeroMode};
use std::sync::Arc;

/// A read of up to this many bytes is first tried directly into a chunk of replies; a longer one
/// gets a buffer of its own, from which it is sent.
const SMALL_READ: usize = 64 << 10;
/// A read that had to wait is copied from its buffer into a chunk up to this many bytes, since that
/// is cheaper than a separate slice.
const COPY_MAX: usize = 16 << 10;
/// Memory of a request that has to wait in addition to its data, bytes. It covers the futures of
/// export, cache and map, a bio with its lists, and rounding of its buffer to pages.
/// `cli/tests/suite/memory_limit.rs` compares it with the memory of the process.
const OVERHEAD: usize = 8 << 10;
/// Memory of the zeros that an export writes if the device cannot zero a range, bytes.
const ZEROS_MAX: usize = 256 << 10;
/// Most extents in a reply to BLOCK_STATUS.
const EXTENTS_MAX: usize = 8192;
/// A handshake is continued only while its unsent replies take at most this much memory, bytes.
const HANDSHAKE_OUT_MAX: usize = 2 * CHUNK_LEN;

const _: () = assert!(SMALL_READ + READ_HEADER_MAX <= CHUNK_LEN);
const _: () = assert!(EXTENTS_MAX * 8 + 64 <= CHUNK_LEN);

/// The state that a loop's connections share.
pub(crate) struct Core {
    pub shared: Arc<Shared>,
    pub stats: Arc<LoopStats>,
    pub pool: Pool,
    pub exec: Executor,
    /// Slots of connections to settle at the end of the turn.
    pub dirty: Vec<u32>,
    pub text: Vec<u8>,
}

struct Admission<'a> {
    core: &'a mut Core,
    book: &'a mut Book,
}

impl Gate for Admission<'_> {
    fn admit(&mut self, request: &Request, _whole: bool) -> bool {
        self.core.admit(self.book, request)
    }
    fn buffer(&mut self, len: usize) -> AlignedBuf {
        self.core.charge(self.book, len + OVERHEAD);
        self.core.pool.buf(len)
    }
}

impl Core {
    fn charge(&self, book: &mut Book, bytes: usize) {
        book.charged += bytes;
        self.shared.memory.charge(bytes);
    }

    fn release(&self, book: &mut Book, bytes: usize) {
        debug_assert!(book.charged >= bytes);
        book.charged -= bytes;
        self.shared.memory.release(bytes);
    }

    /// Whether the request may start; otherwise the connection is blocked with that verdict.
    fn admit(&self, book: &mut Book, request: &Request) -> bool {
        let cost = cost(request);
        let waits = book.blocked == Some(Verdict::ServerFull);
        let verdict = if book.inflight >= self.shared.config.inflight_max {
            Verdict::ClientFull
        } else {
            self.shared.memory.admits(book.charged, cost, waits)
        };
        self.set_blocked(book, (verdict != Verdict::Yes).then_some(verdict));
        verdict == Verdict::Yes
    }

    /// Updates the count of buffered bytes.
    pub fn count_receive_buffer(&self, conn: &mut Conn) {
        let now = conn.receive_buffer.memory();
        if now != conn.buffered_counted {
            let buffered = &self.shared.memory.buffered;
            buffered.fetch_add(now, Ordering::Relaxed);
            buffered.fetch_sub(conn.buffered_counted, Ordering::Relaxed);
            conn.buffered_counted = now;
        }
    }

    /// Most bytes that may be received at once, in case that none of them can be consumed.
    pub fn receive_max(&self) -> usize {
        let Shared { config, memory, .. } = &*self.shared;
        let buffered = memory.buffered.load(Ordering::Relaxed);
        let room = receive_memory(memory.total()).saturating_sub(buffered);
        (room / config.threads).max(RECEIVE_MIN)
    }

    pub fn set_blocked(&self, book: &mut Book, now: Option<Verdict>) {
        if book.blocked == now {
            return;
        }
        let waiting = &self.shared.memory.waiting;
        if now == Some(Verdict::ServerFull) {
            if waiting.fetch_add(1, Ordering::SeqCst) == 0 {
                // Another loop may hold the memory and sleep, so all loops are woken.
                self.shared.loops.iter().for_each(|l| l.home.nudge());
            }
        } else if book.blocked == Some(Verdict::ServerFull) {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
        book.blocked = now;
    }

    /// Consumes the complete messages of `input`; returns their length. Sets `conn.doom` if the
    /// connection has to be closed. `pause`: stop where transmission begins.
    pub fn parse(&mut self, conn: &mut Conn, input: &[u8], pause: bool) -> usize {
        let mut rest = input;
        loop {
            match &mut conn.phase {
                Phase::Handshake(_) if conn.book.charged > HANDSHAKE_OUT_MAX => {
                    self.set_blocked(&mut conn.book, Some(Verdict::ClientFull));
                    break;
                }
                Phase::Handshake(_) => {
                    let before = rest.len();
                    let entered = self.negotiate(conn, &mut rest);
                    let stop = conn.doom.is_some() || conn.starting_tls;
                    if stop || before == rest.len() || (entered && pause) {
                        break;
                    }
                }
                Phase::Live(live) => {
                    let mut gate = Admission { core: self, book: &mut conn.book };
                    match live.next(&mut rest, &mut gate) {
                        Ok(Incoming::More | Incoming::Blocked) => break,
                        Ok(Incoming::Disconnect) => {
                            bump(&self.stats.requests[kind(Command::Disconnect)], 1);
                            conn.reading = false;
                            rest = &[];
                            break;
                        }
                        Ok(incoming) => self.serve(&mut conn.book, &live.session, incoming),
                        Err(reason) => {
                            conn.doom = Some(Some(reason));
                            break;
                        }
                    }
                }
            }
        }
        input.len() - rest.len()
    }

    /// Carries out one step of the handshake. True: transmission begins.
    fn negotiate(&mut self, conn: &mut Conn, rest: &mut &[u8]) -> bool {
        let Phase::Handshake(handshake) = &mut conn.phase else { return false };
        self.set_blocked(&mut conn.book, None);
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let (used, step) = handshake.feed(rest, &mut text, &*self.shared);
        *rest = &rest[used..];
        self.put_bytes(&mut conn.book, &text);
        self.text = text;
        match step {
            Step::More => false,
            Step::Enter(session) => {
                let export = &self.shared.exports[session.export].1;
                conn.book.export = Some(export.for_client().unwrap_or_else(|| export.clone()));
                conn.phase = Phase::Live(Box::new(crate::transmission::Transmission::new(session)));
                true
            }
            Step::StartTls => {
                conn.starting_tls = true;
                false
            }
            Step::Close(reason) => {
                conn.doom = Some(reason);
                false
            }
        }
    }

    pub fn mark(&mut self, book: &mut Book) {
        if !std::mem::replace(&mut book.dirty, true) {
            self.dirty.push(book.key.0);
        }
    }

    /// Makes the free tail of the replies at least `need` bytes long.
    fn room(&mut self, book: &mut Book, need: usize) {
        debug_assert!(need <= CHUNK_LEN);
        if book.out.room() < need {
            self.charge(book, CHUNK_LEN);
            book.out.push_chunk(self.pool.chunk());
        }
    }

    pub fn put_bytes(&mut self, book: &mut Book, bytes: &[u8]) {
        for part in bytes.chunks(CHUNK_LEN) {
            self.room(book, part.len());
            book.out.tail()[..part.len()].copy_from_slice(part);
            book.out.commit(part.len());
        }
    }

    /// Sends a reply without data.
    fn status(&mut self, book: &mut Book, request: &Request, structured: bool, error: u32) {
        if error != 0 {
            bump(&self.stats.errors, 1);
        }
        if !matches!(request.command, Command::Read | Command::BlockStatus) {
            return self.put_bytes(book, &proto::simple_reply(request.cookie, error));
        }
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        proto::put_status(&mut text, request, structured, error);
        self.put_bytes(book, &text);
        self.text = text;
    }

    fn result(&mut self, book: &mut Book, ticket: &Ticket, result: &Result<()>) {
        let error = result.as_ref().map_or_else(|e| self.error(&ticket.request, e), |()| 0);
        self.status(book, &ticket.request, ticket.structured, error);
    }

    fn error(&self, request: &Request, error: &Error) -> u32 {
        log::debug!("nbd: {:?} at {}+{}: {error}", request.command, request.offset, request.len);
        proto::error_number(error)
    }

    fn serve(&mut self, book: &mut Book, session: &Session, incoming: Incoming<'_>) {
        let (request, data, buf) = match incoming {
            Incoming::Request(request) => (request, None, None),
            Incoming::Write(request, data) => (request, Some(data), None),
            Incoming::WriteBuf(request, buf) => (request, None, Some(buf)),
            Incoming::Reject(request, error) => {
                bump(&self.stats.requests[kind(request.command)], 1);
                return self.status(book, &request, session.structured, error);
            }
            Incoming::Disconnect | Incoming::Blocked | Incoming::More => return,
        };
        bump(&self.stats.requests[kind(request.command)], 1);
        let ticket =
            Ticket { key: book.key, request, cost: cost(&request), structured: session.structured };
        if let Some(buf) = buf {
            return self.write_buf(book, ticket, buf);
        }
        // An empty range changes nothing; `check` in `transmission.rs` has refused an empty
        // BLOCK_STATUS.
        if request.len == 0 && request.command != Command::Flush {
            return self.status(book, &request, session.structured, 0);
        }
        match (request.command, data) {
            (Command::Read, _) => self.read(book, ticket),
            (Command::Write, Some(data)) => self.write(book, ticket, data),
            _ => self.other(book, ticket),
        }
    }

    fn read(&mut self, book: &mut Book, ticket: Ticket) {
        let Ticket { request, structured, .. } = ticket;
        let flags = self.shared.config.io_flags & !IoFlags::WRITE_ONLY;
        let export = book.export();
        let len = request.len as usize;
        let (head, head_len) = proto::read_header(&request, structured);
        let mut large = (len > SMALL_READ).then(|| self.pool.buf(len));
        let tried = if let Some(buf) = &mut large {
            export.try_read(request.offset, buf, flags)
        } else {
            self.room(book, head_len + len);
            let tail = &mut book.out.tail()[..head_len + len];
            tail[..head_len].copy_from_slice(&head[..head_len]);
            export.try_read(request.offset, &mut tail[head_len..], flags)
        };
        match (tried, large) {
            (Some(Ok(())), large) => {
                bump(&self.stats.bytes_read, len as u64);
                match large {
                    None => book.out.commit(head_len + len),
                    Some(buf) => {
                        self.charge(book, ticket.cost);
                        book.out.push_data(head, head_len, buf);
                    }
                }
            }
            (Some(Err(e)), large) => {
                large.into_iter().for_each(|buf| self.pool.put_buf(buf));
                let error = self.error(&request, &e);
                self.status(book, &request, structured, error);
            }
            (None, large) => {
                let buf = large.unwrap_or_else(|| self.pool.buf(len));
                self.charge(book, ticket.cost);
                let work = Work::Buf(export.read(request.offset, buf, flags));
                self.start(book, ticket, work);
            }
        }
    }

    fn write_flags(&self, request: &Request) -> IoFlags {
        let mut flags = self.shared.config.io_flags;
        flags.set(IoFlags::DSYNC, request.flags.contains(CommandFlags::FUA));
        flags
    }

    fn write(&mut self, book: &mut Book, ticket: Ticket, data: &[u8]) {
        let flags = self.write_flags(&ticket.request);
        let export = book.export();
        if let Some(result) = export.try_write(ticket.request.offset, data, flags) {
            bump(&self.stats.bytes_written, if result.is_ok() { data.len() as u64 } else { 0 });
            return self.result(book, &ticket, &result);
        }
        let mut buf = self.pool.buf(data.len());
        buf.copy_from_slice(data);
        self.charge(book, ticket.cost);
        let work = Work::Buf(export.write(ticket.request.offset, buf, flags));
        self.start(book, ticket, work);
    }

    /// Like [`Self::write`], for a buffer that was charged when its payload began to arrive.
    fn write_buf(&mut self, book: &mut Book, ticket: Ticket, buf: AlignedBuf) {
        let flags = self.write_flags(&ticket.request);
        let export = book.export();
        if let Some(result) = export.try_write(ticket.request.offset, &buf, flags) {
            bump(&self.stats.bytes_written, if result.is_ok() { buf.len() as u64 } else { 0 });
            self.release(book, ticket.cost);
            self.pool.put_buf(buf);
            return self.result(book, &ticket, &result);
        }
        self.start(book, ticket, Work::Buf(export.write(ticket.request.offset, buf, flags)));
    }

    fn other(&mut self, book: &mut Book, ticket: Ticket) {
        if let Some(class) = class_of(ticket.request.command) {
            return self.enqueue(book, class, ticket);
        }
        let work = match ticket.request.command {
            Command::Flush => Work::Unit(book.export().flush()),
            _ => return self.status(book, &ticket.request, ticket.structured, errno::EINVAL),
        };
        self.charge(book, ticket.cost);
        self.start(book, ticket, work);
    }

    /// Queues a request in its class.
    fn enqueue(&mut self, book: &mut Book, class: usize, ticket: Ticket) {
        self.charge(book, ticket.cost);
        book.inflight += 1;
        book.in_tasks += ticket.cost;
        book.classes.push(class, ticket);
        self.run_class(book, class);
    }

    /// Starts the next requests of a class up to its limit. So one client's requests take neither
    /// all turns of the loop, nor the whole queue of the device, nor all ranges of the export.
    fn run_class(&mut self, book: &mut Book, class: usize) {
        while let Some(ticket) = book.classes.next(class) {
            match self.exec.start(ticket, class_work(&ticket.request, book.export())) {
                Some(outcome) => self.finish(book, &ticket, outcome),
                None => {
                    book.classes.begun(class);
                    bump(&self.stats.late, 1);
                }
            }
        }
    }

    /// Starts a task whose memory is already charged.
    fn start(&mut self, book: &mut Book, ticket: Ticket, work: Work) {
        book.inflight += 1;
        book.in_tasks += ticket.cost;
        match self.exec.start(ticket, work) {
            Some(outcome) => self.finish(book, &ticket, outcome),
            None => bump(&self.stats.late, 1),
        }
    }

    /// Handles the end of a task whose connection is open.
    pub fn complete(&mut self, book: &mut Book, ticket: &Ticket, outcome: Outcome) {
        self.finish(book, ticket, outcome);
        if let Some(class) = class_of(ticket.request.command) {
            book.classes.over(class);
            self.run_class(book, class);
        }
    }

    fn finish(&mut self, book: &mut Book, ticket: &Ticket, outcome: Outcome) {
        debug_assert!(book.inflight > 0 && book.in_tasks >= ticket.cost);
        book.inflight -= 1;
        book.in_tasks -= ticket.cost;
        self.mark(book);
        let request = &ticket.request;
        match outcome {
            Outcome::Buf(buf, Ok(())) if request.command == Command::Read => {
                return self.read_done(book, ticket, buf);
            }
            Outcome::Buf(buf, result) => {
                if result.is_ok() {
                    bump(&self.stats.bytes_written, buf.len() as u64);
                }
                self.pool.put_buf(buf);
                self.result(book, ticket, &result);
            }
            Outcome::Unit(result) => self.result(book, ticket, &result),
            Outcome::Map(Ok(extents)) => match block_status(request, &extents) {
                Some(entries) => {
                    let mut text = std::mem::take(&mut self.text);
                    text.clear();
                    proto::put_block_status(&mut text, request.cookie, &entries);
                    self.put_bytes(book, &text);
                    self.text = text;
                }
                None => self.status(book, request, ticket.structured, errno::EIO),
            },
            Outcome::Map(Err(e)) => {
                let error = self.error(request, &e);
                self.status(book, request, ticket.structured, error);
            }
        }
        self.release(book, ticket.cost);
    }

    fn read_done(&mut self, book: &mut Book, ticket: &Ticket, buf: AlignedBuf) {
        let (head, head_len) = proto::read_header(&ticket.request, ticket.structured);
        bump(&self.stats.bytes_read, buf.len() as u64);
        if buf.len() > COPY_MAX {
            // The memory stays charged until the buffer is sent.
            return book.out.push_data(head, head_len, buf);
        }
        self.room(book, head_len + buf.len());
        let tail = book.out.tail();
        tail[..head_len].copy_from_slice(&head[..head_len]);
        tail[head_len..head_len + buf.len()].copy_from_slice(&buf);
        book.out.commit(head_len + buf.len());
        self.pool.put_buf(buf);
        self.release(book, ticket.cost);
    }

    /// Handles the end of a task whose connection is closed: its memory is still charged.
    pub fn orphan_done(&mut self, ticket: &Ticket, outcome: Outcome) {
        if let Outcome::Buf(buf, _) = outcome {
            self.pool.put_buf(buf);
        }
        self.shared.memory.release(ticket.cost);
    }

    /// Handles `n` bytes of replies that were sent.
    pub fn sent(&mut self, book: &mut Book, n: usize) {
        let (mut freed, pool) = (0, &mut self.pool);
        book.out.advance(n, |piece| match piece {
            Freed::Chunk(chunk) => {
                freed += CHUNK_LEN;
                pool.put_chunk(chunk);
            }
            Freed::Data(buf) => {
                freed += buf.len() + OVERHEAD;
                pool.put_buf(buf);
            }
        });
        if freed > 0 {
            self.release(book, freed);
        }
    }

    /// Closes a connection's account: releases its memory, except that of its tasks.
    pub fn close_book(&mut self, conn: &mut Conn, reason: Option<DropReason>) {
        self.set_blocked(&mut conn.book, None);
        conn.receive_buffer = ReceiveBuffer::default();
        self.count_receive_buffer(conn);
        if conn.stream.is_tls() {
            self.shared.memory.release(SESSION_BYTES);
        }
        // Queued requests hold no buffers, so their memory is released here.
        conn.book.in_tasks -= conn.book.classes.drain();
        self.shared.memory.release(conn.book.charged - conn.book.in_tasks);
        conn.book.charged = conn.book.in_tasks;
        if let Some(reason) = reason {
            bump(&self.stats.dropped[reason as usize], 1);
            log::warn!("nbd: {}: cut off: {}", conn.label, reason.as_str());
        }
    }
}

/// The future of a request that has a class.
fn class_work(request: &Request, export: Arc<dyn Export>) -> Work {
    let Request { flags, command, offset, len, .. } = *request;
    let (len, fua) = (u64::from(len), flags.contains(CommandFlags::FUA));
    match command {
        Command::Trim => Work::Unit(export.trim(offset, len, fua)),
        Command::WriteZeroes => {
            let mode = ZeroMode {
                keep_allocated: flags.contains(CommandFlags::NO_HOLE),
                fast_only: flags.contains(CommandFlags::FAST_ZERO),
                fua,
            };
            Work::Unit(export.zero(offset, len, mode))
        }
        Command::Cache => Work::Unit(export.prefetch(offset, len)),
        _ => Work::Map(export.extents(offset, len, extents_max(flags))),
    }
}

/// The memory charged for a request, bytes.
fn cost(request: &Request) -> usize {
    let len = request.len as usize;
    OVERHEAD
        + match request.command {
            Command::Read | Command::Write => len,
            // If the device cannot zero a range, zeros are written.
            Command::WriteZeroes => len.min(ZEROS_MAX),
            _ => 0,
        }
}

fn extents_max(flags: CommandFlags) -> usize {
    if flags.contains(CommandFlags::REQ_ONE) { 1 } else { EXTENTS_MAX }
}

/// The extents of a reply: merged if equal, clipped to the request, limited in number. `None`: the
/// export returned no usable map.
fn block_status(request: &Request, extents: &[Extent]) -> Option<Vec<(u32, u32)>> {
    let mut left = u64::from(request.len);
    let mut out: Vec<(u32, u32)> = Vec::new();
    for extent in extents.iter().filter(|e| e.len > 0) {
        let take = extent.len.min(left) as u32;
        if take == 0 {
            break;
        }
        let hole = if extent.hole { proto::state::HOLE } else { 0 };
        let bits = hole | if extent.zero { proto::state::ZERO } else { 0 };
        let most = extents_max(request.flags);
        let full = out.len() == most;
        match out.last_mut() {
            Some((len, last)) if *last == bits => *len += take,
            _ if full => break,
            _ => out.push((take, bits)),
        }
        left -= u64::from(take);
    }
    (!out.is_empty()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_status_merges_clips_and_bounds() {
        let flags = CommandFlags::empty();
        let request =
            Request { flags, command: Command::BlockStatus, cookie: 0, offset: 0, len: 100 };
        let e = |len, hole, zero| Extent { len, hole, zero };
        let map = [e(10, false, false), e(5, false, false), e(0, true, true), e(900, true, true)];
        assert_eq!(block_status(&request, &map), Some(vec![(15, 0), (85, 3)]));
        let one = Request { flags: CommandFlags::REQ_ONE, ..request };
        assert_eq!(block_status(&one, &map), Some(vec![(15, 0)]));
        assert_eq!(block_status(&request, &[]), None);
        let many: Vec<_> = (0..20_000).map(|i| e(1, i % 2 == 0, false)).collect();
        let long = Request { len: 20_000, ..request };
        assert_eq!(block_status(&long, &many).map(|v| v.len()), Some(EXTENTS_MAX));
    }
}
