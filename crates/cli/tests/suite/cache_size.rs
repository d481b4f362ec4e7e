//! `--cache-size` is a limit and not a reservation, and `tune cache_size=` changes it under load.

use crate::common::{Folder, Server, number, stderr};
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

/// Resident memory of the server, bytes.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("it has memory");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn tune(folder: &Folder, size: &str) -> String {
    folder.ok(&["tune", "--control", "ctl", &format!("cache_size={size}")])
}

fn stat(folder: &Folder, name: &str) -> u64 {
    number(&folder.ok(&["stat", "--json", "--control", "ctl"]), name)
}

/// `forebay export disk.img` took twelve seconds and a quarter of RAM before its first request.
#[test]
fn memory_is_taken_as_it_is_used_whatever_the_size() {
    let folder = Folder::new();
    folder.image("disk.img", 4 * MIB);
    for size in ["16M", "1G", "64G"] {
        let server = folder.export(&["disk.img", "--cache-size", size]);
        let mut client = server.client("");
        client.read(0, 65536).unwrap();
        let used = resident(&server);
        assert!(used <= 64 * MIB, "{size}: {used} bytes resident");
        client.disconnect();
        server.stop();
    }
}

#[test]
fn prefault_takes_all_of_it_at_start() {
    let folder = Folder::new();
    folder.image("disk.img", 4 * MIB);
    let server = folder.export(&["disk.img", "--cache-size", "96M", "--prefault"]);
    let arena = stat(&folder, "arena_bytes");
    assert!(arena > 64 * MIB && resident(&server) >= arena);
    server.stop();
}

/// The sum of all bounds, and the bound of requests of clients.
fn bounds(folder: &Folder) -> (u64, u64) {
    let budget = folder.ok(&["stat", "--budget", "--json", "--control", "ctl"]);
    let rows: serde_json::Value = serde_json::from_str(&budget).unwrap();
    let bound = |row: &serde_json::Value| row["bound"].as_u64().unwrap();
    let rows = rows.as_array().unwrap();
    let requests = rows.iter().find(|row| row["what"] == "client requests and replies");
    (rows.iter().map(bound).sum(), bound(requests.expect("clients have a row")))
}

#[test]
fn wrong_sizes_are_refused_and_the_right_one_is_shown() {
    let folder = Folder::new();
    folder.image("disk.img", 4 * MIB);
    let server = folder.export(&["disk.img", "--cache-size", "64M"]);
    assert_eq!(tune(&folder, "32M").trim(), format!("cache_size={}", 32 * MIB));
    for wrong in ["15M", "1000T", "0", "much"] {
        let out = folder.forebay(&["tune", "--control", "ctl", &format!("cache_size={wrong}")]);
        assert_eq!(out.status.code(), Some(2), "{wrong}: {}", stderr(&out));
    }
    let all = folder.ok(&["tune", "--control", "ctl"]);
    assert!(all.contains(&format!("cache_size={}", 32 * MIB)), "{all}");
    // The bounds of all parts, those of clients included, add up to no more, and both follow.
    for (size, clients) in [("128M", 16 * MIB), ("16M", 8 * MIB), ("64M", 8 * MIB)] {
        tune(&folder, size);
        let whole = size.trim_end_matches('M').parse::<u64>().unwrap() * MIB;
        let (sum, requests) = bounds(&folder);
        assert!(sum <= whole && sum > whole / 8 * 7, "{size}: {sum}");
        assert_eq!(requests, clients, "{size}");
        let all = folder.ok(&["tune", "--control", "ctl"]);
        assert!(all.contains(&format!("cache_size={whole}")), "{all}");
    }
    server.stop();
}

/// Two writers check what they wrote while the size goes down and up; what is hot stays.
#[test]
fn cache_size_shrinks_and_grows_under_load() {
    let folder = Folder::new();
    folder.image("disk.img", 96 * MIB);
    let server = folder.export(&["disk.img", "--cache-size", "144M"]);
    let hot = 8 * MIB;
    let mut client = server.client("");
    // The hot set is read again and again, the rest once.
    for round in 0..4 {
        let end = if round == 0 { 96 * MIB } else { hot };
        (0..end).step_by(MIB as usize).for_each(|at| drop(client.read(at, MIB as u32).unwrap()));
    }
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|part| {
                let (server, done) = (&server, &done);
                scope.spawn(move || write_and_check(server, 32 * MIB + part * 32 * MIB, done))
            })
            .collect();
        for _ in 0..3 {
            tune(&folder, "40M");
            assert!(stat(&folder, "arena_bytes") < 40 * MIB);
            let used = resident(&server);
            assert!(used < 40 * MIB + 24 * MIB, "{used} bytes are still resident");
            (0..hot)
                .step_by(MIB as usize)
                .for_each(|at| drop(client.read(at, MIB as u32).unwrap()));
            tune(&folder, "144M");
        }
        done.store(true, Ordering::SeqCst);
        writers.into_iter().map(|w| w.join().unwrap()).sum::<u64>()
    });
    assert!(rounds > 0);
    client.flush().unwrap();
    client.disconnect();
    server.stop();
}

/// Writes stamped blocks over a range and reads them back; says how often it got round.
fn write_and_check(server: &Server, start: u64, done: &AtomicBool) -> u64 {
    let mut client = server.client("");
    let mut round = 0;
    while !done.load(Ordering::SeqCst) {
        round += 1;
        let block = |at: u64| -> Vec<u8> {
            (at ^ round << 40).to_le_bytes().into_iter().cycle().take(16384).collect()
        };
        // Every other block, so that frames are used here and there.
        let all = || (start..start + 24 * MIB).step_by(32768);
        all().for_each(|at| client.write(at, &block(at)).unwrap());
        all().for_each(|at| assert!(client.read(at, 16384).unwrap() == block(at), "{at} {round}"));
    }
    client.disconnect();
    round
}

/// A hot set that fits loses no block, wherever its frames are.
#[test]
fn shrink_keeps_hot_set_that_fits() {
    let folder = Folder::new();
    folder.image("disk.img", 96 * MIB);
    let server = folder.export(&["disk.img", "--cache-size", "144M"]);
    let hot = 64 * MIB..76 * MIB;
    let mut client = server.client("");
    for at in (0..96 * MIB).step_by(MIB as usize) {
        client.read(at, MIB as u32).unwrap();
    }
    for _ in 0..3 {
        for at in hot.clone().step_by(65536) {
            client.read(at, 65536).unwrap();
        }
    }
    tune(&folder, "40M");
    let text = folder.ok(&["fincore", "--json", "--control", "ctl", "disk.img"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let number = |v: &serde_json::Value| v.as_u64().unwrap();
    let runs = json["runs"].as_array().unwrap().iter().map(|r| (number(&r[0]), number(&r[1])));
    let kept: u64 =
        runs.map(|(at, len)| (at + len).min(hot.end).saturating_sub(at.max(hot.start))).sum();
    assert_eq!(kept, hot.end - hot.start, "{text}");
    for at in hot.step_by(4096) {
        let text = format!("disk.img block {}", at / 4096);
        assert_eq!(&client.read(at, 4096).unwrap()[..text.len()], text.as_bytes());
    }
    client.disconnect();
    server.stop();
}
