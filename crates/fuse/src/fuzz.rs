//! What the parser is tried with: functions that take any bytes. `cargo test` drives them over the kept
//! corpus in `fuzz/corpus` and over changes of it; with the feature `fuzz` so does cargo-fuzz (`fuzz/` beside
//! `crates/`), guided by coverage.
//!
//! Invariants: Z1 a target never panics; its error is `Corrupt` or `Protocol`. Z2 what a target takes lies
//! within what it was given, and parsing it again gives the same.
//!
//! No locks.

use crate::proto::consts::{IN_HEADER_BYTES, WRITE_HEADER_BYTES, opcode};
use crate::proto::request::{Op, Request};
use forebay_base::Result;

/// Takes any bytes; whether they are a request, or why not.
pub type Target = fn(&[u8]) -> Result<()>;

/// Each target's name and entry.
pub const TARGETS: &[(&str, Target)] = &[("request", request)];

/// A message as the device gives it. Its length is put right first: the kernel's always is.
pub fn request(data: &[u8]) -> Result<()> {
    let mut message = data.to_vec();
    if let Some(len) = message.first_chunk_mut::<4>() {
        *len = (data.len() as u32).to_le_bytes();
    }
    let request = Request::parse(&message)?;
    assert_eq!(Request::parse(&message)?, request, "parsed twice (Z2)");
    let room = message.len() - IN_HEADER_BYTES;
    let within = |bytes: &[u8]| {
        assert!(message.as_ptr_range().contains(&bytes.as_ptr()) || bytes.is_empty())
    };
    match &request.op {
        Op::Lookup { name } | Op::Unlink { name } | Op::RmDir { name } => {
            within(name);
            assert!(!name.contains(&0) && name.len() < room, "a name ends at its NUL (Z2)");
        }
        Op::BatchForget(all) => assert!(all.iter().count() * 16 <= room, "forgets within (Z2)"),
        Op::SetXattr { value, .. } => within(value),
        Op::Ioctl(ioctl) => within(ioctl.input),
        Op::Write { io, data } => {
            within(data);
            assert_eq!(io.size as usize, data.len(), "a payload has its size (Z2)");
            let (head, rest) = message.split_at(WRITE_HEADER_BYTES);
            assert_eq!(Request::parse_write(head, rest)?, request, "in two parts (Z2)");
        }
        _ => {}
    }
    assert_eq!(request.header.opcode == opcode::WRITE, matches!(request.op, Op::Write { .. }));
    Ok(())
}

#[cfg(test)]
mod tests;
