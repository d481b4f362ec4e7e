//! What the tests share: a server on a socket of its own, and a client that speaks the protocol
//! byte by byte, so that it can also speak it wrongly.
pub mod certificates;
pub mod clean;

use forebay_nbd::proto::{self, Command, CommandFlags, Request, opt, rep};
use forebay_nbd::{Server, ServerConfig, Stats};
use forebay_vfs::Export;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A server that runs until it is dropped.
pub struct Running {
    pub server: Arc<Server>,
    pub path: PathBuf,
    thread: Option<std::thread::JoinHandle<forebay_base::Result<()>>>,
}

pub fn socket_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("forebay-nbd-{}-{n}.sock", std::process::id()))
}

impl Running {
    pub fn with(config: ServerConfig, exports: Vec<(&str, Arc<dyn Export>)>) -> Self {
        let exports = exports.into_iter().map(|(n, e)| (n.to_string(), e)).collect();
        let server = Arc::new(Server::new(config, exports).unwrap());
        let path = socket_path();
        server.listen_unix(&path).unwrap();
        let runner = server.clone();
        let thread = std::thread::spawn(move || runner.run());
        Self { server, path, thread: Some(thread) }
    }

    pub fn one(export: Arc<dyn Export>) -> Self {
        Self::with(ServerConfig::default(), vec![("disk", export)])
    }

    pub fn stats(&self) -> Stats {
        self.server.stats()
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.path.display())
    }

    pub fn connect(&self) -> Client {
        Client::raw(&self.path)
    }

    /// A client past its handshake, with everything agreed on.
    pub fn client(&self) -> Client {
        let mut client = self.connect();
        client.start();
        client.option(opt::STRUCTURED_REPLY, &[]);
        client.option(opt::SET_META_CONTEXT, &meta("", &[proto::ALLOCATION_CONTEXT]));
        client.structured = true;
        client.go("");
        client
    }

    pub fn stop(&mut self) {
        self.server.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for something that other threads bring about; fails after a long while.
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

pub fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|q| data.extend(string(q.as_bytes())));
    data
}

/// A reply: its cookie, its error, its data (of a read) or payload (of a block status).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

pub struct Client {
    pub socket: UnixStream,
    pub structured: bool,
    pub size: u64,
    pub flags: u16,
    next: u64,
}

impl Client {
    pub fn raw(path: &std::path::Path) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        // A hang must fail the test, not stop it.
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { socket, structured: false, size: 0, flags: 0, next: 1 }
    }

    pub fn take(&mut self, n: usize) -> Vec<u8> {
        let mut buf = vec![0; n];
        self.socket.read_exact(&mut buf).unwrap();
        buf
    }

    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Sends what may be refused in the middle.
    pub fn throw(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    /// Greeting and flags.
    pub fn start(&mut self) {
        assert_eq!(self.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&3u32.to_be_bytes());
    }

    /// Sends an option; the replies to it as (code, data), up to the last.
    pub fn option(&mut self, code: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut bytes = Vec::new();
        proto::put_option(&mut bytes, code, data);
        self.send(&bytes);
        let mut replies = Vec::new();
        loop {
            let head = self.take(20);
            assert_eq!(head[..8], proto::OPTION_REPLY_MAGIC.to_be_bytes());
            assert_eq!(head[8..12], code.to_be_bytes());
            let reply = u32::from_be_bytes(head[12..16].try_into().unwrap());
            let len = u32::from_be_bytes(head[16..20].try_into().unwrap());
            replies.push((reply, self.take(len as usize)));
            if reply == rep::ACK || reply >> 31 == 1 {
                return replies;
            }
        }
    }

    pub fn go(&mut self, name: &str) {
        let data = [string(name.as_bytes()), vec![0, 0]].concat();
        let replies = self.option(opt::GO, &data);
        assert_eq!(replies.last().map(|r| r.0), Some(rep::ACK));
        self.size = u64::from_be_bytes(replies[0].1[2..10].try_into().unwrap());
        self.flags = u16::from_be_bytes(replies[0].1[10..12].try_into().unwrap());
    }

    /// Sends a request; returns its cookie.
    pub fn ask(&mut self, command: Command, flags: CommandFlags, offset: u64, len: u32) -> u64 {
        let mut bytes = Vec::new();
        let cookie = self.put(&mut bytes, command, flags, offset, len);
        self.send(&bytes);
        cookie
    }

    pub fn put(
        &mut self,
        bytes: &mut Vec<u8>,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        len: u32,
    ) -> u64 {
        let cookie = self.next;
        self.next += 1;
        proto::put_request(bytes, &Request { flags, command, cookie, offset, len });
        cookie
    }

    /// The next reply; `read_len` says how long the data of a read with this cookie are, for
    /// simple replies.
    pub fn reply(&mut self, read_len: impl Fn(u64) -> usize) -> Reply {
        match self.word() {
            proto::SIMPLE_REPLY_MAGIC => {
                let error = self.word();
                let cookie = u64::from_be_bytes(self.take(8).try_into().unwrap());
                let len = if error == 0 && !self.structured { read_len(cookie) } else { 0 };
                Reply { cookie, error, data: self.take(len) }
            }
            proto::STRUCTURED_REPLY_MAGIC => {
                let head = self.take(16);
                assert_eq!(head[..2], [0, 1], "one chunk per reply, marked as the last");
                let kind = u16::from_be_bytes([head[2], head[3]]);
                let cookie = u64::from_be_bytes(head[4..12].try_into().unwrap());
                let len = u32::from_be_bytes(head[12..16].try_into().unwrap()) as usize;
                let payload = self.take(len);
                match kind {
                    proto::chunk::NONE => Reply { cookie, error: 0, data: vec![] },
                    proto::chunk::OFFSET_DATA => {
                        Reply { cookie, error: 0, data: payload[8..].to_vec() }
                    }
                    proto::chunk::BLOCK_STATUS => Reply { cookie, error: 0, data: payload },
                    proto::chunk::ERROR => {
                        let error = u32::from_be_bytes(payload[..4].try_into().unwrap());
                        Reply { cookie, error, data: vec![] }
                    }
                    other => panic!("chunk type {other}"),
                }
            }
            other => panic!("reply magic {other:#x}"),
        }
    }

    /// One request and its reply.
    pub fn call(&mut self, command: Command, flags: CommandFlags, offset: u64, len: u32) -> Reply {
        let cookie = self.ask(command, flags, offset, len);
        let reply = self.reply(|_| if command == Command::Read { len as usize } else { 0 });
        assert_eq!(reply.cookie, cookie);
        reply
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Reply {
        self.call(Command::Read, CommandFlags::empty(), offset, len)
    }

    /// A read of one byte, if the server is still there.
    pub fn try_read(&mut self) -> Option<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes, Command::Read, CommandFlags::empty(), 0, 1);
        self.socket.write_all(&bytes).ok()?;
        let mut reply = [0; 20 + 8 + 1];
        self.socket.read_exact(&mut reply).ok()?;
        Some(reply[28])
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.write_flags(offset, data, CommandFlags::empty())
    }

    pub fn write_flags(&mut self, offset: u64, data: &[u8], flags: CommandFlags) -> u32 {
        let mut bytes = Vec::new();
        let cookie = self.put(&mut bytes, Command::Write, flags, offset, data.len() as u32);
        bytes.extend_from_slice(data);
        self.send(&bytes);
        let reply = self.reply(|_| 0);
        assert_eq!(reply.cookie, cookie);
        reply.error
    }

    /// Extents as (length, bits).
    pub fn extents(&mut self, offset: u64, len: u32, flags: CommandFlags) -> Vec<(u32, u32)> {
        let reply = self.call(Command::BlockStatus, flags, offset, len);
        assert_eq!((reply.error, &reply.data[..4]), (0, &[0, 0, 0, 1][..]));
        let words = reply.data[4..].chunks(4).map(|c| u32::from_be_bytes(c.try_into().unwrap()));
        let words: Vec<u32> = words.collect();
        words.chunks(2).map(|c| (c[0], c[1])).collect()
    }

    /// Whether the server closed the connection; whatever it still sent is skipped.
    pub fn closed(&mut self) -> bool {
        let mut sink = [0; 65536];
        loop {
            match self.socket.read(&mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}
