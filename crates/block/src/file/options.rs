//! How to open a file as a device.

use crate::engine::Aio;
use forebay_base::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Whether to bypass the system's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DirectIo {
    /// Wherever the file is eligible.
    #[default]
    Auto,
    /// Yes, or an error that says why not.
    On,
    /// No.
    Off,
}

impl fmt::Display for DirectIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl FromStr for DirectIo {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => {
                let text = format!("`{text}`: auto, on or off");
                Err(Error::new(ErrorKind::InvalidInput, "parse direct-io", text))
            }
        }
    }
}

/// How to open a file.
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// For reading only; takes a shared lock instead of an exclusive one.
    pub read_only: bool,
    /// Bypass the system's page cache.
    pub direct_io: DirectIo,
    /// Which part of the engine serves this device: `Threads` keeps it off io_uring, `IoUring`
    /// fails if the engine has none, `Auto` takes what the engine has.
    pub aio: Aio,
    /// Where in the file the device starts, bytes.
    pub offset: u64,
    /// Longest device, bytes; the rest of the file is not touched.
    pub size_limit: Option<u64>,
    /// Size in bytes of a file that does not exist yet or is empty. Other files keep theirs.
    pub create_size: Option<u64>,
    /// Logical block to show, 512..=4096; 0 takes what the file needs.
    pub logical_block: u32,
    /// Refuse a path whose last name is a symbolic link: `SymlinkLoop`.
    pub no_follow: bool,
    /// How long to wait for a lock that no visible living process holds, as after a kill -9; zero
    /// means no wait. If a living process holds it, opening fails at once.
    pub lock_wait: Duration,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            direct_io: DirectIo::Auto,
            aio: Aio::Auto,
            offset: 0,
            size_limit: None,
            create_size: None,
            logical_block: 0,
            no_follow: false,
            lock_wait: Duration::from_secs(5),
        }
    }
}
