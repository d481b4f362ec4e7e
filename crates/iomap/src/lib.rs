//! forebay-iomap
