//! A second signal ends the process at once, with status 1 and the number of bytes that were not
//! written. The image lies on a device that takes seconds for each write: nbdkit's delay filter
//! behind nbdfuse.

use crate::common::{Folder, until};
use std::process::{Child, Command, Stdio};

struct Slow {
    nbdkit: Child,
    nbdfuse: Child,
    mount: std::path::PathBuf,
}

impl Slow {
    fn start(folder: &Folder) -> Self {
        let (socket, mount) = (folder.path("slow.sock"), folder.path("slow"));
        std::fs::create_dir(&mount).unwrap();
        let quiet = |command: &mut Command| {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        let mut command = Command::new("nbdkit");
        command.arg("-f").arg("-U").arg(&socket);
        command.args(["--filter=delay", "memory", "16M", "wdelay=3"]);
        let nbdkit = quiet(&mut command).expect("nbdkit starts; see `cargo xtask requires`");
        until("nbdkit's socket", || socket.exists());
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let mut command = Command::new("nbdfuse");
        command.arg(&mount).arg(uri);
        let nbdfuse = quiet(&mut command).expect("nbdfuse starts; see `cargo xtask requires`");
        until("nbdfuse's file", || mount.join("nbd").exists());
        Self { nbdkit, nbdfuse, mount }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.nbdkit.kill();
        let _ = self.nbdkit.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.mount).status();
        let _ = self.nbdfuse.kill();
        let _ = self.nbdfuse.wait();
    }
}

#[test]
fn second_signal_ends_at_once_and_reports_unwritten_data() {
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        assert!(
            std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1"),
            "nothing may be missing here"
        );
        eprintln!("not run: /dev/fuse cannot be opened");
        return;
    }
    let folder = Folder::new();
    let _slow = Slow::start(&folder);
    let mut server =
        folder.export(&["slow/nbd", "--cache-size", "16M", "--direct-io", "off", "-v"]);
    let mut client = server.client("");
    for block in 0..64_u64 {
        client.write(block * 65536, &[1; 4096]).unwrap();
    }
    client.disconnect();
    server.signal("TERM");
    server.until_it_says("a second signal ends at once");
    server.signal("TERM");
    let (status, text) = server.wait();
    assert_eq!(status.code(), Some(1), "{text}");
    let line = text.lines().find(|l| l.contains("not written")).unwrap_or_else(|| panic!("{text}"));
    let bytes: u64 =
        line.split_whitespace().find_map(|w| w.parse().ok()).expect("a number of bytes");
    assert!((4096..=64 * 4096).contains(&bytes), "{line}");
    assert!(!folder.path("sock").exists() && !folder.path("ctl").exists());
}
