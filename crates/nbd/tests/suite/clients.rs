//! Real clients, as installed. A missing one fails the test, or with `FOREBAY_ALLOW_SKIP=1` the test says
//! that it is skipped.

use crate::common::Running;
use forebay_nbd::ServerConfig;
use forebay_testkit::mem_export::MemExport;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// `tool`, found in the system's folders first: nbdsh needs the Python that its module belongs to.
fn command(tool: &str) -> Command {
    let mut command = Command::new(tool);
    command.env("PATH", format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Whether `tool` can be run.
fn requires(tool: &str) -> bool {
    if command(tool).arg("--version").output().is_ok_and(|o| o.status.success()) {
        return true;
    }
    let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    assert!(allowed, "{tool} is not installed; see `cargo xtask requires`");
    println!("skipped: {tool} is not installed");
    false
}

/// Runs a tool to its end; its standard output.
fn run(tool: &str, args: &[&str]) -> String {
    let out = command(tool).args(args).current_dir(std::env::temp_dir()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{tool} {args:?}: {text}\n{errors}");
    text
}

/// A file that goes with the test.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Self {
        let file = format!("forebay-nbd-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(file))
    }
    fn str(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let words = (0..len.div_ceil(8)).map(|_| forebay_base::world::split_mix(&mut state));
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

/// A server some of whose answers are late, on two threads.
fn server(size: u64) -> Running {
    let export = MemExport::new(size).with_late(7, Duration::from_micros(100));
    let config = ServerConfig { threads: 2, ..Default::default() };
    Running::with(config, vec![("disk", Arc::new(export))])
}

#[test]
fn nbdinfo_sees_the_export_the_list_and_the_map() {
    if !requires("nbdinfo") {
        return;
    }
    let running = server(1 << 20);
    assert_eq!(running.client().write(65536, &[1; 65536]), 0);
    let json: serde_json::Value =
        serde_json::from_str(&run("nbdinfo", &["--json", &running.uri()])).unwrap();
    let export = &json["exports"][0];
    assert_eq!(json["structured"], true);
    assert_eq!(export["export-size"], 1 << 20);
    let able = ["can_cache", "can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn"];
    for what in able.into_iter().chain(["can_trim", "can_zero"]) {
        assert_eq!(export[what], true, "{what}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_preferred"], 4096);
    assert_eq!(export["block_size_maximum"], 32 << 20);
    assert_eq!(export["contexts"][0], "base:allocation");
    let list: serde_json::Value =
        serde_json::from_str(&run("nbdinfo", &["--list", "--json", &running.uri()])).unwrap();
    assert_eq!(list["exports"][0]["export-name"], "disk");
    assert_eq!(list["exports"][0]["description"], "memory");
    let map: serde_json::Value =
        serde_json::from_str(&run("nbdinfo", &["--map", "--json", &running.uri()])).unwrap();
    let types: Vec<_> = map.as_array().unwrap().iter().map(|e| e["type"].as_u64()).collect();
    assert_eq!(types, [Some(3), Some(0), Some(3)]);
}

#[test]
fn nbdcopy_both_ways_over_several_connections() {
    if !requires("nbdcopy") {
        return;
    }
    let running = server(64 << 20);
    let (source, copy) = (Temp::new("source"), Temp::new("copy"));
    std::fs::write(&source.0, pattern(64 << 20, 1)).unwrap();
    run("nbdcopy", &["--flush", "--threads=4", "--connections=4", source.str(), &running.uri()]);
    run("nbdcopy", &["--threads=4", "--connections=4", &running.uri(), copy.str()]);
    assert!(std::fs::read(&source.0).unwrap() == std::fs::read(&copy.0).unwrap());
    let stats = running.stats();
    assert!(stats.accepted >= 8 && stats.dropped.is_empty(), "{stats:?}");
}

#[test]
fn qemu_converts_compares_and_checks_patterns() {
    if !requires("qemu-img") || !requires("qemu-io") {
        return;
    }
    let running = server(16 << 20);
    let (source, copy) = (Temp::new("qsource"), Temp::new("qcopy"));
    let mut data = pattern(16 << 20, 2);
    data[4 << 20..9 << 20].fill(0);
    std::fs::write(&source.0, &data).unwrap();
    let uri = running.uri();
    assert!(run("qemu-img", &["info", &uri]).contains("16 MiB"));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source.str(), &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source.str(), &uri]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, copy.str()]);
    assert!(std::fs::read(&copy.0).unwrap() == data);
    let commands = [
        "write -P 0x11 0 64k",
        "write -f -P 0x22 64k 1M",
        "write -z -u 1M 128k",
        "write -z 2M 128k",
        "discard 3M 64k",
        "aio_write -P 0x33 5M 2M",
        "aio_flush",
        "flush",
        "read -P 0x11 0 64k",
        "read -P 0x22 64k 960k",
        "read -P 0 1M 128k",
        "read -P 0 2M 128k",
        "read -P 0x33 5M 2M",
    ];
    let mut args = vec!["-f", "raw"];
    commands.iter().for_each(|c| args.extend(["-c", *c]));
    args.push(&uri);
    let text = run("qemu-io", &args);
    assert!(!text.contains("fail"), "{text}");
}

#[test]
fn nbdsh_scripts_hold() {
    if !requires("nbdsh") {
        return;
    }
    let running = server(1 << 20);
    let script = r#"
import errno
assert h.get_size() == 1 << 20
assert h.get_structured_replies_negotiated()
h.pwrite(b"x" * 1000, 100, nbd.CMD_FLAG_FUA)
assert h.pread(1002, 99) == b"\0" + b"x" * 1000 + b"\0"
chunks = []
def chunk(data, offset, status, error):
    chunks.append((offset, len(data), status))
h.pread_structured(8192, 0, chunk, nbd.CMD_FLAG_DF)
assert chunks == [(0, 8192, nbd.READ_DATA)], chunks
h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
h.trim(4096, 8192)
h.cache(4096, 0)
h.flush()
found = []
h.block_status(1 << 20, 0, lambda name, at, entries, err: found.append((name, entries)))
assert found == [("base:allocation", [4096, 0, (1 << 20) - 4096, 3])], found
h.set_strict_mode(0)
for call in (lambda: h.pread(2, (1 << 20) - 1), lambda: h.trim(2, (1 << 20) - 1)):
    try:
        call()
        assert False
    except nbd.Error as ex:
        assert ex.errnum == errno.EINVAL
try:
    h.pwrite(b"xy", (1 << 20) - 1)
    assert False
except nbd.Error as ex:
    assert ex.errnum == errno.ENOSPC
try:
    h.pread(512, 0, 0x4000)
    assert False
except nbd.Error as ex:
    assert ex.errnum == errno.EINVAL
assert h.pread(1, (1 << 20) - 1) == b"\0"
"#;
    let connect =
        format!("h.add_meta_context('base:allocation'); h.connect_uri('{}')", running.uri());
    run("nbdsh", &["-c", &connect, "-c", script]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !requires("fio") {
        return;
    }
    let running = server(32 << 20);
    let uri = format!("--uri={}", running.uri());
    for (depth, size) in [("1", "512"), ("16", "4k"), ("16", "64k"), ("4", "1M")] {
        let (depth, size) = (format!("--iodepth={depth}"), format!("--bs={size}"));
        let args = ["--name=verify", "--ioengine=nbd", &uri, &depth, &size, "--rw=randwrite"];
        let more = ["--size=8M", "--verify=crc32c", "--do_verify=1", "--verify_state_save=0"];
        run("fio", &[&args[..], &more[..]].concat());
    }
    assert_eq!(running.stats().errors, 0);
}
