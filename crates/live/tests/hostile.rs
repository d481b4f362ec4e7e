//! A thousand hostile clients of the page, of every kind. The server answers as before and stays
//! within its bounds of memory.

use forebay::{Cache, CacheConfig};
use forebay_live::server::{CONNECTIONS, HEAD_TIME};
use forebay_live::{CacheSource, Collector, Options, Server};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::RwLock;
use std::time::{Duration, Instant};

/// A test that measures the memory of the process holds it for writing. Tests that use much memory
/// hold it for reading.
static MEMORY: RwLock<()> = RwLock::new(());
/// How long an answer may take before a test gives up. Not a measurement.
const PATIENCE: Duration = Duration::from_secs(300);

fn start() -> (Cache, Server) {
    let cache = Cache::new(CacheConfig::with_budget(8 << 20)).unwrap();
    let collector = Collector::new(CacheSource::new("test", &cache));
    let server = Server::start(&collector, &Options::parse("127.0.0.1:0", false).unwrap()).unwrap();
    (cache, server)
}

/// Sends bytes and reads the answer to its end. A connection that the server has closed counts as
/// an end.
fn send(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _closed_early = stream.write_all(bytes);
    let _closed = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A valid request, repeated until the server accepts one more connection.
fn get(to: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    loop {
        let answer = send(to, request.as_bytes());
        if !answer.is_empty() {
            return answer;
        }
        std::thread::yield_now();
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// An invalid request, by number; every kind in turn.
fn hostile(n: usize, to: SocketAddr) -> Vec<u8> {
    let noise = |len: usize| -> Vec<u8> {
        let mut x = n as u64 * 2_654_435_769 + 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        };
        (0..len).map(|_| next()).collect()
    };
    let text = match n % 14 {
        0 => return noise(n % 5000 + 1),
        1 => format!("GET / HTTP/1.1\r\nHost: {to}\r\nX: {}\r\n\r\n", "a".repeat(100_000)),
        2 => format!("GET /{} HTTP/1.1\r\nHost: {to}\r\n\r\n", "%00../".repeat(20_000)),
        3 => format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(5000)),
        4 => format!(
            "POST / HTTP/1.1\r\nHost: {to}\r\nContent-Length: 99999999999\r\n\r\n{}",
            "x".repeat(200_000)
        ),
        5 => format!("GET / HTTP/1.1\r\nHost: evil.example:{}\r\n\r\n", to.port()),
        6 => {
            format!("GET /live.json HTTP/1.1\r\nHost: {to}\r\nOrigin: http://evil.example\r\n\r\n")
        }
        7 => format!("GET / HTTP/1.1\r\nHost: {to}\r\nHost: {to}\r\n\r\n"),
        8 => "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_string(),
        9 => "GET / HTTP/1.1\r\nHost".to_string(),
        10 => format!(
            "GET / HTTP/1.1\r\nHost: {to}\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"
        ),
        11 => format!("{}GET / HTTP/1.1\r\nHost: {to}\r\n\r\n", "\r\n".repeat(30_000)),
        12 => {
            return [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), noise(600)].concat();
        }
        _ => String::new(),
    };
    text.into_bytes()
}

/// server.T4: hostile requests leave the answers and the memory of the server as they were.
#[test]
fn t4_hostile_requests_change_nothing() {
    let _alone = MEMORY.write().unwrap_or_else(|p| p.into_inner());
    let (cache, server) = start();
    let to = server.address();
    for path in ["/", "/live.json", "/metrics", "/history.json", "/healthz"] {
        assert!(get(to, path).starts_with("HTTP/1.1 200 OK\r\n"), "{path}");
    }
    let before = resident_bytes();
    for n in 0..1000 {
        let answer = send(to, &hostile(n, to));
        assert!(!answer.contains(" 200 OK") || n % 14 == 10, "{n}: {answer}");
        assert!(!answer.contains("Access-Control"), "{n}: {answer}");
    }
    assert_eq!(get(to, "/healthz").rsplit("\r\n\r\n").next(), Some("ok\n"));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more than before");
    server.stop();
    drop(cache);
}

/// server.T2: silent connections use up the limit, and lose their place at their timeout. The
/// server closes further ones at once. Stopping it does not wait for the silent ones.
#[test]
fn t2_silent_connections_are_bounded_and_do_not_delay_stop() {
    let _with_others = MEMORY.read();
    let (_cache, server) = start();
    let (to, began) = (server.address(), Instant::now());
    let silent: Vec<TcpStream> =
        (0..CONNECTIONS + 20).map(|_| TcpStream::connect(to).unwrap()).collect();
    // The server closes further connections without an answer. A read of the others would block.
    let is_closed = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let end = stream.peek(&mut [0; 16]);
        stream.set_nonblocking(false).unwrap();
        end.map_or_else(|e| e.kind() != std::io::ErrorKind::WouldBlock, |len| len == 0)
    };
    while silent.iter().filter(|stream| is_closed(stream)).count() < 20 {
        std::thread::yield_now();
    }
    let is_late = began.elapsed() > HEAD_TIME / 2;
    server.stop();
    for mut stream in &silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        assert!(end.map_or_else(|e| e.kind() == std::io::ErrorKind::ConnectionReset, |_| true));
        // None, unless its timeout may have come before the stop.
        assert!(answer.is_empty() || is_late && answer.starts_with(b"HTTP/1.1 408 "));
    }
    assert!(TcpStream::connect(to).is_err(), "the server listens no more");
}

/// server.T5 and collector.B2: when the server has stopped, no thread of it and no client holds the
/// cache.
#[test]
fn t5_b2_stopped_server_releases_cache() {
    let _with_others = MEMORY.read();
    let dir = std::env::temp_dir().join(format!("forebay-live-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let image = dir.join("data.fby");
    let create = forebay::CreateVolume::default().size(16 << 20);
    forebay::Volume::create(&image, &create).unwrap();
    let cache = Cache::new(CacheConfig::with_budget(8 << 20)).unwrap();
    let volume = cache.open_volume(&image, &forebay::VolumeOptions::default()).unwrap();
    let collector = Collector::new(CacheSource::new("test", &cache));
    let server = Server::start(&collector, &Options::parse("127.0.0.1:0", false).unwrap()).unwrap();
    let to = server.address();
    let watchers: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(move || (0..20).for_each(|_| drop(try_get(to, "/live.json")))))
        .collect();
    get(to, "/live.json");
    server.stop();
    volume.close().unwrap();
    drop(cache);
    let other = Cache::new(CacheConfig::with_budget(8 << 20)).unwrap();
    drop(other.open_volume(&image, &forebay::VolumeOptions::default()).unwrap());
    watchers.into_iter().for_each(|watcher| watcher.join().unwrap());
    assert!(
        collector.view().is_none() && collector.metrics().is_none() && collector.health().is_err()
    );
    std::fs::remove_dir_all(&dir).unwrap();
}

fn try_get(to: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(to).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {to}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn t1_address_beyond_loopback_needs_option() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let refused = Options::parse(address, false).unwrap_err();
        assert!(refused.to_string().contains("can watch"), "{refused}");
        assert!(Options::parse(address, true).is_ok());
    }
    for nonsense in ["", "localhost:80", "127.0.0.1", "127.0.0.1:x", ":8080"] {
        assert!(Options::parse(nonsense, true).is_err(), "{nonsense}");
    }
}

/// collector.B1, and HEAD is GET without the content: the collector makes one view for all clients
/// that ask at the same time.
#[test]
fn b1_clients_share_one_view() {
    let _with_others = MEMORY.read();
    let (_cache, server) = start();
    let to = server.address();
    let head = send(to, format!("HEAD / HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes());
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    let content = |path: &str| get(to, path).split_once("\r\n\r\n").unwrap().1.to_string();
    let number = |view: &str| {
        let view: serde_json::Value = serde_json::from_str(view).unwrap();
        view["now"]["number"].as_u64().unwrap()
    };
    let start = std::time::Instant::now();
    let first = number(&content("/live.json"));
    let watchers: Vec<_> = (0..200).map(|_| number(&content("/live.json"))).collect();
    let most = watchers.iter().max().unwrap() - first;
    // One view for each pause, and one sample for the curves.
    let pauses = start.elapsed().as_millis() / forebay_live::collector::PAUSE.as_millis();
    assert!(u128::from(most) <= 2 * pauses + 2, "{most} views in {pauses} pauses");
    let page = content("/");
    assert!(!page.contains("NONCE") && !page.contains("http://") && !page.contains("https://"));
}

/// server.T3: a client that never ends its request gets an error at the timeout, and loses its
/// place.
#[test]
fn t3_unfinished_request_times_out() {
    // It waits for a long time, and needs no more memory then.
    let (_cache, server) = {
        let _with_others = MEMORY.read();
        start()
    };
    let mut stream = TcpStream::connect(server.address()).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\n", server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}
