//! How blocks of a volume are given out, by option and live, and where they are: `--alloc`,
//! `alloc=`, `tune serialized_dio_pages=`, `forebay extents`.

use crate::common::place::{Place, may_run};
use crate::common::volume::bytes_of;
use crate::common::{Folder, Server};
use serde_json::Value;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Turns of `serialized` that a process has seen, and direct requests; its mode is this.
fn turns(folder: &Folder, part: &str, mode: &str) -> (u64, u64) {
    let words = if part == "mounts" { &["stat", "mnt", "--json"][..] } else { &["stat", "--json"] };
    let stat = json(&folder.ok(words));
    let alloc = &stat[part][0]["alloc"];
    assert_eq!(alloc["mode"], mode, "{stat}");
    let number = |name: &str| alloc[name].as_u64().expect("a number");
    (number("turns"), number("direct_requests"))
}

fn exported(folder: &Folder, mode: &str) -> Server {
    folder.serve(&["vol:/disk", "--cache-size", "32M", "--mode", "direct", "--alloc", mode])
}

/// A direct write takes its turn from so many pages on, as it was tuned last; only in that mode.
#[test]
fn direct_write_is_serialized_from_tuned_page_count_on() {
    let folder = Folder::new();
    folder.ok(&["create", "vol", "--size", "256M"]);
    std::fs::write(folder.path("disk"), bytes_of(1, 8 << 20)).unwrap();
    folder.ok(&["cp", "disk", "vol:/disk"]);
    for mode in ["interleaved", "serialized", "reserve"] {
        let server = exported(&folder, mode);
        let mut client = server.client("");
        let mut costs = |pages: usize| {
            let before = turns(&folder, "exports", mode);
            client.write(1 << 20, &bytes_of(2, pages * 4096)).unwrap();
            let after = turns(&folder, "exports", mode);
            assert_eq!(after.1, before.1 + 1, "one request");
            after.0 - before.0
        };
        let takes = u64::from(mode == "serialized");
        assert_eq!((costs(63), costs(64)), (0, takes), "{mode}");
        assert_eq!(folder.ok(&["tune", "serialized_dio_pages=8"]), "serialized_dio_pages=8\n");
        assert_eq!((costs(7), costs(8)), (0, takes), "{mode}");
        folder.ok(&["tune", "serialized_dio_pages=0"]);
        assert_eq!(costs(1), takes, "{mode}");
        folder.refused(2, &["tune", "serialized_dio_pages=many"]);
        client.disconnect();
        server.stop();
    }
    let image = ["export", "disk", "-U", "sock", "--alloc", "reserve"];
    assert!(folder.refused(2, &image).contains("--alloc: an image allocates no blocks"));
    assert!(folder.refused(2, &["export", "vol:/disk", "--alloc", "x"]).contains("interleaved"));
}

/// By `forebay extents` it is seen where two direct writers at a time have put their files: with
/// `reserve` what the kernel hands over of a request of 2 MiB, which comes in two, is a run each at
/// most. The same on a mount that is there, and when it has gone. That `interleaved` tears more is
/// for the tests of the volume.
#[test]
fn extents_show_where_a_file_is() {
    if !may_run() {
        return;
    }
    let place = Place::new(256 << 20);
    let folder = &place.folder;
    place.mount("alloc=reserve,control=sock");
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let bytes = forebay_base::buf::AlignedBuf::copy_of(&bytes_of(3, 2 << 20));
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            let (place, bytes) = (&place, &bytes);
            scope.spawn(move || {
                let mut options = std::fs::File::options();
                options.read(true).write(true).create_new(true).custom_flags(direct);
                let file = options.open(place.mnt(name)).unwrap();
                (0..8).for_each(|n| file.write_all_at(bytes, n << 21).unwrap());
                file.sync_all().unwrap();
            });
        }
    });
    let sum = |found: &Value| {
        let all = found["extents"].as_array().expect("a list");
        all.iter().map(|extent| extent["length"].as_u64().expect("bytes")).sum::<u64>()
    };
    let asked = |name: &str, which: &[&str]| {
        let path = format!("vol:/{name}");
        let found = json(&folder.ok(&[&["extents", &path, "--json"], which].concat()));
        assert_eq!((&found["size"], sum(&found)), (&(16 << 20).into(), 16 << 20), "{found}");
        let count = found["count"].as_u64().expect("a number");
        let text = folder.ok(&[&["extents", &path], which].concat());
        assert!(text.starts_with("LOGICAL"), "{text}");
        assert!(text.contains(&format!("vol:/{name}: {count} extent")), "{text}");
        found
    };
    for name in ["one", "two"] {
        let found = asked(name, &["--control", "sock"]);
        let count = found["count"].as_u64().unwrap();
        // The kernel hands over a request of 2 MiB in two, and the other writer may come between.
        assert!((1..=17).contains(&count), "8 requests: {found}");
        let all = found["extents"].as_array().unwrap();
        assert!(all.iter().all(|extent| extent["physical"].is_u64()), "{found}");
        assert_eq!(found["extents"], asked(name, &[])["extents"]);
    }
    // A hole has no extent; what is not written yet is nowhere.
    let file = std::fs::File::create(place.mnt("sparse")).unwrap();
    file.write_all_at(b"x", 1 << 20).unwrap();
    file.sync_all().unwrap();
    let found = json(&folder.ok(&["extents", "vol:/sparse", "--json"]));
    assert_eq!((&found["count"], &found["extents"][0]["logical"]), (&1.into(), &(1 << 20).into()));
    drop(file);
    let (_, requests) = turns(folder, "mounts", "reserve");
    assert!(requests >= 16, "two requests of the kernel for each of a program at most: {requests}");
    place.umount();
    for name in ["one", "two"] {
        let found = asked(name, &[]);
        assert!(found["count"].as_u64().unwrap() <= 17, "{found}");
    }
    assert!(folder.refused(1, &["extents", "vol:/"]).contains("not a regular file"));
    assert!(folder.refused(3, &["extents", "vol:/three"]).contains("three"));
    assert!(folder.refused(2, &["extents", "vol"]).contains("VOLUME:/PATH"));
    assert!(folder.refused(2, &["mount", "vol", "mnt", "-o", "alloc=magic"]).contains("magic"));
}
