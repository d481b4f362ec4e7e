//! `forebay create`: makes a volume.

use super::args::CreateArgs;
use crate::failure::{Failure, Outcome, status};
use crate::output;
use forebay::{CreateVolume, Volume};
use forebay_base::ErrorKind;
use forebay_base::units::{GIB, KIB, format_size};

/// Runs the command.
pub fn create(args: &CreateArgs) -> Outcome {
    let power = |name: &str, value: u64, least: u64, most: u64| {
        if value.is_power_of_two() && (least..=most).contains(&value) {
            return Ok(u32::try_from(value).expect("checked to be 1 GiB at most"));
        }
        let (least, most) = (format_size(least), format_size(most));
        Err(Failure::usage(format!("{name} {value}: a power of two from {least} to {most}")))
    };
    let block_size = power("--block-size", args.block_size, 512, 4 * KIB)?;
    let segment_size = match args.segment_size {
        Some(size) => Some(power("--segment-size", size, 64 * KIB, GIB)?),
        None => None,
    };
    let checksums = args.checksum == "crc32c";
    let mut options = CreateVolume::default().block_size(block_size).checksums(checksums);
    (options.size, options.segment_size) = (args.size, segment_size);
    (options.force, options.keep_blocks) = (args.force, args.keep_blocks);
    match Volume::create(&args.volume, &options) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::Exists => {
            let failure = Failure { status: status::FAILED, ..Failure::from(e) };
            return Err(failure.hint("`--force` makes a volume there; what is there is lost"));
        }
        Err(e) => return Err(e.into()),
    }
    let cache = super::at::cache()?;
    let opening = forebay::VolumeOptions::default().read_only(true);
    let info = cache.open_volume(&args.volume, &opening)?.info()?;
    output::line(format!(
        "{}: a volume of {}, {} segments of {}, blocks of {}, {}",
        args.volume.display(),
        format_size(info.end_bytes),
        info.segments,
        format_size(info.segment_bytes.into()),
        format_size(info.block_bytes.into()),
        if info.sums { "checksums CRC-32C" } else { "no checksums" },
    ));
    Ok(())
}
