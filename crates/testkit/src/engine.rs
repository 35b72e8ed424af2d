//! An engine like those of cards: it knows no block boundaries, and may give up or be wrong after so many calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pierhead_engine::{Coding, Cpu, Decode, Engine, Error, Hash, Step};
use pierhead_oci::{Algorithm, Digest};

/// What it does once its calls are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every call is an error.
    GivesUp,
    /// Hashes are of other bytes, and decoders find damage.
    IsWrong,
}

/// The processor in disguise; clones share the calls that are left.
#[derive(Clone, Debug)]
pub struct Frail {
    left: Arc<AtomicI64>,
    end: End,
}

impl Frail {
    /// One that works for so many calls.
    pub fn new(calls: i64, end: End) -> Self {
        let left = Arc::new(AtomicI64::new(calls));
        Self { left, end }
    }

    /// Gives it so many calls from now on.
    pub fn allow(&self, calls: i64) {
        self.left.store(calls, Ordering::Relaxed);
    }

    /// Whether it has come to its end.
    pub fn is_over(&self) -> bool {
        self.left.load(Ordering::Relaxed) < 0
    }

    /// Counts a call; whether it still works.
    fn works(&self) -> bool {
        self.left.fetch_sub(1, Ordering::Relaxed) > 0
    }
}

impl Engine for Frail {
    fn name(&self) -> &'static str {
        "frail"
    }

    fn hash(&self, algorithm: Algorithm) -> Option<Box<dyn Hash>> {
        let inner = Cpu.hash(algorithm)?;
        let engine = self.clone();
        Some(Box::new(FrailHash { inner, engine }))
    }

    fn decode(&self, coding: Coding) -> Option<Box<dyn Decode>> {
        let inner = Cpu.decode(coding)?;
        let engine = self.clone();
        Some(Box::new(FrailDecode { inner, engine }))
    }
}

struct FrailHash {
    inner: Box<dyn Hash>,
    engine: Frail,
}

impl Hash for FrailHash {
    fn update(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match (self.engine.works(), self.engine.end) {
            (true, _) => self.inner.update(bytes),
            (false, End::GivesUp) => Err(Error::Failed("gave up".to_owned())),
            (false, End::IsWrong) => self.inner.update(bytes.get(1..).unwrap_or_default()),
        }
    }

    fn finish(self: Box<Self>) -> Result<Digest, Error> {
        match (self.engine.works(), self.engine.end) {
            (false, End::GivesUp) => Err(Error::Failed("gave up".to_owned())),
            _ => self.inner.finish(),
        }
    }
}

struct FrailDecode {
    inner: Box<dyn Decode>,
    engine: Frail,
}

impl Decode for FrailDecode {
    fn step(&mut self, input: &[u8], output: &mut [u8], _stop: bool) -> Result<Step, Error> {
        match (self.engine.works(), self.engine.end) {
            (true, _) => self.inner.step(input, output, false),
            (false, End::GivesUp) => Err(Error::Failed("gave up".to_owned())),
            (false, End::IsWrong) => Err(Error::Damaged("it says so".to_owned())),
        }
    }

    fn may_end(&self) -> bool {
        self.inner.may_end()
    }
}
