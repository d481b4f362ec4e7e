//! The cost of BLOCK_STATUS requests of four clients to a fifth one. The image is a checkerboard of
//! 4 KiB blocks; the four query its complete map again and again, while the fifth reads 4 KiB at a
//! time.
//!
//! Invariant: D4 the four query all the time: a client that has the complete map starts again.

use super::client::{BLOCK, Cores, ours_kind, slice};
use crate::harness::alternate::{Plan, Variant, alternate};
use crate::harness::image::{Image, open_with};
use crate::harness::load::Slice;
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::fio::FioJob;
use crate::rivals::server::{Kind, Server, program_exists};
use forebay_base::units::MIB;
use forebay_base::{Error, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// Clients that query the map.
const ASKING: usize = 4;
/// Bar: the reader's p99, us.
const P99_US: f64 = 5000.0;

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    if !program_exists("nbdinfo") {
        report.not_run("reads during BLOCK_STATUS", "no nbdinfo");
        return Ok(());
    }
    // On a disk more pieces take minutes; for 4 GiB in memory use `--size 4G --dir /dev/shm`.
    let size = options.size_or(16 << 20, 256 << 20);
    let image = Image::create(&options.dir, "nbd-status", MIB, options.keep)?;
    write_every_other(&image, size)?;
    let unpinned = Cores { client: None, server: None };
    let servers = [
        ("ours", ours_kind(options, 256 << 20, "cached")),
        ("nbdkit-file", Kind::Nbdkit(["file", "IMAGE"].map(String::from).to_vec())),
        ("qemu-nbd", Kind::Qemu(Vec::new())),
    ];
    let mut usable = Vec::new();
    for (name, kind) in servers {
        match Server::start(&kind, image.path(), None, None) {
            Ok(_) => usable.push((name, kind)),
            Err(e) => report.left_out(&format!("{name}, BLOCK_STATUS"), e),
        }
    }
    let maps: Vec<AtomicU64> = usable.iter().map(|_| AtomicU64::new(0)).collect();
    let mut variants = Vec::new();
    for ((name, kind), maps) in usable.iter().zip(&maps) {
        let image = &image;
        variants.push(Variant::new(name, move |turn| {
            // One server at a time, because each locks the image.
            let server = Server::start(kind, image.path(), None, None)?;
            let job = FioJob::single("randread", turn);
            during_map_requests(&server.uri, maps, || slice(&server, job, unpinned))
        }));
    }
    let plan = Plan::simple(options, options.rounds_or(1, 2), options.millis(300, 5000));
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    outcome.add_rows(report, "nbd_beside_block_status");
    for ((name, _), maps) in usable.iter().zip(&maps) {
        report.row(name, "nbd_block_status_maps", "1", &[maps.load(Ordering::Relaxed) as f64]);
    }
    let rivals = [("nbdkit-file", "nbdkit file"), ("qemu-nbd", "qemu-nbd")];
    let cell = "reads while a client asks for the map of a large image";
    outcome.compare(report, cell, "ours", &rivals);
    let p99 = |s: &Slice| s.hist.percentile(99.0) as f64 / 1000.0;
    let ours: Vec<f64> = outcome.per_round("ours").iter().map(p99).collect();
    report.ratio_with_bar("nbd_p99_us_beside_block_status", median(&ours), Good::AtMost, P99_US);
    Ok(())
}

/// Makes a checkerboard of the image: data in every other block of 4 KiB.
fn write_every_other(image: &Image, size: u64) -> Result<()> {
    let file = open_with(image.path(), OFlags::RDWR)?;
    let made = |result: std::io::Result<()>| {
        result.map_err(|e| Error::from_io("make a checkerboard", e).with_path(image.path()))
    };
    made(file.set_len(0))?;
    for at in (0..size).step_by(2 * BLOCK as usize) {
        made(file.write_all_at(&[0x5a; BLOCK as usize], at))?;
    }
    made(file.set_len(size))?;
    made(file.sync_all())
}

/// Signals the end of the measurement; a thread that waits for a program observes it at once.
struct Over(OwnedFd);

impl Over {
    fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        fd.map(Self).map_err(|e| Error::from_io("make an eventfd", e.into()))
    }

    fn set(&self) {
        let one = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        one.expect("a counter of one takes another");
    }

    fn is_set(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Waits for the signal, or for the end of a program; true if it was the signal.
    fn wait_or_end_of(&self, child: &Child) -> Result<bool> {
        let failed = |e: rustix::io::Errno| Error::from_io("wait for nbdinfo", e.into());
        let pid = Pid::from_raw(child.id() as i32).expect("a program has a number");
        let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
        loop {
            let mut fds = [&self.0, &ended].map(|fd| PollFd::new(fd, PollFlags::IN));
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(failed(e)),
                Ok(_) => return Ok(!fds[0].revents().is_empty()),
            }
        }
    }
}

/// A program that queries the complete map; killed on drop.
struct Asking(Child);

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `client` while other clients query the map.
fn during_map_requests(
    uri: &str,
    maps: &AtomicU64,
    client: impl FnOnce() -> Result<Slice>,
) -> Result<Slice> {
    let over = Over::new()?;
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..ASKING).map(|_| scope.spawn(|| ask(uri, maps, &over))).collect();
        let done = client();
        let throughout = !asking.iter().any(|one| one.is_finished());
        over.set();
        for one in asking {
            one.join().expect("a thread that asks does not panic")?;
        }
        assert!(throughout, "D4: a client has stopped without an error");
        done
    })
}

/// Runs with low priority, so that the reader competes with these clients for the server, not for
/// the CPU.
fn ask(uri: &str, maps: &AtomicU64, over: &Over) -> Result<()> {
    while !over.is_set() {
        let mut command = Command::new("nice");
        command.args(["-n", "19", "nbdinfo", "--map", uri]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| Error::from_io("start nbdinfo", e))?;
        let mut asking = Asking(child);
        loop {
            let ended = asking.0.try_wait().map_err(|e| Error::from_io("wait for nbdinfo", e))?;
            if let Some(status) = ended {
                if !status.success() && !over.is_set() {
                    let mut said = String::new();
                    if let Some(mut pipe) = asking.0.stderr.take() {
                        let _ = pipe.read_to_string(&mut said);
                    }
                    let text = format!("--map {uri}: {status}: {}", said.trim());
                    return Err(Error::new(forebay_base::ErrorKind::Io, "nbdinfo", text));
                }
                maps.fetch_add(1, Ordering::Relaxed);
                break;
            }
            if over.wait_or_end_of(&asking.0)? {
                return Ok(());
            }
        }
    }
    Ok(())
}
