//! What `tune` sets is in force and shown; `stat` shows what clients did.

use crate::common::{Folder, number, stderr};

#[test]
fn tune_changes_setting_of_running_process() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let tune = |words: &[&str]| {
        let mut all = vec!["tune", "--control", "ctl"];
        all.extend(words);
        folder.forebay(&all)
    };
    let out = folder.ok(&["tune", "--control", "ctl", "dirty_expire_centisecs=321"]);
    assert_eq!(out.trim(), "dirty_expire_centisecs=321");
    let all = folder.ok(&["tune", "--control", "ctl"]);
    assert!(all.contains("dirty_expire_centisecs=321"), "{all}");
    for name in ["dirty_bytes", "dirty_background_bytes", "readahead_max", "direct_io"] {
        assert!(all.contains(&format!("{name}=")), "{name} is not in {all}");
    }
    let wrong = tune(&["no_such_thing=1"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("no_such_thing"), "{}", stderr(&wrong));
    assert!(all.contains("poll_us=50"), "{all}");
    assert_eq!(folder.ok(&["tune", "--control", "ctl", "poll_us=0"]).trim(), "poll_us=0");
    for wrong in ["poll_us=1001", "poll_us=long"] {
        assert_eq!(tune(&[wrong]).status.code(), Some(2), "{wrong}");
    }
    let wrong = tune(&["dirty_bytes=many"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    server.stop();
}

#[test]
fn l2_direct_io_switches_while_in_use() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M", "--direct-io", "off"]);
    let mut client = server.client("");
    for mode in ["auto", "off"] {
        client.write(0, mode.as_bytes()).unwrap();
        folder.ok(&["tune", "--control", "ctl", &format!("direct_io={mode}")]);
        assert_eq!(client.read(0, mode.len() as u32).unwrap(), mode.as_bytes());
    }
    let stat = folder.ok(&["stat", "--json", "--control", "ctl"]);
    assert!(stat.contains("\"direct_io\": false"), "{stat}");
    client.disconnect();
    server.stop();
}

/// The mode of an export is changed while it is served. In direct mode a request of odd bytes falls
/// back by itself, and is counted.
#[test]
fn x4_export_mode_switches_while_in_use() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M", "--mode", "direct"]);
    let stat = |name: &str| number(&folder.ok(&["stat", "--json", "--control", "ctl"]), name);
    let mut client = server.client("");
    for (mode, fallbacks) in [("direct", 2), ("cached", 0), ("uncached", 0)] {
        let out = folder.ok(&["tune", "--control", "ctl", &format!("mode={mode}")]);
        assert_eq!(out.trim(), format!("mode={mode}"));
        let before = stat("direct_fallbacks");
        client.write(777, mode.as_bytes()).unwrap();
        assert_eq!(client.read(777, mode.len() as u32).unwrap(), mode.as_bytes());
        assert_eq!(stat("direct_fallbacks"), before + fallbacks, "{mode}");
    }
    let shown = folder.ok(&["stat", "--control", "ctl"]);
    assert!(shown.contains("uncached"), "{shown}");
    let wrong = folder.forebay(&["tune", "--control", "ctl", "mode=sometimes"]);
    assert_eq!(wrong.status.code(), Some(2));
    client.disconnect();
    server.stop();
}

/// A file that direct I/O cannot have is served without it, and `stat` says why.
#[test]
fn l1_stat_says_why_direct_io_is_off() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M", "--offset", "100"]);
    let shown = folder.ok(&["stat", "--control", "ctl"]);
    assert!(shown.contains("direct-io off (auto: "), "{shown}");
    assert!(shown.contains("offset 100") || shown.contains("tmpfs"), "{shown}");
    let wrong = folder.forebay(&["tune", "--control", "ctl", "direct_io=on"]);
    assert_ne!(wrong.status.code(), Some(0));
    assert!(folder.ok(&["stat", "--control", "ctl"]).contains("direct-io off (auto: "));
    server.stop();
}

/// An image in memory, which direct I/O cannot have; removed when dropped.
struct InMemory(std::path::PathBuf);

impl InMemory {
    fn new() -> Self {
        let name = format!("forebay-tune-{}.img", std::process::id());
        let image = Self(std::path::Path::new("/dev/shm").join(name));
        std::fs::File::create(&image.0).unwrap().set_len(4 << 20).unwrap();
        image
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The first of two images had been switched when the second one refused: `tune` failed, `stat`
/// showed the old value for both, and the first one kept the new one.
#[test]
fn refused_direct_io_of_one_image_changes_no_other() {
    let (folder, memory) = (Folder::new(), InMemory::new());
    folder.image("disk.img", 4 << 20);
    let second = format!("second={}", memory.0.display());
    let images = ["first=disk.img", &second, "--cache-size", "16M", "--direct-io", "off"];
    let server = folder.export(&images);
    let stat = || folder.ok(&["stat", "--json", "--control", "ctl"]);
    let count = |text: &str, wanted: &str| text.matches(wanted).count();
    let tune = |value: &str| folder.forebay(&["tune", "--control", "ctl", value]);
    let refused = tune("direct_io=on");
    assert_ne!(refused.status.code(), Some(0));
    assert!(stderr(&refused).contains("tmpfs"), "{}", stderr(&refused));
    let now = stat();
    assert_eq!(count(&now, "\"direct_io\": true"), 0, "{now}");
    assert_eq!(count(&now, "\"direct_io\": \"off\""), 2, "{now}");
    assert_eq!(tune("direct_io=auto").status.code(), Some(0));
    let now = stat();
    assert_eq!(count(&now, "\"direct_io\": \"auto\""), 2, "{now}");
    server.stop();
}

#[test]
fn s5_stable_pages_need_is_shown_and_overridden_live() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let off = ["--direct-io", "off", "--stable-pages", "on", "--stable", "wait"];
    let server = folder.export(&[&["disk.img", "--cache-size", "16M"][..], &off].concat());
    let ctl = |words: &[&str]| folder.ok(&[words, &["--control", "ctl"]].concat());
    let shown = |need: &str, why: &str| {
        let text = ctl(&["stat"]);
        let line = format!("stable_pages_required {need} ({why}), its device 0 (the system's page");
        assert!(text.contains(&line), "{line} is not in {text}");
        let json = ctl(&["stat", "--json"]);
        let word = if need == "1" { "true" } else { "false" };
        assert!(json.contains(&format!("\"stable_pages_required\": {word}")), "{json}");
        assert!(json.contains("\"device_stable_pages_required\": false"), "{json}");
        let text = ctl(&["stat", "--prometheus"]);
        let line = format!("forebay_export_stable_pages_required{{export=\"\"}} {need}\n");
        assert!(text.contains(&line), "{line} is not in {text}");
        assert!(text.contains("forebay_device_stable_pages_required{device="), "{text}");
    };
    shown("1", "switched on");
    assert_eq!(ctl(&["tune", "stable_pages=off"]).trim(), "stable_pages=off");
    shown("0", "switched off");
    ctl(&["tune", "stable_pages=auto"]);
    shown("0", "the system's page cache copies");
    for strategy in ["snapshot", "cow", "auto", "wait"] {
        let set = format!("stable={strategy}");
        assert_eq!(ctl(&["tune", &set]).trim(), set);
    }
    server.stop();
}

#[test]
fn numbers_follow_what_clients_do() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let stat = |name: &str| number(&folder.ok(&["stat", "--json", "--control", "ctl"]), name);
    let mut client = server.client("");
    client.read(0, 65536).unwrap();
    let hits = stat("hits");
    client.read(0, 65536).unwrap();
    assert!(stat("hits") > hits);
    client.write(1 << 20, &[9; 8192]).unwrap();
    assert!(stat("dirtied_bytes") >= 8192);
    client.flush().unwrap();
    assert_eq!((stat("dirty_bytes"), stat("unwritten_bytes")), (0, 0));
    assert!(stat("written_bytes") >= 8192);
    let prometheus = folder.ok(&["stat", "--prometheus", "--control", "ctl"]);
    assert!(prometheus.contains("forebay_hits"), "{prometheus}");
    let budget = folder.ok(&["stat", "--budget", "--control", "ctl"]);
    assert!(budget.contains("sum"), "{budget}");
    let lines = folder.ok(&["stat", "--watch", "--count", "1", "--control", "ctl"]);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    client.disconnect();
    server.stop();
}

/// The patch's line on the real program: 16 writes of 4 KiB, each made durable, at the start of a
/// file that is not cached. The option decides what they cost, and changes while it runs.
#[test]
fn d1_dd_over_nbd_writes_as_tracking_option_says() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let words = ["disk.img", "--cache-size", "16M", "--dirty-tracking", "folio"];
    let server = folder.export(&words);
    let stat = || folder.ok(&["stat", "--json", "--control", "ctl"]);
    let mut client = server.client("");
    let mut dd = |from: u64| {
        let before = stat();
        for i in 0..16 {
            client.write(from + i * 4096, &[1; 4096]).unwrap();
            client.flush().unwrap();
        }
        let after = stat();
        let delta = |name| number(&after, name) - number(&before, name);
        (delta("written_bytes"), delta("cleaned_bytes"), delta("dirtied_bytes"))
    };
    assert_eq!(dd(0), (544 << 10, 64 << 10, 64 << 10));
    let value: serde_json::Value = serde_json::from_str(&stat()).unwrap();
    assert_eq!(value["stats"]["write_amplification"], 8.5);
    folder.ok(&["tune", "--control", "ctl", "dirty_tracking=block"]);
    assert_eq!(dd(1 << 20), (64 << 10, 64 << 10, 64 << 10));
    let text = folder.ok(&["stat", "--control", "ctl"]);
    assert!(text.contains("write_amplification") && text.contains("4.750"), "{text}");
    let prometheus = folder.ok(&["stat", "--prometheus", "--control", "ctl"]);
    assert!(prometheus.contains("forebay_write_amplification_ratio 4.75"), "{prometheus}");
    drop(client);
    server.stop();
}
