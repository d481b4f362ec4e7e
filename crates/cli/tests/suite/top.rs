//! `forebay top`: what it says when it is not on a terminal, and that it leaves a terminal as it
//! was.

use crate::common::{Folder, output};
use serde_json::Value;

#[test]
fn once_in_lines_and_as_json() {
    let folder = Folder::new();
    folder.image("disk\u{1b}[2J.img", 4 << 20);
    let image = "disk=disk\u{1b}[2J.img";
    let server = folder.export(&[image, "--cache-size", "32M"]);
    let mut client = server.client("disk");
    client.read(0, 1 << 20).unwrap();
    client.write(0, &[3; 8192]).unwrap();
    let text = folder.ok(&["top", "--once", "--control", "ctl"]);
    for what in ["hit ratio", "disk?[2J.img", "read wait p50/p99", "FROM FIRST BYTE"] {
        assert!(text.contains(what), "{what} is not in {text}");
    }
    assert!(!text.contains('\u{1b}'), "no escapes where there is no terminal: {text:?}");
    let json = folder.ok(&["top", "--once", "--json", "--control", "ctl"]);
    let view: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(view["files"][0]["size_bytes"], 4 << 20);
    assert!(view["cache"]["bytes"]["resident"].as_u64().unwrap() >= 1 << 20, "{view}");
    assert_eq!(view["pid"], server.pid());
    client.disconnect();
    server.stop();
    let gone = folder.forebay(&["top", "--once", "--control", "ctl"]);
    assert_eq!(gone.status.code(), Some(3));
}

/// script(1) gives it a terminal; the signal comes from timeout(1).
#[test]
fn on_a_terminal_the_screen_comes_back() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let mut client = server.client("");
    client.read(0, 4096).unwrap();
    let mut command = std::process::Command::new("script");
    let line = format!("timeout -s INT 2 {} top --control ctl", env!("CARGO_BIN_EXE_forebay"));
    command.args(["-q", "-e", "-c", &line, "/dev/null"]).current_dir(folder.path(""));
    let shown = String::from_utf8_lossy(&output(command).stdout).into_owned();
    let (open, close) = ("\u{1b}[?1049h\u{1b}[?25l", "\u{1b}[?25h\u{1b}[?1049l");
    assert!(shown.contains(open) && shown.trim_end().ends_with(close), "{shown:?}");
    assert!(shown.contains("disk.img") && shown.contains("hit ratio"), "{shown:?}");
    client.disconnect();
    server.stop();
}
