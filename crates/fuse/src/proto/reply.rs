//! Replies to the kernel. See [`crate::proto`] for the invariants.
//!
//! No locks.

use super::consts::{FOpen, InitFlags, OUT_HEADER_BYTES, VERSION_MAJOR};
use forebay_vfs::{Attr, FileKind, StatFs};
use std::time::Duration;

/// The kernel takes this errno as "not implemented": it does not send such a request again.
pub const ENOSYS: i32 = 38;
/// Unit of allocated sizes in replies, bytes.
const SECTOR: u64 = 512;

/// Header of a reply with a body of `body_bytes`, or with an errno.
pub fn header(unique: u64, errno: i32, body_bytes: usize) -> [u8; OUT_HEADER_BYTES] {
    let mut bytes = [0; OUT_HEADER_BYTES];
    let len = (OUT_HEADER_BYTES + body_bytes) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes[4..8].copy_from_slice(&errno.wrapping_neg().to_le_bytes());
    bytes[8..].copy_from_slice(&unique.to_le_bytes());
    bytes
}

/// `fuse_write_out`, the body of the reply to a `WRITE`.
pub fn write_out(size: u32) -> [u8; 8] {
    u64::from(size).to_le_bytes()
}

/// How long the kernel may cache a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Valid {
    /// A name, or its absence.
    pub entry: Duration,
    /// Attributes.
    pub attr: Duration,
}

/// The reply to `INIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct InitOut {
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: InitFlags,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub max_pages: u16,
    /// Time limit for each request, seconds; 0: none.
    pub request_timeout: u16,
}

/// The body of a reply, field by field.
#[derive(Debug, Default)]
pub struct Body(Vec<u8>);

impl Body {
    /// An empty body.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty body with memory for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// The bytes of the body.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The length of the body, bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Shortens it to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Appends `bytes`.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn zeros(&mut self, len: usize) -> &mut Self {
        self.0.resize(self.0.len() + len, 0);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64_signed(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends `fuse_attr`, 88 bytes.
    fn attr(&mut self, attr: &Attr, block_bytes: u32) -> &mut Self {
        self.u64(attr.ino.0).u64(attr.size).u64(attr.allocated_bytes.div_ceil(SECTOR));
        let times = [attr.atime, attr.mtime, attr.ctime];
        for t in times {
            self.u64_signed(t.sec);
        }
        for t in times {
            self.u32(t.nsec);
        }
        self.u32(attr.mode()).u32(attr.nlink).u32(attr.uid).u32(attr.gid).u32(attr.rdev);
        self.u32(block_bytes).u32(0)
    }

    /// Appends `fuse_attr_out`.
    pub fn attr_out(&mut self, attr: &Attr, valid: &Valid, block_bytes: u32) -> &mut Self {
        self.u64(valid.attr.as_secs()).u32(valid.attr.subsec_nanos()).u32(0);
        self.attr(attr, block_bytes)
    }

    /// Appends `fuse_entry_out`.
    pub fn entry_out(&mut self, attr: &Attr, valid: &Valid, block_bytes: u32) -> &mut Self {
        self.u64(attr.ino.0).u64(attr.generation);
        self.u64(valid.entry.as_secs()).u64(valid.attr.as_secs());
        self.u32(valid.entry.subsec_nanos()).u32(valid.attr.subsec_nanos());
        self.attr(attr, block_bytes)
    }

    /// Appends `fuse_entry_out` for a name that does not exist, or for an entry without attributes.
    pub fn no_entry_out(&mut self, valid: Duration) -> &mut Self {
        self.u64(0).u64(0).u64(valid.as_secs()).u64(0).u32(valid.subsec_nanos()).u32(0).zeros(88)
    }

    /// Appends `fuse_open_out`.
    pub fn open_out(&mut self, fh: u64, flags: FOpen) -> &mut Self {
        self.u64(fh).u32(flags.bits()).u32(0)
    }

    /// Appends `fuse_write_out` or `fuse_getxattr_out`.
    pub fn size_out(&mut self, size: u32) -> &mut Self {
        self.u32(size).u32(0)
    }

    /// Appends `fuse_statfs_out`.
    pub fn statfs_out(&mut self, st: &StatFs) -> &mut Self {
        self.u64(st.blocks).u64(st.blocks_free).u64(st.blocks_available);
        self.u64(st.files).u64(st.files_free);
        self.u32(st.block_size).u32(st.name_max).u32(st.block_size).zeros(4 + 24)
    }

    /// Appends `fuse_statx_out` with the basic attributes and the birth time.
    pub fn statx_out(&mut self, attr: &Attr, valid: &Valid, block_bytes: u32) -> &mut Self {
        /// `STATX_BASIC_STATS | STATX_BTIME`.
        const MASK: u32 = 0xfff;
        self.u64(valid.attr.as_secs()).u32(valid.attr.subsec_nanos()).u32(0).zeros(16);
        self.u32(MASK).u32(block_bytes).u64(0).u32(attr.nlink).u32(attr.uid).u32(attr.gid);
        self.u16(attr.mode() as u16).u16(0).u64(attr.ino.0).u64(attr.size);
        self.u64(attr.allocated_bytes.div_ceil(SECTOR)).u64(0);
        for t in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
            self.u64_signed(t.sec).u32(t.nsec).u32(0);
        }
        // The kernel's encoding of `rdev`: 8 low bits of the minor, 12 bits of the major, then the
        // rest of the minor.
        let (major, minor) =
            (attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00);
        self.u32(major).u32(minor).u32(0).u32(0).zeros(14 * 8)
    }

    /// Appends `fuse_init_out`.
    pub fn init_out(&mut self, init: &InitOut) -> &mut Self {
        let flags = init.flags.bits();
        self.u32(VERSION_MAJOR).u32(init.minor).u32(init.max_readahead).u32(flags as u32);
        self.u16(init.max_background).u16(init.congestion_threshold).u32(init.max_write);
        // Granularity of times: one nanosecond.
        self.u32(1).u16(init.max_pages).u16(0).u32((flags >> 32) as u32);
        self.zeros(4).u16(init.request_timeout).zeros(22)
    }

    /// The reply to a kernel with a newer major version: the version that the daemon speaks.
    pub fn init_version(&mut self, minor: u32) -> &mut Self {
        self.u32(VERSION_MAJOR).u32(minor).zeros(56)
    }

    /// Appends `fuse_ioctl_out` and the output of the ioctl.
    pub fn ioctl_out(&mut self, output: &[u8]) -> &mut Self {
        self.zeros(16).bytes(output)
    }

    /// Appends `fuse_dirent`, padded to eight bytes. False, and nothing is appended, if the body
    /// would exceed `max`.
    pub fn dirent(&mut self, ino: u64, next: u64, kind: FileKind, name: &[u8], max: usize) -> bool {
        if self.len() + dirent_bytes(name) > max {
            return false;
        }
        self.u64(ino).u64(next).u32(name.len() as u32).u32(kind.mode_bits() >> 12).bytes(name);
        self.zeros(self.len().next_multiple_of(8) - self.len());
        true
    }
}

/// Bytes of a `fuse_dirent`.
pub fn dirent_bytes(name: &[u8]) -> usize {
    (24 + name.len()).next_multiple_of(8)
}

/// Bytes of a `fuse_entry_out`.
pub const ENTRY_OUT_BYTES: usize = 128;
