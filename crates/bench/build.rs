//! Compiles the VFS of `crates/capi/sqlite` into the benches, against the SQLite that comes with
//! `libsqlite3-sys`, so that `bench database` needs nothing that is installed.

fn main() {
    let folder = "../capi/sqlite";
    let sources = ["error", "fetch", "file", "join", "lock", "names", "shm", "store", "vfs"];
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={folder}");
    println!("cargo:rerun-if-changed=../capi/forebay.h");
    let sqlite = std::env::var("DEP_SQLITE3_INCLUDE").expect("libsqlite3-sys says where it is");
    let mut build = cc::Build::new();
    build.files(sources.map(|name| format!("{folder}/{name}.c")));
    build.include("../capi").include(folder).include(sqlite).define("SQLITE_CORE", None);
    build.std("c99").opt_level(2).compile("forebay_sqlite");
}
