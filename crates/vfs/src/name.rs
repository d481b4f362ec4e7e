//! Names of directory entries and of extended attributes: bytes that are checked once, on
//! construction.
//!
//! Invariants: N1 a [`Name`] has 1 to 255 bytes, no `/`, no NUL, and is neither `.` nor `..`, so
//! every name in a call or in storage can be an entry. N2 an [`XattrName`] has 1 to 255 bytes, no
//! NUL, and begins with a supported namespace, followed by at least one byte.
//!
//! No locks.

use forebay_base::{Error, ErrorKind, Result};
use std::fmt;

/// Longest name of an entry, bytes.
pub const NAME_MAX: usize = 255;
/// Longest name of an extended attribute, with its namespace, bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value of an extended attribute, bytes.
pub const XATTR_SIZE_MAX: usize = 64 << 10;
/// Largest total length of the names of an inode's extended attributes, each with a NUL, bytes.
pub const XATTR_LIST_MAX: usize = 64 << 10;
/// Supported namespaces of extended attributes. `system.` (ACLs) is refused.
pub const XATTR_NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The name of a directory entry (N1): bytes in no particular encoding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks `bytes`: `NameTooLong`, `NotFound` if empty, else `InvalidInput`.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let error = |kind, why: &str| {
            let text = format!("`{}`: {why}", bytes.escape_ascii());
            Err(Error::new(kind, "check name", text))
        };
        match bytes {
            _ if bytes.len() > NAME_MAX => {
                let text = format!("{} bytes, at most {NAME_MAX}", bytes.len());
                Err(Error::new(ErrorKind::NameTooLong, "check name", text))
            }
            [] => error(ErrorKind::NotFound, "empty"),
            b"." | b".." => error(ErrorKind::InvalidInput, "stands for a directory"),
            _ if bytes.iter().any(|b| matches!(b, 0 | b'/')) => {
                error(ErrorKind::InvalidInput, "`/` or NUL in a name")
            }
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

/// The name of an extended attribute (N2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName<'a>(&'a [u8]);

impl<'a> XattrName<'a> {
    /// Checks `bytes`: `DoesNotFit` for its length, `Unsupported` for another namespace, else
    /// `InvalidInput`.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let error = |kind, why: &str| {
            let shown = &bytes[..bytes.len().min(64)];
            let text = format!("`{}`: {why}", shown.escape_ascii());
            Err(Error::new(kind, "check attribute name", text))
        };
        if bytes.is_empty() || bytes.len() > XATTR_NAME_MAX {
            return error(ErrorKind::DoesNotFit, "1 to 255 bytes");
        }
        if bytes.contains(&0) {
            return error(ErrorKind::InvalidInput, "NUL in a name");
        }
        match XATTR_NAMESPACES.iter().find(|n| bytes.starts_with(n)) {
            None => error(ErrorKind::Unsupported, "namespaces are user, trusted, security"),
            Some(namespace) if namespace.len() == bytes.len() => {
                error(ErrorKind::InvalidInput, "a namespace and no name")
            }
            Some(_) => Ok(Self(bytes)),
        }
    }

    /// The bytes, including the namespace.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for XattrName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N1, at its limits.
    #[test]
    fn n1_names_of_entries() {
        let kind = |bytes: &[u8]| Name::new(bytes).unwrap_err().kind();
        assert_eq!(kind(b""), ErrorKind::NotFound);
        for bad in [&b"."[..], b"..", b"a/b", b"/", b"a\0", b"\0"] {
            assert_eq!(kind(bad), ErrorKind::InvalidInput, "{}", bad.escape_ascii());
        }
        assert_eq!(kind(&[b'x'; 256]), ErrorKind::NameTooLong);
        assert_eq!(kind(&[b'/'; 256]), ErrorKind::NameTooLong);
        for good in [&[b'x'; 255][..], b"...", b"\xff\xfe", b" ", b".a", b"\n", b"\\"] {
            assert_eq!(Name::new(good).unwrap().as_bytes(), good);
        }
    }

    /// N2, at its limits.
    #[test]
    fn n2_names_of_attributes() {
        let kind = |bytes: &[u8]| XattrName::new(bytes).unwrap_err().kind();
        assert_eq!(kind(b""), ErrorKind::DoesNotFit);
        let mut long = b"user.".to_vec();
        long.resize(256, b'x');
        assert_eq!(kind(&long), ErrorKind::DoesNotFit);
        assert!(XattrName::new(&long[..255]).is_ok());
        assert_eq!(kind(b"user."), ErrorKind::InvalidInput);
        assert_eq!(kind(b"user.a\0b"), ErrorKind::InvalidInput);
        for other in [&b"system.posix_acl_access"[..], b"user", b"foo.bar", b"User.x"] {
            assert_eq!(kind(other), ErrorKind::Unsupported);
        }
    }
}
