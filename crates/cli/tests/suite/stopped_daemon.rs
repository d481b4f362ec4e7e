//! A daemon that is stopped, on a mount with `request_timeout=`: the kernel's own limit ends the
//! connection.
//!
//! The limit that the daemon asks for is 750 s at least. So the test lowers the largest one of the
//! machine to 15 s, the kernel's least, while it mounts. All mounts that begin meanwhile get it, so
//! only `make test-long` runs the test, while no other step runs.

use crate::common::place::{Place, may_run, until_stopped};
use crate::common::until;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Largest limit of a connection, in seconds; 0 for none. A connection keeps that of its beginning.
const LARGEST: &str = "/proc/sys/fs/fuse/max_request_timeout";

/// Restores the machine's limit when it is dropped.
struct Lowered(String);

impl Lowered {
    fn to(seconds: &str) -> Self {
        let before = std::fs::read_to_string(LARGEST).unwrap();
        std::fs::write(LARGEST, seconds).unwrap();
        Self(before)
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        std::fs::write(LARGEST, self.0.trim()).expect("the limit of the machine is restored");
    }
}

/// A stopped process. It continues when this is dropped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _is_gone = kill_process(self.0, Signal::CONT);
    }
}

fn may_lower() -> bool {
    let is_there = Path::new(LARGEST).exists();
    let is_allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    assert!(is_there || is_allowed, "this test requires {LARGEST}");
    is_there && may_run()
}

/// Calls in progress and later ones end with an error, the mount can be removed while the daemon is
/// still stopped, and the daemon ends once it continues. What was synced is there.
#[test]
#[ignore = "lowers a limit of the whole machine; `make test-long` runs it alone"]
fn stopped_daemon_ends_its_calls_by_the_kernels_limit() {
    if !may_lower() {
        return;
    }
    let place = Place::new(64 << 20);
    let lowered = Lowered::to("15");
    place.mount("cache=own,request_timeout=300");
    drop(lowered);
    let mut options = std::fs::File::options();
    options.create(true).truncate(true).read(true).write(true);
    let file = options.open(place.mnt("file")).unwrap();
    file.write_all_at(&[7; 65_536], 0).unwrap();
    file.sync_all().unwrap();
    let daemon = place.pid();
    let pid = Pid::from_raw(daemon).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = Stopped(pid);
    until_stopped(daemon);
    let (ended, end) = channel();
    std::thread::spawn(move || {
        let call = || file.read_at(&mut [0; 4096], 0).map_err(|e| Errno::from_io_error(&e));
        let _is_waited_for = ended.send([call(), call()]);
    });
    // Less than the limit that the daemon asks for.
    let calls = end.recv_timeout(Duration::from_secs(240)).expect("the kernel's limit ends them");
    for call in calls {
        let error = call.expect_err("it cannot be answered");
        assert!(matches!(error, Some(Errno::CONNABORTED | Errno::NOTCONN)), "{error:?}");
    }
    place.umount();
    drop(stopped);
    let process = PathBuf::from(format!("/proc/{daemon}"));
    until("the daemon's end", || !process.exists());
    place.folder.ok(&["fsck", "vol"]);
    let content = place.folder.path("copy");
    place.folder.ok(&["cp", "vol:/file", content.to_str().unwrap()]);
    assert_eq!(std::fs::read(content).unwrap(), [7; 65_536]);
}
