//! NBD servers as child processes: `forebay export`, nbdkit, qemu-nbd.
//!
//! Invariants: V1 a server listens on a Unix socket in its own directory, and drop removes both. V2
//! drop ends the child: SIGTERM, and SIGKILL after five seconds.

use crate::report::lack::{not_installed, not_started};
use forebay_base::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A server with its options.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `forebay export`.
    Ours {
        /// Size of the cache, bytes.
        cache: u64,
        /// `--mode`.
        mode: &'static str,
        /// `--aio`.
        aio: String,
        /// Further options.
        more: Vec<String>,
    },
    /// nbdkit; `IMAGE` in a word stands for the image.
    Nbdkit(Vec<String>),
    /// `qemu-nbd` with these further options.
    Qemu(Vec<String>),
}

/// One configuration of a server.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The options that distinguish it, or `default`.
    pub how: String,
    /// The server.
    pub kind: Kind,
}

/// A running server.
pub struct Server {
    child: Child,
    folder: PathBuf,
    /// The URI to which clients connect.
    pub uri: String,
}

/// The `forebay` program: `$FOREBAY_BIN`, else the one in the directory of this program's file, in
/// the directory above it (for tests and examples), or in a directory of `PATH`.
pub fn forebay_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_BIN").map(PathBuf::from) {
        let gone = || Error::new(ErrorKind::NotFound, "find FOREBAY_BIN", "no such program");
        return if path.is_file() { Ok(path) } else { Err(gone().with_path(path)) };
    }
    let exe = std::env::current_exe().map_err(|e| Error::from_io("find this program", e))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let near = exe.ancestors().skip(1).take(2).map(Path::to_path_buf);
    let mut programs = near.chain(std::env::split_paths(&path)).map(|dir| dir.join("forebay"));
    let text = "install forebay, or set FOREBAY_BIN to the program";
    let missing = || not_installed("find forebay", text);
    programs.find(|program| program.is_file()).ok_or_else(missing)
}

/// Whether a program can be started.
pub fn program_exists(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).exists())
}

/// Copies with nbdcopy, so that the server loads the data into memory.
pub fn nbdcopy(from: &str, to: &str) -> Result<()> {
    let mut command = Command::new("nbdcopy");
    command.args([from, to]).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().map_err(|e| not_started("nbdcopy", e))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Io, "nbdcopy", format!("{from} to {to}: {status}")))
}

impl Kind {
    fn command(&self, image: &Path, socket: &Path) -> Result<Vec<OsString>> {
        let mut words: Vec<OsString> = Vec::new();
        match self {
            Self::Ours { cache, mode, aio, more } => {
                words.push(forebay_binary()?.into());
                words.extend(["export".into(), image.into(), "-U".into(), socket.into()]);
                words.extend(["--cache-size".into(), cache.to_string().into()]);
                words.extend(["--mode".into(), mode.into(), "--aio".into(), aio.into()]);
                words.extend(more.iter().map(OsString::from));
            }
            Self::Nbdkit(more) => {
                words.extend(["nbdkit", "--foreground", "--unix"].map(OsString::from));
                words.push(socket.into());
                let image = image.display().to_string();
                words.extend(more.iter().map(|word| word.replace("IMAGE", &image).into()));
            }
            Self::Qemu(more) => {
                let base = ["qemu-nbd", "--persistent", "--shared=16", "--format=raw", "--socket"];
                words.extend(base.map(OsString::from));
                words.push(socket.into());
                words.extend(more.iter().map(OsString::from));
                words.push(image.into());
            }
        }
        Ok(words)
    }

    /// nbdkit's memory plugin of `size` bytes. The first configurations have the default number of
    /// threads.
    pub fn nbdkit_memory(size: u64) -> Vec<Configuration> {
        let size = size.to_string();
        let plugins = [vec!["memory", &size], vec!["memory", &size, "allocator=malloc"]];
        nbdkit(&plugins, 2)
    }

    /// nbdkit's file plugin, which uses the page cache.
    pub fn nbdkit_file() -> Vec<Configuration> {
        nbdkit(&[vec!["file", "IMAGE"], vec!["file", "IMAGE", "fadvise=random"]], 2)
    }

    /// nbdkit's file plugin that leaves nothing in the page cache.
    pub fn nbdkit_file_no_cache() -> Vec<Configuration> {
        let plain = vec!["file", "IMAGE", "cache=none"];
        let random = vec!["file", "IMAGE", "cache=none", "fadvise=random"];
        nbdkit(&[plain, random], 2)
    }

    /// qemu-nbd without the page cache, with each of its engines, and with its default options.
    pub fn qemu() -> Vec<Configuration> {
        let configurations = [
            vec!["--cache=none", "--aio=io_uring"],
            vec!["--cache=none", "--aio=native"],
            vec!["--cache=none"],
            vec![],
        ];
        let configuration = |words: Vec<&str>| {
            let how = if words.is_empty() { "default".into() } else { words.join(" ") };
            Configuration { how, kind: Self::Qemu(words.into_iter().map(String::from).collect()) }
        };
        configurations.into_iter().map(configuration).collect()
    }
}

/// Each plugin with the default number of threads (16), then with few threads.
fn nbdkit(plugins: &[Vec<&str>], named: usize) -> Vec<Configuration> {
    let mut configurations = Vec::new();
    for threads in [None, Some("--threads=4"), Some("--threads=1")] {
        for plugin in plugins {
            let words = threads.iter().chain(plugin).map(|word| (*word).to_string());
            let special = plugin[named..].iter().copied().chain(threads);
            let how = special.collect::<Vec<_>>().join(" ");
            let how = if how.is_empty() { "default".to_string() } else { how };
            configurations.push(Configuration { how, kind: Kind::Nbdkit(words.collect()) });
        }
    }
    configurations
}

impl Server {
    /// Starts a server for an image, and waits until it accepts connections. `cpu`: the CPU that it
    /// is pinned to; `procs`: the file of the cgroup that it joins.
    pub fn start(
        kind: &Kind,
        image: &Path,
        cpu: Option<usize>,
        procs: Option<&Path>,
    ) -> Result<Self> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-bench-nbd-{}-{serial}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).map_err(|e| Error::from_io("make", e).with_path(&folder))?;
        let socket = folder.join("socket");
        let words = kind.command(image, &socket)?;
        // The shell always exists, so the program itself is checked.
        let program = words[0].to_string_lossy();
        if !program_exists(&program) && !Path::new(&words[0]).exists() {
            return Err(not_started(&program, std::io::ErrorKind::NotFound.into()));
        }
        let mut command = Command::new("sh");
        // The shell joins the cgroup before it becomes the server, so that all the server's
        // memory is charged there.
        command.args(["-c", "test -z \"$0\" || echo $$ > \"$0\" || exit 1; exec \"$@\""]);
        command.arg(procs.unwrap_or(Path::new("")));
        if let Some(cpu) = cpu {
            command.args(["taskset", "-c", &cpu.to_string()]);
        }
        command.args(&words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| Error::from_io("start server", e))?;
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let mut server = Self { child, folder, uri };
        server.wait_ready(&socket)?;
        Ok(server)
    }

    fn wait_ready(&mut self, socket: &Path) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if UnixStream::connect(socket).is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                let mut said = String::new();
                if let Some(mut pipe) = self.child.stderr.take() {
                    let _ = std::io::Read::read_to_string(&mut pipe, &mut said);
                }
                let text = format!("{status}: {}", said.trim());
                return Err(Error::new(ErrorKind::Io, "start server", text));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Err(Error::new(ErrorKind::Io, "start server", "it does not listen after 60 s"))
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process is running.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_of_rival_have_distinct_names() {
        let all = [
            Kind::nbdkit_memory(4096),
            Kind::nbdkit_file(),
            Kind::nbdkit_file_no_cache(),
            Kind::qemu(),
        ];
        for configurations in all {
            let mut names: Vec<&str> =
                configurations.iter().map(|configuration| configuration.how.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), configurations.len());
        }
        let configurations = Kind::nbdkit_memory(4096);
        assert_eq!(configurations[3].how, "allocator=malloc --threads=4");
        let words =
            configurations[3].kind.command(Path::new("/image"), Path::new("/socket")).unwrap();
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        let want = "nbdkit --foreground --unix /socket --threads=4 memory 4096 allocator=malloc";
        assert_eq!(words.join(" "), want);
    }

    #[test]
    fn failed_server_start_reports_reason() {
        if !program_exists("nbdkit") {
            return;
        }
        let failed =
            Server::start(&Kind::nbdkit_file()[0].kind, Path::new("/nonexistent"), None, None);
        let text = failed.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(text.contains("nonexistent"), "{text}");
    }
}
