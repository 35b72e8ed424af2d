//! Encodes and decodes the variable-length numbers of the binary formats: LEB128 with at most ten
//! bytes, of which only the shortest form is valid. Signed numbers use the zigzag encoding.

use crate::{Error, FileDigest};

/// Appends a number: seven bits per byte, lowest bits first.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a signed number: 0, -1, 1, -2 become 0, 1, 2, 3.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(
        out,
        (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned(),
    );
}

/// A reader of bytes in memory, which never reads past the end. The errors of the reader name the
/// format that it reads.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`, which are a document of the format `what`.
    pub const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    /// Returns the bytes that are not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Makes an error that names the format of this reader.
    pub fn wrong(&self, why: impl Into<String>) -> Error {
        Error::malformed(self.what, why)
    }

    /// Takes the next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| self.wrong("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    /// Reads an unsigned number of up to 64 bits.
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
        Err(self.wrong("an invalid number"))
    }

    /// Reads a number below 2^32.
    pub fn u32(&mut self) -> Result<u32, Error> {
        let value = self.u64()?;
        u32::try_from(value).map_err(|_| self.wrong(format!("{value} is too large")))
    }

    /// Reads the number of items that follow, each of at least one byte. A number above the number
    /// of unread bytes is an error, so that the result limits an allocation.
    pub fn count(&mut self) -> Result<usize, Error> {
        let value = self.u64()?;
        match usize::try_from(value) {
            Ok(count) if count <= self.rest.len() => Ok(count),
            _ => Err(self.wrong(format!("{value} items do not fit"))),
        }
    }

    /// Reads a signed number of 64 bits.
    pub fn i64(&mut self) -> Result<i64, Error> {
        let value = self.u64()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Reads a file digest of 32 bytes.
    pub fn content(&mut self) -> Result<FileDigest, Error> {
        let bytes = self.take(32)?;
        let bytes = bytes.try_into().map_err(|_| self.wrong("a short digest"))?;
        Ok(FileDigest::from_bytes(bytes))
    }

    /// Fails when unread bytes are left.
    pub fn end(&self) -> Result<(), Error> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(self.wrong(format!("{more} bytes after the end"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reading_reverses_writing() {
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
    fn only_the_shortest_form_of_a_number_is_valid() {
        let padded: &[u8] = &[0x80, 0x00];
        let over: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        let endless: &[u8] = &[0x80; 11];
        for bytes in [padded, over, endless] {
            assert!(Reader::new("test", bytes).u64().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_count_is_at_most_the_number_of_unread_bytes() {
        assert_eq!(Reader::new("test", &[2, 0, 0]).count().unwrap(), 2);
        assert!(Reader::new("test", &[3, 0, 0]).count().is_err());
    }

    /// Generates a byte. The bytes of the longest and of padded encodings are frequent.
    fn byte() -> impl Strategy<Value = u8> {
        prop_oneof![Just(0), Just(1), Just(0x80), Just(0xff), any::<u8>()]
    }

    proptest! {
        /// Bytes that a reader accepts are exactly those that a writer makes.
        #[test]
        fn a_number_has_one_form(bytes in proptest::collection::vec(byte(), 0..12)) {
            let mut reader = Reader::new("test", &bytes);
            if let Ok(number) = reader.u64() {
                let mut out = Vec::new();
                put(&mut out, number);
                prop_assert_eq!(&out[..], &bytes[..bytes.len() - reader.rest().len()]);
            }
        }

        #[test]
        fn any_numbers_are_read_as_they_were_written(
            numbers in proptest::collection::vec(any::<u64>(), 0..20),
            digest in any::<[u8; 32]>(),
        ) {
            let mut out = Vec::new();
            for number in &numbers {
                put(&mut out, *number);
                put_signed(&mut out, number.cast_signed());
            }
            out.extend_from_slice(&digest);
            let mut reader = Reader::new("test", &out);
            for number in &numbers {
                let small = u32::try_from(*number).ok();
                prop_assert_eq!(reader.clone().u32().ok(), small);
                prop_assert_eq!(reader.u64().unwrap(), *number);
                prop_assert_eq!(reader.i64().unwrap(), number.cast_signed());
            }
            prop_assert_eq!(reader.content().unwrap(), FileDigest::from_bytes(digest));
            reader.end().unwrap();
        }
    }

    #[test]
    fn errors_name_the_format_and_reads_beyond_the_end_take_nothing() {
        let mut reader = Reader::new("test", &[1, 2, 3]);
        assert!(reader.take(4).is_err() && reader.content().is_err());
        assert_eq!(reader.take(2).unwrap(), [1, 2]);
        let text = reader.end().unwrap_err().to_string();
        assert!(text.contains("test") && text.contains("1 bytes"), "{text}");
        assert_eq!(reader.byte().unwrap(), 3);
        assert!(reader.byte().is_err() && reader.end().is_ok());
    }
}
