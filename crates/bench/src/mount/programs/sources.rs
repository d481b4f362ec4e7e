//! The sources that the programs work on: a tree of C-like files and a small C project, each in a
//! tar file on the host.
//!
//! The same numbers of files give the same bytes, so that runs on different machines and at
//! different times do the same work.

use super::run::run;
use crate::harness::image::{Rng, leftovers};
use crate::harness::options::Options;
use forebay_base::{Error, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const PREFIX: &str = "forebay-bench-sources-";
/// What is searched for. One file in [`NEEDLES`] has it.
pub const NEEDLE: &str = "needle_in_a_haystack";
const NEEDLES: u64 = 100;
/// Files in a directory of the tree.
const EACH: u64 = 40;
/// Directories in a directory of the tree.
const GROUP: u64 = 16;
const WORDS: [&str; 16] = [
    "page", "inode", "folio", "queue", "extent", "buffer", "device", "record", "segment", "lock",
    "task", "range", "block", "entry", "cache", "journal",
];

/// The tar files, on the host; removed on drop.
pub struct Sources {
    folder: PathBuf,
    /// Files of the tree.
    pub files: u64,
    /// Bytes of the tree.
    pub bytes: u64,
    /// Source files of the project.
    pub units: u64,
}

impl Drop for Sources {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

impl Sources {
    /// Generates both below the directory of the run.
    pub fn new(options: &Options) -> Result<Self> {
        for folder in leftovers(&options.dir, PREFIX, "") {
            let _removed = std::fs::remove_dir_all(folder);
        }
        let folder = options.dir.join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|e| Error::from_io("mkdir", e).with_path(&folder))?;
        let (files, units) = if options.quick { (300, 4) } else { (6000, 60) };
        let mut this = Self { folder, files, bytes: 0, units };
        this.tree()?;
        this.project()?;
        for name in ["tree", "project"] {
            let mut tar = Command::new("tar");
            tar.arg("-C").arg(&this.folder).arg("--sort=name").arg("-cf").arg(this.tar(name));
            run(tar.arg(name))?;
        }
        Ok(this)
    }

    /// The tar file of `tree` or `project`.
    pub fn tar(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.tar"))
    }

    /// A file of its own on the host.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Files that a search for [`NEEDLE`] finds.
    pub fn found(&self) -> u64 {
        self.files.div_ceil(NEEDLES)
    }

    fn tree(&mut self) -> Result<()> {
        let mut rng = Rng::new(7);
        for n in 0..self.files {
            let (part, group) = (n / EACH, n / EACH / GROUP);
            let name = format!("tree/group{group}/part{part}/{}_{n}.c", word(&mut rng));
            // As in the sources of Linux: most files are small, a few have 10,000 lines.
            let size = 512 << rng.below(4) << rng.below(4);
            let text = text(&mut rng, size, n % NEEDLES == 0);
            self.bytes += text.len() as u64;
            put(&self.folder.join(name), &text)?;
        }
        Ok(())
    }

    fn project(&self) -> Result<()> {
        let folder = self.folder.join("project");
        let (mut header, mut calls) = (String::new(), String::new());
        for n in 0..self.units {
            add(&mut header, format_args!("int unit_{n}(int a);\n"));
            add(&mut calls, format_args!("    sum += unit_{n}(count);\n"));
            put(&folder.join(format!("unit_{n}.c")), &unit(n))?;
        }
        put(&folder.join("all.h"), &header)?;
        let main = format!(
            "#include <stdio.h>\n#include \"all.h\"\n\nint main(int count, char **words)\n{{\n    \
             unsigned sum = words == 0;\n{calls}    printf(\"%u\\n\", sum);\n    return 0;\n}}\n"
        );
        put(&folder.join("main.c"), &main)?;
        let make = "CFLAGS = -O2\nOBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))\n\nmain: \
                    $(OBJECTS)\n\t$(CC) -o $@ $^\n\n%.o: %.c all.h\n\t$(CC) $(CFLAGS) -c -o $@ $<\n";
        put(&folder.join("Makefile"), make)
    }
}

fn put(path: &Path, text: &str) -> Result<()> {
    let fail = |e| Error::from_io("write", e).with_path(path);
    std::fs::create_dir_all(path.parent().unwrap_or(path)).map_err(fail)?;
    std::fs::write(path, text).map_err(fail)
}

fn add(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a string takes all text");
}

fn word(rng: &mut Rng) -> &'static str {
    WORDS[rng.below(WORDS.len() as u64) as usize]
}

/// Text of at least `size` bytes that looks like C.
fn text(rng: &mut Rng, size: usize, needle: bool) -> String {
    let mut text = String::with_capacity(size + 512);
    while text.len() < size {
        let (a, b, n) = (word(rng), word(rng), rng.below(10_000));
        add(
            &mut text,
            format_args!(
                "/* Returns the {b} of a {a}, or {n}. */\nstatic int {a}_{b}_{n}(struct {a} *{a}, \
                 unsigned flags)\n{{\n\tstruct {b} *{b} = {a}->{b};\n\n\tif (!{b} || \
                 (flags & {n}))\n\t\treturn -{n};\n\tspin_lock(&{b}->lock);\n\t{b}->{a}s += {n};\n\
                 \tspin_unlock(&{b}->lock);\n\treturn {b}->{a}s;\n}}\n\n"
            ),
        );
    }
    if needle {
        add(&mut text, format_args!("/* {NEEDLE} */\n"));
    }
    text
}

/// A source file that a C compiler accepts, with some functions to optimize.
fn unit(n: u64) -> String {
    let mut rng = Rng::new(n + 1);
    let mut text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
                    #include <unistd.h>\n#include \"all.h\"\n\n"
        .to_string();
    for step in 0..30 {
        let (a, b) = (rng.below(1000) + 1, rng.below(1000) + 1);
        add(
            &mut text,
            format_args!(
                "static int step_{step}(int a)\n{{\n    char text[64];\n    int sum = {a};\n    \
                 for (int n = 0; n < (a & 15); n++) {{\n        switch ((a + n) % 4) {{\n        \
                 case 0: sum += n * {a}; break;\n        case 1: sum ^= {b} + n; break;\n        \
                 case 2: sum -= sum / {b}; break;\n        default: sum = sum * 31 + n;\n        \
                 }}\n    }}\n    snprintf(text, sizeof text, \"%d %d\", a, sum);\n    \
                 return (int)strlen(text) + sum % {b};\n}}\n\n"
            ),
        );
    }
    add(&mut text, format_args!("int unit_{n}(int a)\n{{\n    int sum = 0;\n"));
    (0..30).for_each(|step| add(&mut text, format_args!("    sum ^= step_{step}(a + {step});\n")));
    text.push_str("    return sum & 0xffff;\n}\n");
    text
}
