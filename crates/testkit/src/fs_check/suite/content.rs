//! Content: holes and their edges, the far end, fallocate, appends, copies.
//!
//! No locks.

use super::subject::{BOTH, Case, Subject, case, refused};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_vfs::copy::copy_range;
use forebay_vfs::fs::OpenFileRef;
use forebay_vfs::types::{
    FILE_SIZE_MAX, Fallocate, FileKind, OpenFlags, Privileges, Seek, SetAttr,
};
use std::collections::BTreeSet;

pub const CASES: &[Case] = &[
    case("f8_the_far_end", far_end),
    case("f8_cut_off_and_grown_is_zeros", cut_and_grown),
    case("holes_are_zeros_and_data_is_found", holes),
    case("fallocate_modes", fallocate),
    case("appends_of_several_openers", appends),
    case("handles_do_what_they_were_opened_for", handles),
    case("flags_are_known_or_refused", flags),
    case("copies_keep_holes", copies),
];

const PUNCH: Fallocate = Fallocate::PunchHole;

fn falloc(file: &OpenFileRef, how: Fallocate, offset: u64, len: u64) -> Result<()> {
    block_on(file.fallocate(how, offset, len, Privileges::Keep))
}

fn seek(file: &OpenFileRef, what: Seek, offset: u64) -> Result<u64> {
    block_on(file.seek(what, offset))
}

fn far_end(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    let ino = file.ino();
    s.set(ino, &SetAttr::size(FILE_SIZE_MAX))?;
    let empty = s.attr_of(ino)?;
    assert_eq!(empty.size, FILE_SIZE_MAX, "F8: 2^63 - 1 bytes");
    assert_eq!(empty.allocated_bytes, 0, "F8: a hole costs nothing");
    assert_eq!(s.read(&file, FILE_SIZE_MAX - 5, 100)?, [0; 5], "F8: zeros");
    refused(seek(&file, Seek::Data, 0), ErrorKind::PastEnd, "F8: no data anywhere");
    assert_eq!(seek(&file, Seek::Hole, 77)?, 77, "F8: a hole everywhere");
    s.write(&file, FILE_SIZE_MAX - 4, b"last")?;
    assert_eq!(s.read(&file, FILE_SIZE_MAX - 6, 100)?, b"\0\0last");
    let data = seek(&file, Seek::Data, 0)?;
    assert!(FILE_SIZE_MAX - data <= 2 << 20, "F8: data is found where it is, not at {data}");
    assert!(s.attr_of(ino)?.allocated_bytes <= 2 << 20, "F8: and costs what it is");
    // Bytes beyond the largest offset are left out; a write that begins there is refused.
    let none = IoFlags::empty();
    let wrote = file.write_slice(FILE_SIZE_MAX - 3, b"clipped", none, Privileges::Keep)?;
    assert_eq!(wrote.len, 3, "F8: to the end of the largest file");
    let beyond = |offset, flags| file.write_slice(offset, b"x", flags, Privileges::Keep);
    for offset in [FILE_SIZE_MAX, FILE_SIZE_MAX + 1, u64::MAX] {
        refused(beyond(offset, none), ErrorKind::FileTooLarge, "F8: beyond the largest file");
    }
    refused(beyond(0, IoFlags::APPEND), ErrorKind::FileTooLarge, "F8: append to the largest file");
    assert_eq!(s.read(&file, FILE_SIZE_MAX, 10)?, b"", "nothing at the end");
    refused(falloc(&file, PUNCH, 1, FILE_SIZE_MAX), ErrorKind::FileTooLarge, "F8: a hole beyond");
    falloc(&file, PUNCH, 0, FILE_SIZE_MAX)?;
    assert_eq!(s.read(&file, FILE_SIZE_MAX - 5, 100)?, [0; 5], "F8: one hole");
    s.set(ino, &SetAttr::size(0))?;
    assert_eq!(s.read(&file, 0, 10)?, b"", "F8: empty");
    // The file is left behind with the largest size.
    s.write(&file, FILE_SIZE_MAX - 1, b"x")?;
    s.write(&file, 1 << 62, b"y")?;
    Ok(())
}

fn cut_and_grown(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    for cut in [0u64, 1, 100, 4095, 4096, 4097, 8192, 70_000] {
        s.set(file.ino(), &SetAttr::size(0))?;
        s.write(&file, 0, &[7; 80_000])?;
        s.set(file.ino(), &SetAttr::size(cut))?;
        assert_eq!(s.read(&file, 0, 90_000)?.len() as u64, cut);
        s.set(file.ino(), &SetAttr::size(90_000))?;
        let bytes = s.read(&file, 0, 90_000)?;
        let (old, new) = bytes.split_at(cut as usize);
        assert!(old.iter().all(|b| *b == 7), "F8: what was left of {cut}");
        assert!(new.iter().all(|b| *b == 0), "F8: zeros from {cut} on");
        s.set(file.ino(), &SetAttr::size(cut))?;
        s.write(&file, 85_000, b"x")?;
        let gap = s.read(&file, cut, 85_000 - cut as usize)?;
        assert!(gap.iter().all(|b| *b == 0), "F8: a gap after {cut} is zeros");
    }
    Ok(())
}

/// Checks that the seeks report every byte that is not zero as data, and agree with each other.
/// Returns the runs of data.
fn check_map(s: &Subject, file: &OpenFileRef, len: usize) -> Result<Vec<(u64, u64)>> {
    let bytes = s.read(file, 0, len)?;
    let (mut at, mut runs) = (0, Vec::new());
    while let Ok(data) = seek(file, Seek::Data, at) {
        let hole = seek(file, Seek::Hole, data)?;
        assert!(at <= data && data < hole && hole <= len as u64, "{at}: {data}..{hole}");
        assert_eq!(seek(file, Seek::Data, data)?, data, "data begins where it is said to");
        let skipped = &bytes[at as usize..data as usize];
        assert!(skipped.iter().all(|b| *b == 0), "a hole with bytes: {at}..{data}");
        runs.push((data, hole));
        at = hole;
    }
    assert!(bytes[at as usize..].iter().all(|b| *b == 0), "a hole with bytes: {at}..");
    Ok(runs)
}

fn holes(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    refused(seek(&file, Seek::Data, 0), ErrorKind::PastEnd, "data in an empty file");
    refused(seek(&file, Seek::Hole, 0), ErrorKind::PastEnd, "a hole in an empty file");
    let size = 8 << 20;
    s.set(file.ino(), &SetAttr::size(size))?;
    assert_eq!(check_map(s, &file, size as usize)?, []);
    for offset in [0, 3 << 20, (3 << 20) + 4095, (5 << 20) - 1, size - 1] {
        s.write(&file, offset, b"x")?;
        let runs = check_map(s, &file, size as usize)?;
        let found = runs.iter().any(|(from, to)| (*from..*to).contains(&offset));
        assert!(found, "data at {offset}, not written out yet, is found: {runs:?}");
    }
    assert_eq!(seek(&file, Seek::Hole, size - 1)?, size, "the end is a hole");
    refused(seek(&file, Seek::Hole, size), ErrorKind::PastEnd, "at the end");
    refused(seek(&file, Seek::Data, u64::MAX), ErrorKind::PastEnd, "far beyond it");
    let used = s.attr_of(file.ino())?.allocated_bytes;
    falloc(&file, PUNCH, 1 << 20, 3 << 20)?;
    check_map(s, &file, size as usize)?;
    assert!(s.attr_of(file.ino())?.allocated_bytes <= used, "a hole takes no more");
    assert_eq!(s.read(&file, (3 << 20) - 1, 3)?, [0; 3], "punched");
    Ok(())
}

fn fallocate(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    let size = |file: &OpenFileRef| -> Result<u64> { Ok(s.attr_of(file.ino())?.size) };
    let (keep, grow) = (true, false);
    falloc(&file, Fallocate::Allocate { keep_size: keep }, 0, 10_000)?;
    assert_eq!(size(&file)?, 0, "the size is kept");
    falloc(&file, Fallocate::Allocate { keep_size: grow }, 100, 9_900)?;
    assert_eq!((size(&file)?, s.read(&file, 0, 20_000)?), (10_000, vec![0; 10_000]));
    s.write(&file, 0, &[7; 10_000])?;
    falloc(&file, Fallocate::Allocate { keep_size: grow }, 0, 5_000)?;
    assert!(s.read(&file, 0, 10_000)?.iter().all(|b| *b == 7), "allocating changes no byte");
    for (offset, len) in [(1, 1), (4_095, 2), (100, 5_000), (4_096, 4_096)] {
        falloc(&file, PUNCH, offset, len)?;
        let mut wanted = vec![7; 10_000];
        wanted[offset as usize..(offset + len) as usize].fill(0);
        assert!(s.read(&file, 0, 10_000)? == wanted, "a hole to the byte: {offset}+{len}");
        s.write(&file, 0, &[7; 10_000])?;
    }
    falloc(&file, PUNCH, 9_000, 100_000)?;
    assert_eq!(size(&file)?, 10_000, "a hole beyond the end moves it not");
    falloc(&file, Fallocate::ZeroRange { keep_size: keep }, 8_000, 100_000)?;
    assert_eq!(size(&file)?, 10_000, "the size is kept");
    falloc(&file, Fallocate::ZeroRange { keep_size: grow }, 1, 2)?;
    falloc(&file, Fallocate::ZeroRange { keep_size: grow }, 9_999, 2_001)?;
    let mut wanted = vec![7; 8_000];
    wanted[1..3].fill(0);
    wanted.resize(12_000, 0);
    assert_eq!(s.read(&file, 0, 20_000)?, wanted);
    let nothing = || falloc(&file, PUNCH, 5, 0);
    s.refused_without_trace(ErrorKind::InvalidInput, "no bytes", nothing);
    let reader = s.open("f", OpenFlags::READ)?;
    let reading = || falloc(&reader, PUNCH, 0, 5);
    s.refused_without_trace(ErrorKind::BadHandle, "opened to read", reading);
    Ok(())
}

/// Bytes of one appended record.
const RECORD: usize = 37;

fn appends(s: &Subject) -> Result<()> {
    const WRITERS: u8 = 4;
    const EACH: u8 = 60;
    s.file("f")?;
    let append = |writer: u8| -> Result<()> {
        let file = s.open("f", OpenFlags::WRITE)?;
        for n in 0..EACH {
            let mut record = [n; RECORD];
            record[0] = writer;
            let flags = IoFlags::APPEND;
            let wrote = match n & 1 {
                0 => file.write_slice(0, &record, flags, Privileges::Keep)?,
                _ => {
                    let buf = AlignedBuf::copy_of(&record);
                    block_on(file.write(u64::MAX, buf, flags, Privileges::Keep)).1?
                }
            };
            assert_eq!((wrote.len, wrote.offset % RECORD as u64), (RECORD, 0), "whole, at the end");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|w| scope.spawn(move || append(w))).collect();
        writers.into_iter().try_for_each(|w| w.join().expect("a writer ends"))
    })?;
    let file = s.open("f", OpenFlags::READ)?;
    let bytes = s.read(&file, 0, usize::from(WRITERS) * usize::from(EACH) * RECORD + 1)?;
    let records = bytes.chunks(RECORD);
    let seen: BTreeSet<(u8, u8)> = records
        .map(|record| {
            assert!(record.len() == RECORD && record[1..].iter().all(|b| *b == record[1]), "torn");
            (record[0], record[1])
        })
        .collect();
    assert_eq!(seen.len(), usize::from(WRITERS) * usize::from(EACH), "each record once");
    assert_eq!(bytes.len(), seen.len() * RECORD, "and nothing else");
    Ok(())
}

fn handles(s: &Subject) -> Result<()> {
    s.file("f")?;
    let (reader, writer) = (s.open("f", OpenFlags::READ)?, s.open("f", OpenFlags::WRITE)?);
    s.write(&writer, 0, b"x")?;
    refused(s.read(&writer, 0, 1), ErrorKind::BadHandle, "read with a writer");
    let write = |file: &OpenFileRef| file.write_slice(0, b"y", IoFlags::empty(), Privileges::Keep);
    s.refused_without_trace(ErrorKind::BadHandle, "write with a reader", || write(&reader));
    s.mknod("p", FileKind::Fifo)?;
    s.mkdir("d")?;
    let (pipe, dir) = (s.open("p", BOTH)?, s.open("d", OpenFlags::READ)?);
    for (file, kind) in [(&pipe, ErrorKind::InvalidInput), (&dir, ErrorKind::IsDirectory)] {
        refused(s.read(file, 0, 1), kind, "read what has no content");
        s.refused_without_trace(kind, "write what has no content", || write(file));
        refused(seek(file, Seek::Data, 0), kind, "seek what has no content");
        refused(falloc(file, PUNCH, 0, 1), kind, "punch what has no content");
        block_on(file.sync(false))?;
    }
    assert_eq!((reader.flags(), reader.ino()), (OpenFlags::READ, s.ino("f")?));
    for data_only in [false, true] {
        block_on(reader.sync(data_only))?;
    }
    block_on(s.fs.syncfs())
}

fn flags(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    let unknown = IoFlags::from_bits_retain(1 << 30);
    let write = |flags| file.write_slice(0, b"x", flags, Privileges::Keep);
    s.refused_without_trace(ErrorKind::Unsupported, "an unknown flag", || write(unknown));
    let mut byte = [0];
    let read = file.read_slice(0, &mut byte, IoFlags::APPEND);
    refused(read, ErrorKind::Unsupported, "a read that appends");
    let all = [IoFlags::UNCACHED, IoFlags::DSYNC, IoFlags::SYNC, IoFlags::START_WRITEBACK];
    let more = [IoFlags::DIRECT | IoFlags::FALLBACK, IoFlags::HELD_ABOVE];
    for (n, flags) in all.into_iter().chain(more).enumerate() {
        file.write_slice(n as u64, &[n as u8 + 1], flags, Privileges::Keep)?;
        file.read_slice(n as u64, &mut byte, flags - IoFlags::WRITE_ONLY)?;
        assert_eq!(byte, [n as u8 + 1], "{flags:?}");
    }
    let mut block = AlignedBuf::new(4096);
    block.fill(9);
    let (_, wrote) = block_on(file.write(8192, block, IoFlags::DIRECT, Privileges::Keep));
    assert_eq!(wrote?.len, 4096);
    assert_eq!(s.read(&file, 8191, 3)?, [0, 9, 9], "direct and cached are coherent");
    Ok(())
}

fn copies(s: &Subject) -> Result<()> {
    let (from, to) = (s.create("from", BOTH)?, s.create("to", BOTH)?);
    let size = (20 << 20) + 5;
    s.set(from.ino(), &SetAttr::size(size))?;
    let marks = [0, 6 << 20, (6 << 20) + 5000, size - 3];
    for offset in marks {
        s.write(&from, offset, b"abc")?;
    }
    s.write(&to, 1 << 20, &[7; 100_000])?;
    let copy = |from: (&OpenFileRef, u64), to: (&OpenFileRef, u64), len| {
        let (from, to) = ((&**from.0, from.1), (&**to.0, to.1));
        block_on(copy_range(&*s.fs, from, to, len, IoFlags::empty(), Privileges::Keep))
    };
    assert_eq!(copy((&from, 0), (&to, 0), 1 << 40)?, size, "to the end of the source");
    assert_eq!(s.attr("to")?.size, size);
    let mut wanted = vec![0; size as usize];
    for offset in marks {
        wanted[offset as usize..offset as usize + 3].copy_from_slice(b"abc");
    }
    assert!(s.read(&to, 0, size as usize)? == wanted, "the same bytes, old ones gone");
    let used = s.attr("to")?.allocated_bytes;
    assert!(used < 15 << 20, "holes stay holes: {used} bytes in use");
    assert_eq!(copy((&from, size), (&to, 0), 10)?, 0, "nothing beyond the end");
    assert_eq!(copy((&from, 1), (&from, size), 5)?, 5, "within a file, beyond its end");
    let end = size + 5;
    assert_eq!(copy((&from, end - 3), (&from, end + 10), 100)?, 3, "not what it makes longer");
    let overlap = || copy((&from, 0), (&from, 4), 5);
    s.refused_without_trace(ErrorKind::InvalidInput, "ranges that overlap", overlap);
    let reader = s.open("to", OpenFlags::READ)?;
    let reading = || copy((&from, 0), (&reader, 0), 5);
    s.refused_without_trace(ErrorKind::BadHandle, "into a reader", reading);
    let directory = s.open("/", OpenFlags::READ)?;
    let no_content = || copy((&directory, 0), (&to, 0), 5);
    s.refused_without_trace(ErrorKind::IsDirectory, "from a directory", no_content);
    Ok(())
}
