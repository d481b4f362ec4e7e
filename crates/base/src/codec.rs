//! Little-endian fields in byte slices, with every bound checked. Stored formats and wire protocols
//! are read and written with these.
//!
//! Invariants: C1 no input makes these functions panic, or allocate more bytes than the input has.
//! C2 a failed call changes neither position nor buffer. C3 the error is `Corrupt` (reading) or
//! `NoSpace` (writing), and names the structure and where in it: field, offset, or both.
//!
//! No locks.

use crate::error::{Error, ErrorKind, Result};

/// Reads fields one after the other.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, which errors call `what` ("superblock", "log record").
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    /// Offset of the next field.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// A `Corrupt` error about the field read last, for a caller that finds its value invalid.
    pub fn bad(&self, field: &str, why: &str) -> Error {
        let text = format!("{}: field `{field}` before offset {}: {why}", self.what, self.at);
        Error::new(ErrorKind::Corrupt, "decode", text)
    }

    /// `len` bytes, borrowed.
    #[inline]
    pub fn bytes(&mut self, field: &str, len: usize) -> Result<&'a [u8]> {
        let Some(found) = self.bytes[self.at..].get(..len) else {
            return Err(self.too_short(field, len));
        };
        self.at += len;
        Ok(found)
    }

    #[cold]
    fn too_short(&self, field: &str, len: usize) -> Error {
        let (what, at, left) = (self.what, self.at, self.remaining());
        let text =
            format!("{what}: field `{field}` at offset {at} needs {len} bytes, {left} are left");
        Error::new(ErrorKind::Corrupt, "decode", text)
    }

    /// A fixed number of bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let found = self.bytes(field, N)?;
        Ok(found.try_into().expect("bytes() returned N bytes"))
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, field: &str) -> Result<u8> {
        Ok(self.array::<1>(field)?[0])
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self, field: &str) -> Result<u16> {
        self.array(field).map(u16::from_le_bytes)
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self, field: &str) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self, field: &str) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Eight bytes, signed.
    #[inline]
    pub fn i64(&mut self, field: &str) -> Result<i64> {
        self.array(field).map(i64::from_le_bytes)
    }

    /// A u16 length of at most `max`, and that many bytes: returns the bytes.
    pub fn prefixed(&mut self, field: &str, max: usize) -> Result<&'a [u8]> {
        let start = self.at;
        let found = self.u16(field).and_then(|len| {
            let len = usize::from(len);
            if len > max {
                return Err(self.bad(field, &format!("length {len} is over {max}")));
            }
            self.bytes(field, len)
        });
        if found.is_err() {
            self.at = start;
        }
        found
    }

    /// Skips `len` bytes that must all be zero.
    pub fn zeros(&mut self, field: &str, len: usize) -> Result<()> {
        let start = self.at;
        if self.bytes(field, len)?.iter().fold(0, |all, b| all | *b) != 0 {
            let error = self.bad(field, "reserved bytes are not zero");
            self.at = start;
            return Err(error);
        }
        Ok(())
    }

    /// Fails if unread bytes remain.
    pub fn finish(&self) -> Result<()> {
        match self.remaining() {
            0 => Ok(()),
            n => {
                let text = format!("{}: {n} bytes too many at offset {}", self.what, self.at);
                Err(Error::new(ErrorKind::Corrupt, "decode", text))
            }
        }
    }
}

/// Writes fields one after the other into a slice of fixed size.
#[derive(Debug)]
pub struct Writer<'a> {
    what: &'static str,
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// Writes into `bytes`, which errors call `what`.
    pub fn new(what: &'static str, bytes: &'a mut [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    /// Offset of the next field, which is also how many bytes are written.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Space not written yet, bytes.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn room(&mut self, field: &str, len: usize) -> Result<&mut [u8]> {
        let left = self.bytes.len() - self.at;
        if len > left {
            let text = format!(
                "{}: field `{field}` at offset {} needs {len} bytes, there is room for {left}",
                self.what, self.at
            );
            return Err(Error::new(ErrorKind::NoSpace, "encode", text));
        }
        let start = self.at;
        self.at += len;
        Ok(&mut self.bytes[start..start + len])
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, field: &str, bytes: &[u8]) -> Result<()> {
        self.room(field, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// One byte.
    pub fn u8(&mut self, field: &str, value: u8) -> Result<()> {
        self.bytes(field, &[value])
    }

    /// Two bytes.
    pub fn u16(&mut self, field: &str, value: u16) -> Result<()> {
        self.bytes(field, &value.to_le_bytes())
    }

    /// Four bytes.
    pub fn u32(&mut self, field: &str, value: u32) -> Result<()> {
        self.bytes(field, &value.to_le_bytes())
    }

    /// Eight bytes.
    pub fn u64(&mut self, field: &str, value: u64) -> Result<()> {
        self.bytes(field, &value.to_le_bytes())
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, field: &str, value: i64) -> Result<()> {
        self.bytes(field, &value.to_le_bytes())
    }

    /// A u16 length and the bytes. Longer than 65535 is `NoSpace`.
    pub fn prefixed(&mut self, field: &str, bytes: &[u8]) -> Result<()> {
        let Ok(len) = u16::try_from(bytes.len()) else {
            let text = format!("{}: field `{field}` is {} bytes long", self.what, bytes.len());
            return Err(Error::new(ErrorKind::NoSpace, "encode", text));
        };
        let room = self.room(field, 2 + bytes.len())?;
        room[..2].copy_from_slice(&len.to_le_bytes());
        room[2..].copy_from_slice(bytes);
        Ok(())
    }

    /// `len` zero bytes.
    pub fn zeros(&mut self, field: &str, len: usize) -> Result<()> {
        self.room(field, len)?.fill(0);
        Ok(())
    }

    /// Overwrites a u32 written before, such as a checksum over the fields after it.
    pub fn patch_u32(&mut self, field: &str, at: usize, value: u32) -> Result<()> {
        match self.bytes[..self.at].get_mut(at..at.saturating_add(4)) {
            Some(place) => {
                place.copy_from_slice(&value.to_le_bytes());
                Ok(())
            }
            None => {
                let text = format!("{}: field `{field}` at offset {at} not written", self.what);
                Err(Error::new(ErrorKind::NoSpace, "encode", text))
            }
        }
    }

    /// The bytes written so far.
    pub fn written(&self) -> &[u8] {
        &self.bytes[..self.at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, PartialEq)]
    enum Field {
        U8(u8),
        U16(u16),
        U32(u32),
        U64(u64),
        I64(i64),
        Bytes(Vec<u8>),
        Prefixed(Vec<u8>),
        Zeros(usize),
    }

    fn field() -> impl Strategy<Value = Field> {
        let some = || proptest::collection::vec(any::<u8>(), 0..40);
        prop_oneof![
            any::<u8>().prop_map(Field::U8),
            any::<u16>().prop_map(Field::U16),
            any::<u32>().prop_map(Field::U32),
            any::<u64>().prop_map(Field::U64),
            any::<i64>().prop_map(Field::I64),
            some().prop_map(Field::Bytes),
            some().prop_map(Field::Prefixed),
            (0..40usize).prop_map(Field::Zeros),
        ]
    }

    fn put(w: &mut Writer<'_>, field: &Field) -> Result<()> {
        match field {
            Field::U8(v) => w.u8("f", *v),
            Field::U16(v) => w.u16("f", *v),
            Field::U32(v) => w.u32("f", *v),
            Field::U64(v) => w.u64("f", *v),
            Field::I64(v) => w.i64("f", *v),
            Field::Bytes(v) => w.bytes("f", v),
            Field::Prefixed(v) => w.prefixed("f", v),
            Field::Zeros(n) => w.zeros("f", *n),
        }
    }

    fn get(r: &mut Reader<'_>, like: &Field) -> Result<Field> {
        Ok(match like {
            Field::U8(_) => Field::U8(r.u8("f")?),
            Field::U16(_) => Field::U16(r.u16("f")?),
            Field::U32(_) => Field::U32(r.u32("f")?),
            Field::U64(_) => Field::U64(r.u64("f")?),
            Field::I64(_) => Field::I64(r.i64("f")?),
            Field::Bytes(v) => Field::Bytes(r.bytes("f", v.len())?.to_vec()),
            Field::Prefixed(_) => Field::Prefixed(r.prefixed("f", 64)?.to_vec()),
            Field::Zeros(n) => {
                r.zeros("f", *n)?;
                Field::Zeros(*n)
            }
        })
    }

    proptest! {
        #[test]
        fn written_fields_read_back(fields in proptest::collection::vec(field(), 0..30)) {
            let mut space = vec![0xaa; 4096];
            let mut w = Writer::new("thing", &mut space);
            for field in &fields {
                put(&mut w, field).unwrap();
            }
            let stored = w.written().to_vec();
            let mut r = Reader::new("thing", &stored);
            for field in &fields {
                prop_assert_eq!(&get(&mut r, field).unwrap(), field);
            }
            r.finish().unwrap();
        }

        #[test]
        fn c1_c2_any_bytes_any_calls_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            fields in proptest::collection::vec(field(), 0..30),
        ) {
            let mut r = Reader::new("thing", &bytes);
            for field in &fields {
                let before = r.position();
                if let Err(e) = get(&mut r, field) {
                    prop_assert_eq!(e.kind(), ErrorKind::Corrupt);
                    prop_assert_eq!(r.position(), before);
                }
            }
            prop_assert!(r.bytes("huge", usize::MAX).is_err());
        }

        #[test]
        fn c2_put_into_full_writer_changes_nothing(
            room in 0..60usize,
            fields in proptest::collection::vec(field(), 0..30),
        ) {
            let mut space = vec![0; room];
            let mut w = Writer::new("thing", &mut space);
            for field in &fields {
                let before = w.written().to_vec();
                if let Err(e) = put(&mut w, field) {
                    prop_assert_eq!(e.kind(), ErrorKind::NoSpace);
                    prop_assert_eq!(w.written(), &before[..]);
                }
            }
        }
    }

    #[test]
    fn c3_errors_name_structure_field_and_offset() {
        let mut r = Reader::new("superblock", &[1, 0, 5]);
        assert_eq!(r.u16("version").unwrap(), 1);
        let text = r.u64("sequence").unwrap_err().to_string();
        assert!(text.contains("superblock") && text.contains("`sequence`"), "{text}");
        assert!(text.contains("offset 2"), "{text}");
        assert!(r.finish().is_err());
        assert_eq!(r.prefixed("name", 9).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(r.zeros("pad", 1).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(r.position(), 2);
    }

    #[test]
    fn patching_stays_inside_what_is_written() {
        let mut space = [0; 16];
        let mut w = Writer::new("record", &mut space);
        w.u32("crc", 0).unwrap();
        w.u32("x", 7).unwrap();
        w.patch_u32("crc", 0, 0x0102_0304).unwrap();
        assert!(w.patch_u32("crc", 5, 0).is_err());
        assert!(w.patch_u32("crc", usize::MAX, 0).is_err());
        assert_eq!(w.written(), &[4, 3, 2, 1, 7, 0, 0, 0]);
    }
}
