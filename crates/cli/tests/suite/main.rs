//! Tests of the program `forebay`: one topic per module.
//!
//! No locks.

mod alloc;
mod attach;
mod attach_once;
mod behaviours;
mod cache_size;
#[path = "../../../nbd/tests/suite/common/certificates.rs"]
mod certificates;
mod coherent;
mod common;
mod control_socket;
mod doctor;
mod export_serves;
mod fincore;
mod generated;
mod help_matches_docs;
mod hostile_trims;
mod kill_9;
mod killed_client;
mod lab_commands;
mod live_page;
mod memory_limit;
mod metrics;
mod mount;
mod mount_boot;
mod mount_cache;
mod mount_control;
mod mount_ends;
mod mount_flags;
mod mount_options;
mod mount_rules;
mod mount_writes;
mod offset_and_limit;
mod older_volumes;
mod other_users;
mod read_only;
mod run_command;
mod run_uncached;
mod second_process;
mod second_signal;
mod several_exports;
mod sigterm;
mod stopped_daemon;
mod top;
mod tune_and_stat;
mod volume_copy;
mod volume_create;
mod volume_damage;
mod volume_grow;
mod volume_hostile;
mod volume_kill_9;
mod volume_on_device;
mod volume_open_elsewhere;
mod wrong_options;
