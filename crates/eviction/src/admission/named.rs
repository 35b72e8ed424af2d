//! The admission filters by the names that the configuration and `pierhead-replay` use.

use std::fmt;
use std::str::FromStr;

use crate::Key;
use crate::admission::{
    Admission, Always, SecondHit, SizeAware, TinyLfu, always, second_hit, size_aware, tinylfu,
};

/// An admission filter with its documented default parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdmissionName {
    /// The admission filter [`Always`], which admits all keys.
    #[default]
    Always,
    /// The admission filter [`SecondHit`], which admits keys at their second request.
    SecondHit,
    /// The admission filter [`SizeAware`], which prefers small keys.
    SizeAware,
    /// The admission filter [`TinyLfu`], which admits keys with enough recent requests.
    TinyLfu,
}

/// The error for a name that no admission filter has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no admission: write one of {names}", names = AdmissionName::names())]
pub struct UnknownAdmission(pub String);

impl AdmissionName {
    /// All admission filters, in the order of help texts and errors.
    pub const ALL: &[Self] = &[
        Self::Always,
        Self::SecondHit,
        Self::SizeAware,
        Self::TinyLfu,
    ];

    /// Returns the name of the filter in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => always::NAME,
            Self::SecondHit => second_hit::NAME,
            Self::SizeAware => size_aware::NAME,
            Self::TinyLfu => tinylfu::NAME,
        }
    }

    /// Builds the filter for a cache of `capacity` bytes. `seed` is the seed of the filter's random
    /// numbers.
    pub fn build<K: Key>(self, capacity: u64, seed: u64) -> Box<dyn Admission<K>> {
        match self {
            Self::Always => Box::new(Always),
            Self::SecondHit => {
                Box::new(SecondHit::with(second_hit::SecondHitParameters::default()))
            }
            Self::SizeAware => Box::new(SizeAware::with(
                size_aware::SizeAwareParameters::of(capacity),
                seed,
            )),
            Self::TinyLfu => {
                let parameters = tinylfu::TinyLfuParameters::default();
                Box::new(TinyLfu::with(capacity, parameters, seed))
            }
        }
    }

    fn names() -> String {
        let names: Vec<&str> = Self::ALL.iter().map(|named| named.name()).collect();
        names.join(", ")
    }
}

impl fmt::Display for AdmissionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AdmissionName {
    type Err = UnknownAdmission;

    fn from_str(name: &str) -> Result<Self, UnknownAdmission> {
        let found = Self::ALL.iter().find(|named| named.name() == name);
        found.copied().ok_or_else(|| UnknownAdmission(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_parsed_and_the_error_for_another_lists_all_names() {
        for named in AdmissionName::ALL {
            assert_eq!(named.name().parse(), Ok(*named));
        }
        let error = "never"
            .parse::<AdmissionName>()
            .map_err(|error| error.to_string());
        assert!(error.is_err_and(|text| text.contains("\"never\"") && text.contains("second-hit")));
    }
}
