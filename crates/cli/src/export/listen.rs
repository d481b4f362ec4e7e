//! The address for clients, a Unix socket or TCP port, and the files to be removed at the end.

use super::args::ExportArgs;
use crate::failure::{Failure, Outcome};
use forebay_nbd::TlsMode;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Files and folders that this process made and removes when it ends. The signal thread holds a
/// copy, because a second signal ends the process without running destructors.
#[derive(Clone, Default)]
pub struct Cleanup(Arc<Mutex<Vec<PathBuf>>>);

impl Cleanup {
    /// Remembers a path.
    pub fn add(&self, path: &Path) {
        self.0.lock().unwrap_or_else(|p| p.into_inner()).push(path.to_path_buf());
    }

    /// Removes everything, the last one first; a second call does nothing.
    pub fn run(&self) {
        let paths = std::mem::take(&mut *self.0.lock().unwrap_or_else(|p| p.into_inner()));
        for path in paths.iter().rev() {
            // An error says that the path is gone already.
            let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path));
        }
    }
}

/// Runs the clean-up when the command ends, by success or error.
pub struct CleanupGuard(pub Cleanup);

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        self.0.run();
    }
}

/// Where the command line wants to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A Unix socket, absolute.
    Unix(PathBuf),
    /// A TCP address; port 0 is any.
    Tcp(SocketAddr),
}

/// Reads the address from the command line; makes the private folder if one is requested.
pub fn wanted(args: &ExportArgs, cleanup: &Cleanup) -> Outcome<Wanted> {
    if let Some(port) = args.port {
        let ip = args.bind.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        check_address(ip, args)?;
        return Ok(Wanted::Tcp(SocketAddr::new(ip, port)));
    }
    let path = match &args.unix {
        Some(path) if path != Path::new("-") => absolute(path)?,
        None if args.run.is_none() => {
            return Err(Failure::usage("export: nowhere to listen: no --unix, --port or --run")
                .hint("`--unix PATH`, `--port N`, or `--run CMD` with a private socket"));
        }
        _ => private_folder(cleanup)?.join("nbd.sock"),
    };
    Ok(Wanted::Unix(path))
}

/// Refuses an address that is not loopback, unless TLS is required or `--insecure` is given.
fn check_address(ip: IpAddr, args: &ExportArgs) -> Outcome {
    if ip.is_loopback() || tls_mode(args)? == TlsMode::Require {
        return Ok(());
    }
    let text = format!("{ip}: everybody who can reach this address can use the images");
    if !args.insecure {
        let text = format!("export: --bind {text}");
        return Err(Failure::usage(text)
            .hint("--tls-certificates, or `--insecure` if that is what you want"));
    }
    log::warn!("{text}");
    Ok(())
}

/// Whether clients may or must use TLS. They must if certificates are given and `--tls` is not.
pub fn tls_mode(args: &ExportArgs) -> Outcome<TlsMode> {
    let mode = match args.tls.as_deref() {
        Some("off") => TlsMode::Off,
        Some("on") => TlsMode::On,
        None if args.tls_certificates.is_none() => TlsMode::Off,
        _ => TlsMode::Require,
    };
    if mode != TlsMode::Off && args.tls_certificates.is_none() {
        let text = "export: --tls without --tls-certificates";
        return Err(Failure::usage(text).hint("a folder with server-cert.pem and server-key.pem"));
    }
    Ok(mode)
}

/// A URI needs an absolute path: clients may have another working directory.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("{}", path.display()), &e))
}

/// A new folder that only this user can enter.
fn private_folder(cleanup: &Cleanup) -> Outcome<PathBuf> {
    let parent = std::env::temp_dir();
    let pid = std::process::id();
    let mut result = Err(std::io::ErrorKind::AlreadyExists.into());
    for attempt in 0..100_u32 {
        let folder = parent.join(format!("forebay-nbd-{pid}-{attempt}"));
        // `create` fails if anything is there, a link included: no other user can prepare the path.
        result = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        match &result {
            Ok(()) => {
                cleanup.add(&folder);
                return Ok(folder);
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(_) => break,
        }
    }
    let e: std::io::Error = result.err().unwrap_or_else(|| std::io::ErrorKind::Other.into());
    Err(Failure::io(format!("make a folder in {}", parent.display()), &e))
}
