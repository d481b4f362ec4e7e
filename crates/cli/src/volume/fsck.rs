//! `forebay fsck`: checks a volume that no process has open, and writes nothing.
//!
//! K1 Each finding is printed, with path and offset if it has any. A bad copy of something with
//! another, good copy is printed, too, but is no damage.

use super::args::FsckArgs;
use super::at::show;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::progress::Progress;
use forebay::{Finding, FindingKind, FsckReport, Volume};
use forebay_base::units::format_size;
use serde_json::{Value, json};
use std::path::Path;

/// Runs the command.
pub fn fsck(args: &FsckArgs) -> Outcome {
    let mut progress = Progress::new();
    let report = Volume::fsck(&args.volume, &mut |now| {
        progress.say(|| {
            let done = format_size(now.done_bytes);
            // The total is that of the checkpoint's inodes, so it lacks content that the log has
            // added.
            match now.total_bytes >= now.done_bytes {
                true => format!("checked {done} of {}", format_size(now.total_bytes)),
                false => format!("checked {done}"),
            }
        });
    });
    drop(progress);
    let report = report?;
    for finding in &report.findings {
        let note = match finding.kind {
            FindingKind::Slot | FindingKind::Copy => " (another copy stands for it)",
            FindingKind::Underfull => " (nothing is missing)",
            _ => "",
        };
        eprintln!("forebay: {}: {}{note}", place(&args.volume, finding), finding.text);
    }
    let damage = report.findings.iter().filter(|finding| !finding.kind.is_harmless()).count();
    if args.json {
        let all = object(&args.volume, &report);
        output::json(&all);
    } else {
        output::line(format!(
            "checked {} inodes, {} nodes of the trees, {} of content: {damage} problems, {} bad copies",
            report.inodes,
            report.nodes,
            format_size(report.content_bytes),
            report.findings.len() - damage,
        ));
    }
    if report.is_complete() {
        return Ok(());
    }
    let text = format!("{}: {damage} problems; they were named above", args.volume.display());
    Err(Failure::damaged(text)
        .hint("`forebay recover VOLUME --to DIR` copies out what can be read"))
}

/// What a finding is about.
fn place(image: &Path, finding: &Finding) -> String {
    let mut text = match (&finding.path, finding.ino) {
        (Some(path), _) => show(image, path),
        (None, Some(ino)) => format!("{}: inode {ino}", image.display()),
        (None, None) => image.display().to_string(),
    };
    if let Some(offset) = finding.offset {
        let bytes = finding.bytes.map_or(String::new(), |bytes| format!("{bytes} bytes "));
        text.push_str(&format!(": {bytes}at {offset}"));
    }
    text
}

fn object(image: &Path, report: &FsckReport) -> Value {
    let finding = |f: &Finding| {
        json!({
            "kind": format!("{:?}", f.kind).to_lowercase(),
            "harmless": f.kind.is_harmless(),
            "inode": f.ino,
            "path": f.path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned()),
            "offset": f.offset,
            "len": f.bytes,
            "said": f.figures.map(|(said, _)| said),
            "found": f.figures.map(|(_, found)| found),
            "text": f.text,
        })
    };
    json!({
        "volume": image.display().to_string(),
        "clean": report.is_clean(),
        "complete": report.is_complete(),
        "closed": report.was_closed,
        "inodes": report.inodes,
        "nodes": report.nodes,
        "content_bytes": report.content_bytes,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}
