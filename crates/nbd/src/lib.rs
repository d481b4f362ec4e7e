//! forebay-nbd
