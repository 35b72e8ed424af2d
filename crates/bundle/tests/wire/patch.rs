//! Tests of patches: frames decode to the bytes that were encoded, hostile frames stay within the
//! bounds of the decompressor, and anchors, sketches and windows find the similar part of an older
//! version.

use std::ops::Range;

use pierhead_bundle::format::bounded;
use pierhead_bundle::patch::{Alignment, Anchor, Coded, Effort, Encoder, Level, Sampler, Sketch};
use pierhead_bundle::{Coding, MAX_BASE, MAX_FRAME, RecordHead};
use proptest::prelude::*;

/// Returns random bytes, which are always the same for one seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

/// Decodes a frame that the encoder wrote.
fn decode(coded: &Coded, prefix: &[u8], len: usize) -> Vec<u8> {
    match coded.coding {
        Coding::Stored => coded.payload.clone(),
        Coding::Zstd => bounded::decompress(&coded.payload, len, &[]).unwrap(),
        Coding::Patch => bounded::decompress(&coded.payload, len, prefix).unwrap(),
        Coding::Copy => panic!("an encoder never copies"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_encoded_frame_decodes_to_its_bytes(
        seed in any::<u64>(),
        len in 1_usize..20_000,
        prefix_len in 0_usize..20_000,
        shared in 0_usize..20_000,
        level in 1_i8..=19,
    ) {
        let prefix = noise(seed, prefix_len);
        let mut data = prefix[..shared.min(prefix_len).min(len)].to_vec();
        data.extend(noise(!seed, len - data.len()));
        let coded = Encoder::new(Level::new(level)).encode(&prefix, &data).unwrap();
        prop_assert_eq!(decode(&coded, &prefix, data.len()), data.clone());
        prop_assert!(coded.payload.len() <= data.len(), "stored is the upper bound");
        RecordHead::of(coded.coding, &coded.payload).unwrap();
        let again = Encoder::new(Level::new(level)).encode(&prefix, &data).unwrap();
        prop_assert_eq!(again, coded, "the same bytes in give the same bytes out");
    }

    #[test]
    fn any_bytes_decompress_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        len in 0_usize..1000,
    ) {
        if let Ok(plain) = bounded::decompress(&bytes, len, &[]) {
            prop_assert_eq!(plain.len(), len);
        }
    }

    #[test]
    fn a_damaged_frame_never_gives_another_length(
        place in any::<prop::sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let plain = noise(3, 2000).repeat(3);
        let mut coded = bounded::compress(&plain, 3).unwrap();
        let place = place.index(coded.len());
        coded[place] ^= change;
        if let Ok(decoded) = bounded::decompress(&coded, plain.len(), &[]) {
            prop_assert_eq!(decoded.len(), plain.len());
        }
    }
}

#[test]
fn the_encoder_takes_the_smallest_coding() {
    let encoder = Encoder::new(Level::FAST);
    let random = noise(1, 8000);
    let coding = |prefix: &[u8], data: &[u8]| encoder.encode(prefix, data).unwrap().coding;
    assert_eq!(coding(&[], &random), Coding::Stored);
    assert_eq!(coding(&[], &[7; 8000]), Coding::Zstd);
    // The prefix is a copy of the data, since zstd ignores the part of a prefix that overlaps the
    // data in memory.
    assert_eq!(coding(&random, &random.clone()), Coding::Patch);
    assert_eq!(coding(&random, &noise(2, 8000)), Coding::Stored);
}

#[test]
fn a_patch_of_the_largest_frame_reaches_the_whole_prefix() {
    let prefix = noise(4, MAX_BASE as usize);
    let data = prefix[..MAX_FRAME as usize].to_vec();
    let coded = Encoder::new(Level::FAST).encode(&prefix, &data).unwrap();
    assert_eq!(coded.coding, Coding::Patch);
    assert!(
        coded.payload.len() < data.len() / 100,
        "{} bytes",
        coded.payload.len()
    );
    assert_eq!(decode(&coded, &prefix, data.len()), data);
}

#[test]
fn decompression_needs_exactly_one_frame_of_the_expected_length() {
    let plain = vec![5; 3000];
    let coded = bounded::compress(&plain, 3).unwrap();
    assert_eq!(bounded::decompress(&coded, 3000, &[]).unwrap(), plain);
    for len in [0, 2999, 3001, usize::MAX] {
        assert!(bounded::decompress(&coded, len, &[]).is_err(), "{len}");
    }
    let refused = |bytes: &[u8]| assert!(bounded::decompress(bytes, 3000, &[]).is_err());
    refused(&[&coded[..], &[0]].concat());
    refused(&[&coded[..], &coded].concat());
    refused(&coded[..coded.len() - 1]);
    refused(&[]);
    // Decoding must clear the bytes that an earlier frame left in the buffer.
    let mut buffer = vec![1; 10];
    bounded::decompress_into(&coded, 3000, &[], &mut buffer).unwrap();
    assert_eq!(buffer, plain);
}

#[test]
fn a_patch_needs_its_own_prefix() {
    let (prefix, other) = (noise(5, 5000), noise(6, 5000));
    let data = prefix.clone();
    let coded = Encoder::new(Level::FAST).encode(&prefix, &data).unwrap();
    assert_eq!(coded.coding, Coding::Patch);
    let decoded = bounded::decompress(&coded.payload, 5000, &other);
    assert!(decoded.map_or(true, |bytes| bytes != prefix));
}

#[test]
fn levels_are_clamped_to_those_of_zstd() {
    for (number, level) in [
        (i8::MIN, 1),
        (0, 1),
        (1, 1),
        (22, 22),
        (23, 22),
        (i8::MAX, 22),
    ] {
        assert_eq!(Level::new(number).number(), level, "{number}");
    }
}

#[test]
fn an_effort_falls_with_the_bytes_that_it_pays_for() {
    let mut last = (Level::new(22), Level::new(22));
    for log2 in 16..40 {
        let levels = Effort::Idle.levels(1 << log2, 1 << log2);
        assert!(
            levels.0 <= last.0 && levels.1 <= last.1,
            "at 2^{log2} bytes"
        );
        last = levels;
    }
    assert_eq!(last, (Level::FAST, Level::FAST));
    let gib = 1 << 30;
    assert!(Effort::Idle.affords(4 * gib, 0));
    assert!(!Effort::Idle.affords(6 * gib, 0));
    assert!(Effort::Waiting(10).affords(6, 4));
    assert!(!Effort::Waiting(10).affords(6, 5));
    assert!(!Effort::Waiting(u64::MAX - 1).affords(u64::MAX, u64::MAX));
    let level = Level::new(9);
    assert!(Effort::Level(level).affords(u64::MAX, u64::MAX));
    assert_eq!(Effort::Level(level).levels(u64::MAX, 0), (level, level));
}

/// Returns all anchors of a content that is fed in pieces of `piece` bytes.
fn anchors(content: &[u8], piece: usize) -> Vec<Anchor> {
    let mut sampler = Sampler::new(8);
    let mut found = Vec::new();
    for piece in content.chunks(piece) {
        sampler.feed(piece, |anchor| found.push(anchor));
    }
    found
}

#[test]
fn anchors_do_not_depend_on_the_pieces() {
    let content = noise(7, 50_000);
    let whole = anchors(&content, content.len());
    assert!((100..400).contains(&whole.len()), "{} anchors", whole.len());
    for piece in [1, 63, 64, 65, 4096] {
        assert_eq!(anchors(&content, piece), whole, "pieces of {piece}");
    }
}

#[test]
fn an_insertion_moves_the_anchors_behind_it() {
    let content = noise(8, 50_000);
    let at = 20_000;
    let inserted = [&content[..at], b"some new bytes", &content[at..]].concat();
    let (old, new) = (anchors(&content, 4096), anchors(&inserted, 4096));
    let is_before = |anchor: &&Anchor| anchor.offset <= at as u64;
    let is_behind = |anchor: &&Anchor| anchor.offset > at as u64 + 100;
    assert!(
        old.iter()
            .filter(is_before)
            .eq(new.iter().filter(is_before))
    );
    let moved = old.iter().filter(is_behind).map(|anchor| Anchor {
        offset: anchor.offset + 14,
        ..*anchor
    });
    let moved: Vec<_> = moved.collect();
    assert!(moved.len() > 50);
    assert!(moved.iter().all(|anchor| new.contains(anchor)));
}

#[test]
fn similar_contents_have_similar_sketches() {
    let sketch = |content: &[u8]| {
        let mut sketch = Sketch::default();
        for anchor in anchors(content, 4096) {
            sketch.add(anchor);
        }
        sketch.hashes().collect::<Vec<_>>()
    };
    let content = noise(9, 100_000);
    let mut changed = content.clone();
    changed[50_000..55_000].copy_from_slice(&noise(10, 5000));
    let common = |a: &[u64], b: &[u64]| a.iter().filter(|hash| b.contains(hash)).count();
    let (first, second) = (sketch(&content), sketch(&changed));
    assert!(first.is_sorted());
    assert!(common(&first, &second) > first.len() / 2);
    assert_eq!(common(&first, &sketch(&noise(11, 100_000))), 0);
}

#[test]
fn a_window_is_where_the_anchors_are_found_again() {
    let old = noise(12, 400_000);
    // The new version consists of the old bytes from offset 300 000 on.
    let new = &old[300_000..];
    let alignment = Alignment::new(anchors(&old, 4096), 400_000, 100_000);
    let window = alignment.window(&(0..50_000), &anchors(&new[..50_000], 4096), 60_000);
    assert_eq!(window.end - window.start, 60_000);
    let covered = |window: &Range<u64>| window.start <= 305_000 && window.end >= 345_000;
    assert!(covered(&window), "{window:?}");
}

#[test]
fn a_window_without_anchors_is_proportional_and_inside() {
    let alignment = Alignment::new(Vec::new(), 1000, 2000);
    assert_eq!(alignment.window(&(900..1100), &[], 100), 450..550);
    assert_eq!(alignment.window(&(0..10), &[], 100), 0..100);
    assert_eq!(alignment.window(&(1990..2000), &[], 100), 900..1000);
    assert_eq!(alignment.window(&(0..10), &[], 5000), 0..1000);
    let empty = Alignment::new(Vec::new(), 0, 0);
    assert_eq!(empty.window(&(0..0), &[], 100), 0..0);
}
