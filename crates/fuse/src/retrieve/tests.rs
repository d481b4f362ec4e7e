//! Tests of the comparison, with a socket in place of the kernel.
//!
//! No locks.

use super::*;
use forebay_base::task::block_on;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::time::Duration;

const PAGE: usize = PAGE_BYTES as usize;

/// A fake kernel that has some pages of a file and answers `RETRIEVE` until the device is closed.
fn answer_all(retriever: &Retriever, kernel: &OwnedFd, pages: &[Option<Vec<u8>>]) -> usize {
    let mut asked = 0;
    let mut message = [0; 64];
    loop {
        let len = rustix::io::read(kernel, &mut message).unwrap();
        if len == 0 {
            return asked;
        }
        asked += 1;
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        assert_eq!((len, message[4]), (48, 5), "RETRIEVE");
        let (number, node, offset) = (word(16), word(24), word(32));
        let size = (word(40) & 0xffff_ffff) as usize;
        assert_eq!(node, 7);
        let mut data = Vec::new();
        while data.len() < size {
            let at = offset as usize + data.len();
            let Some(Some(page)) = pages.get(at / PAGE) else { break };
            let part = at % PAGE..PAGE.min(at % PAGE + size - data.len());
            data.extend_from_slice(&page[part]);
        }
        retriever.answered(number, offset, &data);
    }
}

/// Compares `ours`, which begins at `offset`, with the kernel's pages. Returns the parts that
/// differ, and the number of requests to the kernel.
fn compared(pages: &[Option<Vec<u8>>], offset: u64, ours: &[u8]) -> (Vec<Range<u64>>, usize) {
    let (a, kernel) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (device, retriever) = (Arc::new(Device::new(a)), Retriever::default());
    retriever.attach(&device);
    std::thread::scope(|scope| {
        let kernels = scope.spawn(|| answer_all(&retriever, &kernel, pages));
        let differing = block_on(retriever.differing(7, offset, ours));
        assert!(lock(&retriever.table).calls.is_empty());
        drop(device);
        (differing, kernels.join().unwrap())
    })
}

fn same(pages: usize) -> (Vec<Option<Vec<u8>>>, Vec<u8>) {
    let ours: Vec<u8> = (0..pages * PAGE).map(|n| (n / 7) as u8).collect();
    (ours.chunks(PAGE).map(|page| Some(page.to_vec())).collect(), ours)
}

/// ret.R1: differing pages are found, also after absent pages, and for reads of parts of pages.
#[test]
fn pages_that_differ_are_found() {
    let (mut kernels, ours) = same(200);
    assert_eq!(compared(&kernels, 0, &ours), (vec![], 4), "one question for each 256 KiB");
    for stored in [0, 3, 4, 150, 199] {
        kernels[stored].as_mut().unwrap()[100] ^= 1;
    }
    let page = PAGE_BYTES;
    let wanted = [0..page, 3 * page..5 * page, 150 * page..151 * page, 199 * page..200 * page];
    assert_eq!(compared(&kernels, 0, &ours).0, wanted);
    for absent in [1, 2, 5, 149, 198] {
        kernels[absent] = None;
    }
    assert_eq!(compared(&kernels, 0, &ours).0, wanted, "some are absent");
    // A read of a part of the page finds the stored byte only if its range includes it.
    let part = |from: usize, to: usize| compared(&kernels, from as u64, &ours[from..to]).0;
    let (at, page) = (150 * PAGE, 151 * PAGE);
    let is_range = |found: Vec<Range<u64>>, from: usize, to: usize| match &found[..] {
        [only] => *only == (from as u64..to as u64),
        _ => false,
    };
    assert!(is_range(part(at + 100, at + 101), at + 100, at + 101));
    assert_eq!(part(at + 101, page), []);
    assert!(is_range(part(at + 50, page + 10), at + 50, page));
    let nothing = vec![None; 200];
    assert_eq!(compared(&nothing, 0, &ours).0, []);
}

/// ret.R3: a call ends when the connection ends without an answer.
#[test]
fn call_ends_with_the_connection() {
    let (a, _kernel) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (device, retriever) = (Arc::new(Device::new(a)), Retriever::default());
    retriever.attach(&device);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| block_on(retriever.differing(7, 0, &[0; 4096])));
        while lock(&retriever.table).calls.is_empty() {
            assert!(!call.is_finished());
            std::thread::sleep(Duration::from_millis(1));
        }
        retriever.close();
        assert_eq!(call.join().unwrap(), []);
    });
    assert_eq!(block_on(retriever.differing(7, 0, &[0; 4096])), []);
}
