//! forebay-bench
