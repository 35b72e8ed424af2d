//! Bundles of somebody who means ill, or does not know better.

use super::*;

fn refused(bytes: &[u8]) -> Error {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    match feed(&store, bytes, 1 << 16) {
        Err(error) => error,
        Ok(apply) => {
            let error = apply.finish().expect_err("it must not be taken");
            drop(apply);
            assert!(store.images().unwrap().is_empty());
            error
        }
    }
}

fn small() -> Made {
    Made::of(&[("a", noise(1, 3000)), ("b", noise(2, 3000))])
}

fn with_payload(coding: Coding, payload: &[u8]) -> Encoded {
    let made = Made::of(&[("a", noise(1, 3000))]);
    let mut encoded = encode(&made, None, false);
    encoded.records = vec![record(coding, payload)];
    encoded.end = End {
        records: 1,
        payload: payload.len() as u64,
    }
    .encode();
    encoded
}

#[test]
fn any_byte_that_is_changed_is_noticed() {
    let good = encode(&small(), None, false).bytes();
    for place in 0..good.len() {
        let mut bytes = good.clone();
        bytes[place] ^= 0x81;
        let mut decoder = Decoder::new();
        let mut rest = &bytes[..];
        let read = loop {
            match decoder.feed(&mut rest) {
                // A payload that is not its digest.
                Ok(Some(Event::Unsent { .. })) => break Ok(None),
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        assert!(read.is_err() || !decoder.is_ended(), "byte {place}");
    }
}

#[test]
fn every_beginning_is_only_a_beginning() {
    let good = encode(&small(), None, false).bytes();
    for len in (0..good.len()).step_by(61) {
        let mut decoder = Decoder::new();
        let mut rest = &good[..len];
        while decoder.feed(&mut rest).unwrap().is_some() {}
        assert!(!decoder.is_ended(), "{len} bytes");
    }
}

#[test]
fn nothing_may_follow_the_end() {
    let mut bytes = encode(&small(), None, false).bytes();
    bytes.push(0);
    let error = refused(&bytes);
    assert!(error.to_string().contains("after its end"), "{error}");
}

#[test]
fn a_frame_that_inflates_to_more_is_refused() {
    let bomb = bounded::compress(&vec![0; 100 << 20], 3).unwrap();
    let error = refused(&with_payload(Coding::Zstd, &bomb).bytes());
    assert!(error.to_string().contains("another length"), "{error}");
}

#[test]
fn a_frame_that_hides_its_length_is_refused() {
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
fn a_window_beyond_all_bounds_costs_nothing() {
    // A frame header that asks for 2 GiB of window: the bytes are right, and no window is
    // allocated.
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
fn other_bytes_than_promised_are_refused() {
    let payload = noise(7, 3000);
    let error = refused(&with_payload(Coding::Stored, &payload).bytes());
    assert!(matches!(error, Error::Digest { .. }), "{error}");
    let error = refused(&with_payload(Coding::Stored, &payload[1..]).bytes());
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[test]
fn a_payload_that_is_not_its_digest_counts_as_not_sent() {
    let mut encoded = encode(&small(), None, false);
    let first = encoded.records[0].len() - 1;
    encoded.records[0][first] ^= 1;
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    let apply = feed(&store, &encoded.bytes(), 1 << 16).unwrap();
    let ApplyOutcome::Missing(need) = apply.finish().unwrap() else {
        panic!("one record rotted")
    };
    for (content, _) in need {
        let mut receive = apply.receive(&content).unwrap();
        receive.write(&small().bytes(&content)).unwrap();
        receive.commit().unwrap();
    }
    finish(&apply);
    assert_holds(&store, &small(), false);
}

/// The documents of an image, with another tree.
fn forged(made: &Made, change: impl Fn(&mut Entry)) -> (ImageToc, Encoded) {
    let skeleton = made.skeleton();
    let mut files = Vec::new();
    let mut entries = Vec::new();
    for (path, bytes) in &made.files {
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
        diff_id: made.diff_id().into(),
        skeleton: (FileDigest::of(&skeleton), skeleton.len() as u64),
        files,
        entries,
    };
    let toc = ImageToc::merge([layer]).unwrap();
    let good = encode_frames(made, None, false, &[]);
    let mut header = Header::decode(&good.prelude, &good.body).unwrap();
    header.table = WireToc {
        base: None,
        digest: *FileDigest::of(toc.bytes()).as_bytes(),
        len: u32::try_from(toc.bytes().len()).unwrap(),
        coded: image_toc::encode(&toc, None, 3).unwrap(),
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
fn no_table_makes_a_content_of_another_image_empty() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    pull(&store, &small(), None, false);
    let victim = FileDigest::of(&small().files[&b"a"[..]]);
    let other = Made::of(&[("z", noise(9, 10))]);
    let (toc, encoded) = forged(&other, |entry| {
        entry.kind = Kind::File {
            content: victim,
            size: 0,
        };
    });
    let parsed = ImageToc::parse(toc.bytes().to_vec());
    let applied = feed(&store, &encoded.bytes(), 1 << 16).and_then(|apply| apply.finish());
    // Whatever table asks for it.
    let obtained = store.obtain(&victim, 0).unwrap();
    assert_holds(&store, &small(), false);
    assert!(!obtained);
    assert!(matches!(applied, Err(Error::Malformed { .. })));
    assert!(matches!(parsed, Err(Error::Malformed { .. })));
    let (swollen, _) = forged(&other, |entry| {
        entry.kind = Kind::File {
            content: FileDigest::of(b""),
            size: 7,
        };
    });
    assert!(ImageToc::parse(swollen.bytes().to_vec()).is_err());
}

#[test]
fn another_tree_does_not_replace_the_one_that_is_recorded() {
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
fn records_beyond_the_frames_are_refused() {
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
fn an_image_that_is_not_here_cannot_be_counted_on() {
    let (old, new) = versions();
    let error = refused(&encode(&new, Some(&old), false).bytes());
    assert!(matches!(error, Error::Missing(_)), "{error}");
}

#[test]
fn documents_that_do_not_go_together_are_refused() {
    let made = small();
    let good = encode(&made, None, false);
    let header = Header::decode(&good.prelude, &good.body).unwrap();
    let other = Made::of(&[("z", noise(9, 10))]);
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
            table: WireToc {
                digest: [1; 32],
                ..header.table.clone()
            },
            ..header.clone()
        },
        Header {
            table: WireToc {
                len: header.table.len - 1,
                ..header.table.clone()
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
fn a_header_of_too_much_is_refused_unread() {
    let good = encode(&small(), None, false);
    let mut prelude = good.prelude;
    prelude.body = u32::MAX;
    let mut decoder = Decoder::new();
    assert!(decoder.feed(&mut &prelude.encode()[..]).is_err());
    let header = Header::decode(&good.prelude, &good.body).unwrap();
    let large = Header {
        table: WireToc {
            len: u32::MAX,
            ..header.table.clone()
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

fn list(frames: &[Frame]) -> Result<Frames, Error> {
    let toc = small().toc();
    let had = small().toc();
    Frames::encode(frames, &Both(&toc, vec![&had]))
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
fn members_neither_overlap_nor_are_missing() {
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
fn bases_are_in_the_tables_and_go_with_the_coding() {
    let based = |coding, bases: Vec<(u16, Slice)>| Frame {
        members: vec![member(0, 0, 3000)],
        bases: bases
            .into_iter()
            .map(|(have, slice)| BaseSlice { image: have, slice })
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
        // More than may be held: again and again the same.
        based(Coding::Patch, vec![(0, member(1, 0, 3000)); 6000]),
    ] {
        assert!(list(std::slice::from_ref(&bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn a_list_that_is_not_of_the_format_is_refused() {
    let toc = small().toc();
    let sizes = Both(&toc, vec![]);
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
            // What is taken has one form only.
            let _ = read;
        }
        assert!(Frames::parse(good.bytes()[..place].to_vec()).is_err() || place == 0);
    }
}

#[test]
fn a_table_is_what_its_header_says_for_those_who_only_look() {
    let good = encode(&small(), None, false);
    let header = Header::decode(&good.prelude, &good.body).unwrap();
    assert!(super::super::decode_toc(&header, &[]).is_ok());
    let said = |len, digest| {
        let mut header = header.clone();
        (header.table.len, header.table.digest) = (len, digest);
        super::super::decode_toc(&header, &[])
    };
    let WireToc { len, digest, .. } = header.table;
    assert!(said(len, digest).is_ok());
    assert!(said(len - 1, digest).is_err());
    assert!(said(u32::MAX, digest).is_err());
    assert!(said(len, [1; 32]).is_err());
}
