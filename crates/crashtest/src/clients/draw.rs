//! How the runs of each class of several clients are drawn.
//!
//! No locks.

use crate::workload::draw::some_without_sums;
use crate::workload::{Kind, Setup};
use forebay_base::ErrorKind;
use forebay_base::world::split_mix;
use forebay_block::BioOp;
use forebay_sim::{Fault, FaultRule};

/// A volume that two or three clients use.
pub fn draw_several(seed: u64) -> (Kind, Setup) {
    let mut rng = seed ^ 0xc1;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let overlay_bytes = [32 << 20, 256 << 10, 64 << 10][pick(3) as usize];
    let op = [BioOp::Read, BioOp::Write, BioOp::Write, BioOp::Flush][pick(4) as usize];
    let rule = FaultRule::on(op, Fault::Fail(ErrorKind::Io)).nth(3 + pick(20));
    let rule = rule.times(1 + pick(12)).one_in(1 + pick(2));
    let failing = if pick(4) == 0 { vec![rule] } else { Vec::new() };
    let plain = some_without_sums(Setup::with_content(seed));
    (Kind::Clients, Setup { near_end: false, discard: false, overlay_bytes, failing, ..plain })
}

/// Several clients of a volume or of a raw image, some of whose operations are dropped.
pub fn draw_dropped(seed: u64) -> (Kind, Setup) {
    let (_, plain) = draw_several(seed);
    if seed.is_multiple_of(2) {
        return (Kind::Dropped, plain);
    }
    let sector = if seed % 8 == 1 { 4096 } else { 512 };
    let block_bytes = plain.block_bytes.max(sector);
    (Kind::DroppedOnImage, Setup { sector, block_bytes, failing: Vec::new(), ..plain })
}

/// Several clients on a disk that never fails; in a third of the runs operations are dropped.
fn healthy(seed: u64) -> (Kind, Setup) {
    let (_, plain) = draw_several(seed);
    let kind = if seed.is_multiple_of(3) { Kind::Dropped } else { Kind::Clients };
    (kind, Setup { failing: Vec::new(), ..plain })
}

/// Stored content of the clients' files decays; in a quarter of the runs requests fail, too. No
/// content is in records: decay of the log follows other rules.
pub fn draw_decay(seed: u64) -> (Kind, Setup) {
    let (kind, plain) = healthy(seed);
    let failing = draw_several(seed).1.failing;
    (kind, Setup { rot: true, sums: true, inline_max: 0, failing, ..plain })
}

/// The host has no space for more of the image; in two of three runs it has some again later.
pub fn draw_host_full(seed: u64) -> (Kind, Setup) {
    let mut rng = seed ^ 0xf011;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let (kind, plain) = healthy(seed);
    // Few runs of clients allocate more. Earlier, with up to 96 KiB, most never filled the host.
    let host_bytes = Some(pick(24) << 10);
    let healed_at = (pick(3) > 0).then(|| 10 + pick(15) as usize);
    (kind, Setup { host_bytes, healed_at, ..plain })
}

/// Half way the volume is closed, made larger, and opened again.
pub fn draw_growing(seed: u64) -> (Kind, Setup) {
    let (kind, plain) = healthy(seed);
    let grown_bytes = Some(plain.volume_bytes + (128 << 10) * (1 + seed / 3 % 16));
    (kind, Setup { grown_bytes, ..plain })
}

/// The newest slots of the superblock decay; most of the runs make checkpoints all the time.
pub fn draw_older(seed: u64) -> (Kind, Setup) {
    let (kind, plain) = healthy(seed);
    let checkpoint_bytes = if seed % 8 < 6 { 8 << 10 } else { plain.checkpoint_bytes };
    (kind, Setup { older: true, checkpoint_bytes, ..plain })
}

/// Many kills, in half of the runs on a disk that fails. Writes in flight land while the next
/// process reads.
pub fn draw_late(seed: u64) -> (Kind, Setup) {
    let (kind, plain) = healthy(seed);
    let setup = Setup { late: true, fua: seed % 5 < 2, ..plain };
    (kind, if seed.is_multiple_of(2) { setup.failing() } else { setup })
}
