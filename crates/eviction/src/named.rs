//! The policies by the names that the configuration and `pierhead replay` know them by.

use std::fmt;
use std::str::FromStr;

use crate::{
    Arc, Cherry, Fifo, Gdsf, Key, Learned, Lfu, Lhd, Lru, Policy, S3Fifo, Sieve, SizeSplit,
    WTinyLfu, arc, cherry, fifo, gdsf, learned, lfu, lhd, lru, s3_fifo, sieve, size_split,
    w_tinylfu,
};

/// A policy that can be made without knowing the future, with its documented default parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Named {
    /// [`Fifo`].
    Fifo,
    /// [`Lru`].
    Lru,
    /// [`Lfu`].
    Lfu,
    /// [`Sieve`].
    Sieve,
    /// [`S3Fifo`].
    S3Fifo,
    /// [`Arc`].
    Arc,
    /// [`WTinyLfu`].
    WTinyLfu,
    /// [`Gdsf`].
    Gdsf,
    /// [`Lhd`].
    Lhd,
    /// [`Cherry`].
    Cherry,
    /// [`SizeSplit`].
    SizeSplit,
    /// [`Learned`].
    Learned,
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no eviction policy is called {0:?}; there are: {names}", names = Named::names())]
pub struct UnknownPolicy(pub String);

impl Named {
    /// All of them, in the order in which they are listed to people.
    pub const ALL: &[Self] = &[
        Self::Fifo,
        Self::Lru,
        Self::Lfu,
        Self::Sieve,
        Self::S3Fifo,
        Self::Arc,
        Self::WTinyLfu,
        Self::Gdsf,
        Self::Lhd,
        Self::Cherry,
        Self::SizeSplit,
        Self::Learned,
    ];

    /// What is used when nobody chooses: it misses less than LRU in objects and in bytes on every
    /// registry workload that we have, at 1 % and 10 % of the footprint. From about a fifth of it on clients
    /// wait longer than under LRU (`docs/explanation/eviction.md`).
    pub const DEFAULT: Self = Self::SizeSplit;

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifo => fifo::NAME,
            Self::Lru => lru::NAME,
            Self::Lfu => lfu::NAME,
            Self::Sieve => sieve::NAME,
            Self::S3Fifo => s3_fifo::NAME,
            Self::Arc => arc::NAME,
            Self::WTinyLfu => w_tinylfu::NAME,
            Self::Gdsf => gdsf::NAME,
            Self::Lhd => lhd::NAME,
            Self::Cherry => cherry::NAME,
            Self::SizeSplit => size_split::NAME,
            Self::Learned => learned::NAME,
        }
    }

    /// A new one for a cache of `capacity` bytes; those that draw lots draw them from `seed`.
    pub fn build<K: Key>(self, capacity: u64, seed: u64) -> Box<dyn Policy<K>> {
        match self {
            Self::Fifo => Box::new(Fifo::new()),
            Self::Lru => Box::new(Lru::new()),
            Self::Gdsf => Box::new(Gdsf::default()),
            Self::Lhd => Box::new(Lhd::with_defaults(capacity, seed)),
            Self::Cherry => Box::new(Cherry::default()),
            Self::SizeSplit => Box::new(SizeSplit::with_defaults(capacity)),
            Self::Learned => Box::new(Learned::new(capacity, seed)),
            Self::Sieve => Box::new(Sieve::new()),
            Self::Lfu => Box::new(Lfu::default()),
            Self::S3Fifo => Box::new(S3Fifo::with(capacity, s3_fifo::Parameters::default())),
            Self::Arc => Box::new(Arc::new(capacity, arc::Parameters::default())),
            Self::WTinyLfu => {
                let parameters = w_tinylfu::Parameters::default();
                Box::new(WTinyLfu::with(capacity, parameters, seed))
            }
        }
    }

    fn names() -> String {
        let names: Vec<&str> = Self::ALL.iter().map(|named| named.name()).collect();
        names.join(", ")
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Named {
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
    fn every_name_is_found_and_another_is_told_which_there_are() {
        for named in Named::ALL {
            assert_eq!(named.name().parse(), Ok(*named));
        }
        let error = "belayd".parse::<Named>().map_err(|error| error.to_string());
        assert!(error.is_err_and(|text| text.contains("\"belayd\"") && text.contains("lru")));
    }
}
