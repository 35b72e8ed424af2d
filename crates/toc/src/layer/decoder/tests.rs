//! Tests of the gzip and zstd decoders with files that other programs compressed. The input comes
//! in pieces of odd sizes.

use super::*;

/// [`plain`], compressed by zlib at level 9: two gzip members of several deflate blocks. Some
/// blocks end at the end of a byte, and some within a byte.
const GZIP: &[u8] = include_bytes!("known/plain.gz");
/// [`plain`], compressed by `zstd -19 --check`.
const ZSTD: &[u8] = include_bytes!("known/plain.zst");
/// Offset of the second member in [`plain`] and in [`GZIP`].
const MEMBER: (usize, usize) = (40_000, 187);
const MAX_WINDOW: u64 = 1 << 20;

/// Returns the test data: bytes that compress well, and then bytes that do not compress.
fn plain() -> Vec<u8> {
    let mut plain = b"pierhead ".repeat(9000);
    let mut state = 1_u32;
    plain.extend((0..300).map(|_| {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
        state.to_be_bytes()[1]
    }));
    plain
}

/// The output of a decoder, and the positions where the decoder stopped, in the uncompressed bytes
/// and in the compressed bytes.
#[derive(Default)]
struct Decoded {
    plain: Vec<u8>,
    boundaries: Vec<(usize, usize)>,
    between: Vec<(usize, usize)>,
}

/// Decodes pieces of `size` bytes into a buffer of `room` bytes. With `stop`, the decoder stops at
/// the ends of deflate blocks.
fn decoded(
    coding: Coding,
    coded: &[u8],
    (size, room, stop): (usize, usize, bool),
) -> Result<Decoded, Error> {
    let mut decoder = Decoder::new(coding, MAX_WINDOW)?;
    let (mut run, mut output) = (Decoded::default(), vec![0; room]);
    let mut taken = 0;
    for piece in coded.chunks(size) {
        let mut rest = piece;
        let mut idle = 0;
        // The decoder may still have output in its buffer, which needs no more input.
        while idle < 3 {
            let step = decoder.step(rest, &mut output, stop)?;
            idle = if step.taken + step.given == 0 {
                idle + 1
            } else {
                0
            };
            run.plain.extend_from_slice(&output[..step.given]);
            taken += step.taken;
            let at = (run.plain.len(), taken);
            if step.boundary {
                run.boundaries.push(at);
            }
            if step.between {
                run.between.push(at);
            }
            rest = &rest[step.taken..];
            if rest.is_empty() && step.given < room {
                break;
            }
        }
    }
    match decoder.may_end() {
        true => Ok(run),
        false => Err(Error::Image("it ends too early".to_owned())),
    }
}

/// Whether a decoder with the window can start at this position, at one of the bits of the previous
/// byte.
fn begins_block(plain: &[u8], (at, coded_at): (usize, usize)) -> bool {
    // Decodes at most the remaining bytes of the member, since there is no output after its last
    // block.
    let end = match coded_at < MEMBER.1 {
        true => MEMBER.0,
        false => plain.len(),
    };
    let len = end.saturating_sub(at).min(64);
    if len == 0 {
        return at <= end;
    }
    let window = &plain[at.saturating_sub(WINDOW)..at];
    let (before, rest) = (GZIP[coded_at - 1], &GZIP[coded_at..]);
    (0..8).any(|bits| {
        let byte = if bits == 0 { 0 } else { before };
        let shown = Gzip::glimpse(window, bits, byte, rest, len);
        shown.as_deref() == Some(&plain[at..at + len])
    })
}

#[test]
fn pieces_of_any_size_give_the_known_output() {
    for (coding, coded) in [(Coding::Gzip, GZIP), (Coding::Zstd, ZSTD)] {
        let ends = (plain().len(), coded.len());
        let heads = match coding {
            Coding::Gzip => vec![MEMBER, ends],
            _ => vec![ends],
        };
        for size in [7, coded.len()] {
            for (room, stop) in [(1000, false), (160 << 10, false), (160 << 10, true)] {
                let run = decoded(coding, coded, (size, room, stop)).unwrap();
                assert!(run.plain == plain(), "{coding:?} {size} {room} {stop}");
                assert_eq!(run.between, heads, "{coding:?} {size} {room} {stop}");
                assert!(stop || run.boundaries.is_empty());
            }
        }
    }
}

#[test]
fn gzip_stops_at_the_ends_of_blocks_and_members() {
    let run = decoded(Coding::Gzip, GZIP, (GZIP.len(), 160 << 10, true)).unwrap();
    assert!(run.boundaries.len() >= 8, "{:?}", run.boundaries);
    for (at, coded_at) in &run.boundaries {
        assert!(begins_block(&run.plain, (*at, *coded_at)));
        let is_last = *at == MEMBER.0 || *at == run.plain.len();
        let is_any = begins_block(&run.plain, (*at, coded_at - 3));
        assert!(is_last || !is_any, "{at}");
    }
}

#[test]
fn damaged_cut_or_trailing_input_is_refused() {
    for (coding, coded) in [(Coding::Gzip, GZIP), (Coding::Zstd, ZSTD)] {
        let mut damaged = coded.to_vec();
        damaged[coded.len() / 2] ^= 4;
        let cut = coded[..coded.len() - 3].to_vec();
        let followed = [coded, b"something else"].concat();
        for bad in [damaged, cut, followed] {
            let how = (bad.len(), 160 << 10, false);
            let refused = decoded(coding, &bad, how).err();
            assert!(matches!(refused, Some(Error::Image(_))), "{refused:?}");
        }
    }
}
