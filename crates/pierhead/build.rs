//! Cargo build script of `pierhead`: passes the build target, the build profile and the date of the
//! sources to the compiler, as environment variables that the binary reads with `env!`.

/// Date of the sources in seconds since 1970, if `SOURCE_DATE_EPOCH` is not set: 2026-01-01 00:00
/// UTC.
const DEFAULT_SOURCE_DATE: u64 = 1_767_225_600;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["TARGET", "PROFILE"] {
        println!(
            "cargo::rustc-env=PIERHEAD_{name}={}",
            std::env::var(name).unwrap_or_default()
        );
    }
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let source_date = std::env::var("SOURCE_DATE_EPOCH").ok();
    let source_date = source_date.and_then(|seconds| seconds.trim().parse::<u64>().ok());
    println!(
        "cargo::rustc-env=PIERHEAD_SOURCE_DATE={}",
        source_date
            .unwrap_or(DEFAULT_SOURCE_DATE)
            .max(DEFAULT_SOURCE_DATE)
    );
}
