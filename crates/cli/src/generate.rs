//! `forebay generate`: man pages and completions for shells, from the description of the command
//! line itself.
//!
//! G1 What is generated has every command and option that `--help` has.

use crate::failure::{Failure, Outcome};
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// Shells that completions are made for.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// `forebay generate`
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// Folder to put them in: `man` and `completions` are made there
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Runs the command. `description` is that of the complete command line.
pub fn generate(args: &GenerateArgs, description: Command) -> Outcome {
    let folder = |name: &str| {
        let path = args.dir.join(name);
        std::fs::create_dir_all(&path).map_err(|e| failed(&path, &e))?;
        Ok::<_, Failure>(path)
    };
    let command = description.disable_help_subcommand(true);
    let man = folder("man")?;
    clap_mangen::generate_to(command.clone(), &man).map_err(|e| failed(&man, &e))?;
    let completions = folder("completions")?;
    for shell in SHELLS {
        let made = clap_complete::generate_to(shell, &mut command.clone(), "forebay", &completions);
        made.map_err(|e| failed(&completions, &e))?;
    }
    Ok(())
}

fn failed(path: &Path, e: &std::io::Error) -> Failure {
    Failure::io(path.display().to_string(), e)
}
