//! Threads marked as writing data out (PR_SET_IO_FLUSHER): those that run completions, with either
//! engine, and those with a ring of their own.

use crate::common::{engines, path, pattern};
use forebay_base::buf::DataRef;
use forebay_base::io_flusher;
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, FileDevice, FileOptions};
use std::sync::mpsc;

/// The story: no code marked the threads that carry write-out out, so the kernel could make them
/// wait for write-out.
#[test]
fn completions_and_rings_run_on_marked_threads() {
    let may = io_flusher::probe();
    let check = |marked: bool, what: &str| match &may {
        Ok(()) => assert!(marked, "{what}"),
        Err(why) => assert!(!marked, "{what}: {why}"),
    };
    for (aio, engine) in engines() {
        let path = path(&format!("io-flusher-{aio}"));
        let options = FileOptions { create_size: Some(1 << 20), ..FileOptions::default() };
        let device = FileDevice::open(&path, &options, &engine).unwrap();
        for flags in [BioFlags::BACKGROUND, BioFlags::SYNC] {
            let (tx, rx) = mpsc::channel();
            let here = std::thread::current().id();
            let end = Box::new(move |done: forebay_block::Completion| {
                let elsewhere = std::thread::current().id() != here;
                let marked = rustix::process::is_io_flusher() == Ok(true);
                tx.send((done.result, elsewhere, marked)).unwrap();
            });
            let bio = Bio::new(BioOp::Write, 0, 4096, DataRef::Buf(pattern(4096, 7)), end);
            device.submit(bio.with_flags(flags));
            let (result, elsewhere, marked) = rx.recv().unwrap();
            result.unwrap();
            assert!(elsewhere, "{aio}: a thread of the engine completes it");
            check(marked, &format!("{aio} {flags:?}: a completion"));
        }
        let marked = std::thread::scope(|scope| {
            let ring = scope.spawn(|| {
                let queue = device.attach_thread();
                (queue.is_some(), rustix::process::is_io_flusher() == Ok(true))
            });
            ring.join().unwrap()
        });
        if let (true, marked) = marked {
            check(marked, &format!("{aio}: a thread with a ring"));
        }
        std::fs::remove_file(&path).unwrap();
    }
}
