//! The self-check: known answers, made by other programs, asked for in pieces that fit nowhere.

use pierhead_oci::Algorithm;

use crate::{Coding, Decode, Engine, Error, Hash};

/// Of [`plain`]: `gzip -9`, two members, and `zstd -19 --check`.
const GZIP: &[u8] = include_bytes!("known/plain.gz");
const ZSTD: &[u8] = include_bytes!("known/plain.zst");
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

/// Asks an engine for what it says that it can. What it cannot is not held against it. Takes a millisecond on the processor.
///
/// # Errors
/// [`Error::Wrong`], or its own.
pub fn check(engine: &dyn Engine) -> Result<(), Error> {
    let plain = plain();
    let wrong = |what| Error::Wrong {
        engine: engine.name(),
        what,
    };
    for (algorithm, known) in [(Algorithm::Sha256, SHA256), (Algorithm::Sha512, SHA512)] {
        for size in [1000, 65_537, plain.len()] {
            let Some(hash) = engine.hash(algorithm) else {
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
        for (size, room) in [(7, 1000), (coded.len(), 160 << 10)] {
            let Some(decoder) = engine.decode(coding) else {
                continue;
            };
            if decoded(decoder, coded, size, room, plain.len())? != plain {
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
            if decoded(decoder, bad, bad.len(), 160 << 10, plain.len()).is_ok() {
                return Err(wrong(what));
            }
        }
    }
    Ok(())
}

fn hashed(mut hash: Box<dyn Hash>, plain: &[u8], size: usize) -> Result<String, Error> {
    for piece in plain.chunks(size) {
        hash.update(piece)?;
    }
    Ok(hash.finish()?.to_string())
}

/// All that comes out, and no more than `most`.
fn decoded(
    mut decoder: Box<dyn Decode>,
    coded: &[u8],
    size: usize,
    room: usize,
    most: usize,
) -> Result<Vec<u8>, Error> {
    let (mut plain, mut output) = (Vec::new(), vec![0; room]);
    for piece in coded.chunks(size) {
        let mut rest = piece;
        let mut idle = 0;
        // What is inside may come without any more input.
        while idle < 3 {
            let step = decoder.step(rest, &mut output, false)?;
            let (Some(after), Some(given)) = (rest.get(step.taken..), output.get(..step.given))
            else {
                return Err(Error::Failed("more than there was".to_owned()));
            };
            idle = if step.taken + step.given == 0 {
                idle + 1
            } else {
                0
            };
            plain.extend_from_slice(given);
            rest = after;
            if plain.len() > most {
                return Err(Error::Failed("more than there is".to_owned()));
            }
            if rest.is_empty() && step.given < room {
                break;
            }
        }
    }
    match decoder.may_end() {
        true => Ok(plain),
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
        assert!(check(&Cpu).is_ok(), "{:?}", check(&Cpu));
        assert_eq!(Digest::of(Algorithm::Sha256, &plain()).to_string(), SHA256);
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
                _ => self.0.step(input, output, stop).or(Ok(Step {
                    taken: input.len(),
                    ..Step::default()
                })),
            }
        }
        fn may_end(&self) -> bool {
            true
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
        for bad in [Bad::Hash, Bad::Blind, Bad::Greedy, Bad::Weak] {
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
        let done = decoder.and_then(|it| decoded(it, ZSTD, 100, 4096, plain.len()));
        assert_eq!(done.ok(), Some(plain));
    }
}
