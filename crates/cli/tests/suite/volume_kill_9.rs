//! An export of a file of a volume is killed while fio writes, each block with a checksum and
//! syncing now and then; and started again at once: each block is a whole one that fio wrote, and
//! the volume is whole. (That nothing acknowledged is lost is in `kill_9.rs`, whose client knows
//! what was.)

use crate::common::{Folder, until};
use std::process::{Child, Command, Stdio};

/// A process that ends with the test.
struct Fio(Child);

impl Drop for Fio {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

const SIZE: &str = "--size=16M";

fn fio(folder: &Folder, uri: &str, words: &[&str]) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=kill", "--ioengine=nbd", &format!("--uri={uri}"), SIZE, "--bs=4k"]);
    command.args(["--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", "--randseed=3"]);
    command.args(words).current_dir(folder.path(""));
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    command
}

#[test]
fn export_killed_under_fio_has_no_torn_blocks() {
    let folder = Folder::new();
    folder.ok(&["create", "v", "--size", "1G"]);
    let disk = std::fs::File::create(folder.path("disk")).unwrap();
    disk.set_len(16 << 20).unwrap();
    folder.ok(&["cp", "disk", "v:/"]);
    let words = ["v:/disk", "--cache-size", "16M"];
    let mut server = folder.serve(&words);
    for turn in 0..4 {
        // Everything once: whole blocks with their sums, and durable.
        let (done, running) = (["--fsync=64", "--end_fsync=1", "--do_verify=0"], ["--fsync=1"]);
        let status = fio(&folder, &server.uri, &done).status().expect("fio is there");
        assert!(status.success(), "turn {turn}: {status}");
        // Again and again, each write synced, until the server is killed.
        let words_on = [&running[..], &["--time_based", "--runtime=600", "--do_verify=0"]].concat();
        let mut writer = Fio(fio(&folder, &server.uri, &words_on).spawn().expect("fio is there"));
        let syncs = |server: &crate::common::Server| {
            let stat = folder.ok(&["stat", "--pid", &server.pid().to_string(), "--json"]);
            crate::common::number(&stat, "flushes")
        };
        let before = syncs(&server);
        until("it syncs", || syncs(&server) > before + 50 * (turn + 1));
        server.signal("KILL");
        let again = folder.serve(&words);
        std::mem::replace(&mut server, again).wait();
        until("fio gives up", || writer.0.try_wait().is_ok_and(|status| status.is_some()));
        // Old or new, each block is one that fio has written, and whole.
        let verify =
            fio(&folder, &server.uri, &["--verify_only", "--verify_state_load=0"]).status();
        assert!(verify.expect("fio is there").success(), "turn {turn}: a block is of no write");
    }
    server.stop();
    let said = folder.ok(&["fsck", "v"]);
    assert!(
        said.contains("checked 2 inodes") && said.contains("0 problems, 0 bad copies"),
        "{said}"
    );
}
