//! Gives the shared library its SONAME.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The major version of the ABI: a change that breaks callers moves it.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcertkv.so.0");
    }
}
