//! Mounts of Forebay in this process's mount table (/proc/self/mountinfo).
//!
//! M1 No function here asks the server of a mount unless its comment says so: a server that does
//! not answer blocks no caller. M2 A mount of the table may be gone, or covered by another mount,
//! when it is used.

use crate::failure::{Failure, Outcome};
use forebay_fuse::CONTROL_ATTRIBUTE;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Types that our mounts have.
const TYPES: [&[u8]; 2] = [b"fuseblk.forebay", b"fuse.forebay"];
/// Longest path of a control socket; the system takes 108 bytes.
const CONTROL_MAX: usize = 256;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub dir: PathBuf,
    /// Number of its device, major and minor.
    pub number: (u32, u32),
    /// It shows the root of the file system; it is not a bind mount of a part.
    pub whole: bool,
}

impl Mount {
    /// Asks the mount for its control socket.
    pub fn control(&self) -> Outcome<PathBuf> {
        control_of(&self.dir)
    }
}

/// Asks the mount on a directory for the control socket of its process.
pub fn control_of(dir: &Path) -> Outcome<PathBuf> {
    let shown = dir.display();
    let mut value = [0; CONTROL_MAX];
    match rustix::fs::getxattr(dir, CONTROL_ATTRIBUTE, &mut value[..]) {
        Ok(len) => Ok(PathBuf::from(OsString::from_vec(value[..len].to_vec()))),
        Err(Errno::NODATA) => {
            Err(Failure::not_found(format!("{shown}: its process has no control socket")))
        }
        Err(e) => Err(Failure::io(shown.to_string(), &e.into())),
    }
}

/// Asks all mounts at once; those that do not answer in time are left out (M1).
pub fn controls(time: Duration) -> Vec<PathBuf> {
    let (sender, answers) = channel();
    for mount in all() {
        let sender = sender.clone();
        let ask = move || {
            // Fails if the caller does not wait any more.
            let _late = sender.send(mount.control());
        };
        // If no thread can be started, this mount is left out.
        let _thread = std::thread::Builder::new().name("forebay-ask".into()).spawn(ask);
    }
    drop(sender);
    let end = Instant::now() + time;
    let next = || answers.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
    std::iter::from_fn(next).filter_map(Result::ok).collect()
}

/// Device number of the file system at `path`, without asking the process that serves it.
pub fn number_of(path: &Path) -> Outcome<(u32, u32)> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
    let stat = stat.map_err(|e| Failure::io(path.display().to_string(), &e.into()))?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// A process that sees a mount with this number somewhere.
pub fn seen_by(number: (u32, u32)) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        table.split(|b| *b == b'\n').filter_map(line).any(|mount| mount.number == number)
    })
}

/// All mounts of Forebay, in the order of the table.
pub fn all() -> Vec<Mount> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|b| *b == b'\n').filter_map(line).collect()
}

/// The mount that `path` is on. Not found: it is on no mount of Forebay, or does not exist.
pub fn at(path: &Path) -> Outcome<Mount> {
    let (shown, number) = (path.display(), number_of(path)?);
    let found = all().into_iter().filter(|mount| mount.number == number);
    found.max_by_key(|mount| mount.whole).ok_or_else(|| {
        let text = format!("{shown}: not on a mount of Forebay");
        Failure::not_found(text).hint("`findmnt -t fuse.forebay,fuseblk.forebay` lists them")
    })
}

/// A line of the table: id, parent, device, root, directory, options, more of them, `-`, type,
/// source, options.
fn line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|b| *b == b' ');
    let number = std::str::from_utf8(words.nth(2)?).ok()?.split_once(':')?;
    let (root, dir) = (words.next()?, words.next()?);
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    TYPES.contains(&kind).then_some(())?;
    Some(Mount {
        dir: PathBuf::from(OsString::from_vec(unescaped(dir))),
        number: (number.0.parse().ok()?, number.1.parse().ok()?),
        // A bind mount of a directory below the root lacks the attributes of the root.
        whole: root == b"/",
    })
}

/// Blank, tab, line feed and backslash are three octal digits behind a backslash.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut at = 0;
    while let Some(byte) = word.get(at) {
        let digits = word.get(at + 1..at + 4).and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()).filter(|_| *byte == b'\\') {
            Some(escaped) => {
                out.push(escaped);
                at += 4;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table() {
        let found = |text: &str| line(text.as_bytes());
        let ours = found(
            "44 27 7:3 / /srv/a\\040b\\134 rw,relatime shared:9 - fuseblk.forebay /dev/loop3 rw",
        );
        assert_eq!(ours, Some(Mount { dir: "/srv/a b\\".into(), number: (7, 3), whole: true }));
        let plain = found("44 27 0:52 / /m rw - fuse.forebay /v rw,user_id=0").unwrap();
        assert_eq!((plain.dir.as_path(), plain.number), (Path::new("/m"), (0, 52)));
        assert!(!found("44 27 0:52 /below /m rw - fuse.forebay /v rw").unwrap().whole);
        for other in ["", "44 27 0:52 / /m rw - ext4 /dev/sda rw", "44 27 0:52 / /m rw shared:1"] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
