//! forebay-cache
