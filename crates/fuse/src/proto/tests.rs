//! The protocol against golden bytes: requests as Linux 6.18 sent them, and replies encoded by hand
//! from the kernel's structures.
//!
//! No locks.

use super::consts::{
    FOpen, IN_HEADER_BYTES, InitFlags, OUT_HEADER_BYTES, WRITE_HEADER_BYTES, opcode,
};
use super::notify::{Notice, RetrieveReply};
use super::reply::{Body, ENTRY_OUT_BYTES, InitOut, Valid, dirent_bytes, header};
use super::request::{Op, Request};
use forebay_base::ErrorKind;
use forebay_vfs::{Attr, FileKind, Ino, StatFs, Timestamp};
use std::path::PathBuf;
use std::time::Duration;

fn bytes_of(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2), "whole bytes");
    (0..hex.len() / 2).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Title, message, and the expected text of the parsed request. With `FOREBAY_BLESS` the texts are
/// written anew.
fn golden() -> Vec<(String, Vec<u8>, String)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/requests.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut found = Vec::new();
    let mut shown = String::new();
    for part in text.split("\n\n").filter(|part| !part.trim().is_empty()) {
        if part.starts_with('#') {
            shown.push_str(&format!("{part}\n\n"));
            continue;
        }
        let mut lines = part.lines();
        let (title, message) = (lines.next().unwrap(), bytes_of(lines.next().unwrap()));
        let parsed = format!("{:?}", Request::parse(&message).unwrap());
        shown.push_str(&format!("{title}\n{}\n{parsed}\n\n", hex(&message)));
        found.push((title.to_string(), message, lines.next().unwrap_or_default().to_string()));
    }
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&path, shown).unwrap();
        panic!("blessed: run again");
    }
    found
}

/// proto.P2, proto.P4: the golden requests are parsed as expected; each known kind has an example.
#[test]
fn p2_golden_requests() {
    let all = golden();
    for (title, message, expected) in &all {
        let parsed = Request::parse(message).unwrap_or_else(|e| panic!("{title}: {e}"));
        assert_eq!(format!("{parsed:?}"), *expected, "{title}");
    }
    assert_eq!(all.len(), 46);
}

/// proto.P1, proto.P2: a truncated message is refused at any length, also if its header has the
/// shorter length.
#[test]
fn p1_p2_cut_at_every_length() {
    for (title, message, _) in golden() {
        let code = u32::from_le_bytes(message[4..8].try_into().unwrap());
        for len in 0..message.len() {
            let mut cut = message[..len].to_vec();
            let refused = Request::parse(&cut).unwrap_err().kind();
            assert!(matches!(refused, ErrorKind::Corrupt | ErrorKind::Protocol), "{title} {len}");
            if len >= IN_HEADER_BYTES {
                cut[..4].copy_from_slice(&(len as u32).to_le_bytes());
            }
            let parsed = Request::parse(&cut);
            // `INIT` has grown over time, so it may be shorter; an unknown request may have any
            // length.
            let open = code == opcode::INIT && len >= IN_HEADER_BYTES + 16;
            let known = parsed.as_ref().is_ok_and(|request| request.op != Op::Unknown);
            assert!(open || !known, "{title}: taken with {len} of {} bytes", message.len());
        }
        let mut long = message.clone();
        long.extend_from_slice(&[0; 8]);
        long[..4].copy_from_slice(&(message.len() as u32 + 8).to_le_bytes());
        let parsed = Request::parse(&long);
        let known = parsed.as_ref().is_ok_and(|request| request.op != Op::Unknown);
        assert!(code == opcode::INIT || !known, "{title}: taken with bytes too many");
        // The same bytes, declared as an extension, are no arguments.
        long[36..38].copy_from_slice(&1_u16.to_le_bytes());
        if code != opcode::WRITE {
            let op = Request::parse(&long).map(|request| format!("{:?}", request.op));
            let plain = Request::parse(&message).map(|request| format!("{:?}", request.op));
            assert_eq!(op.unwrap(), plain.unwrap(), "{title}: with an extension");
        }
    }
}

/// proto.P2: the payload of a write is parsed where it was read.
#[test]
fn p2_writes_in_two_parts() {
    let (_, message, _) =
        golden().into_iter().find(|(title, ..)| title.starts_with("WRITE")).unwrap();
    let (head, data) = message.split_at(WRITE_HEADER_BYTES);
    let parsed = Request::parse_write(head, data).unwrap();
    assert_eq!(parsed, Request::parse(&message).unwrap());
    assert!(matches!(parsed.op, Op::Write { data: found, .. } if found.as_ptr() == data.as_ptr()));
    Request::parse_write(head, &data[1..]).unwrap_err();
    Request::parse_write(&head[1..], data).unwrap_err();
}

fn attr() -> Attr {
    Attr {
        ino: Ino(0x0102_0304_0506_0708),
        generation: 0x1112_1314_1516_1718,
        kind: FileKind::BlockDevice,
        perm: 0o4755,
        nlink: 0x2122_2324,
        uid: 0x3132_3334,
        gid: 0x4142_4344,
        // Major 0x123, minor 0x45678.
        rdev: 0x4561_2378,
        size: 0x5152_5354_5556_5758,
        allocated_bytes: 513,
        atime: Timestamp::new(-2, 1),
        mtime: Timestamp::new(3, 4),
        ctime: Timestamp::new(5, 6),
        btime: Timestamp::new(7, 8),
    }
}

const VALID: Valid = Valid { entry: Duration::new(0x61, 0x62), attr: Duration::new(0x63, 0x64) };

/// `fuse_attr` of [`attr`].
const ATTR: &str = "0807060504030201585756555453525102000000000000\
    00feffffffffffffff0300000000000000050000000000000001000000040000000600000\
    0ed69000024232221343332314443424178236145001000000000000\
    0";

fn check(what: &str, body: &Body, expected: &str, len: usize) {
    assert_eq!(hex(body.as_bytes()), expected.replace([' ', '\n'], ""), "{what}");
    assert_eq!(body.len(), len, "{what}: as long as the kernel's structure");
}

/// proto.P3, proto.P4: replies, byte by byte.
#[test]
fn p3_golden_replies() {
    let mut body = Body::new();
    body.attr_out(&attr(), &VALID, 4096);
    check("attr", &body, &format!("63000000000000006400000000000000{ATTR}"), 104);
    let mut body = Body::new();
    body.entry_out(&attr(), &VALID, 4096);
    let head = "080706050403020118171615141312116100000000000000630000000000000062000000 64000000";
    check("entry", &body, &format!("{head}{ATTR}"), ENTRY_OUT_BYTES);
    let mut body = Body::new();
    body.no_entry_out(VALID.entry);
    let rest = "00".repeat(88 + 4);
    check(
        "none",
        &body,
        &format!("{}6100000000000000{}62000000{rest}", "00".repeat(16), "00".repeat(8)),
        128,
    );
    let mut body = Body::new();
    body.open_out(7, FOpen::DIRECT_IO | FOpen::NOFLUSH);
    check("open", &body, "07000000000000002100000000000000", 16);
    let mut body = Body::new();
    body.size_out(0x0102_0304);
    check("size", &body, "0403020100000000", 8);
    let mut body = Body::new();
    body.ioctl_out(&[9, 8]);
    check("ioctl", &body, &format!("{}0908", "00".repeat(16)), 18);
    assert_eq!(hex(&header(5, 0, 8)), "18000000000000000500000000000000");
    assert_eq!(hex(&header(5, 2, 0)), "10000000feffffff0500000000000000");
    assert_eq!(header(0, 0, 0).len(), OUT_HEADER_BYTES);
}

/// proto.P3: longer replies.
#[test]
fn p3_golden_figures() {
    let mut body = Body::new();
    let st = StatFs {
        block_size: 4096,
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        files: 4,
        files_free: 5,
        name_max: 255,
    };
    body.statfs_out(&st);
    let numbers =
        "01000000000000000200000000000000030000000000000004000000000000000500000000000000";
    let rest = "00".repeat(28);
    check("statfs", &body, &format!("{numbers}00100000ff00000000100000{rest}"), 80);
    let mut body = Body::new();
    body.statx_out(&attr(), &VALID, 4096);
    let head = format!("63000000000000006400000000000000{}ff0f000000100000", "00".repeat(16));
    let inode =
        "0000000000000000 24232221 34333231 44434241 ed690000 0807060504030201 5857565554535251
        0200000000000000 0000000000000000";
    let times =
        "feffffffffffffff 0100000000000000 0700000000000000 0800000000000000 0500000000000000
        0600000000000000 0300000000000000 0400000000000000";
    let devices = format!("23010000 78560400 {}", "00".repeat(8 + 14 * 8));
    check("statx", &body, &format!("{head}{inode}{times}{devices}"), 288);
    let mut body = Body::new();
    let init = InitOut {
        minor: 45,
        max_readahead: 1 << 20,
        flags: InitFlags::ASYNC_READ | InitFlags::DIRECT_IO_ALLOW_MMAP,
        max_background: 64,
        congestion_threshold: 48,
        max_write: 1 << 20,
        max_pages: 256,
        request_timeout: 0x0168,
    };
    body.init_out(&init);
    let text = "070000002d00000000001000010000004000300000001000010000000001000010000000";
    check("init", &body, &format!("{text}00000000 6801 {}", "00".repeat(22)), 64);
}

/// proto.P3: entries of a listing are padded, and one that does not fit adds nothing.
#[test]
fn p3_listings_are_padded() {
    let mut body = Body::new();
    assert!(body.dirent(1, 2, FileKind::Directory, b"abc", 64));
    assert_eq!(
        hex(body.as_bytes()),
        "01000000000000000200000000000000030000000400000061626300 00000000".replace(' ', "")
    );
    assert!(!body.dirent(1, 3, FileKind::File, b"123456789", 64));
    assert!(body.dirent(1, 3, FileKind::File, b"12345678", 64));
    assert_eq!(body.len(), 64);
    assert_eq!(
        (dirent_bytes(b"1"), dirent_bytes(b"12345678"), dirent_bytes(b"123456789")),
        (32, 32, 40)
    );
}

/// proto.P3: notifications have request number 0 and their code in place of the errno.
#[test]
fn p3_golden_notices() {
    let inode = Notice::Inode { node: 3, offset: -1, len: 0 };
    let head = |len: &str, code: &str| format!("{len}000000{code}0000000000000000000000");
    let text = "0300000000000000ffffffffffffffff0000000000000000";
    assert_eq!(hex(&inode.encode()), head("28", "02") + text);
    let store = Notice::Store { node: 3, offset: 0x1fff, byte: 0xab };
    let text = "0300000000000000ff1f0000000000000100000000000000ab";
    assert_eq!(hex(&store.encode()), head("29", "04") + text);
    let entry = Notice::Entry { dir: 3, name: (*b"ab").into() };
    assert_eq!(hex(&entry.encode()), head("23", "03") + "03000000000000000200000000000000616200");
    let gone = Notice::Delete { dir: 3, node: 4, name: (*b"a").into() };
    let text = "0300000000000000040000000000000001000000000000006100";
    assert_eq!(hex(&gone.encode()), head("2a", "06") + text);
    let prune = Notice::Prune(vec![5, 6]);
    let text = "0200000000000000000000000000000005000000000000000600000000000000";
    assert_eq!(hex(&prune.encode()), head("30", "09") + text);
    let retrieve = Notice::Retrieve { number: 9, node: 3, offset: 0x1fff, size: 0x1000 };
    let text = "09000000000000000300000000000000ff1f0000000000000010000000000000";
    assert_eq!(hex(&retrieve.encode()), head("30", "05") + text);
    // The answer to `RETRIEVE`, without its bytes.
    let mut reply = vec![0; 80];
    reply[48..56].copy_from_slice(&0x1fff_u64.to_le_bytes());
    reply[56..60].copy_from_slice(&7_u32.to_le_bytes());
    let parsed = RetrieveReply::parse(&reply).unwrap();
    assert_eq!(parsed, RetrieveReply { offset: 0x1fff, size: 7 });
    assert!((0..60).all(|len| RetrieveReply::parse(&reply[..len]).is_err()), "it is cut off");
}
