//! Tests of a bundle's header and prelude: decoding an encoded header returns the same header, and
//! each limit is exact.

use pierhead_bundle::Error;
use pierhead_bundle::api::MAX_BASE_IMAGES;
use pierhead_bundle::format::{
    BaseImage, Header, MAX_BODY, MAX_DOCUMENTS, MAX_TOC, PRELUDE, Prelude, UsableContents,
};
use pierhead_oci::{Algorithm, Digest};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};

use super::bundles;

/// Generates preludes that the format allows.
fn prelude() -> impl Strategy<Value = Prelude> {
    (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        1..=MAX_BODY as u32,
        any::<(u32, u32)>(),
        any::<[u8; 32]>(),
    )
        .prop_map(|(continued, piece, layers, body, (a, b), digest)| Prelude {
            continued,
            piece: piece && continued,
            layers,
            body,
            first: a.min(b),
            until: a.max(b),
            digest,
        })
}

proptest! {
    #[test]
    fn a_valid_prelude_survives_encoding(prelude in prelude()) {
        prop_assert_eq!(Prelude::decode(&prelude.encode()).unwrap(), prelude);
    }

    #[test]
    fn any_bytes_are_one_prelude_or_an_error(bytes in any::<[u8; PRELUDE]>(), prelude in prelude()) {
        // Random bytes would never have the magic number, so the test changes the other bytes of a
        // valid prelude.
        let mut mixed = prelude.encode();
        mixed[10..24].copy_from_slice(&bytes[10..24]);
        if let Ok(decoded) = Prelude::decode(&mixed) {
            prop_assert_eq!(decoded.encode(), mixed, "two spellings of one prelude");
        }
        prop_assert!(Prelude::decode(&bytes).is_err());
    }

    #[test]
    fn a_valid_header_survives_encoding(
        frames in bundles::frames(),
        layers in any::<bool>(),
        manifest in proptest::collection::vec(any::<u8>(), 0..3000),
        config in proptest::collection::vec(any::<u8>(), 0..3000),
        usable in proptest::collection::vec(0..3_u8, 0..20),
        records in any::<u64>(),
    ) {
        let mut header = bundles::header(&frames);
        header.base_images = usable.iter().enumerate().map(|(number, usable)| BaseImage {
            manifest: match number % 2 {
                0 => bundles::digest(number as u8),
                _ => Digest::from_bytes(Algorithm::Sha512, &[number as u8; 64]).unwrap(),
            },
            usable: [UsableContents::None, UsableContents::Visible, UsableContents::All]
                [usize::from(*usable)],
        }).collect();
        let known = header.base_images.iter().position(|base| base.usable != UsableContents::None);
        header.toc.base = known.map(|known| known as u16);
        (header.layers, header.manifest, header.config, header.records) =
            (layers, manifest, config, records);
        let (prelude, body) = header.encode(3).unwrap();
        prop_assert_eq!(prelude.body_len(), body.len());
        prop_assert_eq!(prelude.until as usize, frames.len());
        prop_assert_eq!(Header::decode(&prelude, &body).unwrap(), header.clone());
        prop_assert_eq!(BaseImage::all_of(&body).unwrap(), header.base_images.clone());
        prop_assert_eq!(header.encode(3).unwrap().1, body, "the same header, the same bytes");
    }

    #[test]
    fn a_changed_body_never_decodes_to_the_same_header(
        place in any::<prop::sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let header = bundles::header(&[]);
        let (mut prelude, mut body) = header.encode(3).unwrap();
        let place = place.index(body.len());
        body[place] ^= change;
        let error = Header::decode(&prelude, &body).unwrap_err();
        prop_assert!(matches!(error, Error::Digest { .. }), "{}", error);
        // The digest in the prelude is correct, since a hostile server can also send the correct
        // digest of malformed bytes.
        prelude.digest = Sha256::digest(&body).into();
        if let Ok(decoded) = Header::decode(&prelude, &body) {
            prop_assert_ne!(decoded, header);
        }
    }

    #[test]
    fn a_shortened_body_is_an_error(cut in any::<prop::sample::Index>()) {
        let (mut prelude, body) = bundles::header(&[]).encode(3).unwrap();
        let body = &body[..cut.index(body.len())];
        prelude.digest = Sha256::digest(body).into();
        prop_assert!(Header::decode(&prelude, body).is_err());
    }
}

#[test]
fn each_field_of_a_prelude_is_checked() {
    let valid = Prelude {
        continued: false,
        piece: false,
        layers: true,
        body: 10,
        first: 0,
        until: 5,
        digest: [9; 32],
    };
    assert!(Prelude::decode(&valid.encode()).is_ok());
    let refused = |change: fn(&mut [u8; PRELUDE])| {
        let mut bytes = valid.encode();
        change(&mut bytes);
        Prelude::decode(&bytes)
            .expect_err("it must be refused")
            .to_string()
    };
    assert!(refused(|bytes| bytes[0] = b'P').contains("no bundle"));
    assert!(refused(|bytes| bytes[8] = 2).contains("version 2"));
    assert!(refused(|bytes| bytes[9] = 1).contains("version 257"));
    // The flag with the value 8 is unknown. The flag with the value 4 (a piece) is valid only
    // together with the flag with the value 1 (a continuation).
    for flags in [8, 4, 6, 0x80] {
        let mut bytes = valid.encode();
        bytes[10] = flags;
        assert!(Prelude::decode(&bytes).is_err(), "flags {flags}");
    }
    refused(|bytes| bytes[12..16].fill(0));
    refused(|bytes| bytes[12..16].copy_from_slice(&(MAX_BODY as u32 + 1).to_le_bytes()));
    refused(|bytes| bytes[16] = 6);
}

#[test]
fn the_bounds_of_a_header_are_exact() {
    let base = |number: usize| BaseImage {
        manifest: bundles::digest(number as u8),
        usable: UsableContents::Visible,
    };
    let mut header = bundles::header(&[]);
    header.base_images = (0..MAX_BASE_IMAGES).map(base).collect();
    assert!(header.encode(1).is_ok());
    header.base_images.push(base(0));
    assert!(header.encode(1).is_err());

    let mut header = bundles::header(&[]);
    header.toc.len = MAX_TOC as u32;
    assert!(header.encode(1).is_ok());
    header.toc.len += 1;
    assert!(header.encode(1).is_err());

    let mut header = bundles::header(&[]);
    header.media_type = "a".repeat(255);
    assert!(header.encode(1).is_ok());
    header.media_type.push('a');
    assert!(header.encode(1).is_err());

    let mut header = bundles::header(&[]);
    header.config = vec![0; MAX_DOCUMENTS - header.manifest.len() - 255 - 16];
    assert!(header.encode(1).is_ok());
    header.config.push(0);
    assert!(header.encode(1).is_err());

    let mut header = bundles::header(&[]);
    header.toc.coded = vec![1; MAX_BODY];
    assert!(header.encode(1).is_err(), "the body is too long");
}

#[test]
fn the_toc_is_coded_against_a_usable_base_image_only() {
    let mut header = bundles::header(&[]);
    header.toc.base = None;
    assert!(header.encode(1).is_ok());
    header.toc.base = Some(3);
    assert!(header.encode(1).is_err(), "there are three base images");
    header.toc.base = Some(2);
    assert!(header.encode(1).is_ok());
    header.base_images[2].usable = UsableContents::None;
    assert!(header.encode(1).is_err(), "none of its contents are usable");
}

#[test]
fn a_range_of_frames_beyond_the_list_is_an_error() {
    let frames = [bundles::copy_frame(0, &[1])];
    let (mut prelude, body) = bundles::header(&frames).encode(3).unwrap();
    assert!(Header::decode(&prelude, &body).is_ok());
    prelude.until = 2;
    assert!(Header::decode(&prelude, &body).is_err());
}

#[test]
fn the_etag_is_the_quoted_digest_of_the_body() {
    let (prelude, body) = bundles::header(&[]).encode(3).unwrap();
    let hex: String = Sha256::digest(&body)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(prelude.etag(), format!("\"{hex}\""));
}
