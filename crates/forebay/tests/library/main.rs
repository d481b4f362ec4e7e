//! The library on real files, with real threads: one topic per module.

mod api;
mod budget;
mod dir;
mod examples;
mod file;
mod flusher;
mod fsx;
mod growing;
mod interface;
mod looped;
mod pins;
mod pins_mount;
mod registry;
mod stacked;
mod trouble;
mod volume;
