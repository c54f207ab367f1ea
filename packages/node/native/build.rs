//! The library stays loaded when the thread that has loaded it ends: threads of brokers and workers run its code.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
