//! Applies a profile (a preset for a kind of machine) and a memory budget to the configuration:
//! both change the defaults of other keys.

use pierhead_bundle_server::{INDEXER_MEMORY, RECENT_MEMORY};
use pierhead_host::cgroup::Version;
use pierhead_host::machine::{CpuSelection, Machine, format_cpu_list};
use pierhead_host::pressure::Resource;
use pierhead_host::profile::{
    BudgetSource, IndexerMemory, MemoryRequest, MemoryShares, Misfit, PROFILES, Profile,
    memory_budget,
};
use pierhead_oci::units::human_bytes;

use super::settings::{Config, DefaultSources};
use super::size::Size;

const MIB: u64 = 1 << 20;

/// The error of a key that asks for more than the machine has. Its message includes the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnfitKey {
    pub(super) key: &'static str,
    pub(super) message: String,
}

/// Returns the profile of this name.
///
/// # Errors
/// A message for the operator that lists the profiles.
pub(crate) fn profile_named(name: &str) -> Result<&'static Profile, String> {
    Profile::named(name).ok_or_else(|| {
        let names = PROFILES.iter();
        let names: Vec<_> = names.map(|it| format!("\"{}\"", it.name)).collect();
        format!(
            "{name:?} is no profile: write {} or \"none\"",
            names.join(", ")
        )
    })
}

/// Applies the defaults of a profile and of a memory budget to `config`. Without a profile and
/// without a budget, changes nothing.
///
/// # Errors
/// The profile or the budget does not fit the host.
pub(super) fn apply_profile(
    config: &mut Config,
    request: MemoryRequest,
    machine: &Machine,
) -> Result<DefaultSources, UnfitKey> {
    config.profile = request.profile;
    let mut sources = DefaultSources::new();
    let budget = memory_budget(request, machine);
    let budget = budget.map_err(|misfit| unfit_key(&misfit, request, machine))?;
    let Some(budget) = budget else {
        return Ok(sources);
    };
    if let Some(source) = shown_source(budget.source) {
        config.limits.memory = Some(budget.bytes);
        sources.push(("limits.memory", source));
    }
    if let Some(profile) = request.profile {
        apply_table(config, profile, &mut sources);
    }
    let wanted = match request.profile {
        Some(profile) => profile.memory_shares(),
        None => default_shares(config),
    };
    let divided = budget.bytes.saturating_sub(request.tier);
    let shares = MemoryShares::divide(divided, wanted, indexer_memory());
    apply_shares(config, shares, &mut sources);
    for (_, source) in &mut sources {
        if let Some(profile) = request.profile {
            *source = format!("profile {}: {source}", profile.name);
        }
    }
    Ok(sources)
}

/// Describes where a default memory budget comes from. Returns `None` if the operator set the
/// budget.
fn shown_source(source: BudgetSource) -> Option<String> {
    match source {
        BudgetSource::Operator => None,
        BudgetSource::CgroupLimit(version) => {
            let version = match version {
                Version::One => 1,
                Version::Two => 2,
            };
            Some(format!(
                "the memory limit of the cgroup (version {version})"
            ))
        }
        BudgetSource::MachineShare(percent) => {
            Some(format!("{percent} % of the memory of the host"))
        }
    }
}

fn indexer_memory() -> IndexerMemory {
    IndexerMemory {
        each: INDEXER_MEMORY,
        shared: u64::try_from(RECENT_MEMORY).unwrap_or(u64::MAX),
    }
}

fn default_shares(defaults: &Config) -> MemoryShares {
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    MemoryShares {
        indexing_threads: count(defaults.bundle.workers),
        connections: count(defaults.limits.connections),
        responses: count(defaults.limits.response_memory),
        small_blobs: defaults.cache.memory,
    }
}

fn apply_shares(config: &mut Config, shares: MemoryShares, sources: &mut DefaultSources) {
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    if shares.indexing_threads == 0 {
        config.bundle.size = None;
    }
    config.bundle.workers = count(shares.indexing_threads.max(1));
    config.limits.connections = count(shares.connections);
    config.limits.response_memory = count(shares.responses);
    config.cache.memory = shares.small_blobs;
    let keys = [
        (shares.indexing_threads == 0).then_some("bundle.size"),
        Some("bundle.workers"),
        Some("limits.connections"),
    ];
    let keys = keys.into_iter().flatten();
    sources.extend(keys.map(|key| (key, "computed from limits.memory".to_owned())));
}

/// Applies the values of a profile that do not depend on the memory of the machine.
fn apply_table(config: &mut Config, profile: &Profile, sources: &mut DefaultSources) {
    let mut from = |key, of: &str| sources.push((key, of.to_owned()));
    if profile.cores > 0 {
        config.limits.cores = CpuSelection::Last(profile.cores);
        from("limits.cores", "value of the profile");
    }
    if profile.cache_size > 0 {
        config.cache.size = Size::Percent(profile.cache_size);
        from("cache.size", "value of the profile");
    }
    if profile.upstream_bandwidth > 0 {
        config.limits.upstream_bandwidth = Some(profile.upstream_bandwidth * 1_000_000);
        from("limits.upstream_bandwidth", "value of the profile");
    }
    config.limits.downloads = profile.downloads;
    from("limits.downloads", "value of the profile");
    let under = |it: &Resource| profile.pause_under.contains(&it.name());
    config.limits.pause_under = Resource::ALL.into_iter().filter(under).collect();
    from("limits.pause_under", "value of the profile");
    if profile.daily_write_budget > 0 {
        config.cache.daily_write_budget = profile.daily_write_budget << 30;
        from(
            "cache.daily_write_budget",
            "endurance of the flash (docs/explanation/dpu-sizing.md)",
        );
    }
}

fn unfit_key(misfit: &Misfit, request: MemoryRequest, machine: &Machine) -> UnfitKey {
    let of_profile = |key, profile: &Profile, why: String| {
        let fix = match profile.smaller_fitting(request, machine) {
            Some(smaller) => format!("--profile {} fits", smaller.name),
            None => "no profile fits: use none, and set the limits yourself".into(),
        };
        let name = profile.name;
        let message = format!("profile \"{name}\" does not fit this machine: {why}; {fix}");
        UnfitKey { key, message }
    };
    match misfit {
        Misfit::MemoryAboveMachine {
            requested,
            available,
        } => {
            let (requested, available) = (human_bytes(*requested), human_bytes(*available));
            UnfitKey {
                key: "limits.memory",
                message: format!(
                    "limits.memory is {requested}, and the host has {available}: write less"
                ),
            }
        }
        Misfit::TooFewCores { profile, allowed } => {
            let why = format!(
                "it needs {} cores, and this process may use {} ({})",
                profile.min_cores,
                allowed.len(),
                format_cpu_list(allowed)
            );
            of_profile("profile", profile, why)
        }
        Misfit::MachineTooSmall {
            profile,
            required,
            memory,
        } => {
            let why = format!(
                "it needs a host with {} of memory, and this one has {}",
                human_bytes(*required),
                human_bytes(*memory)
            );
            of_profile("profile", profile, why)
        }
        Misfit::BudgetTooSmall {
            profile,
            required,
            budget,
        } => {
            let (key, limit_name) = match budget.source {
                BudgetSource::Operator => ("limits.memory", "limits.memory"),
                _ => ("profile", "the memory limit of the cgroup"),
            };
            let (required, bytes) = (human_bytes(*required), human_bytes(budget.bytes));
            let why = format!("it needs {required} of memory, and {limit_name} is {bytes}");
            of_profile(key, profile, why)
        }
        Misfit::TierTooLarge {
            tier,
            required,
            available,
        } => tier_too_large(*tier, *required, *available),
    }
}

fn tier_too_large(tier: u64, required: u64, available: u64) -> UnfitKey {
    let fix = match available.saturating_sub(required) / MIB * MIB {
        0 => "move tier.path to a disk, or set tier.kind = \"off\"".to_owned(),
        most => format!(
            "write {} or less, or move tier.path to a disk",
            human_bytes(most)
        ),
    };
    let message = format!(
        "tier.path is on a tmpfs, so tier.size = {} takes memory: of {}, less than the {} remains that pierhead needs: {fix}",
        human_bytes(tier),
        human_bytes(available),
        human_bytes(required)
    );
    UnfitKey {
        key: "tier.size",
        message,
    }
}

#[cfg(test)]
mod tests;
