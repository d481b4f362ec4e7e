//! The command line: every option with its help text. `docs/reference/cli.md` says the same at
//! length, and a test compares the two.

mod volume;

pub use volume::{CpArgs, CreateArgs, ExtentsArgs, FsckArgs, GrowArgs, LsArgs, RecoverArgs};

use crate::attach::{AttachArgs, DetachArgs, ListArgs};
use crate::behaviours::{Given, Store};
use crate::failure::{Failure, Outcome};
use crate::generate::GenerateArgs;
use crate::lab::LabArgs;
use crate::mount::{MountArgs, WatchdogArgs};
use crate::policy::PolicyArgs;
use crate::run::RunArgs;
use crate::umount::UmountArgs;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use forebay_base::units::{format_size, parse_size};
use std::path::{Path, PathBuf};

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

/// What `export` and `attach` are told of the cache, and of what is below it.
#[derive(Args, Debug)]
pub struct CacheArgs {
    /// Bytes for everything that grows [default: 25% of RAM, at most 50% of the cgroup's limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache_size: Option<u64>,
    /// The options of the five behaviours.
    #[command(flatten)]
    pub behaviours: Given,
    /// I/O engine
    #[arg(long, value_name = "ENGINE", default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "io_uring", "threads"]))]
    pub aio: String,
    /// Refuse writes
    #[arg(short, long)]
    pub read_only: bool,
}

impl CacheArgs {
    /// The size, if one was given; a usage error if it is below `least` bytes.
    pub fn size(&self, least: u64) -> Outcome<Option<u64>> {
        match self.cache_size {
            Some(size) if size < least => {
                let (size, least) = (format_size(size), format_size(least));
                Err(Failure::usage(format!("--cache-size {size}: at least {least}")))
            }
            size => Ok(size),
        }
    }

    /// Refuses options that make no sense for any of these.
    pub fn check_behaviours(&self, command: &str, stores: &[Store]) -> Outcome {
        match self.behaviours.refusal(stores) {
            Some((entry, why)) => {
                Err(Failure::usage(format!("{command}: --{}: {why}", entry.flag)))
            }
            None => Ok(()),
        }
    }
}

/// `forebay export`
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Image files, block devices or files of volumes (VOLUME:/PATH), with an export name if wanted
    #[arg(value_name = "[NAME=]IMAGE", required = true)]
    pub images: Vec<String>,
    /// Listen on a Unix socket; `-` makes one in a private folder
    #[arg(short = 'U', long = "unix", value_name = "PATH", conflicts_with_all = ["port", "bind"])]
    pub unix: Option<PathBuf>,
    /// Listen on a TCP port; 0 picks a free one
    #[arg(short, long, value_name = "N")]
    pub port: Option<u16>,
    /// Address to listen on with --port [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", requires = "port")]
    pub bind: Option<std::net::IpAddr>,
    /// Folder with server-cert.pem, server-key.pem and perhaps ca-cert.pem: clients use TLS
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Whether clients may use TLS, or must [default: require if there are certificates]
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(["off", "on", "require"]))]
    pub tls: Option<String>,
    /// Serve only clients with a certificate that ca-cert.pem has signed
    #[arg(long, requires = "tls_certificates")]
    pub tls_verify_peer: bool,
    /// Allow an address that others can reach although nothing protects the images there
    #[arg(long, requires = "bind")]
    pub insecure: bool,
    /// The cache, and how an image is opened below it.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Take all of the memory at start, not as it is used
    #[arg(long)]
    pub prefault: bool,
    /// First byte of the image to serve
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub offset: u64,
    /// Serve at most this many bytes
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size_limit: Option<u64>,
    /// Threads that serve clients, 1 to 64 [default: the CPUs, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
    /// Most connections at a time [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub clients: Option<u16>,
    /// Idle for this long, a connection makes room for a new one when there are too many [default:
    /// 60]
    #[arg(long, value_name = "SECONDS")]
    pub idle_timeout: Option<u32>,
    /// Longest look around for work before a thread sleeps; 0 is off [default: 50]
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub poll_us: Option<u32>,
    /// Control socket [default: one per process in the user's runtime folder]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The live view.
    #[command(flatten)]
    pub live: crate::live::LiveArgs,
    /// Run a shell command with $uri, $unixsocket and $port set; end with it and its status
    #[arg(long, value_name = "CMD")]
    pub run: Option<String>,
}

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
    /// Refuses options that name a process, where a mount names one already.
    pub fn none_beside(&self, command: &str, dir: &Path) -> Outcome {
        if self.control.is_none() && self.pid.is_none() {
            return Ok(());
        }
        let text = format!("{command}: --control or --pid beside {}", dir.display());
        Err(Failure::usage(text).hint("a mount says which process is meant"))
    }
}

/// `forebay stat`
#[derive(Args, Debug)]
pub struct StatArgs {
    /// A mount: its process. Or a volume, or a path in one: what that is
    #[arg(value_name = "DIR|VOLUME[:/PATH]")]
    pub path: Option<String>,
    /// Which process.
    #[command(flatten)]
    pub which: Which,
    /// Show what the memory is used for, and each part's bound
    #[arg(long, conflicts_with_all = ["prometheus", "watch"])]
    pub budget: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "prometheus")]
    pub json: bool,
    /// Print again every SECONDS, with rates
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub watch: Option<u32>,
    /// With --watch: stop after N times
    #[arg(long, value_name = "N", requires = "watch")]
    pub count: Option<u64>,
    /// Print in the text format of Prometheus
    #[arg(long, conflicts_with = "watch")]
    pub prometheus: bool,
}

/// `forebay top`
#[derive(Args, Debug)]
pub struct TopArgs {
    /// A mount: its process
    #[arg(value_name = "DIR", conflicts_with_all = ["control", "pid"])]
    pub dir: Option<PathBuf>,
    /// Which process.
    #[command(flatten)]
    pub which: Which,
    /// Look again every SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub interval: u32,
    /// Look for a second, print what was seen, and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
}

/// `forebay tune`
#[derive(Args, Debug)]
pub struct TuneArgs {
    /// Which process.
    #[command(flatten)]
    pub which: Which,
    /// A mount whose process is meant, and settings to change; no setting shows all
    #[arg(value_name = "DIR|NAME=VALUE", value_parser = tune_word)]
    pub words: Vec<TuneWord>,
    /// Evict everything clean from the cache
    #[arg(long)]
    pub drop_clean: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A word after `tune`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TuneWord {
    /// `NAME=VALUE`
    Set(String, String),
    /// Anything without `=`: a mount.
    Mount(PathBuf),
}

/// `forebay fincore`
#[derive(Args, Debug)]
pub struct FincoreArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Which process.
    #[command(flatten)]
    pub which: Which,
    /// Look into the kernel's page cache instead
    #[arg(long, conflicts_with_all = ["control", "pid"])]
    pub kernel: bool,
    /// List the resident ranges
    #[arg(long, conflicts_with = "kernel")]
    pub runs: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "kernel")]
    pub json: bool,
}

/// `forebay doctor`
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Say also how this image would be opened
    #[arg(value_name = "IMAGE")]
    pub image: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A size, as in `64M`.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|_| "a whole number with an optional k, M, G or T".to_string())
}

fn tune_word(text: &str) -> Result<TuneWord, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok(TuneWord::Set(name.trim().to_string(), value.trim().to_string()))
        }
        None if std::path::Path::new(text).is_dir() => Ok(TuneWord::Mount(text.into())),
        _ => Err("expected NAME=VALUE or a mount; `forebay tune` alone lists the names".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_description_is_consistent() {
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
    fn what_makes_no_sense_is_refused() {
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
    fn watch_has_a_default_and_commands_of_the_lab_take_anything() {
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
