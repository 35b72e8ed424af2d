//! Who plays: every policy by its name, those that know the future among them.

use std::fmt;

use pierhead_eviction::{
    Arc, Belady, BeladySize, Future, Gdsf, Lhd, Named, Policy, S3Fifo, arc, gdsf, lhd, s3_fifo,
};

use crate::cli::replay::{Players, Rules};

/// A policy of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Player {
    Named(Named),
    Belady,
    BeladySize,
}

/// A boxed policy over the keys of traces.
pub(crate) type Boxed = Box<dyn Policy<u64>>;

impl Player {
    /// All of them, those with foresight last.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let named = Named::ALL.iter().copied().map(Self::Named);
        named.chain([Self::Belady, Self::BeladySize])
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Named(named) => named.name(),
            Self::Belady => "belady",
            Self::BeladySize => "belady-size",
        }
    }

    /// One word of `--policy`.
    pub(crate) fn parse(word: &str) -> Result<Players, String> {
        if word == "all" {
            return Ok(Self::all().collect());
        }
        match Self::all().find(|player| player.name() == word) {
            Some(player) => Ok([player].into()),
            None => {
                let names: Vec<&str> = Self::all().map(Self::name).collect();
                Err(format!("there are: {}, all", names.join(", ")))
            }
        }
    }

    /// The names of those that know the future of the trace.
    pub(crate) const FORESEEING: [&str; 2] = ["belady", "belady-size"];

    /// Whether it knows the future of the trace.
    pub(crate) fn foresees(self) -> bool {
        Self::FORESEEING.contains(&self.name())
    }

    /// A new one for a cache of `capacity` bytes. `future` is asked for only by those that foresee.
    pub(crate) fn build(
        self,
        capacity: u64,
        seed: u64,
        rules: Rules,
        future: impl FnOnce() -> Future,
    ) -> anyhow::Result<Boxed> {
        Ok(match (self, rules) {
            (Self::Belady, _) => Box::new(Belady::new(future())),
            (Self::BeladySize, _) => Box::new(BeladySize::new(future())),
            (Self::Named(Named::Arc), Rules::Libcachesim) => {
                Box::new(Arc::new(capacity, arc::Parameters::libcachesim()))
            }
            (Self::Named(Named::Gdsf), Rules::Libcachesim) => {
                Box::new(Gdsf::new(gdsf::Parameters::libcachesim())?)
            }
            (Self::Named(Named::S3Fifo), Rules::Libcachesim) => {
                Box::new(S3Fifo::new(capacity, s3_fifo::Parameters::libcachesim())?)
            }
            (Self::Named(Named::Lhd), Rules::Libcachesim) => {
                Box::new(Lhd::new(capacity, seed, lhd::Parameters::libcachesim())?)
            }
            (Self::Named(named), _) => named.build(capacity, seed),
        })
    }
}

impl Player {
    /// Whether what enters competes with what is there: libcachesim's GDSF evicts after it inserted.
    pub(crate) fn enters_first(self, rules: Rules) -> bool {
        matches!(
            (self, rules),
            (Self::Named(Named::Gdsf), Rules::Libcachesim)
        )
    }
}

impl fmt::Display for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
