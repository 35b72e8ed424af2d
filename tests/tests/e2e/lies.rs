//! Upstreams that lie about length or digest, and documents made to do harm: nobody gets a wrong body
//! that ends well, and nothing wrong is kept.

use anyhow::Result;
use pierhead_testkit::{
    http::End,
    images::{Image, hostile, random_bytes},
    registry::{FakeRegistry, Fault},
};
use pierhead_tests::pierhead::Options;

use crate::ask::{behind, get, get_soon, kept, pull};

const SIZE: usize = 3 << 20;

/// With `fault` on the blob, no client gets a whole body that is wrong; without it, all is well.
fn never_believed(fault: Fault) -> Result<()> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(1, SIZE);
    let digest = hub.put_blob("library/app", bytes.clone());
    let path = format!("/v2/library/app/blobs/{digest}");
    let injected = hub.inject(fault.clone().on_blob(&digest));
    let answer = get(pierhead.address(), &path);
    assert!(injected.hits() >= 1, "{fault:?} did not strike");
    // A cut before the head is as good as any other refusal.
    if let Ok(answer) = answer
        && answer.status == 200
        && answer.end == End::Clean
    {
        assert_eq!(answer.body, bytes, "{fault:?}: a wrong body that ends well");
    }
    let file = pierhead.blob(&digest.to_string());
    if file.exists() {
        assert!(
            std::fs::read(&file)?.starts_with(&bytes),
            "{fault:?}: something wrong was kept"
        );
    }
    hub.clear_faults();
    let answer = get_soon(pierhead.address(), &path)?;
    assert_eq!(answer.end, End::Clean, "{fault:?} has an after-effect");
    assert_eq!(answer.body, bytes);
    assert!(std::fs::read(kept(&pierhead, &digest.to_string())?)?.starts_with(&bytes));
    Ok(())
}

#[test]
fn a_body_shorter_than_its_length() -> Result<()> {
    never_believed(Fault::LengthTooLong(1000))
}

#[test]
fn a_body_longer_than_its_length() -> Result<()> {
    never_believed(Fault::LengthTooShort(1000))
}

#[test]
fn a_truncated_blob() -> Result<()> {
    never_believed(Fault::Truncate(SIZE as u64 - 1))
}

#[test]
fn a_padded_blob() -> Result<()> {
    never_believed(Fault::Pad(1))
}

#[test]
fn a_bit_flipped_at_the_end() -> Result<()> {
    never_believed(Fault::Corrupt(SIZE as u64 - 1))
}

#[test]
fn a_bit_flipped_at_the_start() -> Result<()> {
    never_believed(Fault::Corrupt(0))
}

#[test]
fn another_blob_altogether() -> Result<()> {
    never_believed(Fault::Replace(random_bytes(2, SIZE)))
}

/// Cut in the middle, again and again: the client gets it whole, nothing is asked for twice.
#[test]
fn a_body_cut_in_the_middle_is_resumed() -> Result<()> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(3, SIZE);
    let digest = hub.put_blob("library/app", bytes.clone());
    hub.inject(Fault::CutBody(1 << 20).on_blob(&digest).times(2));
    let answer = get(
        pierhead.address(),
        &format!("/v2/library/app/blobs/{digest}"),
    )?;
    assert_eq!((answer.status, answer.end), (200, End::Clean));
    assert_eq!(answer.body, bytes);
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

/// A manifest whose bytes are not those of its digest is no answer.
#[test]
fn a_manifest_that_is_another() -> Result<()> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    let (asked, other) = (Image::random(1, &[1000]), Image::random(2, &[1000]));
    hub.push("library/app", "1", &asked);
    let other = other.root_document().bytes.clone();
    hub.inject(Fault::Replace(other).on_manifests());
    let path = format!("/v2/library/app/manifests/{}", asked.root);
    assert_ne!(get(pierhead.address(), &path)?.status, 200);
    hub.clear_faults();
    let answer = get_soon(pierhead.address(), &path)?;
    assert_eq!(answer.body, asked.root_document().bytes);
    Ok(())
}

/// Huge, deep, absurd: each is refused with an error of the spec or replayed to the byte, nothing that
/// it says is believed, and pierhead is there for the next.
#[test]
fn hostile_manifests() -> Result<()> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), Options::new())?;
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
            let answer = get(pierhead.address(), &path)?;
            assert_eq!(answer.end, End::Clean, "{tries}, by {reference}");
            if answer.status == 200 {
                assert_eq!(answer.body, bytes, "{tries}, by {reference}");
                assert_eq!(
                    answer.header("content-type"),
                    Some(media_type.as_str()),
                    "{tries}"
                );
            } else {
                assert!(
                    answer.status >= 400,
                    "{tries}, by {reference}: {}",
                    answer.status
                );
                assert!(answer.json()["errors"][0]["code"].is_string(), "{tries}");
            }
        }
        // Here it must be understood: what cannot be is told, and fetches nothing.
        let warmed = pierhead.cache(&["warm", &format!("docker.io/library/evil:{tag}")]);
        assert!(!malformed || warmed.is_err(), "{tries}: warmed");
    }
    let (first, (claimed, second)) = hostile::cycle();
    hub.put_manifest("library/evil", &first.media_type, first.bytes);
    hub.put_manifest_as("library/evil", claimed, &second.media_type, second.bytes);
    let answer = get(
        pierhead.address(),
        &format!("/v2/library/evil/manifests/{claimed}"),
    )?;
    assert_ne!(
        answer.status, 200,
        "a document under a digest that is not its own"
    );
    let cycle = format!("docker.io/library/evil@{}", first.digest);
    assert!(
        pierhead.cache(&["warm", &cycle]).is_err(),
        "a cycle was warmed"
    );

    // A tower of indexes is an end to nothing, however high.
    let tower = hostile::tower(100);
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

/// A login page or an error page with status 200 is no manifest, and is not remembered as one.
#[test]
fn a_web_page_in_place_of_a_manifest() -> Result<()> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), Options::new())?;
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
    let answer = get_soon(pierhead.address(), "/v2/library/app/manifests/1")?;
    assert_eq!(answer.body, image.root_document().bytes);
    Ok(())
}
