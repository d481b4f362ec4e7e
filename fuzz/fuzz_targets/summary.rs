//! `summary` of the stored form.
#![no_main]

forebay_fuzz::stored!("summary");
