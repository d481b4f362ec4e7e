//! Only the owner of a process and root can ask it.

use crate::common::{Folder, stderr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

#[test]
fn folder_and_socket_are_private() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let mut child = folder
        .command(&["export", "disk.img", "-U", "sock", "--cache-size", "16M"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let socket = folder.path("run/forebay").join(format!("{}.sock", child.id()));
    crate::common::until("the control socket", || socket.exists());
    let mode = |p: &std::path::Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    crate::common::until("its mode", || mode(&socket) == 0o600);
    assert_eq!(mode(socket.parent().unwrap()), 0o700);
    // Found without being named, and by process id.
    crate::common::until("an answer", || folder.forebay(&["stat"]).status.success());
    folder.ok(&["stat", "--json"]);
    let pid = child.id().to_string();
    std::process::Command::new("kill").arg(&pid).status().unwrap();
    assert!(crate::common::wait(&mut child).success());
    assert!(!socket.exists());
}

#[test]
fn another_user_is_refused() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    if std::fs::metadata(folder.path("disk.img")).unwrap().uid() != 0 {
        assert!(
            std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1"),
            "nothing may be missing here"
        );
        eprintln!("not run: only root can become another user");
        return;
    }
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let socket = folder.path("ctl");
    let ask = |uid: u32| {
        let mut command = folder.command(&["stat", "--json", "--control", "ctl"]);
        command.uid(uid);
        crate::common::output(command)
    };
    let refused = ask(65534);
    assert!(!refused.status.success(), "{refused:?}");
    // Also when a user has opened the socket to all.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let refused = ask(65534);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("owner"), "{}", stderr(&refused));
    assert!(ask(0).status.success());
    server.stop();
}
