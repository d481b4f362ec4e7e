//! One fio run of the bench `loop`: jobs in one image, over NBD or on a loop device, or in files,
//! timed until their writes are synced.
//!
//! Invariant: J1 the time of a slice is fio's run time and the time of the sync after it. It does
//! not include fio's start, connection and report.

use crate::harness::load::Slice;
use crate::harness::meter::looking;
use crate::rivals::connection::Connection;
use crate::rivals::fio;
use forebay_base::units::MIB;
use forebay_base::{Error, ErrorKind, Result};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of the cache of ours.
pub const BUDGET: u64 = 64 * MIB;
/// Bytes in addition for the process, in its memory cgroup.
pub const OVERHEAD: u64 = 256 * MIB;
/// fio's `rw` of each cell, and its bar over the image opened buffered.
pub const PATTERNS: [(&str, f64); 4] =
    [("randread", 0.97), ("read", 0.97), ("randwrite", 1.0), ("write", 0.97)];
/// Suffix, jobs, and each job's share of the image. The patch has 16 x 400M and 1 x 4000M.
pub const LAYOUTS: [(&str, u32, u64, u64); 2] = [("16jobs", 16, 1, 16), ("1job", 1, 5, 8)];
/// Bar: MiB in the page cache in addition to I/O in flight.
pub const GROWTH_MIB: f64 = 16.0;

/// Jobs of one kind, each in its own part of the image, or in its own file.
#[derive(Clone, Copy, Debug)]
pub struct Jobs {
    /// fio's `rw`.
    pub rw: &'static str,
    /// Bytes of a request.
    pub block: u64,
    /// Number of jobs, each with its own connection.
    pub count: u32,
    /// Requests in flight for each job.
    pub depth: u32,
    /// Bytes for each job.
    pub each: u64,
    /// Longest time; a sequential job ends earlier, at the end of its part.
    pub millis: u64,
    /// Seed of the offsets.
    pub seed: u64,
}

/// What fio reads and writes.
pub enum Place<'a> {
    /// An NBD server on this socket.
    Nbd(&'a Path),
    /// A block device, through the kernel's page cache.
    Device(&'a Path),
    /// Files of a directory through the kernel's page cache: NAME.0 for the first job, and so on.
    Files(&'a Path, &'static str),
}

impl Default for Jobs {
    /// One job without bytes that reads 4 KiB at a time.
    fn default() -> Self {
        Self { rw: "read", block: 4096, count: 1, depth: 1, each: 0, millis: 0, seed: 0 }
    }
}

impl Jobs {
    /// These jobs with the time and seed of one slice.
    pub fn for_turn(&self, time: Duration, seed: u64) -> Self {
        Self { millis: time.as_millis() as u64, seed, ..*self }
    }

    /// Whether the jobs write, so that a sync is needed.
    pub fn writes(&self) -> bool {
        self.rw.ends_with("write")
    }

    fn command(&self, place: &Place<'_>, procs: Option<&Path>) -> Command {
        let mut command = Command::new("sh");
        // The shell joins the cgroup before it becomes fio.
        command.args(["-c", "test -z \"$0\" || echo $$ > \"$0\" || exit 1; exec fio \"$@\""]);
        command.arg(procs.unwrap_or(Path::new("")));
        match place {
            Place::Nbd(socket) => {
                let uri = format!("nbd+unix:///?socket={}", socket.display());
                command.arg("--ioengine=nbd").arg(format!("--uri={uri}"));
            }
            Place::Device(path) => {
                command.arg("--ioengine=psync").arg("--direct=0");
                command.arg(format!("--filename={}", path.display()));
            }
            Place::Files(dir, name) => {
                command.arg("--ioengine=psync").arg("--direct=0");
                command.arg(format!("--directory={}", dir.display()));
                command.arg(format!("--filename_format={name}.$jobnum"));
            }
        }
        command.args(["--name=job", "--thread=1", "--group_reporting=1", "--norandommap=1"]);
        command.args(["--randrepeat=0", "--allow_file_create=0"]);
        let Self { rw, block, count, depth, each, millis, seed } = self;
        command.arg(format!("--rw={rw}")).arg(format!("--bs={block}"));
        command.arg(format!("--numjobs={count}")).arg(format!("--iodepth={depth}"));
        command.arg(format!("--size={each}"));
        if !matches!(place, Place::Files(..)) {
            command.arg(format!("--offset_increment={each}"));
        }
        command.arg(format!("--runtime={millis}ms")).arg(format!("--randseed={seed}"));
        if rw.starts_with("rand") {
            command.arg("--time_based=1");
        }
        command
    }

    /// Runs the jobs, then `sync`, which is included in the time. Calls `each_look` every 50 ms.
    pub fn run(
        &self,
        place: &Place<'_>,
        procs: Option<&Path>,
        mut each_look: impl FnMut(),
        sync: impl FnOnce() -> Result<()>,
    ) -> Result<Slice> {
        let command = self.command(place, procs);
        let time = Duration::from_millis(self.millis);
        let client = move || fio::run_command(command, time);
        let ran = looking(Duration::from_millis(50), &mut each_look, client);
        let mut slice = ran?.pop().unwrap_or_default();
        if slice.ops == 0 {
            return Err(Error::new(ErrorKind::Io, "fio", "it transferred nothing"));
        }
        if self.writes() {
            let start = Instant::now();
            sync()?;
            slice.seconds += start.elapsed().as_secs_f64();
        }
        Ok(slice)
    }
}

/// Connects to an NBD server's default export and sends a flush.
pub fn nbd_flush(socket: &Path) -> Result<()> {
    Connection::open(socket)?.flush()
}
