//! Every message, truncated at every byte, and random bytes.

use super::*;
use proptest::prelude::*;

fn request(command: Command) -> Request {
    let flags = CommandFlags::FUA;
    Request { flags, command, cookie: 0x0102_0304_0506_0708, offset: 1 << 40, len: 4096 }
}

#[test]
fn request_header_round_trips_and_waits_at_every_cut() {
    for code in 0..=u16::from(u8::MAX) {
        let sent = request(Command::from_code(code));
        assert_eq!(sent.command.code(), code);
        let mut bytes = Vec::new();
        put_request(&mut bytes, &sent);
        assert_eq!(bytes.len(), REQUEST_LEN);
        for cut in 0..REQUEST_LEN {
            assert_eq!(parse_request(&bytes[..cut]), Ok(None));
        }
        assert_eq!(parse_request(&bytes), Ok(Some(sent)));
        bytes.push(7);
        assert_eq!(parse_request(&bytes), Ok(Some(sent)));
    }
}

#[test]
fn wrong_magic_is_seen_at_the_first_wrong_byte() {
    for at in 0..4 {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes[at] ^= 1;
        assert_eq!(parse_request(&bytes[..=at]), Err(BadMagic));
    }
    for at in 0..8 {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes[at] ^= 1;
        assert_eq!(parse_option(&bytes[..=at], 10), Err(OptionError::BadMagic));
    }
}

#[test]
fn options_wait_at_every_cut_and_respect_the_limit() {
    let mut bytes = Vec::new();
    put_option(&mut bytes, opt::GO, &[9; 100]);
    for cut in 0..bytes.len() {
        assert_eq!(parse_option(&bytes[..cut], 100), Ok(None));
    }
    let option = ClientOption { code: opt::GO, data: &[9; 100] };
    assert_eq!(parse_option(&bytes, 100), Ok(Some(option)));
    assert_eq!(parse_option(&bytes[..16], 99), Err(OptionError::TooLong(100)));
}

#[test]
fn queries_are_exact() {
    let mut info = 4u32.to_be_bytes().to_vec();
    info.extend_from_slice(b"disk\0\x02\0\x03\0\x01");
    let parsed = parse_info_query(&info).unwrap();
    assert_eq!((parsed.name, parsed.wanted), (b"disk".as_slice(), vec![3, 1]));
    let mut meta = 1u32.to_be_bytes().to_vec();
    meta.extend_from_slice(b"x\0\0\0\x02\0\0\0\x05base:\0\0\0\0");
    let parsed = parse_meta_query(&meta).unwrap();
    assert_eq!((parsed.name, parsed.queries), (b"x".as_slice(), vec![b"base:".as_slice(), b""]));
    for cut in 0..info.len() {
        assert_eq!(parse_info_query(&info[..cut]), None);
    }
    for cut in 0..meta.len() {
        assert_eq!(parse_meta_query(&meta[..cut]), None);
    }
    info.push(0);
    meta.push(0);
    assert_eq!((parse_info_query(&info), parse_meta_query(&meta)), (None, None));
    // A false count must not cause an allocation.
    let lie = [0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0];
    assert_eq!(parse_meta_query(&lie), None);
}

#[test]
fn replies_have_the_layout_of_the_protocol() {
    assert_eq!(
        simple_reply(1, errno::EIO),
        [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1]
    );
    let read = request(Command::Read);
    let (head, len) = read_header(&read, false);
    assert_eq!(head[..len], simple_reply(read.cookie, 0));
    let (head, len) = read_header(&read, true);
    assert_eq!((len, &head[..4]), (28, &[0x66, 0x8e, 0x33, 0xef][..]));
    assert_eq!(head[16..20], 4104u32.to_be_bytes());
    assert_eq!(head[20..], read.offset.to_be_bytes());
    let mut out = Vec::new();
    put_status(&mut out, &read, true, errno::EINVAL);
    assert_eq!(out[4..8], [0, 1, 0x80, 1]);
    assert_eq!(out.len(), 20 + u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize);
    out.clear();
    put_status(&mut out, &request(Command::Write), true, 0);
    assert_eq!(out.len(), SIMPLE_REPLY_LEN);
    out.clear();
    put_block_status(&mut out, 1, &[(4096, 3), (512, 0)]);
    assert_eq!(out[16..28], [0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 16, 0]);
}

#[test]
fn errors_map_to_numbers_of_the_protocol() {
    use forebay_base::ErrorKind as K;
    let number = |kind| error_number(&Error::new(kind, "test", ""));
    assert_eq!(number(K::ReadOnly), errno::EPERM);
    assert_eq!(number(K::Permission), errno::EPERM);
    assert_eq!(number(K::NoSpace), errno::ENOSPC);
    assert_eq!(number(K::NoMemory), errno::ENOMEM);
    assert_eq!(number(K::Unsupported), errno::ENOTSUP);
    assert_eq!(number(K::Shutdown), errno::ESHUTDOWN);
    assert_eq!(number(K::OutOfRange), errno::EINVAL);
    for kind in [K::Corrupt, K::Io, K::ChangedBelow, K::WouldBlock, K::Busy] {
        assert_eq!(number(kind), errno::EIO);
    }
    let system = |n| Error::from_io("test", std::io::Error::from_raw_os_error(n));
    assert_eq!(error_number(&system(27)), errno::ENOSPC);
    assert_eq!(error_number(&system(121)), errno::EIO);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_request(&bytes);
        let _ = parse_option(&bytes, 64);
        let _ = parse_info_query(&bytes);
        let _ = parse_meta_query(&bytes);
    }

    #[test]
    fn any_request_round_trips(
        flags: u16, code: u16, cookie: u64, offset: u64, len: u32
    ) {
        let flags = CommandFlags::from_bits_retain(flags);
        let sent = Request { flags, command: Command::from_code(code), cookie, offset, len };
        let mut bytes = Vec::new();
        put_request(&mut bytes, &sent);
        prop_assert_eq!(parse_request(&bytes), Ok(Some(sent)));
        let (head, n) = read_header(&sent, true);
        prop_assert_eq!(n, head.len());
    }
}
