//! PostgreSQL: a cluster on a fixture, a server for one measurement, and pgbench. It runs as an
//! unprivileged user, listens on a Unix socket in its own directory, and is ended on drop. Its
//! commits are durable in all columns.

use crate::harness::meter::cpu_seconds_with_ended;
use crate::report::lack::not_installed;
use crate::rivals::mounted::call;
use forebay_base::{Error, ErrorKind, Result};
use forebay_testkit::cgroup::field;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The user of the server, which the Debian package creates.
const USER: &str = "postgres";
/// Settings that differ from the defaults. The server's own buffers are small, because the cache
/// below is measured.
const SETTINGS: &str = "listen_addresses = ''\nmax_connections = 20\n\
    autovacuum = off\ncheckpoint_timeout = 1h\nmax_wal_size = 2GB\nmin_wal_size = 160MB\n\
    fsync = on\nsynchronous_commit = on\nhuge_pages = off\nlogging_collector = off\n";

/// Directory of the newest server that is installed.
pub fn binaries() -> Result<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .map(|(version, path)| (version, path.join("bin")))
        .filter(|(_, path)| path.join("postgres").exists() && path.join("pgbench").exists())
        .collect();
    found.sort();
    let none = "no PostgreSQL server in /usr/lib/postgresql: apt-get install postgresql";
    let missing = || not_installed("find postgres", none);
    found.pop().map(|(_, path)| path).ok_or_else(missing)
}

fn as_user(program: &Path, args: &[&OsStr]) -> Result<String> {
    let mut all = vec!["-u".as_ref(), USER.as_ref(), "--".as_ref(), program.as_os_str()];
    all.extend(args);
    call("runuser", &all)
}

fn give(path: &Path) -> Result<()> {
    let owner = format!("{USER}:{USER}");
    call("chown", &["-R".as_ref(), owner.as_ref(), path.as_os_str()]).map(drop)
}

/// A running server.
pub struct Server {
    bin: PathBuf,
    sockets: PathBuf,
    child: Child,
}

/// The server's socket, for pgbench and psql.
#[derive(Clone)]
pub struct Address {
    bin: PathBuf,
    sockets: PathBuf,
}

/// Makes a cluster in `data` with the tables of pgbench (`scale` times 15 MB), checksums, and
/// buffers of the given size in MiB.
pub fn make(
    bin: &Path,
    data: &Path,
    sockets: &Path,
    (scale, buffers_mib): (u32, u64),
) -> Result<()> {
    fs::create_dir(data).map_err(|e| Error::from_io("make", e).with_path(data))?;
    give(data)?;
    let args = ["-D".as_ref(), data.as_os_str(), "-A".as_ref(), "trust".as_ref()];
    let more = ["-k", "-N", "--no-locale", "-E", "UTF8"].map(OsStr::new);
    as_user(&bin.join("initdb"), &[&args[..], &more[..]].concat())?;
    let conf = data.join("postgresql.conf");
    let fail = |e| Error::from_io("write", e).with_path(&conf);
    let old = fs::read_to_string(&conf).map_err(fail)?;
    fs::write(&conf, format!("{old}\n{SETTINGS}shared_buffers = {buffers_mib}MB\n"))
        .map_err(fail)?;
    let server = Server::start(bin, data, sockets, None)?;
    let scale = scale.to_string();
    let args = ["-i", "-q", "-I", "dtgvp", "-s", &scale];
    server.address().client("pgbench", &args)?;
    server.address().client("psql", &["-qc", "create extension pg_prewarm"])?;
    server.address().client("psql", &["-qc", "checkpoint"])?;
    Ok(())
}

impl Server {
    /// Starts it on a cluster. If `procs` names a cgroup's file, the server joins that cgroup
    /// before its first instruction.
    pub fn start(bin: &Path, data: &Path, sockets: &Path, procs: Option<&Path>) -> Result<Self> {
        fs::create_dir_all(sockets).map_err(|e| Error::from_io("make", e).with_path(sockets))?;
        give(sockets)?;
        let mut command = Command::new("sh");
        let line = "[ -z \"$0\" ] || echo $$ >\"$0\"; u=$1; shift; \
                    exec setpriv --reuid=\"$u\" --regid=\"$u\" --init-groups -- \"$@\"";
        command.arg("-c").arg(line).arg(procs.unwrap_or(Path::new(""))).arg(USER);
        command.arg(bin.join("postgres")).arg("-D").arg(data).arg("-k").arg(sockets);
        let log = sockets.join("log");
        let said = fs::File::options().create(true).append(true).open(&log);
        let said = said.map_err(|e| Error::from_io("make", e).with_path(&log))?;
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let child = command.spawn().map_err(|e| Error::from_io("start postgres", e))?;
        let mut this = Self { bin: bin.to_path_buf(), sockets: sockets.to_path_buf(), child };
        this.wait_ready(&log)?;
        Ok(this)
    }

    fn wait_ready(&mut self, log: &Path) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let last = match self.address().client("psql", &["-qc", "select 1"]) {
                Ok(_) => return Ok(()),
                Err(e) => e,
            };
            let ended = self.child.try_wait().map_err(|e| Error::from_io("wait", e))?;
            if ended.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<&str> = said.lines().rev().take(5).collect();
                let text = format!("{last}; it said: {}", tail.join(" / "));
                return Err(Error::new(ErrorKind::Unsupported, "start postgres", text));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The address for pgbench and psql.
    pub fn address(&self) -> Address {
        Address { bin: self.bin.clone(), sockets: self.sockets.clone() }
    }

    /// The pids of the server and its child processes.
    fn processes(&self) -> Vec<u32> {
        let own = self.child.id();
        let of = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit(')').next().unwrap_or_default().to_string();
            rest.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) == Some(own)
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        std::iter::once(own).chain(all.filter(of)).collect()
    }

    /// CPU seconds of all its processes, with ended ones.
    pub fn cpu_seconds(&self) -> f64 {
        self.processes().into_iter().filter_map(cpu_seconds_with_ended).sum()
    }

    /// Memory of the server, bytes: private memory of each process, and shared memory once, in full
    /// size.
    pub fn own_bytes(&self) -> u64 {
        let (mut private, mut touched) = (0, 0);
        for pid in self.processes() {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            private += field(&status, "RssAnon:") << 10;
            touched = touched.max(field(&status, "RssShmem:") << 10);
        }
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id()));
        private + shared_bytes(&maps.unwrap_or_default()).max(touched)
    }

    /// Paths of the tables and indexes that pgbench reads.
    pub fn files(&self, data: &Path) -> Result<Vec<PathBuf>> {
        let query = "select pg_relation_filepath(c) from unnest(array['pgbench_accounts', \
                     'pgbench_accounts_pkey']::regclass[]) c";
        let text = self.address().client("psql", &["-qtA", "-c", query])?;
        Ok(text.lines().filter(|line| !line.is_empty()).map(|line| data.join(line)).collect())
    }

    /// Reads the tables and indexes once, through the cache below.
    pub fn prewarm(&self) -> Result<()> {
        let query = "select sum(pg_prewarm(c, 'read')) from unnest(array['pgbench_accounts', \
                     'pgbench_accounts_pkey']::regclass[]) c";
        self.address().client("psql", &["-qtA", "-c", query]).map(drop)
    }
}

/// Bytes of the anonymous shared mappings of a process: shared buffers and related structures.
fn shared_bytes(maps: &str) -> u64 {
    let bytes = |line: &str| {
        let mut parts = line.split_whitespace();
        let (from, to) = parts.next()?.split_once('-')?;
        let shared = parts.next()?.ends_with('s');
        let name = line.split_whitespace().nth(5).unwrap_or_default();
        let memory =
            name == "/dev/zero" || name.starts_with("/dev/shm/") || name.starts_with("/SYSV");
        let at = |text: &str| u64::from_str_radix(text, 16).ok();
        (shared && memory).then_some(at(to)?.checked_sub(at(from)?)?)
    };
    maps.lines().filter_map(bytes).sum()
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        // Fast shutdown: disconnects the clients and writes a checkpoint.
        let asked = pid.is_some_and(|pid| {
            rustix::process::kill_process(pid, rustix::process::Signal::INT).is_ok()
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        while asked && Instant::now() < deadline {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Address {
    /// Runs a client program to its end; returns its output.
    pub fn client(&self, program: &str, args: &[&str]) -> Result<String> {
        let host = self.sockets.as_os_str();
        let mut all = vec!["-h".as_ref(), host, "-U".as_ref(), USER.as_ref()];
        if program == "psql" {
            all.extend(["-X", "-d", "postgres"].map(OsStr::new));
        }
        all.extend(args.iter().map(OsStr::new));
        if program == "pgbench" {
            all.push("postgres".as_ref());
        }
        call(self.bin.join(program), &all)
    }

    /// Starts pgbench for `seconds`.
    pub fn load(&self, kind: Load, seconds: u64, logs: &Path) -> Result<Child> {
        let mut command = Command::new(self.bin.join("pgbench"));
        command.arg("-h").arg(&self.sockets).args(["-U", USER, "-n", "-P", "1"]);
        command.args(["-c", "4", "-j", "1", "-M", "prepared", "-T", &seconds.to_string()]);
        command.arg("--log-prefix").arg(logs).arg("-l");
        match kind {
            Load::Select => command.args(["-S", "--sampling-rate", "0.2"]),
            Load::Tpcb => command.args(["-b", "tpcb-like"]),
        };
        command.arg("postgres").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(|e| Error::from_io("start pgbench", e))
    }
}

/// Load of pgbench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Selects one row by its key.
    Select,
    /// The TPC-B-like transaction, committed durably.
    Tpcb,
}

impl Load {
    /// The name of the load in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Select => "select",
            Self::Tpcb => "tpcb",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: the limit of XFS's cgroup was set after pgbench's clients had ended. It was
    /// computed from the part of the shared buffers that the remaining processes had touched, so it
    /// was too small.
    #[test]
    fn shared_buffers_count_in_full() {
        let maps = "\
            55d0c0000000-55d0c0100000 r-xp 00000000 08:01 123  /usr/lib/postgresql/15/bin/postgres\n\
            7f0000000000-7f0001800000 rw-s 00000000 00:01 1031 /dev/zero (deleted)\n\
            7f0002000000-7f0002001000 rw-s 00000000 00:19 7    /dev/shm/PostgreSQL.42\n\
            7f0003000000-7f0003100000 r--s 00000000 08:01 99   /usr/share/zoneinfo\n\
            7f0004000000-7f0004100000 rw-p 00000000 00:00 0 \n";
        assert_eq!(shared_bytes(maps), (24 << 20) + 4096);
    }
}
