//! A volume belongs to one process. Others reach it through that process, or are told which one it
//! is.

use crate::common::volume::{look, make_tree};
use crate::common::{Folder, stderr};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

fn exported(folder: &Folder) -> crate::common::Server {
    folder.ok(&["create", "v", "--size", "256M"]);
    std::fs::write(folder.path("disk"), vec![0; 8 << 20]).unwrap();
    folder.ok(&["cp", "disk", "v:/"]);
    folder.serve(&["v:/disk", "--cache-size", "32M"])
}

/// at.A1, remote.R4: what a command did through the process is durable when that has ended.
#[test]
fn commands_go_through_the_process_that_has_it() {
    let folder = Folder::new();
    make_tree(&folder.path("tree"));
    let server = exported(&folder);
    let pid = server.pid().to_string();
    assert_eq!(folder.ok(&["ls", "v"]), "disk\n");
    assert!(folder.ok(&["stat", "v"]).contains(&format!("open in process {pid}")));
    let stat: serde_json::Value =
        serde_json::from_str(&folder.ok(&["stat", "v", "--json"])).unwrap();
    assert_eq!(stat["pid"].as_u64(), Some(server.pid().into()));
    // What a client of the export writes is what a copy finds.
    let mut client = server.client("");
    client.write(4096, &[7; 4096]).unwrap();
    folder.ok(&["cp", "v:/disk", "disk now"]);
    let disk = crate::common::bytes(&folder.path("disk now"));
    assert_eq!((disk[4095], disk[4096], disk[8191], disk[8192]), (0, 7, 7, 0));
    folder.ok(&["cp", "-r", "--compare", "tree", "v:/"]);
    folder.ok(&["cp", "-r", "--compare", "v:/tree", "back"]);
    assert_eq!(look(&folder.path("tree")), look(&folder.path("back")));
    assert!(folder.ok(&["stat", "v:/tree/a/file 1"]).contains("1 bytes"));
    client.disconnect();
    server.stop();
    assert!(folder.ok(&["stat", "v"]).contains("not open"));
    folder.ok(&["cp", "-r", "v:/tree", "after"]);
    assert_eq!(look(&folder.path("tree")), look(&folder.path("after")), "it was durable");
    folder.ok(&["fsck", "v"]);
}

#[test]
fn exclusive_command_on_open_volume_names_process() {
    let folder = Folder::new();
    let server = exported(&folder);
    let pid = server.pid().to_string();
    for words in [
        &["fsck", "v"][..],
        &["recover", "v", "--to", "out"],
        &["grow", "v", "--size", "512M"],
        &["create", "v", "--size", "1G", "--force"],
        &["export", "v:/disk", "-U", "other", "--cache-size", "16M"],
        &["export", "v", "-U", "other", "--cache-size", "16M"],
    ] {
        let said = folder.refused(4, words);
        assert!(said.contains(&format!("process {pid}")), "{words:?}: {said}");
    }
    let size = std::fs::metadata(folder.path("v")).unwrap().size();
    assert_eq!(size, 256 << 20, "nothing has happened to it");
    server.stop();
}

/// A process whose control socket is elsewhere, or which is no `forebay export`: named, and the
/// volume is not opened.
#[test]
fn unreachable_process_with_volume_is_named() {
    let folder = Folder::new();
    folder.ok(&["create", "v", "--size", "64M"]);
    std::fs::write(folder.path("disk"), vec![0; 1 << 20]).unwrap();
    folder.ok(&["cp", "disk", "v:/"]);
    let server = folder.export(&["v:/disk", "--cache-size", "16M"]);
    let said = folder.refused(4, &["ls", "v"]);
    assert!(said.contains(&format!("process {}", server.pid())), "{said}");
    assert!(said.contains("--control"), "{said}");
    assert_eq!(folder.ok(&["ls", "v", "--control", "ctl"]), "disk\n");
    assert_eq!(folder.ok(&["ls", "v", "--control", "ctl", "-R"]), "v:/:\ndisk\n");
    folder.ok(&["create", "w", "--size", "64M"]);
    let said = folder.refused(3, &["ls", "w", "--control", "ctl"]);
    assert!(said.contains("does not have that volume"), "{said}");
    server.stop();
}

/// Two files of one volume, a raw image and a file of another volume behind one cache.
#[test]
fn one_process_serves_several() {
    let folder = Folder::new();
    folder.image("raw", 1 << 20);
    let mut words = vec!["--cache-size", "32M", "raw"];
    for volume in ["v", "w"] {
        folder.ok(&["create", volume, "--size", "64M"]);
        for name in ["one", "two"] {
            folder.image(name, 1 << 20);
            folder.ok(&["cp", name, &format!("{volume}:/")]);
        }
    }
    words.extend(["v:/one", "v:/two", "third=w:/two"]);
    let server = folder.serve(&words);
    for (name, text) in [("raw", "raw"), ("one", "one"), ("two", "two"), ("third", "two")] {
        let mut client = server.client(name);
        let block = client.read(8192, 4096).unwrap();
        assert!(block.starts_with(format!("{text} block 2").as_bytes()), "{name}");
        client.write_durably(0, name.as_bytes()).unwrap();
        client.disconnect();
    }
    let pid = server.pid().to_string();
    let stat = folder.ok(&["stat", "--pid", &pid]);
    assert!(stat.contains("v:/one") && stat.contains("checksums of the volume"), "{stat}");
    folder.ok(&["tune", "--pid", &pid, "mode=direct"]);
    let mut client = server.client("third");
    assert!(client.read(0, 5).unwrap() == b"third");
    client.disconnect();
    server.stop();
    folder.ok(&["cp", "w:/two", "back"]);
    assert!(crate::common::bytes(&folder.path("back")).starts_with(b"third"));
    let output = folder.forebay(&["export", "v:/one", "--offset", "4k", "--run", "true"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    folder.refused(3, &["export", "v:/none", "--run", "true"]);
    let said = folder.refused(1, &["export", "v:/", "--run", "true"]);
    assert!(said.contains("v:/"), "{said}");
}

/// A client that sends what is no frame is cut off, and the process serves on.
#[test]
fn garbage_on_a_session_ends_that_session_only() {
    let folder = Folder::new();
    let server = exported(&folder);
    let socket = folder.path("run/forebay").join(format!("{}.sock", server.pid()));
    let meta = std::fs::metadata(folder.path("v")).unwrap();
    for frame in [&[255_u8, 255, 255, 255][..], &[3, 0, 0, 0, 99, 99, 99], &[9, 0, 0, 0, 2, 1]] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let (dev, ino) = (meta.dev(), meta.ino());
        writeln!(stream, r#"{{"version":1,"op":"volume","dev":{dev},"ino":{ino}}}"#).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains("\"ok\":true"), "{line}");
        stream.write_all(frame).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert!(rest.len() < 1000, "an error at most");
    }
    assert_eq!(folder.ok(&["ls", "v"]), "disk\n");
    server.stop();
}
