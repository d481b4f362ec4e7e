//! Threads of the library. The signals of the program are handled on the program's own threads.
//!
//! Invariant: T1 a thread started here blocks every signal but the faults from its first
//! instruction on, and the caller's mask is unchanged. A thread raises a fault itself: if it blocks
//! the signal, the kernel kills the program without running its handler.
//!
//! No locks.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Signals that a thread raises itself: by an instruction, a system call, or abort(3).
const FAULTS: [libc::c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSYS,
    libc::SIGTRAP,
    libc::SIGABRT,
];

/// The calling thread's mask of signals; put back on drop.
struct Masked(libc::sigset_t);

impl Masked {
    /// Blocks every signal but the faults on the calling thread.
    fn all_but_faults() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `sigfillset` initialises `all`, which `sigdelset` changes and `pthread_sigmask`
        // reads. `pthread_sigmask` initialises `before`: it fails only for an unknown first
        // argument.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
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

/// Starts a thread that blocks all signals but the faults (thread.T1), so the program's signal
/// handlers run on its own threads. Fails if the system refuses a thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread inherits the mask of the one that starts it.
    let _masked = Masked::all_but_faults();
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

    /// The story: the threads blocked faults, too. A fault killed the program, and the program's
    /// handler of the signal did not run.
    #[test]
    fn spawned_thread_blocks_all_signals_but_faults() {
        let before = blocked();
        let theirs = spawn("forebay-test", blocked).unwrap().join().unwrap();
        let is_blocked = |signal: libc::c_int| theirs >> (signal - 1) & 1 == 1;
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGALRM, libc::SIGCHLD, 40] {
            assert!(is_blocked(signal), "T1: signal {signal} of {theirs:#x}");
        }
        // The numbers are those of signal(7): SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV,
        // SIGSYS.
        for fault in [4, 5, 6, 7, 8, 11, 31] {
            assert!(!is_blocked(fault), "T1: fault {fault} of {theirs:#x}");
        }
        assert_eq!(blocked(), before, "T1");
    }
}
