//! One volume in one process through all interfaces at once: a mount, the library, an export. A
//! change through one is visible through the others, whatever the kernel's cache may keep.
//! `FOREBAY_FSX_OPS` sets the operations of each run (default 1500), `FOREBAY_SEED` the first seed.

use crate::common::harness::Lab;
use crate::common::place::may_run;
use forebay::{ExportMode, File, OpenOptions, Volume};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_fuse::CacheMode;
use forebay_vfs::Export;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MODES: [CacheMode; 3] = [CacheMode::Own, CacheMode::Small, CacheMode::Kernel];

fn both(volume: &Volume, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).open_in(volume, name).unwrap()
}

/// Carries out what a script asks for: by the library, or by an export of the same file.
fn outsiders(listener: &UnixListener, volume: &Volume, name: &str) {
    let (stream, _) = listener.accept().unwrap();
    let mut asked = BufReader::new(stream.try_clone().unwrap());
    let file = both(volume, name);
    let append = OpenOptions::new().append(true).open_in(volume, name).unwrap();
    let mut line = String::new();
    while asked.read_line(&mut line).unwrap() > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [who, op, offset, len] = words[..] else { panic!("{line}") };
        let (offset, len): (u64, usize) = (offset.parse().unwrap(), len.parse().unwrap());
        let mut data = vec![0; if matches!(op, "write" | "append") { len } else { 0 }];
        asked.read_exact(&mut data).unwrap();
        let mut back = vec![0; if op == "read" { len } else { 0 }];
        // An export has the size that its file had when a client came.
        let export = || file.export(ExportMode::Cached).unwrap();
        let done = match (who, op) {
            ("library", "read") => file.read_at(&mut back, offset).unwrap(),
            ("library", "write") => file.write_at(&data, offset).unwrap(),
            ("library", "append") => append.write_at(&data, 0).unwrap(),
            ("library", "cut") => file.set_len(offset).map(|()| 0).unwrap(),
            ("library", "punch") => file.trim(offset, len as u64).map(|()| 0).unwrap(),
            ("export", op) => by_export(export(), op, offset, len, &data, &mut back),
            _ => panic!("{line}"),
        };
        back.truncate(done);
        writeln!(&stream, "{done}").unwrap();
        (&stream).write_all(&back).unwrap();
        line.clear();
    }
}

/// As the event loop of a server does: at once where that is possible.
fn by_export(
    export: Arc<dyn Export>,
    op: &str,
    offset: u64,
    len: usize,
    data: &[u8],
    back: &mut [u8],
) -> usize {
    let flags = IoFlags::empty();
    match op {
        "read" => match export.try_read(offset, back, flags) {
            Some(done) => done.unwrap(),
            None => {
                let (buf, done) = block_on(export.read(offset, AlignedBuf::new(len), flags));
                done.unwrap();
                back.copy_from_slice(&buf[..len]);
            }
        },
        "write" => match export.try_write(offset, data, flags) {
            Some(done) => done.unwrap(),
            None => block_on(export.write(offset, AlignedBuf::copy_of(data), flags)).1.unwrap(),
        },
        "punch" => block_on(export.trim(offset, len as u64, false)).unwrap(),
        _ => panic!("{op}"),
    }
    len
}

/// Random operations by the mount, the library and its export (called as a front end does), one
/// after the other, on several files at a time.
#[test]
fn mount_library_and_export_see_same_file() {
    if !may_run() {
        return;
    }
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (first, ops) = (number("FOREBAY_SEED", 1), number("FOREBAY_FSX_OPS", 1500));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuse/tests/mount/fsx.py");
    for mode in MODES {
        let lab = Lab::new(mode);
        let run = |seed: u64| {
            let name = format!("file-{seed}");
            let socket = lab.folder.path(&format!("sock-{seed}"));
            let listener = UnixListener::bind(&socket).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| outsiders(&listener, &lab.volume, &name));
                let mut command = Command::new("python3");
                command.arg(script).arg(lab.mnt(&name)).arg(seed.to_string());
                command.arg(ops.to_string()).arg(&socket);
                let done = crate::common::output(command);
                let said = String::from_utf8_lossy(&done.stdout).into_owned();
                let errors = crate::common::stderr(&done);
                // Ends `outsiders`, which waits in `accept` if the script did not connect.
                drop(std::os::unix::net::UnixStream::connect(&socket));
                assert!(done.status.success(), "{mode:?}: {said}{errors}");
            });
        };
        std::thread::scope(|scope| {
            (first..first + 3).for_each(|seed| drop(scope.spawn(move || run(seed))));
        });
    }
}

/// Names and attributes that the kernel has looked at, and that there is no such name.
#[test]
fn names_and_attributes_are_what_anybody_made_them() {
    if !may_run() {
        return;
    }
    for mode in MODES {
        let lab = Lab::new(mode);
        let volume = &lab.volume;
        let there = |name: &str| std::fs::symlink_metadata(lab.mnt(name)).is_ok();
        for round in 0..20 {
            let (a, b, d) = (format!("a{round}"), format!("b{round}"), format!("d{round}"));
            let inside = format!("d{round}/x");
            assert!(!there(&a) && !there(&b) && !there(&d));
            volume.write(&a, b"one").unwrap();
            volume.create_dir(&d).unwrap();
            assert_eq!(std::fs::read(lab.mnt(&a)).unwrap(), b"one");
            assert!(!there(&inside), "and now the kernel knows that");
            volume.hard_link(&a, &inside).unwrap();
            let seen = std::fs::metadata(lab.mnt(&inside)).unwrap();
            assert_eq!((seen.nlink(), seen.len()), (2, 3));
            assert_eq!(std::fs::metadata(lab.mnt(&a)).unwrap().nlink(), 2);
            let set = forebay_vfs::SetAttr { perm: Some(0o600), ..Default::default() };
            volume.set_attr(&a, &set).unwrap();
            assert_eq!(std::fs::metadata(lab.mnt(&inside)).unwrap().mode() & 0o7777, 0o600);
            std::fs::write(lab.mnt(&b), b"other").unwrap();
            volume.rename(&a, &b).unwrap();
            assert!(!there(&a));
            assert_eq!(std::fs::read(lab.mnt(&b)).unwrap(), b"one");
            std::fs::rename(lab.mnt(&b), lab.mnt(&a)).unwrap();
            assert!(volume.metadata(&b).is_err() && !there(&b));
            let held = std::fs::File::open(lab.mnt(&d)).unwrap();
            volume.remove_file(&inside).unwrap();
            assert!(!there(&inside));
            assert_eq!(std::fs::read_dir(lab.mnt(&d)).unwrap().count(), 0);
            volume.remove_dir(&d).unwrap();
            assert!(!there(&d));
            assert_eq!(held.metadata().unwrap().nlink(), 0, "it lives while it is used (Z4)");
            let open = std::fs::File::open(lab.mnt(&a)).unwrap();
            volume.remove_file(&a).unwrap();
            assert!(!there(&a));
            let mut text = String::new();
            (&open).read_to_string(&mut text).unwrap();
            assert_eq!((text.as_str(), open.metadata().unwrap().nlink()), ("one", 0));
        }
    }
}

/// Appends by programs and by the library at the same time: each is there, whole, once.
#[test]
fn appends_from_both_sides_are_all_there() {
    if !may_run() {
        return;
    }
    const EACH: usize = 300;
    const PIECES: usize = 128;
    for mode in MODES {
        let lab = Lab::new(mode);
        lab.volume.write("log", b"").unwrap();
        // The kernel serialises the appends of the two programs; the library's run concurrently.
        let record = |who: usize, n: usize| format!("{who} {n:06} {}\n", "x".repeat(n % 197));
        std::thread::scope(|scope| {
            for who in 0..2 {
                let (lab, record) = (&lab, &record);
                scope.spawn(move || {
                    let file = std::fs::File::options().append(true).open(lab.mnt("log")).unwrap();
                    for n in 0..EACH {
                        // One request, in as many pieces as mount.md allows.
                        let text = record(who, n);
                        let pieces = text.as_bytes().chunks(text.len().div_ceil(PIECES));
                        let pieces: Vec<IoSlice<'_>> = pieces.map(IoSlice::new).collect();
                        assert_eq!((&file).write_vectored(&pieces).unwrap(), text.len());
                    }
                });
            }
            let file = OpenOptions::new().append(true).open_in(&lab.volume, "log").unwrap();
            for n in 0..EACH {
                let text = record(2, n);
                assert_eq!(file.write_at(text.as_bytes(), 0).unwrap(), text.len());
            }
        });
        let mut wanted: Vec<String> = (0..3)
            .flat_map(|who| (0..EACH).map(move |n| (who, n)))
            .map(|(w, n)| record(w, n))
            .collect();
        wanted.sort();
        let mount = std::fs::read(lab.mnt("log")).unwrap();
        for (side, text) in [("mount", mount), ("library", lab.volume.read("log").unwrap())] {
            let text = String::from_utf8(text).unwrap();
            let mut found: Vec<String> = text.split_inclusive('\n').map(str::to_string).collect();
            found.sort();
            let first = found.iter().zip(&wanted).find(|(found, wanted)| found != wanted);
            assert!(found == wanted, "{mode:?}, {side}: {} records; {first:?}", found.len());
        }
    }
}

/// A program counts up in a mapped page, and notes each number after it. No reader of the library
/// finds a number from before the noted one. Readers have the kernel write and drop the page, so
/// that another one finds it absent.
#[test]
fn library_reads_of_a_mapped_page_never_go_back() {
    if !may_run() {
        return;
    }
    // Ends when the second word of the notes is set.
    let script = "import mmap,struct,sys\ndef mapped(name):\n f=open(name,'r+b')\n \
        return mmap.mmap(f.fileno(),4096)\npage,notes=mapped(sys.argv[1]),mapped(sys.argv[2])\n\
        n=0\nwhile notes[8]==0:\n n+=1\n page[0:8]=notes[0:8]=struct.pack('<Q',n)\n";
    for mode in MODES {
        let lab = Lab::new(mode);
        lab.volume.write("page", &[0; 4096]).unwrap();
        let notes_at = lab.folder.path("notes");
        std::fs::write(&notes_at, [0; 4096]).unwrap();
        let notes = std::fs::File::options().read(true).write(true).open(&notes_at).unwrap();
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).arg(lab.mnt("page")).arg(&notes_at);
        let noted = || {
            let mut word = [0; 8];
            notes.read_exact_at(&mut word, 0).unwrap();
            u64::from_le_bytes(word)
        };
        let reader = || {
            let (file, mut word) = (both(&lab.volume, "page"), [0; 8]);
            (0..2000).find_map(|round| {
                let least = noted();
                file.read_exact_at(&mut word, 0).unwrap();
                let found = u64::from_le_bytes(word);
                (found < least).then(|| format!("read {round}: {found} after {least}"))
            })
        };
        let (older, done) = std::thread::scope(|scope| {
            let program = scope.spawn(|| crate::common::output(command));
            while noted() == 0 && !program.is_finished() {
                std::thread::yield_now();
            }
            let readers: Vec<_> = (0..2).map(|_| scope.spawn(reader)).collect();
            let found: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
            notes.write_all_at(&[1], 8).unwrap();
            (found, program.join().unwrap())
        });
        assert!(done.status.success(), "{mode:?}: {}", crate::common::stderr(&done));
        assert!(older.iter().all(Option::is_none), "{mode:?}: {older:?}");
    }
}

/// Everybody at once on the same files and names: all come to an end, and then all see the same.
#[test]
fn concurrent_front_ends_do_not_deadlock() {
    if !may_run() {
        return;
    }
    for mode in MODES {
        let lab = Lab::new(mode);
        let stop = AtomicBool::new(false);
        for name in ["f", "g"] {
            lab.volume.write(name, &vec![1; 200_000]).unwrap();
        }
        let pattern = |n: usize| vec![n as u8; 30_000 + n * 977 % 50_000];
        std::thread::scope(|scope| {
            let (lab, stop) = (&lab, &stop);
            for (n, name) in ["f", "g", "f", "g"].into_iter().enumerate() {
                // Programs: reading all, writing, mapping, opening and listing.
                scope.spawn(move || {
                    let mut round = n;
                    while !stop.load(Ordering::Relaxed) {
                        round += 1;
                        let _ = std::fs::read(lab.mnt(name));
                        if n < 2
                            && let Ok(file) =
                                std::fs::File::options().write(true).open(lab.mnt(name))
                        {
                            let _ = file.write_at(&pattern(round), (round % 7 * 10_000) as u64);
                        }
                        let _ = std::fs::read_dir(lab.mnt("")).map(|all| all.flatten().count());
                    }
                });
            }
            scope.spawn(move || {
                let script = "import mmap,sys\nfor n in range(400):\n try:\n  f=open(sys.argv[1],'r+b')\n  \
                    m=mmap.mmap(f.fileno(),4096)\n  m[n%4096]=n%256\n  m.close()\n except (ValueError, \
                    OSError): pass\n";
                let mut command = Command::new("python3");
                command.arg("-c").arg(script).arg(lab.mnt("f"));
                // A map of what is cut away meanwhile is a SIGBUS, as on any file system.
                let _ = crate::common::output(command);
            });
            let work = || {
                for round in 0..300_usize {
                    let name = ["f", "g"][round % 2];
                    let file = both(&lab.volume, name);
                    file.write_at(&pattern(round), (round % 5 * 20_000) as u64).unwrap();
                    match round % 10 {
                        3 => file.set_len(5_000).unwrap(),
                        5 => lab.volume.rename("f", "g").unwrap(),
                        7 => lab.volume.remove_file(name).unwrap_or_default(),
                        _ => drop(lab.volume.read(name)),
                    }
                }
            };
            work();
            stop.store(true, Ordering::Relaxed);
        });
        for name in ["f", "g"] {
            let (theirs, ours) = (std::fs::read(lab.mnt(name)).ok(), lab.volume.read(name).ok());
            assert!(theirs == ours, "{mode:?} {name}");
        }
    }
}
