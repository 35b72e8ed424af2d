//! Tells the binary for which target it was built: cargo says it to build scripts only.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["TARGET", "PROFILE"] {
        println!(
            "cargo::rustc-env=PIERHEAD_{name}={}",
            std::env::var(name).unwrap_or_default()
        );
    }
}
