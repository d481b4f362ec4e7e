//! The benches as a program of their own: `cargo run --release --example bench -- hit --quick`.

fn main() {
    std::process::exit(forebay_bench::run(std::env::args().skip(1).collect()).into());
}
