//! `forebay ls`: lists what is in a volume.

use super::args::LsArgs;
use super::at::{Access, Named, OpenVolume, open};
use crate::failure::Outcome;
use crate::output;
use forebay_base::Result;
use forebay_base::task::block_on;
use forebay_vfs::path::{Last, resolve};
use forebay_vfs::{Attr, Cookie, FileKind, FileSystem, Ino, Name};
use serde_json::{Value, json};

/// Entries of a listing at a time.
const ENTRIES_STEP: usize = 1024;

/// Runs the command.
pub fn ls(args: &LsArgs) -> Outcome {
    let named = Named::or_root(&args.path);
    let volume = open(&named.image, Access::Read, &args.which)?;
    let found = block_on(resolve(&*volume.fs, Ino::ROOT, &named.path, Last::NoFollow));
    let attr = found.map_err(|e| e.with_path(named.show()))?;
    let list = List { args, volume: &volume };
    if attr.kind != FileKind::Directory {
        return Ok(list.entry(&named.path, &named.path, &attr)?);
    }
    let mut directories = vec![(named.path.clone(), attr.ino)];
    let mut first = true;
    while let Some((path, ino)) = directories.pop() {
        if args.recursive && !args.json {
            let gap = if first { "" } else { "\n" };
            output::line(format!("{gap}{}:", volume.show(&path)));
        }
        first = false;
        let below = list.directory(&path, ino).map_err(|e| e.with_path(volume.show(&path)))?;
        if args.recursive {
            directories.extend(below.into_iter().rev());
        }
    }
    Ok(())
}

struct List<'a> {
    args: &'a LsArgs,
    volume: &'a OpenVolume,
}

impl List<'_> {
    fn fs(&self) -> &dyn FileSystem {
        &*self.volume.fs
    }

    /// Prints the entries of a directory, sorted by name; returns the directories among them.
    fn directory(&self, path: &[u8], dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
        let mut after = Cookie::START;
        let mut names = Vec::new();
        loop {
            let more = block_on(self.fs().readdir(dir, after, ENTRIES_STEP))?;
            let Some(last) = more.last() else { break };
            after = last.cookie;
            names.extend(more.into_iter().map(|entry| entry.name));
        }
        names.sort_unstable();
        let mut below = Vec::new();
        for name in names {
            let attr = block_on(self.fs().lookup(dir, Name::new(&name)?))?;
            let whole = [path.strip_suffix(b"/").unwrap_or(path), b"/", &name].concat();
            self.entry(&name, &whole, &attr)?;
            if attr.kind == FileKind::Directory {
                below.push((whole, attr.ino));
            }
        }
        Ok(below)
    }

    fn entry(&self, name: &[u8], path: &[u8], attr: &Attr) -> Result<()> {
        let target = match attr.kind {
            FileKind::Symlink => Some(block_on(self.fs().readlink(attr.ino))?),
            _ => None,
        };
        if self.args.json {
            let mut object = attributes(attr);
            object["path"] = String::from_utf8_lossy(path).into();
            object["target"] = target.map(|t| String::from_utf8_lossy(&t).into_owned()).into();
            output::line(object.to_string());
            return Ok(());
        }
        // Unprintable names are escaped, so that each line is one entry.
        let shown = show(name);
        if !self.args.long {
            output::line(shown);
            return Ok(());
        }
        let arrow = target.map(|t| format!(" -> {}", show(&t))).unwrap_or_default();
        output::line(format!(
            "{}{} {:>4} {:>6} {:>6} {:>13} {} {shown}{arrow}",
            letter(attr.kind),
            permissions(attr.perm),
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.size,
            date(attr.mtime.sec),
        ));
        Ok(())
    }
}

/// Bytes as text; escaped if they are not printable.
pub fn show(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_string(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// What `stat` and `ls --json` say of an inode.
pub fn attributes(attr: &Attr) -> Value {
    let time = |time: forebay_vfs::Timestamp| format!("{}.{:09}", time.sec, time.nsec);
    json!({
        "ino": attr.ino.0,
        "kind": kind(attr.kind),
        "mode": format!("{:04o}", attr.perm),
        "nlink": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "rdev": attr.rdev,
        "size": attr.size,
        "allocated": attr.allocated_bytes,
        "atime": time(attr.atime),
        "mtime": time(attr.mtime),
        "ctime": time(attr.ctime),
        "btime": time(attr.btime),
    })
}

/// A word for it.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "link",
        FileKind::Fifo => "pipe",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

fn letter(kind: FileKind) -> char {
    match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    }
}

/// The nine letters of `ls -l`, such as `rwxr-sr-t`.
fn permissions(perm: u16) -> String {
    let mut out = String::with_capacity(9);
    for (shift, special, letters) in [(6, 0o4000, "sS"), (3, 0o2000, "sS"), (0, 0o1000, "tT")] {
        let bits = perm >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        let execute = bits & 1 != 0;
        out.push(match (perm & special != 0, execute) {
            (false, true) => 'x',
            (false, false) => '-',
            (true, true) => letters.as_bytes()[0] as char,
            (true, false) => letters.as_bytes()[1] as char,
        });
    }
    out
}

/// Date and time of day in UTC, of seconds since 1970.
pub fn date(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1 March of the year 0; an era has 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day_of_month:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_dates() {
        assert_eq!(permissions(0o755), "rwxr-xr-x");
        assert_eq!(permissions(0o6711), "rws--s--x");
        assert_eq!(permissions(0o7644), "rwSr-Sr-T");
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(date(951_868_800), "2000-03-01 00:00:00");
        assert_eq!(date(-1), "1969-12-31 23:59:59");
        assert_eq!(date(4_102_444_800), "2100-01-01 00:00:00");
        assert_eq!(show(b"a\nb"), "a\\nb");
        assert_eq!(show("\u{e4}".as_bytes()), "\u{e4}");
    }
}
