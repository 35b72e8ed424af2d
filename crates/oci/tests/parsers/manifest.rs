//! Tests of manifests and indexes: documents of tools, and hostile documents.

use bytes::Bytes;
use pierhead_oci::{Algorithm, Body, Digest, Manifest, MediaType, ParseError};
use serde_json::{Value, json};

fn digest(seed: &str) -> String {
    Digest::of(Algorithm::Sha256, seed.as_bytes()).to_string()
}

fn descriptor(media_type: &str, size: u64) -> Value {
    json!({"mediaType": media_type, "digest": digest(media_type), "size": size})
}

fn image() -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": MediaType::OCI_MANIFEST,
        "config": descriptor("application/vnd.oci.image.config.v1+json", 7),
        "layers": [
            descriptor("application/vnd.oci.image.layer.v1.tar+gzip", 11),
            descriptor("application/vnd.oci.image.layer.v1.tar+zstd", 0),
        ],
        "annotations": {"org.opencontainers.image.title": "x"},
    })
}

fn index() -> Value {
    let mut amd64 = descriptor(MediaType::OCI_MANIFEST, 1);
    amd64["platform"] = json!({"os": "linux", "architecture": "amd64"});
    let mut arm64 = descriptor(MediaType::DOCKER_MANIFEST, 2);
    arm64["platform"] = json!({"os": "linux", "architecture": "arm64", "variant": "v8", "os.version": "1", "os.features": ["x"]});
    let mut attestation = descriptor(MediaType::OCI_MANIFEST, 3);
    attestation["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    json!({"schemaVersion": 2, "mediaType": MediaType::OCI_INDEX, "manifests": [amd64, arm64, attestation]})
}

fn parse_as(document: &Value, content_type: Option<&str>) -> Result<Manifest, ParseError> {
    Manifest::parse(Bytes::from(document.to_string()), content_type)
}

fn parse(document: &Value) -> Result<Manifest, ParseError> {
    parse_as(document, None)
}

fn with(mut document: Value, key: &str, value: Value) -> Value {
    document[key] = value;
    document
}

fn without(mut document: Value, key: &str) -> Value {
    document.as_object_mut().map(|object| object.remove(key));
    document
}

/// Returns the reason why the parser refuses the document. The test compares the reason, so that
/// the test fails if the parser refuses the document for another reason.
fn refused(document: &Value) -> String {
    match parse(document) {
        Err(ParseError::Manifest(why)) => why,
        other => panic!("{other:?} for {document}"),
    }
}

#[test]
fn an_image_points_to_its_config_and_layers() {
    let manifest = parse(&image()).unwrap();
    assert_eq!(manifest.media_type.as_str(), MediaType::OCI_MANIFEST);
    let sizes: Vec<_> = manifest.children().map(|child| child.size).collect();
    assert_eq!(sizes, [7, 11, 0]);
    assert!(manifest.subject().is_none());
    let Body::Image { layers, .. } = &manifest.body else {
        panic!("not an image")
    };
    assert_eq!(
        layers[1].media_type.as_str(),
        "application/vnd.oci.image.layer.v1.tar+zstd"
    );
    assert_eq!(
        layers[0].digest.to_string(),
        digest("application/vnd.oci.image.layer.v1.tar+gzip")
    );
}

#[test]
fn an_index_points_to_its_manifests_and_offers_a_platform() {
    let manifest = parse(&index()).unwrap();
    assert_eq!(manifest.children().count(), 3);
    let chosen = |platform: &str| {
        manifest
            .choose(&platform.parse().unwrap())
            .map(|entry| entry.size)
    };
    assert_eq!(chosen("linux/amd64"), Some(1));
    assert_eq!(chosen("linux/arm64"), Some(2));
    assert_eq!(chosen("linux/s390x"), None);
    assert!(
        parse(&image())
            .unwrap()
            .choose(&"linux/amd64".parse().unwrap())
            .is_none()
    );
}

#[test]
fn the_bytes_of_a_document_are_kept() {
    let spaced = format!("\n {:#} \t\n", image());
    let manifest = Manifest::parse(Bytes::from(spaced.clone()), None).unwrap();
    assert_eq!(manifest.bytes, spaced.as_bytes());
    assert_eq!(
        manifest.digest(),
        Digest::of(Algorithm::Sha256, spaced.as_bytes())
    );
}

#[test]
fn the_kind_is_found_without_a_media_type() {
    let bare_image = without(image(), "mediaType");
    let bare_index = without(index(), "mediaType");
    assert_eq!(
        parse(&bare_image).unwrap().media_type.as_str(),
        MediaType::OCI_MANIFEST
    );
    assert_eq!(
        parse(&bare_index).unwrap().media_type.as_str(),
        MediaType::OCI_INDEX
    );
    assert_eq!(
        parse_as(&bare_image, Some(MediaType::DOCKER_MANIFEST))
            .unwrap()
            .media_type
            .as_str(),
        MediaType::DOCKER_MANIFEST
    );
    assert!(parse(&with(image(), "mediaType", json!(""))).is_ok());
    let of_its_own = with(
        index(),
        "mediaType",
        json!("application/vnd.example.list+json"),
    );
    let manifest = parse(&of_its_own).unwrap();
    assert!(matches!(manifest.body, Body::Index { .. }));
    assert_eq!(
        manifest.media_type.to_string(),
        "application/vnd.example.list+json"
    );
}

#[test]
fn the_content_type_is_replayed_exactly() {
    for sent in [
        "application/json",
        "text/plain; charset=utf-8",
        "application/vnd.oci.image.manifest.v1+json; charset=utf-8",
    ] {
        assert_eq!(
            parse_as(&image(), Some(sent)).unwrap().media_type.as_str(),
            sent
        );
    }
    assert!(matches!(
        parse_as(&index(), Some("application/json")).unwrap().body,
        Body::Index { .. }
    ));
}

#[test]
fn docker_schema_2_is_parsed() {
    let mut image = with(image(), "mediaType", json!(MediaType::DOCKER_MANIFEST));
    let mut foreign = descriptor(
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        5,
    );
    foreign["urls"] = json!(["https://example.test/layer"]);
    image["layers"] = json!([foreign]);
    assert!(matches!(
        parse_as(&image, Some(MediaType::DOCKER_MANIFEST))
            .unwrap()
            .body,
        Body::Image { .. }
    ));
    let list = with(index(), "mediaType", json!(MediaType::DOCKER_LIST));
    assert!(matches!(
        parse_as(&list, Some(MediaType::DOCKER_LIST)).unwrap().body,
        Body::Index { .. }
    ));
}

#[test]
fn artifacts_and_their_subjects_are_parsed() {
    let mut artifact = image();
    artifact["artifactType"] = json!("application/spdx+json");
    artifact["config"] = json!({
        "mediaType": "application/vnd.oci.empty.v1+json", "size": 2, "data": "e30=",
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    });
    artifact["subject"] = descriptor(MediaType::OCI_MANIFEST, 99);
    artifact["layers"] = Value::Null;
    artifact["annotations"] = Value::Null;
    let manifest = parse(&artifact).unwrap();
    assert_eq!(manifest.subject().map(|subject| subject.size), Some(99));
    assert_eq!(manifest.children().count(), 1);
    let empty = with(index(), "manifests", Value::Null);
    assert_eq!(parse(&empty).unwrap().children().count(), 0);
    let attached = with(index(), "subject", descriptor(MediaType::OCI_MANIFEST, 98));
    assert_eq!(
        parse(&attached)
            .unwrap()
            .subject()
            .map(|subject| subject.size),
        Some(98)
    );
}

#[test]
fn documents_that_are_no_manifest_are_refused() {
    for text in [
        "",
        "{",
        "null",
        "[]",
        "7",
        "\"\"",
        "{}",
        "<html></html>",
        "{\"schemaVersion\":2}",
        "\u{feff}{}",
    ] {
        assert!(Manifest::parse(Bytes::from(text), None).is_err(), "{text}");
    }
    assert!(refused(&with(image(), "schemaVersion", json!(1))).contains("schema version"));
    assert!(refused(&without(image(), "schemaVersion")).contains("schemaVersion"));
    assert!(refused(&without(image(), "config")).contains("neither a config"));
    assert!(refused(&with(image(), "mediaType", json!("é"))).contains("mediaType is malformed"));
    assert!(parse_as(&image(), Some("a\nb")).is_err());
    assert!(Manifest::parse(Bytes::from(image().to_string() + "{}"), None).is_err());
}

#[test]
fn a_document_of_both_kinds_is_refused() {
    let both = with(index(), "layers", json!([]));
    assert!(refused(&both).contains("the fields of an image"));
    assert!(
        refused(&with(
            without(index(), "mediaType"),
            "config",
            image()["config"].clone()
        ))
        .contains("fields of an image")
    );
    assert!(refused(&with(image(), "manifests", json!([]))).contains("the fields of an index"));
    for (document, sent) in [
        (image(), MediaType::OCI_INDEX),
        (image(), MediaType::DOCKER_MANIFEST),
        (index(), MediaType::OCI_MANIFEST),
        (
            index(),
            "application/vnd.docker.distribution.manifest.list.v2+json; q=1",
        ),
        (without(index(), "mediaType"), MediaType::OCI_MANIFEST),
        (without(image(), "mediaType"), MediaType::OCI_INDEX),
    ] {
        assert!(
            parse_as(&document, Some(sent)).is_err(),
            "{sent} for {document}"
        );
    }
    let twice = image().to_string().replacen('{', "{\"layers\":[],", 1);
    assert!(Manifest::parse(Bytes::from(twice), None).is_err());
}

#[test]
fn invalid_descriptors_are_refused() {
    let sized = |size: Value| {
        with(
            image(),
            "layers",
            json!([{"mediaType": "a/b", "digest": digest(""), "size": size}]),
        )
    };
    assert!(parse(&sized(json!(Manifest::MAX_BLOB))).is_ok());
    assert!(refused(&sized(json!(Manifest::MAX_BLOB + 1))).contains("claims"));
    for size in [
        json!(u64::MAX),
        json!(i64::MAX),
        json!(-1),
        json!(1e30),
        json!(1.5),
        json!("1"),
        Value::Null,
    ] {
        refused(&sized(size));
    }
    let digested = |digest: &str| {
        with(
            image(),
            "layers",
            json!([{"mediaType": "a/b", "digest": digest, "size": 1}]),
        )
    };
    for digest in [
        "",
        "sha256:",
        "sha256:..",
        "../../etc/passwd",
        "md5:d41d8cd98f00b204e9800998ecf8427e",
        &format!("sha384:{}", "0".repeat(96)),
    ] {
        refused(&digested(digest));
    }
    let long = format!("a/{}", "b".repeat(300));
    refused(&with(image(), "config", descriptor(&long, 1)));
}

#[test]
fn huge_and_deep_documents_are_refused() {
    let entries = |n: usize| {
        with(
            image(),
            "layers",
            Value::Array(vec![descriptor("a/b", 1); n]),
        )
    };
    assert_eq!(
        parse(&entries(Manifest::MAX_ENTRIES))
            .unwrap()
            .children()
            .count(),
        Manifest::MAX_ENTRIES + 1
    );
    assert!(refused(&entries(Manifest::MAX_ENTRIES + 1)).contains("over 4096 entries"));

    let mut padded = image().to_string();
    padded.extend(std::iter::repeat_n(' ', Manifest::MAX_SIZE - padded.len()));
    assert!(Manifest::parse(Bytes::from(padded.clone()), None).is_ok());
    assert!(Manifest::parse(Bytes::from(padded + " "), None).is_err());

    let deep = format!(
        r#"{{"schemaVersion":2,"x":{}{}}}"#,
        "[".repeat(1 << 20),
        "]".repeat(1 << 20)
    );
    assert!(Manifest::parse(Bytes::from(deep), None).is_err());

    let annotations: serde_json::Map<_, _> =
        (0..100_000).map(|i| (i.to_string(), json!(""))).collect();
    let mut crowded = image();
    crowded["layers"][0]["annotations"] = Value::Object(annotations);
    assert!(crowded.to_string().len() < Manifest::MAX_SIZE);
    assert!(refused(&crowded).contains("too many strings"));
}

#[test]
fn a_refusal_does_not_repeat_the_document() {
    let noise = "x".repeat(1 << 20);
    assert!(refused(&with(image(), "schemaVersion", json!(noise))).len() <= 200);
}
