//! Property tests: a formatted value parses to the same value, and no input makes a parser panic.

use bytes::Bytes;
use pierhead_oci::{
    Algorithm, Digest, Endpoint, ErrorBody, Manifest, MediaType, Name, Platform, Reference,
    Registry, Repository, Tag, Target,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::properties;

const COMPONENT: &str = "[a-z0-9]{1,4}((\\.|_|__|-{1,3})[a-z0-9]{1,4}){0,2}";

fn repository() -> impl Strategy<Value = Repository> {
    proptest::collection::vec(COMPONENT, 1..5).prop_map(|parts| parts.join("/").parse().unwrap())
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z][a-zA-Z0-9]{0,5}(-[a-z0-9]{1,4})?(\\.[a-zA-Z]{2,5}){0,2}",
        any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string()),
        any::<std::net::Ipv6Addr>().prop_map(|address| format!("[{address}]")),
        proptest::sample::select(
            &[
                "docker.io",
                "index.docker.io",
                "registry-1.docker.io",
                "localhost"
            ][..]
        )
        .prop_map(str::to_owned),
    ]
}

fn registry() -> impl Strategy<Value = Registry> {
    (host(), proptest::option::of(1..=u16::MAX)).prop_map(|(host, port)| {
        let text = port.map_or(host.clone(), |port| format!("{host}:{port}"));
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    })
}

fn digest() -> impl Strategy<Value = Digest> {
    prop_oneof![
        any::<[u8; 32]>().prop_map(|raw| Digest::from_bytes(Algorithm::Sha256, &raw).unwrap()),
        (any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(a, b)| Digest::from_bytes(
            Algorithm::Sha512,
            &[a, b].concat()
        )
        .unwrap()),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    let tag =
        "[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}".prop_map(|text| Target::Tag(text.parse().unwrap()));
    prop_oneof![tag, digest().prop_map(Target::Digest)]
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        repository().prop_map(Name::from),
        (registry(), repository()).prop_filter_map(
            "a bare word in front is a part of the name",
            |(registry, repository)| {
                Registry::looks_like(registry.as_str())
                    .then(|| format!("{registry}/{repository}").parse().unwrap())
            }
        ),
    ]
}

fn media_type() -> impl Strategy<Value = MediaType> {
    "[!-~]([ -~]{0,253}[!-~])?".prop_map(|text| MediaType::new(&text).unwrap())
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    let last = proptest::option::of("[^\\p{C}\u{fffd}]{1,60}");
    prop_oneof![
        Just(Endpoint::Base),
        (name(), target()).prop_map(|(name, target)| Endpoint::Manifest { name, target }),
        (name(), digest()).prop_map(|(name, digest)| Endpoint::Blob { name, digest }),
        (name(), any::<Option<u32>>(), last).prop_map(|(name, n, last)| Endpoint::Tags {
            name,
            n,
            last
        }),
        (name(), digest(), proptest::option::of(media_type())).prop_map(
            |(name, digest, artifact_type)| Endpoint::Referrers {
                name,
                digest,
                artifact_type
            }
        ),
        name().prop_map(|name| Endpoint::Upload { name }),
        proptest::option::of(name()).prop_map(|name| Endpoint::Discover { name }),
        name().prop_map(|name| Endpoint::Bundle { name }),
        name().prop_map(|name| Endpoint::Trace { name }),
        (name(), digest(), digest()).prop_map(|(name, digest, image)| Endpoint::File {
            name,
            digest,
            image
        }),
    ]
}

/// The tests use the same cases in every run. The fuzzer searches for new cases.
fn fixed() -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(fixed())]

    #[test]
    fn digests_survive_a_round_trip(digest in digest()) {
        prop_assert_eq!(digest.to_string().parse(), Ok(digest));
        prop_assert_eq!(Digest::from_bytes(digest.algorithm(), digest.as_bytes()), Some(digest));
        let json = serde_json::to_string(&digest).unwrap();
        prop_assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        prop_assert!(digest.to_string().ends_with(&digest.hex()));
    }

    #[test]
    fn registries_survive_a_round_trip(registry in registry()) {
        prop_assert_eq!(registry.as_str().parse(), Ok(registry.clone()));
        let put_together = match registry.port() {
            Some(port) => format!("{}:{port}", registry.host()),
            None => registry.host().to_owned(),
        };
        prop_assert_eq!(put_together, registry.as_str());
    }

    #[test]
    fn names_survive_a_round_trip(name in name()) {
        prop_assert_eq!(name.to_string().parse(), Ok(name.clone()));
        if let Some((registry, repository)) = name.split_first() {
            prop_assert!(name.registry().is_none_or(|first| *first == registry));
            prop_assert!(name.to_string().ends_with(repository.as_str()));
        }
    }

    #[test]
    fn references_survive_a_round_trip(registry in registry(), repository in repository(), target in target()) {
        let reference = Reference { repository: registry.qualify(repository), registry, target };
        // A registry without dot, port or "localhost" would be parsed as a part of the repository.
        prop_assume!(Registry::looks_like(reference.registry.as_str()));
        let text = reference.to_string();
        prop_assert_eq!(text.parse(), Ok(reference));
        properties::reference(text.as_bytes());
    }

    #[test]
    fn endpoints_survive_a_round_trip(endpoint in endpoint()) {
        let path = endpoint.to_path();
        let (head, query) = path.split_once('?').map_or((&*path, None), |(head, query)| (head, Some(query)));
        prop_assert_eq!(Endpoint::parse(head, query), Ok(endpoint));
        properties::endpoint(path.as_bytes());
    }

    #[test]
    fn media_types_survive_a_round_trip(text in "[!-~]([ -~]{0,253}[!-~])?") {
        let media_type = MediaType::new(&text).unwrap();
        prop_assert_eq!(media_type.as_str(), &text);
        prop_assert!(text.starts_with(media_type.essence()) || text.trim_start().starts_with(media_type.essence()));
        let control = text + "\u{7f}";
        prop_assert!(MediaType::new(&control).is_none());
    }

    #[test]
    fn platforms_survive_a_round_trip(text in "[a-zA-Z0-9]{1,8}/(arm|arm64|amd64|aarch64|[a-z0-9_]{1,8})(/(v[0-9]|[a-z0-9]{1,4}))?") {
        let platform: Platform = text.parse().unwrap();
        prop_assert_eq!(platform.to_string().parse::<Platform>(), Ok(platform));
    }

    #[test]
    fn manifests_keep_their_bytes(
        digests in proptest::collection::vec((digest(), 0..=Manifest::MAX_BLOB), 1..20),
        index in any::<bool>(),
        typed in any::<bool>(),
        pretty in any::<bool>(),
    ) {
        let entries: Vec<_> = digests
            .iter()
            .map(|(digest, size)| serde_json::json!({"mediaType": "a/b", "digest": digest, "size": size}))
            .collect();
        let mut document = if index {
            serde_json::json!({"schemaVersion": 2, "manifests": entries})
        } else {
            serde_json::json!({"schemaVersion": 2, "config": entries[0], "layers": entries[1..]})
        };
        if typed {
            document["mediaType"] = if index { MediaType::OCI_INDEX } else { MediaType::OCI_MANIFEST }.into();
        }
        let text = if pretty { format!("{document:#}\n") } else { document.to_string() };
        let manifest = Manifest::parse(Bytes::from(text.clone()), None).unwrap();
        prop_assert_eq!(&manifest.bytes, text.as_bytes());
        let found: Vec<_> = manifest.children().map(|child| (child.digest, child.size)).collect();
        prop_assert_eq!(found, digests);
        properties::manifest(text.as_bytes());
    }

    #[test]
    fn no_input_makes_a_parser_panic(text in "\\PC{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for input in [text.as_bytes(), &bytes] {
            properties::reference(input);
            properties::endpoint(input);
            properties::manifest(input);
            let _ = ErrorBody::parse(input);
        }
        let _ = (text.parse::<Tag>(), text.parse::<Name>(), text.parse::<Digest>(), text.parse::<Platform>());
        properties::endpoint(format!("/v2/{text}").as_bytes());
        properties::endpoint(format!("/v2/a/tags/list?{text}").as_bytes());
    }
}
