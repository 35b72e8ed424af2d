//! Policy and admission on one clock, as the state uses them.

use std::sync::Arc;

use pierhead_eviction::{Access, Admission, Policy, Victim};
use pierhead_oci::Digest;

use crate::store::admission::{AdmissionControl, Refusal};
use crate::store::image_counts::ImageCounts;
use crate::store::policy_clock::PolicyClock;

/// Policy, admission and daily write budget: what can change while the cache runs.
pub struct Eviction {
    /// What the policy is called, for logs and metrics. Another one of the same name is not taken in place
    /// of it.
    pub policy_name: String,
    /// Names victims.
    pub policy: Box<dyn Policy<Digest>>,
    /// What the admission is called.
    pub admission_name: String,
    /// Decides which blobs enter; `None`: whatever fits may enter.
    pub admission: Option<Box<dyn Admission<Digest>>>,
    /// Bytes of content written to the disk in one day (of UTC); 0: as many as come.
    pub daily_write_budget: u64,
}

impl<P: Policy<Digest> + 'static> From<Box<P>> for Eviction {
    /// That policy, and an open admission.
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
    /// It was in the cache.
    Hit,
    /// It was fetched and kept.
    Kept,
    /// It was fetched, and went past the cache.
    Passed,
}

/// Called with each request, on the thread that serves it and under a lock: it must not block.
pub type Recorder = Arc<dyn Fn(&Access<Digest>, Outcome) + Send + Sync>;

pub(crate) struct Ranking {
    pub(crate) policy_name: String,
    pub(crate) policy: Box<dyn Policy<Digest>>,
    pub(crate) admission: AdmissionControl,
    pub(crate) clock: PolicyClock,
    pub(crate) shares: ImageCounts,
    pub(crate) recorder: Option<Recorder>,
    /// What left since another policy began to be fed; `None` while none is.
    left: Option<Vec<Digest>>,
    /// The latest of past ticks that the policy was shown.
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
            shares: ImageCounts::default(),
            recorder,
            left: None,
            seen: 0,
        }
    }

    /// A stored blob was requested.
    pub(crate) fn hit(&mut self, access: &Access<Digest>) {
        self.policy.hit(access);
        self.admission.hit(access);
        self.record(access, Outcome::Hit);
    }

    /// What is not held was asked for, so many times at once. `always`: it is to be kept whatever the admission says;
    /// it is counted all the same.
    pub(crate) fn miss(
        &mut self,
        access: &Access<Digest>,
        requests: u32,
        always: bool,
    ) -> Result<(), Refusal> {
        // Each request is one call, whatever comes of it: some learn from misses there.
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

    /// A blob was stored.
    pub(crate) fn insert(&mut self, access: &Access<Digest>) {
        self.policy.insert(access);
    }

    /// A reader joined the fill. The admission has counted that.
    pub(crate) fn joined(&mut self, access: &Access<Digest>) {
        self.policy.hit(access);
        self.record(access, Outcome::Hit);
    }

    /// Goes on with what was known before a restart. `later`: it was asked for after the ranks were saved.
    pub(crate) fn restore(&mut self, access: &Access<Digest>, later: bool) {
        self.seen(access.tick);
        let access = Access {
            tick: self.seen,
            ..*access
        };
        if !later || !self.policy.hit(&access) {
            self.policy.insert(&access);
        }
    }

    /// The policy was shown this tick. Those of the past that it is shown later are no earlier, whatever the wall
    /// clock did when they were noted.
    pub(crate) fn seen(&mut self, tick: u64) {
        self.seen = self.seen.max(tick);
    }

    /// It left for another reason than the policy's choice.
    pub(crate) fn remove(&mut self, digest: &Digest) {
        self.policy.remove(digest);
        self.note_left(digest);
    }

    /// The policy's choice, which it has let go of: it is not told again, since to some that is another event.
    pub(crate) fn evict(
        &mut self,
        held: &mut dyn FnMut(&Digest) -> bool,
    ) -> Option<Victim<Digest>> {
        let victim = self.policy.evict(held)?;
        self.note_left(&victim.key);
        Some(victim)
    }

    /// Passes the new capacity of the cache, in bytes, to the policy.
    pub(crate) fn resize(&mut self, capacity: u64) {
        if let Some(adaptation) = self.policy.adaptation() {
            adaptation.resize(capacity);
        }
    }

    /// Does one step of the policy's deferred work. Returns `true` if more work is left.
    pub(crate) fn train(&mut self) -> bool {
        let adaptation = self.policy.adaptation();
        adaptation.is_some_and(|adaptation| adaptation.train())
    }

    fn note_left(&mut self, digest: &Digest) {
        if let Some(left) = &mut self.left {
            left.push(*digest);
        }
    }

    /// Figures of the policy, by name.
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

    /// From now on, what leaves is noted for [`Ranking::replace`].
    pub(crate) fn prepare(&mut self) {
        self.left = Some(Vec::new());
    }

    /// Takes another policy, that was fed with what was held when [`Ranking::prepare`] was called; gives the old one.
    pub(crate) fn replace(
        &mut self,
        name: String,
        mut policy: Box<dyn Policy<Digest>>,
    ) -> Box<dyn Policy<Digest>> {
        for digest in self.left.take().into_iter().flatten() {
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
    fn what_left_while_another_policy_was_fed_is_not_in_it() {
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
        // And nothing more is noted.
        ranking.remove(&access(0).key);
        assert!(ranking.left.is_none());
    }
}
