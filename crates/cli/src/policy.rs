//! `forebay policy`: what openings of a file on a mount do with the cache, unless they say otherwise.
//!
//! L1 What cannot have a policy is left alone: symbolic links are not followed below a directory, and pipes,
//!    sockets and devices are passed over.

use crate::failure::{Failure, Outcome, status};
use crate::{mounts, output};
use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_fuse::POLICY_ATTRIBUTE;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// What a file without the attribute has.
const DEFAULT: &str = "cached";

/// `forebay policy`
#[derive(Args, Debug)]
pub struct PolicyArgs {
    /// A file or directory on a mount; what is made in a directory gets its policy
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The new policy; without it the present one is shown
    #[arg(value_name = "POLICY",
          value_parser = PossibleValuesParser::new(["cached", "uncached", "direct"]))]
    pub policy: Option<String>,
    /// Everything below a directory as well
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// Runs the command.
pub fn policy(args: &PolicyArgs) -> Outcome {
    mounts::at(&args.path)?;
    let mut failed = None;
    each(&args.path, args.recursive, &mut |path, shown_alone| {
        let done = match &args.policy {
            Some(policy) => set(path, policy),
            None => get(path).map(|policy| match shown_alone {
                true => output::line(policy),
                false => output::line(format!("{policy:<9} {}", path.display())),
            }),
        };
        if let Err(e) = done {
            // The rest is done all the same.
            let failure = Failure::io(path.display().to_string(), &e.into());
            if let Some(earlier) = failed.replace(failure) {
                earlier.report();
            }
        }
    })?;
    match failed {
        None => Ok(()),
        Some(failure) => Err(Failure { status: status::FAILED, ..failure }),
    }
}

/// Calls `f` with a path, and with what is below it if that is asked for.
fn each(path: &Path, below: bool, f: &mut dyn FnMut(&Path, bool)) -> Outcome {
    let meta = std::fs::metadata(path);
    let meta = meta.map_err(|e| Failure::io(path.display().to_string(), &e))?;
    if !meta.is_dir() && !meta.is_file() {
        let text = format!("{}: neither a file nor a directory", path.display());
        return Err(Failure::new(text));
    }
    f(path, !below);
    let mut dirs = Vec::new();
    dirs.extend((below && meta.is_dir()).then(|| path.to_path_buf()));
    while let Some(dir) = dirs.pop() {
        let listed = |e| Failure::io(dir.display().to_string(), &e);
        for entry in std::fs::read_dir(&dir).map_err(listed)? {
            let entry = entry.map_err(listed)?;
            let kind = entry.file_type().map_err(listed)?;
            if kind.is_dir() || kind.is_file() {
                f(&entry.path(), false);
            }
            if kind.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    Ok(())
}

fn get(path: &Path) -> Result<String, Errno> {
    let mut value = [0; 64];
    match rustix::fs::getxattr(path, POLICY_ATTRIBUTE, &mut value[..]) {
        Ok(len) => Ok(String::from_utf8_lossy(&value[..len]).into_owned()),
        Err(Errno::NODATA) => Ok(DEFAULT.to_string()),
        Err(e) => Err(e),
    }
}

fn set(path: &Path, policy: &str) -> Result<(), Errno> {
    if policy != DEFAULT {
        let value = policy.as_bytes();
        return rustix::fs::setxattr(path, POLICY_ATTRIBUTE, value, XattrFlags::empty());
    }
    match rustix::fs::removexattr(path, POLICY_ATTRIBUTE) {
        Err(Errno::NODATA) => Ok(()),
        done => done,
    }
}
