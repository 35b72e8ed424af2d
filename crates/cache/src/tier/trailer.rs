//! The trailer of a committed blob: the bytes after its content, which hold the checksums, the
//! media type, the origin and a footer.

use std::io;

use pierhead_oci::{Digest, MediaType};

use crate::origin::Origin;

/// Bytes of content per checksum. The number is small, so that a random read verifies few bytes
/// that it does not need. The number is large enough that the checksums take only 1/16384 of the
/// size of the content.
pub const CHUNK: usize = 64 * 1024;

/// Version of the encoding of a trailer without an origin.
const VERSION_WITHOUT_ORIGIN: u16 = 1;
/// Version of the encoding of a trailer with an origin.
const VERSION_WITH_ORIGIN: u16 = 2;
const MAGIC: [u8; 8] = *b"PIERBLOB";
/// Length of the trailer's footer in bytes.
const FOOTER_LEN: usize = 32;
/// Number of bytes of the footer before the footer's checksum.
const CHECKED_LEN: usize = 20;

/// The checksums (CRC-32C) of all chunks of a content. Each chunk has [`CHUNK`] bytes, but the last
/// chunk may be shorter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sums(Vec<u32>);

/// Size, checksums, media type and origin of a blob. `docs/formats/disk.md` describes the encoding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trailer {
    size: u64,
    media_type: Option<MediaType>,
    origin: Origin,
    sums: Sums,
}

impl Sums {
    /// Adds the next bytes of the content, which start at `position`.
    pub(crate) fn update(&mut self, mut position: u64, mut bytes: &[u8]) {
        let chunk = CHUNK as u64;
        while !bytes.is_empty() {
            let inside = usize::try_from(position % chunk).unwrap_or(0);
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - inside));
            if inside == 0 {
                self.0.push(0);
            }
            if let Some(sum) = self.0.last_mut() {
                *sum = crc32c::crc32c_append(*sum, now);
            }
            position += now.len() as u64;
            bytes = later;
        }
    }

    /// Whether `bytes` match the checksum of the whole chunk `index`.
    pub(crate) fn check(&self, index: u64, bytes: &[u8]) -> bool {
        let expected = usize::try_from(index)
            .ok()
            .and_then(|index| self.0.get(index));
        expected.is_some_and(|sum| *sum == crc32c::crc32c(bytes))
    }
}

impl Trailer {
    /// Creates the trailer of a content that is in memory.
    pub fn of(content: &[u8], media_type: Option<MediaType>) -> Self {
        let mut sums = Sums::default();
        sums.update(0, content);
        Self {
            size: content.len() as u64,
            media_type,
            origin: Origin::LOCAL,
            sums,
        }
    }

    /// Creates a trailer. `sums` must cover exactly `size` bytes.
    pub(crate) fn new(size: u64, media_type: Option<MediaType>, sums: Sums) -> Self {
        debug_assert_eq!(sums.0.len() as u64, size.div_ceil(CHUNK as u64));
        Self {
            size,
            media_type,
            origin: Origin::LOCAL,
            sums,
        }
    }

    /// Sets the origin of the content. Without this call, the trailer records no origin.
    #[must_use]
    pub fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// Returns the size of the content in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the media type. Only documents have a media type.
    pub fn media_type(&self) -> Option<&MediaType> {
        self.media_type.as_ref()
    }

    /// Returns the registry from which all bytes of the content came. [`Origin::LOCAL`] if the
    /// trailer records no registry.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the checksums of the content.
    pub(crate) fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Returns the length in bytes of the encoded trailer with an origin, for a content of `size`
    /// bytes. A trailer without an origin is shorter.
    pub(crate) fn max_encoded_len(size: u64, media_type: Option<&MediaType>) -> u64 {
        let media = media_type.map_or(0, |media| media.as_str().len() as u64);
        4 * size.div_ceil(CHUNK as u64) + media + (Origin::LEN + FOOTER_LEN) as u64
    }

    /// Compares the length of a file with the length of a content of `size` bytes and its trailer.
    /// Returns whether the trailer of the file has an origin. `None` if the lengths differ.
    pub(crate) fn has_origin_by_len(
        len: u64,
        size: u64,
        media_type: Option<&MediaType>,
    ) -> Option<bool> {
        let longer = size.saturating_add(Self::max_encoded_len(size, media_type));
        match longer.checked_sub(len)? {
            0 => Some(true),
            less => (less == Origin::LEN as u64).then_some(false),
        }
    }

    /// Returns the length in bytes of the encoded trailer.
    pub(crate) fn encoded_len(&self) -> u64 {
        let max = Self::max_encoded_len(self.size, self.media_type.as_ref());
        max - (Origin::LEN - self.encoded_origin().len()) as u64
    }

    /// Returns the bytes of the origin. No bytes if the trailer records no origin.
    fn encoded_origin(&self) -> Vec<u8> {
        match self.origin {
            Origin::LOCAL => Vec::new(),
            origin => origin.encode().to_vec(),
        }
    }

    /// Encodes the trailer as the bytes that follow the content. The checksum of the footer also
    /// covers `digest`. Thus a file that has the name of another blob is detected.
    pub fn encode(&self, digest: &Digest) -> Vec<u8> {
        let media = self.media_type.as_ref().map_or("", |media| media.as_str());
        let origin = self.encoded_origin();
        let version = match origin[..] {
            [] => VERSION_WITHOUT_ORIGIN,
            _ => VERSION_WITH_ORIGIN,
        };
        let len = 4 * self.sums.0.len() + media.len() + origin.len() + FOOTER_LEN;
        let mut out = Vec::with_capacity(len);
        for sum in &self.sums.0 {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        out.extend_from_slice(media.as_bytes());
        out.extend_from_slice(&origin);
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&u32::try_from(CHUNK).unwrap_or(0).to_le_bytes());
        out.extend_from_slice(
            &u32::try_from(self.sums.0.len())
                .unwrap_or(u32::MAX)
                .to_le_bytes(),
        );
        out.extend_from_slice(&u16::try_from(media.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(digest.as_bytes()), &out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(&MAGIC);
        out
    }

    /// Reads the trailer of a file of `len` bytes through `read_at`. First checks that the lengths
    /// in the trailer add up to `len`, so that a damaged trailer cannot cause a large allocation.
    ///
    /// # Errors
    /// `InvalidData` when the bytes are no trailer of `digest`. Any other error is an error of
    /// `read_at`.
    pub fn decode(
        digest: &Digest,
        len: u64,
        mut read_at: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Self> {
        let start = len
            .checked_sub(FOOTER_LEN as u64)
            .ok_or_else(|| damaged("too short for a footer"))?;
        let mut footer = [0; FOOTER_LEN];
        read_at(start, &mut footer)?;
        let (fields, rest) = footer.split_at(CHECKED_LEN);
        if rest[4..] != MAGIC {
            return Err(damaged("no footer"));
        }
        let size = u64::from_le_bytes(array(&fields[..8]));
        let chunk = u32::from_le_bytes(array(&fields[8..12]));
        let count = u32::from_le_bytes(array(&fields[12..16]));
        let media_len = u16::from_le_bytes(array(&fields[16..18]));
        let version = u16::from_le_bytes(array(&fields[18..]));
        let origin_len = match version {
            VERSION_WITHOUT_ORIGIN => 0,
            VERSION_WITH_ORIGIN => Origin::LEN,
            _ => return Err(damaged("unknown version of the footer")),
        };
        if u64::from(chunk) != CHUNK as u64 {
            return Err(damaged("unknown size of a chunk"));
        }
        let sums_len = 4 * u64::from(count);
        let names_len = usize::from(media_len) + origin_len;
        let adds_up = size.checked_add(sums_len + names_len as u64) == Some(start);
        if !adds_up || u64::from(count) != size.div_ceil(CHUNK as u64) {
            return Err(damaged("lengths do not add up"));
        }
        let sums_len = usize::try_from(sums_len).map_err(|_| damaged("too large"))?;
        let mut body = vec![0; sums_len + names_len];
        read_at(size, &mut body)?;
        let sum = crc32c::crc32c_append(crc32c::crc32c(digest.as_bytes()), &body);
        if crc32c::crc32c_append(sum, fields).to_le_bytes() != rest[..4] {
            return Err(damaged("checksum of the trailer"));
        }
        let (sums, names) = body.split_at(sums_len);
        let (media, origin) = names.split_at(usize::from(media_len));
        let sums = sums
            .chunks_exact(4)
            .map(|sum| u32::from_le_bytes(array(sum)))
            .collect();
        let media_type = match media {
            [] => None,
            text => {
                let text = std::str::from_utf8(text).ok().and_then(MediaType::new);
                Some(text.ok_or_else(|| damaged("media type"))?)
            }
        };
        let origin = match origin {
            [] => Origin::LOCAL,
            origin => Origin::decode(array(origin)).ok_or_else(|| damaged("origin"))?,
        };
        Ok(Self {
            size,
            media_type,
            origin,
            sums: Sums(sums),
        })
    }
}

/// Copies a slice of exactly `N` bytes into an array.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
