//! The page of `--http` in a real browser, and what else the address answers. Requires `chromium`.

use crate::common::browser::Browser;
use crate::common::place::{Place, may_run};
use crate::common::{Folder, stderr};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A name that would be a program if anybody took it for markup.
const NAME: &str =
    "<img src=x onerror=\"window.broken=1\"><script>window.broken=1<script>&amp;.img";

fn page(folder: &Folder, which: &[&str]) -> String {
    let stat = folder.ok(&[&["stat", "--json"], which].concat());
    let stat: Value = serde_json::from_str(&stat).unwrap();
    let page = stat["page"].as_str().or_else(|| stat["mounts"][0]["page"].as_str());
    page.expect("stat says where the page is").to_string()
}

/// Whether the programs that a test needs are there. Without `FOREBAY_ALLOW_SKIP=1` they have to
/// be.
fn requires(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let there = path.split(':').any(|dir| std::path::Path::new(dir).join(program).is_file());
    if !there {
        let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
        assert!(allowed, "this test requires {program}");
        eprintln!("skipped: requires {program}");
    }
    there
}

#[test]
fn live_page_in_browser_updates_without_errors() {
    if !requires("chromium") {
        return;
    }
    let folder = Folder::new();
    folder.image(NAME, 4 << 20);
    let image = format!("disk={NAME}");
    let server = folder.export(&[&image, "--cache-size", "32M", "--http", "127.0.0.1:0"]);
    let mut client = server.client("disk");
    client.read(0, 1 << 20).unwrap();
    client.write(1 << 20, &[7; 65536]).unwrap();
    let uri = page(&folder, &["--control", "ctl"]);
    let budget = folder.ok(&["stat", "--budget", "--control", "ctl"]);
    assert!(budget.contains("threads of the page"), "{budget}");
    let mut browser = Browser::start(&folder);
    browser.open(&uri);
    let number = "document.getElementById('state')?.dataset.number";
    browser.until(&format!("Number({number}) > 0"));
    let first = browser.value(number);
    let hits = "document.querySelector('[data-of=hits_per_second]').textContent";
    browser.until(&format!("{number} !== {first} && /export, pid/.test(document.body.innerText)"));
    // Hits go on until the page says so.
    let start = std::time::Instant::now();
    while browser.value(&format!("parseFloat({hits}) > 0")) != true {
        assert!(start.elapsed() < crate::common::PATIENCE, "{}", browser.value(hits));
        client.read(0, 1 << 20).unwrap();
    }
    // The name is text, all of it, and nothing on the page came from it.
    let shown = browser.value("document.querySelector('#files tbody td').textContent");
    assert!(shown.as_str().unwrap().ends_with(NAME), "{shown}");
    let made = "document.querySelectorAll('td img, td script').length";
    assert_eq!(browser.value(made), 0);
    assert_eq!(browser.value("typeof window.broken"), "undefined");
    // What is cached is drawn: the first quarter of the strip and not the last, and the bar above.
    let painted = "(() => { const c = document.querySelector('#files canvas'), w = c.width, h = c.height; \
                   const d = c.getContext('2d').getImageData(0, 0, w, h).data; \
                   const at = x => Array.from({ length: h }, (_, y) => d[4 * (y * w + x) + 3]) \
                     .some(alpha => alpha > 0); \
                   return [at(Math.floor(w * 0.1)), at(Math.floor(w * 0.9))]; })()";
    assert_eq!(browser.value(painted), serde_json::json!([true, false]));
    let bar = "[...document.querySelectorAll('#bar span')].some(part => part.offsetWidth > 0)";
    assert_eq!(browser.value(bar), true);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    // Nothing on it comes from anywhere else.
    let loaded =
        "performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))";
    assert_eq!(browser.value(loaded), true);
    client.disconnect();
    server.stop();
    browser.until("document.getElementById('trouble').textContent.includes('no answer')");
}

/// A request and its answer, by hand.
fn ask(uri: &str, request: &str) -> String {
    let address = uri.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{}", request.replace("HERE", address)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Those of front ends were `untyped`, without `_total`, and all with one and the same help.
fn metrics_say_what_they_are(text: &str, front: &str, count: usize) {
    let mut helps = std::collections::BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
        let (name, kind) = line[7..].split_once(' ').unwrap();
        assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        if name.starts_with(&format!("forebay_{front}_")) {
            let head = format!("# HELP {name} ");
            let help = text.lines().find_map(|line| line.strip_prefix(&head)).expect(name);
            assert!(help.len() > 5 && helps.insert(help.to_string()), "{name}: {help}");
        }
    }
    assert_eq!(helps.len(), count, "{helps:?}");
}

#[test]
fn live_page_answers_allowed_requests_only() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M", "--http", "127.0.0.1:0"]);
    let uri = page(&folder, &["--control", "ctl"]);
    let get = |path: &str| ask(&uri, &format!("GET {path} HTTP/1.1\r\nHost: HERE\r\n\r\n"));
    let text = |path: &str| get(path).split_once("\r\n\r\n").unwrap().1.to_string();
    assert_eq!(text("/healthz"), "ok\n");
    let metrics = text("/metrics");
    let said = folder.ok(&["stat", "--prometheus", "--control", "ctl"]);
    let names = |text: &str| -> Vec<String> {
        text.lines().filter(|l| l.starts_with("# TYPE")).map(str::to_string).collect()
    };
    assert_eq!(names(&metrics), names(&said), "stat --prometheus says the same");
    metrics_say_what_they_are(&metrics, "nbd", 19);
    for name in ["forebay_budget_bytes ", "forebay_nbd_connections ", "forebay_flush_seconds_sum "]
    {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    let view: Value = serde_json::from_str(&text("/live.json")).unwrap();
    assert_eq!(view["what"], "export");
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
        ("GET / HTTP/1.1\r\nHost: HERE\r\nOrigin: http://evil.example\r\n\r\n", "403"),
        ("DELETE / HTTP/1.1\r\nHost: HERE\r\n\r\n", "405"),
        ("GET /etc/passwd HTTP/1.1\r\nHost: HERE\r\n\r\n", "404"),
    ] {
        let answer = ask(&uri, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    server.stop();
    let refused = folder.refused(2, &["export", "disk.img", "-U", "sock", "--http", "0.0.0.0:0"]);
    assert!(refused.contains("can watch") && refused.contains("--http-insecure"), "{refused}");
    let refused = folder.forebay(&["export", "disk.img", "-U", "sock", "--http", "here"]);
    assert!(stderr(&refused).contains("ADDRESS:PORT"), "{}", stderr(&refused));
}

/// A mount is watched by the names of its files, while it lives; a client of the page does not hold
/// its image.
#[test]
fn p3_mount_page_names_files_and_releases_image() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("http=127.0.0.1:0");
    let folder = &place.folder;
    std::fs::create_dir(place.mnt("dir")).unwrap();
    let name = "a\u{1b}[2J<script>b";
    std::fs::write(place.mnt("dir").join(name), vec![5; 1 << 20]).unwrap();
    std::fs::rename(place.mnt("dir").join(name), place.mnt("dir/new")).unwrap();
    let uri = page(folder, &["mnt"]);
    let address = uri.trim_start_matches("http://").trim_end_matches('/').to_string();
    // The view before the file was written may be shown for a moment.
    let shown = || -> Value {
        let answer = ask(&uri, "GET /live.json HTTP/1.1\r\nHost: HERE\r\n\r\n");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let is_there = |view: &Value| {
        let files = view["files"].as_array().unwrap().iter();
        files.into_iter().any(|f| f["name"] == "/dir/new" && f["size_bytes"] == 1 << 20)
    };
    crate::common::until("the file is shown by its new name", || is_there(&shown()));
    let view = shown();
    assert_eq!(view["what"], "mount");
    assert!(view["files"][0]["volume"].as_str().unwrap().ends_with("/vol"), "{view}");
    let top = folder.ok(&["top", "--once", "mnt"]);
    assert!(top.contains("/dir/new"), "{top}");
    metrics_say_what_they_are(&folder.ok(&["stat", "mnt", "--prometheus"]), "mount", 4);
    // One who has asked and does not read the answer.
    let mut silent = TcpStream::connect(&address).unwrap();
    write!(silent, "GET /live.json HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    place.umount();
    folder.ok(&["fsck", "vol"]);
    assert!(TcpStream::connect(&address).is_err(), "no process listens any more");
    let refused = folder.refused(2, &["mount", "vol", "mnt", "-o", "http=0.0.0.0:0"]);
    assert!(refused.contains("can watch"), "{refused}");
    assert!(!place.is_mounted());
}
