//! End-to-end tests of upstreams with wrong lengths, wrong bytes and hostile manifests: no client
//! gets a complete response with wrong bytes, and no wrong bytes are cached.

use anyhow::Result;
use pierhead_testkit::{
    http::End,
    images::{Image, hostile, random_bytes},
    registry::{FakeRegistry, Fault},
};
use pierhead_tests::pierhead::Options;

use crate::requests::{get, get_until_ok, pull, start_in_front, wait_for_commit};

const SIZE: usize = 3 << 20;

/// Asserts that no client gets a complete wrong body while the blob has `fault`, and that the pull
/// succeeds without the fault.
fn assert_wrong_bytes_are_refused(fault: Fault) -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(1, SIZE);
    let digest = hub.put_blob("library/app", bytes.clone());
    let path = format!("/v2/library/app/blobs/{digest}");
    let injected = hub.inject(fault.clone().on_blob(&digest));
    let response = get(pierhead.address(), &path);
    assert!(injected.hits() >= 1, "{fault:?} had no effect");
    // A connection that closes before the response head counts as a refused request.
    if let Ok(response) = response
        && response.status == 200
        && response.end == End::Clean
    {
        assert_eq!(
            response.body, bytes,
            "{fault:?}: a complete response with wrong bytes"
        );
    }
    let file = pierhead.blob(&digest.to_string());
    if file.exists() {
        assert!(
            std::fs::read(&file)?.starts_with(&bytes),
            "{fault:?}: wrong bytes were cached"
        );
    }
    hub.clear_faults();
    let response = get_until_ok(pierhead.address(), &path)?;
    assert_eq!(
        response.end,
        End::Clean,
        "{fault:?} has an effect after its end"
    );
    assert_eq!(response.body, bytes);
    assert!(std::fs::read(wait_for_commit(&pierhead, &digest.to_string())?)?.starts_with(&bytes));
    Ok(())
}

#[test]
fn a_body_shorter_than_its_length_is_refused() -> Result<()> {
    assert_wrong_bytes_are_refused(Fault::LengthTooLong(1000))
}

#[test]
fn a_body_longer_than_its_length_is_refused() -> Result<()> {
    assert_wrong_bytes_are_refused(Fault::LengthTooShort(1000))
}

#[test]
fn a_truncated_blob_is_refused() -> Result<()> {
    assert_wrong_bytes_are_refused(Fault::Truncate(SIZE as u64 - 1))
}

#[test]
fn a_padded_blob_is_refused() -> Result<()> {
    assert_wrong_bytes_are_refused(Fault::Pad(1))
}

#[test]
fn a_bit_flip_at_the_end_is_refused() -> Result<()> {
    assert_wrong_bytes_are_refused(Fault::Corrupt(SIZE as u64 - 1))
}

#[test]
fn a_bit_flip_at_the_start_is_refused() -> Result<()> {
    assert_wrong_bytes_are_refused(Fault::Corrupt(0))
}

#[test]
fn the_bytes_of_another_blob_are_refused() -> Result<()> {
    assert_wrong_bytes_are_refused(Fault::Replace(random_bytes(2, SIZE)))
}

/// The client gets a complete blob despite many interruptions, and pierhead requests no byte twice.
#[test]
fn an_interrupted_body_is_resumed() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(3, SIZE);
    let digest = hub.put_blob("library/app", bytes.clone());
    hub.inject(Fault::CutBody(1 << 20).on_blob(&digest).times(2));
    let response = get(
        pierhead.address(),
        &format!("/v2/library/app/blobs/{digest}"),
    )?;
    assert_eq!((response.status, response.end), (200, End::Clean));
    assert_eq!(response.body, bytes);
    let sent: u64 = hub
        .requests()
        .iter()
        .filter(|it| it.path.contains("/blobs/"))
        .map(|it| it.sent)
        .sum();
    assert!(
        sent <= SIZE as u64 + (128 << 10),
        "{sent} bytes crossed the uplink"
    );
    Ok(())
}

/// pierhead refuses a manifest whose bytes do not match the requested digest.
#[test]
fn a_manifest_with_another_digest_is_refused() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let (requested, other) = (Image::random(1, &[1000]), Image::random(2, &[1000]));
    hub.push("library/app", "1", &requested);
    let other = other.root_document().bytes.clone();
    hub.inject(Fault::Replace(other).on_manifests());
    let path = format!("/v2/library/app/manifests/{}", requested.root);
    assert_ne!(get(pierhead.address(), &path)?.status, 200);
    hub.clear_faults();
    let response = get_until_ok(pierhead.address(), &path)?;
    assert_eq!(response.body, requested.root_document().bytes);
    Ok(())
}

/// pierhead refuses huge, deep and cyclic manifests with an error code of the specification, or
/// serves them unchanged. pierhead survives each of these manifests.
#[test]
fn hostile_manifests_do_no_harm() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    for (nth, hostile) in hostile::documents().into_iter().enumerate() {
        let hostile::Hostile {
            tries,
            document,
            malformed,
        } = hostile;
        let (media_type, bytes) = (&document.media_type, &document.bytes);
        hub.put_manifest_as("library/evil", document.digest, media_type, bytes.clone());
        let tag = format!("t{nth}");
        hub.tag("library/evil", &tag, document.digest);
        for reference in [document.digest.to_string(), tag.clone()] {
            let path = format!("/v2/library/evil/manifests/{reference}");
            let response = get(pierhead.address(), &path)?;
            assert_eq!(response.end, End::Clean, "{tries}, by {reference}");
            if response.status == 200 {
                assert_eq!(response.body, bytes, "{tries}, by {reference}");
                assert_eq!(
                    response.header("content-type"),
                    Some(media_type.as_str()),
                    "{tries}"
                );
            } else {
                assert!(
                    response.status >= 400,
                    "{tries}, by {reference}: {}",
                    response.status
                );
                assert!(response.json()["errors"][0]["code"].is_string(), "{tries}");
            }
        }
        // `cache warm` parses the manifest: an invalid manifest is an error, and pierhead fetches
        // nothing.
        let warmed = pierhead.cache(&["warm", &format!("docker.io/library/evil:{tag}")]);
        assert!(!malformed || warmed.is_err(), "{tries}: warmed");
    }
    let (first, (claimed, second)) = hostile::cycle();
    hub.put_manifest("library/evil", &first.media_type, first.bytes);
    hub.put_manifest_as("library/evil", claimed, &second.media_type, second.bytes);
    let response = get(
        pierhead.address(),
        &format!("/v2/library/evil/manifests/{claimed}"),
    )?;
    assert_ne!(response.status, 200, "a document with a wrong digest");
    let cycle = format!("docker.io/library/evil@{}", first.digest);
    assert!(
        pierhead.cache(&["warm", &cycle]).is_err(),
        "a cyclic index was warmed"
    );

    // A deep chain of indexes does not crash pierhead.
    let tower = hostile::nested_indexes(100);
    for document in &tower {
        hub.put_manifest(
            "library/tower",
            &document.media_type,
            document.bytes.clone(),
        );
    }
    let top = tower
        .last()
        .map(|it| it.digest.to_string())
        .unwrap_or_default();
    assert!(
        pierhead
            .cache(&["warm", &format!("docker.io/library/tower@{top}")])
            .is_err()
    );
    assert_eq!(
        get(
            pierhead.address(),
            &format!("/v2/library/tower/manifests/{top}")
        )?
        .status,
        200
    );

    let fine = Image::random(4, &[1000]);
    hub.push("library/fine", "1", &fine);
    pull(&pierhead, "library/fine", &fine)?;
    let (_, peak) = pierhead.memory()?;
    assert!(peak < 128 << 20, "{peak} bytes at the peak");
    Ok(())
}

/// pierhead does not take an HTML page with status 200 for a manifest, and does not cache the page
/// as a manifest.
#[test]
fn an_html_page_is_not_a_manifest() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let image = Image::random(5, &[1000]);
    hub.push("library/app", "1", &image);
    hub.inject(Fault::Replace("<html>please log in</html>".into()).on_manifests());
    hub.inject(Fault::Header("content-type", "text/html".to_owned()).on_manifests());
    hub.inject(Fault::WithoutHeader("docker-content-digest").on_manifests());
    assert_ne!(
        get(pierhead.address(), "/v2/library/app/manifests/1")?.status,
        200
    );
    hub.clear_faults();
    let response = get_until_ok(pierhead.address(), "/v2/library/app/manifests/1")?;
    assert_eq!(response.body, image.root_document().bytes);
    Ok(())
}
