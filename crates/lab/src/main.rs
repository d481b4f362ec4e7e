//! The program `forebay-lab`: benches, which compare Forebay with the kernel, and the crash test.
//!
//! `forebay bench` and `forebay crash-test` execute this program where it is installed. The program
//! `forebay` itself, which users run as root, holds no bench and no rival. Packages and `cargo
//! install` build `forebay` without the feature `faults`, so it holds no injected fault either. If
//! both programs are built at once, `forebay` has that feature, but no option that injects a fault.

#![forbid(unsafe_code)]

mod args;
mod crash_test;
mod generate;

use args::CrashTestArgs;
use clap::FromArgMatches;
use forebay_live::logger;
use std::ffi::OsString;
use std::process::ExitCode;

/// Exit status of a command that was tried and failed, and of a crash test that found a violation.
const FAILED: u8 = 1;
/// Exit status for a command line that makes no sense.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let texts = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    if let Some(status) = forebay_bench::helper_process(&texts.collect::<Vec<_>>()) {
        return ExitCode::from(status);
    }
    let matches = args::command().get_matches_from(words);
    logger::install("forebay-lab", matches.get_count("verbose"));
    let status = match matches.subcommand() {
        Some(("bench", matches)) => forebay_bench::run_matched(matches),
        Some(("crash-test", matches)) => match CrashTestArgs::from_arg_matches(matches) {
            Ok(args) => crash_test::crash_test(&args),
            Err(e) => e.exit(),
        },
        Some(("generate", matches)) => generate::generate(matches),
        _ => USAGE,
    };
    ExitCode::from(status)
}
