//! `forebay bench` and `forebay crash-test`: execute the program `forebay-lab`, which is in a
//! package of its own. This program contains neither.
//!
//! The process becomes `forebay-lab`: arguments, standard streams, exit status and signals are its.

use crate::failure::{Failure, Outcome};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file name of the program.
const PROGRAM: &str = "forebay-lab";

/// `forebay bench`, `forebay crash-test`: their options are those of `forebay-lab`.
#[derive(Args, Debug)]
pub struct LabArgs {
    /// Words for `forebay-lab`; with `--help` it lists them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

/// Executes `forebay-lab COMMAND WORDS`; returns only if that fails. `verbose` counts `-v` before
/// the command.
pub fn run(command: &str, args: &LabArgs, verbose: u8) -> Outcome<u8> {
    let program = find().ok_or_else(|| {
        Failure::not_found(format!("{command}: the program {PROGRAM} is not installed")).hint(
            format!("the package {PROGRAM} has it; in the source tree `make build` builds it"),
        )
    })?;
    let mut lab = Command::new(&program);
    lab.args(std::iter::repeat_n("-v", verbose.into())).arg(command).args(&args.words);
    Err(Failure::io(program.display().to_string(), &lab.exec()))
}

/// The program in the directory of this one's own file, else in a directory of `PATH`.
fn find() -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let own_folder = own.as_deref().and_then(Path::parent).map(Path::to_path_buf);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = own_folder.into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}
