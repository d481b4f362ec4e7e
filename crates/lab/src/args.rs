//! The command line. Options of benches are described in forebay-bench, from its table of benches.

use clap::{Arg, ArgAction, Args, Command};
use forebay_crashtest::{Planted, Spot};
use std::path::PathBuf;

const AFTER_HELP: &str = "FOREBAY_LOG sets the log level. `forebay bench` and `forebay crash-test` \
    run this program.";

/// The description of the complete command line.
pub fn command() -> Command {
    let verbose = Arg::new("verbose")
        .short('v')
        .long("verbose")
        .action(ArgAction::Count)
        .global(true)
        .display_order(900)
        .help("Log more: -v info, -vv debug, -vvv trace");
    let dir = Arg::new("dir")
        .value_name("DIR")
        .required(true)
        .value_parser(clap::value_parser!(PathBuf))
        .help("Directory for them: `man` and `completions` are made there");
    Command::new("forebay-lab")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Benches and the crash test of Forebay")
        .max_term_width(100)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(AFTER_HELP)
        .arg(verbose)
        .subcommand(forebay_bench::command())
        .subcommand(CrashTestArgs::augment_args(
            Command::new("crash-test")
                .about("Cut the power of volumes in memory at every write, and check what is left"),
        ))
        .subcommand(
            Command::new("generate").about("Make man pages and completions for shells").arg(dir),
        )
}

/// `forebay-lab crash-test`
#[derive(Args, Debug)]
pub struct CrashTestArgs {
    /// Which workloads; the same number gives the same ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// End after this time [default: 10, without --states and --case]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// End after so many crash states
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub states: Option<u64>,
    /// Threads [default: the CPUs]
    #[arg(long, value_name = "J", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Runs of this class alone
    #[arg(long, value_name = "NAME", conflicts_with = "case", value_parser = class)]
    pub class: Option<usize>,
    /// This workload alone
    #[arg(long, value_name = "N", conflicts_with_all = ["seconds", "states"])]
    pub case: Option<u64>,
    /// Of its steps these alone: their places, or `none`
    #[arg(long, value_name = "LIST", requires = "case", value_parser = steps)]
    pub steps: Option<Steps>,
    /// Look at this spot alone: CUT:FATES, CUT:FATES:then, CUT:killed, or `run`
    #[arg(long, value_name = "SPOT", requires = "steps")]
    pub at: Option<Spot>,
    /// Make a mistake, to see that it is found
    #[arg(long, value_name = "NAME", hide = true, value_parser = planted)]
    pub plant: Option<Planted>,
}

/// Places of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps(pub Vec<usize>);

fn steps(text: &str) -> Result<Steps, String> {
    if text == "none" {
        return Ok(Steps(Vec::new()));
    }
    let steps = text.split(',').map(|place| place.parse().map_err(|_| "numbers with commas"));
    Ok(Steps(steps.collect::<Result<_, _>>()?))
}

fn class(text: &str) -> Result<usize, String> {
    forebay_crashtest::class_by_name(text).ok_or_else(|| {
        let names = forebay_crashtest::CLASSES.iter().map(|class| class.name);
        format!("one of {}", names.collect::<Vec<_>>().join(", "))
    })
}

fn planted(text: &str) -> Result<Planted, String> {
    Planted::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = Planted::ALL.iter().map(|fault| fault.name()).collect();
        format!("one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_description_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn crash_test_arguments_without_sense_are_refused() {
        for line in [
            "--seconds 0",
            "--jobs 0",
            "--steps 1,2",
            "--case 1 --steps 1,x",
            "--case 1 --steps 1 --at 3",
            "--case 1 --seconds 3",
            "--class no-such-class",
            "--plant no-such-mistake",
        ] {
            let words = ["forebay-lab", "crash-test"].into_iter().chain(line.split(' '));
            assert!(command().try_get_matches_from(words).is_err(), "{line}");
        }
    }
}
