//! A headless Chromium, driven by its own protocol through two named pipes: JSON messages, each
//! with a zero byte behind.
//!
//! Invariant: it does not outlive the test, nor does what it has written.

use super::{Folder, PATIENCE};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A running Chromium with one page.
pub struct Browser {
    child: Child,
    to: File,
    messages: Receiver<Value>,
    next: u64,
    session: String,
    /// What a page complained of: exceptions, errors and warnings of console, network and policy.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts it with one empty page.
    pub fn start(folder: &Folder) -> Self {
        let (to, from) = (folder.path("to-browser"), folder.path("from-browser"));
        for pipe in [&to, &from] {
            let made = Command::new("mkfifo").arg(pipe).status();
            assert!(made.is_ok_and(|status| status.success()), "mkfifo {}", pipe.display());
        }
        // The protocol is on the descriptors 3 and 4.
        let line = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
                    --no-first-run --disable-background-networking --disable-component-update --disable-sync \
                    --remote-debugging-pipe --user-data-dir=\"$2\" about:blank 3<\"$0\" 4>\"$1\"";
        let mut command = Command::new("sh");
        command.args(["-c", line]).arg(&to).arg(&from).arg(folder.path("profile"));
        command.env("HOME", folder.path("run")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().expect("it starts");
        // Opening a pipe waits for the other side; both sides open them in the same order.
        let to = File::options().write(true).open(&to).expect("a pipe to it");
        let from = BufReader::new(File::open(&from).expect("a pipe from it"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in from.split(0) {
                let Ok(message) =
                    message.map_err(drop).and_then(|m| serde_json::from_slice(&m).map_err(drop))
                else {
                    return;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let (session, complaints) = (String::new(), Vec::new());
        let mut this = Self { child, to, messages, next: 0, session, complaints };
        let target = this.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = this.call("Target.attachToTarget", attach);
        this.session = session["sessionId"].as_str().expect("a session").to_string();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            this.call(&format!("{domain}.enable"), json!({}));
        }
        this
    }

    /// One call of the protocol and its result.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("it listens");
        loop {
            let mut message = self.messages.recv_timeout(PATIENCE).expect("an answer");
            if message["id"].as_u64() == Some(self.next) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.notice(&message);
        }
    }

    fn notice(&mut self, message: &Value) {
        let params = &message["params"];
        let bad = |level: &Value| matches!(level.as_str(), Some("error" | "warning" | "assert"));
        let complaint = match message["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => bad(&params["type"]),
            "Log.entryAdded" => bad(&params["entry"]["level"]),
            "Page.javascriptDialogOpening" => true,
            _ => false,
        };
        if complaint {
            self.complaints.push(params.to_string());
        }
    }

    /// Goes to a page.
    pub fn open(&mut self, uri: &str) {
        let went = self.call("Page.navigate", json!({ "url": uri }));
        assert!(went["errorText"].is_null(), "{uri}: {went}");
    }

    /// The value of an expression on the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let mut done = self.call("Runtime.evaluate", params);
        assert!(done["exceptionDetails"].is_null(), "{expression}: {done}");
        done["result"]["value"].take()
    }

    /// Asks until the expression is true.
    pub fn until(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != true {
            let text = "document.body ? document.body.innerText : ''";
            assert!(start.elapsed() < PATIENCE, "{expression} never came: {}", self.value(text));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its processes are a group of their own.
        let group = format!("-{}", self.child.id());
        let _gone = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        let _ended = self.child.wait();
    }
}
