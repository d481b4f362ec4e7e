//! Common parts of the tests: requirements on the system, patterns, and memory in pieces.
use forebay_base::Result;
use forebay_base::buf::{AlignedBuf, DataRef, IoMem, Segment};
use forebay_base::task::block_on;
use forebay_base::world::split_mix;
use forebay_block::{Aio, BioFlags, BioOp, BlockDevice, Engine, io};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How long anything may take before a test gives up. Not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A fresh path in the tests' own directory.
pub fn path(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

/// Whether the test may go on. A missing requirement fails the test, or with `FOREBAY_ALLOW_SKIP=1`
/// prints that it skips.
pub fn requires(what: &str, there: bool) -> bool {
    if !there {
        let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
        assert!(allowed, "this test requires {what}");
        eprintln!("skipped: requires {what}");
    }
    there
}

/// The engine, if this system has it: containers forbid io_uring.
pub fn engine(aio: Aio) -> Option<Engine> {
    let engine = Engine::new(aio);
    requires(&format!("{aio}: {engine:?}"), engine.is_ok()).then(|| engine.unwrap())
}

/// Both engines, each requested by name: `Auto` could silently use threads twice.
pub fn engines() -> impl Iterator<Item = (Aio, Engine)> {
    [Aio::Threads, Aio::IoUring].into_iter().filter_map(|aio| Some((aio, engine(aio)?)))
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn run(command: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(command).args(args).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_string())
}

/// A loop device, gone when dropped.
pub struct Loop(pub PathBuf, PathBuf);

impl Loop {
    pub fn new(name: &str, size: u64) -> Option<Self> {
        let backing = path(name);
        std::fs::File::create(&backing).unwrap().set_len(size).unwrap();
        let device = run("losetup", &["--find", "--show", backing.to_str()?])?;
        Some(Self(device.into(), backing))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.0.to_str().unwrap_or_default()]);
        let _ = std::fs::remove_file(&self.1);
    }
}

/// A mounted tmpfs, unmounted when dropped.
pub struct Tmpfs(pub PathBuf);

impl Tmpfs {
    pub fn new(name: &str, size: &str) -> Option<Self> {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        run("umount", &[dir.to_str()?]);
        std::fs::create_dir_all(&dir).ok()?;
        let option = format!("size={size}");
        run("mount", &["-t", "tmpfs", "-o", &option, "none", dir.to_str()?])?;
        Some(Self(dir))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        run("umount", &["--lazy", self.0.to_str().unwrap_or_default()]);
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Random numbers from a seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, limit: u64) -> u64 {
        split_mix(&mut self.0) % limit
    }
}

/// Bytes that differ from block to block and from seed to seed.
pub fn pattern(len: usize, seed: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len);
    let mut state = seed;
    for chunk in buf.chunks_mut(8) {
        chunk.copy_from_slice(&split_mix(&mut state).to_le_bytes()[..chunk.len()]);
    }
    buf
}

/// One request, submitted and waited for.
pub fn submit(
    device: &dyn BlockDevice,
    op: BioOp,
    offset: u64,
    len: u64,
    data: DataRef,
    flags: BioFlags,
) -> Result<DataRef> {
    let done = block_on(io(device, op, offset, len, data, flags));
    done.result.map(|()| done.data)
}

/// A request without data.
pub fn plain(device: &dyn BlockDevice, op: BioOp, offset: u64, len: u64) -> Result<()> {
    submit(device, op, offset, len, DataRef::None, BioFlags::empty()).map(drop)
}

/// Memory in many pieces.
pub struct Pieces(pub Vec<AlignedBuf>);

// SAFETY: the buffers own their memory, do not move it, and no other reference to them exists.
unsafe impl IoMem for Pieces {
    fn segments(&mut self, out: &mut Vec<Segment>) {
        self.0.iter_mut().for_each(|buf| buf.segments(out));
    }
}
