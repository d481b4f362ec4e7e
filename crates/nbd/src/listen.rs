//! Listening sockets: a Unix socket file that belongs to one server, or a TCP port.
//!
//! Invariants:
//! 1. A socket file is replaced only if no server listens on it. Servers that find the same stale
//!    file at once are serialized by a lock on the directory, so that all but one of them fail.
//! 2. The file always has mode 0600: the socket has it before `bind`, which gives it to the file.
//!    No call sets a mode by path, because another user of the directory could have put a hard link
//!    to another file there.
//! 3. At the end the file is removed if it is still the one that this server made.

use forebay_base::{Error, ErrorKind, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BACKLOG: i32 = 1024;
/// Probes of a silent TCP peer: their interval, their number, and the shortest silence before them.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;
const PROBE_MIN: Duration = Duration::from_secs(1);

/// A listening socket.
pub(crate) struct Listener {
    fd: OwnedFd,
    /// Path of the socket file, with its device and inode number.
    file: Option<(PathBuf, (u64, u64))>,
}

fn failed(op: &'static str, e: Errno) -> Error {
    Error::from_io(op, e.into())
}

impl Listener {
    /// Listens on a socket file. `Busy`: another server listens there, or the file is not a socket.
    pub fn unix(path: &Path) -> Result<Self> {
        Self::unix_at(path).map_err(|e| e.with_path(path))
    }

    fn unix_at(path: &Path) -> Result<Self> {
        const OP: &str = "listen";
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(dir, flags, Mode::empty()).map_err(|e| failed(OP, e))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|e| failed(OP, e))?;
        let address = SocketAddrUnix::new(path).map_err(|e| failed(OP, e))?;
        remove_stale(path, &address)?;
        let fd = stream_socket().map_err(|e| failed(OP, e))?;
        let go = || -> rustix::io::Result<(u64, u64)> {
            rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
            rustix::net::bind(&fd, &address)?;
            let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
            rustix::net::listen(&fd, BACKLOG)?;
            Ok((stat.st_dev, stat.st_ino))
        };
        let id = go().map_err(|e| failed(OP, e))?;
        Ok(Self { fd, file: Some((path.to_path_buf(), id)) })
    }

    /// Listens on a TCP port; returns the address, since port 0 selects any free port.
    pub fn tcp(address: SocketAddr) -> Result<(Self, SocketAddr)> {
        let go = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let local = listener.local_addr()?;
            Ok((Self { fd: listener.into(), file: None }, local))
        };
        go().map_err(|e| Error::from_io("listen", e))
    }

    /// Accepts a connection; a peer is probed after `keepalive` of silence. `AGAIN`: there is none.
    pub fn accept(&self, keepalive: Duration) -> rustix::io::Result<OwnedFd> {
        let fd = rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        if self.file.is_none() {
            // If the peer has disconnected, these calls fail, and reading the socket reports it.
            let _ = sockopt::set_tcp_nodelay(&fd, true);
            if !keepalive.is_zero() {
                let _ = sockopt::set_socket_keepalive(&fd, true);
                let _ = sockopt::set_tcp_keepidle(&fd, keepalive.max(PROBE_MIN));
                let _ = sockopt::set_tcp_keepintvl(&fd, PROBE_EVERY);
                let _ = sockopt::set_tcp_keepcnt(&fd, PROBES);
            }
        }
        Ok(fd)
    }

    /// The descriptor for epoll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The kind of socket for the log.
    pub fn kind(&self) -> &'static str {
        if self.file.is_some() { "unix" } else { "tcp" }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, id)) = &self.file else { return };
        let ours = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == *id);
        if ours && let Err(e) = rustix::fs::unlink(path) {
            log::warn!("nbd: socket {} stays behind: {e}", path.display());
        }
    }
}

fn stream_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    const OP: &str = "listen";
    let stat = match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(failed(OP, e)),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Error::new(ErrorKind::Busy, OP, "the file is there and is not a socket"));
    }
    let probe = stream_socket().map_err(|e| failed(OP, e))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // A full backlog (AGAIN) also means that a server listens.
        _ => return Err(Error::new(ErrorKind::Busy, OP, "another server listens there")),
    }
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(failed(OP, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::net::TcpStream;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    /// How many sockets the other user has to take in the race, and the longest time for that: a
    /// machine where the two threads seldom run at the same time takes long.
    const TAKEN: u64 = 30;
    const PATIENCE: Duration = Duration::from_secs(300);

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// The story: the mode was set by path after `bind`. In between another user of the directory
    /// put a hard link to another file there. That file became private, and the socket, which the
    /// user had renamed, did not.
    #[test]
    fn socket_replaced_by_hard_link_leaves_linked_file_unchanged() {
        let dir = std::env::temp_dir().join(format!("forebay-listen-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let [path, victim, link, own] = ["sock", "victim", "link", "own"].map(|n| dir.join(n));
        fs::write(&victim, "precious").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o644)).unwrap();
        let (is_over, taken, open) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    drop(fs::hard_link(&victim, &link));
                    let is_socket = fs::rename(&path, &own).is_ok()
                        && fs::symlink_metadata(&own).unwrap().file_type().is_socket();
                    drop(fs::rename(&link, &path));
                    if is_socket {
                        taken.fetch_add(1, Ordering::Relaxed);
                        open.fetch_add(u64::from(mode(&own) != 0o600), Ordering::Relaxed);
                    }
                    drop((fs::remove_file(&own), fs::remove_file(&path)));
                }
            });
            let end = Instant::now() + PATIENCE;
            while taken.load(Ordering::Relaxed) < TAKEN && Instant::now() < end {
                drop(Listener::unix(&path));
            }
            is_over.store(true, Ordering::Release);
        });
        let (taken, open) = (taken.into_inner(), open.into_inner());
        println!("{taken} sockets were taken, {open} of them with another mode");
        assert_eq!((mode(&victim), open), (0o644, 0), "{taken} sockets were taken");
        assert!(taken >= TAKEN, "{taken} sockets were taken");
        fs::remove_dir_all(&dir).unwrap();
    }

    /// The story: a client whose machine was switched off kept its connection and its memory for
    /// ever.
    #[test]
    fn tcp_silent_client_is_probed() {
        let (listener, address) = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
        for (keepalive, probed) in [(30, Some(30)), (0, None)] {
            let _client = TcpStream::connect(address).unwrap();
            let fd = listener.accept(Duration::from_secs(keepalive)).unwrap();
            assert_eq!(sockopt::socket_keepalive(&fd).unwrap(), probed.is_some());
            if let Some(seconds) = probed {
                assert_eq!(sockopt::tcp_keepidle(&fd).unwrap(), Duration::from_secs(seconds));
                assert_eq!(sockopt::tcp_keepintvl(&fd).unwrap(), PROBE_EVERY);
                assert_eq!(sockopt::tcp_keepcnt(&fd).unwrap(), PROBES);
            }
        }
    }
}
