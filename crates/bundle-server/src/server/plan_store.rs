//! Plan cache: finds plans by request and inputs, and evicts them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use pierhead_host::ClientKey;
use pierhead_oci::Digest;

use super::patches;
use super::paths::remove;
use super::plan_file::{Draft, PlanFile, PlanRecord};
use super::{Inner, RequestBase, lock};
use crate::directory::Stage;
use pierhead_bundle::format::Prelude;
use pierhead_toc::{Error, FileDigest};

/// Number of open plan files.
const OPEN: usize = 32;
/// Version of the plan format. Plans of another version are made anew.
pub(super) const VERSION: &str = "1";

/// Maximum number of base images in one plan. Planning reads the table of each of them.
const MAX_BASES: usize = 16;
/// One client's plans take at most this fraction (1/n) of the bytes for plans.
const SHARES: u64 = 4;
/// A plan counts at least one disk block.
const MIN_PLAN: u64 = 4096;

/// Plans by the client whose request made them, oldest first.
#[derive(Default)]
pub(super) struct Owned(HashMap<ClientKey, VecDeque<OwnedPlan>>);

struct OwnedPlan {
    key: FileDigest,
    /// The hard link of a plan that was sent.
    sent: Option<FileDigest>,
    len: u64,
}

impl Owned {
    /// Adds a plan. Returns the oldest plans of the same client that exceed its share.
    fn add(&mut self, client: ClientKey, plan: OwnedPlan, share: u64) -> Vec<OwnedPlan> {
        let plans = self.0.entry(client).or_default();
        plans.retain(|it| it.key != plan.key);
        plans.push_back(plan);
        let mut all: u64 = plans.iter().map(|it| it.len).sum();
        let mut over = Vec::new();
        while all > share
            && plans.len() > 1
            && let Some(oldest) = plans.pop_front()
        {
            all -= oldest.len;
            over.push(oldest);
        }
        over
    }
}

impl Inner {
    /// The base images that the plan uses: known ones, without duplicates. Their order does not depend on the order in
    /// the request: same repository first, then most layers in common, then latest.
    pub(super) fn base_images(&self, want: &Digest, have: &[RequestBase]) -> Vec<RequestBase> {
        let mut known: BTreeMap<Digest, RequestBase> = BTreeMap::new();
        for have in have.iter().filter(|have| have.is_known) {
            known.entry(have.manifest).or_insert(*have).has_layers |= have.has_layers;
        }
        let images = lock(&self.images);
        let wanted = images.get(want);
        let layers: HashSet<_> = wanted.iter().flat_map(|row| &row.row.blobs).collect();
        let rank = |manifest: &Digest| {
            let row = images.get(manifest)?;
            let is_same = wanted.is_some_and(|it| it.row.repository == row.row.repository);
            let shared = row.row.blobs.iter().filter(|it| layers.contains(it));
            Some((is_same, shared.count(), row.row.came))
        };
        let mut ranked: Vec<_> = known
            .into_values()
            .map(|have| (Reverse(rank(&have.manifest)), have))
            .collect();
        drop(images);
        // A stable sort: images of equal rank stay sorted by digest.
        ranked.sort_by_key(|(rank, _)| *rank);
        let bases = ranked.into_iter().map(|(_, have)| have);
        bases.take(MAX_BASES).collect()
    }

    /// Counts a plan towards the share of its client, and deletes that client's oldest plans above the share.
    pub(super) fn charge(
        &self,
        client: ClientKey,
        key: &FileDigest,
        sent: Option<FileDigest>,
        plan: &PlanFile,
    ) {
        let len = plan.file.metadata().map_or(0, |meta| meta.len());
        let plan = OwnedPlan {
            key: *key,
            sent,
            len: len.max(MIN_PLAN),
        };
        let over = lock(&self.owned).add(client, plan, self.config.plan_budget / SHARES);
        for plan in over {
            self.forget(&plan.key);
            if let Some(sent) = &plan.sent {
                self.paths.remove_sent(sent);
                lock(&self.open_plans).retain(|(of, _)| of != sent);
            }
        }
    }

    /// A plan that was made before. One that is damaged is deleted.
    pub(super) fn open(&self, key: &FileDigest) -> Result<Option<Arc<PlanFile>>, Error> {
        self.open_at(key, &self.paths.plan(key))
    }

    /// The same of one that lies elsewhere; no two plans have one key.
    pub(super) fn open_at(
        &self,
        key: &FileDigest,
        path: &Path,
    ) -> Result<Option<Arc<PlanFile>>, Error> {
        {
            let mut open_plans = lock(&self.open_plans);
            if let Some(at) = open_plans.iter().position(|(of, _)| of == key) {
                let found = open_plans.remove(at);
                let plan = found.1.clone();
                open_plans.push(found);
                drop(open_plans);
                // The order in which plans leave. One that is not told leaves early.
                let _ = plan.file.set_modified(SystemTime::now());
                return Ok(Some(plan));
            }
        }
        match PlanFile::open(path) {
            Ok(plan) => {
                let _ = plan.file.set_modified(SystemTime::now());
                Ok(Some(self.hold(key, plan)))
            }
            Err(Error::Missing(_)) => Ok(None),
            Err(error @ Error::Malformed { .. }) => {
                tracing::warn!(%error, "a plan is made anew");
                remove(path);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn hold(&self, key: &FileDigest, plan: PlanFile) -> Arc<PlanFile> {
        let plan = Arc::new(plan);
        let mut open_plans = lock(&self.open_plans);
        open_plans.retain(|(of, _)| of != key);
        if open_plans.len() >= OPEN {
            open_plans.remove(0);
        }
        open_plans.push((*key, plan.clone()));
        let mut alive = lock(&self.alive);
        alive.retain(|plan| plan.strong_count() > 0);
        alive.push(Arc::downgrade(&plan));
        plan
    }

    /// Puts a plan in its place, and others away if there are too many bytes of them now.
    pub(super) fn finish(
        &self,
        key: &FileDigest,
        draft: Draft,
        prelude: &Prelude,
        body: &[u8],
    ) -> Result<Arc<PlanFile>, Error> {
        let aside = draft.aside();
        let plan = draft.finish(prelude, body)?;
        let len = plan.file.metadata().map_or(0, |meta| meta.len());
        self.meter.wrote(len + aside);
        let plan = self.hold(key, plan);
        let before = self.plans.fetch_add(len, Ordering::Relaxed);
        if before.saturating_add(len) > self.config.plan_budget {
            // To less than the most, so that not each plan from here on has them all looked through.
            self.shrink_plans(self.config.plan_budget / 8 * 7)?;
        }
        Ok(plan)
    }

    /// Deletes plans until they take `most` bytes, those that are held open too.
    pub(super) fn shrink_plans(&self, most: u64) -> Result<(), Error> {
        let left = self.paths.shrink_plans(most)?;
        self.plans.store(left, Ordering::Relaxed);
        lock(&self.open_plans).retain(|(key, _)| self.paths.has_plan(key));
        lock(&self.owned).0.retain(|_, plans| {
            plans.retain(|plan| self.paths.has_plan(&plan.key));
            !plans.is_empty()
        });
        Ok(())
    }

    /// Names the plan of a request, by what it is made of: once there is something better it has another name.
    /// `None` when that is not there yet.
    pub(super) fn key(
        &self,
        want: &Digest,
        have: &[RequestBase],
        layers: bool,
    ) -> Result<Option<FileDigest>, Error> {
        let request = key(want, have, layers);
        if have.is_empty() {
            return Ok(Some(request));
        }
        for have in have {
            if let Some(pair) = self.pair(want, &have.manifest, layers)? {
                return Ok(Some(derived(&request, &pair)));
            }
        }
        let fresh = self.open(&self::key(want, &[], layers))?;
        Ok(fresh.map(|fresh| derived(&request, &fresh)))
    }

    /// The best patches from one image to another that there are.
    pub(super) fn pair(
        &self,
        want: &Digest,
        have: &Digest,
        layers: bool,
    ) -> Result<Option<Arc<PlanFile>>, Error> {
        match self.open(&patches::idle(want, have))? {
            None => self.open(&patches::fast(want, have, layers)),
            found => Ok(found),
        }
    }

    /// A plan of which all packs are still here. Another one is deleted.
    pub(super) fn whole(&self, key: &FileDigest) -> Result<Option<Arc<PlanFile>>, Error> {
        let plan = self.open(key)?;
        if plan.as_ref().is_some_and(|plan| !self.is_sound(plan)) {
            self.forget(key);
            return Ok(None);
        }
        Ok(plan)
    }

    /// Whether a plan is there and all packs that it names are, too.
    pub(super) fn is_whole(&self, key: &FileDigest) -> bool {
        matches!(self.whole(key), Ok(Some(_)))
    }

    pub(super) fn is_sound(&self, plan: &PlanFile) -> bool {
        let is_here = |nth| match plan.record(nth) {
            Some(PlanRecord::InPack(place)) => self.packs.contains(&place),
            found => found.is_some(),
        };
        let frames = u32::try_from(plan.records.len() / super::plan_file::ENTRY).unwrap_or(0);
        (0..frames).all(is_here)
    }

    /// Has an image that was ready made ready once more.
    pub(super) fn again(&self, manifest: &Digest) -> Result<(), Error> {
        for layers in [false, true] {
            self.forget(&key(manifest, &[], layers));
        }
        let client = {
            let mut images = lock(&self.images);
            let Some(row) = images.get_mut(manifest) else {
                return Ok(());
            };
            if !row.row.stage.is_ready() {
                return Ok(());
            }
            row.row.stage = Stage::Waiting;
            // From here on, a request registers as waiting.
            row.awaited.store(false, Ordering::Relaxed);
            row.client
        };
        lock(&self.queue).image(*manifest, client);
        self.wake.notify_all();
        Ok(())
    }

    /// Deletes a plan.
    pub(super) fn forget(&self, key: &FileDigest) {
        lock(&self.open_plans).retain(|(of, _)| of != key);
        self.paths.remove_plan(key);
    }
}

/// Names what is made for a request out of a plan.
pub(super) fn derived(request: &FileDigest, of: &PlanFile) -> FileDigest {
    FileDigest::of(format!("{request} of {}", of.etag).as_bytes())
}

/// Names a request: whatever is in the header of its plan is in its name.
pub(super) fn key(want: &Digest, have: &[RequestBase], layers: bool) -> FileDigest {
    let mut text = format!("bundle {VERSION} {want} {layers}");
    for have in have {
        let RequestBase {
            manifest,
            is_known,
            has_layers,
        } = have;
        text.push_str(&format!(" {manifest} {is_known} {has_layers}"));
    }
    FileDigest::of(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plans_of_one_client_leave_before_they_take_all_the_room() {
        let client = |nth: u8| ClientKey::of([10, 0, 0, nth].into());
        let plan = |nth: u32, len| OwnedPlan {
            key: FileDigest::of(&nth.to_le_bytes()),
            sent: None,
            len,
        };
        let mut owned = Owned::default();
        let mut add = |of, nth, len| {
            let over = owned.add(client(of), plan(nth, len), 100);
            over.into_iter().map(|plan| plan.key).collect::<Vec<_>>()
        };
        let key = |nth: u32| FileDigest::of(&nth.to_le_bytes());
        assert!(add(2, 1000, 100).is_empty());
        assert!(add(1, 0, 40).is_empty());
        assert!(add(1, 1, 40).is_empty());
        // Only the oldest plan of the same client leaves.
        assert_eq!(add(1, 2, 40), [key(0)]);
        // A plan that is made again counts once, as the newest.
        assert!(add(1, 1, 40).is_empty());
        assert_eq!(add(1, 3, 60), [key(2)]);
        // A single plan above the share stays for its request.
        assert_eq!(add(1, 4, 500), [key(1), key(3)]);
        assert_eq!(add(1, 5, 1), [key(4)]);
    }
}
