//! Tests of the encoding of heads, records and parts of the log: decoding an encoding gives the
//! same values, and every flipped bit is detected.

use proptest::prelude::*;

use crate::log::layout::{
    Head, HeadCopy, Kind, Line, MAX_KEY_LEN, MAX_META_LEN, PART_LEN, Part, Record, SegmentHead,
    combine_copies, decode_segment, encode_segment,
};

fn flipped(line: &Line, bit: usize) -> Line {
    let mut line = *line;
    line[bit / 8] ^= 1 << (bit % 8);
    line
}

fn record() -> impl Strategy<Value = Record> {
    let counters = (1..1_u64 << 62, 0..1_u64 << 62);
    let meta = 0..=u32::try_from(MAX_META_LEN).unwrap();
    let key = 0..=u8::try_from(MAX_KEY_LEN).unwrap();
    let lengths = (any::<u32>(), meta, any::<u32>(), key);
    (counters, lengths, any::<bool>(), any::<u32>()).prop_map(
        |((sequence, serial), (body, meta, parts, key), is_last, tail_sum)| Record {
            sequence,
            serial,
            body,
            meta,
            parts,
            key,
            kind: if is_last { Kind::Last } else { Kind::Part },
            tail_sum,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_record_is_valid_only_unchanged_and_at_its_place(
        record in record(),
        id in any::<u64>(),
        offset in (0..1_u64 << 40).prop_map(|line| line * 64),
        // After these 52 bytes, a head has only padding and the commit word.
        bit in 0..52 * 8_usize,
        position_bit in 6..46_u32,
    ) {
        let line = record.encode(id, offset);
        let decode = |line: &Line, id, offset| Record::decode(line, id, record.sequence, offset);
        prop_assert_eq!(decode(&line, id, offset), Some(record));
        prop_assert_eq!(decode(&flipped(&line, bit), id, offset), None);
        prop_assert_eq!(decode(&line, id ^ 1, offset), None, "of another log");
        prop_assert_eq!(decode(&line, id, offset ^ (1 << position_bit)), None, "moved");
        prop_assert_eq!(Record::decode(&line, id, record.sequence + 1, offset), None, "reused");
    }

    #[test]
    fn a_commit_word_is_nonzero_and_depends_on_log_position_and_head(
        record in record(),
        id in any::<u64>(),
        offset in (0..1_u64 << 40).prop_map(|line| line * 64),
        bit in 0..48 * 8_usize,
        position_bit in 6..46_u32,
    ) {
        let line = record.encode(id, offset);
        let word = Record::commit_word(&line, id, offset);
        prop_assert_ne!(word, 0);
        let moved = Record::commit_word(&line, id, offset ^ (1 << position_bit));
        prop_assert_ne!(word >> 32, moved >> 32);
        let other_log = Record::commit_word(&line, id ^ 2, offset);
        prop_assert_ne!(word >> 32, other_log >> 32);
        // The lowest bit of a commit word is always set, so a changed head must change the other
        // bits of the word.
        let changed = Record::commit_word(&flipped(&line, bit), id, offset);
        prop_assert_ne!(word, changed);
    }

    #[test]
    fn a_log_head_is_intact_only_unchanged(
        (id, size, segment) in any::<(u64, u64, u64)>(),
        bit in 0..64 * 8_usize,
    ) {
        let head = Head { id, size, segment };
        let line = head.encode();
        prop_assert_eq!(HeadCopy::decode(&line), HeadCopy::Intact(head));
        prop_assert_eq!(HeadCopy::decode(&flipped(&line, bit)), HeadCopy::Damaged);
    }

    #[test]
    fn a_segment_head_is_valid_only_unchanged_and_in_its_segment(
        id in any::<u64>(),
        sequence in 1..1_u64 << 62,
        index in any::<u32>(),
        bit in 0..64 * 8_usize,
    ) {
        let line = encode_segment(id, sequence, index);
        prop_assert_eq!(decode_segment(&line, id, index), SegmentHead::Valid(sequence));
        prop_assert_eq!(decode_segment(&line, id ^ 1, index), SegmentHead::Absent);
        prop_assert_eq!(decode_segment(&line, id, index ^ 1), SegmentHead::Damaged);
        prop_assert_eq!(decode_segment(&flipped(&line, bit), id, index), SegmentHead::Damaged);
    }

    #[test]
    fn a_part_survives_a_round_trip((offset, len, sequence) in any::<(u64, u64, u64)>()) {
        let part = Part { offset, len, sequence };
        let mut bytes = Vec::new();
        part.encode(&mut bytes);
        prop_assert_eq!(bytes.len(), PART_LEN);
        prop_assert_eq!(Part::decode(&bytes), part);
    }

    #[test]
    fn arbitrary_lines_do_not_panic_the_decoders(
        line in any::<[[u8; 32]; 2]>(),
        (id, offset) in any::<(u64, u64)>(),
    ) {
        let [first, second] = line;
        let mut line = [0; 64];
        line[..32].copy_from_slice(&first);
        line[32..].copy_from_slice(&second);
        prop_assert_eq!(HeadCopy::decode(&line), HeadCopy::Damaged);
        prop_assert_eq!(decode_segment(&line, id, 0), SegmentHead::Damaged);
        prop_assert_eq!(Record::decode_any(&line, id, offset), None);
    }
}

/// Tests the states in which a power cut or damage can leave the two copies of the head.
#[test]
fn two_copies_of_the_head_are_combined_into_one() {
    const SIZE: u64 = 8192 + 8 * 4096;
    let head = Head {
        id: 1,
        size: SIZE,
        segment: 4096,
    };
    let intact = HeadCopy::Intact(head);
    let other = HeadCopy::Intact(Head { id: 2, ..head });
    let combined = |copies| combine_copies(copies, SIZE).ok();
    let (blank, damaged) = (HeadCopy::Blank, HeadCopy::Damaged);
    // A new region gets the copy of the head at offset 4096 first. Until this copy is durable, the
    // copy at offset 0 stays blank.
    assert_eq!(combined([blank, blank]), Some(None));
    assert_eq!(combined([blank, damaged]), Some(None));
    assert_eq!(combined([blank, intact]), Some(Some((head, true))));
    assert_eq!(combined([damaged, intact]), Some(Some((head, true))));
    assert_eq!(combined([intact, blank]), Some(Some((head, true))));
    assert_eq!(combined([intact, damaged]), Some(Some((head, true))));
    assert_eq!(combined([intact, intact]), Some(Some((head, false))));
    for refused in [
        [intact, other],
        [damaged, damaged],
        [damaged, blank],
        [HeadCopy::Version(9), intact],
        [intact, HeadCopy::Version(9)],
    ] {
        assert_eq!(combined(refused), None, "{refused:?}");
    }
    assert!(combine_copies([intact, intact], SIZE + 4096).is_err());
}
