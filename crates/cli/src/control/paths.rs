//! Where control sockets lie: `PID.sock` in a folder that only its owner can enter.
//!
//! The folder is `$XDG_RUNTIME_DIR/forebay`, or `/run/user/UID/forebay` if that parent exists, or
//! `/tmp/forebay-UID`. A folder that another user owns, that others can enter or that is a link
//! is refused.

use crate::failure::{Failure, Outcome};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Effective user of this process.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The folder of user `uid`. `$XDG_RUNTIME_DIR` decides alone where it is set: a process that
/// sets it wants a folder of its own.
fn folder_of(uid: u32) -> PathBuf {
    if uid == own_uid() {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        if let Some(runtime) = runtime.filter(|p| p.is_absolute() && p.is_dir()) {
            return runtime.join("forebay");
        }
    }
    let run = PathBuf::from(format!("/run/user/{uid}"));
    if run.is_dir() { run.join("forebay") } else { PathBuf::from(format!("/tmp/forebay-{uid}")) }
}

/// The folder for a new socket of this process, made if it is not there.
pub fn make_folder() -> Outcome<PathBuf> {
    let folder = folder_of(own_uid());
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Failure::io(format!("make {}", folder.display()), &e)),
    }
    check_folder(&folder, own_uid())?;
    Ok(folder)
}

fn check_folder(folder: &Path, uid: u32) -> Outcome {
    let meta = std::fs::symlink_metadata(folder)
        .map_err(|e| Failure::io(format!("control folder {}", folder.display()), &e))?;
    let private = meta.is_dir() && meta.mode() & 0o077 == 0 && meta.uid() == uid;
    if private {
        return Ok(());
    }
    let text =
        format!("control folder {}: not a folder of mode 0700 of its user", folder.display());
    Err(Failure::new(text).hint("remove it, or name a socket with `--control`"))
}

/// The control sockets of user `uid`, by process id.
pub fn sockets(uid: u32) -> Vec<(u32, PathBuf)> {
    let folder = folder_of(uid);
    let mut found = Vec::new();
    if check_folder(&folder, uid).is_err() {
        return found;
    }
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(pid) = name.strip_suffix(".sock").and_then(|n| n.parse().ok()) {
            found.push((pid, entry.path()));
        }
    }
    found.sort();
    found
}

/// The user of a running process.
pub fn uid_of(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|m| m.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folder_accessible_to_other_users_is_refused() {
        let folder = std::env::temp_dir().join(format!("forebay-paths-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        assert!(check_folder(&folder, own_uid()).is_ok());
        assert!(check_folder(&folder, own_uid() + 1).is_err());
        let link = folder.join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(check_folder(&link, own_uid()).is_err());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(check_folder(&folder, own_uid()).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
