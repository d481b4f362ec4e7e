//! Several images behind one cache: each under its name, each with its own bytes.

use crate::common::{Folder, bytes, number, tool};

#[test]
fn each_has_its_name_and_its_bytes() {
    let folder = Folder::new();
    let (a, b) = (folder.image("a.img", 4 << 20), folder.image("b.img", 2 << 20));
    let server = folder.export(&["first=a.img", "b.img", "--cache-size", "16M"]);
    assert!(server.uri.starts_with("nbd+unix:///first?"), "{}", server.uri);
    let socket = server.socket.display();
    let list = tool("nbdinfo", &["--list", &format!("nbd+unix:///?socket={socket}")]);
    assert!(list.contains("first") && list.contains("b.img"), "{list}");
    let (mut first, mut second) = (server.client("first"), server.client("b.img"));
    assert_eq!((first.size, second.size), (4 << 20, 2 << 20));
    first.write(0, &[1; 4096]).unwrap();
    second.write(0, &[2; 4096]).unwrap();
    assert_eq!(first.read(0, 4096).unwrap(), [1; 4096]);
    first.disconnect();
    second.disconnect();
    let stat = folder.ok(&["stat", "--json", "--control", "ctl"]);
    assert!(number(&stat, "budget_bytes") <= 16 << 20, "{stat}");
    server.stop();
    assert_eq!((bytes(&a)[0], bytes(&b)[0]), (1, 2));
}

/// The first server closed its standard output's reader after one of two URIs, and the write of
/// the second one ended the process.
#[test]
fn server_continues_when_uri_reader_closed() {
    let folder = Folder::new();
    folder.image("a.img", 1 << 20);
    let command = "\"$0\" export a.img x=a.img -r -U sock --cache-size 16M --run 'nbdinfo \
                   --size \"$uri\" >&2' | true; test \"${PIPESTATUS[0]}\" = 0";
    let output = std::process::Command::new("bash")
        .args(["-c", command, env!("CARGO_BIN_EXE_forebay")])
        .current_dir(folder.path("."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", crate::common::stderr(&output));
    assert!(
        crate::common::stderr(&output).contains("1048576"),
        "{}",
        crate::common::stderr(&output)
    );
}

#[test]
fn unknown_export_is_refused_and_server_continues() {
    let folder = Folder::new();
    folder.image("a.img", 1 << 20);
    let server = folder.export(&["first=a.img", "--cache-size", "16M"]);
    assert!(crate::common::nbd::Client::connect(&server.socket, "../a.img").is_err());
    assert_eq!(server.client("first").size, 1 << 20);
    server.stop();
}
