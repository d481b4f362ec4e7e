//! Which cases cannot be tested on a mount. Shared with the tests of the command line.
//!
//! No locks.

use crate::fs_check::{Config, Limits, Times};
use forebay_vfs::ManualClock;
use std::sync::Arc;

/// Why a case cannot be tested through the kernel or the adapter; `None` if it can.
pub fn left_out(case: &str) -> Option<&'static str> {
    match case {
        "f3_directory_removed_while_open" => Some("rustix takes ENOENT for the end of a listing"),
        "f3_unknown_numbers_are_stale" => Some("numbers are the adapter's own"),
        "f4_what_stays_is_listed_once" | "f4_a_hundred_thousand_entries" => {
            Some("cookies are the adapter's own")
        }
        "flags_of_opening_are_known_or_refused" | "a_file_without_a_name_needs_a_directory" => {
            Some("the adapter passes no flags on, and the kernel truncates what is opened to read")
        }
        "kinds_and_targets" => Some("the kernel refuses mknod of a directory with EPERM"),
        "flags_are_known_or_refused" => Some("the adapter passes no flags on"),
        "privileges_are_dropped" => Some("root's writes keep them"),
        "f8_the_far_end" => Some("the kernel refuses reads that would end beyond 2^63"),
        "attributes_are_set_alone_and_together" => Some("several calls: not all or none"),
        _ => None,
    }
}

/// For [`crate::fs_check::compare()`]. `clock`: that of the file system in memory.
pub fn config(clock: Arc<ManualClock>) -> Config {
    let limits = Limits {
        // The kernel refuses a read that would end beyond 2^63 with EINVAL.
        size_max: (1 << 63) - (1 << 20),
        // The tests run as root, whose writes keep set-id bits.
        drop_privileges: false,
        ..Limits::default()
    };
    Config { limits, times: Times::Moved, clock: Some(clock), ..Config::default() }
}
