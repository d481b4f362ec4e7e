//! Threads of the library: they take no signal of the program that it is part of.
//!
//! Invariant: T1 a thread that is started here blocks every signal from its first instruction on,
//! and the caller's own mask is as before.
//!
//! No locks.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// The calling thread's mask of signals; put back on drop.
struct Masked(libc::sigset_t);

impl Masked {
    /// Blocks every signal on the calling thread.
    fn all() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `sigfillset` initialises `all`; `pthread_sigmask` reads it, and initialises
        // `before`: it fails only for an unknown first argument.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Self(before)
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that `pthread_sigmask` gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Starts a thread that blocks all signals (T1): a program that is interrupted by one runs its
/// handler on a thread of its own. Errors: the system gives no thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread inherits the mask of the one that starts it.
    let _masked = Masked::all();
    Builder::new().name(name.into()).spawn(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn spawn_blocks_all_signals_of_the_new_thread_only() {
        let before = blocked();
        let theirs = spawn("forebay-test", blocked).unwrap().join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGALRM, libc::SIGCHLD, 40] {
            assert!(theirs >> (signal - 1) & 1 == 1, "T1: signal {signal} of {theirs:#x}");
        }
        assert_eq!(blocked(), before, "T1");
    }
}
