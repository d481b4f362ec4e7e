//! How many descriptors the daemon needs.
//!
//! No locks.

use crate::daemon::{Daemon, PROGRAM, may_run};
use std::os::unix::fs::FileExt;
use std::process::Command;

/// The process needs few descriptors, whatever programs have open.
#[test]
fn sixty_four_descriptors_are_enough() {
    if !may_run() {
        return;
    }
    let mut command = Command::new("prlimit");
    command.args(["--nofile=64:64", PROGRAM]);
    let mut daemon = Daemon::run(command, &[]);
    let open = |n: usize| {
        let mut options = std::fs::File::options();
        options.create(true).truncate(true).write(true).read(true);
        options.open(daemon.dir.join(format!("file-{n}"))).unwrap()
    };
    let files: Vec<_> = (0..500).map(open).collect();
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(&n.to_string().into_bytes(), 0).unwrap();
    }
    assert_eq!(std::fs::read_dir(&daemon.dir).unwrap().count(), 500);
    drop(files);
    daemon.unmount();
    assert!(daemon.child.wait().unwrap().success());
}
