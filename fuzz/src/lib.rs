//! Functions that the fuzz targets of the crate `pierhead-oci` call. Each function checks a
//! property of a parser for any input. The functions do not depend on libFuzzer. The tests of
//! `pierhead-oci` also call these functions, with the stable compiler, for random inputs and for
//! the files in `corpus/`.

use bytes::Bytes;
use pierhead_oci::{Endpoint, Manifest, Reference};

/// Checks an image reference: the formatted reference is complete, and parses to the same reference.
pub fn reference(input: &[u8]) {
    let Some(reference) = text(input).and_then(|text| text.parse::<Reference>().ok()) else {
        return;
    };
    let complete = reference.to_string();
    assert_eq!(
        complete.parse::<Reference>().as_ref(),
        Ok(&reference),
        "{complete:?}"
    );
    assert_safe(reference.repository.as_str());
    assert!(reference.repository.as_str().len() <= 255 && reference.registry.as_str().len() <= 259);
    assert!(
        !reference
            .registry
            .as_str()
            .contains(['/', '@', '%', '\\', '?', '#'])
    );
    assert!(complete.starts_with(reference.registry.host()));
}

/// Checks a request path: the formatted path is unambiguous, and parses to the same endpoint.
pub fn endpoint(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let (path, query) = text
        .split_once('?')
        .map_or((text, None), |(path, query)| (path, Some(query)));
    // The namespace must parse without a panic for any path.
    let _ = Endpoint::namespace(query);
    let Ok(endpoint) = Endpoint::parse(path, query) else {
        return;
    };
    let formatted = endpoint.to_path();
    assert!(
        formatted.starts_with("/v2/") && formatted.bytes().all(|b| b.is_ascii_graphic()),
        "{formatted:?}"
    );
    let (path, query) = formatted
        .split_once('?')
        .map_or((&*formatted, None), |(path, query)| (path, Some(query)));
    assert_eq!(
        Endpoint::parse(path, query).as_ref(),
        Ok(&endpoint),
        "{formatted:?}"
    );
    let Some(name) = endpoint.name() else { return };
    assert_safe(name.repository().as_str());
    name.whole()
        .into_iter()
        .for_each(|whole| assert_safe(whole.as_str()));
    assert!(name.registry().is_some() || name.whole() == Some(name.repository()));
}

/// Checks that a parsed manifest keeps its bytes and that its descriptors are within the limits.
/// The first line of the input is an optional content type.
pub fn manifest(input: &[u8]) {
    let (content_type, document) = match input.iter().position(|byte| *byte == b'\n') {
        Some(end) if input.first() != Some(&b'{') => {
            (std::str::from_utf8(&input[..end]).ok(), &input[end + 1..])
        }
        _ => (None, input),
    };
    let Ok(manifest) = Manifest::parse(Bytes::copy_from_slice(document), content_type) else {
        return;
    };
    assert_eq!(manifest.bytes, document);
    assert!(content_type.is_none_or(|sent| sent == manifest.media_type.as_str()));
    let sizes: Vec<u64> = manifest.children().map(|child| child.size).collect();
    assert!(sizes.len() <= Manifest::MAX_ENTRIES + 1);
    assert!(i64::try_from(sizes.iter().sum::<u64>()).is_ok());
    // Parsing with the stated media type has the same result.
    let again = Manifest::parse(manifest.bytes.clone(), Some(manifest.media_type.as_str()));
    assert!(
        again.is_ok_and(|again| again.children().eq(manifest.children())
            && again.subject() == manifest.subject())
    );
    for platform in ["linux/amd64", "linux/arm64", "linux/arm/v7"] {
        let chosen = platform
            .parse()
            .ok()
            .and_then(|platform| manifest.choose(&platform));
        assert!(chosen.is_none_or(|chosen| chosen.platform.is_some()));
    }
}

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// Asserts that a folder or URL with this name appended is still below the folder or URL.
fn assert_safe(name: &str) {
    let parts_stay = name
        .split('/')
        .all(|part| !part.is_empty() && part != "." && part != "..");
    assert!(
        parts_stay && !name.contains(['\\', '%', '?', '#', ':']),
        "{name:?}"
    );
    assert!(name.bytes().all(|b| b.is_ascii_graphic()), "{name:?}");
}
