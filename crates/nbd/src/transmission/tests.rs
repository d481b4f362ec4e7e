//! Streams of requests in pieces of any size, and refused requests with their error numbers.

use super::*;
use crate::proto::put_request;
use forebay_vfs::ExportInfo;
use proptest::prelude::*;

fn session() -> Session {
    let info = ExportInfo {
        size: 1 << 20,
        min_block: 1,
        preferred_block: 4096,
        max_request: 65536,
        read_only: false,
        can_trim: true,
        fast_zero: true,
        description: String::new(),
    };
    let (request_max, payload_max) = (65536, 1 << 20);
    Session { export: 0, info, request_max, payload_max, structured: true, block_status: true }
}

struct Open(bool);

impl Gate for Open {
    fn admit(&mut self, _: &Request, _: bool) -> bool {
        self.0
    }
    fn buffer(&mut self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }
}

fn request(command: Command, offset: u64, len: u32) -> Request {
    Request { flags: CommandFlags::empty(), command, cookie: 7, offset, len }
}

/// Feeds the input in pieces, with `direct` into the payload buffer; returns the results as text.
fn talk(input: &[u8], piece: usize, direct: bool) -> Vec<String> {
    let (mut live, mut held, mut out) = (Transmission::new(session()), Vec::new(), Vec::new());
    for mut part in input.chunks(piece) {
        if direct && let Some(room) = live.payload_room() {
            let n = room.len().min(part.len());
            room[..n].copy_from_slice(&part[..n]);
            live.filled(n);
            part = &part[n..];
        }
        held.extend_from_slice(part);
        let mut rest = &held[..];
        loop {
            match live.next(&mut rest, &mut Open(true)) {
                Ok(Incoming::More) => break,
                Ok(Incoming::Request(r)) => out.push(format!("{:?} {}", r.command, r.len)),
                Ok(Incoming::Write(_, data)) => out.push(format!("data {data:?}")),
                Ok(Incoming::WriteBuf(_, buf)) => out.push(format!("data {:?}", &buf[..])),
                Ok(Incoming::Reject(r, e)) => out.push(format!("no {:?} {e}", r.command)),
                Ok(Incoming::Disconnect) => out.push("bye".into()),
                Ok(Incoming::Blocked) => panic!("the gate is open"),
                Err(reason) => {
                    out.push(format!("{reason:?}"));
                    return out;
                }
            }
        }
        held = rest.to_vec();
    }
    out
}

#[test]
fn any_cut_gives_the_same_requests() {
    let mut input = Vec::new();
    put_request(&mut input, &request(Command::Read, 0, 512));
    put_request(&mut input, &request(Command::Write, 5, 3));
    input.extend_from_slice(&[1, 2, 3]);
    put_request(&mut input, &request(Command::Write, 1 << 20, 40));
    input.extend_from_slice(&[9; 40]);
    put_request(&mut input, &request(Command::Write, 0, 0));
    put_request(&mut input, &request(Command::Unknown(77), 0, 9));
    put_request(&mut input, &request(Command::Flush, 0, 0));
    put_request(&mut input, &request(Command::Disconnect, 0, 0));
    input.extend_from_slice(b"ignored");
    let want = [
        "Read 512",
        "data [1, 2, 3]",
        "no Write 28",
        "data []",
        "no Unknown(77) 22",
        "Flush 0",
        "bye",
    ];
    for piece in 1..=input.len() {
        assert_eq!(talk(&input, piece, false), want, "pieces of {piece}");
        assert_eq!(talk(&input, piece, true), want, "pieces of {piece}, direct");
    }
}

#[test]
fn gate_closed_consumes_nothing() {
    let mut input = Vec::new();
    put_request(&mut input, &request(Command::Write, 0, 3));
    input.extend_from_slice(&[1, 2, 3]);
    put_request(&mut input, &request(Command::Trim, 0, u32::MAX));
    let (mut live, mut rest) = (Transmission::new(session()), &input[..]);
    for _ in 0..3 {
        let got = live.next(&mut rest, &mut Open(false));
        assert!(matches!(got, Ok(Incoming::Blocked)));
        assert_eq!(rest.len(), input.len());
    }
    assert!(matches!(live.next(&mut rest, &mut Open(true)), Ok(Incoming::Write(_, [1, 2, 3]))));
    assert!(matches!(live.next(&mut rest, &mut Open(false)), Ok(Incoming::Blocked)));
    assert!(matches!(live.next(&mut rest, &mut Open(true)), Ok(Incoming::Reject(_, 22))));
}

#[test]
fn invalid_requests_are_refused() {
    use Command as C;
    use CommandFlags as F;
    let all = session();
    let mut plain = session();
    (plain.structured, plain.block_status) = (false, false);
    (plain.info.fast_zero, plain.info.can_trim) = (false, false);
    let mut ro = session();
    ro.info.read_only = true;
    let mut coarse = session();
    coarse.info.min_block = 512;
    let size = 1 << 20;
    let cases: Vec<(&Session, C, F, u64, u32, u32)> = vec![
        (&all, C::Read, F::empty(), 0, 65536, 0),
        (&all, C::Read, F::empty(), 0, 65537, 22),
        (&all, C::Write, F::FUA, size - 1, 1, 0),
        (&all, C::Read, F::empty(), size, 1, 22),
        (&all, C::Read, F::empty(), size, 0, 0),
        (&all, C::Write, F::empty(), size, 1, 28),
        (&all, C::WriteZeroes, F::NO_HOLE | F::FUA, 1, size as u32, 28),
        (&all, C::Trim, F::empty(), u64::MAX, 2, 22),
        (&all, C::Read, F::empty(), u64::MAX, u32::MAX, 22),
        (&all, C::Read, F::DF, 0, 1, 0),
        (&plain, C::Read, F::DF, 0, 1, 22),
        (&all, C::WriteZeroes, F::FAST_ZERO, 0, 1, 0),
        (&plain, C::WriteZeroes, F::FAST_ZERO, 0, 1, 22),
        (&plain, C::Trim, F::empty(), 0, 1, 22),
        (&all, C::BlockStatus, F::REQ_ONE, 0, 1, 0),
        (&all, C::BlockStatus, F::empty(), 0, 0, 22),
        (&plain, C::BlockStatus, F::empty(), 0, 1, 22),
        (&all, C::Cache, F::empty(), 0, size as u32, 0),
        (&all, C::Flush, F::NO_HOLE, 0, 0, 22),
        (&all, C::Read, F::from_bits_retain(0x8000), 0, 1, 22),
        (&all, C::Write, F::all(), 0, 1, 22),
        (&ro, C::Write, F::empty(), 0, 1, 1),
        (&ro, C::Trim, F::empty(), 0, 1, 1),
        (&ro, C::WriteZeroes, F::empty(), 0, 1, 1),
        (&ro, C::Read, F::empty(), 0, 1, 0),
        (&ro, C::Flush, F::empty(), 0, 0, 0),
        (&coarse, C::Read, F::empty(), 512, 1024, 0),
        (&coarse, C::Read, F::empty(), 513, 1024, 22),
        (&coarse, C::Write, F::empty(), 512, 1, 22),
    ];
    for (session, command, flags, offset, len, want) in cases {
        let request = Request { flags, command, cookie: 0, offset, len };
        assert_eq!(check(session, &request).err().unwrap_or(0), want, "{request:?}");
    }
}

#[test]
fn write_beyond_limits_ends_session() {
    let mut input = Vec::new();
    put_request(&mut input, &request(Command::Write, 0, 65537));
    input.extend_from_slice(&vec![0; 65537]);
    put_request(&mut input, &request(Command::Write, 0, u32::MAX));
    assert_eq!(talk(&input, 4096, true), ["no Write 22", "WriteTooLong"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_streams_never_panic(
        requests in proptest::collection::vec(
            (0u16..10, 0u16..64, any::<u64>(), 0u32..200), 0..20),
        tail in proptest::collection::vec(any::<u8>(), 0..64),
        piece in 1usize..100,
        direct in any::<bool>(),
    ) {
        let mut input = Vec::new();
        for (code, flags, offset, len) in requests {
            put_request(&mut input, &Request {
                flags: CommandFlags::from_bits_retain(flags),
                command: [Command::Read, Command::Write, Command::Disconnect, Command::Flush,
                    Command::Trim, Command::Cache, Command::WriteZeroes, Command::BlockStatus,
                    Command::Unknown(8), Command::Unknown(900)][usize::from(code)],
                cookie: offset, offset: offset >> (offset % 64), len,
            });
            if code == 1 {
                input.resize(input.len() + len as usize, 3);
            }
        }
        input.extend_from_slice(&tail);
        prop_assert_eq!(talk(&input, piece, direct), talk(&input, input.len().max(1), false));
    }
}
