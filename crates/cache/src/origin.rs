//! `Origin`: the registry and the repository from which all bytes of a blob came.

use pierhead_oci::{Algorithm, Digest, Registry, Repository};

/// Length of the hash of one name in bytes. 16 bytes are enough, because nobody can find a name
/// whose hash has 128 given bits.
const HASH_LEN: usize = 16;

/// The registry that sends the bytes of a fill, and one of its repositories that has the blob, as
/// hashes of their names. The repository may be unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    registry: [u8; HASH_LEN],
    /// All zeros while the repository is unknown.
    repository: [u8; HASH_LEN],
}

impl Origin {
    /// The origin of bytes that come from no registry, because pierhead made or verified them
    /// itself. These bytes stay staged only until the process ends.
    pub const LOCAL: Self = Self {
        registry: [0; HASH_LEN],
        repository: [0; HASH_LEN],
    };

    /// Length of an encoded origin in bytes.
    pub(crate) const LEN: usize = 2 * HASH_LEN;

    /// Identifies a registry by its name, independent of its addresses. The repository is unknown.
    pub fn of(registry: &Registry) -> Self {
        Self {
            registry: hash(registry.as_str()),
            repository: [0; HASH_LEN],
        }
    }

    /// Adds the repository of this registry that has the blob.
    #[must_use]
    pub fn in_repository(self, repository: &Repository) -> Self {
        let repository = hash(repository.as_str());
        Self { repository, ..self }
    }

    /// Whether both origins are of the same registry.
    pub fn is_same_registry(&self, other: &Self) -> bool {
        self.registry == other.registry
    }

    /// Whether this origin is of the registry of `wanted`, and of its repository, if `wanted` has a
    /// repository.
    fn satisfies(&self, wanted: &Self) -> bool {
        let any_repository = wanted.repository == Self::LOCAL.repository;
        self.is_same_registry(wanted) && (any_repository || self.repository == wanted.repository)
    }

    /// Returns the hash of the registry as hexadecimal digits.
    pub(crate) fn registry_hex(&self) -> String {
        use std::fmt::Write as _;
        let mut hex = String::new();
        for byte in self.registry {
            // The result is ignored, because writing to a `String` never fails.
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }

    /// Parses the hash of a registry. The repository is unknown.
    pub(crate) fn from_registry_hex(hex: &str) -> Option<Self> {
        let mut registry = [0; HASH_LEN];
        if hex.len() != 2 * HASH_LEN || !hex.is_ascii() {
            return None;
        }
        for (index, byte) in registry.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        let origin = Self {
            registry,
            ..Self::LOCAL
        };
        Some(origin)
    }

    /// Encodes the origin as the hash of the registry and the hash of the repository.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..HASH_LEN].copy_from_slice(&self.registry);
        bytes[HASH_LEN..].copy_from_slice(&self.repository);
        bytes
    }

    /// Decodes an origin. `None` for [`Origin::LOCAL`], which is never encoded.
    pub(crate) fn decode(bytes: [u8; Self::LEN]) -> Option<Self> {
        let (mut registry, mut repository) = ([0; HASH_LEN], [0; HASH_LEN]);
        registry.copy_from_slice(&bytes[..HASH_LEN]);
        repository.copy_from_slice(&bytes[HASH_LEN..]);
        (registry != Self::LOCAL.registry).then_some(Self {
            registry,
            repository,
        })
    }
}

fn hash(name: &str) -> [u8; HASH_LEN] {
    let hash = Digest::of(Algorithm::Sha256, name.as_bytes());
    // A SHA-256 hash has 32 bytes.
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// The registries that have each sent all bytes of one digest, with one repository per registry.
/// Once a registry has sent all bytes of a digest, this fact stays true.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OriginSet(Box<[Origin]>);

impl OriginSet {
    /// Maximum number of registries that are remembered for one blob. A client can name any
    /// registry, so the number must be limited.
    const MAX_ORIGINS: usize = 4;

    /// Adds an origin. If the set is full, drops the origin that was added first among those that
    /// did not fill the blob. Returns whether the set changed.
    pub(crate) fn add(&mut self, origin: Origin) -> bool {
        if origin == Origin::LOCAL {
            return false;
        }
        let known = self.0.iter_mut().find(|it| it.is_same_registry(&origin));
        if let Some(known) = known {
            let learns = known.repository == Origin::LOCAL.repository && *known != origin;
            if learns {
                *known = origin;
            }
            return learns;
        }
        let mut all = std::mem::take(&mut self.0).into_vec();
        if all.len() == Self::MAX_ORIGINS {
            // The first origin is that of the fill.
            all.remove(1);
        }
        all.push(origin);
        self.0 = all.into_boxed_slice();
        true
    }

    /// Whether the registry of `wanted` has sent all bytes. If `wanted` has a repository, the set
    /// must also have this repository.
    pub(crate) fn contains(&self, wanted: &Origin) -> bool {
        self.0.iter().any(|origin| origin.satisfies(wanted))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends all origins to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for origin in &self.0 {
            out.extend_from_slice(&origin.encode());
        }
    }

    /// Decodes origins. `None` when the bytes are invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (origins, rest) = bytes.as_chunks();
        if !rest.is_empty() || origins.len() > Self::MAX_ORIGINS {
            return None;
        }
        let origins = origins.iter().map(|origin| Origin::decode(*origin));
        Some(Self(origins.collect::<Option<_>>()?))
    }
}

impl From<Origin> for OriginSet {
    fn from(origin: Origin) -> Self {
        let mut set = Self::default();
        set.add(origin);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(registry: &str) -> Origin {
        Origin::of(&registry.parse().unwrap())
    }

    fn in_repository(registry: &str, repository: &str) -> Origin {
        origin(registry).in_repository(&repository.parse().unwrap())
    }

    #[test]
    fn a_set_knows_registries_and_one_repository_of_each() {
        let mut set = OriginSet::from(origin("one.example"));
        assert!(set.contains(&origin("one.example")));
        assert!(!set.contains(&origin("two.example")));
        let app = in_repository("one.example", "app");
        assert!(!set.contains(&app), "the repository is unknown");
        assert!(set.add(app) && set.contains(&app) && !set.add(app));
        // The set stays as it is, so that many repositories of one registry do not fill it.
        assert!(!set.add(in_repository("one.example", "other")) && set.contains(&app));
        assert!(!set.add(origin("one.example")) && set.contains(&app));
        assert!(!set.contains(&in_repository("two.example", "app")));
        assert!(!set.add(Origin::LOCAL) && !set.contains(&Origin::LOCAL));
    }

    #[test]
    fn a_full_set_keeps_the_origin_of_the_fill_and_the_latest_origins() {
        let name = |n: usize| origin(&format!("r{n}.example"));
        let mut set = OriginSet::default();
        for n in 0..10 {
            assert!(set.add(name(n)) && set.contains(&name(n)), "{n}");
        }
        let left: Vec<_> = (0..10).filter(|n| set.contains(&name(*n))).collect();
        assert_eq!(left, [0, 7, 8, 9]);
    }

    #[test]
    fn a_set_survives_a_round_trip_and_other_bytes_are_refused() {
        let mut set = OriginSet::from(in_repository("one.example", "app"));
        set.add(origin("two.example:5000"));
        let mut bytes = Vec::new();
        set.encode(&mut bytes);
        assert_eq!(OriginSet::decode(&bytes), Some(set));
        assert_eq!(OriginSet::decode(&[]), Some(OriginSet::default()));
        assert_eq!(OriginSet::decode(&bytes[1..]), None);
        assert_eq!(OriginSet::decode(&[0; Origin::LEN]), None);
        assert_eq!(OriginSet::decode(&[1; 5 * Origin::LEN]), None);
    }
}
