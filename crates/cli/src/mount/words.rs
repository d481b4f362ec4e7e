//! The words after `-o`, as in fstab.
//!
//! Invariant: O1 an unknown word is refused by name, and so is a value that makes no sense.

use crate::behaviours::{ENTRIES, Entry, Given, Store};
use crate::failure::{Failure, Outcome};
use crate::live::LiveArgs;
use forebay::Aio;
use forebay_base::units::{MIB, format_size, parse_size};
use forebay_fuse::Options;
use forebay_fuse::options::{REQUEST_TIMEOUT_SECONDS_MAX, REQUEST_TIMEOUT_SECONDS_MIN, Via};
use rustix::mount::MountFlags;
use std::path::PathBuf;
use std::time::Duration;

/// Smallest `cache_size`, bytes.
pub const CACHE_MIN: u64 = 32 * MIB;
/// Least that is left of `cache_size` for data, bytes.
pub const DATA_MIN: u64 = 4 * MIB;

/// All words, for `--help`.
pub fn help() -> String {
    let row = |entry: &Entry| {
        let word = format!("{}={}", entry.name, entry.value_name());
        format!("{word:<24}as --{}\n", entry.flag)
    };
    let options: String = ENTRIES.iter().map(row).collect();
    format!("{WORDS}{options}{IGNORED}")
}

/// Words for mount(8) itself.
const IGNORED: &str = "Words for mount(8) itself (defaults, auto, noauto, nofail, user, users, \
  nouser, _netdev, x-...) are\naccepted and do nothing here.";

/// The words that no other front end has.
const WORDS: &str = "Options as in fstab, separated by commas:\n\
  ro, rw                 refuse changes, or not\n\
  allow_other            others than the one who mounts may use it, as mode bits say;\n\
  \x20                       root's mounts always\n\
  nosuid, nodev, noexec, suid, dev, exec\n\
  \x20                       as for any mount\n\
  noatime, atime, relatime\n\
  \x20                       reading leaves no trace, or does\n\
  cache_size=SIZE        bytes for everything that grows [default: 25% of RAM,\n\
  \x20                       at most 50% of the cgroup's limit; a quarter of that with\n\
  \x20                       cache=kernel, the default]\n\
  cache=MODE             which cache keeps the content of files: own (Forebay's), kernel,\n\
  \x20                       or small: own, but files of up to 128k opened for reading\n\
  \x20                       are in the kernel's, too [default: kernel]\n\
  kernel_cache=WHAT      the same by older words: never (own), small, always (kernel)\n\
  aio=ENGINE             auto, io_uring, threads\n\
  threads=N              threads that read requests, 1 to 64 [default: the CPUs]\n\
  control=PATH           control socket [default: one in the user's runtime folder]\n\
  request_timeout=N      seconds, 300 to 26000, after which a request that the daemon has\n\
  \x20                       not answered ends with EIO [default: no limit]\n\
  inodes=N               inodes that the kernel may know before it has to forget some\n\
  \x20                       [default: one for each KiB of cache_size]\n\
  http=ADDRESS:PORT      a page to watch the cache, metrics and a health answer\n\
  http_insecure          allow an address there that others can reach\n\
  via=HOW                auto, block (a loop device, so that umount and sync reach us),\n\
  \x20                       plain, helper\n";

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Options of the FUSE front end.
    pub fuse: Options,
    /// Memory of the cache and the front end, bytes.
    pub cache_size: Option<u64>,
    /// Inodes that the kernel may know. `None`: by the size of the cache.
    pub inodes: Option<usize>,
    /// Control socket.
    pub control: Option<PathBuf>,
    /// The options of docs/reference/options.md.
    pub behaviours: Given,
    /// I/O engine.
    pub aio: Aio,
    /// The live view.
    pub live: LiveArgs,
}

fn bad(word: &str, why: &str) -> Failure {
    Failure::usage(format!("mount: -o {word}: {why}")).hint("`forebay mount --help` lists them")
}

impl Wanted {
    /// Reads the words.
    pub fn parse(words: &[String]) -> Outcome<Self> {
        let mut wanted = Self {
            fuse: Options::default(),
            cache_size: None,
            inodes: None,
            control: None,
            behaviours: Given::default(),
            aio: Aio::default(),
            live: LiveArgs::default(),
        };
        for word in words.iter().map(|word| word.trim()).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                _ if word.starts_with("x-") => {}
                Some((name, value)) => wanted.value(word, name, value)?,
                None => wanted.word(word)?,
            }
        }
        Ok(wanted)
    }

    fn word(&mut self, word: &str) -> Outcome {
        let flags = &mut self.fuse.flags;
        match word {
            "ro" => flags.insert(MountFlags::RDONLY),
            "rw" => flags.remove(MountFlags::RDONLY),
            "nosuid" => flags.insert(MountFlags::NOSUID),
            "suid" => flags.remove(MountFlags::NOSUID),
            "nodev" => flags.insert(MountFlags::NODEV),
            "dev" => flags.remove(MountFlags::NODEV),
            "noexec" => flags.insert(MountFlags::NOEXEC),
            "exec" => flags.remove(MountFlags::NOEXEC),
            "noatime" => flags.insert(MountFlags::NOATIME),
            "atime" | "relatime" => flags.remove(MountFlags::NOATIME),
            "http_insecure" => self.live.http_insecure = true,
            "allow_other" => self.fuse.allow_other = true,
            "defaults" | "auto" | "noauto" | "nofail" | "user" | "users" | "nouser" | "_netdev" => {
            }
            _ => return Err(bad(word, "no such option")),
        }
        Ok(())
    }

    fn value(&mut self, word: &str, name: &str, value: &str) -> Outcome {
        let number = |least: usize, most: usize| {
            let found = value.parse().ok().filter(|n| (least..=most).contains(n));
            found.ok_or_else(|| bad(word, &format!("a number from {least} to {most}")))
        };
        match name {
            "cache_size" => {
                let size = parse_size(value).map_err(|_| bad(word, "a size, such as 256M"))?;
                if size < CACHE_MIN {
                    return Err(bad(word, &format!("at least {}", format_size(CACHE_MIN))));
                }
                self.cache_size = Some(size);
            }
            "control" => {
                let path = std::path::absolute(value).map_err(|_| bad(word, "a path"))?;
                self.control = Some(path);
            }
            "cache" | "kernel_cache" => self.fuse.cache = value.parse()?,
            "http" => self.live.http = Some(value.to_string()),
            "aio" => self.aio = value.parse()?,
            "threads" => self.fuse.threads = Some(number(1, 64)?),
            "inodes" => self.inodes = Some(number(1024, 1 << 40)?),
            "request_timeout" => {
                let (min, max) = (REQUEST_TIMEOUT_SECONDS_MIN, REQUEST_TIMEOUT_SECONDS_MAX);
                let seconds = number(min as usize, max as usize)? as u64;
                self.fuse.request_timeout = Some(Duration::from_secs(seconds));
            }
            "via" => {
                self.fuse.via = match value {
                    "auto" => Via::Auto,
                    "block" => Via::Block,
                    "plain" => Via::Plain,
                    "helper" => Via::Helper,
                    _ => return Err(bad(word, "auto, block, plain or helper")),
                }
            }
            _ => {
                let entry = Entry::find(name).ok_or_else(|| bad(word, "no such option"))?;
                self.behaviours.set(entry, value).map_err(|why| bad(word, &why))?;
            }
        }
        Ok(())
    }

    /// Refuses options that make no sense on a mount.
    pub fn check_behaviours(&self) -> Outcome {
        match self.behaviours.refusal(&[Store::Volume]) {
            Some((entry, why)) => Err(Failure::usage(format!("mount: {}: {why}", entry.name))),
            None => Ok(()),
        }
    }

    /// Whether changes are refused.
    pub fn read_only(&self) -> bool {
        self.fuse.flags.contains(MountFlags::RDONLY)
    }

    /// Whether reading leaves no trace.
    pub fn noatime(&self) -> bool {
        self.fuse.flags.contains(MountFlags::NOATIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fuse::CacheMode;
    use std::collections::BTreeSet;

    fn parse(words: &str) -> Outcome<Wanted> {
        Wanted::parse(&words.split(',').map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn words_as_in_fstab() {
        let wanted =
            parse("defaults,ro,nodev,noatime,,x-systemd.automount,x-a=b,cache_size=4G").unwrap();
        assert!(wanted.read_only() && wanted.noatime());
        assert_eq!(wanted.cache_size, Some(4 << 30));
        let wanted = parse("ro,rw,kernel_cache=always,threads=3,via=plain,inodes=5000").unwrap();
        assert!(!wanted.read_only());
        assert_eq!(wanted.fuse.cache, CacheMode::Kernel);
        assert_eq!((wanted.fuse.threads, wanted.fuse.via), (Some(3), Via::Plain));
        assert_eq!((wanted.inodes, parse("").unwrap().inodes), (Some(5000), None));
    }

    /// The earlier words are aliases, under both names of the option.
    #[test]
    fn cache_modes_have_two_words_each() {
        let mode = |words: String| parse(&words).unwrap().fuse.cache;
        let modes = [CacheMode::Own, CacheMode::Small, CacheMode::Kernel];
        for (at, wanted) in modes.into_iter().enumerate() {
            for word in [CacheMode::WORDS[at], CacheMode::ALIASES[at]] {
                assert_eq!(mode(format!("cache={word}")), wanted);
                assert_eq!(mode(format!("kernel_cache={word}")), wanted);
            }
        }
        assert_eq!(mode(String::new()), CacheMode::Kernel, "the default");
        assert!(parse("cache=both").unwrap_err().message.contains("both"));
    }

    /// The kernel's own limit, which ends the whole connection, is computed from this option.
    #[test]
    fn request_timeout_below_its_floor_is_refused() {
        assert_eq!(parse("").unwrap().fuse.request_timeout, None, "off by default");
        let limit = |words| parse(words).unwrap().fuse.request_timeout.unwrap().as_secs();
        assert_eq!([limit("request_timeout=300"), limit("request_timeout=26000")], [300, 26_000]);
        for wrong in ["299", "0", "26001", "x", ""] {
            let word = format!("request_timeout={wrong}");
            let message = parse(&word).err().unwrap().message;
            assert!(message.contains(&word), "{message}");
            assert!(message.contains("a number from 300 to 26000"), "{message}");
        }
    }

    /// The story: accepted words were in neither list: `suid`, `relatime`, `users`.
    #[test]
    fn help_and_docs_list_the_same_words() {
        let words = |text: &str| -> BTreeSet<String> {
            let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_-=.".contains(c)));
            let names = names.map(|word| word.split('=').next().unwrap_or(word).to_string());
            names.filter(|word| !word.is_empty()).collect()
        };
        let docs = include_str!("../../../../docs/reference/cli.md");
        let section = docs.split("\n## mount\n").nth(1).unwrap().split("\n## ").next().unwrap();
        let (table, rest) =
            section.split("| word after `-o` |").nth(1).unwrap().split_once("\n\n").unwrap();
        let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let documented: BTreeSet<String> = cells.flat_map(words).collect();
        let help = help();
        let lines = help.lines().skip(1).take_while(|line| !line.starts_with("Words"));
        let lines = lines.filter(|line| !line.starts_with(' '));
        let offered: BTreeSet<String> =
            lines.flat_map(|line| words(line.split("  ").next().unwrap())).collect();
        let values = ["ADDRESS", "PORT", "SIZE", "WHAT", "MODE", "ENGINE", "N", "PATH", "HOW"];
        let plain = |all: BTreeSet<String>| -> BTreeSet<String> {
            all.into_iter().filter(|word| !values.contains(&&**word)).collect()
        };
        let (documented, offered) = (plain(documented), plain(offered));
        assert_eq!(documented, offered);
        let listed =
            |text: &str| words(text.split_once('(').unwrap().1.split_once("x-").unwrap().0);
        let mount8 = |text: &str| listed(text.split("mount(8) itself ").nth(1).unwrap());
        let ignored = mount8(rest);
        assert_eq!(ignored, mount8(&help));
        // Each listed word is accepted; words that only other file systems have are not.
        for word in documented.iter().chain(&ignored) {
            let no_such = |value: &str| {
                parse(value).is_err_and(|failure| failure.message.contains("no such option"))
            };
            assert!(!no_such(word) || !no_such(&format!("{word}=1")), "{word}");
        }
        for word in ["sync", "remount", "nodiratime", "strictatime", "size=1", "discard"] {
            assert!(parse(word).is_err(), "{word}");
        }
    }

    /// O1: the error names the refused word or value.
    #[test]
    fn o1_unknown_mount_option_is_refused_by_name() {
        for word in [
            "r0",
            "cache_size=1",
            "cache_size=x",
            "threads=0",
            "via=magic",
            "aio=x",
            "alloc=x",
            "a=b",
        ] {
            let failure = parse(&format!("rw,{word}")).unwrap_err();
            assert_eq!(failure.status, crate::failure::status::USAGE, "{word}");
            let value = word.split('=').next_back().unwrap_or(word);
            assert!(failure.message.contains(value), "{word}: {}", failure.message);
        }
    }
}
