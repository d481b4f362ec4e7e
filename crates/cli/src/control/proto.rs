//! Requests and replies of the control socket. No I/O here.

use serde_json::{Value, json};

/// Version of the protocol; a reply to a request of another version is an error.
pub const VERSION: u64 = 1;
/// Longest request line, bytes.
pub const REQUEST_MAX: usize = 64 << 10;
/// Longest reply line a client accepts, bytes.
pub const REPLY_MAX: usize = 16 << 20;

/// What a client may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Counters, exports, settings.
    Stat,
    /// What is in the cache, and how it is used just now; see [`forebay_live`].
    Live,
    /// Memory by purpose.
    Budget,
    /// Counters as Prometheus reads them.
    Prometheus,
    /// The settings.
    Tunables,
    /// Change one setting.
    Tune(String, String),
    /// Evict what is clean.
    DropClean,
    /// End the block device that is served.
    Detach,
    /// Make everything on the served mount durable.
    Sync,
    /// Residency of the export whose image has this device and inode number.
    Residency(u64, u64),
    /// A session on the open volume whose image has this device and inode number; see
    /// [`crate::remote`].
    Volume(u64, u64),
    /// Where the content of an inode is, on the open volume whose image has this device and inode
    /// number.
    Extents(u64, u64, u64),
}

impl Request {
    /// The line to send, without its newline.
    pub fn encode(&self) -> String {
        let mut object = match self {
            Self::Stat => json!({ "op": "stat" }),
            Self::Live => json!({ "op": "live" }),
            Self::Budget => json!({ "op": "budget" }),
            Self::Prometheus => json!({ "op": "prometheus" }),
            Self::Tunables => json!({ "op": "tunables" }),
            Self::Tune(name, value) => json!({ "op": "tune", "name": name, "value": value }),
            Self::DropClean => json!({ "op": "drop-clean" }),
            Self::Detach => json!({ "op": "detach" }),
            Self::Sync => json!({ "op": "sync" }),
            Self::Residency(dev, ino) => json!({ "op": "residency", "dev": dev, "ino": ino }),
            Self::Volume(dev, ino) => json!({ "op": "volume", "dev": dev, "ino": ino }),
            Self::Extents(dev, ino, file) => {
                json!({ "op": "extents", "dev": dev, "ino": ino, "file": file })
            }
        };
        object["version"] = VERSION.into();
        object.to_string()
    }

    /// Parses a line; the error text is sent to the peer.
    pub fn decode(line: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(line).map_err(|_| "not a JSON object")?;
        if value["version"].as_u64() != Some(VERSION) {
            return Err(format!("this process speaks version {VERSION} of the control protocol"));
        }
        let text = |key: &str| {
            value[key].as_str().map(str::to_string).ok_or_else(|| format!("`{key}` is missing"))
        };
        let number = |key: &str| value[key].as_u64().ok_or_else(|| format!("`{key}` is missing"));
        match text("op")?.as_str() {
            "stat" => Ok(Self::Stat),
            "live" => Ok(Self::Live),
            "budget" => Ok(Self::Budget),
            "prometheus" => Ok(Self::Prometheus),
            "tunables" => Ok(Self::Tunables),
            "tune" => Ok(Self::Tune(text("name")?, text("value")?)),
            "drop-clean" => Ok(Self::DropClean),
            "detach" => Ok(Self::Detach),
            "sync" => Ok(Self::Sync),
            "residency" => Ok(Self::Residency(number("dev")?, number("ino")?)),
            "volume" => Ok(Self::Volume(number("dev")?, number("ino")?)),
            "extents" => Ok(Self::Extents(number("dev")?, number("ino")?, number("file")?)),
            other => Err(format!("unknown request `{other}`")),
        }
    }
}

/// A refusal: a word to match on, and a line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// `invalid`, `not-found`, `busy`, `denied` or `failed`.
    pub kind: String,
    /// One line.
    pub message: String,
}

impl Refusal {
    /// A refusal of the given kind.
    pub fn new(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into() }
    }
}

/// The line that answers a request.
pub fn encode_reply(reply: &Result<Value, Refusal>) -> String {
    match reply {
        Ok(result) => json!({ "ok": true, "result": result }).to_string(),
        Err(e) => json!({ "ok": false, "kind": e.kind, "error": e.message }).to_string(),
    }
}

/// Parses the line that answers a request.
pub fn decode_reply(line: &str) -> Result<Value, Refusal> {
    let broken = || Refusal::new("failed", "the running process sent no valid reply");
    let mut value: Value = serde_json::from_str(line).map_err(|_| broken())?;
    match value["ok"].as_bool() {
        Some(true) => Ok(value["result"].take()),
        Some(false) => {
            let text = |key: &str| value[key].as_str().unwrap_or("failed").to_string();
            Err(Refusal::new(&text("kind"), text("error")))
        }
        None => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_as_they_were() {
        for request in [
            Request::Stat,
            Request::Live,
            Request::Budget,
            Request::Prometheus,
            Request::Tunables,
            Request::Tune("dirty_bytes".into(), "1M".into()),
            Request::DropClean,
            Request::Detach,
            Request::Sync,
            Request::Residency(7, u64::MAX),
            Request::Volume(u64::MAX, 9),
            Request::Extents(1, 2, u64::MAX),
        ] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (line, word) in [
            ("", "JSON"),
            ("[1]", "version"),
            ("{\"version\":2,\"op\":\"stat\"}", "version"),
            ("{\"version\":1}", "`op`"),
            ("{\"version\":1,\"op\":\"tune\",\"name\":\"x\"}", "`value`"),
            ("{\"version\":1,\"op\":\"explode\"}", "explode"),
        ] {
            let error = Request::decode(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn replies() {
        let refusal = Err(Refusal::new("invalid", "no setting `x`"));
        assert_eq!(decode_reply(&encode_reply(&refusal)), refusal);
        let good = Ok(json!({ "a": 1 }));
        assert_eq!(decode_reply(&encode_reply(&good)), good);
        assert!(decode_reply("{}").is_err());
    }
}
