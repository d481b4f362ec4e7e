//! What is published of a size beside a truncate.

use crate::{BLOCK, Racing, cache};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::schedules::{random, runs};
use forebay_base::sync::thread;
use forebay_base::task::block_on;
use forebay_iomap::{MapOps, MappedFile, Source};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::sync::Arc;

fn write(file: &MappedFile, offset: u64, bytes: usize) {
    let (handle, mut data) = (file.open_handle(), AlignedBuf::copy_of(&vec![7; bytes]));
    let source = Source::Owned(&mut data);
    block_on(file.write(&handle, offset, source, IoFlags::empty())).unwrap();
}

/// The story: an fsync had looked how much of the size it could publish, and was about to; the file was cut
/// meanwhile, and then published with the size that it had before: as long as ever, with zeros at its end,
/// and the log said so, too. The end of a write-out below the cut did the same.
#[test]
fn e9_a_size_is_not_published_across_a_truncate() {
    for to in [0, BLOCK] {
        let run = move || {
            let device = Racing::new(vec![0; 32 * BLOCK as usize], u32::MAX);
            let options = RemapOptions { grows: true, ..RemapOptions::default() };
            let map = Remap::with_options(Arc::new(device), BLOCK as u32, options);
            let file = MappedFile::new(&cache(), map.clone(), BLOCK as u32, 0, false).unwrap();
            write(&file, 0, 3 * BLOCK as usize);
            block_on(file.sync(&file.open_handle())).unwrap();
            // Something to write out, below both cuts.
            write(&file, 0, 10);
            let other = file.clone();
            let sync = thread::spawn(move || block_on(other.sync(&other.open_handle())));
            block_on(file.set_len(to)).unwrap();
            let published = || map.published_size().unwrap();
            assert!(published() <= to, "{} published, cut to {to}", published());
            write(&file, to, 100);
            sync.join().unwrap().unwrap();
            assert!(published() <= to + 100, "{} published, {to} + 100 written", published());
        };
        random(runs() / 4, run);
    }
}
