//! TLS with real clients, and clients that mean harm while it is agreed on.

use crate::common::certificates::Certificates;
use crate::common::{Client, Running, eventually, string};
use forebay_nbd::proto::{self, opt, rep};
use forebay_nbd::{DropReason, ServerConfig, TlsIdentity, TlsMode};
use forebay_testkit::mem_export::MemExport;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 24 << 20;

fn serve(certificates: &Certificates, mode: TlsMode, verify_peer: bool) -> Running {
    let identity = TlsIdentity::load(certificates.path(), verify_peer).unwrap();
    let config = ServerConfig {
        tls: Some((identity, mode)),
        handshake_timeout: Duration::from_secs(2),
        ..Default::default()
    };
    let export = MemExport::new(SIZE).with_late(7, Duration::from_micros(100));
    Running::with(config, vec![("disk", Arc::new(export))])
}

fn run(program: &str, words: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn ok(program: &str, words: &[&str]) -> String {
    let (good, text) = run(program, words);
    assert!(good, "{program} {words:?}: {text}");
    text
}

fn uri(running: &Running, folder: &Path) -> String {
    let (socket, folder) = (running.path.display(), folder.display());
    format!("nbds+unix:///?socket={socket}&tls-certificates={folder}&tls-hostname=localhost")
}

#[test]
fn libnbd_and_qemu_use_it() {
    let certificates = Certificates::new();
    let running = serve(&certificates, TlsMode::Require, true);
    let uri = uri(&running, certificates.path());
    let info = ok("nbdinfo", &[&uri]);
    assert!(info.contains("using TLS") || info.contains("TLS"), "{info}");
    assert!(ok("nbdinfo", &["--map", &uri]).contains("hole,zero"));
    // There and back, by two clients: what comes back is what went there.
    let (image, back) = (certificates.path().join("image"), certificates.path().join("back"));
    let mut state = 5;
    let word = |_| forebay_base::world::split_mix(&mut state).to_le_bytes();
    let bytes: Vec<u8> = (0..SIZE / 8).flat_map(word).collect();
    std::fs::write(&image, &bytes).unwrap();
    ok("nbdcopy", &["--connections=3", "--flush", image.to_str().unwrap(), &uri]);
    let object =
        format!("tls-creds-x509,id=tls,endpoint=client,dir={}", certificates.path().display());
    let options = format!(
        "driver=nbd,server.type=unix,server.path={},tls-creds=tls,tls-hostname=localhost",
        running.path.display()
    );
    let to = back.to_str().unwrap();
    let words = ["convert", "--object", &object, "--image-opts", &options, "-O", "raw", to];
    ok("qemu-img", &words);
    assert!(std::fs::read(&back).unwrap() == bytes);
    ok("nbdcopy", &["--requests=64", &uri, to]);
    assert!(std::fs::read(&back).unwrap() == bytes);
    let stats = running.stats();
    assert!(stats.memory_peak <= running.server.config().total_memory, "{stats:?}");
    eventually("everything is given back", || running.stats().memory_used == 0);
    // Sessions of all clients leave most of the memory to requests, however little it is set to.
    running.server.set_total_memory(0);
    assert_eq!(running.server.total_memory(), 64 << 20);
    ok("nbdinfo", &["--size", &uri]);
}

#[test]
fn whom_it_lets_in() {
    let certificates = Certificates::new();
    let anonymous = anonymous(&certificates);
    let verifying = serve(&certificates, TlsMode::Require, true);
    assert!(!run("nbdinfo", &["--size", &uri(&verifying, &anonymous)]).0);
    eventually("the stranger was cut off", || verifying.server.dropped(DropReason::Tls) > 0);
    ok("nbdinfo", &["--size", &uri(&verifying, certificates.path())]);
    let open = serve(&certificates, TlsMode::On, false);
    ok("nbdinfo", &["--size", &uri(&open, &anonymous)]);
    ok("nbdinfo", &["--size", &open.uri()]);
    // A certificate of another authority is worth nothing.
    let other = Certificates::new();
    assert!(!run("nbdinfo", &["--size", &uri(&verifying, other.path())]).0);
    for file in ["server-cert.pem", "server-key.pem", "ca-cert.pem"] {
        std::fs::remove_file(other.path().join(file)).unwrap();
        let error = TlsIdentity::load(other.path(), true).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
        std::fs::copy(certificates.path().join(file), other.path().join(file)).unwrap();
    }
}

#[test]
fn nothing_without_it_where_it_is_required() {
    let certificates = Certificates::new();
    let running = serve(&certificates, TlsMode::Require, false);
    assert!(!run("nbdinfo", &["--size", &running.uri()]).0);
    let mut client = running.connect();
    client.start();
    let go = [string(b"disk"), vec![0, 0]].concat();
    for (code, data) in [(opt::LIST, vec![]), (opt::GO, go), (opt::STRUCTURED_REPLY, vec![])] {
        assert_eq!(client.option(code, &data)[0].0, rep::ERR_TLS_REQD);
    }
    assert_eq!(client.option(opt::STARTTLS, &[1])[0].0, rep::ERR_INVALID);
    let mut bytes = Vec::new();
    proto::put_option(&mut bytes, opt::EXPORT_NAME, b"disk");
    client.send(&bytes);
    assert!(client.closed());
    eventually("it is counted", || running.server.dropped(DropReason::Tls) == 1);
}

/// 30: garbage, silence, and plain options smuggled in behind STARTTLS, while a clean client works.
#[test]
fn hostile_while_it_is_agreed_on() {
    let certificates = Certificates::new();
    let running = serve(&certificates, TlsMode::On, false);
    let starting = || {
        let mut client = running.connect();
        client.start();
        client
    };
    let mut clean = running.client();
    let mut check = |byte: u8| {
        assert_eq!(clean.write(0, &[byte; 70_000]), 0);
        assert_eq!(clean.read(0, 70_000).data, [byte; 70_000]);
    };
    let junk: [&[u8]; 4] =
        [&[0xff; 600], b"GET / HTTP/1.0\r\n\r\n", &[0x16, 3, 1, 0xff, 0xff], &[]];
    for (at, junk) in junk.into_iter().enumerate() {
        let before = running.stats();
        let mut client = starting();
        assert_eq!(client.option(opt::STARTTLS, &[])[0].0, rep::ACK);
        client.throw(junk);
        check(at as u8);
        // At once if it is wrong, by the time limit of the handshake if it is not complete.
        assert!(client.closed());
        let cut = |s: &forebay_nbd::Stats| {
            s.dropped_for(DropReason::Tls) + s.dropped_for(DropReason::HandshakeTimeout)
        };
        eventually("it was cut off", || cut(&running.stats()) == cut(&before) + 1);
    }
    // What came in the clear behind STARTTLS is not taken for options, and gets no answer.
    let mut client = starting();
    let mut bytes = Vec::new();
    proto::put_option(&mut bytes, opt::STARTTLS, &[]);
    proto::put_option(&mut bytes, opt::LIST, &[]);
    client.send(&bytes);
    let mut wanted = Vec::new();
    proto::put_option_reply(&mut wanted, opt::STARTTLS, rep::ACK, &[]);
    assert_eq!(client.take(wanted.len()), wanted);
    let rest = rest(&mut client);
    assert!(rest.len() < 16, "an alert at most: {rest:?}");
    // A great deal of it, more than any handshake.
    let mut client = starting();
    let mut bytes = Vec::new();
    proto::put_option(&mut bytes, opt::STARTTLS, &[]);
    bytes.resize(2 << 20, 0x16);
    client.throw(&bytes);
    assert!(client.closed());
    check(9);
    drop(clean);
    eventually("everything is given back", || running.stats().memory_used == 0);
}

/// The same authority, and no certificate for a client.
fn anonymous(certificates: &Certificates) -> PathBuf {
    let folder = certificates.path().join("anonymous");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(certificates.path().join("ca-cert.pem"), folder.join("ca-cert.pem")).unwrap();
    folder
}

fn rest(client: &mut Client) -> Vec<u8> {
    let mut all = Vec::new();
    let _reset_is_an_end_too = std::io::Read::read_to_end(&mut client.socket, &mut all);
    all
}
