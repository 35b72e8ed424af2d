//! The store of bundle plans on disk. Each plan has a key, which is a hash of the request and of
//! the plans from which the plan is made. The store keeps some plan files open, and evicts plans to
//! stay within its budget.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pierhead_host::{ClientKey, KeyedLock};
use pierhead_oci::Digest;

use super::config::Config;
use super::image::RequestBase;
use super::paths::{Paths, remove};
use super::plan_file::{Draft, PlanFile, PlanRecord, pack_locations};
use super::write_budget::WriteMeter;
use crate::Error;
use crate::clock;
use crate::pack::Packs;
use pierhead_bundle::format::Prelude;
use pierhead_toc::FileDigest;

/// Maximum number of plan files that stay open for later requests.
const MAX_OPEN: usize = 32;
/// Maximum number of superseded plans that are stored for interrupted downloads.
const MAX_SUPERSEDED: usize = 256;
/// Version of the plan format. Plans of another version are not used, and made again.
const VERSION: &str = "1";
/// One client's plans take at most 1/`SHARES` of the budget for plans.
const SHARES: u64 = 4;
/// Minimum size in bytes with which a plan counts in the budget: one disk block.
const MIN_PLAN: u64 = 4096;

/// All plans on disk. When a client receives the bundle of a plan, the plan file gets a second name
/// (a hard link), made from the `ETag`. If a newer plan takes the first name, the superseded plan
/// has only the second name. For a while, interrupted downloads can resume with a superseded plan.
pub(super) struct PlanStore {
    paths: Paths,
    packs: Arc<Packs>,
    meter: WriteMeter,
    /// Maximum number of bytes of all plans on disk.
    budget: u64,
    resume_window: Duration,
    open: Mutex<Vec<(FileDigest, Arc<PlanFile>)>>,
    /// Locks of plans that are deleted or replaced now, by the key of the plan. Under this lock,
    /// the file of a plan and the entry of the plan in `open` change together.
    ///
    /// Opening a plan needs no lock: at worst, a request gets the plan that was just replaced,
    /// which is intact, too. Maintenance deletes files without this lock, since maintenance deletes
    /// only files that have not changed since it read them. [`Self::shrink`] then closes these
    /// plans.
    changing: KeyedLock<FileDigest>,
    /// Plans that a request or a response may be using.
    in_use: Mutex<Vec<Weak<PlanFile>>>,
    shares: Mutex<ClientShares>,
    /// Upper bound of the bytes of plans on disk. The bound does not decrease when a single plan is
    /// deleted.
    bytes: AtomicU64,
}

/// The superseded plans that existed at one time, as maintenance has read them.
#[derive(Default)]
pub(super) struct SupersededPlans {
    paths: HashSet<PathBuf>,
    /// Numbers of the packs of those plans with which a client can resume a download.
    pub(super) packs: HashSet<u32>,
    /// Paths of the plans whose images no longer exist.
    pub(super) unusable: Vec<PathBuf>,
}

/// The plans that were made for requests of each client. The oldest plan of a client is first.
#[derive(Default)]
struct ClientShares(HashMap<ClientKey, VecDeque<ChargedPlan>>);

struct ChargedPlan {
    key: FileDigest,
    /// The key of the second name of the plan.
    sent: Option<FileDigest>,
    len: u64,
}

impl ClientShares {
    /// Adds a plan of a client. Returns the oldest plans of the same client that exceed the
    /// client's share of the budget.
    fn add(&mut self, client: ClientKey, plan: ChargedPlan, share: u64) -> Vec<ChargedPlan> {
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

impl PlanStore {
    pub(super) fn new(config: &Config, paths: Paths, packs: Arc<Packs>, meter: WriteMeter) -> Self {
        let (_, bytes) = paths.bytes();
        Self {
            paths,
            packs,
            meter,
            budget: config.plan_budget,
            resume_window: config.resume_window,
            open: Mutex::default(),
            changing: KeyedLock::default(),
            in_use: Mutex::default(),
            shares: Mutex::default(),
            bytes: AtomicU64::new(bytes),
        }
    }

    /// Counts a plan towards the share of its client, and deletes the oldest plans of this client
    /// until the remaining plans fit the share of the client.
    pub(super) fn charge(
        &self,
        client: ClientKey,
        key: &FileDigest,
        sent: Option<FileDigest>,
        plan: &PlanFile,
    ) {
        let len = plan.file.metadata().map_or(0, |meta| meta.len());
        let plan = ChargedPlan {
            key: *key,
            sent,
            len: len.max(MIN_PLAN),
        };
        let over = self.shares.lock().add(client, plan, self.budget / SHARES);
        for plan in over {
            self.delete(&plan.key);
            if let Some(sent) = plan.sent {
                let _lock = self.changing.lock(sent);
                self.remove(&sent, &self.paths.sent(&sent));
            }
        }
    }

    /// Begins to write the plan that has this key.
    pub(super) fn draft(&self, key: &FileDigest) -> Result<Draft, Error> {
        Draft::begin(&self.paths.plan(key))
    }

    /// Opens the plan with this key, if the plan exists. Deletes a damaged plan.
    pub(super) fn open(&self, key: &FileDigest) -> Result<Option<Arc<PlanFile>>, Error> {
        self.open_or_delete_if(is_damaged, key, &self.paths.plan(key))
    }

    /// Opens the plan with this key, if it exists and is intact. Deletes nothing.
    pub(super) fn peek(&self, key: &FileDigest) -> Result<Option<Arc<PlanFile>>, Error> {
        match self.open_at(key, &self.paths.plan(key)) {
            Err(error) if is_damaged(&error) => Ok(None),
            found => found,
        }
    }

    /// Opens the plan with this key, if the plan exists. Deletes a damaged plan, and also a plan
    /// that cannot be read (ELOOP, EACCES, EIO). This function is only for callers that can make
    /// the plan again.
    ///
    /// # Errors
    /// `Io` when file descriptors or memory are used up, or when the file cannot be deleted.
    pub(super) fn open_or_delete(&self, key: &FileDigest) -> Result<Option<Arc<PlanFile>>, Error> {
        self.open_or_delete_if(is_unusable, key, &self.paths.plan(key))
    }

    /// Opens a plan, and deletes it after an error for which `is_deletable` returns true.
    fn open_or_delete_if(
        &self,
        is_deletable: fn(&Error) -> bool,
        key: &FileDigest,
        path: &Path,
    ) -> Result<Option<Arc<PlanFile>>, Error> {
        match self.open_at(key, path) {
            Err(error) if is_deletable(&error) => {}
            found => return found,
        }
        // Another request may have deleted this plan since, and made it again. So the plan is
        // opened once more, under the lock that [`Self::finish`] takes.
        let _lock = self.changing.lock(*key);
        let error = match self.open_at(key, path) {
            Err(error) if is_deletable(&error) => error,
            found => return found,
        };
        if is_damaged(&error) {
            tracing::warn!(%error, "a plan is damaged; pierhead makes it again");
            remove(path);
            return Ok(None);
        }
        match std::fs::remove_file(path) {
            Ok(()) => {}
            // Maintenance has deleted the same plan.
            Err(removal) if removal.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(_) => return Err(error),
        }
        tracing::warn!(%error, "a plan cannot be read; pierhead makes it again");
        Ok(None)
    }

    fn open_at(&self, key: &FileDigest, path: &Path) -> Result<Option<Arc<PlanFile>>, Error> {
        let found = {
            let mut open = self.open.lock();
            let at = open.iter().position(|(of, _)| of == key);
            at.map(|at| {
                let found = open.remove(at);
                let plan = found.1.clone();
                open.push(found);
                plan
            })
        };
        if let Some(plan) = found {
            // Sets the time at which the plan was last used, by which plans are evicted. If this
            // fails, the plan is only evicted earlier.
            let _ = plan.file.set_modified(clock::now());
            return Ok(Some(plan));
        }
        match PlanFile::open(path) {
            Ok(plan) => {
                let _ = plan.file.set_modified(clock::now());
                Ok(Some(self.hold(key, plan)))
            }
            Err(Error::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn hold(&self, key: &FileDigest, plan: PlanFile) -> Arc<PlanFile> {
        let plan = Arc::new(plan);
        let mut open = self.open.lock();
        open.retain(|(of, _)| of != key);
        if open.len() >= MAX_OPEN {
            open.remove(0);
        }
        open.push((*key, plan.clone()));
        let mut in_use = self.in_use.lock();
        in_use.retain(|plan| plan.strong_count() > 0);
        in_use.push(Arc::downgrade(&plan));
        plan
    }

    /// Makes a finished plan visible to requests. If all plans together exceed the budget, deletes
    /// other plans.
    pub(super) fn finish(
        &self,
        key: &FileDigest,
        draft: Draft,
        prelude: &Prelude,
        body: &[u8],
    ) -> Result<Arc<PlanFile>, Error> {
        let aside = draft.temporary_bytes();
        let plan = {
            let _lock = self.changing.lock(*key);
            self.hold(key, draft.finish(prelude, body)?)
        };
        let len = plan.file.metadata().map_or(0, |meta| meta.len());
        self.meter.wrote(len + aside);
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        if before.saturating_add(len) > self.budget {
            // Frees an eighth of the budget at once, since each call of `shrink` reads the whole
            // folder.
            self.shrink(self.budget / 8 * 7)?;
        }
        Ok(plan)
    }

    /// Deletes plans, including open ones, until all plans take at most `most` bytes.
    pub(super) fn shrink(&self, most: u64) -> Result<(), Error> {
        let left = self.paths.shrink_plans(most, &|key, path| {
            let _lock = self.changing.lock(*key);
            self.remove(key, path);
        })?;
        self.bytes.store(left, Ordering::Relaxed);
        // Maintenance may have deleted other plans.
        self.open.lock().retain(|(key, _)| self.paths.has_plan(key));
        self.shares.lock().0.retain(|_, plans| {
            plans.retain(|plan| self.paths.has_plan(&plan.key));
            !plans.is_empty()
        });
        Ok(())
    }

    /// Returns an upper bound of the bytes of all plans.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts the bytes of all plans again, after plans were deleted one by one.
    pub(super) fn recount(&self) {
        let (_, bytes) = self.paths.bytes();
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Closes all plans that no response uses. Responses in progress keep their plans open.
    pub(super) fn close_all(&self) {
        self.open.lock().clear();
    }

    /// Returns the key of the plan for a request. The key is a hash that includes the plans from
    /// which this plan is made, so that better patches give another key. Returns `None` when there
    /// is no plan yet from which this plan can be made.
    pub(super) fn key(
        &self,
        want: &Digest,
        base_images: &[RequestBase],
        with_layers: bool,
    ) -> Result<Option<FileDigest>, Error> {
        let request = request_key(want, base_images, with_layers);
        if base_images.is_empty() {
            return Ok(Some(request));
        }
        for base in base_images {
            if let Some(pair) = self.pair(want, &base.manifest, with_layers)? {
                return Ok(Some(derived_key(&request, &pair)));
            }
        }
        let fresh = self.open_or_delete(&request_key(want, &[], with_layers))?;
        Ok(fresh.map(|fresh| derived_key(&request, &fresh)))
    }

    /// Returns the plan with the best existing patches from one image to another: the plan with
    /// optimized patches, or else with fast patches.
    pub(super) fn pair(
        &self,
        want: &Digest,
        base: &Digest,
        with_layers: bool,
    ) -> Result<Option<Arc<PlanFile>>, Error> {
        match self.open_or_delete(&optimized_pair_key(want, base))? {
            None => self.open_or_delete(&fast_pair_key(want, base, with_layers)),
            found => Ok(found),
        }
    }

    /// Opens a plan whose records all exist. Deletes a plan if one of its records is missing, or if
    /// the plan cannot be read.
    pub(super) fn whole(&self, key: &FileDigest) -> Result<Option<Arc<PlanFile>>, Error> {
        let plan = self.open_or_delete(key)?;
        if let Some(plan) = &plan
            && !self.has_packs(plan)
        {
            self.delete_same(key, plan);
            return Ok(None);
        }
        Ok(plan)
    }

    /// Whether all records that a plan names exist.
    pub(super) fn has_packs(&self, plan: &PlanFile) -> bool {
        (0..plan.frames()).all(|nth| match plan.record(nth) {
            Some(PlanRecord::InPack(location)) => self.packs.contains(&location),
            found => found.is_some(),
        })
    }

    /// Deletes a plan, unless another request has replaced it by a new plan.
    fn delete_same(&self, key: &FileDigest, plan: &PlanFile) {
        let _lock = self.changing.lock(*key);
        let at = std::fs::metadata(self.paths.plan(key));
        let is_replaced = match (at, plan.file.metadata()) {
            (Ok(at), Ok(open)) => (at.dev(), at.ino()) != (open.dev(), open.ino()),
            _ => false,
        };
        if !is_replaced {
            self.remove(key, &self.paths.plan(key));
        }
    }

    /// Deletes the plan that has this key.
    pub(super) fn delete(&self, key: &FileDigest) {
        let _lock = self.changing.lock(*key);
        self.remove(key, &self.paths.plan(key));
    }

    /// Closes and deletes one name of a plan. The caller holds the lock of `key`.
    fn remove(&self, key: &FileDigest, path: &Path) {
        self.open.lock().retain(|(of, _)| of != key);
        remove(path);
    }

    /// Returns the numbers of the packs of all plans that a request or a response uses now.
    pub(super) fn packs_in_use(&self) -> HashSet<u32> {
        let open: Vec<_> = {
            let open = self.open.lock();
            open.iter().map(|(_, plan)| plan.clone()).collect()
        };
        let in_use: Vec<_> = {
            let in_use = self.in_use.lock();
            in_use.iter().filter_map(Weak::upgrade).collect()
        };
        let mut packs = HashSet::new();
        for plan in &in_use {
            // Each plan has one strong reference in the list `in_use` of this function. A plan that
            // the store keeps open has two more references: in the store, and in the list `open`. A
            // further reference means that a request or a response uses the plan.
            let idle = open.iter().filter(|it| Arc::ptr_eq(it, plan)).count();
            if Arc::strong_count(plan) > 1 + 2 * idle {
                packs.extend(pack_locations(plan).map(|location| location.pack));
            }
        }
        packs
    }

    /// Returns the plan with this `ETag`, if a client received its bundle for this request, and if
    /// all records of the plan exist.
    pub(super) fn sent(
        &self,
        want: &Digest,
        base_images: &[RequestBase],
        with_layers: bool,
        etag: &str,
    ) -> Result<Option<Arc<PlanFile>>, Error> {
        let key = sent_key(want, with_layers, etag);
        let plan = self.open_or_delete_if(is_unusable, &key, &self.paths.sent(&key))?;
        let fits = |plan: &Arc<PlanFile>| {
            plan.etag == etag && plan.suits(base_images) && self.has_packs(plan)
        };
        Ok(plan.filter(fits))
    }

    /// Gives a plan its second name (a hard link) before a client receives the bundle of the plan.
    /// Later calls for the same plan do nothing.
    pub(super) fn link_sent(
        &self,
        want: &Digest,
        with_layers: bool,
        key: &FileDigest,
        plan: &PlanFile,
    ) {
        if plan.is_linked.swap(true, Ordering::Relaxed) {
            return;
        }
        self.paths
            .link_plan(key, &sent_key(want, with_layers, &plan.etag));
    }

    /// Deletes the superseded plans that no client used within the resume window.
    pub(super) fn expire_superseded(&self) -> Result<(), Error> {
        self.paths.retain_sent(MAX_SUPERSEDED, self.resume_window)
    }

    /// Reads all superseded plans. A plan is unusable when its image is not in `images`. If
    /// `images` is `None`, all plans are usable.
    ///
    /// # Errors
    /// `Io` when file descriptors or memory are used up, because then the packs of a plan are
    /// unknown.
    pub(super) fn superseded(
        &self,
        images: Option<&HashSet<Digest>>,
    ) -> Result<SupersededPlans, Error> {
        let mut found = SupersededPlans::default();
        for path in self.paths.only_sent(self.resume_window)? {
            match PlanFile::open(&path) {
                Ok(plan) => {
                    let is_of = |want: &Digest| {
                        let key = sent_key(want, plan.prelude.layers, &plan.etag);
                        self.paths.sent(&key) == path
                    };
                    match images.is_none_or(|images| images.iter().any(is_of)) {
                        true => found
                            .packs
                            .extend(pack_locations(&plan).map(|location| location.pack)),
                        false => found.unusable.push(path.clone()),
                    }
                }
                Err(error) if error.is_exhausted() => return Err(error),
                Err(_) => {}
            }
            found.paths.insert(path);
        }
        Ok(found)
    }

    /// Whether `read` still has all superseded plans, that is, no plan was superseded since. Reads
    /// no file.
    pub(super) fn has_all_superseded(&self, read: &SupersededPlans) -> Result<bool, Error> {
        let now = self.paths.only_sent(self.resume_window)?;
        Ok(now.iter().all(|path| read.paths.contains(path)))
    }
}

/// Whether a plan is proven to be damaged.
const fn is_damaged(error: &Error) -> bool {
    matches!(error, Error::Malformed { .. })
}

/// Whether a plan is damaged or cannot be read. A lack of descriptors or memory says nothing about
/// the plan.
fn is_unusable(error: &Error) -> bool {
    is_damaged(error) || (matches!(error, Error::Io { .. }) && !error.is_exhausted())
}

/// Returns the key of a request, without the plans from which the plan of this request is made. The
/// key is a hash of everything in the request on which the header of the plan depends.
/// `with_layers` says whether the worker rebuilds the layers.
pub(super) fn request_key(
    want: &Digest,
    base_images: &[RequestBase],
    with_layers: bool,
) -> FileDigest {
    let mut text = format!("bundle {VERSION} {want} {with_layers}");
    for base in base_images {
        let RequestBase {
            manifest,
            is_usable,
            has_layers,
        } = base;
        text.push_str(&format!(" {manifest} {is_usable} {has_layers}"));
    }
    FileDigest::of(text.as_bytes())
}

/// Returns the keys of the two fresh plans of an image, which are for workers without base images:
/// the plan for workers that only mount the image, and the plan for workers that rebuild the
/// layers.
pub(super) fn fresh_plan_keys(want: &Digest) -> [FileDigest; 2] {
    [false, true].map(|with_layers| request_key(want, &[], with_layers))
}

/// Returns the key of the plan that the server makes for a request from the plan `input`.
pub(super) fn derived_key(request: &FileDigest, input: &PlanFile) -> FileDigest {
    FileDigest::of(format!("{request} of {}", input.etag).as_bytes())
}

/// Returns the key of the plan with optimized patches from `base` to `want`.
pub(super) fn optimized_pair_key(want: &Digest, base: &Digest) -> FileDigest {
    FileDigest::of(format!("pair {VERSION} {want} {base}").as_bytes())
}

/// Returns the key of the plan with fast patches from `base` to `want`. `with_layers` says whether
/// the worker rebuilds the layers.
pub(super) fn fast_pair_key(want: &Digest, base: &Digest, with_layers: bool) -> FileDigest {
    FileDigest::of(format!("fast {VERSION} {want} {base} {with_layers}").as_bytes())
}

/// Returns the key of the second name of a plan whose bundle a client received.
pub(super) fn sent_key(want: &Digest, with_layers: bool, etag: &str) -> FileDigest {
    FileDigest::of(format!("sent {want} {with_layers} {etag}").as_bytes())
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::wait::until;

    use super::*;

    #[test]
    fn the_plans_of_one_client_leave_before_they_take_all_the_room() {
        let client = |nth: u8| ClientKey::of([10, 0, 0, nth].into());
        let plan = |nth: u32, len| ChargedPlan {
            key: FileDigest::of(&nth.to_le_bytes()),
            sent: None,
            len,
        };
        let mut shares = ClientShares::default();
        let mut add = |of, nth, len| {
            let over = shares.add(client(of), plan(nth, len), 100);
            over.into_iter().map(|plan| plan.key).collect::<Vec<_>>()
        };
        let key = |nth: u32| FileDigest::of(&nth.to_le_bytes());
        assert!(add(2, 1000, 100).is_empty());
        assert!(add(1, 0, 40).is_empty());
        assert!(add(1, 1, 40).is_empty());
        // Only the oldest plan of the same client exceeds the share and is deleted.
        assert_eq!(add(1, 2, 40), [key(0)]);
        // A plan that is made again counts only once, as the newest plan of its client.
        assert!(add(1, 1, 40).is_empty());
        assert_eq!(add(1, 3, 60), [key(2)]);
        // If a single plan is larger than the share of its client, the plan is kept until the next
        // plan of this client.
        assert_eq!(add(1, 4, 500), [key(1), key(3)]);
        assert_eq!(add(1, 5, 1), [key(4)]);
    }

    fn store(folder: &Path) -> PlanStore {
        let packs = crate::pack::PackConfig::new(folder.join("packs"), 1 << 20);
        PlanStore::new(
            &Config::new(folder, 1 << 20, 1 << 20),
            Paths::open(folder).unwrap(),
            Arc::new(Packs::open(packs).unwrap()),
            WriteMeter::new(Arc::new(super::super::UnlimitedWrites)),
        )
    }

    /// Returns the prelude and the body of an empty plan.
    fn empty_plan() -> (Prelude, Vec<u8>) {
        use sha2::Digest as _;
        let body = vec![0; 100];
        let prelude = Prelude {
            continued: false,
            piece: false,
            layers: false,
            body: 100,
            first: 0,
            until: 0,
            digest: sha2::Sha256::digest(&body).into(),
        };
        (prelude, body)
    }

    /// Makes an empty plan, as a request does.
    fn make(store: &PlanStore, key: &FileDigest) -> Arc<PlanFile> {
        let (prelude, body) = empty_plan();
        let draft = store.draft(key).unwrap();
        store.finish(key, draft, &prelude, &body).unwrap()
    }

    /// A link to itself: opening it fails with ELOOP.
    fn make_unreadable(path: &Path) {
        let _ = std::fs::remove_file(path);
        std::os::unix::fs::symlink(path, path).unwrap();
    }

    #[test]
    fn a_late_request_does_not_delete_a_plan_that_was_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (store(folder.path()), FileDigest::of(b"key"));
        let path = store.paths.plan(&key);
        std::fs::write(&path, b"damaged").unwrap();
        std::thread::scope(|scope| {
            // The request has read the damaged plan when it waits for the lock.
            let making = store.changing.lock(key);
            let late = scope.spawn(|| store.open_or_delete(&key));
            until("a thread that waits", || store.changing.waiting() == 1);
            let (prelude, body) = empty_plan();
            let draft = store.draft(&key).unwrap();
            let again = draft.finish(&prelude, &body).unwrap();
            drop(making);
            let found = late.join().unwrap().unwrap().expect("the plan made again");
            assert_eq!(found.etag, again.etag);
        });
        assert!(path.is_file());
    }

    #[test]
    fn a_pipe_in_place_of_a_plan_is_replaced_without_a_wait() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (Arc::new(store(folder.path())), FileDigest::of(b"key"));
        let path = store.paths.plan(&key);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let (opening, (sender, receiver)) = (store.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let _ = sender.send(opening.open_or_delete(&key).map(|plan| plan.is_some()));
        });
        let opened = receiver.recv_timeout(Duration::from_secs(10));
        assert!(matches!(opened.expect("no wait for a writer"), Ok(false)));
        assert!(!path.exists());
        make(&store, &key);
        assert!(path.is_file());
    }

    #[test]
    fn a_plan_is_deleted_only_under_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (store(folder.path()), FileDigest::of(b"key"));
        let path = store.paths.plan(&key);
        let deletions: [&(dyn Fn() + Sync); 2] = [&|| store.delete(&key), &|| {
            store.shrink(0).unwrap();
        }];
        for delete in deletions {
            make(&store, &key);
            std::thread::scope(|scope| {
                let making = store.changing.lock(key);
                let deleting = scope.spawn(delete);
                until("a thread that waits", || store.changing.waiting() == 1);
                assert!(path.is_file() && !deleting.is_finished());
                drop(making);
            });
            assert!(!path.exists() && store.open.lock().is_empty());
        }
    }

    #[test]
    fn a_superseded_plan_of_a_client_beyond_its_share_is_deleted_under_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let (old, new) = (FileDigest::of(b"old"), FileDigest::of(b"new"));
        let sent = FileDigest::of(b"sent");
        let plan = make(&store, &old);
        store.paths.link_plan(&old, &sent);
        let path = store.paths.sent(&sent);
        store.charge(ClientKey::OPERATOR, &old, Some(sent), &plan);
        store
            .shares
            .lock()
            .0
            .values_mut()
            .flatten()
            .for_each(|plan| {
                plan.len = u64::MAX / 2;
            });
        let plan = make(&store, &new);
        std::thread::scope(|scope| {
            let resuming = store.changing.lock(sent);
            let charging = scope.spawn(|| store.charge(ClientKey::OPERATOR, &new, None, &plan));
            until("a thread that waits", || store.changing.waiting() == 1);
            assert!(path.is_file() && !charging.is_finished());
            drop(resuming);
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_finished_plan_is_opened_under_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (store(folder.path()), FileDigest::of(b"key"));
        let path = store.paths.plan(&key);
        std::thread::scope(|scope| {
            // The plan file exists, but the thread cannot add it to the open plans.
            let open = store.open.lock();
            scope.spawn(|| make(&store, &key));
            until("a plan file", || path.exists());
            let deleting = scope.spawn(|| drop(store.changing.lock(key)));
            until("a thread that waits", || store.changing.waiting() == 1);
            assert!(!deleting.is_finished());
            drop(open);
        });
        assert_eq!(store.open.lock().len(), 1);
    }

    #[test]
    fn a_plan_is_not_replaced_while_a_request_deletes_it() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (store(folder.path()), FileDigest::of(b"key"));
        let path = store.paths.plan(&key);
        std::thread::scope(|scope| {
            let deleting = store.changing.lock(key);
            let made = scope.spawn(|| make(&store, &key));
            until("a thread that waits", || store.changing.waiting() == 1);
            assert!(!path.exists() && !made.is_finished());
            drop(deleting);
        });
        assert!(path.is_file());
    }

    #[test]
    fn of_two_requests_that_delete_one_unreadable_plan_both_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (store(folder.path()), FileDigest::of(b"key"));
        let path = store.paths.plan(&key);
        make_unreadable(&path);
        std::thread::scope(|scope| {
            // Both requests find the plan unreadable before one of them deletes it.
            let deleting = store.changing.lock(key);
            let open = || scope.spawn(|| store.open_or_delete(&key).map(|plan| plan.is_some()));
            let requests = [open(), open()];
            until("two requests that wait", || store.changing.waiting() == 2);
            assert!(path.is_symlink());
            drop(deleting);
            for request in requests {
                assert!(matches!(request.join().unwrap(), Ok(false)));
            }
        });
        assert!(!path.is_symlink());
        make(&store, &key);
        assert!(store.whole(&key).unwrap().is_some());
    }

    #[test]
    fn only_a_request_that_can_make_the_plan_again_deletes_it() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (store(folder.path()), FileDigest::of(b"key"));
        let path = store.paths.plan(&key);
        make(&store, &key);
        assert!(store.peek(&key).unwrap().is_some());
        store.close_all();
        std::fs::write(&path, b"damaged").unwrap();
        assert!(store.peek(&key).unwrap().is_none() && path.is_file());
        make_unreadable(&path);
        let unreadable = store.peek(&key).err();
        assert!(matches!(unreadable, Some(Error::Io { .. })) && path.is_symlink());
        // A background job deletes what is proven to be damaged, and nothing else.
        assert!(store.open(&key).is_err() && path.is_symlink());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"damaged").unwrap();
        assert!(store.open(&key).unwrap().is_none() && !path.exists());
        make_unreadable(&path);
        assert!(store.open_or_delete(&key).unwrap().is_none() && !path.is_symlink());
    }

    #[test]
    fn a_plan_without_its_packs_is_deleted_unless_it_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (store(folder.path()), FileDigest::of(b"key"));
        let old = make(&store, &key);
        make(&store, &key);
        store.delete_same(&key, &old);
        assert!(store.open(&key).unwrap().is_some());
        let new = make(&store, &key);
        store.delete_same(&key, &new);
        assert!(store.open(&key).unwrap().is_none());
    }
}
