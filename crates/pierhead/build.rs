//! Tells the binary for which target it was built, which cargo says to build scripts only, and of what time it is.

/// 2026-01-01 00:00 UTC, where nobody says of what time the sources are.
const WRITTEN: u64 = 1_767_225_600;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["TARGET", "PROFILE"] {
        println!(
            "cargo::rustc-env=PIERHEAD_{name}={}",
            std::env::var(name).unwrap_or_default()
        );
    }
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let told = std::env::var("SOURCE_DATE_EPOCH").ok();
    let told = told.and_then(|seconds| seconds.trim().parse::<u64>().ok());
    println!(
        "cargo::rustc-env=PIERHEAD_WRITTEN={}",
        told.unwrap_or(WRITTEN).max(WRITTEN)
    );
}
