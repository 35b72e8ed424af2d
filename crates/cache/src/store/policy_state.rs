//! Saves the states of the eviction policy and the admission filter, and the number of bytes
//! written today, so that a restart does not lose them.
//!
//! The cache can work without this file. If the file is damaged or of another policy, pierhead logs
//! that, ignores the file, and the policy starts empty.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pierhead_eviction::StateError;

use crate::store::state::State;

const MAGIC: &[u8; 8] = b"PIERRANK";
const VERSION: u16 = 1;
/// Length in bytes of the header: magic, version and four numbers.
const HEADER_LEN: usize = 8 + 2 + 4 * 8;
const CHECKSUM_LEN: usize = 4;

/// Maximum length of the policy state's file in bytes: enough for about 800 000 blobs. The cache
/// does not save a longer state, and ignores a longer file.
const MAX_FILE_LEN: usize = 64 << 20;
/// The file takes at most this part (1/n) of the capacity of the cache.
const CAPACITY_SHARE: u64 = 16;

/// The saved state: the states of policy and admission filter, the access counter, the policy clock
/// and the bytes written today.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyState {
    /// The access counter of the cache. After a restore, the cache tells the policy about all later
    /// accesses again.
    pub(crate) tick: u64,
    /// Value of the policy clock, in seconds.
    pub(crate) clock: u64,
    /// Bytes written on the day of `clock`.
    pub(crate) written: u64,
    pub(crate) policy: Vec<u8>,
    pub(crate) admission: Vec<u8>,
}

impl PolicyState {
    /// Creates the saved state from the state of the cache. `with_states` includes the states of
    /// policy and admission filter, which takes time in proportion to the number of blobs.
    pub(crate) fn of(state: &mut State, wall: u64, with_states: bool) -> Self {
        let tick = state.tick_after() - 1;
        let ranking = &mut state.ranking;
        let clock = ranking.clock.read(wall);
        Self {
            tick,
            clock,
            written: ranking.admission.written(clock),
            policy: match with_states {
                true => ranking.policy.save(),
                false => Vec::new(),
            },
            admission: match &ranking.admission.filter {
                Some(admission) if with_states => admission.save(),
                _ => Vec::new(),
            },
        }
    }

    /// Restores the policy state into an empty `state`. Parts that belong to another policy or
    /// admission filter are logged and ignored.
    pub(crate) fn restore(&self, state: &mut State) {
        let ranking = &mut state.ranking;
        ranking.clock.resume(self.clock);
        ranking.admission.restore(self.written, self.clock);
        if self.policy.is_empty() && self.admission.is_empty() {
            // The file has no states, because they exceeded the limit. The omission was logged when
            // the file was saved.
            return;
        }
        match ranking.policy.restore(&self.policy) {
            Ok(()) => {
                ranking.record_past_tick(self.clock);
                state.set_restored_tick(self.tick);
            }
            Err(error) => log_cold_start(&error),
        }
        if let Some(admission) = &mut state.ranking.admission.filter
            && let Err(error) = admission.restore(&self.admission)
        {
            match error {
                StateError::Kind { found, expected } => tracing::info!(
                    "eviction.admission changed from {found} to {expected}: the new admission starts empty; nothing to do"
                ),
                // No admission filter was in use, so the file contains no state of an admission
                // filter.
                _ if self.admission.is_empty() => {}
                error => {
                    tracing::warn!(%error, "the saved state of the admission is unusable: the admission starts empty");
                }
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(
            HEADER_LEN + self.policy.len() + self.admission.len() + CHECKSUM_LEN,
        );
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        let len = u64::try_from(self.policy.len()).unwrap_or(u64::MAX);
        for number in [self.tick, self.clock, self.written, len] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(&self.policy);
        bytes.extend(&self.admission);
        let sum = crc32c::crc32c(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Decodes the bytes of a file. `None` when the bytes are damaged or of another version.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM_LEN>()?;
        let rest = body.strip_prefix(MAGIC)?;
        let (version, mut rest) = rest.split_first_chunk()?;
        if u16::from_le_bytes(*version) != VERSION
            || crc32c::crc32c(body) != u32::from_le_bytes(*sum)
        {
            return None;
        }
        let mut number = || {
            let (number, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u64::from_le_bytes(*number))
        };
        let [tick, clock, written] = [number()?, number()?, number()?];
        let len = usize::try_from(number()?).ok()?;
        let (policy, admission) = rest.split_at_checked(len)?;
        Some(Self {
            tick,
            clock,
            written,
            policy: policy.into(),
            admission: admission.into(),
        })
    }
}

/// Returns the maximum length of the file for a cache of `capacity` bytes.
pub(crate) fn limit(capacity: u64) -> usize {
    let share = usize::try_from(capacity / CAPACITY_SHARE).unwrap_or(MAX_FILE_LEN);
    // The limit is at least one block, even for a tiny capacity.
    share.clamp(4096, MAX_FILE_LEN)
}

fn log_cold_start(why: &(dyn std::error::Error + 'static)) {
    if let Some(StateError::Kind { found, expected }) = why.downcast_ref() {
        tracing::info!(
            "eviction.policy changed from {found} to {expected}: the new policy starts with all blobs in the order of \
             their last access; nothing to do"
        );
        return;
    }
    tracing::warn!(%why, "the saved policy state is unusable: blobs are ranked by their last access");
}

/// The policy state file of a data folder.
#[derive(Debug)]
pub(crate) struct PolicyStateFile(PathBuf);

impl PolicyStateFile {
    pub(crate) fn new(data: &Path) -> Self {
        Self(data.join("ranks"))
    }

    /// Reads the state that was saved last. Blocks.
    pub(crate) fn read(&self) -> Option<PolicyState> {
        // A crash may have left a temporary file.
        let _ = pierhead_atomic_file::delete_abandoned(&self.0);
        let mut bytes = Vec::new();
        let limit = u64::try_from(MAX_FILE_LEN).unwrap_or(u64::MAX);
        let read = pierhead_atomic_file::open_regular(&self.0)
            .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                log_cold_start(&error);
                return None;
            }
            Ok(_) => {}
        }
        let policy_state = PolicyState::decode(&bytes);
        if policy_state.is_none() {
            log_cold_start(&StateError::Damaged);
        }
        policy_state
    }

    /// Saves the state durably and atomically. If the file would be longer than `limit`, omits the
    /// states of policy and admission filter, and returns `false`. Blocks.
    pub(crate) fn write(&self, policy_state: PolicyState, limit: usize) -> io::Result<bool> {
        let fits =
            HEADER_LEN + policy_state.policy.len() + policy_state.admission.len() + CHECKSUM_LEN
                <= limit;
        let policy_state = match fits {
            true => policy_state,
            false => PolicyState {
                policy: Vec::new(),
                admission: Vec::new(),
                ..policy_state
            },
        };
        pierhead_atomic_file::write(&self.0, &policy_state.encode())?;
        Ok(fits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy_state() -> PolicyState {
        PolicyState {
            tick: 1,
            clock: 2,
            written: 3,
            policy: vec![7; 300],
            admission: vec![8; 50],
        }
    }

    #[test]
    fn a_policy_state_survives_a_round_trip_and_damage_is_detected() {
        let bytes = policy_state().encode();
        assert_eq!(PolicyState::decode(&bytes), Some(policy_state()));
        for end in 0..bytes.len() {
            assert_eq!(PolicyState::decode(&bytes[..end]), None, "cut at {end}");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 4;
            assert_eq!(PolicyState::decode(&bytes), None, "byte {at}");
        }
    }

    #[test]
    fn states_above_the_limit_are_omitted_and_the_budget_is_saved() {
        let folder = tempfile::tempdir().unwrap();
        let file = PolicyStateFile::new(folder.path());
        assert!(file.write(policy_state(), limit(1 << 20)).unwrap());
        assert_eq!(file.read(), Some(policy_state()));
        let large = || PolicyState {
            policy: vec![0; 100_000],
            tick: 4,
            written: 5,
            ..policy_state()
        };
        assert!(!file.write(large(), limit(1 << 20)).unwrap());
        let bare = PolicyState {
            policy: Vec::new(),
            admission: Vec::new(),
            ..large()
        };
        assert_eq!(file.read(), Some(bare), "what was written today is kept");
        assert!(file.write(large(), limit(1 << 30)).unwrap());
        assert_eq!(file.read(), Some(large()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(PolicyState::decode(&bytes), None);
        }
    }
}
