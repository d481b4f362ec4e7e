//! Requirements of a mount: the program, root, `/dev/fuse` and a recent kernel.

use crate::rivals::server::forebay_binary;
use forebay_base::{Error, ErrorKind, Result};
use std::path::Path;

/// First kernel with the protocol that a mount needs.
const LINUX_MIN: (u32, u32) = (6, 6);

/// Major and minor version of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Checks the requirements; the error names the first one that is missing.
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
