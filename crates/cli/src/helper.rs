//! This program under the names by which mount(8), umount(8), mkfs(8) and fsck(8) call the helper
//! of a type: `mount.forebay VOLUME DIR [-sfnv] [-o WORDS]` (`-f`: everything but the mount),
//! `umount.fuse.forebay DIR [-flnrv]`, `mkfs.forebay VOLUME`, `fsck.forebay [-anpyC] VOLUME`.
//!
//! Invariant: J1 under any other name the command line is not changed.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The command line as `forebay` understands it.
pub fn command_line() -> Vec<OsString> {
    translate(std::env::args_os().collect())
}

fn translate(args: Vec<OsString>) -> Vec<OsString> {
    let name = args.first().map(Path::new).and_then(Path::file_name);
    let command = match name.and_then(OsStr::to_str) {
        Some("mount.forebay") => "mount",
        Some("umount.fuse.forebay") => "umount",
        Some("mkfs.forebay") => "create",
        Some("fsck.forebay") => "fsck",
        _ => return args,
    };
    let mut words: Vec<OsString> = vec!["forebay".into(), command.into()];
    let mut rest = args.into_iter().skip(1);
    while let Some(word) = rest.next() {
        match word.to_str() {
            // Options about questions, repairs and progress: this fsck neither asks nor repairs.
            Some("-a" | "-n" | "-p" | "-y") if command == "fsck" => {}
            Some(word) if command == "fsck" && word.starts_with("-C") => {}
            _ if matches!(command, "create" | "fsck") => words.push(word),
            // The file system type, which is known.
            Some("-t") => drop(rest.next()),
            Some("-o") => words.extend([word].into_iter().chain(rest.next())),
            Some("-l") if command == "umount" => words.push(word),
            Some("-f") if command == "mount" => words.push("--fake".into()),
            // Sloppy, force (umount), no table of mounts, read-only instead: without effect here.
            Some("-s" | "-f" | "-n" | "-r") => {}
            _ => words.push(word),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> String {
        let words = translate(line.split(' ').map(OsString::from).collect());
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn j1_helpers_are_known_by_their_names() {
        let helper = of("/sbin/mount.forebay /v /m -s -n -v -o rw,cache_size=1G -t forebay");
        assert_eq!(helper, "forebay mount /v /m -v -o rw,cache_size=1G");
        assert_eq!(of("mount.forebay /v /m -f"), "forebay mount /v /m --fake");
        assert_eq!(of("umount.fuse.forebay /m -n -l -r"), "forebay umount /m -l");
        assert_eq!(of("/sbin/mkfs.forebay /v --size 1G -t"), "forebay create /v --size 1G -t");
        assert_eq!(of("fsck.forebay -a -C3 /v"), "forebay fsck /v");
        for line in ["forebay mount -f -o rw a b", "/usr/bin/forebay stat -n", "x"] {
            assert_eq!(of(line), line);
        }
    }
}
