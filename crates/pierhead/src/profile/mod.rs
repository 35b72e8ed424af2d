//! Profiles: how much of a machine pierhead takes, as defaults of keys that any of them may overrule.
//!
//! A default that follows from the memory follows from the budget: the limit of the control group where there is one, else a share of the
//! machine's memory, and never more than the profile's own bound.

mod budget;
mod table;

use crate::config::{Config, Size, human_bytes};
use crate::machine::cgroup::Version;
use crate::machine::{Cores, Machine, list};
use crate::pressure::Resource;
pub(crate) use budget::Budget;
pub(crate) use table::{PROFILES, Profile};

const MIB: u64 = 1 << 20;
/// A machine without limits has room for others when it has so many times what a profile needs.
const ROOM: u64 = 4;

/// The keys that were given another default, each with where that is from.
pub(crate) type Origins = Vec<(&'static str, String)>;

/// A profile, or a budget, that this machine cannot give: for people, with the mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misfit(pub(crate) String);

impl Profile {
    /// By its name.
    ///
    /// # Errors
    /// For people: which names there are.
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        let found = PROFILES.iter().find(|profile| profile.name == name);
        found.ok_or_else(|| {
            let names = PROFILES
                .iter()
                .map(|profile| format!("\"{}\"", profile.name));
            let names: Vec<_> = names.collect();
            format!(
                "{name:?} is no profile: write {} or \"none\"",
                names.join(", ")
            )
        })
    }

    /// Bytes that it plans with on `machine`, and where they are from.
    ///
    /// # Errors
    /// There are too few, or too few cores.
    fn budget(&self, machine: &Machine) -> Result<(u64, String), Misfit> {
        let (least, most) = (self.least_memory * MIB, self.memory * MIB);
        let cores = machine.cores.len();
        if cores > 0 && cores < self.least_cores {
            return Err(self.misfit(
                machine,
                format!(
                    "it wants {} cores, and this process may run on {cores} ({})",
                    self.least_cores,
                    list(&machine.cores)
                ),
            ));
        }
        match machine.memory_limit {
            Some(limit) if limit.amount < least => Err(self.misfit(
                machine,
                format!(
                    "it needs {} of memory, and the limit of the control group is {}",
                    human_bytes(least),
                    human_bytes(limit.amount)
                ),
            )),
            Some(limit) => {
                let version = match limit.version {
                    Version::One => 1,
                    Version::Two => 2,
                };
                let of = format!("the limit of the control group (version {version})");
                Ok((limit.amount.min(most), of))
            }
            None if machine.memory > 0 && machine.memory < least * ROOM => Err(self.misfit(
                machine,
                format!(
                    "it is for machines of {} and more, and this one has {}",
                    human_bytes(least * ROOM),
                    human_bytes(machine.memory)
                ),
            )),
            None => {
                let share = machine.memory / 100 * self.memory_share;
                let of = format!("{} % of the machine's memory", self.memory_share);
                Ok((share.clamp(least, most), of))
            }
        }
    }

    fn misfit(&self, machine: &Machine, why: String) -> Misfit {
        let fits = |profile: &&Self| {
            profile.least_memory < self.least_memory && profile.budget(machine).is_ok()
        };
        let mend = match PROFILES.iter().rev().find(fits) {
            Some(smaller) => format!("--profile {} fits", smaller.name),
            None => {
                "no profile fits: leave it out, and bound what each key takes yourself".to_owned()
            }
        };
        Misfit(format!(
            "profile \"{}\" does not fit this machine: {why}; {mend}",
            self.name
        ))
    }
}

/// Gives `config`, which has the defaults, those of a profile and of a budget of bytes, if there are such. `budget` is an operator's word and wins over
/// the profile's own.
///
/// # Errors
/// The machine does not have it.
pub(crate) fn settle(
    config: &mut Config,
    profile: Option<&'static Profile>,
    budget: Option<u64>,
    machine: &Machine,
) -> Result<Origins, Misfit> {
    config.profile = profile;
    let mut origins = Origins::new();
    let own = profile.map(|profile| profile.budget(machine)).transpose()?;
    let whole = machine
        .memory_limit
        .map_or(machine.memory, |limit| limit.amount);
    let bytes = match (budget, own) {
        (Some(bytes), _) if whole > 0 && bytes > whole => {
            return Err(Misfit(format!(
                "limits.memory is {}, and there are {}: write less",
                human_bytes(bytes),
                human_bytes(whole)
            )));
        }
        (Some(bytes), _) => bytes,
        (None, Some((bytes, of))) => {
            config.limits.memory = Some(bytes);
            origins.push(("limits.memory", of));
            bytes
        }
        (None, None) => return Ok(origins),
    };
    if let Some(profile) = profile {
        take(config, profile, machine, &mut origins);
    }
    Budget::of(bytes, config, profile).take(config, &mut origins);
    for (_, of) in &mut origins {
        if let Some(profile) = profile {
            *of = format!("profile {}: {of}", profile.name);
        }
    }
    Ok(origins)
}

/// What does not follow from the memory.
fn take(config: &mut Config, profile: &Profile, machine: &Machine, origins: &mut Origins) {
    let mut from = |key, of: &str| origins.push((key, of.to_owned()));
    if profile.threads > 0 {
        config.limits.threads = profile.threads.min(machine.parallel());
        let of = match machine.quota {
            Some(_) => "as many as the control group's quota keeps busy",
            None => "of its table",
        };
        from("limits.threads", of);
    }
    if profile.cores > 0 {
        config.limits.cores = Cores::Last(profile.cores);
        from("limits.cores", "of its table");
    }
    if profile.disk > 0 {
        config.cache.size = Size::Percent(profile.disk);
        from("cache.size", "of its table");
    }
    if profile.bandwidth > 0 {
        config.limits.upstream_bandwidth = Some(profile.bandwidth * 1_000_000);
        from("limits.upstream_bandwidth", "of its table");
    }
    config.limits.upstream_fetches = profile.fetches;
    config.limits.fetches_per_client = profile.fetches / 2;
    config.limits.fetches_per_registry = profile.fetches / 4 * 3;
    from("limits.upstream_fetches", "of its table");
    from("limits.upstream_fetches_per_client", "of its table");
    from("limits.upstream_fetches_per_registry", "of its table");
    let under = |it: &Resource| profile.rest_under.contains(&it.name());
    config.limits.rest_under = Resource::ALL.into_iter().filter(under).collect();
    from("limits.rest_under", "of its table");
    config.bundle.cpu = profile.worker_cpu;
    from("bundle.cpu", "of its table");
    if profile.written_per_day > 0 {
        config.eviction.max_written_per_day = profile.written_per_day << 30;
        from(
            "eviction.max_written_per_day",
            "what its flash bears (bluefield/docs/sizing.md)",
        );
    }
}

#[cfg(test)]
mod tests;
