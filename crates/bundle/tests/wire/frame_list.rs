//! Tests of the frame list in a bundle's header: decoding an encoded list returns the same frames.
//! Invalid frames and damaged bytes are errors.

use pierhead_bundle::format::{Frames, MAX_FRAMES, MAX_MEMBERS, Sizes};
use pierhead_bundle::{BaseSlice, Coding, Frame, MAX_BASE, MAX_FRAME, Slice};
use proptest::prelude::*;

use super::bundles::{self, CONTENTS, FixtureSizes, copy_frame, plain_frame, whole};

/// Encodes frames with the sizes of the fixture. Returns the text of the error, if there is one.
fn encode(frames: &[Frame]) -> Result<Frames, String> {
    Frames::encode(frames, &FixtureSizes).map_err(|error| error.to_string())
}

/// Decodes all frames of a list.
fn decode(list: &Frames) -> Result<Vec<Frame>, String> {
    let cursor = list
        .cursor(&FixtureSizes)
        .map_err(|error| error.to_string())?;
    cursor
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// Asserts that these frames are refused with a text that contains `reason`.
fn assert_refused(frames: &[Frame], reason: &str) {
    let error = encode(frames).expect_err(reason);
    assert!(error.contains(reason), "{error} instead of {reason}");
}

proptest! {
    #[test]
    fn valid_frames_survive_encoding(frames in bundles::frames()) {
        let list = encode(&frames).unwrap();
        prop_assert_eq!(list.len(), frames.len());
        prop_assert_eq!(list.is_empty(), frames.is_empty());
        prop_assert!(list.codings().eq(frames.iter().map(|frame| frame.coding)));
        prop_assert_eq!(decode(&list).unwrap(), frames.clone());
        let parsed = Frames::parse(list.bytes().to_vec()).unwrap();
        parsed.check(&FixtureSizes).unwrap();
        prop_assert_eq!(parsed, list);
    }

    #[test]
    fn a_shortened_list_is_an_error(frames in bundles::frames(), cut in any::<prop::sample::Index>()) {
        let list = encode(&frames).unwrap();
        let bytes = list.bytes();
        let shortened = bytes[..cut.index(bytes.len())].to_vec();
        prop_assert!(Frames::parse(shortened).is_err());
    }

    #[test]
    fn a_changed_byte_is_an_error_or_another_valid_list(
        frames in bundles::frames(),
        place in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut bytes = encode(&frames).unwrap().bytes().to_vec();
        let place = place.index(bytes.len());
        bytes[place] = value;
        let decoded = Frames::parse(bytes.clone()).map(|list| decode(&list));
        if let Ok(Ok(decoded)) = decoded {
            let encoded = encode(&decoded).unwrap();
            prop_assert_eq!(encoded.bytes(), &bytes[..], "two spellings of one list");
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(list) = Frames::parse(bytes) {
            let _ = decode(&list);
        }
    }
}

#[test]
fn a_content_may_be_split_over_frames_in_order() {
    let size = whole(9).len;
    let slice = |offset, len| Slice {
        content: 9,
        offset,
        len,
    };
    let frame = |member| Frame {
        members: vec![member],
        ..plain_frame(Coding::Stored, &[])
    };
    let split = [
        frame(slice(0, 10)),
        plain_frame(Coding::Zstd, &[1, 2]),
        frame(slice(10, size - 10)),
    ];
    assert_eq!(decode(&encode(&split).unwrap()).unwrap(), split);

    assert_refused(
        &[frame(slice(10, size - 10)), frame(slice(0, 10))],
        "not in order",
    );
    assert_refused(
        &[frame(slice(0, 10)), frame(slice(11, size - 11))],
        "not in order",
    );
    assert_refused(
        &[frame(slice(0, 10)), frame(slice(5, size - 5))],
        "not in order",
    );
    assert_refused(&[frame(slice(0, 10))], "not covered");
    assert_refused(&[frame(slice(0, size + 1))], "over its content's end");
    assert_refused(&[frame(slice(0, 0))], "empty");
    assert_refused(&[frame(slice(0, u64::MAX))], "too many bytes");
}

#[test]
fn members_outside_the_image_are_refused() {
    let unknown = Slice {
        content: CONTENTS,
        offset: 0,
        len: 1,
    };
    let frame = Frame {
        members: vec![unknown],
        ..plain_frame(Coding::Stored, &[])
    };
    assert!(encode(&[frame]).is_err());
}

#[test]
fn bases_outside_the_base_images_are_refused() {
    let patch = |base: BaseSlice| Frame {
        members: vec![whole(3)],
        bases: vec![base],
        coding: Coding::Patch,
    };
    let base = |image, content, offset, len| BaseSlice {
        image,
        slice: Slice {
            content,
            offset,
            len,
        },
    };
    let size = whole(4).len;
    assert!(encode(&[patch(base(0, 4, 0, size))]).is_ok());
    assert!(encode(&[patch(base(2, 4, 5, size - 5))]).is_ok());
    for invalid in [
        base(bundles::BASES, 4, 0, size),
        base(0, CONTENTS, 0, 1),
        base(0, 4, 0, 0),
        base(0, 4, 1, size),
        base(0, 4, size, 1),
        base(0, 4, u64::MAX, 2),
    ] {
        assert!(encode(&[patch(invalid)]).is_err(), "{invalid:?}");
    }
}

#[test]
fn coding_and_bases_must_agree() {
    let mut stored = plain_frame(Coding::Stored, &[1]);
    stored.bases = copy_frame(0, &[1]).bases;
    assert!(encode(&[stored]).is_err());
    for coding in [Coding::Patch, Coding::Copy] {
        assert!(encode(&[plain_frame(coding, &[1])]).is_err(), "{coding:?}");
    }
    let mut copy = copy_frame(0, &[1]);
    copy.bases = copy_frame(0, &[2]).bases;
    assert_ne!(whole(1).len, whole(2).len);
    assert!(encode(&[copy]).is_err(), "a copy of another length");
    assert!(encode(&[plain_frame(Coding::Stored, &[])]).is_err());
}

/// The sizes of images in which each content has the same size.
struct EqualSizes(u64);

impl Sizes for EqualSizes {
    fn wanted(&self, _: u32) -> Option<u64> {
        Some(self.0)
    }

    fn base(&self, _: u16, _: u32) -> Option<u64> {
        Some(self.0)
    }
}

/// Returns a frame of `members` whole contents of `len` bytes, with `bases` bases.
fn equal_frame(coding: Coding, len: u64, members: usize, bases: usize) -> Frame {
    let slice = |content: usize| Slice {
        content: content as u32,
        offset: 0,
        len,
    };
    Frame {
        members: (0..members).map(slice).collect(),
        bases: (0..bases)
            .map(|content| BaseSlice {
                image: 0,
                slice: slice(content),
            })
            .collect(),
        coding,
    }
}

#[test]
fn the_bounds_of_one_frame_are_exact() {
    let encodes = |len, members, bases| {
        let coding = if bases == 0 {
            Coding::Stored
        } else {
            Coding::Patch
        };
        let frame = equal_frame(coding, len, members, bases);
        Frames::encode(&[frame], &EqualSizes(len)).is_ok()
    };
    let quarter = MAX_FRAME / 4;
    assert!(encodes(quarter, 4, 0));
    assert!(!encodes(quarter, 5, 0));
    let base_count = (MAX_BASE / quarter) as usize;
    assert!(encodes(quarter, 1, base_count));
    assert!(!encodes(quarter, 1, base_count + 1));
    assert!(encodes(1, MAX_MEMBERS, MAX_MEMBERS));
    assert!(!encodes(1, MAX_MEMBERS + 1, 0));
    assert!(!encodes(1, 1, MAX_MEMBERS + 1));
    assert!(!encodes(u64::MAX, 2, 0), "the sum overflows");
}

#[test]
fn the_number_of_frames_is_bounded() {
    let frame = equal_frame(Coding::Stored, 1, 1, 0);
    let encodes = |count| Frames::encode(vec![&frame; count], &EqualSizes(1));
    assert_eq!(encodes(MAX_FRAMES).unwrap().len(), MAX_FRAMES);
    let error = encodes(MAX_FRAMES + 1).unwrap_err().to_string();
    assert!(error.contains("too many frames"), "{error}");
}

#[test]
fn the_number_of_contents_that_are_incomplete_is_bounded() {
    // Each content has two bytes. First comes one byte of each content, and then the other byte of
    // each content, so that all contents are incomplete at once.
    let half = |offset| {
        move |content: u32| Slice {
            content,
            offset,
            len: 1,
        }
    };
    let frames = |contents: u32| {
        let all: Vec<_> = (0..contents)
            .map(half(0))
            .chain((0..contents).map(half(1)))
            .collect();
        let frame = |members: &[Slice]| Frame {
            members: members.to_vec(),
            ..plain_frame(Coding::Stored, &[])
        };
        all.chunks(MAX_MEMBERS).map(frame).collect::<Vec<_>>()
    };
    let most = 1 << 16;
    assert!(Frames::encode(&frames(most), &EqualSizes(2)).is_ok());
    let error = Frames::encode(&frames(most + 1), &EqualSizes(2)).unwrap_err();
    assert!(error.to_string().contains("too many contents"), "{error}");
}

#[test]
fn a_list_over_other_images_is_an_error() {
    let list = encode(&[copy_frame(2, &[5, 6]), plain_frame(Coding::Zstd, &[7])]).unwrap();
    assert!(list.check(&FixtureSizes).is_ok());
    assert!(
        list.check(&EqualSizes(1)).is_ok(),
        "whole contents of any size"
    );
    struct NoImages;
    impl Sizes for NoImages {
        fn wanted(&self, _: u32) -> Option<u64> {
            None
        }
        fn base(&self, _: u16, _: u32) -> Option<u64> {
            None
        }
    }
    assert!(list.check(&NoImages).is_err());
}
