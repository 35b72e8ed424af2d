//! Hashing and decompression: the processor's, and the seam for an engine that does them instead.
//!
//! An [`Engine`] is what a card has. None is built in but the processor ([`Cpu`]); `docs/offload.md` says what others there are and what one
//! must do. Whatever it cannot, or does not do right, the processor does.

#![forbid(unsafe_code)]

mod check;
mod gzip;
mod zstd;

use std::fmt;
use std::sync::Arc;

use pierhead_oci::{Algorithm, Digest, Hasher};

pub use check::{check, check_cpu};
pub use gzip::{Gzip, WINDOW};

/// Why a hash or a decoder stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What it was given is not what it should be.
    #[error("{0}")]
    Damaged(String),
    /// It cannot go on, whatever it was given.
    #[error("{0}")]
    Failed(String),
    /// A self-check had another answer than it must.
    #[error("{engine}: wrong answer of {what}")]
    Wrong {
        /// Of which engine.
        engine: &'static str,
        /// What was asked of it.
        what: &'static str,
    },
}

/// How bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// RFC 1952, all members.
    Gzip,
    /// RFC 8878, all frames, with windows of at most so many bytes.
    Zstd(u64),
}

/// What hashes and decompresses. `None`: not this one, ask the processor.
pub trait Engine: Send + Sync + fmt::Debug {
    /// For the log and the metrics.
    fn name(&self) -> &'static str;

    /// A hash of bytes to come.
    fn hash(&self, algorithm: Algorithm) -> Option<Box<dyn Hash>>;

    /// A decoder at the head of a stream.
    fn decode(&self, coding: Coding) -> Option<Box<dyn Decode>>;
}

/// A running hash. Called with some 16 to 256 KiB at a time.
pub trait Hash: Send {
    /// Takes in the next bytes.
    ///
    /// # Errors
    /// [`Error::Failed`]: then all is hashed again by the processor.
    fn update(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// The digest of all of them.
    ///
    /// # Errors
    /// As [`Self::update`].
    fn finish(self: Box<Self>) -> Result<Digest, Error>;
}

/// What one step of a decoder did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the input.
    pub taken: usize,
    /// Bytes of the output.
    pub given: usize,
    /// It stopped where a deflate block ends; only if told to.
    pub boundary: bool,
    /// The output goes on with a new member or frame, which needs no window.
    pub between: bool,
}

/// A running decoder. Called with up to 64 KiB of input and 160 KiB of room.
pub trait Decode: Send {
    /// Decodes what it can. With `stop`, no further than the end of a deflate block, if it can tell; one that cannot never says that it
    /// stopped at a boundary, and its layers have checkpoints at the heads of members alone.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Failed`].
    fn step(&mut self, input: &[u8], output: &mut [u8], stop: bool) -> Result<Step, Error>;

    /// Whether the stream may end here.
    fn may_end(&self) -> bool;
}

/// The processor: with its instructions for SHA where it has them, which is found out at run time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Engine for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn hash(&self, algorithm: Algorithm) -> Option<Box<dyn Hash>> {
        Some(Box::new(OnCpu(Hasher::new(algorithm))))
    }

    fn decode(&self, coding: Coding) -> Option<Box<dyn Decode>> {
        cpu(coding).ok()
    }
}

fn cpu(coding: Coding) -> Result<Box<dyn Decode>, Error> {
    Ok(match coding {
        Coding::Gzip => Box::new(Gzip::new()),
        Coding::Zstd(max_window) => Box::new(zstd::Zstd::new(max_window)?),
    })
}

struct OnCpu(Hasher);

impl Hash for OnCpu {
    fn update(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.update(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Digest, Error> {
        Ok(self.0.finish())
    }
}

/// Who does it: an engine that has passed its self-check, and the processor for the rest. A handle; by default the processor alone.
#[derive(Clone, Debug, Default)]
pub struct Offload(Option<Arc<dyn Engine>>);

impl Offload {
    /// An engine, once it has given the known answers ([`check()`]).
    ///
    /// # Errors
    /// It has not: then [`Offload::default`] is what to use.
    pub fn to(engine: Arc<dyn Engine>) -> Result<Self, Error> {
        check(&*engine)?;
        Ok(Self(Some(engine)))
    }

    /// For the log and the metrics.
    pub fn name(&self) -> &'static str {
        self.0.as_ref().map_or(Cpu.name(), |engine| engine.name())
    }

    /// Whether the processor does it all: then nothing that fails is tried again.
    pub fn is_cpu(&self) -> bool {
        self.0.is_none()
    }

    /// A hash. On the processor it costs what a [`Hasher`] costs.
    pub fn hasher(&self, algorithm: Algorithm) -> Hashing {
        let engine = self.0.as_ref().and_then(|engine| engine.hash(algorithm));
        engine.map_or_else(|| Hashing::cpu(algorithm), Hashing::Engine)
    }

    /// A decoder: one indirect call for each [`Decode::step`].
    ///
    /// # Errors
    /// [`Error::Failed`]: the processor's cannot be had.
    pub fn decoder(&self, coding: Coding) -> Result<Box<dyn Decode>, Error> {
        let engine = self.0.as_ref().and_then(|engine| engine.decode(coding));
        engine.map_or_else(|| cpu(coding), Ok)
    }
}

/// A running hash, wherever it runs.
#[allow(
    clippy::large_enum_variant,
    reason = "what is common needs no allocation"
)]
pub enum Hashing {
    /// On the processor: never fails.
    Cpu(Hasher),
    /// On an engine.
    Engine(Box<dyn Hash>),
}

impl Hashing {
    /// On the processor.
    pub fn cpu(algorithm: Algorithm) -> Self {
        Self::Cpu(Hasher::new(algorithm))
    }

    /// Takes in the next bytes.
    ///
    /// # Errors
    /// The engine's.
    pub fn update(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::Cpu(hasher) => {
                hasher.update(bytes);
                Ok(())
            }
            Self::Engine(hash) => hash.update(bytes),
        }
    }

    /// The digest of all of them.
    ///
    /// # Errors
    /// The engine's.
    pub fn finish(self) -> Result<Digest, Error> {
        match self {
            Self::Cpu(hasher) => Ok(hasher.finish()),
            Self::Engine(hash) => hash.finish(),
        }
    }
}
