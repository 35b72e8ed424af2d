//! The file format of saved states of policies and admission filters: name, version, contents, and
//! a checksum.
//!
//! ```text
//! "PHEV" | version, u16 | length of the name, u8 | name | payload (postcard) | CRC-32C of all before, u32
//! ```
//! All numbers in the file are little-endian.

use serde::Serialize;
use serde::de::DeserializeOwned;

const MAGIC: &[u8; 4] = b"PHEV";
/// Version of all payloads. Whoever changes a payload must raise this version. There is no
/// migration: if the state is lost, the policy only starts without knowledge of earlier requests.
const VERSION: u16 = 1;
const CHECKSUM: usize = 4;

/// The reason why a saved state cannot be restored. The caller then starts without the state and
/// loses only the ranking of keys.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The bytes are not a saved state, or they are truncated.
    #[error("not a saved eviction state, or truncated")]
    Damaged,
    /// Another version of pierhead wrote the state.
    #[error("the saved eviction state has version {found}, expected {VERSION}")]
    Version {
        /// The version of the saved state.
        found: u16,
    },
    /// Another policy or admission filter wrote the state.
    #[error("the saved state belongs to {found:?}, expected {expected:?}")]
    Kind {
        /// Name of the policy or admission filter that wrote the state.
        found: String,
        /// Name of the policy or admission filter that should restore the state.
        expected: &'static str,
    },
    /// The checksum is right, but the contents are invalid.
    #[error("the saved eviction state is invalid: {0}")]
    Content(&'static str),
}

/// The state of a policy or filter that survives a restart of the process.
pub trait PersistentState {
    /// Returns all data on which future decisions depend, as bytes for
    /// [`PersistentState::restore`].
    fn save(&self) -> Vec<u8>;

    /// Restores a saved state. The parameters of `self` do not change.
    ///
    /// # Errors
    /// [`StateError`] if the bytes are damaged or of another version or kind. In that case, nothing
    /// changes.
    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError>;
}

impl<P: PersistentState + ?Sized> PersistentState for Box<P> {
    fn save(&self) -> Vec<u8> {
        (**self).save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        (**self).restore(saved)
    }
}

/// Serializes the state of the policy `kind`.
pub fn seal<T: Serialize>(kind: &'static str, state: &T) -> Vec<u8> {
    let mut out = Vec::from(*MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.push(u8::try_from(kind.len()).unwrap_or(u8::MAX));
    out.extend(kind.as_bytes());
    match postcard::to_extend(state, out) {
        Ok(mut out) => {
            out.extend(crc32c::crc32c(&out).to_le_bytes());
            out
        }
        // A write to memory cannot fail, so the only error is a key that cannot be serialized. The
        // saved state is then empty.
        Err(_) => Vec::new(),
    }
}

/// Returns the given bytes with a valid checksum, so that a fuzzer does not have to find the
/// checksum.
#[cfg(any(test, feature = "testing"))]
pub fn with_valid_checksum(saved: &[u8]) -> Vec<u8> {
    let body = saved.len().saturating_sub(CHECKSUM);
    let mut out = Vec::from(&saved[..body]);
    out.extend(crc32c::crc32c(&out).to_le_bytes());
    out
}

/// Checks and deserializes the state of the policy `kind`.
pub fn open<T: DeserializeOwned>(kind: &'static str, saved: &[u8]) -> Result<T, StateError> {
    let (body, sum) = saved
        .split_last_chunk::<CHECKSUM>()
        .ok_or(StateError::Damaged)?;
    let rest = body.strip_prefix(MAGIC).ok_or(StateError::Damaged)?;
    let (version, rest) = rest.split_first_chunk().ok_or(StateError::Damaged)?;
    let found = u16::from_le_bytes(*version);
    if found != VERSION {
        return Err(StateError::Version { found });
    }
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(StateError::Damaged);
    }
    let (len, rest) = rest.split_first().ok_or(StateError::Damaged)?;
    let (name, payload) = rest
        .split_at_checked(usize::from(*len))
        .ok_or(StateError::Damaged)?;
    if name != kind.as_bytes() {
        return Err(StateError::Kind {
            found: String::from_utf8_lossy(name).into_owned(),
            expected: kind,
        });
    }
    match postcard::take_from_bytes(payload) {
        Ok((state, [])) => Ok(state),
        _ => Err(StateError::Content("its payload has another format")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> Vec<u8> {
        seal("lru", &vec![1_u64, 2, 300])
    }

    #[test]
    fn a_sealed_state_is_opened_unchanged() {
        assert_eq!(open::<Vec<u64>>("lru", &sealed()), Ok(vec![1, 2, 300]));
    }

    #[test]
    fn a_state_that_is_truncated_anywhere_is_refused() {
        for end in 0..sealed().len() {
            assert!(open::<Vec<u64>>("lru", &sealed()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_state_with_any_byte_changed_is_refused() {
        for at in 0..sealed().len() {
            let mut state = sealed();
            state[at] ^= 0x10;
            assert!(open::<Vec<u64>>("lru", &state).is_err(), "byte {at}");
        }
    }

    #[test]
    fn errors_name_another_version_and_another_policy() {
        let mut other = sealed();
        other[4] = 9;
        assert_eq!(
            open::<Vec<u64>>("lru", &other),
            Err(StateError::Version { found: 9 })
        );
        let kind = StateError::Kind {
            found: "lru".into(),
            expected: "sieve",
        };
        assert_eq!(open::<Vec<u64>>("sieve", &sealed()), Err(kind));
    }

    #[test]
    fn a_state_with_another_payload_is_refused() {
        let content = StateError::Content("its payload has another format");
        assert_eq!(open::<u8>("lru", &sealed()), Err(content));
    }
}
