//! Properties of the parsers of bundles, frame lists and patches, which fuzz targets check.

use crate::RECORD_HEAD;
use crate::format::{Decoder, Event, Frames, Header, PRELUDE, Sizes, bounded};
use pierhead_toc::FileDigest;

/// Feeds the decoder a bundle with corrected digests, as a whole and byte by byte. The checked
/// property: both ways give the same events or the same error.
pub fn bundle(bytes: &[u8]) {
    let bytes = &*rightly_named(bytes);
    let events = |piece: usize| {
        let mut decoder = Decoder::new();
        let mut events = Vec::new();
        for mut piece in bytes.chunks(piece) {
            loop {
                match decoder.feed(&mut piece) {
                    Ok(Some(event)) => events.push(format!("{event:?}")),
                    Ok(None) => break,
                    Err(error) => {
                        events.push(error.to_string());
                        return (events, false);
                    }
                }
            }
        }
        (events, decoder.is_ended())
    };
    assert_eq!(events(bytes.len().max(1)), events(1));
    let mut decoder = Decoder::new();
    if let Ok(Some(Event::Header { header, .. })) = decoder.feed(&mut &*bytes) {
        let (prelude, body) = header.encode(3).expect("it was read");
        let again = Header::decode(&prelude, &body).expect("it was written");
        assert_eq!(again, *header);
    }
}

/// Parses a frame list over TOCs whose content number n has n % 7 * 1000 bytes. The checked
/// property: the list is refused, or encoding the parsed list gives the same bytes.
pub fn frames(bytes: &[u8]) {
    struct FuzzedSizes;
    impl Sizes for FuzzedSizes {
        fn wanted(&self, content: u32) -> Option<u64> {
            (content < 1000).then_some(u64::from(content % 7) * 1000)
        }
        fn base(&self, image: u16, content: u32) -> Option<u64> {
            self.wanted(content).filter(|_| image < 3)
        }
    }
    let Ok(frames) = Frames::parse(bytes.to_vec()) else {
        return;
    };
    let Ok(all) = frames
        .cursor(&FuzzedSizes)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
    else {
        return;
    };
    assert!(frames.codings().eq(all.iter().map(|frame| frame.coding)));
    let again = Frames::encode(&all, &FuzzedSizes).expect("it was read");
    assert_eq!(again.bytes(), bytes);
}

/// Decompresses a patch. The input is the length of the base (2 bytes), the length of the output (2
/// bytes), the base and the payload. The checked property: the patch is refused, or the output has
/// this length.
pub fn patch(bytes: &[u8]) {
    let Some(([a, b, c, d], rest)) = bytes.split_first_chunk() else {
        return;
    };
    let (base, len) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
    let Some((base, payload)) = rest.split_at_checked(base.into()) else {
        return;
    };
    if let Ok(out) = bounded::decompress(payload, len.into(), base) {
        assert_eq!(out.len(), usize::from(len));
    }
}

/// Replaces the digests of the body and of the payloads by the correct ones, since a fuzzer cannot
/// find correct digests by chance.
fn rightly_named(bytes: &[u8]) -> Vec<u8> {
    let mut named = bytes.to_vec();
    let at = |named: &[u8], place: usize| {
        let four = named.get(place..)?.first_chunk::<4>()?;
        usize::try_from(u32::from_le_bytes(*four)).ok()
    };
    let name = |named: &mut [u8], digest: usize, start: usize, len: usize| {
        let end = start.checked_add(len)?;
        let content = FileDigest::of(named.get(start..end)?);
        named
            .get_mut(digest..)?
            .first_chunk_mut::<32>()?
            .copy_from_slice(content.as_bytes());
        Some(end)
    };
    let mut place = at(&named, 12).and_then(|len| name(&mut named, 24, PRELUDE, len));
    while let Some(head) = place {
        let payload = head + RECORD_HEAD;
        // The end mark and the marks of unsent frames have no payload.
        let is_record = named.get(head).is_some_and(|coding| *coding < 3);
        let len = at(&named, head + 4).filter(|_| is_record);
        place = len.and_then(|len| name(&mut named, head + 8, payload, len));
    }
    named
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn bundle() {
        each("bundle", super::bundle);
    }

    #[test]
    fn frames() {
        each("frames", super::frames);
    }

    #[test]
    fn patch() {
        each("patch", super::patch);
    }
}
