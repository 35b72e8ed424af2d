//! Parses the maps of sparse files: the positions of stored bytes in a file. Supports all sparse
//! formats of GNU tar: the GNU header format, and PAX 0.0, 0.1 and 1.0.

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use crate::Error;

use super::header::{BLOCK, number};
use super::pax::{MAX_SPECIAL, Pax, decimal};

/// Maximum number of extents of one file. A reader holds all extents in memory.
const MAX_EXTENTS: usize = 1 << 16;

/// The extents of a sparse file, each with its first byte and its length. The extents are sorted
/// and disjoint, and none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Map(pub(super) Vec<(u64, u64)>);

impl Map {
    /// Checks that extents are in order and within the file, and that their total length is
    /// `stored`.
    pub(super) fn new(extents: &[(u64, u64)], size: u64, stored: u64) -> Result<Self, Error> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        let (mut end, mut sum) = (0, 0u64);
        for (offset, len) in extents.iter().copied() {
            let after = offset.checked_add(len).filter(|after| *after <= size);
            if offset < end || after.is_none() {
                return Err(bad("with extents out of order or bounds"));
            }
            end = offset + len;
            sum += len;
            match all.last_mut() {
                _ if len == 0 => {}
                Some(last) if last.0 + last.1 == offset => last.1 += len,
                _ => all.push((offset, len)),
            }
        }
        if sum != stored {
            return Err(bad("that is not of the stored length"));
        }
        Ok(Self(all))
    }
}

/// The extents of a map that are already parsed: pairs of offset and length.
#[derive(Debug, Default)]
pub(super) struct ParsedExtents(Vec<(u64, u64)>);

impl ParsedExtents {
    fn push(&mut self, offset: u64, len: u64) -> Result<(), Error> {
        if self.0.len() == MAX_EXTENTS {
            return Err(bad("of more extents than the limit of 65536"));
        }
        self.0.push((offset, len));
        Ok(())
    }

    pub(super) fn pairs(&self) -> &[(u64, u64)] {
        &self.0
    }

    fn of_numbers(numbers: &[u64]) -> Result<Self, Error> {
        let mut this = Self::default();
        let (pairs, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(bad("of an odd count"));
        }
        for [offset, len] in pairs {
            this.push(*offset, *len)?;
        }
        Ok(this)
    }

    /// Reads the extents in a header of GNU's format. Returns the size of the file, and whether a
    /// block with more extents follows.
    pub(super) fn old(&mut self, header: &[u8; BLOCK]) -> Result<(u64, bool), Error> {
        let header = Header::from_byte_slice(header);
        let Some(gnu) = header.as_gnu() else {
            return Err(bad("in a header that is not in GNU's format"));
        };
        self.gnu(&gnu.sparse)?;
        Ok((positive(&gnu.realsize)?, gnu.isextended[0] > 0))
    }

    /// Reads the extents in a block after the header. Returns whether another block follows.
    pub(super) fn more(&mut self, block: &[u8; BLOCK]) -> Result<bool, Error> {
        let mut header = GnuExtSparseHeader::new();
        header.as_mut_bytes().copy_from_slice(block);
        self.gnu(header.sparse())?;
        Ok(header.isextended[0] > 0)
    }

    fn gnu(&mut self, extents: &[GnuSparseHeader]) -> Result<(), Error> {
        for extent in extents {
            // An empty first byte marks the end of the list.
            if extent.offset[0] == 0 {
                break;
            }
            self.push(positive(&extent.offset)?, positive(&extent.numbytes)?)?;
        }
        Ok(())
    }
}

fn positive(field: &[u8]) -> Result<u64, Error> {
    u64::try_from(number(field)?).map_err(|_| bad("of negative numbers"))
}

/// The format of a sparse file, as its extended header states it.
#[derive(Debug)]
pub(super) enum Form {
    /// The file is not sparse.
    None,
    /// The file is sparse, and its map is in the extended header.
    Here(ParsedExtents),
    /// The file is sparse, and its map is before the data, in decimal numbers.
    Ahead,
}

/// Determines the format by the PAX records.
pub(super) fn form(pax: &Pax) -> Result<Form, Error> {
    let version = |key| pax.get(key).unwrap_or_default();
    match (version("GNU.sparse.major"), version("GNU.sparse.minor")) {
        (b"1", b"0") => return Ok(Form::Ahead),
        (b"" | b"0", b"" | b"0" | b"1") => {}
        _ => return Err(bad("of an unknown version")),
    }
    if let Some(map) = pax.get("GNU.sparse.map") {
        let mut numbers = Vec::new();
        for text in map.split(|byte| *byte == b',') {
            numbers.push(decimal(text).ok_or_else(|| bad("of no numbers"))?);
        }
        return ParsedExtents::of_numbers(&numbers).map(Form::Here);
    }
    if pax.sparse.is_empty() {
        return Ok(Form::None);
    }
    ParsedExtents::of_numbers(&pax.sparse).map(Form::Here)
}

/// Parses the map of format 1.0 from the blocks before the data.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    line: Vec<u8>,
    wanted: Option<u64>,
    numbers: Vec<u64>,
    bytes: u64,
}

impl Ahead {
    pub(super) fn feed(&mut self, block: &[u8; BLOCK]) -> Result<Option<ParsedExtents>, Error> {
        self.bytes += BLOCK as u64;
        if self.bytes > MAX_SPECIAL {
            return Err(bad("longer than the limit of 1 MiB"));
        }
        for byte in block {
            if *byte != b'\n' {
                if self.line.len() == 20 {
                    return Err(bad("of no numbers"));
                }
                self.line.push(*byte);
                continue;
            }
            let number = decimal(&self.line).ok_or_else(|| bad("of no numbers"))?;
            self.line.clear();
            match self.wanted {
                None if number > MAX_EXTENTS as u64 => {
                    return Err(bad("of more extents than the limit of 65536"));
                }
                None => self.wanted = Some(2 * number),
                Some(_) => self.numbers.push(number),
            }
            // The rest of the block is padding.
            if self.wanted == Some(self.numbers.len() as u64) {
                return ParsedExtents::of_numbers(&self.numbers).map(Some);
            }
        }
        Ok(None)
    }
}

fn bad(what: &str) -> Error {
    Error::Image(format!("the layer has a sparse file with a map {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pax(records: &[(&str, &str)]) -> Pax {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let len = (1..9).map(|digits| rest + digits);
            let len = len
                .zip(1..)
                .find(|(len, digits)| len.to_string().len() == *digits);
            bytes.extend(format!("{} {key}={value}\n", len.unwrap().0).into_bytes());
        }
        Pax::parse(&bytes).unwrap()
    }

    /// Feeds a map of format 1.0, padded to whole blocks.
    fn ahead(text: &str) -> Result<Option<ParsedExtents>, Error> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(BLOCK).max(BLOCK), 0);
        let mut map = Ahead::default();
        for block in bytes.as_chunks::<BLOCK>().0 {
            if let Some(extents) = map.feed(block)? {
                return Ok(Some(extents));
            }
        }
        Ok(None)
    }

    proptest! {
        /// The same extents in three formats give the same map.
        #[test]
        fn all_formats_describe_the_same_extents(extents in proptest::collection::vec((0..1u64 << 40, 0..1u64 << 40), 1..60)) {
            let numbers: Vec<_> = extents.iter().flat_map(|(at, len)| [at.to_string(), len.to_string()]).collect();
            let oldest: Vec<_> = numbers
                .iter()
                .zip(["GNU.sparse.offset", "GNU.sparse.numbytes"].into_iter().cycle())
                .map(|(number, key)| (key, &number[..]))
                .collect();
            let list = numbers.join(",");
            for records in [&oldest[..], &[("GNU.sparse.map", &list[..])]] {
                match form(&pax(records)).unwrap() {
                    Form::Here(found) => prop_assert_eq!(found.pairs(), &extents[..]),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            let text = format!("{}\n{}\n", extents.len(), numbers.join("\n"));
            let found = ahead(&text).unwrap().unwrap();
            prop_assert_eq!(found.pairs(), &extents[..]);
        }

        /// A map is valid exactly if its extents are ascending, within the file and as long as the
        /// stored bytes. Its extents cover the same bytes as the pairs.
        #[test]
        fn a_map_keeps_the_bytes_of_its_extents(
            gaps in proptest::collection::vec((0..4u64, 0..4u64), 0..12), short in 0..3u64,
        ) {
            let (mut at, mut extents) = (0, Vec::new());
            for (gap, len) in gaps {
                extents.push((at + gap, len));
                at += gap + len;
            }
            let stored: u64 = extents.iter().map(|(_, len)| len).sum();
            let bytes = |of: &[(u64, u64)]| -> Vec<u64> {
                of.iter().flat_map(|(at, len)| *at..at + len).collect()
            };
            let map = Map::new(&extents, at, stored).unwrap();
            prop_assert_eq!(bytes(&map.0), bytes(&extents));
            prop_assert!(map.0.iter().all(|(_, len)| *len > 0));
            prop_assert!(map.0.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
            prop_assert!(Map::new(&extents, at, stored + 1 + short).is_err());
            if at > 0 {
                prop_assert!(Map::new(&extents, at - 1, stored).is_err());
            }
            if stored > 0 {
                extents.reverse();
                let overlapping = [extents.clone(), extents].concat();
                prop_assert!(Map::new(&overlapping, at, 2 * stored).is_err());
            }
        }
    }

    #[test]
    fn hostile_maps_are_refused() {
        assert!(Map::new(&[(u64::MAX, 2)], u64::MAX, 2).is_err());
        for text in [
            "x\n",
            "1\n\n2\n",
            "65537\n",
            "123456789012345678901\n",
            "-1\n",
        ] {
            assert!(ahead(text).is_err(), "{text}");
        }
        // The padding begins within the map; a map is longer than 1 MiB.
        assert!(ahead("2\n0\n1\n").is_err());
        let long = format!("65536\n{}", "12345678\n".repeat(1 << 17));
        assert!(ahead(&long).is_err());
        for records in [
            &[("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0")][..],
            &[("GNU.sparse.map", "1,2,3")],
            &[("GNU.sparse.map", "1,,3")],
            &[("GNU.sparse.offset", "1")],
        ] {
            assert!(form(&pax(records)).is_err(), "{records:?}");
        }
        assert!(matches!(form(&pax(&[("path", "a")])).unwrap(), Form::None));
        let one = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")];
        assert!(matches!(form(&pax(&one)).unwrap(), Form::Ahead));
    }

    #[test]
    fn headers_of_the_gnu_format_continue_in_more_blocks() {
        let mut header = Header::new_gnu();
        let gnu = header.as_gnu_mut().unwrap();
        gnu.realsize = *b"00000001000\0";
        gnu.isextended = [1];
        gnu.sparse[0].offset = *b"00000000010\0";
        gnu.sparse[0].numbytes = *b"00000000002\0";
        let mut extents = ParsedExtents::default();
        assert_eq!(extents.old(header.as_bytes()).unwrap(), (512, true));
        let mut more = GnuExtSparseHeader::new();
        more.sparse_mut()[0].offset = *b"00000000100\0";
        more.sparse_mut()[0].numbytes = *b"00000000003\0";
        let block = *more.as_bytes();
        assert!(!extents.more(&block).unwrap());
        assert_eq!(extents.pairs(), [(8, 2), (64, 3)]);
        let before = extents.pairs().len();
        for _ in before..MAX_EXTENTS {
            extents.more(&block).unwrap();
        }
        assert!(
            extents.more(&block).is_err(),
            "one extent more than the maximum"
        );
        assert!(extents.old(Header::new_ustar().as_bytes()).is_err());
    }
}
