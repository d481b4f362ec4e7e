//! `forebay detach` and `forebay list`, which ask the running processes.

use crate::control::client::{Client, own_or_root};
use crate::control::proto::Request;
use crate::failure::{Failure, Outcome, status};
use crate::{output, umount};
use clap::Args;
use forebay_base::units::format_size;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// `forebay detach`
#[derive(Args, Debug)]
pub struct DetachArgs {
    /// The device, as `attach` has said it
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
}

/// `forebay list`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Ends a device.
pub fn detach(args: &DetachArgs) -> Outcome {
    let shown = args.device.display().to_string();
    let device = std::fs::canonicalize(&args.device).map_err(|e| Failure::io(&shown, &e))?;
    for (pid, mut client) in Client::all(own_or_root) {
        let Ok(stat) = client.ask(&Request::Stat) else { continue };
        let serves = |d: &Value| d["device"].as_str().is_some_and(|d| Path::new(d) == device);
        if !stat["devices"].as_array().is_some_and(|all| all.iter().any(serves)) {
            continue;
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        client.ask_for_long(&Request::Detach).map_err(|failure| match failure.status {
            status::BUSY => {
                let text = format!("{shown}: in use");
                Failure { message: text, ..failure }.hint("`lsblk` shows where it is mounted")
            }
            _ => failure,
        })?;
        if let Some(process) = process {
            let waited = umount::until_it_ends(&process);
            waited.map_err(|e| Failure::io("wait for the daemon", &e.into()))?;
        }
        return Ok(());
    }
    let text = format!("{shown}: no running process of this user serves it");
    Err(Failure::not_found(text).hint("`forebay list` shows what there is"))
}

/// Lists what is served.
pub fn list(args: &ListArgs) -> Outcome {
    let mut all = Vec::new();
    // Any process that serves something may be listed: its answer is only printed.
    for (pid, mut client) in Client::all(|_| true) {
        // A process that ends meanwhile serves nothing.
        if let Ok(stat) = client.ask(&Request::Stat) {
            all.extend(rows(pid, &stat));
        }
    }
    if args.json {
        output::json(&Value::Array(all));
        return Ok(());
    }
    let head = ["WHERE", "WHAT", "KIND", "SIZE", "PID"].map(String::from).to_vec();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_string();
    let line = |row: &Value| {
        let size = row["size"].as_u64().map_or_else(String::new, format_size);
        let pid = row["pid"].to_string();
        vec![text(row, "where"), text(row, "what"), text(row, "kind"), size, pid]
    };
    output::table(&std::iter::once(head).chain(all.iter().map(line)).collect::<Vec<_>>());
    Ok(())
}

/// What a process serves.
fn rows(pid: u32, stat: &Value) -> Vec<Value> {
    let of = |part: &str, kind: &str, place: &str, what: &str| {
        let list = stat[part].as_array().into_iter().flatten();
        let row = |one: &Value| {
            json!({
                "where": one[place],
                "what": one[what],
                "kind": one["by"].as_str().unwrap_or(kind),
                "size": one["size"],
                "pid": pid,
            })
        };
        list.map(row).collect::<Vec<Value>>()
    };
    let mut all = of("mounts", "mount", "dir", "volume");
    all.extend(of("exports", "export", "uri", "path"));
    all.extend(of("devices", "device", "device", "path"));
    all
}
