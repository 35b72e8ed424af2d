//! Sizing profiles, such as `small` and `bluefield2`: how much of a machine's memory and CPUs
//! pierhead uses.
//!
//! The values of a profile become the defaults of configuration keys. The memory budget is the
//! limit of the cgroup, or, without a limit, a share of the machine's memory. The budget is never
//! more than the maximum of the profile.

mod memory_shares;
mod table;

use crate::cgroup::Version;
use crate::machine::Machine;

pub use memory_shares::{IndexerMemory, MemoryShares};
pub use table::{PROFILES, Profile};

const MIB: u64 = 1 << 20;
/// Minimum memory budget of pierhead in bytes.
pub const MIN_MEMORY: u64 = 128 * MIB;
/// Minimum memory of a machine without a cgroup limit, as a multiple of the minimum memory of the
/// profile.
const MACHINE_FACTOR: u64 = 4;

/// The memory that the operator requests for pierhead.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryRequest {
    /// The profile that the operator chose.
    pub profile: Option<&'static Profile>,
    /// The memory budget in bytes that the operator sets (`limits.memory`). The operator's budget
    /// replaces the budget of the profile.
    pub memory: Option<u64>,
    /// Bytes of a fast tier in memory. The bytes of the tier are subtracted from the budget first,
    /// because the tier allocates them at the start of pierhead.
    pub tier: u64,
}

/// The source from which a memory budget comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetSource {
    /// The operator set the budget (`limits.memory`).
    Operator,
    /// The budget is the memory limit of a cgroup of this version.
    CgroupLimit(Version),
    /// The budget is this percentage of the memory of the machine.
    MachineShare(u64),
}

/// The amount of memory that pierhead plans to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Bytes of memory, including the fast tier.
    pub bytes: u64,
    /// The source of the budget.
    pub source: BudgetSource,
}

/// The reason why a machine does not fit a memory request. All amounts are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The operator requests more memory than is available.
    MemoryAboveMachine {
        /// The memory that the operator requested.
        requested: u64,
        /// The available memory: the limit of the cgroup, or, without a limit, the memory of the
        /// machine.
        available: u64,
    },
    /// The process may run on fewer cores than the profile needs.
    TooFewCores {
        /// The profile that does not fit.
        profile: &'static Profile,
        /// The cores that the process may run on.
        allowed: Vec<usize>,
    },
    /// The machine is too small for the profile.
    MachineTooSmall {
        /// The profile that does not fit.
        profile: &'static Profile,
        /// The memory of the smallest machine for the profile.
        required: u64,
        /// The memory of the machine.
        memory: u64,
    },
    /// The memory budget is smaller than the profile needs.
    BudgetTooSmall {
        /// The profile that does not fit.
        profile: &'static Profile,
        /// The memory that the profile needs.
        required: u64,
        /// The memory budget that is too small.
        budget: MemoryBudget,
    },
    /// The fast tier is so large that the rest of the memory is too small for all other parts.
    TierTooLarge {
        /// The size of the fast tier.
        tier: u64,
        /// The memory that all other parts need.
        required: u64,
        /// The available memory: the budget, or the memory of the machine.
        available: u64,
    },
}

/// Returns the memory budget for a request. `None` if the request names neither a profile nor an
/// amount.
///
/// # Errors
/// The reason why the machine does not fit the request.
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
    // Without a budget, the tier must fit the available memory.
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
    /// Returns the profile of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// Returns the memory that the profile wants for each part, before the memory is divided.
    pub fn memory_shares(&self) -> MemoryShares {
        MemoryShares {
            indexing_threads: self.bundle_workers,
            connections: self.connections,
            responses: self.response_memory * MIB,
            small_blobs: self.small_blob_memory * MIB,
        }
    }

    /// Returns the largest profile that is smaller than this profile and fits the machine.
    pub fn smaller_fitting(
        &self,
        request: MemoryRequest,
        machine: &Machine,
    ) -> Option<&'static Self> {
        let fits = |profile: &&'static Self| {
            profile.min_memory < self.min_memory && profile.memory_budget(request, machine).is_ok()
        };
        PROFILES.iter().rev().find(fits)
    }

    fn memory_budget(
        &'static self,
        request: MemoryRequest,
        machine: &Machine,
    ) -> Result<MemoryBudget, Misfit> {
        let (required, bound) = (self.min_memory * MIB, self.memory * MIB);
        let cores = machine.cores.len();
        if cores > 0 && cores < self.min_cores {
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
        let (least, bound) = (self.min_memory * MIB, self.memory * MIB);
        let required = least * MACHINE_FACTOR;
        let memory = machine.memory;
        // If the memory of the machine is unknown (0), the profile is accepted.
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
