//! A user of a mount gets no descriptor of another user's file and removes none, whatever interface
//! makes that; and no socket of root's lets a user in.

use crate::common::harness::Lab;
use crate::common::place::{Place, may_run};
use crate::common::{Folder, Server, wait};
use forebay::OpenOptions;
use forebay_fuse::CacheMode;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What no user but root may read.
const SECRET: &str = "the secret of root";

/// One of the players of `other_users.py`; it ends when its standard input is closed.
struct Player {
    child: Child,
    races: Arc<AtomicU64>,
    /// Gives the last line: the counts.
    reader: Option<JoinHandle<String>>,
}

impl Player {
    fn new(role: &str, dir: &Path, names: u32, sockets: &[PathBuf]) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", include_str!("other_users.py"), role]).env("NAMES", names.to_string());
        command.arg(dir).arg(SECRET).args(sockets);
        // Only root may pass through the folder from which the tests were started.
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let (races, said) = (Arc::new(AtomicU64::new(0)), child.stdout.take().unwrap());
        let count = races.clone();
        let reader = std::thread::spawn(move || {
            let mut last = String::new();
            for line in BufReader::new(said).lines() {
                last = line.unwrap();
                count.fetch_add(u64::from(last == "race"), Ordering::Relaxed);
            }
            last
        });
        Self { child, races, reader: Some(reader) }
    }

    /// Its counts.
    fn end(mut self) -> Value {
        drop(self.child.stdin.take());
        let text = self.reader.take().unwrap().join().unwrap();
        assert!(wait(&mut self.child).success(), "{text}");
        serde_json::from_str(&text).expect("counts")
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sum(counts: &[Value], name: &str) -> u64 {
    counts.iter().filter_map(|count| count[name].as_u64()).sum()
}

/// When a race ends: after `rounds` rounds and `races` races, or after `FOREBAY_RACE_SECONDS`.
struct Bounds {
    rounds: u64,
    races: u64,
    /// A test fails that has met fewer races by then.
    most_rounds: u64,
    end: Option<Instant>,
}

impl Bounds {
    fn new(rounds: u64, races: u64, most_rounds: u64) -> Self {
        let seconds = std::env::var("FOREBAY_RACE_SECONDS").map(|text| text.parse().unwrap());
        let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)).ok();
        Self { rounds, races, most_rounds, end }
    }

    /// Whether to go on before a round.
    fn goes_on(&self, round: u64, players: &[Player]) -> bool {
        let met: u64 = players.iter().map(|player| player.races.load(Ordering::Relaxed)).sum();
        let is_over = self.end.map_or(round >= self.rounds, |end| Instant::now() >= end);
        if is_over && met < self.races {
            assert!(round < self.most_rounds, "{met} races in {round} rounds: too few");
        }
        !is_over || met < self.races
    }
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

/// A directory of a mount with these permissions.
fn make_dir(path: &Path, mode: u32) {
    std::fs::create_dir(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The library makes files of root's at names that users create. The two meet far more often than
/// with `forebay cp`, a new process for each copy.
#[test]
fn user_racing_library_gets_no_root_file() {
    if !may_run() {
        return;
    }
    for mode in [CacheMode::Small, CacheMode::Kernel] {
        let lab = Lab::new(mode);
        make_dir(&lab.mnt("shared"), 0o777);
        let users = [(); 2].map(|()| Player::new("user", &lab.mnt("shared"), 2, &[]));
        let mut how = OpenOptions::new();
        how.write(true).create_new(true).mode(0o600);
        let (mut made, bounds) = (0, Bounds::new(5000, 50, 100_000));
        while bounds.goes_on(made, &users) {
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
        println!("{mode:?}: {made} files of the library");
        judge(&counts);
    }
}

/// The kernel looked up a user's file in a directory with the sticky bit. The library put a file or
/// directory of root's at that name before the removal or rename, and the daemon removed that.
#[test]
fn user_in_a_sticky_directory_removes_no_file_of_root() {
    if !may_run() {
        return;
    }
    let lab = Lab::new(CacheMode::Small);
    let volume = &lab.volume;
    make_dir(&lab.mnt("private"), 0o700);
    make_dir(&lab.mnt("sticky"), 0o1777);
    let users = [(); 2].map(|()| Player::new("remover", &lab.mnt("sticky"), 2, &[]));
    let (mut round, mut violations) = (0, 0);
    let bounds = Bounds::new(5000, 50, 200_000);
    while bounds.goes_on(round, &users) {
        let name = format!("/sticky/f{}", round % 2);
        // A file over a file, now and then a directory; a user's empty directory may be in the way.
        let moved = match round % 8 {
            0 => volume.create_dir("/private/new").and_then(|()| {
                drop(volume.remove_file(&name));
                volume.rename("/private/new", &name)
            }),
            _ => {
                volume.write("/private/new", SECRET.as_bytes()).unwrap();
                volume.rename("/private/new", &name)
            }
        };
        match moved {
            Ok(()) => violations += u64::from(!volume.metadata(&name).is_ok_and(|m| m.uid == 0)),
            Err(_) => drop(volume.remove_dir("/private/new")),
        }
        drop(volume.remove_file(&name).or_else(|_| volume.remove_dir(&name)));
        round += 1;
    }
    let counts = users.map(Player::end);
    counts.iter().for_each(|count| println!("remover {count}"));
    println!("{round} rounds, races met {}, violations {violations}", sum(&counts, "races"));
    assert_eq!(violations, 0, "files of root's that went: {counts:?}");
    for act in ["unlink", "rename away", "rename over", "exchange", "rmdir"] {
        assert!(sum(&counts, act) > 0, "{act} succeeds on own files: {counts:?}");
    }
}

/// Where two interfaces used one name at the same time, CREATE opened what the other one had made:
/// user 1000 got descriptors of root's files, 82 within 30 s. `FOREBAY_RACE_SECONDS=60` plays for
/// so long.
#[test]
fn user_racing_root_on_every_interface_gets_no_root_file() {
    if !may_run() {
        return;
    }
    let place = Place::new(256 << 20);
    let folder = &place.folder;
    let private = std::fs::Permissions::from_mode(0o600);
    place.mount("control=mount.ctl");
    make_dir(&place.mnt("shared"), 0o777);
    make_dir(&folder.path("shared"), 0o777);
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
    let (mut copies, mut run, mut exported, mut rounds) = (0, 0, 0, 0);
    let bounds = Bounds::new(12, 5, 200);
    while bounds.goes_on(rounds, &users)
        || ((copies == 0 || run == 0 || exported == 0) && rounds < bounds.most_rounds)
    {
        // A user's file may be in the way of a copy: that name is refused then.
        let done = folder.forebay(&["cp", "-r", "shared", "vol:/"]);
        copies += u64::from(done.status.success());
        let word = format!("cp --remove-destination -p shared/f{} mnt/shared", rounds % 8);
        run += u64::from(
            folder.forebay(&["run", "--uncached", "--", "sh", "-c", &word]).status.success(),
        );
        // What root's client writes over NBD stands in a file with a name that users create.
        let (disk, own) = (place.mnt("disk"), place.mnt("shared/exported"));
        client.write(rounds * 4096 % (1 << 20), SECRET.as_bytes()).unwrap();
        client.write_durably(0, SECRET.as_bytes()).unwrap();
        std::fs::hard_link(disk, &own).unwrap();
        // The name may be of the disk already: then rename(2) leaves both.
        std::fs::rename(&own, place.mnt(&format!("shared/f{}", rounds % 8))).unwrap();
        exported += u64::from(std::fs::remove_file(&own).is_err());
        rounds += 1;
    }
    let counts = users.map(Player::end);
    let root = root.end();
    client.disconnect();
    server.stop();
    println!(
        "{rounds} rounds, {copies} copies without a refusal, {run} by `run`, \
         {exported} names of an export"
    );
    println!("root {root}");
    judge(&counts);
    assert_eq!(sum(&counts, "sockets refused"), 2 * sockets.len() as u64);
    assert!(
        copies > 0 && run > 0 && exported > 0 && root["made"].as_u64() > Some(0),
        "each interface made files of root's: {copies} by `cp`, {run} by `run`, {exported} by NBD, \
         {root}"
    );
    for set in ["modes set", "trees set"] {
        assert!(sum(&counts, set) > 0, "the ioctls of the users work: {set}, {counts:?}");
    }
    place.umount();
}

/// In a folder where a user may rename, that user takes the sockets of root's exports away while
/// they start, and leaves hard links to another file of root's in their places.
#[test]
fn user_replacing_root_sockets_gets_no_connection() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let (shared, victim) = (folder.path("shared"), folder.path("shared/victim"));
    make_dir(&shared, 0o777);
    std::fs::write(&victim, SECRET).unwrap();
    // A user may link only what it may write.
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o666)).unwrap();
    let sockets = ["shared/sock", "shared/ctl"].map(|name| folder.path(name));
    let users = [Player::new("linker", &shared, 1, &sockets)];
    let (mut rounds, mut started, bounds) = (0, 0, Bounds::new(20, 10, 1000));
    while bounds.goes_on(rounds, &users) {
        let words = ["export", "-U", "shared/sock", "--control", "shared/ctl", "disk.img"];
        // A file of the user may be in the way of a socket.
        started += u64::from(Server::try_start(folder.command(&words), sockets[0].clone()).is_ok());
        rounds += 1;
    }
    let counts = users.map(Player::end);
    println!("{rounds} rounds, {started} exports started; linker {}", counts[0]);
    assert_eq!(sum(&counts, "violations"), 0, "{counts:?}");
    assert!(started > 0 && sum(&counts, "connect EACCES") > 0, "{started}, {counts:?}");
    let mode = std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o666, "the mode of a file that was linked over a socket");
}
