//! A decoder of Zstandard (RFC 8878) with several frames.

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::Step;
use crate::Error;

/// The state of the zstd decoder.
pub(crate) struct Zstd {
    decoder: Decoder<'static>,
    between: bool,
}

impl Zstd {
    /// Creates a decoder before a frame. The decoder refuses frames with a window of more than
    /// `max_window` bytes.
    pub(super) fn new(max_window: u64) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::io("start zstd", error);
        let mut decoder = Decoder::new().map_err(failed)?;
        let log = max_window.max(1 << 10).ilog2().min(31);
        decoder
            .set_parameter(DParameter::WindowLogMax(log))
            .map_err(failed)?;
        Ok(Self {
            decoder,
            between: true,
        })
    }

    /// Does one step of decoding, as [`super::Decoder::step`] specifies.
    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Error> {
        let mut from = InBuffer::around(input);
        let mut into = OutBuffer::around(output);
        let hint = self.decoder.run(&mut from, &mut into);
        let hint = hint.map_err(|error| {
            Error::Image(format!(
                "the layer's zstd is damaged or over a limit: {error}"
            ))
        })?;
        self.between = hint == 0;
        Ok(Step {
            taken: from.pos(),
            given: into.pos(),
            between: self.between,
            ..Step::default()
        })
    }

    /// Whether the input may end at the current position.
    pub(super) fn may_end(&self) -> bool {
        self.between
    }
}
