//! Fuzz targets of the request parser: functions that accept any bytes. `cargo test` runs them on
//! the corpus in `fuzz/corpus` and on mutations of it. With the feature `fuzz`, cargo-fuzz (`fuzz/`
//! next to `crates/`) runs them, guided by coverage.
//!
//! Invariants: Z1 a target never panics; its error is `Corrupt` or `Protocol`. Z2 a parsed request
//! refers only to bytes of its input, and parsing the input again gives an equal request.
//!
//! No locks.

use crate::proto::consts::{IN_HEADER_BYTES, WRITE_HEADER_BYTES, opcode};
use crate::proto::request::{Op, Request};
use forebay_base::Result;

/// Parses any bytes as a request; returns the parser's error.
pub type Target = fn(&[u8]) -> Result<()>;

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[("request", request)];

/// The input is a message as the device returns it. Its length field is corrected first, because
/// the kernel's is always right.
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
