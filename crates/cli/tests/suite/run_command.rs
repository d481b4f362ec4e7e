//! `--run`: the command gets its URI, its status is ours, and nothing is left behind.

use crate::common::{Folder, bytes, stderr};

#[test]
fn its_status_passes_through() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    for (command, status) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)] {
        let output =
            folder.forebay(&["export", "disk.img", "--cache-size", "16M", "--run", command]);
        assert_eq!(output.status.code(), Some(status), "{command}: {}", stderr(&output));
    }
}

#[test]
fn run_command_reaches_export_and_its_writes_persist() {
    let folder = Folder::new();
    let image = folder.image("disk.img", 1 << 20);
    let command = "test -S \"$unixsocket\" && test -z \"$port\" && \
                   qemu-io -f raw -c 'write -q -P 90 8k 4k' \"$uri\"";
    let out = folder.ok(&["export", "disk.img", "--cache-size", "16M", "--run", command]);
    assert!(out.starts_with("nbd+unix:///?socket="), "{out}");
    assert_eq!(bytes(&image)[8192..12288], [90; 4096]);
    let left: Vec<_> = std::fs::read_dir(folder.path("."))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .filter(|n| n.to_string_lossy().starts_with("forebay-nbd"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn run_command_uri_is_first_export() {
    let folder = Folder::new();
    folder.image("a.img", 1 << 20);
    folder.image("b.img", 2 << 20);
    let command = "test \"$exportname\" = x && nbdinfo --size \"$uri\"";
    let words = ["export", "x=a.img", "b.img", "--cache-size", "16M", "--run", command];
    let out = folder.ok(&words);
    assert_eq!(out.lines().last(), Some("1048576"), "{out}");
}
