//! Distinguishes errors that a lack of the machine explains from failures.
//!
//! Invariant: K1 only a lack is "not run"; with any other error the part has failed, and so has the
//! bench.

use forebay_base::{Error, ErrorKind};

/// Whether the machine lacks something: the kernel or a program does not support it, a program is
/// [not installed](not_installed), or it needs root. A file, a name in a volume or a part of this
/// program that is missing is a failure.
pub fn is_lack(e: &Error) -> bool {
    match e.kind() {
        ErrorKind::Unsupported => true,
        ErrorKind::Permission => !rustix::process::geteuid().is_root(),
        _ => false,
    }
}

/// The error for a program that is not installed, which is a lack.
pub fn not_installed(op: &'static str, text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, op, text)
}

/// The error for a program that did not start; if it does not exist, that is a lack.
pub fn not_started(program: &str, e: std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::NotFound => {
            not_installed("start", format!("{program} is not installed"))
        }
        _ => Error::from_io("start", e).with_path(program),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Report;

    /// K1. The story: a volume that was full too early gave "not run  sustained on volume: no space
    /// left", and the CI step of the benches passed.
    #[test]
    fn k1_lack_is_not_run_other_errors_fail() {
        let os = |code| Error::from_io("write", std::io::Error::from_raw_os_error(code));
        let mut report = Report::default();
        report.left_out("dontcache", Error::new(ErrorKind::Unsupported, "read", "an old kernel"));
        report.left_out("fio", not_started("fio", std::io::ErrorKind::NotFound.into()));
        report.left_out("flag", os(95));
        assert_eq!(report.failed(), 0, "{}", report.table());
        report.left_out("full", Error::new(ErrorKind::NoSpace, "write", "4096 bytes"));
        report.left_out("a file that was lost", os(2));
        report.left_out("a page that was lost", os(5));
        assert_eq!(report.failed(), 3, "{}", report.table());
        let table = report.table();
        assert!(table.contains("not run  fio:") && table.contains("FAILED  full:"), "{table}");
        let json = report.to_json("hit", serde_json::json!({}));
        assert_eq!(json["not_run"].as_array().unwrap().len(), 3);
        assert_eq!(json["failed"][1]["what"], "a file that was lost");
        let mut all = Report::default();
        all.absorb(report);
        assert_eq!(all.failed(), 3);
        // The story: a bench whose own helper program was missing reported "not run", and exited
        // with 0.
        let gone = Error::new(ErrorKind::NotFound, "start worker", "no program to start");
        all.left_out("a helper of our own", gone);
        all.left_out("a name", Error::new(ErrorKind::NotFound, "lookup", "no such file"));
        assert_eq!(all.failed(), 5, "{}", all.table());
        let refused = os(13);
        assert_eq!(is_lack(&refused), !rustix::process::geteuid().is_root());
    }
}
