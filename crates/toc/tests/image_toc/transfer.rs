//! Tests of the compressed form and the file of a table of contents (TOC): decoding an encoded TOC
//! returns the same TOC, and damaged bytes give an error.

use pierhead_toc::image_toc::{self, BlockCache, TocFile};
use pierhead_toc::varint::{self, Reader};
use pierhead_toc::{Error, ImageToc};
use proptest::prelude::*;

use super::model;

/// Generates a byte. The bytes of the longest and of padded encodings are frequent.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0), Just(1), Just(0x80), Just(0xff), any::<u8>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_toc_is_decoded_against_the_same_base_only(
        new in model::layers(),
        base in model::layers(),
        level in prop::sample::select(vec![1, 3, 13]),
    ) {
        let (Ok(new), Ok(base)) = (model::merge(&new), model::merge(&base)) else {
            return Ok(());
        };
        for base in [None, Some(&base)] {
            let frame = image_toc::compress(&new, base, level).unwrap();
            prop_assert!(image_toc::compress(&new, base, level).unwrap() == frame);
            let decoded = image_toc::decompress(&frame, base).unwrap();
            prop_assert!(decoded.bytes() == new.bytes());
        }
        let frame = image_toc::compress(&new, Some(&base), level).unwrap();
        // Decoding without the base must fail, unless the frame uses no byte of the base.
        if let Ok(decoded) = image_toc::decompress(&frame, None) {
            prop_assert!(decoded.bytes() == new.bytes());
        }
    }

    /// Random bytes fail at the first check. So other bytes are those of a TOC, of which some are
    /// changed or missing.
    #[test]
    fn any_bytes_are_decoded_without_a_panic(
        random in proptest::collection::vec(any::<u8>(), 0..300),
        layers in model::layers(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        len in any::<prop::sample::Index>(),
    ) {
        prop_assert!(image_toc::decompress(&random, None).is_err());
        prop_assert!(ImageToc::parse(random).is_err());
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let mut bytes = toc.bytes().to_vec();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        // About half of the cases keep all bytes.
        bytes.truncate(len.index(2 * bytes.len()));
        if let Ok(parsed) = ImageToc::parse(bytes.clone()) {
            prop_assert!(parsed.bytes() == bytes);
        }
    }

    #[test]
    fn a_damaged_file_is_never_another_toc(
        layers in model::layers(),
        place in any::<prop::sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("toc");
        toc.save(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let place = place.index(bytes.len());
        bytes[place] ^= change;
        std::fs::write(&path, bytes).unwrap();
        let opened = ImageToc::open(&path);
        let is_malformed = matches!(opened, Err(Error::Malformed { .. }));
        prop_assert!(is_malformed, "{:?}", opened);
        // A single lookup reads only some blocks. The lookup in a damaged file must return the
        // correct result or an error.
        let Ok(file) = TocFile::open(&path, &BlockCache::new(1 << 20)) else {
            return Ok(());
        };
        for (number, (content, size)) in (0..).zip(toc.contents().iter()) {
            if let Ok(found) = file.find(&content) {
                prop_assert_eq!(found, Some((number, size)));
            }
        }
    }

    #[test]
    fn numbers_survive_encoding(unsigned in any::<u64>(), signed in any::<i64>(), narrow in any::<u32>()) {
        let mut bytes = Vec::new();
        varint::put(&mut bytes, unsigned);
        varint::put_signed(&mut bytes, signed);
        varint::put(&mut bytes, narrow.into());
        let mut reader = Reader::new("numbers", &bytes);
        prop_assert_eq!(reader.u64().unwrap(), unsigned);
        prop_assert_eq!(reader.i64().unwrap(), signed);
        prop_assert_eq!(reader.u32().unwrap(), narrow);
        reader.end().unwrap();
    }

    #[test]
    fn a_number_has_one_encoding(bytes in proptest::collection::vec(byte(), 0..12)) {
        let mut reader = Reader::new("number", &bytes);
        if let Ok(number) = reader.u64() {
            let mut encoded = Vec::new();
            varint::put(&mut encoded, number);
            prop_assert_eq!(&encoded[..], &bytes[..bytes.len() - reader.rest().len()]);
            prop_assert_eq!(Reader::new("number", &encoded).u32().is_ok(), number <= u32::MAX.into());
        }
    }
}
