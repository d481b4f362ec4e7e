//! Checks what a container does not permit, and says what to use instead.

use super::finding::Finding;
use crate::machine;
use std::io::ErrorKind;
use std::path::Path;

/// First Linux with mounts.
const KERNEL_MIN: (u32, u32) = (6, 6);
/// Number of the capability that mount(2) requires.
const CAP_SYS_ADMIN: u32 = 21;

/// The kind of container that this process is in, as far as it can tell.
pub fn kind() -> Option<String> {
    // podman, systemd-nspawn and LXC set this variable for the processes that they start.
    let named = std::env::var("container").ok().filter(|name| !name.is_empty());
    let file = |path: &str, name: &str| Path::new(path).exists().then(|| name.to_string());
    let pods = || std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "kubernetes".to_string());
    let docker = || file("/.dockerenv", "docker");
    named.or_else(pods).or_else(docker).or_else(|| file("/run/.containerenv", "podman"))
}

/// Reports whether this process is in a container.
pub fn container() -> Finding {
    match kind() {
        None => Finding::ok("container", "none that could be told"),
        Some(kind) => Finding::ok(
            "container",
            format!(
                "{kind}: what it takes away is named below; NBD exports and the library need nothing of it"
            ),
        ),
    }
}

/// Whether CAP_SYS_ADMIN is in a capability set of this process: the effective set (`CapEff:`), or
/// the bounding set (`CapBnd:`), which also limits programs that it starts.
fn may_mount(set: &str) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(set));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    bits >> CAP_SYS_ADMIN & 1 == 1
}

/// Whether fusermount3 is installed and can get CAP_SYS_ADMIN.
fn helper() -> bool {
    if !may_mount("CapBnd:") {
        return false;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists())
}

/// Whether there can be mounts.
pub fn fuse() -> Finding {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let inside = kind().is_some();
    match device {
        Ok(_) if machine::linux_version() < KERNEL_MIN => Finding::note(
            "fuse",
            "/dev/fuse is there, but mounts need Linux 6.6",
            "`forebay export` and the library work",
        ),
        Ok(_) if may_mount("CapEff:") => {
            Finding::ok("fuse", "/dev/fuse can be opened: `forebay mount`")
        }
        Ok(_) if helper() => Finding::ok("fuse", "/dev/fuse, by fusermount3: `forebay mount`"),
        Ok(_) => Finding::note(
            "fuse",
            "/dev/fuse is there, but mounting is not allowed",
            match inside {
                true => {
                    "start the container with --cap-add SYS_ADMIN (where AppArmor is, also \
                     --security-opt apparmor=unconfined); or serve by `forebay export`"
                }
                false => "install fuse3 for fusermount3, or be root",
            },
        ),
        Err(e) => Finding::note("fuse", format!("/dev/fuse: {e}"), without(e.kind(), inside)),
    }
}

/// Advice if /dev/fuse cannot be opened.
fn without(e: ErrorKind, inside: bool) -> &'static str {
    match (e, inside) {
        (_, true) => {
            "start the container with --device /dev/fuse --cap-add SYS_ADMIN for mounts \
             (where AppArmor is, also --security-opt apparmor=unconfined); \
             without, `forebay export` serves files of volumes over NBD, and the library opens them"
        }
        (ErrorKind::NotFound, false) => {
            "modprobe fuse; without, `forebay export` and the library work"
        }
        _ => "be root, or in the group that owns it; `forebay export` and the library need neither",
    }
}

/// Reports whether block devices are possible, and mounts for which umount(8) waits.
pub fn loops() -> Finding {
    let what = "loop";
    match std::fs::File::options().read(true).write(true).open("/dev/loop-control") {
        Ok(_) => Finding::ok(what, "/dev/loop-control: `forebay attach`, umount(8) reaches mounts"),
        Err(e) => Finding::note(
            what,
            format!("/dev/loop-control: {e}"),
            "no `forebay attach`, and umount(8) does not wait for mounts: `forebay umount` does; \
             an NBD client makes block devices of `forebay export`",
        ),
    }
}

/// Advice if the kernel's io_uring cannot be used.
pub fn io_uring() -> &'static str {
    let disabled = machine::read_line("/proc/sys/kernel/io_uring_disabled");
    match (disabled.as_deref(), kind().is_some()) {
        (Some("1"), _) => "sysctl kernel.io_uring_disabled=0, or run in kernel.io_uring_group",
        (Some("2"), _) => "sysctl kernel.io_uring_disabled=0 allows io_uring",
        (_, true) => {
            "the container's seccomp profile blocks it: threads serve everything too; \
             --security-opt seccomp=FILE with io_uring_setup, io_uring_enter, io_uring_register allowed"
        }
        (_, false) => {
            "threads serve everything too; the kernel has no io_uring, or something blocks it"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_having_none_has_its_advice() {
        for (kind, inside, word) in [
            (ErrorKind::NotFound, true, "--device /dev/fuse"),
            (ErrorKind::PermissionDenied, true, "--device /dev/fuse"),
            (ErrorKind::NotFound, false, "modprobe"),
            (ErrorKind::PermissionDenied, false, "root"),
        ] {
            let advice = without(kind, inside);
            assert!(advice.contains(word) && advice.contains("forebay export"), "{advice}");
        }
    }
}
