//! `forebay grow`: makes a volume larger, while no process has it open.

use super::args::GrowArgs;
use crate::failure::Outcome;
use crate::output;
use forebay::Volume;
use forebay_base::units::format_size;
use serde_json::json;

/// Runs the command.
pub fn grow(args: &GrowArgs) -> Outcome {
    let (before, after) = Volume::grow(&args.volume, args.size)?;
    if args.json {
        let all = json!({
            "path": args.volume.display().to_string(),
            "size_before": before.end_bytes,
            "size": after.end_bytes,
            "segments_before": before.segments,
            "segments": after.segments,
        });
        output::json(&all);
        return Ok(());
    }
    output::line(format!(
        "{}: {} and {} segments before, {} and {} segments now",
        args.volume.display(),
        format_size(before.end_bytes),
        before.segments,
        format_size(after.end_bytes),
        after.segments,
    ));
    Ok(())
}
