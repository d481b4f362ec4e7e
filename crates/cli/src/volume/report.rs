//! What a command has done in a tree, and its problems, which are printed as they happen. Both are
//! counted, and available as JSON.

use crate::progress::Progress;
use forebay_base::Error;
use forebay_base::units::format_size;
use serde_json::{Value, json};
use std::time::Instant;

/// Most problems that are kept for JSON; all are counted and printed.
const KEPT: usize = 10_000;

/// Something that could not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Of what.
    pub path: String,
    /// Which bytes of it: offset and length.
    pub range: Option<(u64, u64)>,
    /// Why.
    pub text: String,
}

/// Counts of what a command has copied or compared, and its problems.
pub struct Report {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, and further names of files.
    pub links: u64,
    /// Pipes, sockets, devices.
    pub others: u64,
    /// Bytes of content, without holes.
    pub bytes: u64,
    /// Extended attributes that the other side does not keep.
    pub left_out: u64,
    /// What could not be done.
    pub problems: u64,
    kept: Vec<Problem>,
    verb: &'static str,
    start: Instant,
    progress: Progress,
}

impl Report {
    /// An empty report. `verb`: what is done with each file, such as "copied".
    pub fn new(verb: &'static str) -> Self {
        Self {
            files: 0,
            directories: 0,
            links: 0,
            others: 0,
            bytes: 0,
            left_out: 0,
            problems: 0,
            kept: Vec::new(),
            verb,
            start: Instant::now(),
            progress: Progress::new(),
        }
    }

    /// Starts the report's time now, if nothing was counted yet.
    pub fn begin(&mut self) {
        if self.files + self.directories + self.links + self.others == 0 {
            (self.start, self.progress) = (Instant::now(), Progress::new());
        }
    }

    /// Prints and counts a problem; the work goes on.
    pub fn problem(&mut self, path: &str, range: Option<(u64, u64)>, text: impl Into<String>) {
        let problem = Problem { path: path.into(), range, text: text.into() };
        self.progress.clear();
        match range {
            Some((offset, len)) => {
                eprintln!("forebay: {path}: {len} bytes at {offset}: {}", problem.text);
            }
            None => eprintln!("forebay: {path}: {}", problem.text),
        }
        self.problems += 1;
        if self.kept.len() < KEPT {
            self.kept.push(problem);
        }
    }

    /// The same, for an error.
    pub fn failed(&mut self, path: &str, error: &Error) {
        self.problem(path, error.range(), error.to_string());
    }

    /// Prints the progress, from time to time.
    pub fn tick(&mut self, now_at: &str) {
        let (verb, files, bytes) = (self.verb, self.files, self.bytes);
        let seconds = self.start.elapsed().as_secs();
        self.progress.say(|| {
            let bytes = format_size(bytes);
            format!("{verb} {files} files, {bytes} in {seconds} s; at {now_at}")
        });
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let mut text = format!(
            "{} {} files, {} directories, {} links, {} others, {} in {:.2} s",
            self.verb,
            self.files,
            self.directories,
            self.links,
            self.others,
            format_size(self.bytes),
            self.start.elapsed().as_secs_f64()
        );
        if self.left_out > 0 {
            text.push_str(&format!("; {} extended attributes left out", self.left_out));
        }
        text.push_str(&match self.problems {
            0 => String::new(),
            1 => "; 1 problem".into(),
            n => format!("; {n} problems"),
        });
        text
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let problem = |p: &Problem| {
            json!({
                "path": p.path,
                "offset": p.range.map(|r| r.0),
                "len": p.range.map(|r| r.1),
                "error": p.text,
            })
        };
        json!({
            "files": self.files,
            "directories": self.directories,
            "links": self.links,
            "others": self.others,
            "bytes": self.bytes,
            "attributes_left_out": self.left_out,
            "problem_count": self.problems,
            "problems": self.kept.iter().map(problem).collect::<Vec<_>>(),
        })
    }
}
