//! The properties that every input must have, whoever makes it: the fuzzer, a property test, or
//! the kept corpus. They know nothing of libFuzzer, so they run on a stable toolchain too.

use bytes::Bytes;
use pierhead_oci::{Endpoint, Manifest, Reference};

/// A reference that parses has a complete form, and the complete form means the same.
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

/// A path that parses is formatted to one that means the same, and which no reader can take for
/// another place.
pub fn endpoint(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let (path, query) = text
        .split_once('?')
        .map_or((text, None), |(path, query)| (path, Some(query)));
    // It must stand whatever the path is.
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

/// A manifest keeps its bytes, and what it points to is within its bounds. The first line is the
/// content type that it came with, if it is one.
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
    // Parsed under the type that it says it has, it is the same thing.
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

/// Joined to any folder or URL it stays below it.
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
