//! One error type for the whole stack: a small kind to match on, the context (operation, path,
//! offset, length) and the source.
//!
//! An `Error` is cheap to clone: one failed device read may fail every reader that waits for the
//! same folio.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, coarse enough to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument makes no sense (EINVAL).
    InvalidInput,
    /// Offset, length or memory is not aligned as direct I/O needs it (EINVAL).
    Unaligned,
    /// The range exceeds the object (EINVAL).
    OutOfRange,
    /// The operation would have to wait and `NOWAIT` forbids it (EAGAIN).
    WouldBlock,
    /// The object or device cannot do this (EOPNOTSUPP).
    Unsupported,
    /// The object accepts no changes (EROFS).
    ReadOnly,
    /// No space left on the device or in the file system below (ENOSPC).
    NoSpace,
    /// No such file or export (ENOENT).
    NotFound,
    /// Permission denied by the system (EACCES).
    Permission,
    /// Another process or opener holds the file (EBUSY).
    Busy,
    /// Another program changed or truncated the file under the device (EIO).
    ChangedBelow,
    /// The device failed (EIO).
    Io,
    /// Stored bytes do not match their checksum or their structure (EUCLEAN).
    Corrupt,
    /// No memory within the budget (ENOMEM).
    NoMemory,
    /// The engine is shutting down (ESHUTDOWN).
    Shutdown,
    /// The peer broke the protocol (EPROTO).
    Protocol,
    /// The name is taken (EEXIST).
    Exists,
    /// A directory is needed (ENOTDIR).
    NotDirectory,
    /// It is a directory (EISDIR).
    IsDirectory,
    /// The directory has entries (ENOTEMPTY).
    NotEmpty,
    /// One link more than an inode can have (EMLINK).
    TooManyLinks,
    /// A name or a path is too long (ENAMETOOLONG).
    NameTooLong,
    /// Beyond the largest offset of a file (EFBIG).
    FileTooLarge,
    /// The inode was deleted (ESTALE).
    Stale,
    /// No such extended attribute (ENODATA).
    NoAttribute,
    /// More symbolic links than a path may have (ELOOP).
    SymlinkLoop,
    /// A value is longer than it may be (E2BIG).
    TooBig,
    /// A name or a value does not fit into the caller's buffer or its field (ERANGE).
    DoesNotFit,
    /// The handle was not opened for this operation (EBADF).
    BadHandle,
    /// The operation is not permitted on such an object (EPERM).
    NotPermitted,
    /// No data or hole at or after this offset to seek to (ENXIO).
    PastEnd,
    /// The two paths lie on different file systems (EXDEV).
    CrossDevice,
    /// The file ends before all bytes were read (ENODATA).
    UnexpectedEof,
}

impl ErrorKind {
    /// The errno that front ends report for this kind.
    pub fn errno(self) -> i32 {
        match self {
            Self::InvalidInput | Self::Unaligned | Self::OutOfRange => 22,
            Self::WouldBlock => 11,
            Self::Unsupported => 95,
            Self::ReadOnly => 30,
            Self::NoSpace => 28,
            Self::NotFound => 2,
            Self::Permission => 13,
            Self::Busy => 16,
            Self::ChangedBelow | Self::Io => 5,
            Self::Corrupt => 117,
            Self::NoMemory => 12,
            Self::Shutdown => 108,
            Self::Protocol => 71,
            Self::Exists => 17,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::NotEmpty => 39,
            Self::TooManyLinks => 31,
            Self::NameTooLong => 36,
            Self::FileTooLarge => 27,
            Self::Stale => 116,
            Self::NoAttribute | Self::UnexpectedEof => 61,
            Self::SymlinkLoop => 40,
            Self::TooBig => 7,
            Self::DoesNotFit => 34,
            Self::BadHandle => 9,
            Self::NotPermitted => 1,
            Self::PastEnd => 6,
            Self::CrossDevice => 18,
        }
    }

    /// A few words for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid input",
            Self::Unaligned => "unaligned request",
            Self::OutOfRange => "out of range",
            Self::WouldBlock => "would block",
            Self::Unsupported => "not supported",
            Self::ReadOnly => "read-only",
            Self::NoSpace => "no space left",
            Self::NotFound => "not found",
            Self::Permission => "permission denied",
            Self::Busy => "busy",
            Self::ChangedBelow => "changed from outside",
            Self::Io => "I/O error",
            Self::Corrupt => "corrupt",
            Self::NoMemory => "out of memory",
            Self::Shutdown => "shutting down",
            Self::Protocol => "protocol violation",
            Self::Exists => "exists already",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "is a directory",
            Self::NotEmpty => "directory not empty",
            Self::TooManyLinks => "too many links",
            Self::NameTooLong => "name too long",
            Self::FileTooLarge => "beyond the largest file",
            Self::Stale => "stale inode",
            Self::NoAttribute => "no such attribute",
            Self::SymlinkLoop => "too many symbolic links",
            Self::TooBig => "value too long",
            Self::DoesNotFit => "does not fit",
            Self::BadHandle => "not opened for this",
            Self::NotPermitted => "not permitted",
            Self::PastEnd => "nothing to seek to",
            Self::CrossDevice => "different file systems",
            Self::UnexpectedEof => "unexpected end of file",
        }
    }
}

#[derive(Debug, Clone)]
struct Inner {
    kind: ErrorKind,
    op: &'static str,
    detail: String,
    path: Option<PathBuf>,
    range: Option<(u64, u64)>,
    source: Option<Arc<io::Error>>,
}

/// An error with its context. Cloning it only counts a reference.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

impl Error {
    /// A new error of `kind` in operation `op` (a verb, such as "read" or "attach").
    pub fn new(kind: ErrorKind, op: &'static str, detail: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            op,
            detail: detail.into(),
            path: None,
            range: None,
            source: None,
        }))
    }

    /// Wraps a system error; the kind follows from the errno. An [`io::Error`] that was made of an
    /// [`Error`] is turned back into that error.
    pub fn from_io(op: &'static str, source: io::Error) -> Self {
        if let Some(inner) = Self::within(&source) {
            return inner.clone();
        }
        let kind = kind_of(&source);
        Self(Arc::new(Inner {
            kind,
            op,
            detail: String::new(),
            path: None,
            range: None,
            source: Some(Arc::new(source)),
        }))
    }

    /// Adds the file the operation was on. The innermost path wins.
    #[must_use]
    pub fn with_path(mut self, path: impl AsRef<Path>) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.path.get_or_insert_with(|| path.as_ref().to_path_buf());
        self
    }

    /// Names the file by the path that the caller opened it with. `alias` is the file's name in the
    /// layers below: the path replaces it, and the range stays. Any other path is that of an object
    /// below the file: it moves to the text, with its range.
    #[must_use]
    pub fn with_opened_path(mut self, path: &Path, alias: &str) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        let below = inner.path.replace(path.to_path_buf());
        if let Some(below) = below.filter(|below| below != path && below != Path::new(alias)) {
            let range = inner.range.take().map(|(offset, len)| format!(" at {offset}+{len}"));
            let colon = if inner.detail.is_empty() { "" } else { ": " };
            let range = range.unwrap_or_default();
            inner.detail = format!("{}{range}{colon}{}", below.display(), inner.detail);
        }
        self
    }

    /// Adds the byte range. The innermost range wins.
    #[must_use]
    pub fn with_range(mut self, offset: u64, len: u64) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.range.get_or_insert((offset, len));
        self
    }

    /// The kind to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The errno that a front end reports: that of the kind. For `Io`, the system's own, if known.
    pub fn errno(&self) -> i32 {
        match (&self.0.source, self.0.kind) {
            (Some(source), ErrorKind::Io) => source.raw_os_error().unwrap_or(5),
            (_, kind) => kind.errno(),
        }
    }

    /// The error that an [`io::Error`] was made of, with its path and range.
    pub fn within(error: &io::Error) -> Option<&Self> {
        error.get_ref().and_then(|inner| inner.downcast_ref())
    }

    /// The errno of an [`io::Error`] of the system, or of one that was made of an [`Error`]. The
    /// standard library's `raw_os_error` knows only the former.
    pub fn errno_of(error: &io::Error) -> Option<i32> {
        error.raw_os_error().or_else(|| Self::within(error).map(Self::errno))
    }

    /// Path of the object, if known.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Byte range `(offset, length)`, if known.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.0.range
    }
}

fn kind_of(e: &io::Error) -> ErrorKind {
    match e.raw_os_error() {
        Some(2) => ErrorKind::NotFound,
        Some(1 | 13) => ErrorKind::Permission,
        Some(11) => ErrorKind::WouldBlock,
        Some(12) => ErrorKind::NoMemory,
        Some(16 | 26) => ErrorKind::Busy,
        Some(17) => ErrorKind::Exists,
        Some(20) => ErrorKind::NotDirectory,
        Some(21) => ErrorKind::IsDirectory,
        Some(22) => ErrorKind::InvalidInput,
        Some(28 | 122) => ErrorKind::NoSpace,
        Some(30) => ErrorKind::ReadOnly,
        Some(95) => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.0;
        write!(f, "{}", e.op)?;
        if let Some(path) = &e.path {
            write!(f, " {}", path.display())?;
        }
        if let Some((offset, len)) = e.range {
            write!(f, " at {offset}+{len}")?;
        }
        write!(f, ": {}", e.kind.as_str())?;
        if !e.detail.is_empty() {
            write!(f, ": {}", e.detail)?;
        }
        if let Some(source) = &e.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|s| &**s as &(dyn std::error::Error + 'static))
    }
}

impl From<Error> for io::Error {
    /// Loses nothing: [`Error::within`] returns the error, and [`Error::errno_of`] its errno. The
    /// kind is the one that the standard library gives to the errno, except for `UnexpectedEof`.
    fn from(e: Error) -> Self {
        let kind = match e.kind() {
            ErrorKind::UnexpectedEof => io::ErrorKind::UnexpectedEof,
            _ => io::Error::from_raw_os_error(e.errno()).kind(),
        };
        io::Error::new(kind, e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_operation_path_range_and_cause() {
        let e = Error::from_io("read", io::Error::from_raw_os_error(5))
            .with_path("/data/disk.img")
            .with_range(4096, 512)
            .with_path("/outer");
        assert_eq!(e.kind(), ErrorKind::Io);
        let text = e.to_string();
        assert!(text.starts_with("read /data/disk.img at 4096+512: I/O error"), "{text}");
    }

    #[test]
    fn opened_path_replaces_alias_and_keeps_object_below_in_text() {
        let failed = || Error::from_io("write", io::Error::from_raw_os_error(5)).with_range(512, 8);
        let named = |e: Error| e.with_opened_path(Path::new("/f"), "#3");
        for (error, range, start) in [
            (failed(), Some((512, 8)), "write /f at 512+8: I/O error: "),
            (failed().with_path("#3"), Some((512, 8)), "write /f at 512+8: I/O error: "),
            (failed().with_path("/img"), None, "write /f: I/O error: /img at 512+8: "),
            (named(failed().with_path("/img")), None, "write /f: I/O error: /img at 512+8: "),
        ] {
            let error = named(error);
            assert_eq!((error.path(), error.range()), (Some(Path::new("/f")), range), "{error}");
            assert!(error.to_string().starts_with(start), "{error}");
        }
        let error = Error::new(ErrorKind::Io, "sync", "lost").with_path("/img");
        assert_eq!(named(error).to_string(), "sync /f: I/O error: /img: lost");
    }

    #[test]
    fn errno_prefers_the_systems_own() {
        assert_eq!(Error::from_io("write", io::Error::from_raw_os_error(121)).errno(), 121);
        assert_eq!(Error::new(ErrorKind::Unsupported, "flag", "x").errno(), 95);
        assert_eq!(Error::new(ErrorKind::NotEmpty, "rmdir", "x").errno(), 39);
        assert_eq!(
            Error::from_io("write", io::Error::from_raw_os_error(28)).kind(),
            ErrorKind::NoSpace
        );
    }

    #[test]
    fn io_error_of_error_keeps_kind_errno_and_path() {
        let full = Error::from_io("write", io::Error::from_raw_os_error(28)).with_path("/disk");
        let wait = Error::new(ErrorKind::WouldBlock, "read", "cold");
        let short = Error::new(ErrorKind::UnexpectedEof, "read", "3 of 5 bytes");
        let remote = Error::from_io("read", io::Error::from_raw_os_error(121));
        for (error, kind, errno) in [
            (full, io::ErrorKind::StorageFull, 28),
            (wait, io::ErrorKind::WouldBlock, 11),
            (short, io::ErrorKind::UnexpectedEof, 61),
            (remote, io::Error::from_raw_os_error(121).kind(), 121),
        ] {
            let text = error.to_string();
            let io = io::Error::from(error.clone());
            assert_eq!((io.kind(), Error::errno_of(&io)), (kind, Some(errno)), "{text}");
            assert_eq!(io.to_string(), text);
            let back = Error::from_io("again", io);
            assert_eq!((back.kind(), back.path()), (error.kind(), error.path()));
        }
        assert_eq!(Error::errno_of(&io::Error::from_raw_os_error(5)), Some(5));
    }
}
