//! Profiles: how much of a machine pierhead takes, as defaults of keys that any of them may overrule.
//!
//! A default that follows from the memory follows from the budget: the limit of the control group where there is one, else a share of the
//! machine's memory, and never more than the profile's own bound.

mod budget;
mod table;

use pierhead_oci::units::human_bytes;

use crate::config::{Config, Size};
pub(crate) use budget::Budget;
use pierhead_host::cgroup::Version;
use pierhead_host::machine::{CpuSelection, Machine, format_cpu_list};
use pierhead_host::pressure::Resource;
pub(crate) use table::{PROFILES, Profile};

const MIB: u64 = 1 << 20;
/// A machine without limits has room for others when it has so many times what a profile needs.
const ROOM: u64 = 4;

/// The keys that were given another default, each with where that is from.
pub(crate) type Origins = Vec<(&'static str, String)>;

/// What is asked of the machine.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(crate) profile: Option<&'static Profile>,
    /// `limits.memory`, an operator's word: it wins over the profile's own.
    pub(crate) memory: Option<u64>,
    /// Bytes of a fast tier that lies in memory: they are taken when it is made, and come off the budget first.
    pub(crate) tier: u64,
}

/// What this machine cannot give: for people, with the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// That asks too much.
    pub(crate) key: &'static str,
    pub(crate) message: String,
}

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

    /// Bytes that it plans with on `machine`, those of a tier included, and where they are from.
    ///
    /// # Errors
    /// There are too few, or too few cores.
    fn budget(&self, asked: &Asked, machine: &Machine) -> Result<(u64, String), Misfit> {
        let (least, most) = (self.least_memory * MIB, self.memory * MIB);
        let cores = machine.cores.len();
        if cores > 0 && cores < self.least_cores {
            let why = format!(
                "it wants {} cores, and this process may run on {cores} ({})",
                self.least_cores,
                format_cpu_list(&machine.cores)
            );
            return Err(self.misfit(asked, machine, "profile", &why));
        }
        let (bytes, of) = match (asked.memory, machine.memory_limit) {
            (Some(bytes), _) => (bytes, String::new()),
            (None, Some(limit)) => {
                let version = match limit.version {
                    Version::One => 1,
                    Version::Two => 2,
                };
                let of = format!("the limit of the control group (version {version})");
                (limit.amount.min(most.saturating_add(asked.tier)), of)
            }
            (None, None) => {
                let needed = (least * ROOM).saturating_add(asked.tier);
                if machine.memory > 0 && machine.memory < needed {
                    let why = format!(
                        "it is for machines of {} and more, and this one has {}",
                        human_bytes(least * ROOM),
                        human_bytes(machine.memory)
                    );
                    return Err(match machine.memory < least * ROOM {
                        true => self.misfit(asked, machine, "profile", &why),
                        false => tier(asked, machine.memory, least * ROOM),
                    });
                }
                let share = machine.memory / 100 * self.memory_share;
                let of = format!("{} % of the machine's memory", self.memory_share);
                (share.clamp(least, most).saturating_add(asked.tier), of)
            }
        };
        if bytes < least {
            let (key, whose) = match asked.memory {
                Some(_) => ("limits.memory", "limits.memory"),
                None => ("profile", "the limit of the control group"),
            };
            let (least, bytes) = (human_bytes(least), human_bytes(bytes));
            let why = format!("it needs {least} of memory, and {whose} is {bytes}");
            return Err(self.misfit(asked, machine, key, &why));
        }
        if bytes - least < asked.tier {
            return Err(tier(asked, bytes, least));
        }
        Ok((bytes, of))
    }

    fn misfit(&self, asked: &Asked, machine: &Machine, key: &'static str, why: &str) -> Misfit {
        let fits = |profile: &&Self| {
            profile.least_memory < self.least_memory && profile.budget(asked, machine).is_ok()
        };
        let fix = match PROFILES.iter().rev().find(fits) {
            Some(smaller) => format!("--profile {} fits", smaller.name),
            None => {
                "no profile fits: leave it out, and bound what each key takes yourself".to_owned()
            }
        };
        let message = format!(
            "profile \"{}\" does not fit this machine: {why}; {fix}",
            self.name
        );
        Misfit { key, message }
    }
}

/// A tier in memory that leaves less than `least` of `bytes`.
fn tier(asked: &Asked, bytes: u64, least: u64) -> Misfit {
    let fix = match bytes.saturating_sub(least) / MIB * MIB {
        0 => "put tier.path onto a disk, or set tier.kind = \"off\"".to_owned(),
        most => format!(
            "write {} or less, or put tier.path onto a disk",
            human_bytes(most)
        ),
    };
    let message = format!(
        "tier.path lies in memory (tmpfs), and tier.size = {} of the {} that there are leaves less than the {} that all else needs: {fix}",
        human_bytes(asked.tier),
        human_bytes(bytes),
        human_bytes(least)
    );
    Misfit {
        key: "tier.size",
        message,
    }
}

/// Gives `config`, which has the defaults, those of a profile and of a budget of bytes, if there are such.
///
/// # Errors
/// The machine does not have it.
pub(crate) fn settle(
    config: &mut Config,
    asked: Asked,
    machine: &Machine,
) -> Result<Origins, Misfit> {
    config.profile = asked.profile;
    let mut origins = Origins::new();
    let limit = machine.memory_limit.map(|limit| limit.amount);
    let whole = limit.unwrap_or(machine.memory);
    if let Some(bytes) = asked.memory.filter(|bytes| whole > 0 && *bytes > whole) {
        let (bytes, whole) = (human_bytes(bytes), human_bytes(whole));
        return Err(Misfit {
            key: "limits.memory",
            message: format!("limits.memory is {bytes}, and there are {whole}: write less"),
        });
    }
    let bytes = match (asked.profile, asked.memory) {
        (Some(profile), by_hand) => {
            let (bytes, of) = profile.budget(&asked, machine)?;
            if by_hand.is_none() {
                config.limits.memory = Some(bytes);
                origins.push(("limits.memory", of));
            }
            bytes
        }
        (None, Some(bytes)) => bytes,
        // Nothing is planned, and yet the tier is taken whole.
        (None, None) => whole,
    };
    let planned = asked.profile.is_some() || asked.memory.is_some();
    if asked.tier > 0 && (planned || whole > 0) && bytes.saturating_sub(budget::LEAST) < asked.tier
    {
        return Err(tier(&asked, bytes, budget::LEAST));
    }
    if !planned {
        return Ok(origins);
    }
    if let Some(profile) = asked.profile {
        take(config, profile, &mut origins);
    }
    let divided = bytes.saturating_sub(asked.tier);
    Budget::of(divided, config, asked.profile).take(config, &mut origins);
    for (_, of) in &mut origins {
        if let Some(profile) = asked.profile {
            *of = format!("profile {}: {of}", profile.name);
        }
    }
    Ok(origins)
}

/// What does not follow from the memory.
fn take(config: &mut Config, profile: &Profile, origins: &mut Origins) {
    let mut from = |key, of: &str| origins.push((key, of.to_owned()));
    if profile.cores > 0 {
        config.limits.cores = CpuSelection::Last(profile.cores);
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
    config.limits.downloads = profile.fetches;
    from("limits.downloads", "of its table");
    let under = |it: &Resource| profile.rest_under.contains(&it.name());
    config.limits.pause_under = Resource::ALL.into_iter().filter(under).collect();
    from("limits.pause_under", "of its table");
    if profile.written_per_day > 0 {
        config.cache.daily_write_budget = profile.written_per_day << 30;
        from(
            "cache.daily_write_budget",
            "what its flash bears (docs/explanation/dpu-sizing.md)",
        );
    }
}

#[cfg(test)]
mod tests;
