//! The program `forebay-lab`: benches, which measure Forebay beside the kernel, and the crash test.
//!
//! `forebay bench` and `forebay crash-test` execute this program where it is installed. The program
//! `forebay` itself, which users run as root, holds no bench, no rival and no injected fault.

#![forbid(unsafe_code)]

mod args;
mod crash_test;
mod generate;
mod logger;

use args::CrashTestArgs;
use clap::FromArgMatches;
use std::process::ExitCode;

/// Exit status of a command that was tried and failed, and of a crash test that found a violation.
const FAILED: u8 = 1;
/// Exit status for a command line that makes no sense.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if let Some(status) = forebay_bench::helper_process(&words[1..]) {
        return ExitCode::from(status);
    }
    let matches = args::command().get_matches_from(words);
    logger::install(matches.get_count("verbose"));
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
