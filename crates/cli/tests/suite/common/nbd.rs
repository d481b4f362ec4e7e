//! A small NBD client: fixed newstyle, `NBD_OPT_GO`, simple replies, one request at a time.

use std::io::{Error, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// NBD_CMD_READ.
pub const READ: u16 = 0;
/// NBD_CMD_WRITE.
pub const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
/// NBD_CMD_TRIM.
pub const TRIM: u16 = 4;
/// NBD_CMD_WRITE_ZEROES.
pub const WRITE_ZEROES: u16 = 6;

/// A connection in its transmission phase.
pub struct Client {
    stream: UnixStream,
    cookie: u64,
    /// Size of the export, bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
}

impl Client {
    /// Connects and chooses the export.
    pub fn connect(socket: &Path, name: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(super::PATIENCE))?;
        let mut client = Self { stream, cookie: 0, size: 0, flags: 0 };
        let greeting = client.take(18)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut hello = 3_u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
        hello.extend(b"IHAVEOPT");
        hello.extend(7_u32.to_be_bytes()); // GO
        hello.extend((4 + name.len() as u32 + 2).to_be_bytes());
        hello.extend((name.len() as u32).to_be_bytes());
        hello.extend(name.as_bytes());
        hello.extend(0_u16.to_be_bytes());
        client.stream.write_all(&hello)?;
        loop {
            let head = client.take(20)?;
            let kind = u32::from_be_bytes(head[12..16].try_into().expect("four bytes"));
            let length = u32::from_be_bytes(head[16..20].try_into().expect("four bytes"));
            let data = client.take(length as usize)?;
            match kind {
                1 => return Ok(client),
                3 if data[..2] == [0, 0] => {
                    client.size = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes"));
                    client.flags = u16::from_be_bytes(data[10..12].try_into().expect("two bytes"));
                }
                3 => {}
                refusal => return Err(Error::other(format!("option refused: {refusal:#x}"))),
            }
        }
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn request(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> Result<Vec<u8>> {
        self.flagged(kind, 0, offset, length, data)
    }

    fn flagged(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Result<Vec<u8>> {
        self.cookie += 1;
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        let reply = self.take(16)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[8..16], self.cookie.to_be_bytes());
        let error = i32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        if error != 0 {
            return Err(Error::from_raw_os_error(error));
        }
        if kind == READ { self.take(length as usize) } else { Ok(Vec::new()) }
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        self.request(READ, offset, length, &[])
    }

    /// Writes; durable only after a flush.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.request(WRITE, offset, data.len() as u32, data).map(drop)
    }

    /// Writes with FUA: durable when it is answered.
    pub fn write_durably(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.flagged(WRITE, 1, offset, data.len() as u32, data).map(drop)
    }

    /// Makes everything answered before durable.
    pub fn flush(&mut self) -> Result<()> {
        self.request(FLUSH, 0, 0, &[]).map(drop)
    }

    /// Gives a range back.
    pub fn trim(&mut self, offset: u64, length: u32) -> Result<()> {
        self.request(TRIM, offset, length, &[]).map(drop)
    }

    /// Sends a write and does not wait for the answer.
    pub fn write_and_forget(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.send(WRITE, 0, offset, data.len() as u32, data)
    }

    /// Sends a request, with as much of its data as there is, and does not wait for the answer.
    pub fn send(&mut self, kind: u16, flags: u16, at: u64, len: u32, data: &[u8]) -> Result<()> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(u64::MAX.to_be_bytes());
        bytes.extend(at.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)
    }

    /// Takes an answer without data, whatever it says.
    pub fn reply(&mut self) -> Result<()> {
        let reply = self.take(16)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        Ok(())
    }

    /// How long it tries to send what the server does not take.
    pub fn patience(&mut self, time: std::time::Duration) {
        self.stream.set_write_timeout(Some(time)).expect("a time above zero");
    }

    /// Leaves politely.
    pub fn disconnect(mut self) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(0_u16.to_be_bytes());
        bytes.extend(DISCONNECT.to_be_bytes());
        bytes.extend([0; 20]);
        let _ = self.stream.write_all(&bytes);
    }
}
