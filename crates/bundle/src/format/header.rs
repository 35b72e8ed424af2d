//! Encodes and decodes the header of a bundle: manifest, config, TOC (table of contents) and frame
//! list. The header contains everything that a mount needs except file contents.

use pierhead_oci::{Algorithm, Digest};
use sha2::{Digest as _, Sha256};

use super::bounded;
use super::frames::{Frames, MAX_FRAME_LIST};
use crate::Error;
use crate::api::MAX_BASE_IMAGES;
use pierhead_toc::FileDigest;
use pierhead_toc::varint::{self, Reader};

/// Length of the prelude, in bytes.
pub const PRELUDE: usize = 56;

/// Maximum size of the header's body in bytes.
pub const MAX_BODY: usize = 10 << 20;

/// Maximum size of manifest and config together, in bytes. A worker holds manifest and config in
/// memory.
pub const MAX_DOCUMENTS: usize = 4 << 20;

/// Maximum size of a TOC in its canonical form, in bytes: about 220 000 files. This limit bounds
/// the memory of a worker.
pub const MAX_TOC: usize = 16 << 20;

const MAGIC: [u8; 8] = *b"\x89PHB\r\n\x1a\n";
const VERSION: u16 = 1;
const CONTINUED: u16 = 1;
const LAYERS: u16 = 2;
const PIECE: u16 = 4;
/// Maximum length of a media type in a bundle header, in bytes.
const MAX_MEDIA_TYPE: usize = 255;
const FORMAT_NAME: &str = "bundle header";

/// The first bytes of every response. The prelude identifies the bundle and says which parts
/// follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prelude {
    /// The body of the header does not follow, since the worker has this body from an earlier
    /// response.
    pub continued: bool,
    /// Only with `continued`: after the prelude comes the piece of the header's body that belongs
    /// to the requested share.
    pub piece: bool,
    /// The bundle includes extras: contents that a worker needs only to rebuild layers.
    pub layers: bool,
    /// Length of the header's body in bytes, also when this response does not contain the body.
    pub body: u32,
    /// Number of the first frame whose record may follow.
    pub first: u32,
    /// Number of the frame after the last frame whose record may follow.
    pub until: u32,
    /// SHA-256 hash of the header's body.
    pub digest: [u8; 32],
}

impl Prelude {
    /// Encodes the prelude of a response.
    pub fn encode(&self) -> [u8; PRELUDE] {
        let mut bytes = [0; PRELUDE];
        let flags = (u16::from(self.continued) * CONTINUED)
            | (u16::from(self.layers) * LAYERS)
            | (u16::from(self.piece) * PIECE);
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.first.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.until.to_le_bytes());
        bytes[24..].copy_from_slice(&self.digest);
        bytes
    }

    /// Parses the prelude of a response.
    ///
    /// # Errors
    /// [`Error::Malformed`] for another format or version, unknown flags, or a body or range that
    /// exceeds a limit.
    pub fn decode(bytes: &[u8; PRELUDE]) -> Result<Self, Error> {
        let u32_at = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(four)
        };
        if bytes[..8] != MAGIC {
            return Err(wrong("these bytes are no bundle"));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(wrong(format!("version {version} is unknown")));
        }
        let flags = u16::from_le_bytes([bytes[10], bytes[11]]);
        if flags & !(CONTINUED | LAYERS | PIECE) != 0 || flags & (CONTINUED | PIECE) == PIECE {
            return Err(wrong("flags that are unknown"));
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(&bytes[24..]);
        let prelude = Self {
            continued: flags & CONTINUED != 0,
            piece: flags & PIECE != 0,
            layers: flags & LAYERS != 0,
            body: u32_at(12),
            first: u32_at(16),
            until: u32_at(20),
            digest,
        };
        if prelude.first > prelude.until || prelude.body_len() > MAX_BODY || prelude.body == 0 {
            return Err(wrong("invalid lengths"));
        }
        Ok(prelude)
    }

    /// Returns the length of the header's body in bytes.
    pub fn body_len(&self) -> usize {
        usize::try_from(self.body).unwrap_or(usize::MAX)
    }

    /// Returns an `ETag` that identifies only the header's body. A server that may send different
    /// records with the same body uses a longer `ETag`. A worker does not interpret the `ETag`.
    pub fn etag(&self) -> String {
        format!("\"{}\"", FileDigest::from_bytes(self.digest).hex())
    }
}

/// A base image of a bundle: an image that the worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseImage {
    /// The digest of the base image's manifest.
    pub manifest: Digest,
    /// Which contents of the base image the bundle uses.
    pub usable: UsableContents,
}

/// Which contents of a base image a bundle uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsableContents {
    /// No content, since the server does not know the image or the client may not pull it.
    None,
    /// The contents of the merged tree, which a mount shows.
    Visible,
    /// All contents, including those that a worker needs only to rebuild layers.
    All,
}

/// The TOC of the wanted image, compressed for the transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireToc {
    /// Position in [`Header::base_images`] of the base image whose TOC is the prefix of the
    /// compression.
    pub base: Option<u16>,
    /// SHA-256 of the TOC's canonical (uncompressed) bytes.
    pub digest: [u8; 32],
    /// Length of the TOC's canonical form in bytes, at most [`MAX_TOC`].
    pub len: u32,
    /// The compressed bytes, from `pierhead_toc::image_toc::compress`.
    pub coded: Vec<u8>,
}

/// The header of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The bundle includes extras: contents that a worker needs only to rebuild layers.
    pub layers: bool,
    /// Media type of the manifest of the wanted image.
    pub media_type: String,
    /// The exact bytes of the manifest.
    pub manifest: Vec<u8>,
    /// The exact bytes of the config.
    pub config: Vec<u8>,
    /// The base images that the bundle uses, in the order that the server chose.
    /// [`crate::BaseSlice::image`] is a position in this list.
    pub base_images: Vec<BaseImage>,
    /// The TOC of the wanted image.
    pub toc: WireToc,
    /// The frames of the bundle, in the order of sending.
    pub frames: Frames,
    /// Number of bytes of all records including their heads, or 0 when the server does not know
    /// this number. A worker uses the number only for its progress bar, and to divide the bundle
    /// among connections.
    pub records: u64,
}

impl Header {
    /// Encodes the prelude and the body of the header. The prelude announces the records of all
    /// frames. `level` is the zstd level for the documents and the frame list.
    ///
    /// # Errors
    /// [`Error::Malformed`] when a limit is exceeded.
    pub fn encode(&self, level: i32) -> Result<(Prelude, Vec<u8>), Error> {
        let mut body = Vec::new();
        self.check()?;
        varint::put(&mut body, as_u64(self.base_images.len()));
        for base in &self.base_images {
            body.push(match base.usable {
                UsableContents::None => 0,
                UsableContents::Visible => 1,
                UsableContents::All => 2,
            });
            body.push(match base.manifest.algorithm() {
                Algorithm::Sha256 => 0,
                Algorithm::Sha512 => 1,
            });
            body.extend_from_slice(base.manifest.as_bytes());
        }
        let toc = &self.toc;
        varint::put(&mut body, toc.base.map_or(0, |base| u64::from(base) + 1));
        body.extend_from_slice(&toc.digest);
        varint::put(&mut body, u64::from(toc.len));
        put_bytes(&mut body, &toc.coded);
        let mut documents = Vec::new();
        put_bytes(&mut documents, self.media_type.as_bytes());
        put_bytes(&mut documents, &self.manifest);
        documents.extend_from_slice(&self.config);
        for plain in [&documents[..], self.frames.bytes()] {
            varint::put(&mut body, as_u64(plain.len()));
            put_bytes(&mut body, &bounded::compress(plain, level)?);
        }
        varint::put(&mut body, self.records);
        let len = u32::try_from(body.len())
            .ok()
            .filter(|_| body.len() <= MAX_BODY);
        let prelude = Prelude {
            continued: false,
            piece: false,
            layers: self.layers,
            body: len.ok_or_else(|| wrong("it is too long"))?,
            first: 0,
            until: u32::try_from(self.frames.len()).unwrap_or(u32::MAX),
            digest: Sha256::digest(&body).into(),
        };
        Ok((prelude, body))
    }

    /// Parses the body that a prelude announces. Encoding the returned header at the same level
    /// gives the same bytes. The call allocates at most [`MAX_DOCUMENTS`] + [`MAX_FRAME_LIST`]
    /// bytes besides the body.
    ///
    /// # Errors
    /// [`Error::Digest`] when the body does not match the digest in the prelude;
    /// [`Error::Malformed`] for any other fault of the body.
    pub fn decode(prelude: &Prelude, body: &[u8]) -> Result<Self, Error> {
        let found: [u8; 32] = Sha256::digest(body).into();
        if found != prelude.digest {
            return Err(Error::Digest {
                what: "the header of a bundle".into(),
                expected: FileDigest::from_bytes(prelude.digest).hex(),
                found: FileDigest::from_bytes(found).hex(),
            });
        }
        let mut reader = Reader::new(FORMAT_NAME, body);
        let base_images = base_images(&mut reader)?;
        let base = match reader.u32()? {
            0 => None,
            base => Some(
                u16::try_from(base - 1)
                    .map_err(|_| wrong("a TOC that is coded against no image"))?,
            ),
        };
        let toc = WireToc {
            base,
            digest: *reader.content()?.as_bytes(),
            len: reader.u32()?,
            coded: take_bytes(&mut reader)?.to_vec(),
        };
        let documents = plain(&mut reader, MAX_DOCUMENTS)?;
        let frames = Frames::parse(plain(&mut reader, MAX_FRAME_LIST)?)?;
        let records = reader.u64()?;
        reader.end()?;
        let mut reader = Reader::new(FORMAT_NAME, &documents);
        let media_type = String::from_utf8(take_bytes(&mut reader)?.to_vec())
            .map_err(|_| wrong("a media type that is no text"))?;
        let manifest = take_bytes(&mut reader)?.to_vec();
        let config = reader.rest().to_vec();
        let header = Self {
            layers: prelude.layers,
            media_type,
            manifest,
            config,
            base_images,
            toc,
            frames,
            records,
        };
        header.check()?;
        let until = usize::try_from(prelude.until).unwrap_or(usize::MAX);
        if until > header.frames.len() {
            return Err(wrong("a range over the last frame"));
        }
        Ok(header)
    }

    fn check(&self) -> Result<(), Error> {
        let over = |bytes: &[u8], most| bytes.len() > most;
        let base = self
            .toc
            .base
            .map(|base| self.base_images.get(usize::from(base)));
        if self.base_images.len() > MAX_BASE_IMAGES {
            return Err(wrong("too many images"));
        }
        if base.is_some_and(|base| base.is_none_or(|base| base.usable == UsableContents::None)) {
            return Err(wrong("a TOC that is coded against an unusable base image"));
        }
        if usize::try_from(self.toc.len).map_or(true, |len| len > MAX_TOC) {
            return Err(wrong("the TOC is too long"));
        }
        if over(self.media_type.as_bytes(), MAX_MEDIA_TYPE)
            || self.manifest.len() + self.config.len() + MAX_MEDIA_TYPE + 16 > MAX_DOCUMENTS
        {
            return Err(wrong("the documents are too long"));
        }
        Ok(())
    }
}

impl BaseImage {
    /// Decodes the base images from the start of the body of a header.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a malformed body.
    pub fn all_of(body: &[u8]) -> Result<Vec<Self>, Error> {
        base_images(&mut Reader::new(FORMAT_NAME, body))
    }
}

fn base_images(reader: &mut Reader<'_>) -> Result<Vec<BaseImage>, Error> {
    (0..reader.count()?).map(|_| base_image(reader)).collect()
}

fn base_image(reader: &mut Reader<'_>) -> Result<BaseImage, Error> {
    let usable = match reader.byte()? {
        0 => UsableContents::None,
        1 => UsableContents::Visible,
        2 => UsableContents::All,
        _ => return Err(wrong("an unknown kind of base image")),
    };
    let algorithm = match reader.byte()? {
        0 => Algorithm::Sha256,
        1 => Algorithm::Sha512,
        _ => return Err(wrong("a digest of an unknown algorithm")),
    };
    let manifest = Digest::from_bytes(algorithm, reader.take(algorithm.hash_len())?);
    let manifest = manifest.ok_or_else(|| wrong("a digest of another length"))?;
    Ok(BaseImage { manifest, usable })
}

/// Reads and decompresses one part of the body, which has at most `most` bytes.
fn plain(reader: &mut Reader<'_>, most: usize) -> Result<Vec<u8>, Error> {
    let len = usize::try_from(reader.u64()?).unwrap_or(usize::MAX);
    if len > most {
        return Err(wrong("a part that is too long"));
    }
    let coded = take_bytes(reader)?;
    bounded::decompress(coded, len, &[]).map_err(|why| wrong(why.to_string()))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, as_u64(bytes.len()));
    out.extend_from_slice(bytes);
}

fn take_bytes<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Error> {
    let len = reader.count()?;
    Ok(reader.take(len)?)
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

fn wrong(why: impl Into<String>) -> Error {
    Error::malformed(FORMAT_NAME, why)
}
