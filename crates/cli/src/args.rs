//! The command line: all commands. The options of a command are in its module.
//! `docs/reference/cli.md` says the same at length, and a test compares the two.

use crate::attach::{AttachArgs, DetachArgs, ListArgs};
use crate::doctor::DoctorArgs;
use crate::export::ExportArgs;
use crate::fincore::FincoreArgs;
use crate::generate::GenerateArgs;
use crate::lab::LabArgs;
use crate::mount::{MountArgs, WatchdogArgs};
use crate::policy::PolicyArgs;
use crate::run::RunArgs;
use crate::stat::{StatArgs, TuneArgs};
use crate::top::TopArgs;
use crate::umount::UmountArgs;
use crate::volume::args::{
    CpArgs, CreateArgs, ExtentsArgs, FsckArgs, GrowArgs, LsArgs, RecoverArgs,
};
use clap::{Parser, Subcommand};

/// A page cache that its owner sizes and steers, over disk images and volumes, for programs, NBD
/// and mounts.
#[derive(Parser, Debug)]
#[command(name = "forebay", version, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "Sizes accept k, M, G, T (powers of two). FOREBAY_LOG sets the log level.\n\
    VOLUME:/PATH is a path in a volume. Exit status: 0 done, 1 failed, 2 wrong command line,\n\
    3 not found, 4 image in use, 5 damage found."
)]
pub struct Cli {
    /// Log more: -v info, -vv debug, -vvv trace
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 900)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve images over NBD, all behind one cache
    Export(Box<ExportArgs>),
    /// Make a volume
    Create(CreateArgs),
    /// List what is in a volume
    Ls(LsArgs),
    /// Show where the content of a file in a volume is
    Extents(ExtentsArgs),
    /// Copy into a volume, out of one, or from one to another
    Cp(CpArgs),
    /// Check a volume, without writing
    Fsck(FsckArgs),
    /// Copy what can be read out of a damaged volume
    Recover(RecoverArgs),
    /// Make a volume larger
    Grow(GrowArgs),
    /// Mount a volume
    Mount(Box<MountArgs>),
    /// End a mount; returns when everything is durable
    Umount(UmountArgs),
    /// Make a block device of an image, or of a file in a volume
    Attach(AttachArgs),
    /// End such a device; returns when everything is durable
    Detach(DetachArgs),
    /// List what is served: mounts, exports, block devices
    List(ListArgs),
    /// Watches over the process of a mount
    #[command(hide = true)]
    Watchdog(WatchdogArgs),
    /// Show the numbers of a running process, or what a volume or a path in one is
    Stat(StatArgs),
    /// Watch a running process
    Top(TopArgs),
    /// Show or change the settings of a running process
    Tune(TuneArgs),
    /// Show or set what openings of a file on a mount do with the cache
    Policy(PolicyArgs),
    /// Run a command that leaves nothing in the cache of any mount
    Run(RunArgs),
    /// Show how much of a file is in the cache
    Fincore(FincoreArgs),
    /// Say what this machine offers and what would be chosen
    Doctor(DoctorArgs),
    /// Make man pages and completions for shells
    Generate(GenerateArgs),
    /// Measure against the kernel; runs `forebay-lab bench`
    #[command(disable_help_flag = true)]
    Bench(LabArgs),
    /// Cut the power of volumes in memory at every write; runs `forebay-lab crash-test`
    #[command(disable_help_flag = true)]
    CrashTest(LabArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn command_line_description_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn export_options() {
        let cli = parse(
            "forebay export a=/x.img y.img -p 0 --bind ::1 --cache-size 1G --mode direct \
             --direct-io off --aio threads --offset 1M --size-limit 2M -r --threads 2",
        );
        let Command::Export(args) = cli.unwrap().command else { panic!("not export") };
        assert_eq!(args.images, ["a=/x.img", "y.img"]);
        assert_eq!(args.cache.cache_size, Some(1 << 30));
        assert_eq!((args.offset, args.size_limit), (1 << 20, Some(2 << 20)));
        assert_eq!((args.port, args.threads, args.cache.read_only), (Some(0), Some(2), true));
    }

    #[test]
    fn invalid_command_line_is_refused() {
        for line in [
            "forebay create",
            "forebay create v --block-size x",
            "forebay create v --checksum md5",
            "forebay cp one",
            "forebay recover v",
            "forebay",
            "forebay export",
            "forebay export x --cache-size 1x",
            "forebay export x --mode sometimes",
            "forebay export x -U a -p 1",
            "forebay export x --bind ::1",
            "forebay export x -p 1 --insecure",
            "forebay export x -p 70000",
            "forebay export x --threads 0",
            "forebay tune novalue",
            "forebay tune =1",
            "forebay stat --json --prometheus",
            "forebay stat --pid 1 --control x",
            "forebay stat --count 2",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn watch_has_default_lab_commands_take_any_arguments() {
        let Command::Stat(args) = parse("forebay stat --watch").unwrap().command else {
            panic!("not stat")
        };
        assert_eq!(args.watch, Some(1));
        let Command::Bench(args) = parse("forebay -v bench hit --quick --help -v").unwrap().command
        else {
            panic!("not bench")
        };
        assert_eq!(args.words, ["hit", "--quick", "--help", "-v"]);
        let Command::CrashTest(args) = parse("forebay crash-test --seed 1 -- x").unwrap().command
        else {
            panic!("not crash-test")
        };
        assert_eq!(args.words, ["--seed", "1", "--", "x"]);
    }
}
