//! Functions that check the cache's parsers for any input. The fuzz targets call these functions,
//! and tests call them with the saved corpus.

use std::io;

use pierhead_oci::{Algorithm, Digest};

use crate::origin::Origin;
use crate::store::record;
use crate::store::tag_store::TagFile;
use crate::tier::{CHUNK, Trailer, piece_map as map};

/// Decodes the trailer of a disk-tier file. A trailer that decodes must encode to the same bytes.
pub fn trailer(file: &[u8]) {
    let digest = Digest::of(Algorithm::Sha256, b"pierhead");
    let len = file.len() as u64;
    let mut bytes_read = 0;
    let read = |at: u64, into: &mut [u8]| {
        bytes_read += into.len();
        let part = usize::try_from(at)
            .ok()
            .and_then(|at| file.get(at..)?.get(..into.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(part);
        Ok(())
    };
    let decoded = Trailer::decode(&digest, len, read);
    assert!(bytes_read <= 2 * file.len(), "more was read than there is");
    let Ok(trailer) = decoded else { return };
    let encoded = trailer.encode(&digest);
    assert!(trailer.size() <= len && file.ends_with(&encoded));
    assert_eq!(trailer.size() + encoded.len() as u64, len);
    assert_eq!(trailer.encoded_len(), encoded.len() as u64);
    let has_origin = Trailer::has_origin_by_len(len, trailer.size(), trailer.media_type());
    assert_eq!(has_origin, Some(trailer.origin() != Origin::LOCAL));
    // The trailer must not decode if another digest is expected.
    let other = Digest::of(Algorithm::Sha256, b"other");
    let read = |at: u64, into: &mut [u8]| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        into.copy_from_slice(&file[at..at + into.len()]);
        Ok(())
    };
    assert!(Trailer::decode(&other, len, read).is_err());
    let _ = trailer.sums().check(0, &file[..file.len().min(CHUNK)]);
}

/// Decodes the file of a tag or another record. A record that decodes must encode and decode again
/// to the same value.
pub fn record(file: &[u8]) {
    if let Ok(value) = record::decode::<serde_json::Value>(file) {
        let again =
            record::encode(&value).and_then(|text| record::decode::<serde_json::Value>(&text));
        assert_eq!(again.ok(), Some(value));
    }
    let Ok(stored) = record::decode::<TagFile>(file) else {
        return;
    };
    let text = record::encode(&stored).unwrap_or_default();
    let again = record::decode::<TagFile>(&text).and_then(|again| record::encode(&again));
    assert_eq!(again.ok(), Some(text));
}

/// Decodes the piece map of a staged file. Bytes with a wrong checksum get the right one first, so
/// that the ranges are checked, too. A map that decodes must encode to the same bytes.
pub fn piece_map(file: &[u8]) {
    let digest = Digest::of(Algorithm::Sha256, b"pierhead");
    let mut file = file.to_vec();
    if map::decode(&digest, &file).is_none()
        && let Some((body, sum)) = file.split_last_chunk_mut::<4>()
    {
        let check = crc32c::crc32c_append(crc32c::crc32c(digest.as_bytes()), body);
        *sum = check.to_le_bytes();
    }
    let Some(ranges) = map::decode(&digest, &file) else {
        return;
    };
    assert!(ranges.iter().all(|range| range.start < range.end));
    assert!(ranges.is_sorted_by(|one, next| one.end < next.start));
    assert_eq!(map::encode(&digest, &ranges), file);
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn trailer() {
        each("trailer", super::trailer);
    }

    #[test]
    fn piece_map() {
        each("piece_map", super::piece_map);
    }

    #[test]
    fn record() {
        each("record", super::record);
    }
}
