//! forebay-forebay
