//! Tests of platforms, and of the choice of an entry from an index by platform.

use pierhead_oci::{Algorithm, Descriptor, Digest, MediaType, ParseError, Platform};

fn entry(platform: &str) -> Descriptor {
    let mut parts = platform.split('/').map(str::to_owned);
    let platform = parts.next().filter(|os| !os.is_empty()).map(|os| Platform {
        os,
        architecture: parts.next().unwrap_or_default(),
        variant: parts.next(),
    });
    let digest = Digest::of(Algorithm::Sha256, format!("{platform:?}").as_bytes());
    Descriptor {
        media_type: MediaType::new(MediaType::OCI_MANIFEST).unwrap(),
        digest,
        size: 1,
        platform,
    }
}

/// Returns the position of the entry that the platform chooses.
fn choose(wanted: &str, offered: &[&str]) -> Option<usize> {
    let entries: Vec<_> = offered.iter().map(|text| entry(text)).collect();
    let chosen = wanted.parse::<Platform>().unwrap().choose(&entries)?;
    entries.iter().position(|entry| std::ptr::eq(entry, chosen))
}

#[test]
fn the_exact_platform_is_chosen() {
    let offered = [
        "linux/amd64",
        "linux/arm/v7",
        "linux/arm64/v8",
        "linux/s390x",
        "windows/amd64",
        "unknown/unknown",
    ];
    for (wanted, position) in [
        ("linux/amd64", 0),
        ("linux/arm/v7", 1),
        ("linux/arm64", 2),
        ("linux/s390x", 3),
        ("windows/amd64", 4),
    ] {
        assert_eq!(choose(wanted, &offered), Some(position), "{wanted}");
    }
    assert_eq!(choose("linux/riscv64", &offered), None);
    assert_eq!(choose("darwin/arm64", &offered), None);
    assert_eq!(choose("linux/amd64", &[]), None);
}

#[test]
fn an_older_variant_runs_and_the_newest_of_them_is_chosen() {
    assert_eq!(
        choose("linux/arm/v7", &["linux/arm/v5", "linux/arm/v6"]),
        Some(1)
    );
    assert_eq!(choose("linux/arm/v7", &["linux/arm/v5"]), Some(0));
    assert_eq!(
        choose("linux/arm/v6", &["linux/arm/v7", "linux/arm/v5"]),
        Some(1)
    );
    assert_eq!(choose("linux/arm/v6", &["linux/arm/v7"]), None);
    assert_eq!(choose("linux/arm/v7", &["linux/arm64"]), None);
    assert_eq!(choose("linux/arm64/v9", &["linux/arm64"]), Some(0));
    assert_eq!(choose("linux/arm64", &["linux/arm64/v9"]), None);
    assert_eq!(
        choose(
            "linux/amd64/v3",
            &["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"]
        ),
        Some(1)
    );
    assert_eq!(choose("linux/amd64", &["linux/amd64/v2"]), None);
    assert_eq!(choose("linux/ppc64le", &["linux/ppc64le/power9"]), None);
}

#[test]
fn one_platform_has_several_spellings() {
    assert_eq!(choose("linux/aarch64", &["linux/arm64/v8"]), Some(0));
    assert_eq!(choose("linux/arm64/v8", &["linux/arm64"]), Some(0));
    assert_eq!(choose("linux/arm64/8", &["linux/arm64"]), Some(0));
    assert_eq!(choose("Linux/X86_64", &["linux/amd64/v1"]), Some(0));
    assert_eq!(choose("linux/arm", &["linux/arm/v7"]), Some(0));
    assert_eq!(choose("linux/armhf", &["linux/arm/"]), Some(0));
    assert_eq!(choose("linux/i686", &["linux/386"]), Some(0));
    for (written, one) in [
        ("linux/aarch64/v8", "linux/arm64"),
        ("linux/aarch64/v9", "linux/arm64/v9"),
        ("linux/arm64/v8", "linux/arm64"),
        ("linux/arm", "linux/arm/v7"),
        ("linux/armel", "linux/arm/v6"),
        ("linux/amd64/v1", "linux/amd64"),
        ("linux/x86_64", "linux/amd64"),
        ("Linux/x86-64/V3", "linux/amd64/v3"),
        ("linux/386", "linux/386"),
    ] {
        let platform: Platform = written.parse().unwrap();
        assert_eq!(platform.to_string(), one, "{written}");
    }
}

#[test]
fn attestations_and_entries_without_platform_are_not_chosen() {
    assert_eq!(choose("unknown/unknown", &["unknown/unknown"]), None);
    assert_eq!(choose("linux/amd64", &["", "linux/amd64"]), Some(1));
    for (text, unknown) in [
        ("unknown/unknown", true),
        ("unknown/amd64", true),
        ("linux/unknown", true),
        ("linux/amd64", false),
    ] {
        let platform: Platform = text.parse().unwrap();
        assert_eq!(platform.is_unknown(), unknown, "{text}");
    }
}

#[test]
fn texts_that_are_no_platform_are_refused() {
    for text in [
        "",
        "linux",
        "linux/",
        "/amd64",
        "linux/arm/",
        "linux/arm/v7/x",
        "linux/a b",
        "linux/é",
    ] {
        assert_eq!(
            text.parse::<Platform>(),
            Err(ParseError::Platform),
            "{text:?}"
        );
    }
}
