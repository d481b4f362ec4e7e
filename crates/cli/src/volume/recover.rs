//! `forebay recover`: copies what can be read out of a damaged volume.
//!
//! The volume is not written to. Unreadable ranges are reported, with path and offset, and left as
//! holes; the rest is copied. If the newest checkpoint cannot be read, an older one is used, with
//! the log behind it.
//!
//! Invariant: Y1 each cause of missing data is reported and counted as a problem: the use of an
//! older checkpoint, a log that ends at a damaged place.

use super::args::RecoverArgs;
use super::at::{Access, OpenVolume, open, open_older};
use super::copy::{Copier, How};
use super::cp::find;
use super::host::Host;
use super::inside::Inside;
use super::report::Report;
use crate::control::which::Which;
use crate::failure::{Failure, Outcome, status};
use crate::output;
use forebay_base::Error;
use forebay_base::task::block_on;
use forebay_vfs::{Cookie, Ino};
use std::path::Path;

/// Most checkpoints older than the newest that slots of the superblock may name.
const CHECKPOINTS: u32 = 7;

/// Runs the command.
pub fn recover(args: &RecoverArgs) -> Outcome {
    prepare(&args.to)?;
    let mut report = Report::new("recovered");
    let volume = open_somehow(args, &mut report)?;
    if let Some(pid) = volume.pid {
        let text = format!("{}: open in process {pid}", args.volume.display());
        let failure = Failure { message: text, hint: None, status: status::BUSY };
        return Err(failure.hint("`forebay cp -r` copies out of a volume in use"));
    }
    if let Some(damage) = volume.damage() {
        report.problem(&args.volume.display().to_string(), None, log_ends(&damage));
    }
    let unit = block_on(volume.fs.statfs()).map_or(4096, |figures| figures.block_size);
    let how = How { recursive: true, salvage: Some(unit), same: false };
    let root = find(&volume, b"/")?;
    let (source, target) = (Inside(&volume), Host::new());
    Copier::new(&source, &target, how).copy_into(root, args.to.clone(), &mut report);
    if args.json {
        let mut all = report.json();
        all["volume"] = volume.about.clone();
        all["to"] = args.to.display().to_string().into();
        output::json(&all);
    } else {
        output::line(report.line());
    }
    let name = args.volume.display();
    match report.problems {
        0 => Ok(()),
        n => Err(Failure::damaged(format!("{name}: {n} problems; they were named above"))),
    }
}

fn log_ends(damage: &Error) -> String {
    format!("its log is read up to a damaged place, what was synced behind it is missing: {damage}")
}

/// Opens the volume by its newest checkpoint whose root directory can be read (Y1).
fn open_somehow(args: &RecoverArgs, report: &mut Report) -> Outcome<OpenVolume> {
    let mut opened = open(&args.volume, Access::Read, &Which::default());
    for passed_over in 1..=CHECKPOINTS {
        let why = match &opened {
            // Damage, or a read error. A failure of another cause occurs with older checkpoints,
            // too.
            Err(failure) if matches!(failure.status, status::DAMAGED | status::FAILED) => {
                failure.message.clone()
            }
            Err(_) => return opened,
            Ok(volume) if volume.pid.is_some() => return opened,
            Ok(volume) => match block_on(volume.fs.readdir(Ino::ROOT, Cookie::START, 1)) {
                Ok(_) => return opened,
                Err(error) => error.to_string(),
            },
        };
        match open_older(&args.volume, passed_over) {
            Ok(older) => {
                let text = format!("an older checkpoint is read: {why}");
                report.problem(&args.volume.display().to_string(), None, text);
                drop(opened);
                opened = Ok(older);
            }
            Err(error) => {
                log::info!("{} checkpoints passed over: {}", passed_over, error.message);
            }
        }
    }
    opened
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
