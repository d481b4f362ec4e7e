//! The options of the commands for volumes.

use crate::control::which::Which;
use crate::options::size;
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;

/// `forebay create`
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Image file to make, or block device
    #[arg(value_name = "VOLUME")]
    pub volume: PathBuf,
    /// Bytes of the image, which is made sparse [default: what the file or the device has]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Bytes of a block, 512 to 4k
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size)]
    pub block_size: u64,
    /// Bytes of a segment, 64k to 1G [default: 64M, less for a volume below 8G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment_size: Option<u64>,
    /// Checksum of each block of the files
    #[arg(long, value_name = "SUM", default_value = "crc32c",
          value_parser = PossibleValuesParser::new(["crc32c", "none"]))]
    pub checksum: String,
    /// Make it even if there is something already, which is lost
    #[arg(long)]
    pub force: bool,
    /// The image keeps the blocks that it has: of a file that was written before
    #[arg(long)]
    pub keep_blocks: bool,
}

/// `forebay ls`
#[derive(Args, Debug)]
pub struct LsArgs {
    /// A volume, or a path in one
    #[arg(value_name = "VOLUME[:/PATH]")]
    pub path: String,
    /// Mode, links, owner, size and time of each
    #[arg(short, long)]
    pub long: bool,
    /// Everything below as well
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print JSON, a line for each
    #[arg(long)]
    pub json: bool,
    /// Which process, if the volume is open.
    #[command(flatten)]
    pub which: Which,
}

/// `forebay extents`
#[derive(Args, Debug)]
pub struct ExtentsArgs {
    /// A file in a volume
    #[arg(value_name = "VOLUME:/PATH")]
    pub path: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Which process, if the volume is open.
    #[command(flatten)]
    pub which: Which,
}

/// `forebay cp`
#[derive(Args, Debug)]
pub struct CpArgs {
    /// What to copy, and where to: paths of the host, or VOLUME:/PATH
    #[arg(value_name = "SOURCE... DESTINATION", required = true, num_args = 2..)]
    pub paths: Vec<String>,
    /// Directories with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Read both sides again when it is done, and compare everything
    #[arg(long)]
    pub compare: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    /// Which process, if a volume is open.
    #[command(flatten)]
    pub which: Which,
}

/// `forebay fsck`
#[derive(Args, Debug)]
pub struct FsckArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    pub volume: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `forebay recover`
#[derive(Args, Debug)]
pub struct RecoverArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    pub volume: PathBuf,
    /// Folder of the host to copy into; made if it is not there, else it has to be empty
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `forebay grow`
#[derive(Args, Debug)]
pub struct GrowArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    pub volume: PathBuf,
    /// New size; a block device has it already [default: that of the device]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
