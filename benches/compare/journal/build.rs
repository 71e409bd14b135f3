//! Exports the calls that the program takes the place of, so that libraries loaded later use them, too.

fn main() {
    for symbol in ["fsync", "fdatasync", "msync", "syncfs"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbol}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
