//! `forebay policy`: what openings of a file on a mount do with the cache, unless they say
//! otherwise.
//!
//! L1 An inode that cannot have a policy is not touched: symbolic links are not followed below a
//! directory, and pipes, sockets and devices are passed over. That holds while other processes
//! change the tree.

use crate::failure::{Failure, Outcome, status};
use crate::{mounts, output};
use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_fuse::POLICY_ATTRIBUTE;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, XattrFlags, fstat, openat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The word for a file without the attribute, which has the mode of the mount.
const DEFAULT: &str = "default";

/// `forebay policy`
#[derive(Args, Debug)]
pub struct PolicyArgs {
    /// A file or directory on a mount; what is made in a directory gets its policy
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The new policy; without it the present one is shown
    #[arg(value_name = "POLICY",
          value_parser = PossibleValuesParser::new(["cached", "uncached", "direct", DEFAULT]))]
    pub policy: Option<String>,
    /// Everything below a directory as well
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// Runs the command.
pub fn policy(args: &PolicyArgs) -> Outcome {
    mounts::at(&args.path)?;
    let mut failed = None;
    each(&args.path, args.recursive, &mut |held, path, shown_alone| {
        let done = match &args.policy {
            Some(policy) => set(held, policy),
            None => get(held).map(|policy| match shown_alone {
                true => output::line(policy),
                false => output::line(format!("{policy:<9} {}", path.display())),
            }),
        };
        if let Err(e) = done {
            // The other files are processed nevertheless.
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

/// Calls `f` for a path and, if `below`, for everything below it (L1). Each inode is held open
/// meanwhile: a process that may write in the tree could replace a checked inode by a symbolic
/// link.
fn each(path: &Path, below: bool, f: &mut dyn FnMut(&OwnedFd, &Path, bool)) -> Outcome {
    let failed = |e: Errno| Failure::io(path.display().to_string(), &e.into());
    let held = open(CWD, path, OFlags::PATH).map_err(failed)?;
    match FileType::from_raw_mode(fstat(&held).map_err(failed)?.st_mode) {
        FileType::RegularFile => f(&held, path, !below),
        FileType::Directory => {
            f(&held, path, !below);
            if below {
                inside(&held, path, f)?;
            }
        }
        _ => {
            let text = format!("{}: neither a file nor a directory", path.display());
            return Err(Failure::new(text));
        }
    }
    Ok(())
}

/// What is below a directory.
fn inside(dir: &OwnedFd, path: &Path, f: &mut dyn FnMut(&OwnedFd, &Path, bool)) -> Outcome {
    let failed = |e: Errno| Failure::io(path.display().to_string(), &e.into());
    let listed = open(dir, Path::new("."), OFlags::DIRECTORY).map_err(failed)?;
    let mut entries = Vec::new();
    for entry in Dir::new(listed).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            entries.push(OsStr::from_bytes(name).to_os_string());
        }
    }
    for name in entries {
        let child = path.join(&name);
        let failed = |e: Errno| Failure::io(child.display().to_string(), &e.into());
        let held = match open(dir, Path::new(&name), OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(held) => held,
            // Removed meanwhile.
            Err(Errno::NOENT) => continue,
            Err(e) => return Err(failed(e)),
        };
        let kind = FileType::from_raw_mode(fstat(&held).map_err(failed)?.st_mode);
        if kind.is_file() || kind.is_dir() {
            f(&held, &child, false);
        }
        if kind.is_dir() {
            inside(&held, &child, f)?;
        }
    }
    Ok(())
}

fn open(dir: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(dir, path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// A path that denotes exactly the inode held open.
fn name_of(held: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", held.as_raw_fd())
}

fn get(held: &OwnedFd) -> Result<String, Errno> {
    let mut value = [0; 64];
    match rustix::fs::getxattr(name_of(held), POLICY_ATTRIBUTE, &mut value[..]) {
        Ok(len) => Ok(String::from_utf8_lossy(&value[..len]).into_owned()),
        Err(Errno::NODATA) => Ok(DEFAULT.to_string()),
        Err(e) => Err(e),
    }
}

fn set(held: &OwnedFd, policy: &str) -> Result<(), Errno> {
    let name = name_of(held);
    if policy != DEFAULT {
        let value = policy.as_bytes();
        return rustix::fs::setxattr(name, POLICY_ATTRIBUTE, value, XattrFlags::empty());
    }
    match rustix::fs::removexattr(name, POLICY_ATTRIBUTE) {
        Err(Errno::NODATA) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: another process replaced a listed file or directory by a symbolic link. The
    /// policy of the link's target was changed, outside of the tree.
    #[test]
    fn path_replaced_by_symlink_is_not_followed() {
        let root = std::env::temp_dir().join(format!("forebay-policy-{}", std::process::id()));
        for dir in ["tree/a/deep", "tree/b", "outside"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        std::fs::write(root.join("outside/file"), b"x").unwrap();
        std::os::unix::fs::symlink("../outside", root.join("tree/link")).unwrap();
        let mut seen = Vec::new();
        each(&root.join("tree"), true, &mut |held, path, alone| {
            assert!(!alone);
            seen.push(path.strip_prefix(&root).unwrap().to_path_buf());
            if path != root.join("tree") && !root.join("was-a").exists() {
                // The directory in progress, and the next one.
                for name in ["a", "b"] {
                    let dir = root.join("tree").join(name);
                    std::fs::rename(&dir, root.join(format!("was-{name}"))).unwrap();
                    std::os::unix::fs::symlink("../outside", dir).unwrap();
                }
            }
            assert!(
                !std::fs::canonicalize(name_of(held)).unwrap().starts_with(root.join("outside"))
            );
        })
        .unwrap();
        let expected: &[&str] = match seen[1] == Path::new("tree/a") {
            true => &["tree", "tree/a", "tree/a/deep"],
            false => &["tree", "tree/b"],
        };
        assert_eq!(seen, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
