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

async fn check_file(
    volume: &Inner,
    (ino, data_id): (u64, u64),
    totals: &Totals,
    report: &mut FsckReport,
    progress: &mut (dyn FnMut(FsckProgress) + Send),
) {
    let (mut block, unit) = (0, volume.layout.block_bytes());
    while block < volume.layout.geometry.max_blocks() {
        let piece = match volume.piece_at(data_id, block).await {
            Ok((piece, _pin)) => piece,
            Err(error) => {
                let finding = report.add(FindingKind::Tree, error);
                (finding.ino, finding.offset) = (Some(ino), Some(block * unit));
                break;
            }
        };
        for (bad, error) in check_piece(volume, &piece).await {
            let text = format!("block {} of data {data_id}: {error}", block + bad);
            let finding = report.add(FindingKind::Content, text);
            finding.ino = Some(ino);
            (finding.offset, finding.bytes) = (Some((block + bad) * unit), Some(unit));
        }
        if piece.at != Where::Hole {
            report.content_bytes += piece.blocks * unit;
            let (done_bytes, total_bytes) = (report.content_bytes, totals.stored_bytes);
            progress(FsckProgress { done_bytes, total_bytes });
        }
        block = block.saturating_add(piece.blocks);
    }
}

/// The blocks of a piece that do not match their checksums.
async fn check_piece(volume: &Inner, piece: &Piece) -> Vec<(u64, Error)> {
    let (Where::Run(place), layout) = (piece.at, &volume.layout) else { return Vec::new() };
    let unit = layout.block_bytes();
    let offset = layout.device_offset(place);
    let bad = |n: u64, error: &Error| (n, error.clone().with_range(offset + n * unit, unit));
    if place.segment >= layout.segments {
        let error = Error::new(ErrorKind::Corrupt, "read", "behind the last segment");
        return (0..piece.blocks).map(|n| bad(n, &error)).collect();
    }
    let mut out = Vec::new();
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
                    out.push(bad(n, &error));
                    continue;
                }
            },
        };
        if piece.own_sums().get(n as usize).is_some_and(|sum| *sum != crc32c(bytes)) {
            let error = Error::new(ErrorKind::Corrupt, "read", "the checksum does not match");
            out.push(bad(n, &error));
        }
    }
    out
}
