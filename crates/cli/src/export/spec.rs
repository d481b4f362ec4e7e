//! What `forebay export` was asked for, checked before anything is opened: names of exports, and
//! the URIs that clients use.

use crate::behaviours::Store;
use crate::failure::{Failure, Outcome};
use crate::volume::at::Named;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest export name, bytes: what the NBD protocol asks servers to support.
const NAME_MAX: usize = 4096;

/// One image with the name it is served under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    /// Export name; empty is the default export.
    pub name: String,
    /// Image file or device.
    pub path: PathBuf,
    /// Path in the volume `path`, if a file of a volume is served.
    pub inside: Option<PathBuf>,
}

impl ImageSpec {
    fn new(name: String, word: &str) -> Self {
        match Named::parse(word) {
            Some(Named { image, path }) => {
                Self { name, path: image, inside: Some(PathBuf::from(OsStr::from_bytes(&path))) }
            }
            None => Self { name, path: word.into(), inside: None },
        }
    }

    /// The kind of store that has its bytes.
    pub fn store(&self) -> Store {
        if self.inside.is_some() { Store::Volume } else { Store::Image }
    }
}

/// Reads `[NAME=]IMAGE...`. A word with a slash before the `=` is a path as a whole. A single
/// image without a name is the default export; of several, each has its file name.
pub fn parse_images(words: &[String]) -> Outcome<Vec<ImageSpec>> {
    let mut specs: Vec<ImageSpec> = Vec::with_capacity(words.len());
    for word in words {
        let spec = match word.split_once('=') {
            Some((name, path)) if !name.contains('/') => ImageSpec::new(name.to_string(), path),
            _ if words.len() == 1 => ImageSpec::new(String::new(), word),
            _ => ImageSpec::new(file_name(word), word),
        };
        check(&spec, &specs)?;
        specs.push(spec);
    }
    Ok(specs)
}

fn file_name(path: &str) -> String {
    Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn check(spec: &ImageSpec, others: &[ImageSpec]) -> Outcome {
    let name = &spec.name;
    if spec.path.as_os_str().is_empty() {
        return Err(Failure::usage(format!("export `{name}`: the image is missing after `=`")));
    }
    if name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(Failure::usage(format!("export name {name:?}: too long or not printable")));
    }
    if others.iter().any(|o| o.name == *name) {
        let text = format!("export name `{name}` is used twice");
        return Err(Failure::usage(text).hint("give one of them another name: NAME=IMAGE"));
    }
    Ok(())
}

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Socket {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address with its real port.
    Tcp(std::net::SocketAddr),
}

/// The server's socket, and whether clients need TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub socket: Socket,
    /// By TLS only.
    pub tls: bool,
}

impl Place {
    /// The NBD URI of an export there.
    pub fn uri(&self, name: &str) -> String {
        let name = escape(name.as_bytes(), b"");
        let scheme = if self.tls { "nbds" } else { "nbd" };
        match &self.socket {
            Socket::Unix(path) => {
                let path = escape(path.as_os_str().as_encoded_bytes(), b"/");
                format!("{scheme}+unix:///{name}?socket={path}")
            }
            Socket::Tcp(address) => format!("{scheme}://{address}/{name}"),
        }
    }
}

/// Percent-encodes all but unreserved characters and those in `keep`.
fn escape(bytes: &[u8], keep: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || keep.contains(byte);
        if plain {
            out.push(*byte as char);
        } else {
            write!(out, "%{byte:02X}").expect("writing to a string succeeds");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Outcome<Vec<(String, String)>> {
        let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
        let specs = parse_images(&words)?;
        Ok(specs.into_iter().map(|s| (s.name, s.path.display().to_string())).collect())
    }

    fn pair(a: &str, b: &str) -> (String, String) {
        (a.to_string(), b.to_string())
    }

    #[test]
    fn names_and_paths() {
        assert_eq!(parse(&["d/x.img"]).unwrap(), [pair("", "d/x.img")]);
        assert_eq!(parse(&["a=x.img"]).unwrap(), [pair("a", "x.img")]);
        assert_eq!(parse(&["./a=x.img"]).unwrap(), [pair("", "./a=x.img")]);
        assert_eq!(parse(&["d/x.img", "b=y"]).unwrap(), [pair("x.img", "d/x.img"), pair("b", "y")]);
    }

    #[test]
    fn files_of_volumes() {
        let specs = parse_images(&["a=v.fby:/x=y".into(), "d/v.fby:/disks/b.img".into()]).unwrap();
        let inside = |n: usize| specs[n].inside.as_deref().map(Path::display).unwrap().to_string();
        assert_eq!((specs[0].name.as_str(), specs[0].path.as_path()), ("a", Path::new("v.fby")));
        assert_eq!((inside(0).as_str(), inside(1).as_str()), ("/x=y", "/disks/b.img"));
        assert_eq!(specs[1].name, "b.img");
    }

    #[test]
    fn bad_names_are_named() {
        assert!(parse(&["a=x", "a=y"]).unwrap_err().message.contains("`a`"));
        assert!(parse(&["a="]).unwrap_err().message.contains("missing"));
        assert!(parse(&["a\nb=x"]).is_err());
    }

    #[test]
    fn uris() {
        let unix = Place { socket: Socket::Unix("/tmp/a b.sock".into()), tls: false };
        assert_eq!(unix.uri(""), "nbd+unix:///?socket=/tmp/a%20b.sock");
        assert_eq!(unix.uri("x/y"), "nbd+unix:///x%2Fy?socket=/tmp/a%20b.sock");
        let tcp = Place { socket: Socket::Tcp("[::1]:10809".parse().unwrap()), tls: true };
        assert_eq!(tcp.uri("disk"), "nbds://[::1]:10809/disk");
    }
}
