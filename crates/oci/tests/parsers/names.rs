//! Tests of registries, repositories, tags and names in paths.

use pierhead_oci::{Name, ParseError, Registry, Repository, Tag};

fn registry(text: &str) -> Registry {
    text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

#[test]
fn all_spellings_of_a_registry_become_one() {
    for (written, canonical) in [
        ("docker.io", "docker.io"),
        ("index.docker.io", "docker.io"),
        ("registry-1.docker.io", "docker.io"),
        ("Registry.Hub.Docker.com", "docker.io"),
        ("GHCR.io", "ghcr.io"),
        ("LocalHost:5000", "localhost:5000"),
        ("hub", "hub"),
        ("a-b.example:00443", "a-b.example"),
        ("GHCR.io:443", "ghcr.io"),
        ("index.docker.io:0443", "docker.io"),
        ("[::1]:443", "[::1]"),
        ("registry:443", "registry:443"),
        ("a-b.example:08443", "a-b.example:8443"),
        ("10.0.0.1:5000", "10.0.0.1:5000"),
        ("[::1]:5000", "[::1]:5000"),
        ("[2001:DB8:0:0:0:0:0:1]", "[2001:db8::1]"),
        ("xn--mller-kva.example", "xn--mller-kva.example"),
    ] {
        assert_eq!(registry(written).as_str(), canonical, "{written:?}");
    }
}

#[test]
fn a_registry_gives_its_host_and_port() {
    for (text, host, port) in [
        ("ghcr.io", "ghcr.io", None),
        ("localhost:5000", "localhost", Some(5000)),
        ("[::1]:65535", "[::1]", Some(65535)),
        ("[::1]", "[::1]", None),
        ("10.0.0.1:1", "10.0.0.1", Some(1)),
    ] {
        assert_eq!(
            (registry(text).host(), registry(text).port()),
            (host, port),
            "{text:?}"
        );
    }
}

#[test]
fn the_longest_registry_is_a_host_of_253_bytes_with_a_port() {
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}:65535", "a".repeat(61));
    assert_eq!(registry(&longest).host().len(), 253);
    for text in [longest.replace(':', "a:"), longest.replace(":6", ":06")] {
        assert!(text.parse::<Registry>().is_err(), "{text}");
    }
}

#[test]
fn texts_that_are_no_registry_are_refused() {
    let long_label = format!("{}.io", "a".repeat(64));
    let long_host = format!("{}io", "abc.".repeat(63));
    for text in [
        "",
        ".",
        "..",
        ":5000",
        "a:",
        "a:0",
        "a:65536",
        "a:+80",
        "a:80:80",
        "a:8o",
        "a..b",
        ".a",
        "a.",
        "a.io.",
        "-a",
        "a-",
        "a_b.io",
        "a b",
        "a/b",
        "a@b.io",
        "user:pw@host",
        "http://a",
        "é.io",
        "a\0",
        "a%2e",
        "[::1",
        "::1",
        "[]",
        "[::1]x",
        "[fe80::1%25eth0]",
        "[127.0.0.1]",
        "127.1",
        "0x7f.1",
        "0x7f.0.0.0x1",
        "2130706433:80",
        "127.0.0.01",
        "1",
        "256.1.1.1",
        "a.0x",
        &long_label,
        &long_host,
    ] {
        assert!(
            matches!(text.parse::<Registry>(), Err(ParseError::Registry(_))),
            "{text:?}"
        );
    }
}

#[test]
fn a_first_segment_with_dot_or_port_looks_like_a_registry() {
    for segment in ["a.b", "a:5000", "localhost", "LOCALHOST", "[::1]"] {
        assert!(Registry::looks_like(segment), "{segment:?}");
    }
    for segment in ["library", "a", "local-host", ""] {
        assert!(!Registry::looks_like(segment), "{segment:?}");
    }
}

#[test]
fn official_images_live_under_library_on_docker_hub_only() {
    let qualified = |on: &str, name: &str| registry(on).qualify(name.parse().unwrap()).to_string();
    assert_eq!(qualified("index.docker.io", "redis"), "library/redis");
    assert_eq!(qualified("docker.io", "library/redis"), "library/redis");
    assert_eq!(qualified("docker.io", "bitnami/redis"), "bitnami/redis");
    assert_eq!(qualified("ghcr.io", "redis"), "redis");
    let longest = "a".repeat(255);
    assert_eq!(qualified("docker.io", &longest), longest);
}

#[test]
fn repositories_follow_the_grammar() {
    let longest = "a".repeat(255);
    for text in [
        "a",
        "0",
        "library/redis",
        "a.b/c_d/e__f/g-h/i---j",
        "foo.bar/baz",
        "a/manifests/tags/blobs",
        &longest,
    ] {
        assert_eq!(
            text.parse::<Repository>().map(|r| r.to_string()),
            Ok(text.to_owned())
        );
    }
    let too_long = "a".repeat(256);
    for text in [
        "", "/", "a/", "/a", "a//b", "..", "a/..", "../a", "a/../b", ".", "a/./b", "a..b", "a___b",
        "a._b", "a-_b", "_a", "a_", "-a", "a-", ".a", "a.", "A", "a/B", "a:b", "a@b", "a b",
        "a%2fb", "é", "a\0b", "a\n", "a\\b", "a?b", &too_long,
    ] {
        assert!(
            matches!(text.parse::<Repository>(), Err(ParseError::Repository(_))),
            "{text:?}"
        );
    }
}

#[test]
fn tags_follow_the_grammar() {
    let longest = "a".repeat(128);
    for text in ["latest", "_", "7", "V1.2-rc_3", "a..b", "a--", &longest] {
        assert_eq!(
            text.parse::<Tag>().map(|t| t.to_string()),
            Ok(text.to_owned())
        );
    }
    let too_long = "a".repeat(129);
    for text in [
        "", ".a", "..", "-a", "a/b", "a:b", "a b", "a+b", "é", "a\0", "a\n", &too_long,
    ] {
        assert_eq!(text.parse::<Tag>(), Err(ParseError::Tag), "{text:?}");
    }
}

/// Returns the registry, the repository and the whole name of a parsed name.
fn readings(text: &str) -> (Option<String>, String, Option<String>) {
    let name: Name = text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"));
    (
        name.registry().map(ToString::to_string),
        name.repository().to_string(),
        name.whole().map(ToString::to_string),
    )
}

#[test]
fn a_name_keeps_both_readings_of_its_first_segment() {
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        readings("library/redis"),
        (None, "library/redis".into(), some("library/redis"))
    );
    assert_eq!(
        readings("ghcr.io/a/b"),
        (some("ghcr.io"), "a/b".into(), some("ghcr.io/a/b"))
    );
    assert_eq!(
        readings("index.docker.io/redis"),
        (
            some("docker.io"),
            "redis".into(),
            some("index.docker.io/redis")
        )
    );
    assert_eq!(
        readings("localhost/a"),
        (some("localhost"), "a".into(), some("localhost/a"))
    );
    assert_eq!(
        readings("localhost:5000/a/b"),
        (some("localhost:5000"), "a/b".into(), None)
    );
    assert_eq!(
        readings("registry.example:443/x"),
        (
            some("registry.example"),
            "x".into(),
            some("registry.example/x")
        )
    );
    assert_eq!(
        readings("[::1]:5000/x"),
        (some("[::1]:5000"), "x".into(), None)
    );
    assert_eq!(
        readings("GHCR.io/x"),
        (some("ghcr.io"), "x".into(), some("ghcr.io/x"))
    );
    // A single segment is a repository, even if it has dots. A first segment that is no valid host
    // is a part of the repository, too.
    assert_eq!(
        readings("foo.bar"),
        (None, "foo.bar".into(), some("foo.bar"))
    );
    assert_eq!(
        readings("a_b.c/x"),
        (None, "a_b.c/x".into(), some("a_b.c/x"))
    );
    assert_eq!(
        readings("127.1/x"),
        (None, "127.1/x".into(), some("127.1/x"))
    );
}

#[test]
fn a_name_can_be_split_at_any_first_segment() {
    let split = |text: &str| {
        text.parse::<Name>()
            .unwrap()
            .split_first()
            .map(|(r, n)| (r.to_string(), n.to_string()))
    };
    assert_eq!(
        split("hub/library/redis"),
        Some(("hub".into(), "library/redis".into()))
    );
    assert_eq!(
        split("localhost:5000/a"),
        Some(("localhost:5000".into(), "a".into()))
    );
    assert_eq!(split("redis"), None);
}

#[test]
fn texts_that_are_no_name_are_refused() {
    for text in [
        "",
        "ghcr.io/",
        "ghcr.io/..",
        "localhost:5000",
        "localhost:5000/",
        "localhost:0/a",
        "a/b:c",
        "GHCR.io/X",
        "a:1/../b",
    ] {
        assert!(text.parse::<Name>().is_err(), "{text:?}");
    }
}
