//! Tests of the paths of the API: each endpoint, names with a registry, and hostile paths.

use pierhead_oci::{Endpoint, ParseError};

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn parse(path: &str) -> Result<Endpoint, ParseError> {
    let (path, query) = path
        .split_once('?')
        .map_or((path, None), |(path, query)| (path, Some(query)));
    Endpoint::parse(path, query)
}

#[test]
fn every_endpoint_parses_and_formats() {
    for path in [
        "/v2/".to_owned(),
        "/v2/library/redis/manifests/latest".to_owned(),
        format!("/v2/redis/manifests/{DIGEST}"),
        format!("/v2/ghcr.io/a/b/blobs/{DIGEST}"),
        "/v2/localhost:5000/a/tags/list".to_owned(),
        "/v2/a/tags/list?n=0".to_owned(),
        "/v2/a/tags/list?n=10&last=v1.0".to_owned(),
        "/v2/a/tags/list?last=v1.0".to_owned(),
        format!("/v2/a/referrers/{DIGEST}"),
        format!("/v2/a/referrers/{DIGEST}?artifactType=application%2Fspdx%2Bjson"),
        "/v2/a/blobs/uploads/".to_owned(),
        "/v2/_oci/ext/discover".to_owned(),
        "/v2/a/b/_oci/ext/discover".to_owned(),
        "/v2/%5B::1%5D:5000/a/manifests/latest".to_owned(),
        "/v2/library/redis/_pierhead/bundle".to_owned(),
        "/v2/ghcr.io/a/b/_pierhead/trace".to_owned(),
        format!(
            "/v2/a/_pierhead/file/{DIGEST}?image={}",
            DIGEST.replace(':', "%3A")
        ),
    ] {
        let endpoint = parse(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(endpoint.to_path(), path, "{endpoint:?}");
    }
}

#[test]
fn a_name_may_contain_the_segments_of_the_api() {
    for name in [
        "manifests",
        "a/manifests",
        "blobs/uploads",
        "tags/list",
        "manifests/blobs/tags",
        "v2",
    ] {
        for rest in ["manifests/latest", "tags/list"] {
            let endpoint = parse(&format!("/v2/{name}/{rest}")).unwrap();
            assert_eq!(
                endpoint.name().map(ToString::to_string).as_deref(),
                Some(name),
                "{endpoint:?}"
            );
        }
    }
}

#[test]
fn the_extension_has_these_paths_and_no_others() {
    let image = format!("image={DIGEST}");
    let Ok(Endpoint::File {
        digest, image: of, ..
    }) = parse(&format!("/v2/a/_pierhead/file/{DIGEST}?{image}"))
    else {
        panic!()
    };
    assert_eq!(
        (digest.to_string(), of.to_string()),
        (DIGEST.into(), DIGEST.into())
    );
    for (path, why) in [
        // Without the digest of the image, pierhead could not check whether the client may pull the
        // file.
        (
            format!("/v2/a/_pierhead/file/{DIGEST}"),
            ParseError::Query("image"),
        ),
        (
            format!("/v2/a/_pierhead/file/{DIGEST}?image="),
            ParseError::Query("image"),
        ),
        (
            format!("/v2/a/_pierhead/file/{DIGEST}?image=latest"),
            ParseError::Digest,
        ),
        (
            format!("/v2/a/_pierhead/file/latest?{image}"),
            ParseError::Digest,
        ),
        ("/v2/_pierhead/bundle".into(), ParseError::Endpoint),
        ("/v2/a/_pierhead/bundle/".into(), ParseError::Endpoint),
        ("/v2/a/_pierhead/bundles".into(), ParseError::Endpoint),
        ("/v2/a/_pierhead".into(), ParseError::Endpoint),
        ("/v2/a/_pierhead/trace/x".into(), ParseError::Endpoint),
    ] {
        assert_eq!(parse(&path), Err(why), "{path}");
    }
    assert!(parse("/v2/A/_pierhead/bundle").is_err());
}

#[test]
fn all_paths_of_uploads_are_one_endpoint() {
    let upload = Endpoint::Upload {
        name: "a/b".parse().unwrap(),
    };
    for path in [
        "/v2/a/b/blobs/uploads",
        "/v2/a/b/blobs/uploads/",
        "/v2/a/b/blobs/uploads/4e1e-95f4?digest=x",
    ] {
        assert_eq!(parse(path).as_ref(), Ok(&upload), "{path}");
    }
}

#[test]
fn a_path_is_percent_decoded_once() {
    let plain = parse(&format!("/v2/a/b/manifests/{DIGEST}")).unwrap();
    assert_eq!(
        parse(&format!(
            "/v2/a%2Fb/manifests/{}",
            DIGEST.replace(':', "%3a")
        )),
        Ok(plain)
    );
    assert!(parse("/v2/a%252Fb/manifests/latest").is_err());
    // A plus sign means a space only in a query, not in a path.
    assert!(parse("/v2/a+b/manifests/latest").is_err());
    let Ok(Endpoint::Tags { last, .. }) = parse("/v2/a/tags/list?last=a+b%20c") else {
        panic!()
    };
    assert_eq!(last.as_deref(), Some("a b c"));
}

#[test]
fn unknown_query_parameters_are_ignored_and_empty_ones_are_absent() {
    let bare = parse("/v2/a/tags/list").unwrap();
    for query in [
        "ns=docker.io",
        "n=",
        "last=&n=",
        "N=3",
        "&&",
        "=",
        "x=%zz",
        "nn=1",
    ] {
        assert_eq!(
            parse(&format!("/v2/a/tags/list?{query}")),
            Ok(bare.clone()),
            "{query}"
        );
    }
    // If a parameter has two values, the first value counts.
    assert_eq!(
        parse("/v2/a/tags/list?n=1&n=2").unwrap().to_path(),
        "/v2/a/tags/list?n=1"
    );
    // An invalid parameter that the endpoint does not have is ignored.
    assert!(parse("/v2/a/manifests/latest?n=-1").is_ok());
}

#[test]
fn the_error_of_an_invalid_query_parameter_names_it() {
    for query in [
        "n=-1",
        "n=+1",
        "n=ten",
        "n=1.5",
        "n=%zz",
        "n=111111111111111111111",
    ] {
        assert_eq!(
            parse(&format!("/v2/a/tags/list?{query}")),
            Err(ParseError::Query("n")),
            "{query}"
        );
    }
    let long = "a".repeat(256);
    for last in ["%00", "%ff", "%0a", long.as_str()] {
        assert_eq!(
            parse(&format!("/v2/a/tags/list?last={last}")),
            Err(ParseError::Query("last")),
            "{last}"
        );
    }
    assert_eq!(
        parse("/v2/a/tags/list?n=99999999999").unwrap().to_path(),
        format!("/v2/a/tags/list?n={}", u32::MAX)
    );
    let senseless = format!("/v2/a/referrers/{DIGEST}?artifactType=%C3%A9");
    assert_eq!(parse(&senseless), Err(ParseError::Query("artifactType")));
    assert!(Endpoint::parse("/v2/a/tags/list", Some(&"&".repeat(5000))).is_err());
}

#[test]
fn the_namespace_parameter_is_a_normalized_registry() {
    let namespace =
        |query: &str| Endpoint::namespace(Some(query)).map(|ns| ns.map(|ns| ns.to_string()));
    assert_eq!(namespace("ns=docker.io"), Ok(Some("docker.io".into())));
    assert_eq!(
        namespace("a=b&ns=Registry-1.docker.io"),
        Ok(Some("docker.io".into()))
    );
    assert_eq!(
        namespace("ns=localhost%3A5000"),
        Ok(Some("localhost:5000".into()))
    );
    assert_eq!(namespace("ns="), Ok(None));
    assert_eq!(Endpoint::namespace(None), Ok(None));
    assert!(namespace("ns=..").is_err());
    assert!(namespace("ns=http%3A%2F%2F169.254.169.254%2F").is_err());
    assert!(namespace("ns=user@host").is_err());
    assert!(namespace("ns=%").is_err());
    assert_eq!(namespace("ns=%ff"), Err(ParseError::Query("ns")));
}

#[test]
fn paths_outside_of_the_api_are_refused() {
    for path in [
        "",
        "/",
        "v2/",
        "/v1/",
        "/v2x",
        "/v22/",
        "//v2/",
        "/v2//",
        "/V2/",
        "/v2/_catalog",
        "/v2/a",
        "/v2/a/b/c",
        "/v2/manifests/latest",
        "/v2/a/manifests",
        "/v2/a/manifests/",
        "/v2/a/tags",
        "/v2/a/tags/list/",
        "/v2/a/tags/lists",
        "/v2/a/manifests/a/b/",
        "/v2/tags/list",
        "/v2/a/blobs/",
        "/v2/a/blobs/latest",
        "/v2/a/referrers/latest",
        "/v2/a/manifests/%",
        "/v2/a/manifests/%0",
        "/v2/a/manifests/%zz",
        "/v2/a/manifests/%00",
        "/v2/a/manifests/%ff",
        "/v2/a/manifests/a%0Db",
    ] {
        assert!(parse(path).is_err(), "{path}");
    }
    // The session ID of an upload has no grammar and no maximum length.
    let session = |length: usize| parse(&format!("/v2/a/blobs/uploads/{}", "x".repeat(length)));
    assert!(session(4000).is_ok());
    assert_eq!(session(4096), Err(ParseError::Endpoint));
}

#[test]
fn no_path_leads_out_of_its_name() {
    for name in [
        "..",
        "../..",
        "a/..",
        "a/../b",
        "%2e%2e",
        "a/%2e%2e/b",
        "..%2f..",
        "a/./b",
        "a//b",
        "a\\b",
        "ghcr.io/..",
        "localhost:1/../x",
    ] {
        for rest in [
            "manifests/latest",
            "tags/list",
            "blobs/uploads/",
            "_oci/ext/discover",
        ] {
            let path = format!("/v2/{name}/{rest}");
            assert!(
                matches!(
                    parse(&path),
                    Err(ParseError::Repository(_) | ParseError::Registry(_))
                ),
                "{path}"
            );
        }
    }
    assert_eq!(parse("/v2/a/manifests/.."), Err(ParseError::Tag));
    assert_eq!(parse("/v2/a/manifests/%2e%2e"), Err(ParseError::Tag));
}
