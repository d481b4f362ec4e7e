//! Tests of sessions over a real socket: answers are those of direct calls, and hostile clients are
//! refused.

use super::client::RemoteFs;
use super::proto::{Answer, Call, FRAME_MAX, Told};
use super::server::{self, HANDLES_MAX};
use forebay_base::task::block_on;
use forebay_base::world::split_mix;
use forebay_base::{ErrorKind, IoFlags};
use forebay_testkit::fs_check::suite::{Subject, cases};
use forebay_testkit::fs_check::{Config, Times, compare};
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_vfs::{FileKind, FileSystem, Ino, ManualClock, Name, NewInode, OpenFlags, Privileges};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

fn session(below: MemFs) -> RemoteFs {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // The server ends when the other end is closed.
    std::thread::spawn(move || server::serve(&below, &theirs, &theirs));
    RemoteFs::new(ours)
}

fn memory(clock: &Arc<ManualClock>) -> MemFs {
    MemFs::new(MemOptions { clock: clock.clone(), ..MemOptions::default() })
}

/// Every rule of the contract holds across the socket.
#[test]
fn session_keeps_file_system_rules() {
    for case in cases() {
        let clock = Arc::new(ManualClock::default());
        let fs = Arc::new(session(memory(&clock)));
        let subject = Subject { fs, clock: Some(clock) };
        (case.run)(&subject).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    }
}

/// Random operations have the same outcome with and without a session.
#[test]
fn session_answers_as_direct_calls() {
    for seed in 1..4 {
        let clock = Arc::new(ManualClock::default());
        let (near, far) = (memory(&clock), session(memory(&clock)));
        let times = Times::Exact;
        let config = Config { times, clock: Some(clock.clone()), ..Config::default() };
        let report = compare(&far, &near, &config, seed, 1500);
        let report = report.unwrap_or_else(|mismatch| panic!("{mismatch}"));
        assert!(report.done > 400, "{report:?}");
    }
}

/// Reads and writes longer than `DATA_MAX` are split into pieces.
#[test]
fn long_transfers_go_in_pieces() {
    let fs = session(MemFs::default());
    let new = NewInode::of(FileKind::File, 0o600);
    let (name, both) = (Name::new(b"a").unwrap(), OpenFlags::READ | OpenFlags::WRITE);
    let (_, file) = block_on(fs.create(Ino::ROOT, name, &new, both)).unwrap();
    let bytes: Vec<u8> = (0..3_500_000_u32).map(|i| (i % 253) as u8).collect();
    let wrote = file.write_slice(5, &bytes, IoFlags::empty(), Privileges::Drop).unwrap();
    assert_eq!((wrote.offset, wrote.len), (5, bytes.len()));
    let mut back = vec![0; bytes.len() + 10];
    assert_eq!(file.read_slice(5, &mut back, IoFlags::empty()).unwrap(), bytes.len());
    assert!(back[..bytes.len()] == bytes);
}

fn told(stream: &mut UnixStream) -> Option<Answer> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(Answer::decode(&frame).expect("the server speaks the protocol"))
}

/// remote.R1, remote.R2: whatever a client sends, the session ends with an answer that says why,
/// and the server does not panic.
#[test]
fn r1_r2_hostile_clients_are_told_and_cut_off() {
    let below = Arc::new(MemFs::default());
    let mut rng = 7;
    for turn in 0..300 {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let fs = below.clone();
        let server = std::thread::spawn(move || server::serve(&*fs, &theirs, &theirs));
        let length = match turn % 3 {
            0 => u32::MAX - split_mix(&mut rng) as u32 % 1000,
            1 => FRAME_MAX as u32 + 1,
            _ => 1 + split_mix(&mut rng) as u32 % 200,
        };
        let frame: Vec<u8> = (0..length.min(200)).map(|_| split_mix(&mut rng) as u8).collect();
        ours.write_all(&length.to_le_bytes()).unwrap();
        // The server may have ended the session already.
        let _sent = ours.write_all(&frame);
        let _done = ours.shutdown(std::net::Shutdown::Write);
        let mut refused = None;
        while let Some(answer) = told(&mut ours) {
            refused = Some(answer);
        }
        match refused {
            Some(Answer::Failed(Told(error))) if turn % 3 < 2 => {
                assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
            }
            Some(_) if turn % 3 == 2 => {}
            other => panic!("turn {turn}: {other:?}"),
        }
        server.join().expect("it does not panic").ok();
    }
    assert_eq!(block_on(below.readdir(Ino::ROOT, forebay_vfs::Cookie::START, 9)).unwrap(), []);
}

/// remote.R1, remote.R3: a session has a limited number of open files, which are closed when it
/// ends, however it ends.
#[test]
fn r3_session_end_closes_its_files() {
    let below = Arc::new(MemFs::default());
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let fs = below.clone();
    let server = std::thread::spawn(move || server::serve(&*fs, &theirs, &theirs));
    let mut ask = |call: Call| {
        let frame = call.encode();
        ours.write_all(&(frame.len() as u32).to_le_bytes()).unwrap();
        ours.write_all(&frame).unwrap();
        told(&mut ours).expect("an answer")
    };
    let new = NewInode::of(FileKind::File, 0o600);
    let Answer::Opened(_, Some(attr)) =
        ask(Call::Create(Ino::ROOT, b"a"[..].into(), new, OpenFlags::READ))
    else {
        panic!("made")
    };
    for _ in 1..HANDLES_MAX {
        assert!(matches!(ask(Call::Open(attr.ino, OpenFlags::READ)), Answer::Opened(..)));
    }
    let Answer::Failed(Told(error)) = ask(Call::Open(attr.ino, OpenFlags::READ)) else {
        panic!("one more than there may be")
    };
    assert!(error.to_string().contains("256 files"), "{error}");
    assert_eq!(ask(Call::Unlink(Ino::ROOT, b"a"[..].into())), Answer::Done());
    assert!(block_on(below.getattr(attr.ino)).is_ok(), "it is open still");
    // The session ends in the middle of a frame.
    ours.write_all(&[9, 0]).unwrap();
    drop(ours);
    assert!(server.join().unwrap().is_ok());
    assert_eq!(block_on(below.getattr(attr.ino)).unwrap_err().kind(), ErrorKind::Stale);
}
