//! Daemons that are killed: every call on their mounts returns.
//!
//! No locks.

use crate::daemon::{Daemon, PATIENCE, may_run, until};
use forebay_fuse::mount::unmount;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

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

/// Killed at any moment, on either type of mount: calls in progress and later ones fail as on a
/// dead mount.
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

/// A daemon was killed while its notify thread waited in the kernel for a page that a read of the
/// mount had locked. The read waited for the daemon, whose device the thread kept open: the mount
/// hung for ever. Its watchdog ends that (watchdog.G1). It does so too if the process dies before
/// the watchdog looks (watchdog.G4: it waited for ever for a thread that was gone), or if the mount
/// is taken out of the tree meanwhile.
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

/// watchdog.G2, watchdog.G3: the watchdog does not keep a mount busy, and ends with it.
#[test]
fn g2_g3_watchdog_ends_with_its_mount() {
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
    daemon.unmount();
    until("the daemon ends", || daemon.child.try_wait().unwrap().is_some());
    assert!(daemon.child.wait().unwrap().success());
    let gone = || !Path::new(&format!("/proc/{}", dogs[0])).exists();
    assert!(gone(), "the daemon has waited for it");
}

/// Reading went on, in this process, while another mount died.
#[test]
fn killed_mount_leaves_other_mount_reading() {
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

/// fuse.U1, fuse.U3: a read that never ends delays no other call, and a request that panics is
/// answered.
#[test]
fn u1_u3_stuck_or_panicking_request_affects_no_other() {
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
