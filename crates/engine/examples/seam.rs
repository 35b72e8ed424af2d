//! What the seam costs: bytes a second of processor time straight, through [`Offload`], and through an engine's trait objects.
//!
//! `cargo run --release -p pierhead-engine --example seam`

use std::io::Write as _;
use std::sync::Arc;

use pierhead_engine::{Coding, Cpu, Decode, Engine, Error, Gzip, Hash, Offload};
use pierhead_oci::{Algorithm, Digest, Hasher};

/// Bytes that are hashed, and that come out of the decoder, in one run.
const BYTES: usize = 64 << 20;
/// As a layer is hashed and read.
const PIECE: usize = 128 << 10;
const INPUT: usize = 64 << 10;
const ROOM: usize = 160 << 10;
/// By turns, so that whatever else the machine does falls on all alike; the quickest counts.
const RUNS: usize = 9;

/// The processor as if it were a card's engine.
#[derive(Debug)]
struct Disguised;

impl Engine for Disguised {
    fn name(&self) -> &'static str {
        "disguised"
    }

    fn hash(&self, algorithm: Algorithm) -> Option<Box<dyn Hash>> {
        Cpu.hash(algorithm)
    }

    fn decode(&self, coding: Coding) -> Option<Box<dyn Decode>> {
        Cpu.decode(coding)
    }
}

fn main() -> Result<(), Error> {
    let plain = words();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    let failed = |error: std::io::Error| Error::Failed(error.to_string());
    gzip.write_all(&plain).map_err(failed)?;
    let gzip = gzip.finish().map_err(failed)?;
    let engine = Offload::to(Arc::new(Disguised))?;
    let (mut hashes, mut decodes) = ([f64::MAX; 3], [f64::MAX; 3]);
    for _ in 0..RUNS {
        let hash = [
            timed(|| straight(&plain))?,
            timed(|| hashed(&Offload::default(), &plain))?,
            timed(|| hashed(&engine, &plain))?,
        ];
        let decode = [
            timed(|| decoded(&mut Gzip::new(), &gzip))?,
            timed(|| decoded(&mut *Offload::default().decoder(Coding::Gzip)?, &gzip))?,
            timed(|| decoded(&mut *engine.decoder(Coding::Gzip)?, &gzip))?,
        ];
        for (least, now) in hashes.iter_mut().zip(hash) {
            *least = now.min(*least);
        }
        for (least, now) in decodes.iter_mut().zip(decode) {
            *least = now.min(*least);
        }
    }
    println!("MB a second of processor time   straight   processor   engine");
    for (what, least) in [("SHA-256", hashes), ("gzip, bytes out", decodes)] {
        let [one, two, three] = least.map(|seconds| plain.len() as f64 / 1e6 / seconds);
        println!("{what:<31} {one:>8.0} {two:>11.0} {three:>8.0}");
    }
    Ok(())
}

/// Compresses about three to one.
fn words() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let words: Vec<Vec<u8>> = (0..4000)
        .map(|_| {
            (0..random.usize(2..12))
                .map(|_| random.u8(b'a'..=b'z'))
                .collect()
        })
        .collect();
    let mut plain = Vec::with_capacity(BYTES + 12);
    while plain.len() < BYTES {
        plain.extend_from_slice(&words[random.usize(..words.len())]);
        plain.push(b' ');
    }
    plain
}

fn straight(plain: &[u8]) -> Result<Digest, Error> {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    plain.chunks(PIECE).for_each(|piece| hasher.update(piece));
    Ok(hasher.finish())
}

fn hashed(offload: &Offload, plain: &[u8]) -> Result<Digest, Error> {
    let mut hasher = offload.hasher(Algorithm::Sha256);
    plain
        .chunks(PIECE)
        .try_for_each(|piece| hasher.update(piece))?;
    hasher.finish()
}

/// Known when it is compiled, or not: `D` is [`Gzip`] or a trait object.
fn decoded<D: Decode + ?Sized>(decoder: &mut D, gzip: &[u8]) -> Result<usize, Error> {
    let (mut output, mut out) = (vec![0; ROOM], 0);
    for piece in gzip.chunks(INPUT) {
        let mut rest = piece;
        while !rest.is_empty() {
            let step = decoder.step(rest, &mut output, false)?;
            rest = &rest[step.taken..];
            out += step.given;
        }
    }
    Ok(out)
}

/// Seconds of this thread on a processor.
fn timed<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<f64, Error> {
    let before = on_processor()?;
    std::hint::black_box(work()?);
    Ok(on_processor()? - before)
}

fn on_processor() -> Result<f64, Error> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")
        .map_err(|error| Error::Failed(error.to_string()))?;
    let nanos = text
        .split(' ')
        .next()
        .and_then(|first| first.parse::<f64>().ok());
    nanos
        .map(|nanos| nanos / 1e9)
        .ok_or_else(|| Error::Failed("no processor time".to_owned()))
}
