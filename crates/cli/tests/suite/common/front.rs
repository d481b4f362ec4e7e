//! A file of 8 MiB behind any of the front ends, written and read in the same way.
//!
//! No locks.

use super::place::Place;
use super::volume::bytes_of;
use super::{Folder, Server, nbd};
use forebay_base::buf::AlignedBuf;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// A front end, and what has the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `export` of an image.
    ExportImage,
    /// `export` of a file in a volume.
    ExportVolume,
    /// `mount` of a volume with the file, with `cache=own`.
    Mount,
    /// The same with `cache=kernel`, the default.
    MountKernel,
    /// `attach` of an image.
    DeviceImage,
    /// `attach` of a file in a volume.
    DeviceVolume,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ExportImage,
        Self::ExportVolume,
        Self::Mount,
        Self::MountKernel,
        Self::DeviceImage,
        Self::DeviceVolume,
    ];
    /// One of each front end, a mount in both modes.
    pub const FRONT_ENDS: [Self; 4] =
        [Self::ExportImage, Self::Mount, Self::MountKernel, Self::DeviceImage];
    /// Those with a volume.
    pub const VOLUMES: [Self; 4] =
        [Self::ExportVolume, Self::Mount, Self::MountKernel, Self::DeviceVolume];

    /// Whether a volume has the bytes.
    pub fn is_volume(self) -> bool {
        Self::VOLUMES.contains(&self)
    }

    /// Whether it is a mount.
    pub fn is_mount(self) -> bool {
        matches!(self, Self::Mount | Self::MountKernel)
    }

    /// What `stat --json` calls it.
    fn part(self) -> &'static str {
        match self {
            Self::ExportImage | Self::ExportVolume => "exports",
            Self::Mount | Self::MountKernel => "mounts",
            Self::DeviceImage | Self::DeviceVolume => "devices",
        }
    }

    /// The words of a command that serves it, without options. For a volume it needs `vol`.
    pub fn command(self) -> Vec<&'static str> {
        match self {
            Self::ExportImage => vec!["export", "-U", "sock", "disk"],
            Self::ExportVolume => vec!["export", "-U", "sock", "vol:/disk"],
            Self::Mount | Self::MountKernel => vec!["mount", "vol", "mnt"],
            Self::DeviceImage => vec!["attach", "disk"],
            Self::DeviceVolume => vec!["attach", "vol:/disk"],
        }
    }
}

/// Bytes of the file.
const FILE_BYTES: u64 = 8 << 20;

/// A folder with the image `disk`, and with a volume `vol` that has it as `/disk`.
pub fn folder(kind: Kind, create: &[&str]) -> Place {
    let folder = Folder::new();
    folder.image("disk", FILE_BYTES);
    std::fs::create_dir(folder.path("mnt")).expect("a directory");
    if kind.is_volume() {
        folder.ok(&[&["create", "vol", "--size", "256M"], create].concat());
        folder.ok(&["cp", "disk", "vol:/disk"]);
    }
    Place { folder }
}

/// How the options of a mount are given. Other front ends have only those of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// One list of words, as mount(8) takes it after `-o`.
    Words,
    /// On the command line.
    Flags,
    /// As words after `-o`, by the helper that mount(8) runs for a line of fstab.
    Fstab,
}

/// A client of what is served.
pub enum Client {
    /// Over NBD.
    Nbd(nbd::Client),
    /// An open file of a mount, or an open device.
    File(File),
}

impl Client {
    /// Reads.
    pub fn read(&mut self, offset: u64, len: usize) {
        match self {
            Self::Nbd(client) => drop(client.read(offset, len as u32).expect("a read")),
            Self::File(file) => {
                file.read_exact_at(&mut AlignedBuf::new(len), offset).expect("a read");
            }
        }
    }

    /// Writes.
    pub fn write(&mut self, offset: u64, len: usize) {
        let bytes = AlignedBuf::copy_of(&bytes_of(offset, len));
        match self {
            Self::Nbd(client) => client.write(offset, &bytes).expect("a write"),
            Self::File(file) => file.write_all_at(&bytes, offset).expect("a write"),
        }
    }

    /// Makes durable what was written.
    pub fn sync(&mut self) {
        match self {
            Self::Nbd(client) => client.flush().expect("a flush"),
            Self::File(file) => file.sync_data().expect("a sync"),
        }
    }
}

/// What ends with a [`Front`].
enum Serving {
    Export(Server),
    Mount,
    Device(String),
}

/// A file that is served. Everything ends with it.
pub struct Front {
    /// What serves it.
    pub kind: Kind,
    serving: Option<Serving>,
    client: Option<Client>,
    control: String,
    /// The folder.
    pub place: Place,
}

impl Front {
    /// Serves the file with these options, each `name=value`.
    pub fn new(kind: Kind, options: &[&str]) -> Self {
        Self::in_folder(kind, folder(kind, &[]), options)
    }

    /// Serves the file of a folder that [`folder`] has made.
    pub fn in_folder(kind: Kind, place: Place, options: &[&str]) -> Self {
        Self::given(kind, place, options, By::Words)
    }

    /// The same, with the options given in this way.
    pub fn given(kind: Kind, place: Place, options: &[&str], by: By) -> Self {
        let mut control = place.folder.path("ctl").display().to_string();
        let mut words: Vec<String> = Vec::new();
        let flags = |words: &mut Vec<String>| {
            for option in options {
                let (name, value) = option.split_once('=').expect("NAME=VALUE");
                words.extend([format!("--{}", name.replace('_', "-")), value.to_string()]);
            }
        };
        let mut all = format!("cache_size=64M,control={control}");
        if kind == Kind::Mount {
            all.push_str(",cache=own");
        }
        match (kind, by) {
            (Kind::Mount | Kind::MountKernel, By::Flags) => {
                words.extend(["-o".into(), all]);
                flags(&mut words);
            }
            (Kind::Mount | Kind::MountKernel, _) => {
                words.extend(["-o".into(), [&[&*all][..], options].concat().join(",")])
            }
            _ => {
                words.extend(["--cache-size", "64M"].map(String::from));
                flags(&mut words);
            }
        }
        let words: Vec<&str> =
            kind.command().into_iter().chain(words.iter().map(|word| &**word)).collect();
        let (serving, client) = match kind {
            Kind::ExportImage | Kind::ExportVolume => {
                let words = [&words[..], &["--control", &control]].concat();
                let server = Server::start(place.folder.command(&words), place.folder.path("sock"));
                let client = server.client("");
                (Serving::Export(server), Client::Nbd(client))
            }
            Kind::Mount | Kind::MountKernel => {
                match by {
                    By::Fstab => mount_as_fstab(&place, &words[1..]),
                    By::Words | By::Flags => drop(place.folder.ok(&words)),
                }
                (Serving::Mount, Client::File(open(&place.mnt("disk"), 0)))
            }
            Kind::DeviceImage | Kind::DeviceVolume => {
                // `detach` looks for its process where it is by default.
                let device = place.folder.ok(&words).trim().to_string();
                control = only_socket(&place.folder);
                let file = open(std::path::Path::new(&device), rustix::fs::OFlags::DIRECT.bits());
                (Serving::Device(device), Client::File(file))
            }
        };
        Self { kind, serving: Some(serving), client: Some(client), control, place }
    }

    /// Opens the file of a mount again: its mode is that of the opening.
    pub fn reopen(&mut self) {
        if self.kind.is_mount() {
            self.client = Some(Client::File(open(&self.place.mnt("disk"), 0)));
        }
    }

    /// The client that the methods below use.
    pub fn client(&mut self) -> &mut Client {
        self.client.as_mut().expect("it is served")
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, len: usize) {
        self.client().read(offset, len);
    }

    /// Writes, and makes it durable.
    pub fn write(&mut self, offset: u64, len: usize) {
        self.client().write(offset, len);
        self.client().sync();
    }

    /// A command with its control socket.
    pub fn ask(&self, words: &[&str]) -> String {
        self.place.folder.ok(&[words, &["--control", &self.control]].concat())
    }

    /// The same, refused with this status; its standard error.
    pub fn refused(&self, status: i32, words: &[&str]) -> String {
        self.place.folder.refused(status, &[words, &["--control", &self.control]].concat())
    }

    /// Sets options; a mount's file is opened again.
    pub fn tune(&mut self, settings: &[&str]) {
        self.ask(&[&["tune"], settings].concat());
        self.reopen();
    }

    /// What `stat` says of what is served.
    pub fn stat(&self) -> Value {
        let all: Value = serde_json::from_str(&self.ask(&["stat", "--json"])).expect("JSON");
        let mut shown = all[self.kind.part()][0].clone();
        shown["stats"] = all["stats"].clone();
        shown
    }

    /// A counter of its cache.
    pub fn counter(&self, name: &str) -> u64 {
        self.stat()["stats"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// Bytes of the file in our cache. Not of a file in a volume that is no mount.
    pub fn resident(&self) -> u64 {
        let file = if self.kind.is_mount() { "mnt/disk" } else { "disk" };
        let found: Value =
            serde_json::from_str(&self.ask(&["fincore", file, "--json"])).expect("JSON");
        let number = |key: &str| found[key].as_u64().expect("a number");
        number("resident_blocks") * number("block_size")
    }

    /// Drops what is clean from our cache, and from the kernel's cache of a mount.
    pub fn drop_clean(&self) {
        self.ask(&["tune", "--drop-clean"]);
        if let (true, Some(Client::File(file))) = (self.kind.is_mount(), &self.client) {
            let all = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
            all.expect("posix_fadvise(2)");
        }
    }

    /// Bytes of the file of a mount in the kernel's page cache.
    pub fn in_kernel(&self) -> u64 {
        let file = File::open(self.place.mnt("disk")).expect("the file");
        forebay_base::kernel_cache::cached_bytes(&file).expect("cachestat(2)")
    }

    /// Bytes of the image in the kernel's page cache.
    pub fn below(&self) -> u64 {
        let image = if self.kind.is_volume() { "vol" } else { "disk" };
        let file = File::open(self.place.folder.path(image)).expect("an image");
        forebay_base::kernel_cache::cached_bytes(&file).expect("cachestat(2)")
    }
}

/// Runs the helper of mount(8) with these words.
fn mount_as_fstab(place: &Place, words: &[&str]) {
    let helper = place.folder.path("mount.forebay");
    if !helper.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), &helper).expect("a link");
    }
    place.run(&helper.display().to_string(), words);
}

/// The control socket of the one process in a folder.
fn only_socket(folder: &Folder) -> String {
    let sockets = std::fs::read_dir(folder.path("run/forebay")).expect("a folder of sockets");
    let sockets: Vec<_> = sockets.map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    sockets[0].display().to_string()
}

fn open(path: &std::path::Path, flags: u32) -> File {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(flags as i32);
    options.open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Drop for Front {
    fn drop(&mut self) {
        match self.client.take() {
            Some(Client::Nbd(client)) => client.disconnect(),
            file => drop(file),
        }
        match self.serving.take() {
            Some(Serving::Export(server)) if !std::thread::panicking() => server.stop(),
            Some(Serving::Mount) if !std::thread::panicking() => self.place.forebay_umount(),
            Some(Serving::Device(device)) => {
                let done = self.place.folder.forebay(&["detach", &device]);
                if !std::thread::panicking() {
                    assert!(done.status.success(), "detach: {}", super::stderr(&done));
                }
            }
            _ => {}
        }
    }
}
