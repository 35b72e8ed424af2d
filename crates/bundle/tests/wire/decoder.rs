//! Tests of the decoder of bundles: any split of the bytes gives the same events. Bytes that are
//! not exactly one bundle are an error, or the bundle stays incomplete.

use pierhead_bundle::Error;
use pierhead_bundle::format::{Decoder, End, Event, Header, Prelude, unsent};
use pierhead_bundle::{Coding, Frame, RECORD_HEAD};
use proptest::prelude::*;

use super::bundles::{self, copy_frame, plain_frame};

/// Feeds `bytes` to the decoder in pieces of `piece` bytes. Returns all events, and whether the
/// bundle ended.
fn feed(mut decoder: Decoder, bytes: &[u8], piece: usize) -> Result<(Vec<Event>, bool), Error> {
    let mut events = Vec::new();
    for mut piece in bytes.chunks(piece) {
        while let Some(event) = decoder.feed(&mut piece)? {
            events.push(event);
        }
        assert!(piece.is_empty(), "the decoder takes all bytes that it can");
    }
    Ok((events, decoder.is_ended()))
}

/// Returns the events as text, so that tests can compare them.
fn text(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| format!("{event:?}")).collect()
}

/// Returns the start of a continuation of the bundle of `frames`, beginning with frame `first`.
fn continuation(frames: &[Frame], first: u32) -> (Prelude, Vec<u8>) {
    let (prelude, _) = bundles::header(frames).encode(3).unwrap();
    let prelude = Prelude {
        continued: true,
        first,
        ..prelude
    };
    let skipped = frames[..first as usize]
        .iter()
        .filter(|frame| frame.coding != Coding::Copy)
        .count();
    let records = bundles::records(frames).split_off(skipped);
    let bytes = [
        prelude.encode().to_vec(),
        records.concat(),
        bundles::end(&records),
    ];
    (prelude, bytes.concat())
}

/// Creates a decoder that knows the header of `frames` from an earlier response.
fn resumed(frames: &[Frame]) -> Decoder {
    let header = bundles::header(frames);
    let (prelude, _) = header.encode(3).unwrap();
    Decoder::resumed(prelude.digest, &header)
}

/// Returns three frames, of which the second only copies and has no record.
fn three_frames() -> [Frame; 3] {
    [
        plain_frame(Coding::Stored, &[1]),
        copy_frame(0, &[2]),
        plain_frame(Coding::Zstd, &[3]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_of_the_bytes_gives_the_same_events(frames in bundles::frames(), piece in 1_usize..300) {
        let bytes = bundles::bundle(&frames);
        let (events, is_ended) = feed(Decoder::new(), &bytes, bytes.len()).unwrap();
        prop_assert!(is_ended);
        let (in_pieces, is_ended) = feed(Decoder::new(), &bytes, piece).unwrap();
        prop_assert!(is_ended);
        prop_assert_eq!(text(&events), text(&in_pieces));
        // The events are one header, one record for each frame that does not only copy, and one
        // end.
        let copies = frames.iter().filter(|frame| frame.coding == Coding::Copy).count();
        prop_assert_eq!(events.len(), 2 + frames.len() - copies);
    }

    #[test]
    fn records_come_with_the_numbers_of_their_frames(frames in bundles::frames()) {
        let (events, _) = feed(Decoder::new(), &bundles::bundle(&frames), 1 << 20).unwrap();
        let numbers = events.iter().filter_map(|event| match event {
            Event::Record { frame, coding, .. } => Some((*frame, *coding)),
            _ => None,
        });
        let expected = frames.iter().enumerate().map(|(number, frame)| (number as u32, frame.coding));
        prop_assert!(numbers.eq(expected.filter(|(_, coding)| *coding != Coding::Copy)));
    }

    #[test]
    fn a_stream_that_is_cut_is_incomplete(frames in bundles::frames(), cut in any::<prop::sample::Index>()) {
        let bytes = bundles::bundle(&frames);
        let cut = &bytes[..cut.index(bytes.len())];
        let (_, is_ended) = feed(Decoder::new(), cut, 1 << 20).unwrap();
        prop_assert!(!is_ended);
    }

    #[test]
    fn a_resumed_stream_gives_the_rest_of_the_records(
        frames in bundles::frames(),
        first in any::<prop::sample::Index>(),
    ) {
        let first = first.index(frames.len() + 1) as u32;
        let (prelude, bytes) = continuation(&frames, first);
        let (events, is_ended) = feed(resumed(&frames), &bytes, 7).unwrap();
        prop_assert!(is_ended);
        prop_assert!(matches!(events[0], Event::Continued(found) if found == prelude));
        let (all, _) = feed(Decoder::new(), &bundles::bundle(&frames), 1 << 20).unwrap();
        let is_behind = |event: &&Event| matches!(event, Event::Record { frame, .. } if *frame >= first);
        let expected: Vec<_> = all.iter().filter(is_behind).map(|event| format!("{event:?}")).collect();
        let found: Vec<_> = events.iter().filter(is_behind).map(|event| format!("{event:?}")).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        let mut stream = bundles::bundle(&three_frames());
        let start = stream.len() / 2;
        stream.truncate(start);
        stream.extend(bytes);
        let _ = feed(Decoder::new(), &stream, 64);
    }
}

#[test]
fn a_continuation_of_another_bundle_is_refused() {
    let (_, bytes) = continuation(&three_frames(), 1);
    let other = resumed(&three_frames()[..2]);
    let error = feed(other, &bytes, 1 << 20).unwrap_err();
    assert!(
        error.to_string().contains("continues another bundle"),
        "{error}"
    );
    let error = feed(Decoder::new(), &bytes, 1 << 20).unwrap_err();
    assert!(
        error.to_string().contains("continues another bundle"),
        "{error}"
    );
}

#[test]
fn a_new_bundle_is_accepted_in_place_of_a_continuation() {
    let bytes = bundles::bundle(&three_frames());
    let (events, is_ended) = feed(resumed(&three_frames()[..1]), &bytes, 1 << 20).unwrap();
    assert!(is_ended);
    assert!(matches!(events[0], Event::Header { .. }));
}

#[test]
fn a_payload_with_a_wrong_digest_is_reported_as_not_sent() {
    let frames = three_frames();
    let (prelude, body) = bundles::header(&frames).encode(3).unwrap();
    let mut records = bundles::records(&frames);
    *records[0].last_mut().unwrap() ^= 1;
    let bytes = [
        prelude.encode().to_vec(),
        body,
        records.concat(),
        bundles::end(&records),
    ]
    .concat();
    let (events, is_ended) = feed(Decoder::new(), &bytes, 1 << 20).unwrap();
    assert!(is_ended);
    assert!(
        matches!(events[1], Event::Unsent { frame: 0 }),
        "{:?}",
        events[1]
    );
    assert!(
        matches!(events[2], Event::Record { frame: 2, .. }),
        "{:?}",
        events[2]
    );
}

#[test]
fn a_frame_that_the_server_does_not_send_has_its_number() {
    let frames = three_frames();
    let (prelude, body) = bundles::header(&frames).encode(3).unwrap();
    let first = bundles::records(&frames).swap_remove(0);
    let end = End {
        records: 2,
        payload: (first.len() - RECORD_HEAD) as u64,
    };
    let bytes = [
        &prelude.encode()[..],
        &body,
        &first,
        &unsent(),
        &end.encode(),
    ]
    .concat();
    let (events, is_ended) = feed(Decoder::new(), &bytes, 1 << 20).unwrap();
    assert!(is_ended);
    assert!(
        matches!(events[2], Event::Unsent { frame: 2 }),
        "{:?}",
        events[2]
    );
    assert!(matches!(events[3], Event::End(found) if found == end));
}

/// Decodes the bundle of three frames with `records` in place of its own records. Returns whether
/// the bundle ended.
fn with_records(records: &[&[u8]]) -> Result<bool, Error> {
    let (prelude, body) = bundles::header(&three_frames()).encode(3).unwrap();
    let bytes = [&prelude.encode()[..], &body, &records.concat()].concat();
    feed(Decoder::new(), &bytes, 1 << 20).map(|(_, is_ended)| is_ended)
}

#[test]
fn counts_and_order_of_the_records_are_checked() {
    let records = bundles::records(&three_frames());
    let (first, second) = (&records[0][..], &records[1][..]);
    let end = bundles::end(&records);
    assert!(with_records(&[first, second, &end]).unwrap());
    assert!(!with_records(&[first, second]).unwrap());
    let refused = |records: &[&[u8]], reason: &str| {
        let error = with_records(records).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    };
    refused(&[first, &end], "ends before its last record");
    refused(&[first, second, first, &end], "a record too many");
    refused(&[first, second, &end, &[0]], "after its end");
    for (records, payload) in [(1, 0), (2, 0), (2, u64::MAX), (3, 51)] {
        let end = End { records, payload }.encode();
        refused(&[first, second, &end], "wrong counts");
    }
    // A patch needs bases, and frame 0 has no bases. A stored (uncompressed) payload is allowed
    // where the header announces zstd.
    let patch = bundles::record(Coding::Patch, 0);
    refused(&[&patch, second, &end], "a patch against nothing");
    let stored = bundles::record(Coding::Stored, 1);
    let end = bundles::end(&[records[0].clone(), stored.clone()]);
    assert!(with_records(&[first, &stored, &end]).unwrap());
}

#[test]
fn marks_with_other_bytes_set_are_refused() {
    let records = bundles::records(&three_frames());
    for place in 1..RECORD_HEAD {
        let mut mark = unsent();
        mark[place] = 1;
        assert!(with_records(&[&mark]).is_err(), "byte {place} of the mark");
    }
    for place in (1..4).chain(16..RECORD_HEAD) {
        let mut end = bundles::end(&records);
        end[place] = 1;
        let stream = [&records[0][..], &records[1], &end];
        assert!(with_records(&stream).is_err(), "byte {place} of the end");
    }
}

#[test]
fn a_piece_of_a_header_without_a_request_is_refused() {
    let (prelude, mut bytes) = continuation(&three_frames(), 0);
    let prelude = Prelude {
        piece: true,
        ..prelude
    };
    bytes[..prelude.encode().len()].copy_from_slice(&prelude.encode());
    assert!(feed(resumed(&three_frames()), &bytes, 1 << 20).is_err());
}

#[test]
fn the_decoder_announces_the_payload_that_it_will_hold() {
    let frames = three_frames();
    let bytes = bundles::bundle(&frames);
    let records = bundles::records(&frames);
    let tail: usize = records.iter().map(Vec::len).sum::<usize>() + RECORD_HEAD;
    let mut decoder = Decoder::new();
    let mut header = &bytes[..bytes.len() - tail + RECORD_HEAD];
    while decoder.feed(&mut header).unwrap().is_some() {}
    let payload = records[0].len() - RECORD_HEAD;
    assert_eq!(decoder.announced(), Some(payload as u64));
    let mut rest = &bytes[bytes.len() - tail + RECORD_HEAD..];
    while decoder.feed(&mut rest).unwrap().is_some() {}
    assert_eq!(decoder.announced(), None);
    assert!(decoder.is_ended());
}

#[test]
fn the_body_of_a_header_is_kept_byte_by_byte() {
    let frames = three_frames();
    let (expected, sent) = bundles::header(&frames).encode(3).unwrap();
    let (mut events, _) = feed(Decoder::new(), &bundles::bundle(&frames), 11).unwrap();
    let Event::Header {
        prelude,
        body,
        header,
    } = events.swap_remove(0)
    else {
        panic!("the first event is the header");
    };
    assert_eq!((prelude, &body), (expected, &sent));
    assert_eq!(Header::decode(&prelude, &body).unwrap(), *header);
}
