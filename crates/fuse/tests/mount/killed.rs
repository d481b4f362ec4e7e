//! Daemons that are killed: every call on their mounts returns.
//!
//! Each daemon is a process of its own, `forebay-memfs`; with its test it ends, also when that fails.
//!
//! No locks.

use forebay_fuse::mount::unmount;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

fn may_run() -> bool {
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    assert!(root || allowed, "mounts need root and /dev/fuse");
    root
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Daemon {
    child: Child,
    dir: PathBuf,
}

impl Daemon {
    fn start(words: &[&str]) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-killed-{}-{serial}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-memfs"));
        command.arg(&dir).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let child = command.spawn().expect("it starts");
        let mut daemon = Self { child, dir };
        let mut line = String::new();
        let out = daemon.child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        daemon
    }

    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
    }

    /// State of the thread of this name, a letter of proc(5).
    fn state_of(&self, thread: &str) -> Option<char> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
        let stats =
            tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("stat")).ok());
        let found = stats.filter(|stat| stat.contains(&format!("({thread})"))).last()?;
        found.split(") ").nth(1)?.chars().next()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        while unmount(&self.dir, true).is_ok() {}
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// Waits for each of `count` threads to say how it ended.
fn all_return<T>(ended: &Receiver<T>, count: usize) -> Vec<T> {
    let one = |_| ended.recv_timeout(PATIENCE).expect("a call on a dead mount does not return");
    (0..count).map(one).collect()
}

fn is_dead(e: &std::io::Error) -> bool {
    // ENOTCONN, ECONNABORTED; ENODEV is not for callers.
    matches!(e.raw_os_error(), Some(107 | 103))
}

/// Works on a mount until a call fails, and gives the error.
fn work(dir: &Path, n: usize) -> std::io::Error {
    let path = dir.join(format!("file-{n}"));
    let round = |round: u64| -> std::io::Result<()> {
        let mut file = std::fs::File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)?;
        file.write_all(&round.to_le_bytes().repeat(1000))?;
        file.sync_data()?;
        file.rewind()?;
        let mut back = Vec::new();
        file.read_to_end(&mut back)?;
        let other = dir.join(format!("other-{n}"));
        std::fs::rename(&path, &other)?;
        std::fs::read_dir(dir)?.try_for_each(|entry| {
            entry?
                .metadata()
                .or_else(|e| match e.kind() {
                    // Renamed by another worker meanwhile.
                    std::io::ErrorKind::NotFound => std::fs::metadata(dir),
                    _ => Err(e),
                })
                .map(drop)
        })?;
        std::fs::remove_file(&other)
    };
    (0..).find_map(|n| round(n).err()).expect("it goes on until it fails")
}

/// Killed at any moment, on either type of mount: every call fails as on a dead mount, those under way and
/// those that come later.
#[test]
fn killed_under_load_every_call_returns() {
    if !may_run() {
        return;
    }
    for round in 0..6_u64 {
        let via = if round % 2 == 0 { "block" } else { "plain" };
        let mut daemon = Daemon::start(&["--via", via]);
        let (sender, ended) = channel();
        for n in 0..4 {
            let (dir, sender) = (daemon.dir.clone(), sender.clone());
            std::thread::spawn(move || sender.send(work(&dir, n)));
        }
        until("a worker has begun", || std::fs::read_dir(&daemon.dir).unwrap().next().is_some());
        // Another moment each time; which one does not matter.
        for _ in 0..round * 200 {
            let _ = std::fs::metadata(&daemon.dir);
        }
        daemon.kill();
        for e in all_return(&ended, 4) {
            assert!(is_dead(&e), "{e}");
        }
        assert!(is_dead(&std::fs::metadata(daemon.dir.join("x")).unwrap_err()));
    }
}

/// A daemon was killed while its notify thread waited in the kernel for a page that a read of the mount had
/// locked; the read waited for the daemon, whose device the thread kept open: the mount hung for ever. Its
/// watchdog ends that (G1), also if the process dies before its watchdog looks (G4: it waited for ever for a
/// thread that was gone), or the mount is taken out of the tree meanwhile.
#[test]
fn g1_killed_while_it_notifies_under_a_read() {
    if !may_run() {
        return;
    }
    for (via, lazy) in [("block", false), ("plain", false), ("block", true), ("plain", true)] {
        let mut daemon = Daemon::start(&["--via", via, "--kernel-cache", "always", "--stuck"]);
        let path = daemon.dir.join("file");
        std::fs::write(&path, [1; 8192]).unwrap();
        // What was written lies in the kernel's cache; a new size makes it fill a page.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let (sender, ended) = channel();
        let theirs = path.clone();
        std::thread::spawn(move || {
            let mut buf = vec![0; 4096];
            let file = std::fs::File::open(&theirs).unwrap();
            sender.send(std::os::unix::fs::FileExt::read_at(&file, &mut buf, 1 << 19))
        });
        until("the notify thread waits in the kernel", || {
            daemon.state_of("forebay-notify") == Some('D')
        });
        daemon.kill();
        let unmounted = lazy.then(|| {
            let dir = daemon.dir.clone();
            std::thread::spawn(move || unmount(&dir, true))
        });
        let read = all_return(&ended, 1).remove(0);
        assert!(read.is_err(), "{via}: {read:?}");
        until("the process ends", || daemon.child.try_wait().unwrap().is_some());
        match unmounted {
            Some(thread) => thread.join().unwrap().unwrap(),
            None => assert!(is_dead(&std::fs::metadata(&path).unwrap_err()), "{via}"),
        }
    }
}

/// G2, G3: the watchdog does not keep a mount busy, and ends with it.
#[test]
fn g2_g3_a_watchdog_ends_with_its_mount() {
    if !may_run() {
        return;
    }
    let mut daemon = Daemon::start(&[]);
    let of_daemon = |id: u32| -> Vec<u32> {
        let path = format!("/proc/{id}/task/{id}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    };
    let dogs = of_daemon(daemon.child.id());
    assert_eq!(dogs.len(), 1);
    unmount(&daemon.dir, false).unwrap();
    until("the daemon ends", || daemon.child.try_wait().unwrap().is_some());
    assert!(daemon.child.wait().unwrap().success());
    let gone = || !Path::new(&format!("/proc/{}", dogs[0])).exists();
    assert!(gone(), "the daemon has waited for it");
}

/// Reading went on, in this process, while another mount died.
#[test]
fn one_death_is_nobody_elses() {
    if !may_run() {
        return;
    }
    let (mut dead, alive) = (Daemon::start(&[]), Daemon::start(&[]));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::fs::write(alive.dir.join("f"), b"x").unwrap();
                assert_eq!(std::fs::read(alive.dir.join("f")).unwrap(), b"x");
            }
        });
        dead.kill();
        until("calls fail", || std::fs::metadata(dead.dir.join("x")).is_err_and(|e| is_dead(&e)));
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

/// U1, U3: a read that never ends holds up nobody else, and a request that panics is answered.
#[test]
fn u1_u3_a_request_in_trouble_is_its_own() {
    if !may_run() {
        return;
    }
    let mut daemon = Daemon::start(&["--kernel-cache", "never", "--stuck"]);
    let path = daemon.dir.join("file");
    std::fs::write(&path, [1; 8192]).unwrap();
    let (sender, ended) = channel();
    for _ in 0..16 {
        let (theirs, sender) = (path.clone(), sender.clone());
        std::thread::spawn(move || sender.send(std::fs::read(&theirs).map(|bytes| bytes.len())));
    }
    for n in 0..200 {
        if n % 64 == 0 {
            let panics = std::fs::metadata(daemon.dir.join("panic")).unwrap_err();
            assert_eq!(panics.raw_os_error(), Some(5));
        }
        std::fs::write(daemon.dir.join(format!("other-{n}")), b"x").unwrap();
    }
    assert!(ended.try_recv().is_err(), "a read that never ends");
    daemon.kill();
    for read in all_return(&ended, 16) {
        assert!(read.is_err());
    }
}
