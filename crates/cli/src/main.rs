//! The forebay command.
//!
//! `args` is the command line, with one module for each command. `control` is the socket between a
//! running process and the commands that ask it. Libraries never print; everything a user sees is
//! here. `xtask/layers/cli.txt` has the modules as layers, the lowest first.

#![forbid(unsafe_code)]

mod args;
mod attach;
mod behaviours;
mod control;
mod daemon;
mod doctor;
mod export;
mod failure;
mod fincore;
mod generate;
mod helper;
mod lab;
mod live;
mod machine;
mod mount;
mod mounts;
mod options;
mod output;
mod policy;
mod progress;
mod remote;
mod run;
mod signals;
mod stat;
mod top;
mod umount;
mod volume;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use failure::{Failure, status};
use forebay_live::logger;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(helper::command_line()) {
        Ok(cli) => cli,
        Err(e) => return ExitCode::from(usage(&e)),
    };
    logger::install("forebay", cli.verbose);
    let result = match &cli.command {
        Command::Export(args) => export::export(args),
        Command::Create(args) => volume::create::create(args).map(|()| status::OK),
        Command::Ls(args) => volume::ls::ls(args).map(|()| status::OK),
        Command::Extents(args) => volume::extents::extents(args).map(|()| status::OK),
        Command::Cp(args) => volume::cp::cp(args).map(|()| status::OK),
        Command::Fsck(args) => volume::fsck::fsck(args).map(|()| status::OK),
        Command::Recover(args) => volume::recover::recover(args).map(|()| status::OK),
        Command::Grow(args) => volume::grow::grow(args).map(|()| status::OK),
        Command::Mount(args) => mount::mount(args),
        Command::Umount(args) => umount::umount(args).map(|()| status::OK),
        Command::Attach(args) => attach::attach(args),
        Command::Detach(args) => attach::detach(args).map(|()| status::OK),
        Command::List(args) => attach::list(args).map(|()| status::OK),
        Command::Watchdog(args) => mount::watchdog(args).map(|()| status::OK),
        Command::Stat(args) => stat::stat(args).map(|()| status::OK),
        Command::Top(args) => top::top(args).map(|()| status::OK),
        Command::Tune(args) => stat::tune(args).map(|()| status::OK),
        Command::Policy(args) => policy::policy(args).map(|()| status::OK),
        Command::Run(args) => run::run(args),
        Command::Fincore(args) => fincore::fincore(args).map(|()| status::OK),
        Command::Doctor(args) => doctor::doctor(args).map(|()| status::OK),
        Command::Generate(args) => generate::generate(args, Cli::command()).map(|()| status::OK),
        Command::Bench(args) => lab::run("bench", args, cli.verbose),
        Command::CrashTest(args) => lab::run("crash-test", args, cli.verbose),
    };
    ExitCode::from(result.unwrap_or_else(|failure| failure.report()))
}

/// Help and version go to standard output; a wrong command line becomes one line and a hint.
fn usage(e: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    let text = e.render().to_string();
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::line(text.trim_end());
        return status::OK;
    }
    if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprintln!("{}", text.trim_end());
        return status::USAGE;
    }
    let mut parts = text.split("\n\n");
    let first = parts.next().unwrap_or_default().trim_start_matches("error: ");
    let message: Vec<&str> = first.lines().map(str::trim).collect();
    let tip = parts.find_map(|p| p.trim().strip_prefix("tip: "));
    let failure = Failure::usage(message.join(" "));
    match tip {
        Some(tip) => failure.hint(tip.trim()).report(),
        None => failure
            .hint("`forebay --help` and `forebay COMMAND --help` list what there is")
            .report(),
    }
}
