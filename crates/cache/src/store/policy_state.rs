//! What a restart would forget: the file with the state of policy and admission, and what was written today.
//!
//! Nothing in it is the truth. What cannot be used is left out with a line in the log, and the policy starts cold.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pierhead_eviction::StateError;

use crate::regular_file;
use crate::store::state::State;

const MAGIC: &[u8; 8] = b"PIERRANK";
const VERSION: u16 = 1;
/// Magic, version, four numbers.
const HEADER_LEN: usize = 8 + 2 + 4 * 8;
const CHECKSUM: usize = 4;

/// More is not saved, and a larger file is not ours: state for some 800 000 blobs.
const MAX_FILE_LEN: usize = 64 << 20;
/// Nor is more than this part of the cache's bound.
const CAPACITY_SHARE: u64 = 16;

/// The state of a moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyState {
    /// What the cache's access counter showed: later accesses are told to the policy again.
    pub(crate) tick: u64,
    /// What the clock of those who rank showed.
    pub(crate) clock: u64,
    /// Bytes written on the day of `clock`.
    pub(crate) written: u64,
    pub(crate) policy: Vec<u8>,
    pub(crate) admission: Vec<u8>,
}

impl PolicyState {
    /// What is to be saved now, under the state's lock: with the states, which take time for each blob, or without.
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

    /// Hands it to an empty state. What does not fit is said and left out.
    pub(crate) fn restore(&self, state: &mut State) {
        let ranking = &mut state.ranking;
        ranking.clock.resume(self.clock);
        ranking.admission.restore(self.written, self.clock);
        if self.policy.is_empty() && self.admission.is_empty() {
            // They were too large to be saved, which was said then.
            return;
        }
        match ranking.policy.restore(&self.policy) {
            Ok(()) => {
                ranking.seen(self.clock);
                state.ranked_until(self.tick);
            }
            Err(error) => cold(&error),
        }
        if let Some(admission) = &mut state.ranking.admission.filter
            && let Err(error) = admission.restore(&self.admission)
        {
            match error {
                StateError::Kind { found, expected } => tracing::info!(
                    "eviction.admission was {found} and is {expected} now: it starts anew, nothing to do"
                ),
                // There was none to save anything.
                _ if self.admission.is_empty() => {}
                error => {
                    tracing::warn!(%error, "what the admission knew cannot be used; it starts anew");
                }
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes =
            Vec::with_capacity(HEADER_LEN + self.policy.len() + self.admission.len() + CHECKSUM);
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

    /// `None` when it is not what was written.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM>()?;
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

/// The longest file of a cache of `capacity` bytes.
pub(crate) fn limit(capacity: u64) -> usize {
    let share = usize::try_from(capacity / CAPACITY_SHARE).unwrap_or(MAX_FILE_LEN);
    // One block is small, whatever the cache.
    share.clamp(4096, MAX_FILE_LEN)
}

fn cold(why: &(dyn std::error::Error + 'static)) {
    if let Some(StateError::Kind { found, expected }) = why.downcast_ref() {
        tracing::info!(
            "eviction.policy was {found} and is {expected} now: it begins with all blobs in the order of their last \
             access, nothing to do"
        );
        return;
    }
    tracing::warn!(%why, "the saved policy state cannot be used: blobs rank by their last access");
}

/// The file of a data folder.
#[derive(Debug)]
pub(crate) struct PolicyStateFile(PathBuf);

impl PolicyStateFile {
    pub(crate) fn new(data: &Path) -> Self {
        Self(data.join("ranks"))
    }

    /// What was saved last. Blocks.
    pub(crate) fn read(&self) -> Option<PolicyState> {
        // What a crash left of a write.
        let _ = pierhead_atomic_file::delete_abandoned(&self.0);
        let mut bytes = Vec::new();
        let limit = u64::try_from(MAX_FILE_LEN).unwrap_or(u64::MAX);
        let read = regular_file::open(&self.0)
            .and_then(|(file, _)| file.take(limit + 1).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                cold(&error);
                return None;
            }
            Ok(_) => {}
        }
        let policy_state = PolicyState::decode(&bytes);
        if policy_state.is_none() {
            cold(&StateError::Damaged);
        }
        policy_state
    }

    /// Saves durably, all or nothing, in place of what was saved before. States that are longer than `limit` are
    /// left out, and then it is `false`. Blocks.
    pub(crate) fn write(&self, policy_state: PolicyState, limit: usize) -> io::Result<bool> {
        let fits = HEADER_LEN + policy_state.policy.len() + policy_state.admission.len() + CHECKSUM
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
    fn what_was_written_is_read_and_what_is_damaged_is_not() {
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
    fn states_that_are_too_large_are_left_out_and_the_rest_is_not() {
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
        fn strangers_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(PolicyState::decode(&bytes), None);
        }
    }
}
