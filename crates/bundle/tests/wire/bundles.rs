//! Fixtures for the tests of the wire format: file sizes, frame lists and whole bundles, which
//! proptest generates.

use pierhead_bundle::format::{
    BaseImage, End, Frames, Header, Sizes, UsableContents, WireToc, bounded,
};
use pierhead_bundle::{BaseSlice, Coding, Frame, RecordHead, Slice};
use pierhead_oci::{Algorithm, Digest};
use proptest::prelude::*;

/// Number of contents of each image of the fixture.
pub(super) const CONTENTS: u32 = 200;

/// Number of base images in the fixture's headers.
pub(super) const BASES: u16 = 3;

/// Sizes of the contents of made-up images: content `n` has `1 + n * 37 % 1000` bytes.
pub(super) struct FixtureSizes;

impl Sizes for FixtureSizes {
    fn wanted(&self, content: u32) -> Option<u64> {
        (content < CONTENTS).then_some(1 + u64::from(content) * 37 % 1000)
    }

    fn base(&self, image: u16, content: u32) -> Option<u64> {
        self.wanted(content).filter(|_| image < BASES)
    }
}

/// Returns a range that covers all of a content.
pub(super) fn whole(content: u32) -> Slice {
    let len = FixtureSizes.wanted(content).expect("a known content");
    Slice {
        content,
        offset: 0,
        len,
    }
}

/// Returns a frame of whole contents that needs no base image.
pub(super) fn plain_frame(coding: Coding, contents: &[u32]) -> Frame {
    Frame {
        members: contents.iter().copied().map(whole).collect(),
        bases: Vec::new(),
        coding,
    }
}

/// Returns a frame whose bytes are the bytes of the same contents in base image `image`.
pub(super) fn copy_frame(image: u16, contents: &[u32]) -> Frame {
    let base = |content| BaseSlice {
        image,
        slice: whole(content),
    };
    Frame {
        members: contents.iter().copied().map(whole).collect(),
        bases: contents.iter().copied().map(base).collect(),
        coding: Coding::Copy,
    }
}

/// Generates frames that are valid on their own.
pub(super) fn frame() -> impl Strategy<Value = Frame> {
    let contents = || proptest::collection::vec(0..CONTENTS, 1..6);
    prop_oneof![
        contents().prop_map(|members| plain_frame(Coding::Stored, &members)),
        contents().prop_map(|members| plain_frame(Coding::Zstd, &members)),
        (0..BASES, contents()).prop_map(|(image, members)| copy_frame(image, &members)),
        (0..BASES, contents(), contents()).prop_map(|(image, members, bases)| Frame {
            coding: Coding::Patch,
            bases: copy_frame(image, &bases).bases,
            ..plain_frame(Coding::Patch, &members)
        }),
    ]
}

/// Generates short lists of valid frames.
pub(super) fn frames() -> impl Strategy<Value = Vec<Frame>> {
    proptest::collection::vec(frame(), 0..12)
}

/// Returns the digest of a made-up manifest.
pub(super) fn digest(byte: u8) -> Digest {
    Digest::from_bytes(Algorithm::Sha256, &[byte; 32]).expect("32 bytes")
}

/// Returns the header of a bundle of `frames` with three base images.
pub(super) fn header(frames: &[Frame]) -> Header {
    let base = |byte| BaseImage {
        manifest: digest(byte),
        usable: UsableContents::All,
    };
    Header {
        layers: false,
        media_type: "application/vnd.oci.image.manifest.v1+json".into(),
        manifest: br#"{"schemaVersion":2}"#.to_vec(),
        config: br#"{"os":"linux"}"#.to_vec(),
        base_images: (0..3).map(base).collect(),
        toc: WireToc {
            base: Some(1),
            digest: [7; 32],
            len: 1000,
            coded: vec![1, 2, 3],
        },
        frames: Frames::encode(frames, &FixtureSizes).expect("valid frames"),
        records: 4711,
    }
}

/// Returns one record of a frame, whose payload is `len` bytes that depend on `number`.
pub(super) fn record(coding: Coding, number: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..=number % 50).map(|at| (at + number) as u8).collect();
    let payload = match coding {
        Coding::Stored => payload,
        _ => bounded::compress(&payload, 1).expect("compressed"),
    };
    let head = RecordHead::of(coding, &payload).expect("a valid record");
    [&head.encode()[..], &payload].concat()
}

/// Returns the records of `frames`, each with the coding of its frame. Frames that only copy have
/// no record.
pub(super) fn records(frames: &[Frame]) -> Vec<Vec<u8>> {
    let coded = frames
        .iter()
        .filter(|frame| frame.coding != Coding::Copy)
        .enumerate();
    coded
        .map(|(number, frame)| record(frame.coding, number))
        .collect()
}

/// Returns the end mark that follows these records.
pub(super) fn end(records: &[Vec<u8>]) -> Vec<u8> {
    let payload: usize = records
        .iter()
        .map(|record| record.len() - pierhead_bundle::RECORD_HEAD)
        .sum();
    let end = End {
        records: records.len() as u32,
        payload: payload as u64,
    };
    end.encode().to_vec()
}

/// Returns the bytes of a whole bundle: prelude, body, records, end mark.
pub(super) fn bundle(frames: &[Frame]) -> Vec<u8> {
    let (prelude, body) = header(frames).encode(3).expect("a valid header");
    let records = records(frames);
    let mut bytes = [&prelude.encode()[..], &body].concat();
    bytes.extend(records.concat());
    bytes.extend(end(&records));
    bytes
}
