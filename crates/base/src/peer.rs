//! The process at the other end of a local socket.
//!
//! Calls getsockopt directly, not through rustix: a peer in another PID namespace (a container) has
//! the PID 0 here, which rustix's `Pid` cannot hold.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// The peer's credentials when it connected, began to listen, or made the pair of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its PID in the PID namespace of this process; 0 if it is not visible there.
    pub pid: u32,
    /// Its effective user ID.
    pub uid: u32,
}

/// The peer of a connected Unix socket.
///
/// # Errors
/// Those of getsockopt(2): `socket` is no socket, or not connected.
pub fn peer(socket: impl AsFd) -> std::io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `found` and `len` live across the call, which writes at most `len` bytes into
    // `found`. Its three integers accept each bit pattern. `fd` is borrowed, so it is open.
    let done = unsafe {
        let into = (&raw mut found).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut len)
    };
    if done != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(Peer { pid: found.pid.unsigned_abs(), uid: found.uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn peer_of_socket_pair_is_this_process() {
        let (one, other) = UnixStream::pair().unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(peer(&one).unwrap(), Peer { pid: std::process::id(), uid });
        drop(other);
        assert!(peer(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
