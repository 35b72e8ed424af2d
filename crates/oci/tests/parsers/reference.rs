//! Tests of references to images, in the short and complete forms that users write.

use pierhead_oci::{ParseError, Reference, Target};

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn short_references_become_complete() {
    for (written, complete) in [
        ("redis", "docker.io/library/redis:latest"),
        ("redis:7", "docker.io/library/redis:7"),
        ("library/redis", "docker.io/library/redis:latest"),
        ("bitnami/redis:7", "docker.io/bitnami/redis:7"),
        ("docker.io/redis", "docker.io/library/redis:latest"),
        ("index.docker.io/redis", "docker.io/library/redis:latest"),
        ("ghcr.io/redis", "ghcr.io/redis:latest"),
        ("GHCR.IO/a/b:V1", "ghcr.io/a/b:V1"),
        ("localhost/a", "localhost/a:latest"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("localhost:5000/a:1", "localhost:5000/a:1"),
        // Without a slash, the text after the colon is a tag and not a port.
        ("localhost:5000", "docker.io/library/localhost:5000"),
        ("[::1]:5000/a/b:c", "[::1]:5000/a/b:c"),
    ] {
        assert_eq!(
            written.parse::<Reference>().map(|r| r.to_string()),
            Ok(complete.to_owned()),
            "{written:?}"
        );
    }
}

#[test]
fn a_digest_replaces_the_tag() {
    for name in ["redis", "redis:7", "docker.io/library/redis"] {
        let reference: Reference = format!("{name}@{DIGEST}").parse().unwrap();
        assert_eq!(
            reference.to_string(),
            format!("docker.io/library/redis@{DIGEST}")
        );
    }
    // An invalid tag is refused, even if a digest follows it.
    assert_eq!(
        format!("redis:-@{DIGEST}").parse::<Reference>(),
        Err(ParseError::Tag)
    );
}

#[test]
fn texts_that_are_no_reference_are_refused() {
    for text in [
        "",
        ":",
        "@",
        ":tag",
        "redis:",
        "redis@",
        "redis@sha256:0",
        "redis@latest",
        "Redis",
        "a/b/../c",
        "../redis",
        "ghcr.io/",
        "ghcr.io/:x",
        "/redis",
        "redis/",
        "https://ghcr.io/a",
        "redis 7",
        "localhost:0/a",
        "a@b@c",
        "redis:a:b",
        "host:99999/a",
    ] {
        assert!(text.parse::<Reference>().is_err(), "{text:?}");
    }
    assert!("a/".repeat(4000).parse::<Reference>().is_err());
}

#[test]
fn a_target_with_a_colon_is_a_digest() {
    assert!(matches!(DIGEST.parse(), Ok(Target::Digest(_))));
    assert!(matches!("sha256".parse(), Ok(Target::Tag(_))));
    assert_eq!("sha256:0".parse::<Target>(), Err(ParseError::Digest));
    assert_eq!("..".parse::<Target>(), Err(ParseError::Tag));
}
