//! `forebay recover`: copies what can be read out of a damaged volume.
//!
//! The volume is not written to. What cannot be read is named, with its path and offset, and left as a
//! hole; the rest is copied.

use super::at::{Access, open};
use super::copy::{Copier, How};
use super::cp::find;
use super::host::Host;
use super::inside::Inside;
use super::report::Report;
use crate::args::{RecoverArgs, Which};
use crate::failure::{Failure, Outcome, status};
use crate::output;
use forebay_base::task::block_on;
use std::path::Path;

/// Runs the command.
pub fn recover(args: &RecoverArgs) -> Outcome {
    prepare(&args.to)?;
    let volume = open(&args.volume, Access::Read, &Which::default())?;
    if let Some(pid) = volume.pid {
        let text = format!("{}: open in process {pid}", args.volume.display());
        let failure = Failure { message: text, hint: None, status: status::BUSY };
        return Err(failure.hint("`forebay cp -r` copies out of a volume in use"));
    }
    let mut report = Report::new("recovered");
    let unit = block_on(volume.fs.statfs()).map_or(4096, |figures| figures.block_size);
    let how = How { recursive: true, salvage: Some(unit), same: false };
    let root = find(&volume, b"/")?;
    let (source, target) = (Inside(&volume), Host::new());
    Copier::new(&source, &target, how).copy_into(root, args.to.clone(), &mut report);
    if args.json {
        let mut all = report.json();
        all["volume"] = volume.about.clone();
        all["to"] = args.to.display().to_string().into();
        output::line(serde_json::to_string_pretty(&all).expect("a JSON value prints"));
    } else {
        output::line(report.line());
    }
    let name = args.volume.display();
    match report.problems {
        0 => Ok(()),
        n => Err(Failure::damaged(format!("{name}: {n} problems; they were named above"))),
    }
}

/// An empty folder.
fn prepare(to: &Path) -> Outcome {
    let failed = |e: &std::io::Error| Failure::io(to.display().to_string(), e);
    match std::fs::create_dir(to) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(|e| failed(&e)),
    }
    let mut entries = std::fs::read_dir(to).map_err(|e| failed(&e))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => {
            let text = format!("{}: not empty", to.display());
            Err(Failure::new(text).hint("what is recovered goes into a folder of its own"))
        }
    }
}
