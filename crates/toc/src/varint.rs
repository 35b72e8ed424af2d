//! Numbers of the crate's formats: LEB128, at most ten bytes, shortest form only; signed ones in zigzag.

use crate::{Error, FileDigest};

/// Appends a number: seven bits a byte, lowest first.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a signed number: 0, -1, 1, -2 are 0, 1, 2, 3.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(
        out,
        (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned(),
    );
}

/// Reads what stands in memory, never over its end. Every failure names the format.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Over all bytes of one document of format `what`.
    pub const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    /// What has not been read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// An error of this format.
    pub fn wrong(&self, why: impl Into<String>) -> Error {
        Error::malformed(self.what, why)
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| self.wrong("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    /// A number.
    pub fn u64(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (shift == 63 && bits > 1) || (byte == 0 && shift > 0) {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.wrong("a number that is none"))
    }

    /// A number below 2^32.
    pub fn u32(&mut self) -> Result<u32, Error> {
        let value = self.u64()?;
        u32::try_from(value).map_err(|_| self.wrong(format!("{value} is too large")))
    }

    /// How many there are of something of which each takes at least one byte of what follows: no more than
    /// what is left, so that it may be allocated.
    pub fn count(&mut self) -> Result<usize, Error> {
        let value = self.u64()?;
        match usize::try_from(value) {
            Ok(count) if count <= self.rest.len() => Ok(count),
            _ => Err(self.wrong(format!("{value} of something that does not fit"))),
        }
    }

    /// A signed number.
    pub fn i64(&mut self) -> Result<i64, Error> {
        let value = self.u64()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A content's name: 32 bytes.
    pub fn content(&mut self) -> Result<FileDigest, Error> {
        let bytes = self.take(32)?;
        let bytes = bytes.try_into().map_err(|_| self.wrong("a short digest"))?;
        Ok(FileDigest::from_bytes(bytes))
    }

    /// Fails unless everything has been read.
    pub fn end(&self) -> Result<(), Error> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(self.wrong(format!("{more} bytes after its end"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let numbers = [
            0,
            1,
            127,
            128,
            16383,
            16384,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ];
        for number in numbers {
            let mut out = Vec::new();
            put(&mut out, number);
            put_signed(&mut out, number.cast_signed());
            let mut reader = Reader::new("test", &out);
            assert_eq!(reader.u64().unwrap(), number);
            assert_eq!(reader.i64().unwrap(), number.cast_signed());
            reader.end().unwrap();
            for short in 0..out.len() {
                let mut reader = Reader::new("test", &out[..short]);
                assert!(reader.u64().and_then(|_| reader.i64()).is_err());
            }
        }
    }

    #[test]
    fn small_signed_numbers_take_one_byte() {
        for number in -64..64 {
            let mut out = Vec::new();
            put_signed(&mut out, number);
            assert_eq!(out.len(), 1, "{number}");
        }
    }

    #[test]
    fn a_number_has_one_form_only() {
        let padded: &[u8] = &[0x80, 0x00];
        let over: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        let endless: &[u8] = &[0x80; 11];
        for bytes in [padded, over, endless] {
            assert!(Reader::new("test", bytes).u64().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_count_goes_not_over_what_follows() {
        assert_eq!(Reader::new("test", &[2, 0, 0]).count().unwrap(), 2);
        assert!(Reader::new("test", &[3, 0, 0]).count().is_err());
    }
}
