//! `forebay-lab generate`: man pages and completions for shells, from the description of the
//! command line.

use crate::{FAILED, args};
use clap::ArgMatches;
use clap_complete::Shell;
use std::path::PathBuf;

/// Shells that get completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes `man` and `completions` below the directory, and gives the exit status.
pub fn generate(matches: &ArgMatches) -> u8 {
    let dir = matches.get_one::<PathBuf>("dir").expect("clap requires it");
    let (man, completions) = (dir.join("man"), dir.join("completions"));
    let command = args::command().disable_help_subcommand(true);
    let written = std::fs::create_dir_all(&man)
        .and_then(|()| std::fs::create_dir_all(&completions))
        .and_then(|()| clap_mangen::generate_to(command.clone(), &man))
        .and_then(|()| {
            SHELLS.into_iter().try_for_each(|shell| {
                let name = command.get_name().to_string();
                clap_complete::generate_to(shell, &mut command.clone(), name, &completions)
                    .map(drop)
            })
        });
    match written {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("forebay-lab: {}: {e}", dir.display());
            FAILED
        }
    }
}
