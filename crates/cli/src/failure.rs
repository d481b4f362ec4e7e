//! How a command fails: one line, perhaps a hint, and an exit status that means something.

use forebay_base::{Error, ErrorKind};
use forebay_live::logger;

/// Exit statuses, as `docs/reference/cli.md` documents them.
pub mod status {
    /// Done.
    pub const OK: u8 = 0;
    /// It was tried and failed.
    pub const FAILED: u8 = 1;
    /// The command line makes no sense.
    pub const USAGE: u8 = 2;
    /// No such file, or no running process.
    pub const NOT_FOUND: u8 = 3;
    /// Another process holds the image.
    pub const BUSY: u8 = 4;
    /// A volume is damaged.
    pub const DAMAGED: u8 = 5;
}

/// Why a command ended.
#[derive(Debug)]
pub struct Failure {
    /// One line, without the program's name.
    pub message: String,
    /// What the user may do about it.
    pub hint: Option<String>,
    /// Exit status.
    pub status: u8,
}

/// Result with [`Failure`].
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// It was tried and failed.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, status: status::FAILED }
    }

    /// The command line makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, status: status::USAGE }
    }

    /// What was named is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, status: status::NOT_FOUND }
    }

    /// A volume is damaged.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, status: status::DAMAGED }
    }

    /// Adds what the user may do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A failure of the system while doing `what`.
    pub fn io(what: impl Into<String>, e: &std::io::Error) -> Self {
        let status = match e.kind() {
            std::io::ErrorKind::NotFound => status::NOT_FOUND,
            _ => status::FAILED,
        };
        Self { message: format!("{}: {e}", what.into()), hint: None, status }
    }

    /// Prints the failure to standard error, or logs it in a background process; returns the exit
    /// status.
    pub fn report(&self) -> u8 {
        if logger::in_background() {
            let hint = self.hint.as_deref().unwrap_or("");
            log::error!("{}; {hint}", self.message);
            return self.status;
        }
        eprintln!("forebay: {}", self.message);
        if let Some(hint) = &self.hint {
            eprintln!("forebay: hint: {hint}");
        }
        self.status
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let (status, hint) = match e.kind() {
            ErrorKind::NotFound => (status::NOT_FOUND, None),
            ErrorKind::Busy => (
                status::BUSY,
                Some("another process has it open; see `forebay stat` for running exports"),
            ),
            ErrorKind::Permission => (status::FAILED, Some("check the owner and mode of the file")),
            ErrorKind::ReadOnly => (status::FAILED, Some("`--read-only` opens it for reading")),
            ErrorKind::Corrupt => (
                status::DAMAGED,
                Some("`forebay recover VOLUME --to DIR` copies out what can be read"),
            ),
            ErrorKind::NoMemory => (status::FAILED, Some("try a smaller `--cache-size`")),
            ErrorKind::InvalidInput | ErrorKind::Unaligned | ErrorKind::OutOfRange => {
                (status::USAGE, None)
            }
            _ => (status::FAILED, None),
        };
        Self { message: e.to_string(), hint: hint.map(str::to_string), status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_map_to_statuses() {
        let of = |kind| Failure::from(Error::new(kind, "open", "x")).status;
        assert_eq!(of(ErrorKind::NotFound), status::NOT_FOUND);
        assert_eq!(of(ErrorKind::Busy), status::BUSY);
        assert_eq!(of(ErrorKind::InvalidInput), status::USAGE);
        assert_eq!(of(ErrorKind::Io), status::FAILED);
        assert_eq!(of(ErrorKind::Corrupt), status::DAMAGED);
    }
}
