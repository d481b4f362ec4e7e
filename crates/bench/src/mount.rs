//! `mount`: a volume as programs have it, mounted, beside an empty FUSE server of as many threads, XFS on a
//! direct loop device and the host's own file system.
//!
//! Reading order: [`ground`] (who takes part), then the parts: `read`, `sync`, `content` (`random` and
//! `seq`), `names`; the behaviours through the mount: `uncached`, `dirty`, `stable`, `alloc`; `attach` and
//! `keep` (what the kernel's cache keeps); `pgbench`, a database during a backup.
//!
//! All of a part do the same calls, by the same threads, on files of the same names and sizes.
//! Cold means: mounted anew, by a process that has cached nothing.

mod alloc;
mod attach;
mod content;
mod dirty;
pub mod ground;
pub mod keep;
mod names;
mod pgbench;
mod read;
mod stable;
mod sync;
mod uncached;

use crate::harness::options::{Options, names_of};
use crate::report::model::Report;
use crate::rivals::mounted::words_of_environment;
use crate::rivals::server::forebay_binary;
use forebay_base::{Error, ErrorKind, Result};
use std::path::Path;

/// A part.
type Part = (&'static str, fn(&Options, &mut Report) -> Result<()>);

const PARTS: [Part; 12] = [
    ("read", read::run),
    ("sync", sync::run),
    ("random", content::random),
    ("seq", content::seq),
    ("names", names::run),
    ("uncached", uncached::run),
    ("dirty", dirty::run),
    ("stable", stable::run),
    ("alloc", alloc::run),
    ("attach", attach::run),
    ("kernel", keep::run),
    ("pgbench", pgbench::run),
];

/// The first kernel that speaks what a mount asks for.
const LINUX_MIN: (u32, u32) = (6, 6);

/// Major and minor version of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// What is needed to mount; the first thing that is missing is named.
pub fn prepare() -> Result<()> {
    let missing = |text: &str| Err(Error::new(ErrorKind::Unsupported, "mount", text));
    forebay_binary()?;
    if !rustix::process::geteuid().is_root() {
        return missing("root, to mount");
    }
    if !Path::new("/dev/fuse").exists() {
        return missing("/dev/fuse, to mount");
    }
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    if version(&release).is_none_or(|version| version < LINUX_MIN) {
        return missing(&format!("Linux 6.6, to mount; this is {release}"));
    }
    Ok(())
}

/// The names of the parts.
pub const PART_NAMES: [&str; PARTS.len()] = names_of(&PARTS);

/// Runs all parts, or the one that is asked for.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if let Err(e) = prepare() {
        report.left_out("mount", e);
        return Ok(report);
    }
    if let Some(words) = words_of_environment() {
        report.note(format!("mount: with -o {words}"));
    }
    for (name, part) in PARTS {
        if options.wants(name)
            && let Err(e) = part(options, &mut report)
        {
            // The other parts are worth having.
            report.left_out(&format!("mount {name}"), e);
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn releases_are_read() {
        for (text, expected) in [("6.6.0-12-amd64", Some((6, 6))), ("6.10-rc1", Some((6, 10)))] {
            assert_eq!(version(text), expected);
        }
        assert!(version("5.15.0").is_some_and(|v| v < super::LINUX_MIN));
        assert_eq!(version("what"), None);
    }
}
