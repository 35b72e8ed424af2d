//! Sizing profiles: the share of a machine that pierhead takes.
//!
//! A profile yields values, which the configuration makes the defaults of its keys. The memory budget
//! is the limit of the cgroup, else a share of the machine's memory, and never more than the bound of
//! the profile.

mod memory_shares;
mod table;

use crate::cgroup::Version;
use crate::machine::Machine;

pub use memory_shares::{MemoryShares, WorkerMemory};
pub use table::{PROFILES, Profile};

const MIB: u64 = 1 << 20;
/// Fewer bytes cannot be divided.
pub const MIN_MEMORY: u64 = 128 * MIB;
/// A machine without limits has room for a profile when its memory is so many times what the profile
/// needs.
const MACHINE_FACTOR: u64 = 4;

/// What pierhead asks of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryRequest {
    /// The chosen profile.
    pub profile: Option<&'static Profile>,
    /// Bytes that the operator sets. They replace the budget of the profile.
    pub memory: Option<u64>,
    /// Bytes of a fast tier in memory. The tier takes them at its start, so they come off first.
    pub tier: u64,
}

/// Where a memory budget comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetSource {
    /// The operator.
    Operator,
    /// The limit of the cgroup.
    CgroupLimit(Version),
    /// So many percent of the machine's memory.
    MachineShare(u64),
}

/// The memory that pierhead plans with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// The fast tier included.
    pub bytes: u64,
    /// Where it comes from.
    pub source: BudgetSource,
}

/// Why a machine does not fit a request. All amounts are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The operator sets more memory than there is.
    MemoryAboveMachine {
        /// Set by the operator.
        requested: u64,
        /// Of the cgroup, else of the machine.
        available: u64,
    },
    /// The process may run on too few cores.
    TooFewCores {
        /// That does not fit.
        profile: &'static Profile,
        /// The cores that the process may run on.
        allowed: Vec<usize>,
    },
    /// The machine is too small for the profile.
    MachineTooSmall {
        /// That does not fit.
        profile: &'static Profile,
        /// The smallest machine that it is for.
        required: u64,
        /// Memory of the machine.
        memory: u64,
    },
    /// The budget is less than the profile needs.
    BudgetTooSmall {
        /// That does not fit.
        profile: &'static Profile,
        /// That it needs.
        required: u64,
        /// The budget.
        budget: MemoryBudget,
    },
    /// The fast tier leaves less than all else needs.
    TierTooLarge {
        /// Size of the tier.
        tier: u64,
        /// That all else needs.
        required: u64,
        /// The budget, or the memory of the machine.
        available: u64,
    },
}

/// The memory budget for a request; `None` when it names neither a profile nor an amount.
///
/// # Errors
/// The machine does not have it.
pub fn memory_budget(
    request: MemoryRequest,
    machine: &Machine,
) -> Result<Option<MemoryBudget>, Misfit> {
    let limit = machine.memory_limit.map(|limit| limit.amount);
    let available = limit.unwrap_or(machine.memory);
    let requested = request.memory;
    if let Some(requested) = requested.filter(|bytes| available > 0 && *bytes > available) {
        return Err(Misfit::MemoryAboveMachine {
            requested,
            available,
        });
    }
    let budget = match (request.profile, requested) {
        (Some(profile), _) => Some(profile.memory_budget(request, machine)?),
        (None, Some(bytes)) => Some(MemoryBudget {
            bytes,
            source: BudgetSource::Operator,
        }),
        (None, None) => None,
    };
    // Without a budget nothing is divided, and yet the tier takes its bytes.
    let bytes = budget.map_or(available, |budget| budget.bytes);
    let is_known = budget.is_some() || available > 0;
    if request.tier > 0 && is_known && bytes.saturating_sub(MIN_MEMORY) < request.tier {
        return Err(Misfit::TierTooLarge {
            tier: request.tier,
            required: MIN_MEMORY,
            available: bytes,
        });
    }
    Ok(budget)
}

impl Profile {
    /// The profile of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// What each part wants, before the memory is divided.
    pub fn memory_shares(&self) -> MemoryShares {
        MemoryShares {
            workers: self.workers,
            connections: self.connections,
            responses: self.answers * MIB,
            small_blobs: self.small_blobs * MIB,
        }
    }

    /// The largest smaller profile that fits the machine.
    pub fn smaller_fitting(
        &self,
        request: MemoryRequest,
        machine: &Machine,
    ) -> Option<&'static Self> {
        let fits = |profile: &&'static Self| {
            profile.least_memory < self.least_memory
                && profile.memory_budget(request, machine).is_ok()
        };
        PROFILES.iter().rev().find(fits)
    }

    fn memory_budget(
        &'static self,
        request: MemoryRequest,
        machine: &Machine,
    ) -> Result<MemoryBudget, Misfit> {
        let (required, bound) = (self.least_memory * MIB, self.memory * MIB);
        let cores = machine.cores.len();
        if cores > 0 && cores < self.least_cores {
            return Err(Misfit::TooFewCores {
                profile: self,
                allowed: machine.cores.clone(),
            });
        }
        let budget = match (request.memory, machine.memory_limit) {
            (Some(bytes), _) => MemoryBudget {
                bytes,
                source: BudgetSource::Operator,
            },
            (None, Some(limit)) => MemoryBudget {
                bytes: limit.amount.min(bound.saturating_add(request.tier)),
                source: BudgetSource::CgroupLimit(limit.version),
            },
            (None, None) => self.machine_share(request, machine)?,
        };
        if budget.bytes < required {
            return Err(Misfit::BudgetTooSmall {
                profile: self,
                required,
                budget,
            });
        }
        if budget.bytes - required < request.tier {
            return Err(Misfit::TierTooLarge {
                tier: request.tier,
                required,
                available: budget.bytes,
            });
        }
        Ok(budget)
    }

    fn machine_share(
        &'static self,
        request: MemoryRequest,
        machine: &Machine,
    ) -> Result<MemoryBudget, Misfit> {
        let (least, bound) = (self.least_memory * MIB, self.memory * MIB);
        let required = least * MACHINE_FACTOR;
        let memory = machine.memory;
        // A kernel that shows no memory is no reason to refuse.
        if memory > 0 && memory < required {
            return Err(Misfit::MachineTooSmall {
                profile: self,
                required,
                memory,
            });
        }
        if memory > 0 && memory < required.saturating_add(request.tier) {
            return Err(Misfit::TierTooLarge {
                tier: request.tier,
                required,
                available: memory,
            });
        }
        let share = memory / 100 * self.memory_share;
        Ok(MemoryBudget {
            bytes: share.clamp(least, bound).saturating_add(request.tier),
            source: BudgetSource::MachineShare(self.memory_share),
        })
    }
}

#[cfg(test)]
mod tests;
