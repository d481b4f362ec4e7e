//! An image can be read and written by real clients, and is what they wrote afterwards.

use crate::certificates::Certificates;
use crate::common::{Folder, bytes, tool};

const SIZE: u64 = 8 << 20;

#[test]
fn nbdinfo_sees_it_and_nbdcopy_copies_it() {
    let folder = Folder::new();
    let image = folder.image("disk.img", SIZE);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let expected = format!("nbd+unix:///?socket={}", folder.path("sock").display());
    assert_eq!(server.uri, expected);
    assert_eq!(tool("nbdinfo", &["--size", &server.uri]).trim(), SIZE.to_string());
    let copy = folder.path("copy.img");
    tool("nbdcopy", &[&server.uri, &copy.display().to_string()]);
    assert_eq!(bytes(&copy), bytes(&image));
    server.stop();
}

#[test]
fn written_data_reads_back_and_reaches_image() {
    let folder = Folder::new();
    let image = folder.image("disk.img", SIZE);
    for mode in ["cached", "uncached", "direct"] {
        let server = folder.export(&["disk.img", "--cache-size", "16M", "--mode", mode]);
        let mut expected = bytes(&image);
        let mut client = server.client("");
        assert_eq!(client.size, SIZE);
        for (number, (offset, length)) in
            [(0, 4096), (5, 1), (4095, 2), (100_000, 70_000), (SIZE - 3, 3)].iter().enumerate()
        {
            let data = vec![number as u8 + 1; *length];
            client.write(*offset, &data).unwrap();
            expected[*offset as usize..][..*length].copy_from_slice(&data);
            assert_eq!(client.read(*offset, *length as u32).unwrap(), data, "{mode}");
        }
        client.disconnect();
        server.stop();
        assert!(bytes(&image) == expected, "{mode}: the image differs");
    }
}

#[test]
fn over_tcp_with_a_port_of_the_systems_choice() {
    let folder = Folder::new();
    folder.image("disk.img", SIZE);
    let run = "nbdinfo --size \"$uri\" && test -n \"$port\" && test -z \"$unixsocket\"";
    let out = folder.ok(&["export", "disk.img", "-p", "0", "--cache-size", "16M", "--run", run]);
    assert!(out.starts_with("nbd://127.0.0.1:"), "{out}");
    assert!(out.trim().ends_with(&SIZE.to_string()), "{out}");
}

#[test]
fn public_address_with_insecure_option_is_served() {
    let folder = Folder::new();
    folder.image("disk.img", SIZE);
    let open = ["export", "disk.img", "-p", "0", "--bind", "0.0.0.0", "--cache-size", "16M"];
    let run = ["--insecure", "--run", "nbdinfo --size nbd://127.0.0.1:$port"];
    let out = folder.ok(&[&open[..], &run[..]].concat());
    assert!(out.trim().ends_with(&SIZE.to_string()), "{out}");
}

#[test]
fn by_tls() {
    let folder = Folder::new();
    let image = folder.image("disk.img", SIZE);
    let certificates = Certificates::new();
    let dir = certificates.path().to_str().unwrap();
    let secure =
        ["disk.img", "--cache-size", "16M", "--tls-verify-peer", "--tls-certificates", dir];
    let server = folder.export(&secure);
    assert!(server.uri.starts_with("nbds+unix:///?socket="), "{}", server.uri);
    let uri = format!("{}&tls-certificates={dir}&tls-hostname=localhost", server.uri);
    let copy = folder.path("copy.img");
    tool("nbdcopy", &[&uri, &copy.display().to_string()]);
    assert_eq!(bytes(&copy), bytes(&image));
    server.stop();
    // An address that others can reach, then, is not insecure.
    let open = ["export", "disk.img", "-p", "0", "--bind", "0.0.0.0", "--cache-size", "16M"];
    let run = format!("nbdinfo --size 'nbds://127.0.0.1:'$port'?tls-certificates={dir}'");
    let out = folder.ok(&[&open[..], &secure[3..], &["--run", &run]].concat());
    assert!(out.trim().ends_with(&SIZE.to_string()), "{out}");
}

#[test]
fn on_the_threads_engine_too() {
    let folder = Folder::new();
    let image = folder.image("disk.img", SIZE);
    let server = folder.export(&["disk.img", "--cache-size", "16M", "--aio", "threads"]);
    let mut client = server.client("");
    client.write(8192, &[7; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!(bytes(&image)[8192..12288], [7; 4096]);
    server.stop();
}
