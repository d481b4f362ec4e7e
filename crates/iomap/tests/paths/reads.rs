//! What a read asks the device for.

use crate::lab::{Lab, NONE};

const BLOCK: u64 = 4096;

/// A fill that left the last block out was never noticed: the next look found the block missing, and read it
/// on its own.
#[test]
fn missing_blocks_of_a_read_are_asked_for_at_once() {
    for (first, count) in [(40, 3), (15, 2), (1023, 1)] {
        let lab = Lab::plain(BLOCK as u32);
        lab.run(async {
            let (at, len) = (first * BLOCK, count * BLOCK);
            let got = lab.read(at, len as usize, NONE).await;
            assert!(got.iter().zip(at..).all(|(&byte, at)| byte == Lab::old(at)));
            assert_eq!(lab.reads(), [(at, len)]);
        });
    }
}
