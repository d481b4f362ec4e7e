//! What the tests of the command share: a folder of their own, a running `forebay export`, and a
//! small NBD client that knows which of its writes were answered.
//!
//! T1 Each test has its own `XDG_RUNTIME_DIR`, so that it finds its own process only.
//! T2 A process that a test started does not outlive it.

pub mod browser;
pub mod front;
pub mod harness;
pub mod nbd;
pub mod place;
pub mod volume;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A folder for one test; removed with it.
pub struct Folder(PathBuf);

impl Folder {
    /// A new, empty one.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-test-{}-{number}", std::process::id());
        // Socket paths are short by law; a target folder may be deep.
        let folder = PathBuf::from("/var/tmp").join(name);
        std::fs::create_dir(&folder).expect("a folder for the test");
        std::fs::create_dir(folder.join("run")).expect("a runtime folder");
        Self(folder)
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// An image of `size` bytes; block `n` of 4096 bytes starts with `n` as text.
    pub fn image(&self, name: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        let mut bytes = vec![0_u8; size as usize];
        for (number, block) in bytes.chunks_mut(4096).enumerate() {
            let text = format!("{name} block {number}");
            let len = text.len().min(block.len());
            block[..len].copy_from_slice(&text.as_bytes()[..len]);
        }
        std::fs::write(&path, bytes).expect("the image can be written");
        path
    }

    /// `forebay` with these words.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(words).current_dir(&self.0).env("XDG_RUNTIME_DIR", self.path("run"));
        command.env("TMPDIR", &self.0).env_remove("FOREBAY_LOG").stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub fn forebay(&self, words: &[&str]) -> Output {
        output(self.command(words))
    }

    /// Runs it, expects success, gives its standard output.
    pub fn ok(&self, words: &[&str]) -> String {
        let output = self.forebay(words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Starts `forebay export` on the Unix socket `sock` and waits for its URIs.
    pub fn export(&self, words: &[&str]) -> Server {
        self.try_export(words).unwrap_or_else(|text| panic!("no URI; standard error: {text}"))
    }

    /// The same; its standard error if it ends without a URI.
    pub fn try_export(&self, words: &[&str]) -> Result<Server, String> {
        let mut all = vec!["export", "-U", "sock", "--control", "ctl"];
        all.extend(words);
        Server::try_start(self.command(&all), self.path("sock"))
    }
}

impl Folder {
    /// Starts `forebay export` with a control socket where everybody looks for it.
    pub fn serve(&self, words: &[&str]) -> Server {
        let mut all = vec!["export", "-U", "sock"];
        all.extend(words);
        Server::start(self.command(&all), self.path("sock"))
    }

    /// Runs it, expects this exit status, gives its standard error.
    pub fn refused(&self, status: i32, words: &[&str]) -> String {
        let output = self.forebay(words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {text}");
        text
    }

    /// The same, in a cgroup from the first instruction on: its `cgroup.procs` is named.
    pub fn export_in(&self, procs: &Path, words: &[&str]) -> Server {
        self.export_by("echo $$ > \"$0\" && exec \"$@\"", procs, words)
    }

    /// The same by a script, which executes `"$@"` at its end.
    pub fn export_by(&self, script: &str, zero: &Path, words: &[&str]) -> Server {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(zero);
        shell.arg(env!("CARGO_BIN_EXE_forebay"));
        shell.args(["export", "-U", "sock", "--control", "ctl"]).args(words);
        shell.current_dir(&self.0).env("XDG_RUNTIME_DIR", self.path("run"));
        shell.env("TMPDIR", &self.0).env_remove("FOREBAY_LOG").stdin(Stdio::null());
        Server::start(shell, self.path("sock"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a command to its end, with a limit that only a hang reaches.
pub fn output(mut command: Command) -> Output {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    // Two readers, so that neither pipe can fill while the other is read.
    let mut out = child.stdout.take().expect("it is piped");
    let mut err = child.stderr.take().expect("it is piped");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        out.read_to_end(&mut bytes).map(|_| bytes)
    });
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        err.read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = wait(&mut child);
    let read = |t: std::thread::JoinHandle<std::io::Result<Vec<u8>>>| {
        t.join().expect("the reader does not panic").expect("the pipe can be read")
    };
    Output { status, stdout: read(reader), stderr: read(errors) }
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running `forebay export`; killed when dropped.
pub struct Server {
    child: Child,
    /// Standard error, and what was read of it.
    errors: BufReader<ChildStderr>,
    seen: String,
    /// The first URI it printed.
    pub uri: String,
    /// Its Unix socket.
    pub socket: PathBuf,
}

impl Server {
    fn start(command: Command, socket: PathBuf) -> Self {
        let started = Self::try_start(command, socket);
        started.unwrap_or_else(|text| panic!("no URI; standard error: {text}"))
    }

    pub fn try_start(mut command: Command, socket: PathBuf) -> Result<Self, String> {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let out = child.stdout.take().expect("it is piped");
        let mut errors = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut uri = String::new();
        BufReader::new(out).read_line(&mut uri).expect("it can be read");
        if uri.is_empty() {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            let _ = child.wait();
            return Err(text);
        }
        Ok(Self { child, errors, seen: String::new(), uri: uri.trim().to_string(), socket })
    }

    /// Waits until it says a line with this in it on standard error.
    pub fn until_it_says(&mut self, what: &str) {
        loop {
            let from = self.seen.len();
            let length = self.errors.read_line(&mut self.seen).expect("it can be read");
            assert!(length > 0, "it ended without `{what}`: {}", self.seen);
            if self.seen[from..].contains(what) {
                return;
            }
        }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status();
        assert!(sent.is_ok_and(|s| s.success()), "kill -s {name}");
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked")
    }

    /// Waits for its end; gives status and standard error.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let mut text = std::mem::take(&mut self.seen);
        self.errors.read_to_string(&mut text).expect("standard error can be read");
        (status, text)
    }

    /// SIGTERM, and status 0.
    pub fn stop(self) {
        self.signal("TERM");
        let (status, text) = self.wait();
        assert_eq!(status.code(), Some(0), "{text}");
    }

    /// A client of the export `name`.
    pub fn client(&self, name: &str) -> nbd::Client {
        nbd::Client::connect(&self.socket, name).expect("a client can connect")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|s| s.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits for the end of a process, with a limit that only a hang reaches.
pub fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be asked") {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("process {} hangs", child.id());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A tool's output; the tool must be there and succeed.
pub fn tool(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}; see `cargo xtask requires`"));
    assert!(output.status.success(), "{program} {words:?}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The number after `"name":` in pretty JSON.
pub fn number(json: &str, name: &str) -> u64 {
    let value: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let found = [&value["stats"][name], &value["nbd"][name], &value[name]];
    found.iter().find_map(|v| v.as_u64()).unwrap_or_else(|| panic!("no {name} in {json}"))
}

/// The bytes of a file.
pub fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("the image can be read")
}
