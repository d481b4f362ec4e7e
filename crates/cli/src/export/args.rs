//! The options of `forebay export`.

use crate::live::LiveArgs;
use crate::options::{CacheArgs, size};
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;

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
    pub live: LiveArgs,
    /// Run a shell command with $uri, $unixsocket and $port set; end with it and its status
    #[arg(long, value_name = "CMD")]
    pub run: Option<String>,
}
