//! One NBD connection with one request at a time: for a flush, and where the exact time of an
//! answer matters.
//!
//! Invariant: N1 a request is answered before the next is sent.

use forebay_base::{Error, ErrorKind, Result};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const READ: u8 = 0;
const DISCONNECT: u8 = 2;
const FLUSH: u8 = 3;

/// A connection to a server's default export.
pub struct Connection {
    stream: UnixStream,
}

fn fail(e: std::io::Error) -> Error {
    Error::from_io("talk NBD", e)
}

impl Connection {
    /// Connects and negotiates.
    pub fn open(socket: &Path) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).map_err(|e| fail(e).with_path(socket))?;
        stream.set_read_timeout(Some(Duration::from_secs(120))).map_err(fail)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).map_err(fail)?;
        // Client flags: fixed newstyle, no zeroes; then NBD_OPT_EXPORT_NAME with the empty name.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
        stream.write_all(&hello).map_err(fail)?;
        stream.read_exact(&mut [0; 10]).map_err(fail)?;
        Ok(Self { stream })
    }

    fn send(&mut self, command: u8, offset: u64, len: u32) -> Result<()> {
        // Magic, flags 0, command, cookie 0, offset, length.
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, command];
        request.resize(16, 0);
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        self.stream.write_all(&request).map_err(fail)
    }

    fn answer(&mut self, what: &'static str) -> Result<()> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).map_err(fail)?;
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        if error == 0 {
            return Ok(());
        }
        let text = format!("the server answered error {error}");
        Err(Error::new(ErrorKind::Io, what, text))
    }

    /// Sends a flush and waits for the reply.
    pub fn flush(&mut self) -> Result<()> {
        self.send(FLUSH, 0, 0)?;
        self.answer("flush over NBD")
    }

    /// Reads until `buf` is full; at most 32 MiB.
    pub fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.send(READ, offset, buf.len() as u32)?;
        self.answer("read over NBD")?;
        self.stream.read_exact(buf).map_err(fail)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The server may have ended, so an error of the disconnect is ignored.
        let _ = self.send(DISCONNECT, 0, 0);
    }
}
