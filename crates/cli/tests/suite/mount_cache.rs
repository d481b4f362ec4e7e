//! Which cache holds the content of a mount's files, the kernel's or ours, by `cache=` and by what
//! programs ask for.

use crate::common::place::{Place, may_run};
use crate::common::until;
use crate::common::volume::bytes_of;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Seek, Write};

const MIB: usize = 1 << 20;
/// Bytes that one read of the kernel's read-ahead asks for.
const READ_AHEAD: u64 = 128 << 10;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Bytes of a file in our cache and in the kernel's.
fn held(place: &Place, name: &str) -> (u64, u64) {
    let found = json(&place.folder.ok(&["fincore", &format!("mnt/{name}"), "--json"]));
    let number = |key: &str| found[key].as_u64().unwrap_or_else(|| panic!("no {key}: {found}"));
    (number("resident_blocks") * number("block_size"), number("kernel_bytes"))
}

/// Requests by which the kernel has filled its cache.
fn fills(place: &Place) -> u64 {
    let stat = json(&place.folder.ok(&["stat", "mnt", "--json"]));
    stat["mounts"][0]["kernel_fills"].as_u64().expect("a number")
}

/// A file of so many bytes, synced, and open.
fn made(place: &Place, name: &str, len: usize) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true);
    let mut file = options.open(place.mnt(name)).expect("new");
    file.write_all(&bytes_of(len as u64, len)).expect("room");
    file.sync_all().expect("durable");
    file
}

fn read_again(file: &mut File) {
    file.rewind().unwrap();
    file.read_to_end(&mut Vec::new()).unwrap();
}

/// A file that is written, synced and read through the mount is in one cache: at most 5 % of it are
/// in both.
#[test]
fn file_written_and_read_is_in_one_cache() {
    if !may_run() {
        return;
    }
    let len = 16 * MIB as u64;
    for mode in ["own", "kernel"] {
        let place = Place::new(128 << 20);
        place.mount(&format!("cache={mode}"));
        let mut file = made(&place, "file", len as usize);
        read_again(&mut file);
        let first = held(&place, "file");
        // By the kernel's fills alone.
        let dropped = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        dropped.expect("fadvise");
        read_again(&mut file);
        let second = held(&place, "file");
        for (ours, kernels) in [first, second] {
            let twice = ours.min(kernels);
            assert!(twice <= len / 20, "cache={mode}: {ours} in ours, {kernels} in the kernel's");
            let kept = if mode == "own" { ours } else { kernels };
            assert!(
                kept >= len / 10 * 9,
                "cache={mode}: {ours} in ours, {kernels} in the kernel's"
            );
        }
        drop(file);
        place.umount();
    }
}

/// With `cache=kernel` written data is in ours until it is durable, and what is removed before
/// that is never written.
#[test]
fn removed_file_is_not_written_with_cache_kernel() {
    if !may_run() {
        return;
    }
    let place = Place::new(128 << 20);
    place.mount("cache=kernel");
    let written = || {
        let stat = json(&place.folder.ok(&["stat", "mnt", "--json"]));
        stat["stats"]["written_bytes"].as_u64().expect("a number")
    };
    let before = written();
    std::fs::write(place.mnt("scratch"), bytes_of(1, 2 * MIB)).unwrap();
    std::fs::remove_file(place.mnt("scratch")).unwrap();
    drop(made(&place, "file", 4096));
    assert!(written() - before < MIB as u64, "{}", written() - before);
    place.umount();
}

/// With `cache=own` the kernel keeps mapped pages, and no longer than until the last close.
#[test]
fn mapped_pages_go_with_the_last_close_with_cache_own() {
    if !may_run() {
        return;
    }
    let place = Place::new(128 << 20);
    place.mount("cache=own");
    drop(made(&place, "file", 2 * MIB));
    let map = "import mmap, sys
file = open('mnt/file', 'rb')
view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(sum(view[at] for at in range(0, len(view), 4096)) > 0, flush=True)
sys.stdin.read()";
    let mut command = std::process::Command::new("python3");
    command.args(["-c", map]).current_dir(place.folder.path(""));
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut mapping = command.spawn().expect("python3");
    let (mut out, mut said) = (mapping.stdout.take().expect("piped"), [0; 5]);
    out.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"True\n");
    assert_eq!(held(&place, "file").1, 2 * MIB as u64, "while it is mapped");
    drop(mapping.stdin.take());
    assert!(mapping.wait().unwrap().success());
    until("the kernel has dropped them", || held(&place, "file").1 == 0);
    place.umount();
}

/// Reads its standard input uncached, in steps of 10 KiB, and writes it to its standard output.
const BY_IOCTL: &str = "\
import fcntl, os, struct
fcntl.ioctl(0, 0x4004fb01, struct.pack('=I', 1))
while piece := os.read(0, 10240): os.write(1, piece)";

/// Commands of a shell that read `mnt/file` uncached, as the command, a policy and the ioctl have
/// it.
const WAYS: [(&str, &str); 3] = [
    ("run", "\"$1\" run --uncached --on mnt -- sh -ec 'dd if=mnt/file bs=10k status=none | cksum'"),
    (
        "policy",
        "\"$1\" policy mnt/file uncached; dd if=mnt/file bs=10k status=none | cksum; \
         \"$1\" policy mnt/file default",
    ),
    ("ioctl", "python3 -c \"$0\" < mnt/file | cksum"),
];

/// The uncached strategy of a mount: the kernel reads ahead for it, so that a program that reads in
/// steps of 10 KiB costs a request for each 128 KiB; pages are dropped behind the reader, and what
/// was cached before stays.
#[test]
fn uncached_read_leaves_both_caches_as_they_were() {
    if !may_run() {
        return;
    }
    let len = 24 * MIB;
    for mode in ["own", "small", "kernel"] {
        let place = Place::new(128 << 20);
        place.mount(&format!("cache={mode}"));
        let mut file = made(&place, "file", len);
        let all = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(&file, 0, None, all).expect("fadvise");
        place.folder.ok(&["tune", "mnt", "--drop-clean"]);
        file.rewind().unwrap();
        let mut hot = vec![0; 2 * MIB];
        file.read_exact(&mut hot).unwrap();
        // Several looks: the daemon may not run for a while in the middle of it.
        let (mut before, mut equal) = (held(&place, "file"), 0);
        until("what is read ahead has come", || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let now = held(&place, "file");
            equal = if now == before { equal + 1 } else { 0 };
            before = now;
            equal >= 6
        });
        assert!(before.0 + before.1 >= 2 * MIB as u64, "cache={mode}: {before:?}");
        std::fs::write(place.folder.path("same"), bytes_of(len as u64, len)).unwrap();
        let same = place.run("sh", &["-ec", "cksum < same"]);
        // With `cache=kernel` ours has what it read ahead for the first reader, and the second one
        // takes that.
        let wanted = (if mode == "kernel" { 0 } else { before.0 }, before.1);
        for (way, line) in WAYS {
            let requests = fills(&place);
            let sum = place.run("sh", &["-ec", line, BY_IOCTL, env!("CARGO_BIN_EXE_forebay")]);
            let requests = fills(&place) - requests;
            assert_eq!(sum, same, "cache={mode}, {way}");
            let most = len as u64 / READ_AHEAD * 5 / 4 + 16;
            // A file of 24 MiB is opened past the kernel's cache by these modes, and the ioctl
            // finds it so: each read is a request.
            let is_past = way == "ioctl" && mode != "kernel";
            assert_eq!(requests == 0, is_past, "cache={mode}, {way}: {requests} requests");
            assert!(requests <= most, "cache={mode}, {way}: {requests} requests");
            // The kernel may take a few clean pages back for others.
            until("both are as before", || {
                let (ours, kernels) = held(&place, "file");
                ours == wanted.0 && (wanted.1 / 10 * 9..=wanted.1).contains(&kernels)
            });
        }
        drop(file);
        place.umount();
    }
}

/// A backup by the library of a file that a program has open for writing. It dropped each page of
/// it from the kernel, the only cache that had them. Stores by a map are in the copy all the same,
/// also in a hole.
#[test]
fn library_read_leaves_pages_of_programs_in_the_kernel() {
    if !may_run() {
        return;
    }
    let len = 8 * MIB;
    let place = Place::new(128 << 20);
    place.mount("cache=kernel");
    let mut file = made(&place, "file", len);
    file.set_len(len as u64 + 4 * MIB as u64).unwrap();
    read_again(&mut file);
    let before = held(&place, "file").1;
    assert!(before >= len as u64, "{before}");
    let mut wanted = bytes_of(len as u64, len);
    wanted.resize(len + 4 * MIB, 0);
    let copied = |copy: &str, wanted: &[u8]| {
        place.folder.ok(&["cp", "vol:/file", copy]);
        assert!(std::fs::read(place.folder.path(copy)).unwrap() == wanted, "{copy}");
    };
    copied("before", &wanted);
    // The program's pages of the hole go: they cost no device anything. So do those that share a
    // large folio with it, of at most 2 MiB.
    let kept = held(&place, "file").1;
    assert!(kept >= (len - 2 * MIB) as u64, "{kept} of {before} bytes are left");
    let store = "import mmap, sys
file = open('mnt/file', 'r+b')
view = mmap.mmap(file.fileno(), 0)
for at in (20487, 9 << 20):
    view[at] = 255 - view[at]
print('ready', flush=True)
sys.stdin.read()";
    let mut command = std::process::Command::new("python3");
    command.args(["-c", store]).current_dir(place.folder.path(""));
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut storing = command.spawn().expect("python3");
    let (mut out, mut said) = (storing.stdout.take().expect("piped"), [0; 6]);
    out.read_exact(&mut said).unwrap();
    for at in [20_487, 9 * MIB] {
        wanted[at] = 255 - wanted[at];
    }
    copied("after", &wanted);
    let kept = held(&place, "file").1;
    assert!(kept >= (len - 2 * MIB) as u64, "{kept} of {before} bytes are left");
    drop(storing.stdin.take());
    assert!(storing.wait().unwrap().success());
    drop(file);
    place.umount();
}
