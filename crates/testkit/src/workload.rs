//! Seeded workloads against anything that holds bytes, checked by a byte model.
//!
//! - [`Subject`]: what is tested; [`Blocking`] adapts subjects whose calls block.
//! - [`op`]: the operations and their generator, fsx-like: unaligned, aligned, crossing folios,
//!   around the end of file, with every flag.
//! - [`model`]: what the bytes must be now, and what they may be after a crash.
//! - [`run`]: drives a subject, and says what went wrong, with the seed and the history.
//! - [`mem`]: a subject in memory, correct or with an injected bug.

pub mod mem;
pub mod model;
pub mod op;
pub mod run;

pub use model::{ByteModel, TrimReads};
pub use op::{Config, Generator, Op};
pub use run::{Mismatch, Report, Runner, shrink};

use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, IoFlags, Result};

/// What is tested: a run of bytes with an end. Buffers are owned, so that it can run in a
/// simulated world; all methods take `&self`, so that several workloads can share it.
pub trait Subject: Send + Sync {
    /// Current size in bytes.
    fn size(&self) -> u64;

    /// The subject has said for good that bytes it accepted since the last good sync may be lost:
    /// every sync fails from then on.
    fn marked(&self) -> bool {
        false
    }

    /// Reads up to `buf.len()` bytes. Returns how many were read: fewer only at the end of file.
    fn read(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'_, (AlignedBuf, Result<usize>)>;

    /// Writes all of `buf`. Returns its offset, which `APPEND` chooses.
    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'_, (AlignedBuf, Result<u64>)>;

    /// Gives the range back; what it reads as afterwards is [`Config::trim`].
    fn trim(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>>;

    /// The range reads as zeros afterwards.
    fn zero(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>>;

    /// Sets the size; what is added reads as zeros. Asked only with [`Config::set_len`].
    fn set_len(&self, _size: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Err(fixed())))
    }

    /// Everything that completed becomes durable.
    fn sync(&self) -> BoxFuture<'_, Result<()>>;

    /// Forgets clean cached data; no byte changes.
    fn drop_caches(&self) -> BoxFuture<'_, Result<()>>;

    /// Closes and opens again; no byte changes.
    fn reopen(&self) -> BoxFuture<'_, Result<()>>;
}

/// A [`Subject`] whose calls block.
pub trait BlockingSubject: Send + Sync {
    /// Current size in bytes.
    fn size(&self) -> u64;
    /// Reads up to `dst.len()` bytes; short only at the end of file.
    fn read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize>;
    /// Writes all of `src`; returns the offset (with `APPEND` not `offset`).
    fn write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<u64>;
    /// Gives the range back.
    fn trim(&self, offset: u64, len: u64) -> Result<()>;
    /// The range reads as zeros afterwards.
    fn zero(&self, offset: u64, len: u64) -> Result<()>;
    /// Sets the size; added bytes read as zeros.
    fn set_len(&self, _size: u64) -> Result<()> {
        Err(fixed())
    }
    /// Makes all accepted bytes durable.
    fn sync(&self) -> Result<()>;
    /// Forgets clean cached bytes; no byte changes.
    fn drop_caches(&self) -> Result<()>;
    /// Closes and opens again; no byte changes.
    fn reopen(&self) -> Result<()>;
}

fn fixed() -> Error {
    Error::new(ErrorKind::Unsupported, "set the size", "the subject's is fixed")
}

/// Makes a [`Subject`] of a [`BlockingSubject`]: each future does its work at the first poll.
pub struct Blocking<T>(pub T);

impl<T: BlockingSubject> Subject for Blocking<T> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(
        &self,
        offset: u64,
        mut buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'_, (AlignedBuf, Result<usize>)> {
        Box::pin(async move {
            let result = self.0.read(offset, &mut buf, flags);
            (buf, result)
        })
    }

    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'_, (AlignedBuf, Result<u64>)> {
        Box::pin(async move {
            let result = self.0.write(offset, &buf, flags);
            (buf, result)
        })
    }

    fn trim(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.0.trim(offset, len) })
    }

    fn zero(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.0.zero(offset, len) })
    }

    fn set_len(&self, size: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.0.set_len(size) })
    }

    fn sync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.0.sync() })
    }

    fn drop_caches(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.0.drop_caches() })
    }

    fn reopen(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.0.reopen() })
    }
}
