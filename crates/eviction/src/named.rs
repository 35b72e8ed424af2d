//! The eviction policies that the daemon offers, by their names in the configuration.

use std::fmt;
use std::str::FromStr;

use crate::policy::{cherry, gdsf, learned, lru, s3_fifo, size_split};
use crate::{Cherry, Gdsf, Key, Learned, Lru, Policy, S3Fifo, SizeSplit};

/// An eviction policy that the daemon offers, with its documented default parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyName {
    /// The policy [`Lru`]: evicts the least recently used key.
    Lru,
    /// The policy [`S3Fifo`]: a small and a main queue.
    S3Fifo,
    /// The policy [`Gdsf`]: ranks by frequency, cost and size.
    Gdsf,
    /// The policy [`Cherry`]: ranks by images and requests.
    Cherry,
    /// The policy [`SizeSplit`]: ranks small and large keys separately.
    SizeSplit,
    /// The policy [`Learned`]: ranks by a network that learns while the cache runs.
    Learned,
}

/// The error for a name that no policy of the daemon has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no eviction policy: write one of {names} (pierhead-replay simulates more policies)",
    names = PolicyName::names()
)]
pub struct UnknownPolicy(pub String);

impl PolicyName {
    /// All policies of the daemon, in the order of help texts and errors.
    pub const ALL: &[Self] = &[
        Self::Lru,
        Self::S3Fifo,
        Self::Gdsf,
        Self::Cherry,
        Self::SizeSplit,
        Self::Learned,
    ];

    /// The default policy. On every synthetic registry workload, this policy misses fewer objects
    /// and fewer bytes than LRU at cache sizes of 1 % and 10 % of the footprint (the bytes of all
    /// requested objects). At cache sizes above about a fifth of the footprint, clients wait longer
    /// than with LRU (`docs/explanation/eviction.md`).
    pub const DEFAULT: Self = Self::SizeSplit;

    /// Returns the name of the policy in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => lru::NAME,
            Self::S3Fifo => s3_fifo::NAME,
            Self::Gdsf => gdsf::NAME,
            Self::Cherry => cherry::NAME,
            Self::SizeSplit => size_split::NAME,
            Self::Learned => learned::NAME,
        }
    }

    /// Builds the policy for a cache of `capacity` bytes. `seed` is the seed of the policy's random
    /// numbers.
    pub fn build<K: Key>(self, capacity: u64, seed: u64) -> Box<dyn Policy<K>> {
        match self {
            Self::Lru => Box::new(Lru::new()),
            Self::S3Fifo => Box::new(S3Fifo::with(capacity, s3_fifo::S3FifoParameters::default())),
            Self::Gdsf => Box::new(Gdsf::default()),
            Self::Cherry => Box::new(Cherry::default()),
            Self::SizeSplit => Box::new(SizeSplit::with_defaults(capacity)),
            Self::Learned => Box::new(Learned::new(capacity, seed)),
        }
    }

    fn names() -> String {
        let names: Vec<&str> = Self::ALL.iter().map(|named| named.name()).collect();
        names.join(", ")
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.iter().find(|named| named.name() == name);
        found.copied().ok_or_else(|| UnknownPolicy(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_parsed_and_the_error_for_another_lists_all_names() {
        for named in PolicyName::ALL {
            assert_eq!(named.name().parse(), Ok(*named));
        }
        let error = "belayd"
            .parse::<PolicyName>()
            .map_err(|error| error.to_string());
        assert!(error.is_err_and(|text| text.contains("\"belayd\"") && text.contains("lru")));
    }
}
