//! How `libforebay.so` is linked: its soname, and that it stays once it is loaded, because its
//! threads and the destructors of its thread-local data run code of it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libforebay.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
