//! PR_SET_IO_FLUSHER: a thread that needs memory must not wait for a write-out that it has to do
//! itself. When a marked thread needs memory the kernel starts no I/O for it, and it throttles the
//! thread less than other writers of dirty pages. Needs CAP_SYS_RESOURCE.

use std::sync::atomic::{AtomicI32, Ordering};

const UNTRIED: i32 = -1;
/// Result of the latest attempt to mark a thread: [`UNTRIED`], 0, or an errno.
static OUTCOME: AtomicI32 = AtomicI32::new(UNTRIED);

/// Marks the calling thread, if the process may. If the first attempt fails, it is logged.
pub fn mark_thread() {
    let outcome = match rustix::process::configure_io_flusher_behavior(true) {
        Ok(()) => 0,
        Err(e) => e.raw_os_error(),
    };
    if OUTCOME.swap(outcome, Ordering::Relaxed) == UNTRIED && outcome != 0 {
        log::info!("threads that write out are ordinary ones: {}", explain(outcome));
    }
}

fn explain(errno: i32) -> String {
    let e = std::io::Error::from_raw_os_error(errno);
    match e.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "PR_SET_IO_FLUSHER needs CAP_SYS_RESOURCE".to_string()
        }
        _ => format!("PR_SET_IO_FLUSHER: {e}"),
    }
}

/// Whether this process may mark threads, or why not. Tries it on a thread that ends at once, so
/// that the caller's own thread is unchanged.
///
/// # Errors
/// The reason in words.
pub fn probe() -> Result<(), String> {
    let tried = std::thread::Builder::new().spawn(|| {
        rustix::process::configure_io_flusher_behavior(true).map_err(|e| explain(e.raw_os_error()))
    });
    let tried = tried.map_err(|e| format!("no thread to try it on: {e}"))?;
    tried.join().unwrap_or_else(|_| Err("the thread that tried it died".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_thread_marks_where_probe_succeeds() {
        let marked = std::thread::spawn(|| {
            let before = rustix::process::is_io_flusher();
            mark_thread();
            (before, rustix::process::is_io_flusher())
        });
        let (before, after) = marked.join().unwrap();
        match probe() {
            Ok(()) => assert_eq!((before, after), (Ok(false), Ok(true))),
            // A process that may not set the flag may not query it either.
            Err(why) => assert!(after != Ok(true) && why.contains("PR_SET_IO_FLUSHER"), "{why}"),
        }
    }
}
