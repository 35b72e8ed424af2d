//! Decompresses zstd and gzip files while they are read. Other files are read unchanged.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Returns a reader of the decompressed bytes of a file. For a truncated file, the last read fails
/// with [`io::ErrorKind::UnexpectedEof`].
pub(crate) fn unpack(file: File) -> io::Result<Box<dyn Read>> {
    let mut file = BufReader::new(file);
    let head = file.fill_buf()?;
    Ok(match head {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(Frames::new(file)),
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        _ => Box::new(file),
    })
}

/// Decodes consecutive Zstandard frames, and skips skippable frames.
struct Frames<R> {
    file: R,
    decoder: FrameDecoder,
    inside: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(file: R) -> Self {
        Self {
            file,
            decoder: FrameDecoder::new(),
            inside: false,
        }
    }

    /// Begins the next frame. Returns `false` at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.file.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.file) {
                Ok(()) => {
                    self.inside = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut (&mut self.file).take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(self.judge(error)),
            }
        }
        Ok(false)
    }

    /// Distinguishes truncated files from damaged files, for which the decoder returns the same
    /// error.
    fn judge(&mut self, error: FrameDecoderError) -> io::Error {
        match self.file.fill_buf() {
            Ok([]) => io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => damaged(error.to_string()),
            Err(error) => error,
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.inside = false;
        let written = self.decoder.get_checksum_from_data();
        if written.is_some() && written != self.decoder.get_calculated_checksum() {
            return Err(damaged("its checksum differs".to_owned()));
        }
        Ok(())
    }
}

fn damaged(why: String) -> io::Error {
    let text = format!("the zstd file is damaged ({why}); get it anew");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(out);
            }
            if self.inside && self.decoder.is_finished() {
                self.end()?;
            }
            if !self.inside && !self.begin()? {
                return Ok(0);
            }
            let some = BlockDecodingStrategy::UptoBytes(out.len());
            if let Err(error) = self.decoder.decode_blocks(&mut self.file, some) {
                return Err(self.judge(error));
            }
        }
    }
}
