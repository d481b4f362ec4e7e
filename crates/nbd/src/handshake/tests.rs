//! Every option and its reply, with input in pieces of any size, and clients that violate the
//! protocol.

use super::*;
use crate::proto::{opt, put_option};
use proptest::prelude::*;

struct Two;

impl Directory for Two {
    fn count(&self) -> usize {
        2
    }
    fn name(&self, index: usize) -> &str {
        ["disk", "other"][index]
    }
    fn info(&self, index: usize) -> ExportInfo {
        ExportInfo {
            size: 1 << 20,
            min_block: 512,
            preferred_block: 5000,
            max_request: 1_000_000,
            read_only: index == 1,
            can_trim: true,
            fast_zero: true,
            description: "text".into(),
        }
    }
}

const LIMITS: HandshakeLimits = HandshakeLimits {
    options_max: 20,
    option_len_max: 9000,
    request_max: 1 << 20,
    tls: TlsMode::Off,
};

/// Feeds the input in pieces of `piece` bytes. Returns the replies after the greeting as (option,
/// reply, data), and the final step.
fn talk(input: &[u8], piece: usize) -> (Vec<(u32, u32, Vec<u8>)>, Step) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(LIMITS, &mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
    out.clear();
    let (mut held, mut last) = (Vec::new(), Step::More);
    'all: for part in input.chunks(piece) {
        held.extend_from_slice(part);
        loop {
            let (used, step) = handshake.feed(&held, &mut out, &Two);
            held.drain(..used);
            last = step;
            if !matches!(last, Step::More) {
                break 'all;
            }
            if used == 0 {
                break;
            }
        }
    }
    (replies(&out), last)
}

fn replies(mut out: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut all = Vec::new();
    while out.len() >= 20 && out[..8] == proto::OPTION_REPLY_MAGIC.to_be_bytes() {
        let word = |at: usize| u32::from_be_bytes(out[at..at + 4].try_into().unwrap());
        let end = 20 + word(16) as usize;
        all.push((word(8), word(12), out[20..end].to_vec()));
        out = &out[end..];
    }
    all
}

fn start() -> Vec<u8> {
    3u32.to_be_bytes().to_vec()
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|q| data.extend(string(q.as_bytes())));
    data
}

fn go(name: &str) -> Vec<u8> {
    [string(name.as_bytes()), vec![0, 3, 0, 1, 0, 2, 0, 3]].concat()
}

#[test]
fn go_split_anywhere_replies_and_enters_transmission() {
    let mut input = start();
    put_option(&mut input, opt::STRUCTURED_REPLY, &[]);
    put_option(&mut input, opt::SET_META_CONTEXT, &meta("disk", &["base:allocation", "x:y"]));
    put_option(&mut input, opt::GO, &go("disk"));
    for piece in 1..input.len() {
        let (replies, end) = talk(&input, piece);
        let codes: Vec<_> = replies.iter().map(|r| (r.0, r.1)).collect();
        let info = (opt::GO, rep::INFO);
        assert_eq!(codes[..3], [(8, rep::ACK), (10, rep::META_CONTEXT), (10, rep::ACK)]);
        assert_eq!(codes[3..], [info, info, info, info, (opt::GO, rep::ACK)]);
        assert_eq!(replies[1].2, b"\0\0\0\x01base:allocation");
        // 1 MiB; flags, flush, FUA, trim, zeroes, DF, multi-conn, cache, fast zero.
        assert_eq!(replies[3].2, [0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0x0d, 0xed]);
        assert_eq!(replies[4].2, b"\0\x01disk");
        assert_eq!(replies[5].2, b"\0\x02text");
        assert_eq!(replies[6].2[..10], [0, 3, 0, 0, 2, 0, 0, 0, 0x20, 0]);
        let Step::Enter(session) = end else { panic!("{end:?}") };
        assert!(session.structured && session.block_status);
        assert_eq!(session.request_max, 1_000_000 / 512 * 512);
    }
}

#[test]
fn every_other_option_has_its_answer() {
    let long = "n".repeat(5000);
    let cases: Vec<(u32, Vec<u8>, Vec<u32>)> = vec![
        (opt::LIST, vec![], vec![rep::SERVER, rep::SERVER, rep::ACK]),
        (opt::LIST, vec![1], vec![rep::ERR_INVALID]),
        (opt::STARTTLS, vec![], vec![rep::ERR_POLICY]),
        (opt::EXTENDED_HEADERS, vec![], vec![rep::ERR_UNSUP]),
        (4, vec![], vec![rep::ERR_UNSUP]),
        (0xffff_ffff, vec![5; 30], vec![rep::ERR_UNSUP]),
        (opt::INFO, go(""), vec![rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK]),
        (opt::INFO, go("../../etc/passwd"), vec![rep::ERR_UNKNOWN]),
        (opt::INFO, go(&long), vec![rep::ERR_TOO_BIG]),
        (opt::INFO, vec![0, 0, 0, 200, 1], vec![rep::ERR_INVALID]),
        (opt::STRUCTURED_REPLY, vec![0], vec![rep::ERR_INVALID]),
        (opt::LIST_META_CONTEXT, meta("disk", &[]), vec![rep::ERR_INVALID]),
        (opt::STRUCTURED_REPLY, vec![], vec![rep::ACK]),
        (opt::LIST_META_CONTEXT, meta("disk", &[]), vec![rep::META_CONTEXT, rep::ACK]),
        (opt::LIST_META_CONTEXT, meta("disk", &["base:"]), vec![rep::META_CONTEXT, rep::ACK]),
        (opt::LIST_META_CONTEXT, meta("disk", &["qemu:"]), vec![rep::ACK]),
        (opt::SET_META_CONTEXT, meta("disk", &["base:"]), vec![rep::ACK]),
        (opt::SET_META_CONTEXT, meta("nope", &["base:"]), vec![rep::ERR_UNKNOWN]),
        (opt::SET_META_CONTEXT, meta("disk", &[&long]), vec![rep::ERR_TOO_BIG]),
        (opt::ABORT, vec![], vec![rep::ACK]),
    ];
    let (mut input, mut want) = (start(), Vec::new());
    for (code, data, answers) in cases {
        put_option(&mut input, code, &data);
        want.extend(answers.into_iter().map(|a| (code, a)));
    }
    for piece in [1, 7, 16, input.len()] {
        let (replies, end) = talk(&input, piece);
        assert!(matches!(end, Step::Close(None)));
        assert_eq!(replies.iter().map(|r| (r.0, r.1)).collect::<Vec<_>>(), want);
    }
}

#[test]
fn contexts_hold_for_their_export_only() {
    for (set, then, want) in [("disk", "disk", true), ("other", "disk", false), ("", "disk", true)]
    {
        let mut input = start();
        put_option(&mut input, opt::STRUCTURED_REPLY, &[]);
        put_option(&mut input, opt::SET_META_CONTEXT, &meta(set, &["base:allocation"]));
        put_option(&mut input, opt::GO, &go(then));
        let (_, Step::Enter(session)) = talk(&input, 64) else { panic!("no session") };
        assert_eq!(session.block_status, want, "{set} then {then}");
    }
    let mut input = start();
    put_option(&mut input, opt::STRUCTURED_REPLY, &[]);
    put_option(&mut input, opt::SET_META_CONTEXT, &meta("disk", &["base:allocation"]));
    put_option(&mut input, opt::SET_META_CONTEXT, &meta("disk", &[]));
    put_option(&mut input, opt::GO, &go("disk"));
    let (_, Step::Enter(session)) = talk(&input, 64) else { panic!("no session") };
    assert!(!session.block_status, "the second choice replaces the first");
}

#[test]
fn export_name_answers_in_the_old_way() {
    for (flags, len) in [(3u32, 10), (1, 134), (0, 134)] {
        let mut out = Vec::new();
        let mut handshake = Handshake::new(LIMITS, &mut out);
        out.clear();
        assert_eq!(handshake.feed(&flags.to_be_bytes(), &mut out, &Two).0, 4);
        let mut input = Vec::new();
        put_option(&mut input, opt::EXPORT_NAME, b"other");
        let (used, step) = handshake.feed(&input, &mut out, &Two);
        assert_eq!((used, out.len()), (input.len(), len));
        let Step::Enter(session) = step else { panic!("{step:?}") };
        // Read-only: flags, read-only, flush, multi-conn, cache, and no flag of a command that
        // writes.
        assert_eq!(transmission_flags(&session).bits(), 0x0507);
        assert_eq!(out[8..10], [0x05, 0x07]);
    }
}

#[test]
fn client_breaking_protocol_is_disconnected() {
    let reason = |input: &[u8]| match talk(input, 5).1 {
        Step::Close(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(&8u32.to_be_bytes()), Some(DropReason::BadClientFlags));
    assert_eq!(reason(b"\0\0\0\x03GET / HTTP"), Some(DropReason::BadMagic));
    let mut long = start();
    long.extend_from_slice(&proto::OPTION_MAGIC.to_be_bytes());
    long.extend_from_slice(&[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(reason(&long), Some(DropReason::OptionTooLong));
    let mut many = start();
    (0..21).for_each(|_| put_option(&mut many, 99, &[]));
    assert_eq!(reason(&many), Some(DropReason::TooManyOptions));
    let mut unknown = start();
    put_option(&mut unknown, opt::EXPORT_NAME, b"nope");
    assert_eq!(reason(&unknown), Some(DropReason::UnknownExport));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_options_never_panic(
        options in proptest::collection::vec(
            (0u32..13, proptest::collection::vec(any::<u8>(), 0..60)), 0..12),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
        piece in 1usize..80,
    ) {
        let mut input = start();
        for (code, data) in &options {
            put_option(&mut input, *code, data);
        }
        input.extend_from_slice(&tail);
        let (replies, _) = talk(&input, piece);
        prop_assert!(replies.len() <= options.len() * 6);
    }
}
