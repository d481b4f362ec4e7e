//! The options that name a running process.

use crate::failure::{Failure, Outcome};
use clap::Args;
use std::path::{Path, PathBuf};

/// Which running process is meant.
#[derive(Args, Debug, Clone, Default)]
pub struct Which {
    /// Control socket of the process
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub control: Option<PathBuf>,
    /// Process id
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

impl Which {
    /// Refuses options that name a process if a mount names one already.
    pub fn refuse_with_mount(&self, command: &str, dir: &Path) -> Outcome {
        if self.control.is_none() && self.pid.is_none() {
            return Ok(());
        }
        let text = format!("{command}: --control or --pid in addition to {}", dir.display());
        Err(Failure::usage(text).hint("a mount says which process is meant"))
    }
}
