//! Notifications to the kernel: messages that answer no request. See [`crate::proto`] for the
//! invariants.
//!
//! No locks.

use super::consts::{IN_HEADER_BYTES, OUT_HEADER_BYTES, notify_code};
use forebay_base::Result;
use forebay_base::codec::Reader;

/// One notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Attributes are stale, and cached content of `[offset, offset + len)`; `len` 0 is up to the
    /// end of file. A negative `offset` keeps the cached content.
    Inode {
        /// Which inode.
        node: u64,
        /// First byte.
        offset: i64,
        /// How many.
        len: i64,
    },
    /// Puts one byte into the kernel's cache. If the size that the kernel knows is smaller, it
    /// grows to include the byte.
    Store {
        /// The inode.
        node: u64,
        /// Offset of the byte.
        offset: u64,
        /// The value of the byte.
        byte: u8,
    },
    /// A cached name, or the cached absence of one, is stale.
    Entry {
        /// The directory.
        dir: u64,
        /// The name.
        name: Box<[u8]>,
    },
    /// A name was removed: processes that have its inode open, or work in it, observe the removal.
    Delete {
        /// The directory.
        dir: u64,
        /// The inode that it denoted.
        node: u64,
        /// The name.
        name: Box<[u8]>,
    },
    /// The kernel shall forget these inodes, unless they are in use.
    Prune(Vec<u64>),
    /// Nothing is stale: asks for a copy of the cached pages of a range, up to the first absent
    /// page.
    Retrieve {
        /// The request number that the answer, a `NOTIFY_REPLY`, carries.
        number: u64,
        /// The inode.
        node: u64,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        size: u32,
    },
}

impl Notice {
    /// Directory and name, of a notice about a name.
    pub fn name(&self) -> Option<(u64, &[u8])> {
        match self {
            Self::Entry { dir, name } | Self::Delete { dir, name, .. } => Some((*dir, name)),
            Self::Inode { .. } | Self::Store { .. } | Self::Prune(_) | Self::Retrieve { .. } => {
                None
            }
        }
    }

    /// Content of a range and attributes are stale; `len` `u64::MAX` is up to the end of file.
    pub fn content(node: u64, offset: u64, len: u64) -> Self {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        // The kernel takes length 0 as "up to the end".
        let len = i64::try_from(len).map_or(0, |len| len.max(1));
        Self::Inode { node, offset, len: if offset.checked_add(len).is_some() { len } else { 0 } }
    }

    /// Attributes are stale.
    pub fn attributes(node: u64) -> Self {
        Self::Inode { node, offset: -1, len: 0 }
    }

    /// Encodes the complete message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; OUT_HEADER_BYTES];
        let code = match self {
            Self::Inode { node, offset, len } => {
                out.extend_from_slice(&node.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
                notify_code::INVAL_INODE
            }
            Self::Store { node, offset, byte } => {
                out.extend_from_slice(&node.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&1_u32.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                out.push(*byte);
                notify_code::STORE
            }
            Self::Entry { dir, name } => {
                out.extend_from_slice(&dir.to_le_bytes());
                named(&mut out, name);
                notify_code::INVAL_ENTRY
            }
            Self::Delete { dir, node, name } => {
                out.extend_from_slice(&dir.to_le_bytes());
                out.extend_from_slice(&node.to_le_bytes());
                named(&mut out, name);
                notify_code::DELETE
            }
            Self::Prune(nodes) => {
                out.extend_from_slice(&(nodes.len() as u32).to_le_bytes());
                out.extend_from_slice(&[0; 12]);
                nodes.iter().for_each(|node| out.extend_from_slice(&node.to_le_bytes()));
                notify_code::PRUNE
            }
            Self::Retrieve { number, node, offset, size } => {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&node.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&size.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                notify_code::RETRIEVE
            }
        };
        let len = out.len() as u32;
        out[..4].copy_from_slice(&len.to_le_bytes());
        out[4..8].copy_from_slice(&code.to_le_bytes());
        out
    }
}

/// The head of a `NOTIFY_REPLY`; its number is in the message header, the bytes follow the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetrieveReply {
    /// First byte.
    pub offset: u64,
    /// Number of bytes, fewer than requested if a page is absent.
    pub size: u32,
}

impl RetrieveReply {
    /// Parses the head of a message.
    pub fn parse(head: &[u8]) -> Result<Self> {
        let args = head.get(IN_HEADER_BYTES..).unwrap_or_default();
        let mut r = Reader::new("FUSE notify reply", args);
        r.u64("dummy1")?;
        Ok(Self { offset: r.u64("offset")?, size: r.u32("size")? })
    }
}

/// Appends length, flags 0, the name and a NUL.
fn named(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(&(name.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    out.push(0);
}
