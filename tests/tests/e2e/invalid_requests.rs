//! End-to-end tests of invalid and hostile requests: each request gets an error of the OCI
//! Distribution specification, and none reaches the upstream.

use std::{io::ErrorKind, net::TcpListener};

use anyhow::Result;
use pierhead_testkit::{
    http::Request,
    images::{hostile, random_bytes},
    registry::FakeRegistry,
};
use pierhead_tests::pierhead::Options;

use crate::requests::{ask, get, start_in_front};

#[test]
fn path_traversal_is_refused() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    for name in hostile::NAMES {
        for rest in [
            "manifests/latest",
            "tags/list",
            &format!("blobs/sha256:{}", "a".repeat(64)),
        ] {
            let response = get(pierhead.address(), &format!("/v2/{name}/{rest}"))?;
            assert!(
                (400..500).contains(&response.status),
                "{name}: {}",
                response.status
            );
        }
    }
    for reference in [
        "..",
        "%2e%2e",
        "sha256:..",
        "sha256:../../version",
        ".hidden",
        "a b",
    ] {
        let response = get(
            pierhead.address(),
            &format!(
                "/v2/library/app/manifests/{}",
                reference.replace(' ', "%20")
            ),
        )?;
        assert!(
            (400..500).contains(&response.status),
            "{reference}: {}",
            response.status
        );
    }
    assert_eq!(
        hub.requests().len(),
        0,
        "an invalid name reached the upstream"
    );
    Ok(())
}

#[test]
fn ranges_get_the_status_of_rfc_9110() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(5, 100_000);
    let digest = hub.put_blob("library/app", bytes.clone());
    let request = || Request::get(format!("/v2/library/app/blobs/{digest}"));
    // Uncached and cached blobs must get the same responses.
    for _ in 0..2 {
        for (range, status, part) in [
            ("bytes=0-", 206, &bytes[..]),
            ("bytes=99999-", 206, &bytes[99_999..]),
            ("bytes=10-19", 206, &bytes[10..20]),
            ("bytes=10-99999999999999999999999", 206, &bytes[10..]),
            ("bytes=-1", 206, &bytes[99_999..]),
            // RFC 9110: for an invalid or unsupported range, the response has the whole blob.
            ("bytes=abc", 200, &bytes[..]),
            ("lines=1-2", 200, &bytes[..]),
            ("", 200, &bytes[..]),
        ] {
            let response = ask(pierhead.address(), &request().header("range", range))?;
            assert_eq!(
                (response.status, response.body.len()),
                (status, part.len()),
                "{range:?}"
            );
            assert_eq!(response.body, part, "{range:?}");
        }
        for range in [
            "bytes=100000-",
            "bytes=20-10",
            "bytes=99999999999999999999999-",
            "bytes=-0",
        ] {
            let response = ask(pierhead.address(), &request().header("range", range))?;
            assert_eq!(response.status, 416, "{range:?}");
            assert_eq!(response.header("content-range"), Some("bytes */100000"));
        }
    }
    assert_eq!(hub.gets_of(&digest), 1);
    Ok(())
}

/// Clients choose the parameter `?ns=` and the first path segment. Neither the parameter nor the
/// path segment may make pierhead connect to internal hosts.
#[test]
fn no_connection_to_internal_hosts() -> Result<()> {
    let internal = TcpListener::bind("127.0.0.1:0")?;
    let port = internal.local_addr()?.port();
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    for path in [
        format!("/v2/library/app/manifests/1?ns=127.0.0.1:{port}"),
        format!("/v2/127.0.0.1:{port}/library/app/manifests/1"),
        format!("/v2/library/app/manifests/1?ns=localhost:{port}"),
        format!("/v2/library/app/manifests/1?ns=[::1]:{port}"),
        format!("/v2/library/app/manifests/1?ns=[::ffff:127.0.0.1]:{port}"),
        format!("/v2/library/app/manifests/1?ns=http://127.0.0.1:{port}"),
        "/v2/library/app/manifests/1?ns=169.254.169.254".to_owned(),
        "/v2/library/app/manifests/1?ns=docker.io%2f..%2f".to_owned(),
    ] {
        let response = get(pierhead.address(), &path)?;
        assert!(
            matches!(response.status, 400 | 403 | 404),
            "{path}: {}",
            response.status
        );
    }
    internal.set_nonblocking(true)?;
    let called = internal.accept();
    assert!(
        called.is_err_and(|it| it.kind() == ErrorKind::WouldBlock),
        "pierhead connected to an internal host"
    );
    assert_eq!(hub.requests().len(), 0);
    Ok(())
}

#[test]
fn pushes_are_refused() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    for (method, path) in [
        ("POST", "/v2/library/app/blobs/uploads/"),
        ("PUT", "/v2/library/app/manifests/latest"),
        ("DELETE", "/v2/library/app/manifests/latest"),
        ("PATCH", "/v2/library/app/blobs/uploads/1"),
    ] {
        let response = ask(pierhead.address(), &Request::new(method, path))?;
        assert_eq!(response.status, 405, "{method} {path}");
        assert_eq!(response.json()["errors"][0]["code"], "UNSUPPORTED");
    }
    assert_eq!(hub.requests().len(), 0);
    Ok(())
}
