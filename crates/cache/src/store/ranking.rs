//! The eviction policy, the admission filter and the policy clock. The cache locks these three
//! together, and can replace policy and filter while it runs.

use std::sync::Arc;

use pierhead_eviction::{Access, Admission, Policy, Victim};
use pierhead_oci::Digest;

use crate::store::admission::{AdmissionControl, Refusal};
use crate::store::image_counts::ImageCounts;
use crate::store::policy_clock::PolicyClock;

/// The eviction policy, the admission filter and the daily write budget. These settings can change
/// while the cache runs.
pub struct Eviction {
    /// Name of the policy, for logs and metrics.
    /// [`Cache::set_eviction`](crate::Cache::set_eviction) keeps a policy whose name is already in
    /// use.
    pub policy_name: String,
    /// The eviction policy of the cache.
    pub policy: Box<dyn Policy<Digest>>,
    /// Name of the admission filter.
    pub admission_name: String,
    /// The admission filter, which decides which blobs may be stored. `None`: all blobs that fit
    /// are stored.
    pub admission: Option<Box<dyn Admission<Digest>>>,
    /// Bytes of content that may be written to the disk per day (UTC). The value 0 means no limit.
    pub daily_write_budget: u64,
}

impl<P: Policy<Digest> + 'static> From<Box<P>> for Eviction {
    /// Uses this policy, without an admission filter and without a write budget.
    fn from(policy: Box<P>) -> Self {
        Self {
            policy_name: "custom".into(),
            policy,
            admission_name: "always".into(),
            admission: None,
            daily_write_budget: 0,
        }
    }
}

/// The outcome of a request, for the request log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The blob was stored before the request.
    Hit,
    /// The blob was fetched and stored.
    Miss,
    /// The blob was fetched and not stored.
    Bypass,
}

/// A function that the cache calls for each request. The calling thread serves the request and
/// holds a lock, so the function must not block.
pub type Recorder = Arc<dyn Fn(&Access<Digest>, Outcome) + Send + Sync>;

pub(crate) struct Ranking {
    pub(crate) policy_name: String,
    pub(crate) policy: Box<dyn Policy<Digest>>,
    pub(crate) admission: AdmissionControl,
    pub(crate) clock: PolicyClock,
    pub(crate) image_counts: ImageCounts,
    pub(crate) recorder: Option<Recorder>,
    /// The blobs that were removed since [`Ranking::prepare`], while a new policy is being filled.
    /// `None` at other times.
    removed: Option<Vec<Digest>>,
    /// The latest tick of a past access that the policy received.
    seen: u64,
}

impl Ranking {
    pub(crate) fn new(eviction: Eviction, recorder: Option<Recorder>, wall: u64) -> Self {
        let Eviction {
            policy_name,
            policy,
            admission_name,
            admission,
            daily_write_budget,
        } = eviction;
        Self {
            policy_name,
            policy,
            admission: AdmissionControl::new(admission_name, admission, daily_write_budget),
            clock: PolicyClock::new(wall),
            image_counts: ImageCounts::default(),
            recorder,
            removed: None,
            seen: 0,
        }
    }

    /// Counts a request for a stored blob, in the policy.
    pub(crate) fn hit(&mut self, access: &Access<Digest>) {
        self.policy.hit(access);
        self.admission.hit(access);
        self.record(access, Outcome::Hit);
    }

    /// Counts `requests` simultaneous requests for a blob that is not stored, and asks the
    /// admission filter and the policy whether to store the blob. With `always`, the requests are
    /// counted, but the blob is never refused.
    pub(crate) fn miss(
        &mut self,
        access: &Access<Digest>,
        requests: u32,
        always: bool,
    ) -> Result<(), Refusal> {
        // Each request is one call of `hit`, whatever the call returns: some policies learn from
        // these misses.
        if !self.policy.hit(access) {
            self.policy.miss(access);
        }
        let admitted = self.admission.admits(access, requests);
        let refused = match (admitted, self.policy.refuses(access)) {
            _ if always => None,
            (false, _) => Some(Refusal::Admission),
            (true, true) => Some(Refusal::Policy),
            (true, false) => None,
        };
        refused.map_or(Ok(()), Err)
    }

    /// Adds a stored blob to the policy.
    pub(crate) fn insert(&mut self, access: &Access<Digest>) {
        self.policy.insert(access);
    }

    /// Counts a reader that joined the fill as a hit for the policy. The admission filter has
    /// counted this request already.
    pub(crate) fn joined(&mut self, access: &Access<Digest>) {
        self.policy.hit(access);
        self.record(access, Outcome::Hit);
    }

    /// Restores a blob after a restart. `later` means that the blob was accessed after the policy
    /// state was saved.
    pub(crate) fn restore(&mut self, access: &Access<Digest>, later: bool) {
        self.record_past_tick(access.tick);
        let access = Access {
            tick: self.seen,
            ..*access
        };
        if !later || !self.policy.hit(&access) {
            self.policy.insert(&access);
        }
    }

    /// Records the tick of a past access that the policy received. Ticks of past accesses must not
    /// decrease, even if the wall clock was set back.
    pub(crate) fn record_past_tick(&mut self, tick: u64) {
        self.seen = self.seen.max(tick);
    }

    /// Removes a blob that leaves the cache without an eviction by the policy.
    pub(crate) fn remove(&mut self, digest: &Digest) {
        self.policy.remove(digest);
        self.note_removed(digest);
    }

    /// Returns the next victim of the policy, which the policy has already removed. The caller must
    /// not call `remove` for this blob, because some policies would count another event.
    pub(crate) fn evict(
        &mut self,
        held: &mut dyn FnMut(&Digest) -> bool,
    ) -> Option<Victim<Digest>> {
        let victim = self.policy.evict(held)?;
        self.note_removed(&victim.key);
        Some(victim)
    }

    /// Passes the new capacity of the cache, in bytes, to the policy.
    pub(crate) fn resize(&mut self, capacity: u64) {
        if let Some(adaptation) = self.policy.adaptation() {
            adaptation.resize(capacity);
        }
    }

    /// Does one step of the training that the policy postponed. Returns `true` if there is more
    /// work.
    pub(crate) fn train(&mut self) -> bool {
        let adaptation = self.policy.adaptation();
        adaptation.is_some_and(|adaptation| adaptation.train())
    }

    fn note_removed(&mut self, digest: &Digest) {
        if let Some(removed) = &mut self.removed {
            removed.push(*digest);
        }
    }

    /// Returns the statistics of the policy, by name.
    pub(crate) fn figures(&self) -> Vec<(&'static str, f64)> {
        let mut figures = Vec::new();
        self.policy
            .gauges(&mut |name, value| figures.push((name, value)));
        figures
    }

    pub(crate) fn record(&self, access: &Access<Digest>, outcome: Outcome) {
        if let Some(recorder) = &self.recorder {
            recorder(access, outcome);
        }
    }

    /// Starts to record removed blobs for [`Ranking::replace`].
    pub(crate) fn prepare(&mut self) {
        self.removed = Some(Vec::new());
    }

    /// Replaces the policy by a policy that contains the blobs that were stored at the time of
    /// [`Ranking::prepare`]. Returns the old policy.
    pub(crate) fn replace(
        &mut self,
        name: String,
        mut policy: Box<dyn Policy<Digest>>,
    ) -> Box<dyn Policy<Digest>> {
        for digest in self.removed.take().into_iter().flatten() {
            policy.remove(&digest);
        }
        self.policy_name = name;
        std::mem::replace(&mut self.policy, policy)
    }
}

#[cfg(test)]
mod tests {
    use pierhead_eviction::Lru;
    use pierhead_oci::Algorithm;

    use super::*;

    #[test]
    fn a_new_policy_lacks_blobs_that_were_removed_while_it_was_filled() {
        let eviction = Eviction::from(Box::new(Lru::default()));
        let mut ranking = Ranking::new(eviction, None, 0);
        let access = |number: u8| Access::new(Digest::of(Algorithm::Sha256, &[number]), 1, 0);
        for number in 0..3 {
            ranking.insert(&access(number));
        }
        ranking.prepare();
        let mut other = Lru::default();
        for number in 0..3 {
            other.insert(&access(number));
        }
        ranking.remove(&access(1).key);
        ranking.evict(&mut |_| false);
        ranking.replace("other".into(), Box::new(other));
        let held = [0, 1, 2].map(|number| ranking.policy.contains(&access(number).key));
        assert_eq!(held, [false, false, true]);
        // After the replacement, removals are not recorded.
        ranking.remove(&access(0).key);
        assert!(ranking.removed.is_none());
    }
}
