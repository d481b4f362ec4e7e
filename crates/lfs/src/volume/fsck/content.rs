//! Reads every block of every file, and compares it with its checksum.
//!
//! Locks: the state lock, taken briefly. No lock is held across a wait.

use super::names::Totals;
use super::report::{FindingKind, FsckProgress, FsckReport};
use super::scan::{Name, Scan};
use crate::device::slots::read_at;
use crate::map::overlay::{Piece, Where};
use crate::volume::Inner;
use forebay_base::checksum::crc32c;
use forebay_base::{Error, ErrorKind, Result};

/// Checks every block of every file, as recovery finds it.
pub(super) async fn check_content(
    volume: &Inner,
    totals: &Totals,
    report: &mut FsckReport,
    progress: &mut (dyn FnMut(FsckProgress) + Send),
) -> Result<()> {
    let mut scan = Scan::all(volume);
    while let Some(item) = scan.next().await? {
        if let Name::Inode(ino, inode) = item
            && inode.data_id != 0
        {
            check_file(volume, (ino, inode.data_id), totals, report, progress).await;
        }
    }
    Ok(())
}

/// Collects adjacent bad blocks of a file in one finding.
struct BadBlocks<'r> {
    report: &'r mut FsckReport,
    ino: u64,
    data_id: u64,
    unit: u64,
    /// The first one, their number, and the error of the first one.
    last: Option<(u64, u64, Error)>,
}

impl BadBlocks<'_> {
    fn add(&mut self, block: u64, blocks: u64, error: Error) {
        if let Some((first, count, before)) = &mut self.last
            && *first + *count == block
            && before.kind() == error.kind()
        {
            *count += blocks;
            return;
        }
        self.end();
        self.last = Some((block, blocks, error));
    }

    fn end(&mut self) {
        let Some((first, count, error)) = self.last.take() else { return };
        let data_id = self.data_id;
        let text = match count {
            1 => format!("block {first} of data {data_id}: {error}"),
            _ => format!("{count} blocks from block {first} of data {data_id} on: {error}"),
        };
        let finding = self.report.add(FindingKind::Content, text);
        finding.ino = Some(self.ino);
        (finding.offset, finding.bytes) = (Some(first * self.unit), Some(count * self.unit));
    }
}

async fn check_file(
    volume: &Inner,
    (ino, data_id): (u64, u64),
    totals: &Totals,
    report: &mut FsckReport,
    progress: &mut (dyn FnMut(FsckProgress) + Send),
) {
    let (mut block, unit) = (0, volume.layout.block_bytes());
    let mut bad = BadBlocks { report, ino, data_id, unit, last: None };
    while block < volume.layout.geometry.max_blocks() {
        let piece = match volume.piece_at(data_id, block).await {
            Ok((piece, _pin)) => piece,
            Err(error) => {
                let finding = bad.report.add(FindingKind::Tree, error);
                (finding.ino, finding.offset) = (Some(ino), Some(block * unit));
                break;
            }
        };
        check_piece(volume, &piece, block, &mut bad).await;
        if piece.at != Where::Hole {
            bad.report.content_bytes += piece.blocks * unit;
            let (done_bytes, total_bytes) = (bad.report.content_bytes, totals.stored_bytes);
            progress(FsckProgress { done_bytes, total_bytes });
        }
        block = block.saturating_add(piece.blocks);
    }
    bad.end();
}

/// Finds the blocks of a piece that do not match their checksums. `first`: its first block.
async fn check_piece(volume: &Inner, piece: &Piece, first: u64, bad: &mut BadBlocks<'_>) {
    let (Where::Run(place), layout) = (piece.at, &volume.layout) else { return };
    let unit = layout.block_bytes();
    let offset = layout.device_offset(place);
    if place.segment >= layout.segments {
        let error = Error::new(ErrorKind::Corrupt, "read", "behind the last segment");
        bad.add(first, piece.blocks, error.with_range(offset, piece.blocks * unit));
        return;
    }
    let all = read_at(&volume.device, offset, (piece.blocks * unit) as usize).await;
    for n in 0..piece.blocks {
        let one;
        let bytes = match &all {
            Ok(all) => &all[(n * unit) as usize..((n + 1) * unit) as usize],
            Err(_) => match read_at(&volume.device, offset + n * unit, unit as usize).await {
                Ok(bytes) => {
                    one = bytes;
                    &one[..]
                }
                Err(error) => {
                    bad.add(first + n, 1, error.with_range(offset + n * unit, unit));
                    continue;
                }
            },
        };
        if piece.own_sums().get(n as usize).is_some_and(|sum| *sum != crc32c(bytes)) {
            let error = Error::new(ErrorKind::Corrupt, "read", "the checksum does not match");
            bad.add(first + n, 1, error.with_range(offset + n * unit, unit));
        }
    }
}
