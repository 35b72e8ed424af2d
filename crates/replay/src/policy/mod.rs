//! All eviction policies of the simulator by their names: policies that the daemon offers, too,
//! policies that only the simulator has, and policies that know the future of the trace.

pub mod arc;
pub mod belady;
pub mod belady_size;
pub mod fifo;
pub mod lfu;
pub mod lhd;
pub mod sieve;
pub mod w_tinylfu;

use std::fmt;
use std::str::FromStr;

use pierhead_eviction::policy::{gdsf, s3_fifo};
use pierhead_eviction::{Gdsf, Key, ParameterError, Policy, PolicyName, S3Fifo};

use belady::Future;
use belady_size::BeladySize;
use lhd::Lhd;

/// An eviction policy of the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimulatedPolicy {
    /// A policy that the daemon also offers.
    OfDaemon(PolicyName),
    /// The policy `fifo`, see [`fifo`].
    Fifo,
    /// The policy `lfu`, see [`lfu`].
    Lfu,
    /// The policy `sieve`, see [`sieve`].
    Sieve,
    /// The policy `arc`, see [`arc`].
    Arc,
    /// The policy `w-tinylfu`, see [`w_tinylfu`].
    WTinyLfu,
    /// The policy `lhd`, see [`lhd`].
    Lhd,
    /// The policy `belady`, see [`belady`].
    Belady,
    /// The policy `belady-size`, see [`belady_size`].
    BeladySize,
}

/// A set of parameters for all policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterSet {
    /// The defaults of `pierhead serve`.
    Pierhead,
    /// The parameters of libCacheSim, for comparisons with the results of libCacheSim.
    Libcachesim,
}

/// The error of an unknown policy: the simulator has no policy of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write one of {names}, all", names = SimulatedPolicy::names())]
pub struct UnknownSimulatedPolicy;

impl SimulatedPolicy {
    /// The policies that do not know the future of the trace, in the order in which help texts list
    /// them.
    pub const ONLINE: &[Self] = &[
        Self::Fifo,
        Self::OfDaemon(PolicyName::Lru),
        Self::Lfu,
        Self::Sieve,
        Self::OfDaemon(PolicyName::S3Fifo),
        Self::Arc,
        Self::WTinyLfu,
        Self::OfDaemon(PolicyName::Gdsf),
        Self::Lhd,
        Self::OfDaemon(PolicyName::Cherry),
        Self::OfDaemon(PolicyName::SizeSplit),
        Self::OfDaemon(PolicyName::Learned),
    ];

    /// Returns all policies. The policies that know the future of the trace are last.
    pub fn all() -> impl Iterator<Item = Self> {
        let online = Self::ONLINE.iter().copied();
        online.chain([Self::Belady, Self::BeladySize])
    }

    /// Returns the name of the policy on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OfDaemon(named) => named.name(),
            Self::Fifo => fifo::NAME,
            Self::Lfu => lfu::NAME,
            Self::Sieve => sieve::NAME,
            Self::Arc => arc::NAME,
            Self::WTinyLfu => w_tinylfu::NAME,
            Self::Lhd => lhd::NAME,
            Self::Belady => belady::NAME,
            Self::BeladySize => belady_size::NAME,
        }
    }

    /// Whether the policy knows the future of the trace.
    pub fn is_clairvoyant(self) -> bool {
        matches!(self, Self::Belady | Self::BeladySize)
    }

    /// Whether the daemon also offers the policy.
    pub fn is_of_daemon(self) -> bool {
        matches!(self, Self::OfDaemon(_))
    }

    /// Builds the policy for a cache of `capacity` bytes. `seed` is the seed of the policy's random
    /// numbers. `future` is called only for a policy that knows the future.
    ///
    /// # Errors
    /// [`ParameterError`] when a parameter of the set is out of its range.
    pub fn build<K: Key>(
        self,
        capacity: u64,
        seed: u64,
        parameters: ParameterSet,
        future: impl FnOnce() -> Future,
    ) -> Result<Box<dyn Policy<K>>, ParameterError> {
        let is_libcachesim = parameters == ParameterSet::Libcachesim;
        Ok(match self {
            Self::OfDaemon(PolicyName::Gdsf) if is_libcachesim => {
                Box::new(Gdsf::new(gdsf::GdsfParameters::libcachesim())?)
            }
            Self::OfDaemon(PolicyName::S3Fifo) if is_libcachesim => Box::new(S3Fifo::new(
                capacity,
                s3_fifo::S3FifoParameters::libcachesim(),
            )?),
            Self::OfDaemon(named) => named.build(capacity, seed),
            Self::Fifo => Box::new(fifo::new()),
            Self::Lfu => Box::new(lfu::new(lfu::LfuParameters::default())),
            Self::Sieve => Box::new(sieve::new()),
            Self::Arc => Box::new(arc::new(
                capacity,
                match parameters {
                    ParameterSet::Pierhead => arc::ArcParameters::default(),
                    ParameterSet::Libcachesim => arc::ArcParameters::libcachesim(),
                },
            )),
            Self::WTinyLfu => {
                let parameters = w_tinylfu::WTinyLfuParameters::default();
                Box::new(w_tinylfu::new(capacity, parameters, seed)?)
            }
            Self::Lhd if is_libcachesim => {
                Box::new(Lhd::new(capacity, seed, lhd::LhdParameters::libcachesim())?)
            }
            Self::Lhd => Box::new(Lhd::with_defaults(capacity, seed)),
            Self::Belady => Box::new(belady::new(future())),
            Self::BeladySize => Box::new(BeladySize::new(future())),
        })
    }

    /// Builds the policy with the parameters of pierhead.
    ///
    /// # Panics
    /// Panics for a policy that knows the future.
    pub fn build_online<K: Key>(self, capacity: u64, seed: u64) -> Box<dyn Policy<K>> {
        assert!(!self.is_clairvoyant(), "{self} needs a trace");
        let no_future = || Future::of(std::iter::empty::<u64>());
        self.build(capacity, seed, ParameterSet::Pierhead, no_future)
            .unwrap_or_else(|error| panic!("the defaults are in their ranges: {error}"))
    }

    /// Whether the simulated cache inserts a key before it evicts, as libCacheSim's GDSF does.
    pub fn inserts_first(self, parameters: ParameterSet) -> bool {
        self == Self::OfDaemon(PolicyName::Gdsf) && parameters == ParameterSet::Libcachesim
    }

    fn names() -> String {
        Self::all().map(Self::name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for SimulatedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SimulatedPolicy {
    type Err = UnknownSimulatedPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownSimulatedPolicy> {
        let found = Self::all().find(|policy| policy.name() == name);
        found.ok_or(UnknownSimulatedPolicy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_one_name_and_those_of_the_daemon_are_among_them() {
        let all: Vec<SimulatedPolicy> = SimulatedPolicy::all().collect();
        for policy in &all {
            assert_eq!(policy.name().parse(), Ok(*policy));
        }
        for named in PolicyName::ALL {
            assert!(all.contains(&SimulatedPolicy::OfDaemon(*named)), "{named}");
        }
        let error = "belayd".parse::<SimulatedPolicy>();
        assert!(error.is_err_and(|it| it.to_string().contains("belady-size, all")));
    }
}
