//! Clients that die in the middle of something: the server goes on, others lose nothing.

use crate::common::{Folder, bytes, number, tool, until};
use std::process::{Command, Stdio};

#[test]
fn kill_9_of_fio_under_load() {
    let folder = Folder::new();
    let image = folder.image("disk.img", 32 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let mut steady = server.client("");
    for round in 1..=5_u8 {
        // One process with threads: by default fio forks, and its workers outlive a killed parent.
        let mut fio = Command::new("fio")
            .args(["--name=x", "--ioengine=nbd", "--rw=randwrite", "--bs=16k", "--iodepth=32"])
            .args(["--size=16M", "--time_based", "--runtime=60", "--thread"])
            .arg(format!("--uri={}", server.uri))
            .current_dir(folder.path("run"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("fio starts; see `cargo xtask requires`");
        // It is in the middle of something when a good part of its writes has come.
        let written =
            || number(&folder.ok(&["stat", "--json", "--control", "ctl"]), "dirtied_bytes");
        let before = written();
        until("fio writes", || written() > before + (4 << 20));
        steady.write(24 << 20, &[round; 4096]).unwrap();
        fio.kill().unwrap();
        fio.wait().unwrap();
        assert_eq!(steady.read(24 << 20, 4096).unwrap(), [round; 4096]);
    }
    steady.flush().unwrap();
    assert_eq!(bytes(&image)[24 << 20..][..4096], [5; 4096]);
    tool("nbdinfo", &[&server.uri]);
    server.stop();
}

#[test]
fn client_vanished_with_requests_in_flight_leaves_server_usable() {
    let folder = Folder::new();
    folder.image("disk.img", 8 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    for round in 0..50_u64 {
        let mut client = server.client("");
        for block in 0..8 {
            client.write_and_forget((round * 8 + block) * 4096, &[1; 4096]).unwrap();
        }
    }
    let mut client = server.client("");
    client.flush().unwrap();
    client.disconnect();
    server.stop();
}
