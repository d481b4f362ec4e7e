//! A user of a mount gets no descriptor of another user's file, whatever interface makes that.

use crate::common::lab::Lab;
use crate::common::place::{Place, may_run};
use crate::common::wait;
use forebay::OpenOptions;
use forebay_fuse::KernelCache;
use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What no user but root may read.
const SECRET: &str = "the secret of root";

/// One of the players of `other_users.py`; it ends when its standard input is closed.
struct Player(Child);

impl Player {
    fn new(role: &str, dir: &Path, names: u32, sockets: &[PathBuf]) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", include_str!("other_users.py"), role]).env("NAMES", names.to_string());
        command.arg(dir).arg(SECRET).args(sockets);
        // Only root may pass through the folder from which the tests were started.
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().expect("python3"))
    }

    /// Its counts.
    fn end(mut self) -> Value {
        drop(self.0.stdin.take());
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(wait(&mut self.0).success(), "{text}");
        serde_json::from_str(&text).expect("counts")
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sum(counts: &[Value], name: &str) -> u64 {
    counts.iter().filter_map(|count| count[name].as_u64()).sum()
}

/// Whether to go on before a round: so many, or for `FOREBAY_RACE_SECONDS`.
fn until_round(last: u64) -> impl Fn(u64) -> bool {
    let seconds = std::env::var("FOREBAY_RACE_SECONDS").map(|text| text.parse().unwrap());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    move |round| end.as_ref().map_or(round < last, |end| Instant::now() < *end)
}

fn judge(counts: &[Value]) {
    counts.iter().for_each(|count| println!("user {count}"));
    println!(
        "opens {}, opened {}, races met {}, ESTALE {}, violations {}",
        sum(counts, "opens"),
        sum(counts, "opened"),
        sum(counts, "races"),
        sum(counts, "open ESTALE"),
        sum(counts, "violations"),
    );
    assert_eq!(sum(counts, "violations"), 0, "{counts:?}");
    assert!(sum(counts, "opened") > 0, "the users played, too: {counts:?}");
}

/// The library makes files of root's at names that users create. The two meet far more often than
/// with
/// `forebay cp`, a new process for each copy.
#[test]
fn user_beside_the_library_gets_no_file_of_root() {
    if !may_run() {
        return;
    }
    for kernel_cache in [KernelCache::Small, KernelCache::Always] {
        let lab = Lab::new(kernel_cache);
        std::fs::create_dir(lab.mnt("shared")).unwrap();
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(lab.mnt("shared"), open_to_all).unwrap();
        let users = [(); 2].map(|()| Player::new("user", &lab.mnt("shared"), 2, &[]));
        let mut how = OpenOptions::new();
        how.write(true).create_new(true).mode(0o600);
        let (mut made, goes_on) = (0, until_round(5000));
        while goes_on(made) {
            let name = format!("/shared/f{}", made % 2);
            match how.open_in(&lab.volume, &name) {
                Ok(file) => {
                    file.write_at(SECRET.as_bytes(), 0).unwrap();
                    made += 1;
                }
                Err(_) => drop(lab.volume.remove_file(&name)),
            }
        }
        let counts = users.map(Player::end);
        println!("{kernel_cache:?}: {made} files of the library");
        judge(&counts);
    }
}

/// Where two interfaces used one name at the same time, CREATE opened what the other one had
/// made: user 1000
/// got descriptors of root's files, 82 within 30 s. `FOREBAY_RACE_SECONDS=60` plays for so long.
#[test]
fn user_beside_root_on_every_interface_gets_no_file_of_root() {
    if !may_run() {
        return;
    }
    let place = Place::new(256 << 20);
    let folder = &place.folder;
    let open_to_all = std::fs::Permissions::from_mode(0o777);
    let private = std::fs::Permissions::from_mode(0o600);
    place.mount("control=mount.ctl");
    std::fs::create_dir(place.mnt("shared")).unwrap();
    std::fs::set_permissions(place.mnt("shared"), open_to_all.clone()).unwrap();
    std::fs::create_dir(folder.path("shared")).unwrap();
    std::fs::set_permissions(folder.path("shared"), open_to_all).unwrap();
    for n in 0..8 {
        let path = folder.path(&format!("shared/f{n}"));
        std::fs::write(&path, SECRET).unwrap();
        std::fs::set_permissions(&path, private.clone()).unwrap();
    }
    std::fs::write(place.mnt("disk"), vec![0; 1 << 20]).unwrap();
    std::fs::set_permissions(place.mnt("disk"), private).unwrap();
    let server = folder.export(&["mnt/disk", "--cache-size", "16M"]);
    let mut client = server.client("");

    let sockets = ["mount.ctl", "sock", "ctl"].map(|name| folder.path(name));
    let users = [(); 2].map(|()| Player::new("user", &place.mnt("shared"), 8, &sockets));
    let root = Player::new("root", &place.mnt("shared"), 8, &[]);
    let (mut copies, mut rounds) = (0, 0);
    let goes_on = until_round(12);
    while goes_on(rounds) {
        // A user's file may be in the way of a copy: that name is refused then.
        let done = folder.forebay(&["cp", "-r", "shared", "vol:/"]);
        copies += u64::from(done.status.success());
        let word = format!("cp --remove-destination -p shared/f{} mnt/shared", rounds % 8);
        folder.forebay(&["run", "--uncached", "--", "sh", "-c", &word]);
        client.write(rounds * 4096 % (1 << 20), &[7; 4096]).unwrap();
        rounds += 1;
    }
    let counts = users.map(Player::end);
    let root = root.end();
    client.disconnect();
    server.stop();
    println!("{rounds} rounds, {copies} copies without a refusal; root {root}");
    judge(&counts);
    assert_eq!(sum(&counts, "sockets refused"), 2 * sockets.len() as u64);
    assert!(
        sum(&counts, "opened") > 0 && root["made"].as_u64() > Some(0),
        "both played: {counts:?}"
    );
    place.umount();
}
