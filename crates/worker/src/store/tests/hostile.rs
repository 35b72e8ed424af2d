//! Tests of a worker's store with hostile and malformed bundles: the store refuses each of these
//! bundles, and stores no wrong byte.

use super::*;

/// Applies a bundle that the store must refuse, and returns the error.
fn refused(bytes: &[u8]) -> Error {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    match feed(&store, bytes, 1 << 16) {
        Err(error) => error,
        Ok(apply) => {
            let error = apply.finish().expect_err("the bundle must be refused");
            drop(apply);
            assert!(store.images().unwrap().is_empty());
            error
        }
    }
}

fn small() -> TestImage {
    TestImage::of(&[("a", noise(1, 3000)), ("b", noise(2, 3000))])
}

fn with_payload(coding: Coding, payload: &[u8]) -> Encoded {
    let test_image = TestImage::of(&[("a", noise(1, 3000))]);
    let mut encoded = encode(&test_image, None, false);
    encoded.records = vec![record(coding, payload)];
    encoded.end = End {
        records: 1,
        payload: payload.len() as u64,
    }
    .encode();
    encoded
}

#[test]
fn a_change_of_any_byte_is_detected() {
    let good = encode(&small(), None, false).bytes();
    for place in 0..good.len() {
        let mut bytes = good.clone();
        bytes[place] ^= 0x81;
        let mut decoder = Decoder::new();
        let mut rest = &bytes[..];
        let read = loop {
            match decoder.feed(&mut rest) {
                // The decoder reports a payload that does not match its digest.
                Ok(Some(Event::Unsent { .. })) => break Ok(None),
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        assert!(read.is_err() || !decoder.is_ended(), "byte {place}");
    }
}

#[test]
fn a_truncated_bundle_never_counts_as_complete() {
    let good = encode(&small(), None, false).bytes();
    for len in (0..good.len()).step_by(61) {
        let mut decoder = Decoder::new();
        let mut rest = &good[..len];
        while decoder.feed(&mut rest).unwrap().is_some() {}
        assert!(!decoder.is_ended(), "{len} bytes");
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    let mut bytes = encode(&small(), None, false).bytes();
    bytes.push(0);
    let error = refused(&bytes);
    assert!(error.to_string().contains("after its end"), "{error}");
}

#[test]
fn a_frame_that_decompresses_to_more_bytes_is_refused() {
    let bomb = bounded::compress(&vec![0; 100 << 20], 3).unwrap();
    let error = refused(&with_payload(Coding::Zstd, &bomb).bytes());
    assert!(error.to_string().contains("another length"), "{error}");
}

#[test]
fn a_frame_without_its_length_is_refused() {
    use std::io::Write as _;
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&noise(1, 3000)).unwrap();
    let error = refused(&with_payload(Coding::Zstd, &encoder.finish().unwrap()).bytes());
    assert!(error.to_string().contains("another length"), "{error}");
}

#[test]
fn two_frames_in_one_payload_are_refused() {
    let mut twice = bounded::compress(&noise(1, 3000), 3).unwrap();
    twice.extend(bounded::compress(&noise(1, 3000), 3).unwrap());
    let error = refused(&with_payload(Coding::Zstd, &twice).bytes());
    assert!(error.to_string().contains("one whole frame"), "{error}");
}

#[test]
fn a_frame_with_a_huge_window_allocates_no_window() {
    // The header of the zstd frame states a window of 2 GiB. The decoded bytes are correct.
    let mut context = zstd::zstd_safe::CCtx::create();
    context
        .set_parameter(zstd::zstd_safe::CParameter::WindowLog(31))
        .unwrap();
    let plain = noise(1, 3000);
    let mut out = Vec::with_capacity(zstd::zstd_safe::compress_bound(plain.len()));
    context.compress2(&mut out, &plain).unwrap();
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    finish(&feed(&store, &with_payload(Coding::Zstd, &out).bytes(), 4096).unwrap());
}

#[test]
fn a_payload_of_another_content_is_refused() {
    let payload = noise(7, 3000);
    let error = refused(&with_payload(Coding::Stored, &payload).bytes());
    assert!(matches!(error, Error::Digest { .. }), "{error}");
    let error = refused(&with_payload(Coding::Stored, &payload[1..]).bytes());
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[test]
fn a_payload_that_does_not_match_its_digest_counts_as_not_sent() {
    let mut encoded = encode(&small(), None, false);
    let first = encoded.records[0].len() - 1;
    encoded.records[0][first] ^= 1;
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    let apply = feed(&store, &encoded.bytes(), 1 << 16).unwrap();
    let ApplyOutcome::Missing(missing) = apply.finish().unwrap() else {
        panic!("one record is corrupt")
    };
    for (content, _) in missing {
        let mut receive = apply.receive(&content).unwrap();
        receive.write(&small().bytes(&content)).unwrap();
        receive.commit().unwrap();
    }
    finish(&apply);
    assert_holds(&store, &small(), false);
}

/// Creates a bundle with the manifest and the config of an image, but with another file tree.
fn forged(test_image: &TestImage, change: impl Fn(&mut Entry)) -> (ImageToc, Encoded) {
    let skeleton = test_image.skeleton();
    let mut files = Vec::new();
    let mut entries = Vec::new();
    for (path, bytes) in &test_image.files {
        let mut entry = Entry {
            path: path.clone(),
            kind: Kind::File {
                content: FileDigest::of(bytes),
                size: bytes.len() as u64,
            },
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: Time::default(),
            xattrs: Vec::new(),
        };
        change(&mut entry);
        if let Kind::File { content, size } = &entry.kind {
            files.push(Ok((*content, *size)));
        }
        entries.push(Ok(entry));
    }
    let layer = LayerEntries {
        diff_id: test_image.diff_id().into(),
        skeleton: (FileDigest::of(&skeleton), skeleton.len() as u64),
        files,
        entries,
    };
    let toc = ImageToc::merge([layer]).unwrap();
    let good = encode_frames(test_image, None, false, &[]);
    let mut header = Header::decode(&good.prelude, &good.body).unwrap();
    header.toc = WireToc {
        base: None,
        digest: *FileDigest::of(toc.bytes()).as_bytes(),
        len: u32::try_from(toc.bytes().len()).unwrap(),
        coded: image_toc::compress(&toc, None, 3).unwrap(),
    };
    let (prelude, body) = header.encode(3).unwrap();
    let encoded = Encoded {
        prelude,
        body,
        ..good
    };
    (toc, encoded)
}

#[test]
fn a_toc_with_size_0_does_not_empty_a_stored_content() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    pull(&store, &small(), None, false);
    let victim = FileDigest::of(&small().files[&b"a"[..]]);
    let other = TestImage::of(&[("z", noise(9, 10))]);
    let (toc, encoded) = forged(&other, |entry| {
        entry.kind = Kind::File {
            content: victim,
            size: 0,
        };
    });
    let parsed = ImageToc::parse(toc.bytes().to_vec());
    let applied = feed(&store, &encoded.bytes(), 1 << 16).and_then(|apply| apply.finish());
    // The store would refuse the content even if the TOC were not checked.
    let obtained = store.obtain(&victim, 0).unwrap();
    assert_holds(&store, &small(), false);
    assert!(!obtained);
    assert!(matches!(applied, Err(Error::Malformed { .. })));
    let is_malformed = matches!(parsed, Err(pierhead_toc::Error::Malformed { .. }));
    assert!(is_malformed);
    let (swollen, _) = forged(&other, |entry| {
        entry.kind = Kind::File {
            content: FileDigest::of(b""),
            size: 7,
        };
    });
    assert!(ImageToc::parse(swollen.bytes().to_vec()).is_err());
}

#[test]
fn a_bundle_with_another_tree_does_not_replace_the_recorded_tree() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    pull(&store, &small(), None, false);
    let (_, encoded) = forged(&small(), |entry| entry.mode = 0o4755);
    let applied = feed(&store, &encoded.bytes(), 1 << 16).and_then(|apply| apply.finish());
    let image = store.image(&small().digest()).unwrap();
    assert_eq!(image.toc.bytes(), small().toc().bytes());
    assert!(matches!(applied, Err(Error::Malformed { .. })));
}

#[test]
fn more_records_than_frames_are_refused() {
    let mut encoded = with_payload(Coding::Stored, &noise(1, 3000));
    let again = encoded.records[0].clone();
    encoded.records.push(again);
    let error = refused(&encoded.bytes());
    assert!(error.to_string().contains("record too many"), "{error}");
}

#[test]
fn an_end_before_the_last_record_is_refused() {
    let mut encoded = encode(&small(), None, false);
    encoded.records.pop();
    assert!(matches!(refused(&encoded.bytes()), Error::Malformed { .. }));
}

#[test]
fn a_bundle_with_an_unknown_base_image_is_refused() {
    let (old, new) = versions();
    let error = refused(&encode(&new, Some(&old), false).bytes());
    assert!(matches!(error, Error::Missing(_)), "{error}");
}

#[test]
fn manifest_config_and_toc_that_do_not_match_are_refused() {
    let test_image = small();
    let good = encode(&test_image, None, false);
    let header = Header::decode(&good.prelude, &good.body).unwrap();
    let other = TestImage::of(&[("z", noise(9, 10))]);
    let wrong = [
        Header {
            config: other.config(),
            ..header.clone()
        },
        Header {
            config: other.config(),
            manifest: other.manifest(),
            ..header.clone()
        },
        Header {
            manifest: b"{}".to_vec(),
            ..header.clone()
        },
        Header {
            toc: WireToc {
                digest: [1; 32],
                ..header.toc.clone()
            },
            ..header.clone()
        },
        Header {
            toc: WireToc {
                len: header.toc.len - 1,
                ..header.toc.clone()
            },
            ..header.clone()
        },
    ];
    for header in wrong {
        let (prelude, body) = header.encode(3).unwrap();
        let encoded = Encoded {
            prelude,
            body,
            records: good.records.clone(),
            end: good.end,
        };
        refused(&encoded.bytes());
    }
}

#[test]
fn headers_with_excessive_lengths_are_refused() {
    let good = encode(&small(), None, false);
    let mut prelude = good.prelude;
    prelude.body = u32::MAX;
    let mut decoder = Decoder::new();
    assert!(decoder.feed(&mut &prelude.encode()[..]).is_err());
    let header = Header::decode(&good.prelude, &good.body).unwrap();
    let large = Header {
        toc: WireToc {
            len: u32::MAX,
            ..header.toc.clone()
        },
        ..header.clone()
    };
    assert!(large.encode(3).is_err());
    let bomb = Header {
        config: vec![b' '; 5 << 20],
        ..header
    };
    assert!(bomb.encode(3).is_err());
}

fn list(frames: &[Frame]) -> Result<Frames, pierhead_bundle::Error> {
    let toc = small().toc();
    let base_toc = small().toc();
    Frames::encode(frames, &TocSizes(&toc, vec![&base_toc]))
}

fn member(content: u32, offset: u64, len: u64) -> Slice {
    Slice {
        content,
        offset,
        len,
    }
}

fn frame(members: Vec<Slice>) -> Frame {
    Frame {
        members,
        bases: Vec::new(),
        coding: Coding::Zstd,
    }
}

#[test]
fn overlapping_and_incomplete_members_are_refused() {
    assert!(list(&[frame(vec![member(0, 0, 3000)])]).is_ok());
    for bad in [
        vec![],
        vec![member(0, 0, 0)],
        vec![member(0, 0, 3001)],
        vec![member(0, 0, 2999)],
        vec![member(0, 1, 2999)],
        vec![member(0, 0, 2000), member(0, 1999, 1001)],
        vec![member(0, 2000, 1000), member(0, 0, 2000)],
        vec![member(0, u64::MAX, 3000)],
        vec![member(3, 0, 1)],
    ] {
        assert!(list(&[frame(bad.clone())]).is_err(), "{bad:?}");
    }
}

#[test]
fn bases_that_do_not_match_toc_or_coding_are_refused() {
    let based = |coding, bases: Vec<(u16, Slice)>| Frame {
        members: vec![member(0, 0, 3000)],
        bases: bases
            .into_iter()
            .map(|(image, slice)| BaseSlice { image, slice })
            .collect(),
        coding,
    };
    assert!(list(&[based(Coding::Copy, vec![(0, member(1, 0, 3000))])]).is_ok());
    for bad in [
        based(Coding::Copy, vec![]),
        based(Coding::Copy, vec![(0, member(1, 0, 2999))]),
        based(Coding::Copy, vec![(1, member(1, 0, 3000))]),
        based(Coding::Patch, vec![(0, member(9, 0, 3000))]),
        based(Coding::Patch, vec![(0, member(1, 1, 3000))]),
        based(Coding::Patch, vec![(0, member(1, 0, 0))]),
        based(Coding::Zstd, vec![(0, member(1, 0, 3000))]),
        // The bases of this frame have more bytes than the maximum.
        based(Coding::Patch, vec![(0, member(1, 0, 3000)); 6000]),
    ] {
        assert!(list(std::slice::from_ref(&bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn a_changed_frame_list_is_refused_or_has_one_canonical_form() {
    let toc = small().toc();
    let sizes = TocSizes(&toc, vec![]);
    let good = list(&[
        frame(vec![member(0, 0, 1000), member(1, 0, 3000)]),
        frame(vec![member(0, 1000, 2000)]),
    ])
    .unwrap();
    for place in 0..good.bytes().len() {
        for flip in [1, 0x80] {
            let mut bytes = good.bytes().to_vec();
            bytes[place] ^= flip;
            let read = Frames::parse(bytes).and_then(|frames| {
                let all: Vec<Frame> = frames.cursor(&sizes)?.collect::<Result<_, _>>()?;
                Frames::encode(&all, &sizes).map(|again| assert_eq!(again, frames))
            });
            // The decoded frames are not compared: the assertion above shows that an accepted list
            // of frames has only one encoded form.
            let _ = read;
        }
        assert!(Frames::parse(good.bytes()[..place].to_vec()).is_err() || place == 0);
    }
}

#[test]
fn a_toc_must_match_length_and_digest_of_its_header() {
    let good = encode(&small(), None, false);
    let header = Header::decode(&good.prelude, &good.body).unwrap();
    assert!(super::super::decode_toc(&header, &[]).is_ok());
    let decoded = |len, digest| {
        let mut header = header.clone();
        (header.toc.len, header.toc.digest) = (len, digest);
        super::super::decode_toc(&header, &[])
    };
    let WireToc { len, digest, .. } = header.toc;
    assert!(decoded(len, digest).is_ok());
    assert!(decoded(len - 1, digest).is_err());
    assert!(decoded(u32::MAX, digest).is_err());
    assert!(decoded(len, [1; 32]).is_err());
}
