//! `forebay fincore`: how much of a file is cached, by Forebay or by the kernel.

use crate::control::client::{Client, own_or_root};
use crate::control::proto::Request;
use crate::control::which::Which;
use crate::failure::{Failure, Outcome, status};
use crate::output;
use clap::Args;
use forebay_base::kernel_cache;
use forebay_base::units::format_size;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Runs the command.
pub fn fincore(args: &FincoreArgs) -> Outcome {
    let shown = args.file.display();
    let meta = std::fs::metadata(&args.file).map_err(|e| Failure::io(shown.to_string(), &e))?;
    if args.kernel {
        return kernel(args);
    }
    let mut residency = residency(args, &Request::Residency(meta.dev(), meta.ino()))?;
    residency["kernel_bytes"] = kernel_bytes(&args.file).into();
    if args.json {
        let text = serde_json::to_string_pretty(&residency).expect("a JSON value prints");
        output::line(text);
        return Ok(());
    }
    let number = |key: &str| residency[key].as_u64().unwrap_or(0);
    let block = number("block_size");
    let bytes = |key: &str| format_size(number(key).saturating_mul(block));
    output::table(&[
        ["FILE", "RESIDENT", "DIRTY", "REFERENCED", "PINNED", "KERNEL", "SIZE", "BLOCKS", "OF"]
            .map(String::from)
            .into(),
        vec![
            shown.to_string(),
            bytes("resident_blocks"),
            bytes("dirty_blocks"),
            bytes("referenced_blocks"),
            bytes("pinned_blocks"),
            residency["kernel_bytes"].as_u64().map_or_else(|| "-".into(), format_size),
            bytes("total_blocks"),
            number("resident_blocks").to_string(),
            number("total_blocks").to_string(),
        ],
    ]);
    if args.runs {
        for run in residency["runs"].as_array().into_iter().flatten() {
            output::line(format!("{} + {}", run[0], run[1]));
        }
    }
    Ok(())
}

/// Bytes of the file that the kernel's page cache holds; `None` if that cannot be found out.
fn kernel_bytes(path: &Path) -> Option<u64> {
    let file = File::open(path).ok()?;
    kernel_cache::cached_bytes(&file).ok()
}

/// Asks the named process, or each running process until one has the file open.
fn residency(args: &FincoreArgs, request: &Request) -> Outcome<Value> {
    let Which { control, pid } = &args.which;
    if control.is_some() || pid.is_some() {
        return Client::find(&args.which)?.ask(request);
    }
    let mut hint = "`--kernel` looks into the kernel's page cache".to_string();
    for (pid, mut client) in Client::all(own_or_root) {
        match client.answer(request) {
            // The process may be about to end; another one may have the file.
            Err(e) => hint = format!("process {pid} did not answer: {}", e.message),
            Ok(Err(e)) if e.status == status::NOT_FOUND => {}
            Ok(answer) => return answer,
        }
    }
    let text = format!("{}: no running process has it open", args.file.display());
    Err(Failure::not_found(text).hint(hint))
}

/// Shows the kernel's page cache by fincore(1) of util-linux: the system call needs a memory
/// mapping, which takes unsafe code.
fn kernel(args: &FincoreArgs) -> Outcome {
    let run = Command::new("fincore").arg("--").arg(&args.file).status();
    match run {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Failure::new(format!("{}: fincore failed", args.file.display()))),
        Err(e) => Err(Failure::io("run fincore", &e).hint("it is in util-linux-extra")),
    }
}
