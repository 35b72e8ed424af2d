//! Content digests (`sha256:<64 hex>` and `sha512:<128 hex>`): the type `Digest`, its parser, and a
//! hasher.

use std::fmt;
use std::str::FromStr;

use sha2::Digest as _;

use crate::ParseError;

/// The hash function of a [`Digest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// SHA-256, 32 bytes. Nearly all registries use SHA-256.
    Sha256,
    /// SHA-512, 64 bytes. The image specification allows SHA-512, but few registries use it.
    Sha512,
}

impl Algorithm {
    /// Returns the name of the algorithm, which is in front of the colon of a digest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn named(name: &str) -> Result<Self, ParseError> {
        let mut all = [Self::Sha256, Self::Sha512].into_iter();
        all.find(|algorithm| algorithm.as_str() == name)
            .ok_or(ParseError::DigestAlgorithm)
    }

    /// Returns the length of the hash in bytes.
    pub const fn hash_len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }
}

/// A content digest. The type is `Copy`, has 65 bytes and allocates no memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    /// The hash, in the first `algorithm.hash_len()` bytes. All other bytes are zero, so that the
    /// derived comparisons are right.
    bytes: [u8; 64],
}

impl Digest {
    /// Computes the digest of `content`, in one pass.
    pub fn of(algorithm: Algorithm, content: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(content);
        hasher.finish()
    }

    /// Returns the hash function of the digest.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the raw hash, which has 32 or 64 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.hash_len()]
    }

    /// Returns the hash in lower-case hexadecimal, without the algorithm. Allocates a string.
    pub fn hex(&self) -> String {
        let mut hex = String::with_capacity(2 * self.algorithm.hash_len());
        for byte in self.as_bytes() {
            for nibble in [byte >> 4, byte & 15] {
                hex.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
            }
        }
        hex
    }

    /// Creates a digest from the raw bytes of a hash. `None` if hashes of `algorithm` have another
    /// length.
    pub fn from_bytes(algorithm: Algorithm, raw: &[u8]) -> Option<Self> {
        let mut bytes = [0; 64];
        if raw.len() != algorithm.hash_len() {
            return None;
        }
        bytes[..raw.len()].copy_from_slice(raw);
        Some(Self { algorithm, bytes })
    }
}

impl Digest {
    /// Parses the hash of a digest, in lower-case hexadecimal and without the algorithm.
    ///
    /// # Errors
    /// [`ParseError::Digest`] if `hex` has another length or another character.
    pub fn from_hex(algorithm: Algorithm, hex: &str) -> Result<Self, ParseError> {
        let hex = hex.as_bytes();
        if hex.len() != 2 * algorithm.hash_len() {
            return Err(ParseError::Digest);
        }
        let mut bytes = [0; 64];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self { algorithm, bytes })
    }

    /// Returns the digest as a name without a colon, `ALGORITHM-HEX`, for file names and tags.
    pub fn file_name(&self) -> String {
        format!("{}-{}", self.algorithm.as_str(), self.hex())
    }

    /// Parses a name of the form that [`Self::file_name`] returns.
    ///
    /// # Errors
    /// [`ParseError::Digest`] or [`ParseError::DigestAlgorithm`] for any other name.
    pub fn from_file_name(name: &str) -> Result<Self, ParseError> {
        Self::from_parts(name.split_once('-'))
    }

    fn from_parts(parts: Option<(&str, &str)>) -> Result<Self, ParseError> {
        let (name, hex) = parts.ok_or(ParseError::Digest)?;
        Self::from_hex(Algorithm::named(name)?, hex)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm.as_str())?;
        f.write_str(":")?;
        f.write_str(&self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::from_parts(text.split_once(':'))
    }
}

/// Returns the value of a hexadecimal digit. Upper case is refused, because the specification
/// allows only lower case.
fn nibble(byte: u8) -> Result<u8, ParseError> {
    match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(ParseError::Digest),
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Computes a [`Digest`] of bytes that arrive in pieces.
#[derive(Clone)]
pub struct Hasher(Inner);

#[derive(Clone)]
enum Inner {
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
}

impl Hasher {
    /// Creates a hasher that has no input yet.
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => Inner::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => Inner::Sha512(sha2::Sha512::new()),
        })
    }

    /// Adds bytes to the input of the hasher.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Inner::Sha256(state) => state.update(bytes),
            Inner::Sha512(state) => state.update(bytes),
        }
    }

    /// Returns the digest of the whole input.
    pub fn finish(self) -> Digest {
        let (algorithm, raw) = match self.0 {
            Inner::Sha256(state) => (Algorithm::Sha256, state.finalize().to_vec()),
            Inner::Sha512(state) => (Algorithm::Sha512, state.finalize().to_vec()),
        };
        let mut bytes = [0; 64];
        bytes[..raw.len()].copy_from_slice(&raw);
        Digest { algorithm, bytes }
    }
}
