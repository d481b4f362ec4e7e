//! `record` of the stored form.
#![no_main]

forebay_fuzz::stored!("record");
