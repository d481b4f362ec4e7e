//! Records of the log, their changes, and the headers of log segments.
//!
//! No locks.

use super::damage::{cut_anywhere, flip_anywhere};
use super::seeds;
use crate::format::change::Change;
use crate::format::extent::{Extent, Source, Sums};
use crate::format::place::{Geometry, Place, Seal};
use crate::format::record::{Record, RecordBuilder, RecordFields, RecordHeader, RecordKind};
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::fuzz::make::{Make, geometry, seal};
use forebay_base::codec::{Reader, Writer};
use forebay_base::{ErrorKind, Result};

const AT: Place = Place::new(3, 8192);

fn stored(seed: u64, g: &Geometry) -> Vec<u8> {
    let mut bytes = vec![0xaa; g.max_record_bytes() as usize];
    let length = Make(seed).record(&mut bytes, AT, g).3.length;
    bytes.truncate(length as usize);
    bytes
}

fn decode<'a>(bytes: &'a [u8], g: &Geometry) -> Result<Record<'a>> {
    Record::decode(bytes, seal(), AT, g)
}

#[test]
fn each_change_reads_back() {
    for seed in seeds(300) {
        for kind in 1..=19 {
            let g = geometry(seed % 2 == 0);
            let change = Make(seed).change(kind, &g, 65536);
            let mut bytes = vec![0xaa; 9000];
            let mut w = Writer::new("change", &mut bytes);
            change.encode_into(&mut w, &g).unwrap_or_else(|e| panic!("{seed}, {kind}: {e}"));
            let len = w.position();
            let mut r = Reader::new("change", &bytes[..len]);
            assert_eq!(Change::decode(&mut r, &g).unwrap(), Some(change), "{seed}, {kind}");
            r.finish().unwrap();
            // A truncated change never decodes as another change.
            for len in (0..len).step_by(1 + len / 40) {
                let found = Change::decode(&mut Reader::new("change", &bytes[..len]), &g);
                assert_eq!(found.expect_err("it was cut").kind(), ErrorKind::Corrupt);
            }
        }
    }
}

#[test]
fn each_record_reads_back() {
    for seed in seeds(500) {
        let g = geometry(seed % 2 == 0);
        let mut bytes = vec![0xaa; g.max_record_bytes() as usize];
        let (fields, changes, payload, finished) = Make(seed).record(&mut bytes, AT, &g);
        let record = decode(&bytes, &g).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(record.header.fields, fields, "seed {seed}");
        assert_eq!((record.header.length, record.header.sum), (finished.length, finished.sum));
        let found: Result<Vec<_>> = record.changes(&g).collect();
        assert_eq!(found.unwrap(), changes, "seed {seed}");
        assert_eq!(record.payload().unwrap(), payload);
        for change in &changes {
            if let Change::Map(_, _, extent @ Extent { source: Source::Inline(at), .. }) = change {
                let place = record.resolve(extent).unwrap();
                let offset = (place.offset - AT.offset) as usize;
                assert!(place.offset.is_multiple_of(g.block_bytes()), "R3");
                let len = extent.stored_bytes as usize;
                assert_eq!(bytes[offset..offset + len], payload[*at as usize..][..len]);
            }
        }
    }
}

/// format.F3, record.R2: a record is refused if it is truncated anywhere or any bit is flipped.
#[test]
fn damage_is_reported() {
    // With a payload of a block, and without one.
    for (lengths, features) in [(8192..12289, true), (1000..4097, false), (128..129, false)] {
        let g = geometry(features);
        let bytes = seeds(10_000).map(|seed| stored(seed, &g)).find(|b| lengths.contains(&b.len()));
        let bytes = bytes.expect("some seed makes one");
        cut_anywhere(&bytes, |b| decode(b, &g).map(drop));
        flip_anywhere(&bytes, |b| decode(b, &g).map(drop));
    }
}

/// record.R1: the bytes of a record are refused at another place, and under the seal of another
/// volume.
#[test]
fn record_verifies_only_at_its_place_and_in_its_volume() {
    let g = geometry(false);
    let bytes = stored(5, &g);
    decode(&bytes, &g).unwrap();
    let elsewhere = [Place::new(4, 8192), Place::new(3, 8256)];
    for at in elsewhere {
        let error = Record::open(&bytes, seal(), at, &g).expect_err("another place (R1)");
        assert!(error.to_string().contains("checksum"), "{error}");
    }
    let other = Seal::new(b"another volume's");
    Record::open(&bytes, other, AT, &g).expect_err("another volume (R1)");
}

/// record.R2: if the payload is damaged, the changes can still be read.
#[test]
fn changes_are_had_when_the_payload_is_bad() {
    let g = geometry(false);
    let mut bytes = vec![0; 65536];
    let mut builder = RecordBuilder::new(&mut bytes, AT, g).unwrap();
    let extent = Extent::plain(Source::Inline(0), 1, 9, Sums::crc32c(&[1, 2, 3, 4]), &g);
    builder.change(&Change::Map(7, 0, extent)).unwrap();
    builder.payload(4096).unwrap().fill(0x55);
    let fields = Make(1).fields(RecordKind::Changes);
    let length = builder.finish(seal(), fields, 64).unwrap().length;
    // Header, change, zeros up to a block, one block: a synced write takes two blocks on the
    // device.
    assert_eq!(length, 8192);
    bytes[5000] ^= 1;
    let record = Record::open(&bytes, seal(), AT, &g).unwrap();
    record.check(&g).unwrap();
    assert_eq!(record.changes(&g).count(), 1);
    let error = record.payload().unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("payload"), "{error}");
}

#[test]
fn mark_and_next_record_share_a_block() {
    let g = geometry(false);
    let mut bytes = vec![0; 65536];
    let mark = Make(1).fields(RecordKind::Mark);
    let builder = RecordBuilder::new(&mut bytes, AT, g).unwrap();
    let mark = builder.finish(seal(), mark, 64).unwrap();
    assert_eq!(mark.length, 128);
    let next = AT.after(mark.length).unwrap();
    let mut builder = RecordBuilder::new(&mut bytes[128..], next, g).unwrap();
    builder.change(&Change::AddOrphan(3)).unwrap();
    builder.payload(4096).unwrap();
    let fields = Make(2).fields(RecordKind::Changes);
    let record = builder.finish(seal(), fields, 4096).unwrap();
    assert_eq!(mark.length + record.length, 8192, "R3: the payload begins at the second block");
    let header = RecordHeader::peek(&bytes[128..], next, &g).unwrap();
    assert_eq!((header.place, header.payload_offset), (next, 4096 - 128));
    Record::decode(&bytes[128..], seal(), next, &g).unwrap();
}

/// record.R4, record.R5: and other things that the builder refuses.
#[test]
fn record_that_no_decoder_accepts_is_not_built() {
    let g = geometry(false);
    let mut bytes = vec![0; 65536];
    let kind = |result: Result<()>| result.expect_err("it cannot be").kind();
    let near_end = Place::new(0, g.segment_bytes() - 64);
    let no_room = RecordBuilder::new(&mut bytes, near_end, g).map(drop);
    assert_eq!(kind(no_room), ErrorKind::NoSpace);
    let crooked = RecordBuilder::new(&mut bytes, Place::new(0, 100), g).map(drop);
    assert_eq!(kind(crooked), ErrorKind::InvalidInput);
    let mut builder = RecordBuilder::new(&mut bytes, AT, g).unwrap();
    assert_eq!(kind(builder.change(&Change::AddOrphan(0))), ErrorKind::InvalidInput);
    let bad_name = Change::RemoveXattr(1, b"");
    assert_eq!(kind(builder.change(&bad_name)), ErrorKind::InvalidInput);
    assert_eq!(builder.changes(), 0);
    let extent = Extent::plain(Source::Inline(4096), 1, 9, Sums::NONE, &g);
    builder.change(&Change::Map(7, 0, extent)).unwrap();
    builder.payload(4096).unwrap();
    assert_eq!(kind(builder.change(&Change::AddOrphan(1))), ErrorKind::InvalidInput);
    let fields = Make(1).fields(RecordKind::Changes);
    let beyond = builder.finish(seal(), fields, 64).map(drop);
    assert_eq!(kind(beyond), ErrorKind::InvalidInput, "R5");
    let mut builder = RecordBuilder::new(&mut bytes[..300], AT, g).unwrap();
    let long = Change::SetXattr(1, b"user.x", &[7; 200]);
    assert_eq!(kind(builder.change(&long)), ErrorKind::NoSpace);
    builder.change(&Change::AddOrphan(1)).unwrap();
}

/// Corrects the checksum of an edited record.
fn reseal(bytes: &mut [u8]) {
    let offset = u32::from_le_bytes(bytes[68..72].try_into().unwrap()) as usize;
    let sum = seal().sum(AT, &bytes[..offset], 12);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
}

/// record.R6, change.G1: an unknown kind of a record and of a change, with and without the flag
/// that says that it must be understood.
#[test]
fn unknown_kinds_are_refused_or_skipped() {
    let g = geometry(false);
    let mut bytes = vec![0; 65536];
    let mut builder = RecordBuilder::new(&mut bytes, AT, g).unwrap();
    builder.change(&Change::AddOrphan(3)).unwrap();
    builder.change(&Change::AddOrphan(4)).unwrap();
    let fields = Make(1).fields(RecordKind::Changes);
    let length = builder.finish(seal(), fields, 64).unwrap().length as usize;
    let bytes = &mut bytes[..length];
    // The change's kind, then its flag.
    bytes[128..130].copy_from_slice(&777u16.to_le_bytes());
    reseal(bytes);
    let error = decode(bytes, &g).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("777"), "{error}");
    bytes[130] = 0;
    reseal(bytes);
    let record = decode(bytes, &g).unwrap();
    let left: Vec<_> = record.changes(&g).map(Result::unwrap).collect();
    assert_eq!(left, [Change::AddOrphan(4)]);
    // The record's.
    bytes[6..8].copy_from_slice(&55u16.to_le_bytes());
    reseal(bytes);
    let error = decode(bytes, &g).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("55"), "{error}");
    bytes[5] = 0;
    reseal(bytes);
    let record = decode(bytes, &g).unwrap();
    assert_eq!(record.header.fields.kind, RecordKind::Unknown(55));
    assert_eq!((record.header.length as usize, record.changes(&g).count()), (length, 0));
    // A known kind with the flag of one that may be skipped is refused.
    bytes[6..8].copy_from_slice(&1u16.to_le_bytes());
    reseal(bytes);
    assert_eq!(decode(bytes, &g).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// change.G3: lengths and counts that do not match the content are refused.
#[test]
fn changes_end_where_they_say() {
    let g = geometry(false);
    let mut bytes = vec![0; 65536];
    let mut builder = RecordBuilder::new(&mut bytes, AT, g).unwrap();
    builder.change(&Change::AddOrphan(3)).unwrap();
    let fields = Make(1).fields(RecordKind::Changes);
    builder.finish(seal(), fields, 64).unwrap();
    for (at, value) in [(132, 7u8), (132, 9), (60, 0), (60, 2), (64, 15), (64, 17), (131, 1)] {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        reseal(&mut bytes);
        let error = decode(&bytes, &g).expect_err("it was changed");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
    }
}

/// segment.H1, format.F3: a header is refused at another segment, and if it is cut short or any bit
/// is flipped.
#[test]
fn segment_headers_read_back_and_report_damage() {
    let g = geometry(false);
    for seed in seeds(200) {
        let header = Make(seed).segment_header(&g);
        let mut bytes = [0xaa; SEGMENT_HEADER_BYTES];
        header.encode_into(seal(), &g, &mut bytes).unwrap();
        let decode = |b: &[u8], n| SegmentHeader::decode(b, seal(), n, &g);
        assert_eq!(decode(&bytes, header.segment).unwrap(), header, "seed {seed}");
        assert!(
            decode(&bytes, header.segment ^ 1).is_err(),
            "at the start of another segment (H1)"
        );
        if seed % 50 == 1 {
            cut_anywhere(&bytes, |b| decode(b, header.segment).map(drop));
            flip_anywhere(&bytes, |b| decode(b, header.segment).map(drop));
        }
    }
}

/// Changes that were encoded before make the same record as those that are added one by one.
#[test]
fn encoded_changes_make_the_same_record() {
    let g = Geometry::with_segment_shift(20);
    let seal = Seal::new(&[5; 16]);
    let at = Place::new(1, 4096);
    let fields = RecordFields {
        kind: RecordKind::Changes,
        tree: 1,
        sequence: 9,
        generation: 2,
        predecessor: 3,
        durable_through: 8,
    };
    let sums = 7u32.to_le_bytes();
    let extent = Extent::plain(Source::Inline(0), 1, 5, Sums::crc32c(&sums), &g);
    let changes = [Change::AddOrphan(4), Change::Map(6, 2, extent), Change::NextSegment(3)];
    let mut body = [0; 512];
    let mut w = Writer::new("record", &mut body);
    changes.iter().for_each(|change| change.encode_into(&mut w, &g).unwrap());
    let len = w.position();
    let build = |encoded: bool| {
        let mut bytes = vec![0; 16384];
        let mut builder = RecordBuilder::new(&mut bytes, at, g).unwrap();
        match encoded {
            true => builder.encoded(&body[..len], 3, 4096).unwrap(),
            false => changes.iter().for_each(|change| builder.change(change).unwrap()),
        }
        assert_eq!(builder.changes(), 3);
        builder.payload(4096).unwrap().fill(1);
        assert!(builder.encoded(&body[..len], 3, 4096).is_err(), "behind the payload");
        let done = builder.finish(seal, fields, 512).unwrap();
        bytes.truncate(done.length as usize);
        bytes
    };
    assert_eq!(build(true), build(false));
    let mut small = [0; 160];
    let mut builder = RecordBuilder::new(&mut small, at, g).unwrap();
    assert_eq!(builder.encoded(&body[..len], 3, 0).unwrap_err().kind(), ErrorKind::NoSpace);
}
