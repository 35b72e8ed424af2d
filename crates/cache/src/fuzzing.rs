//! Functions that check the cache's parsers for any input. The fuzz targets call these functions,
//! and tests call them with the saved corpus.

use std::io;

use pierhead_oci::{Algorithm, Digest};

use crate::origin::Origin;
use crate::store::record;
use crate::store::tag_store::TagFile;
use crate::tier::{CHUNK, Trailer};

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

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn trailer() {
        each("trailer", super::trailer);
    }

    #[test]
    fn record() {
        each("record", super::record);
    }
}
