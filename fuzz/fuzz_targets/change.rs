//! `change` of the stored form.
#![no_main]

forebay_fuzz::stored!("change");
