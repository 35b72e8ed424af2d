//! The self-check: known answers, made by other programs, asked for in pieces that fit nowhere.

use pierhead_oci::Algorithm;

use crate::{Coding, Cpu, Decode, Engine, Error, Gzip, Hash, WINDOW};

/// Of [`plain`]: zlib at level 9, two members of several deflate blocks that end between bytes and within them, and `zstd -19 --check`.
const GZIP: &[u8] = include_bytes!("known/plain.gz");
const ZSTD: &[u8] = include_bytes!("known/plain.zst");
/// Where the second member begins: in [`plain`] and in [`GZIP`].
const MEMBER: (usize, usize) = (40_000, 187);
/// `sha256sum` and `sha512sum` of it.
const SHA256: &str = "sha256:1638397674e011864a6deb59a0821c1500721ba821c198f6dbd8f96a04090218";
const SHA512: &str = "sha512:aa05b1c6adc9024124f1d06a69e76f38c0811ddee0f72e6a53b129c1150043146b85672f12bf4c69f4f6364ee35b2374e37bd1cfb882428cba08dc57d26d5840";

/// What compresses well, and then what does not.
fn plain() -> Vec<u8> {
    let mut plain = b"pierhead ".repeat(9000);
    let mut state = 1_u32;
    plain.extend((0..300).map(|_| {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
        state.to_be_bytes()[1]
    }));
    plain
}

/// Asks an engine for what it says that it can. What it cannot is not held against it. Takes a few milliseconds on the processor.
///
/// # Errors
/// [`Error::Wrong`], or its own.
pub fn check(engine: &dyn Engine) -> Result<(), Error> {
    examine(engine, false)
}

/// Asks the processor, which must be able to do all of it.
///
/// # Errors
/// As [`check()`]; [`Error::Failed`] when it cannot do something.
pub fn check_cpu() -> Result<(), Error> {
    examine(&Cpu, true)
}

fn examine(engine: &dyn Engine, must: bool) -> Result<(), Error> {
    let plain = plain();
    let wrong = |what| Error::Wrong {
        engine: engine.name(),
        what,
    };
    let lacks = |what: &str| match must {
        true => Err(Error::Failed(format!("{}: no {what}", engine.name()))),
        false => Ok(()),
    };
    for (algorithm, known) in [(Algorithm::Sha256, SHA256), (Algorithm::Sha512, SHA512)] {
        for size in [1000, 65_537, plain.len()] {
            let Some(hash) = engine.hash(algorithm) else {
                lacks(algorithm.as_str())?;
                continue;
            };
            if hashed(hash, &plain, size)? != known {
                return Err(wrong(algorithm.as_str()));
            }
        }
    }
    for (coding, coded, what) in [
        (Coding::Gzip, GZIP, "gzip"),
        (Coding::Zstd(1 << 20), ZSTD, "zstd"),
    ] {
        for (size, room, stop) in [
            (7, 1000, false),
            (coded.len(), 160 << 10, false),
            (7, 1000, true),
            (coded.len(), 160 << 10, true),
        ] {
            let Some(decoder) = engine.decode(coding) else {
                lacks(what)?;
                continue;
            };
            let run = decoded(decoder, coded, (size, room, stop), plain.len())?;
            if run.plain != plain || !are_right(&run, coding, coded, stop) {
                return Err(wrong(what));
            }
        }
        // What is damaged in the middle, or cut, must not pass.
        let mut damaged = coded.to_vec();
        damaged[coded.len() / 2] ^= 4;
        for bad in [&damaged, &coded[..coded.len() - 3]] {
            let Some(decoder) = engine.decode(coding) else {
                continue;
            };
            let how = (bad.len(), 160 << 10, false);
            if decoded(decoder, bad, how, plain.len()).is_ok() {
                return Err(wrong(what));
            }
        }
    }
    Ok(())
}

/// Whether it stopped where it said: a layer would be entered there.
fn are_right(run: &Decoded, coding: Coding, coded: &[u8], stop: bool) -> bool {
    let ends = (run.plain.len(), coded.len());
    let heads = match coding {
        Coding::Gzip => [MEMBER, ends],
        Coding::Zstd(_) => [ends, ends],
    };
    let is_block =
        |at: &(usize, usize)| coding == Coding::Gzip && begins_block(&run.plain, coded, *at);
    run.between.iter().all(|at| heads.contains(at))
        && (stop || run.boundaries.is_empty())
        && run.boundaries.iter().all(is_block)
}

/// Whether decoding goes on there, at one of the bits of the byte before, with no more than the window.
fn begins_block(plain: &[u8], coded: &[u8], (at, coded_at): (usize, usize)) -> bool {
    // As many bytes as its member still has, at most: behind the last block is nothing to see.
    let end = match coded_at < MEMBER.1 {
        true => MEMBER.0,
        false => plain.len(),
    };
    let len = end.saturating_sub(at).min(64);
    if len == 0 {
        return at <= end;
    }
    let window = &plain[at.saturating_sub(WINDOW)..at];
    let Some((&before, rest)) = coded
        .get(coded_at.saturating_sub(1)..)
        .and_then(<[u8]>::split_first)
    else {
        return false;
    };
    (0..8).any(|bits| {
        let byte = if bits == 0 { 0 } else { before };
        let shown = Gzip::glimpse(window, bits, byte, rest, len);
        shown.as_deref() == Some(&plain[at..at + len])
    })
}

fn hashed(mut hash: Box<dyn Hash>, plain: &[u8], size: usize) -> Result<String, Error> {
    for piece in plain.chunks(size) {
        hash.update(piece)?;
    }
    Ok(hash.finish()?.to_string())
}

/// What came out, and where it stopped: in the plain bytes and in the coded ones.
#[derive(Default)]
struct Decoded {
    plain: Vec<u8>,
    boundaries: Vec<(usize, usize)>,
    between: Vec<(usize, usize)>,
}

/// All that comes out, and no more than `most`: of pieces of this size, into so much room, told to stop at blocks or not.
fn decoded(
    mut decoder: Box<dyn Decode>,
    coded: &[u8],
    (size, room, stop): (usize, usize, bool),
    most: usize,
) -> Result<Decoded, Error> {
    let (mut run, mut output) = (Decoded::default(), vec![0; room]);
    let mut taken = 0;
    for piece in coded.chunks(size) {
        let mut rest = piece;
        let mut idle = 0;
        // What is inside may come without any more input.
        while idle < 3 {
            let step = decoder.step(rest, &mut output, stop)?;
            let (Some(after), Some(given)) = (rest.get(step.taken..), output.get(..step.given))
            else {
                return Err(Error::Failed("more than there was".to_owned()));
            };
            idle = if step.taken + step.given == 0 {
                idle + 1
            } else {
                0
            };
            run.plain.extend_from_slice(given);
            taken += step.taken;
            let at = (run.plain.len(), taken);
            if step.boundary {
                run.boundaries.push(at);
            }
            if step.between {
                run.between.push(at);
            }
            rest = after;
            if run.plain.len() > most {
                return Err(Error::Failed("more than there is".to_owned()));
            }
            if rest.is_empty() && step.given < room {
                break;
            }
        }
    }
    match decoder.may_end() {
        true => Ok(run),
        false => Err(Error::Damaged("it ends too early".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pierhead_oci::{Digest, Hasher};

    use super::*;
    use crate::{Cpu, Gzip, Offload, Step};

    #[test]
    fn the_processor_knows_the_answers() {
        assert!(check_cpu().is_ok(), "{:?}", check_cpu());
        assert_eq!(Digest::of(Algorithm::Sha256, &plain()).to_string(), SHA256);
    }

    #[test]
    fn the_processor_is_asked_at_blocks_within_bytes_and_between_members() {
        let decoder = Cpu.decode(Coding::Gzip).unwrap();
        let run = decoded(decoder, GZIP, (GZIP.len(), 160 << 10, true), plain().len()).unwrap();
        assert!(run.boundaries.len() >= 8, "{:?}", run.boundaries);
        assert_eq!(run.between, [MEMBER, (plain().len(), GZIP.len())]);
        for (at, coded_at) in &run.boundaries {
            assert!(begins_block(&run.plain, GZIP, (*at, *coded_at)));
            let is_last = *at == MEMBER.0 || *at == run.plain.len();
            let is_any = begins_block(&run.plain, GZIP, (*at, coded_at - 3));
            assert!(is_last || !is_any, "{at}");
        }
    }

    #[test]
    fn the_processor_must_be_able_to_do_all() {
        assert!(examine(&Bad::Nothing, false).is_ok());
        assert!(matches!(
            examine(&Bad::Nothing, true),
            Err(Error::Failed(_))
        ));
        assert!(matches!(
            examine(&Bad::Hashless, true),
            Err(Error::Failed(_))
        ));
    }

    /// An engine that does one thing wrong.
    #[derive(Debug, PartialEq, Clone, Copy)]
    enum Bad {
        Nothing,
        /// Forgets the last byte of each piece.
        Hash,
        /// Gives no error where there is one.
        Blind,
        /// Takes more than it was given.
        Greedy,
        /// Gives up.
        Weak,
        /// Forgets a byte when it is told to stop.
        Stopping,
        /// Says that a member ends where one does not.
        Between,
        /// Says that a block ends where none does.
        Boundary,
        /// Says that a block ends without having been asked.
        Talkative,
        /// Decodes, and does not hash.
        Hashless,
    }

    struct Forgetful(Hasher);

    impl Hash for Forgetful {
        fn update(&mut self, bytes: &[u8]) -> Result<(), Error> {
            self.0.update(&bytes[..bytes.len() - 1]);
            Ok(())
        }
        fn finish(self: Box<Self>) -> Result<Digest, Error> {
            Ok(self.0.finish())
        }
    }

    struct Odd(Gzip, Bad);

    impl Decode for Odd {
        fn step(&mut self, input: &[u8], output: &mut [u8], stop: bool) -> Result<Step, Error> {
            match self.1 {
                Bad::Greedy => Ok(Step {
                    taken: input.len() + 1,
                    ..Step::default()
                }),
                Bad::Weak => Err(Error::Failed("gone".to_owned())),
                Bad::Stopping | Bad::Between | Bad::Boundary | Bad::Talkative | Bad::Hashless => {
                    let step = self.0.step(input, output, stop)?;
                    let (given, ended) = (step.given, step.between);
                    Ok(match self.1 {
                        Bad::Stopping => Step {
                            given: if stop { given.saturating_sub(1) } else { given },
                            ..step
                        },
                        Bad::Between => Step {
                            between: given > 0 || ended,
                            ..step
                        },
                        Bad::Boundary => Step {
                            boundary: stop && given > 0 && !ended,
                            ..step
                        },
                        Bad::Talkative => Step {
                            boundary: !stop && given > 0,
                            ..step
                        },
                        _ => step,
                    })
                }
                _ => self.0.step(input, output, stop).or(Ok(Step {
                    taken: input.len(),
                    ..Step::default()
                })),
            }
        }
        fn may_end(&self) -> bool {
            matches!(self.1, Bad::Blind) || self.0.may_end()
        }
    }

    impl Engine for Bad {
        fn name(&self) -> &'static str {
            "bad"
        }
        fn hash(&self, algorithm: Algorithm) -> Option<Box<dyn Hash>> {
            (*self == Self::Hash).then(|| Box::new(Forgetful(Hasher::new(algorithm))) as _)
        }
        fn decode(&self, coding: Coding) -> Option<Box<dyn Decode>> {
            let does = *self != Self::Hash && *self != Self::Nothing && coding == Coding::Gzip;
            does.then(|| Box::new(Odd(Gzip::new(), *self)) as _)
        }
    }

    #[test]
    fn an_engine_that_does_anything_wrong_is_refused() {
        for bad in [
            Bad::Hash,
            Bad::Blind,
            Bad::Greedy,
            Bad::Weak,
            Bad::Stopping,
            Bad::Between,
            Bad::Boundary,
            Bad::Talkative,
        ] {
            assert!(Offload::to(Arc::new(bad)).is_err(), "{bad:?}");
        }
        let none = Offload::to(Arc::new(Bad::Nothing)).map(|it| it.name());
        assert_eq!(
            none.ok(),
            Some("bad"),
            "what it cannot do the processor does"
        );
    }

    #[test]
    fn what_an_engine_cannot_do_the_processor_does() {
        let offload = Offload::to(Arc::new(Bad::Nothing)).unwrap_or_default();
        assert!(!offload.is_cpu());
        let mut hashing = offload.hasher(Algorithm::Sha256);
        let done = hashing.update(&plain()).and_then(|()| hashing.finish());
        assert_eq!(done.map(|it| it.to_string()).ok().as_deref(), Some(SHA256));
        let decoder = offload.decoder(Coding::Zstd(1 << 20));
        let plain = plain();
        let done = decoder.and_then(|it| decoded(it, ZSTD, (100, 4096, false), plain.len()));
        assert_eq!(done.ok().map(|run| run.plain), Some(plain));
    }
}
