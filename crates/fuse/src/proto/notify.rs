//! Notifications to the kernel: messages that nobody asked for. See [`crate::proto`] for the invariants.
//!
//! No locks.

use super::consts::{IN_HEADER_BYTES, OUT_HEADER_BYTES, notify_code};
use forebay_base::Result;
use forebay_base::codec::Reader;

/// What the kernel has to forget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Attributes, and what is cached of `[offset, offset + len)`; `len` 0 is up to the end, a negative
    /// offset leaves the data.
    Inode {
        /// Which inode.
        node: u64,
        /// First byte.
        offset: i64,
        /// How many.
        len: i64,
    },
    /// One byte: a file that was shorter by the kernel's reckoning ends with it.
    Store {
        /// Which inode.
        node: u64,
        /// Where.
        offset: u64,
        /// What it is.
        byte: u8,
    },
    /// A name, or that there is none.
    Entry {
        /// In which directory.
        dir: u64,
        /// Which.
        name: Box<[u8]>,
    },
    /// A name that is gone: who has it open sees that.
    Delete {
        /// In which directory.
        dir: u64,
        /// What it denoted.
        node: u64,
        /// Which.
        name: Box<[u8]>,
    },
    /// These inodes, where nobody uses them.
    Prune(Vec<u64>),
    /// Nothing: it is asked for a copy of what it has cached of a range, up to the first page that
    /// is absent.
    Retrieve {
        /// The number that the answer, a `NOTIFY_REPLY`, has as its own.
        number: u64,
        /// Which inode.
        node: u64,
        /// First byte.
        offset: u64,
        /// How many.
        size: u32,
    },
}

impl Notice {
    /// The name that the kernel has to forget, with its directory.
    pub fn name(&self) -> Option<(u64, &[u8])> {
        match self {
            Self::Entry { dir, name } | Self::Delete { dir, name, .. } => Some((*dir, name)),
            Self::Inode { .. } | Self::Store { .. } | Self::Prune(_) | Self::Retrieve { .. } => {
                None
            }
        }
    }

    /// Content of a range, and attributes; `len` `u64::MAX` is up to the end.
    pub fn content(node: u64, offset: u64, len: u64) -> Self {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        // No bytes would be all that follow.
        let len = i64::try_from(len).map_or(0, |len| len.max(1));
        Self::Inode { node, offset, len: if offset.checked_add(len).is_some() { len } else { 0 } }
    }

    /// Attributes alone.
    pub fn attributes(node: u64) -> Self {
        Self::Inode { node, offset: -1, len: 0 }
    }

    /// The whole message.
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

/// The head of a `NOTIFY_REPLY`, whose number is in the header of the message; the bytes follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetrieveReply {
    /// First byte.
    pub offset: u64,
    /// How many: fewer than were asked for if a page is absent.
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

/// Length, no flags, the name and a NUL.
fn named(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(&(name.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    out.push(0);
}
