//! A message of the kernel to a mount.
#![no_main]

forebay_fuzz::message!(forebay_fuse::fuzz::request);
