//! Pulls whole images into the cache in advance, for `pierhead cache warm` and for bundles.

use std::collections::{HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pierhead_host::BackgroundTask;
use pierhead_oci::{Body, Descriptor, Digest, Manifest, Platform, Reference, Target};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::{Error, with_sources};
use crate::limits::client_usage::ClientUsage;
use crate::limits::downloads::DownloadWaiters;
use crate::pull::blob_request::BlobRequest;
use crate::pull::claim::{ClaimResult, claim_of};
use crate::pull::download::{self, AdmissionMode};
use crate::pull::manifest::{is_distributable, manifest};

/// Maximum number of blobs of one warmed image that are downloaded at the same time, which is the
/// default of docker and containerd, too.
const MAX_PARALLEL: usize = 3;
/// Maximum number of manifests and blobs of one warmed image. An index of 20 platforms has a few
/// hundred of them.
const MAX_PARTS: usize = 10_000;
/// Maximum number of further attempts to store a blob of a warmed image. An attempt can fail
/// because a client starts its own fill first, and the cache does not admit that fill.
const MAX_FURTHER_CLAIMS: usize = 8;
/// Interval of progress reports while large blobs are downloaded.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The progress of a pull, which [`Proxy::warm`](crate::Proxy::warm) reports again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of blobs of the image that are in the cache.
    pub done: u64,
    /// Number of all blobs of the image, as far as known.
    pub blobs: u64,
    /// Number of bytes of the image that are in the cache.
    pub bytes_done: u64,
    /// Number of all bytes of the image, as far as known.
    pub bytes: u64,
}

/// Pulls an image into the cache: see [`Proxy::warm`](crate::Proxy::warm). All downloads count as
/// downloads of `client`. If the future is dropped, the downloads that it started end, and their
/// staged bytes stay.
///
/// `left` resolves when no client waits for the image any more. After that, no further download
/// begins. A running download continues while a client reads its blob. A download without a reader
/// continues until another download needs its slot.
pub(crate) async fn warm(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
    platforms: &[Platform],
    left: impl Future<Output = ()> + Send,
    mut report: impl FnMut(Progress) + Send,
) -> Result<Progress, String> {
    let (mut left, mut has_left) = (pin!(left), false);
    let rules = &context.config().rules;
    let allowed = rules.check(&reference.registry, &reference.repository);
    allowed.map_err(|error| error.to_string())?;
    let blobs = tokio::select! {
        blobs = blobs(context, client, reference, platforms) => blobs,
        () = left.as_mut() => return Ok(Progress::default()),
    };
    let blobs = blobs.map_err(|error| describe(&reference.to_string(), &error))?;
    let mut progress = Progress {
        blobs: count(blobs.len()),
        ..Progress::default()
    };
    // The sizes come from the manifest, so they may be wrong. The sizes are used only for the sum
    // in the report.
    progress.bytes = blobs
        .iter()
        .fold(0, |sum: u64, blob| sum.saturating_add(blob.size));
    report(progress);

    let arrived = Arc::new(AtomicU64::new(0));
    let (leave, left_by_all) = watch::channel(false);
    let (mut waiting, mut running) = (VecDeque::from(blobs), JoinSet::new());
    let mut settled = 0;
    let mut tick = tokio::time::interval(REPORT_INTERVAL);
    loop {
        while running.len() < MAX_PARALLEL
            && let Some(blob) = waiting.pop_front()
        {
            let request = BlobRequest {
                registry: reference.registry.clone(),
                repository: reference.repository.clone(),
                digest: blob.digest,
                client: client.clone(),
            };
            let (context, arrived) = (context.clone(), arrived.clone());
            let left = left_by_all.clone();
            let panics = context.cache.panics().clone();
            running.spawn(panics.watch_future(BackgroundTask::FillOwner, async move {
                pull_blob(&context, request, &arrived, left).await
            }));
        }
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok(Ok((size, counted)))) => {
                    progress.done += 1;
                    settled += size.saturating_sub(counted);
                }
                Some(Ok(Err((digest, error)))) => return Err(describe(&format!("{reference}: blob {digest}"), &error)),
                Some(Err(error)) => return Err(format!("{reference}: {error}")),
            },
            _ = tick.tick() => {}
            () = left.as_mut(), if !has_left => {
                has_left = true;
                waiting.clear();
                leave.send_replace(true);
            }
        }
        progress.bytes_done = (settled + arrived.load(Ordering::Relaxed)).min(progress.bytes);
        report(progress);
    }
    Ok(progress)
}

/// Resolves when no client waits for the image any more.
async fn has_left(left: &mut watch::Receiver<bool>) {
    if left.wait_for(|it| *it).await.is_err() {
        std::future::pending().await
    }
}

/// The result of [`pull_blob`] if all clients have left: size 0, and 0 bytes that `arrived` has
/// counted.
const ABANDONED: (u64, u64) = (0, 0);

/// Pulls one blob. Returns the size of the blob, and how many bytes of the blob `arrived` has
/// counted.
async fn pull_blob(
    context: &Arc<RequestContext>,
    request: BlobRequest,
    arrived: &AtomicU64,
    mut left: watch::Receiver<bool>,
) -> Result<(u64, u64), (Digest, Error)> {
    let mut result = claim_blob(context, &request, arrived, &mut left).await;
    // The cache did not admit the fill of a client, so `pull_blob` starts a fill of its own, which
    // is always admitted.
    for _ in 0..MAX_FURTHER_CLAIMS {
        match &result {
            Err(error) if error.is_not_admitted() => {
                result = claim_blob(context, &request, arrived, &mut left).await;
            }
            _ => break,
        }
    }
    result.map_err(|error| (request.digest, error))
}

async fn claim_blob(
    context: &Arc<RequestContext>,
    request: &BlobRequest,
    arrived: &AtomicU64,
    left: &mut watch::Receiver<bool>,
) -> Result<(u64, u64), Error> {
    if context.is_operator
        && let Some(entry) = context.cache.blob_stat(&request.digest)
    {
        return Ok((entry.size, 0));
    }
    let claimed = loop {
        match claim_of(context, request).await? {
            Some(claimed) => break claimed,
            // Another registry fills the same digest, so `pull_blob` waits until that fill has
            // ended.
            None => tokio::select! {
                () = tokio::time::sleep(REPORT_INTERVAL) => {}
                () = has_left(left) => return Ok(ABANDONED),
            },
        }
    };
    match claimed {
        ClaimResult::Stored(blob) => Ok((blob.size(), 0)),
        ClaimResult::Follower(reader, None) => tokio::select! {
            blob = download::committed(reader) => Ok((blob?.size(), 0)),
            () = has_left(left) => Ok(ABANDONED),
        },
        ClaimResult::Follower(reader, Some(offer)) => {
            let permit = context.limits.upstream_permit(&request.client)?;
            let offered =
                download::offer_slot(context, permit, (request, DownloadWaiters::owner()), offer);
            let both = async { tokio::join!(download::committed(reader), offered) };
            tokio::select! {
                (blob, ()) = both => Ok((blob?.size(), 0)),
                () = has_left(left) => Ok(ABANDONED),
            }
        }
        ClaimResult::Leader(fill, reader, owner) => {
            // The reader is dropped, because only clients may count as readers of the fill.
            drop(reader);
            let readers = fill.readers();
            let permit = context.limits.upstream_permit(&request.client)?;
            let slot = {
                let mut slot = pin!(download::acquire_slot_for_fill(
                    context,
                    (request, DownloadWaiters::owner_and(readers.clone())),
                    permit,
                    &owner
                ));
                tokio::select! {
                    slot = slot.as_mut() => slot,
                    () = has_left(left) => match readers.is_empty() {
                        true => return Ok(ABANDONED),
                        false => slot.await,
                    },
                }
            };
            let (staged, mut handed_over) = (fill.offset(), None);
            let fill = (fill, AdmissionMode::Always);
            let mut run = pin!(download::run(
                context,
                request,
                fill,
                (&slot, arrived),
                &mut handed_over
            ));
            let blob = tokio::select! {
                blob = run.as_mut() => blob,
                () = has_left(left) => {
                    slot.set_owner_waiting(false);
                    tokio::select! {
                        blob = run => blob,
                        () = slot.yield_requested() => return Ok(ABANDONED),
                    }
                }
            };
            let size = blob?.size();
            Ok((size, size.saturating_sub(staged)))
        }
    }
}

/// Pulls the manifests of an image into the cache, and returns the distinct blobs of the image.
async fn blobs(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
    platforms: &[Platform],
) -> Result<Vec<Descriptor>, Error> {
    let mut walk = Walk::new(reference);
    let mut search = None;
    let mut blobs = Vec::new();
    while let Some((reference, depth)) = walk.next() {
        let deadline = Deadline::new(context.config().response_timeout);
        let (document, _) = manifest(context, client, &reference, deadline).await?;
        let bytes = document.bytes(Manifest::MAX_SIZE).await?;
        let manifest = Manifest::parse(bytes, Some(document.media_type.as_str()))?;
        walk.seen.insert(document.digest);
        match &manifest.body {
            Body::Index { manifests, .. } => {
                let search = search.get_or_insert_with(|| PlatformSearch::new(platforms));
                for child in search.select(manifests) {
                    walk.descend(child.digest, depth)?;
                }
            }
            body => {
                // If the image is an entry of an index, it was already selected by its platform.
                if depth == 0
                    && !platforms.is_empty()
                    && let Body::Image { config, .. } = body
                {
                    // The future is boxed because it is large, and because most pulls do not run
                    // it.
                    Box::pin(check_platform(
                        context, client, &reference, config, platforms,
                    ))
                    .await?;
                }
                for child in manifest.children().filter(|child| is_distributable(child)) {
                    if walk.enter(child.digest)? {
                        blobs.push(child.clone());
                    }
                }
            }
        }
    }
    match search {
        Some(search) => search.finish().map(|()| blobs),
        None => Ok(blobs),
    }
}

/// Maximum bytes of an image config that is read to find its platform.
const MAX_CONFIG: u64 = 4 << 20;

/// Checks that the config of an image names one of `platforms`. For this check, pulls the config
/// into the cache.
async fn check_platform(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
    config: &Descriptor,
    platforms: &[Platform],
) -> Result<(), Error> {
    if config.size > MAX_CONFIG {
        return Ok(());
    }
    let request = BlobRequest {
        registry: reference.registry.clone(),
        repository: reference.repository.clone(),
        digest: config.digest,
        client: client.clone(),
    };
    // The sender of `left` is kept and not used: the check ignores leaving clients, because the
    // config is small.
    let (_leave, left) = watch::channel(false);
    let pulled = pull_blob(context, request, &AtomicU64::new(0), left).await;
    pulled.map_err(|(_, error)| error)?;
    let Some(blob) = context.cache.get(&config.digest).await? else {
        return Ok(());
    };
    let bytes = blob
        .read_all(usize::try_from(MAX_CONFIG).unwrap_or(usize::MAX))
        .await?;
    // The config of an artifact names no platform, so there is nothing to check.
    let Some(offered) = Platform::of_config(&bytes) else {
        return Ok(());
    };
    if platforms.iter().any(|wanted| wanted.runs(&offered)) {
        return Ok(());
    }
    let wanted: Vec<_> = platforms.iter().map(Platform::to_string).collect();
    Err(Error::BadRequest(format!(
        "the image is for {offered}, not for {}",
        wanted.join(" or ")
    )))
}

/// Visits the manifests of an image: each manifest once, within limits of depth and number.
struct Walk {
    origin: Reference,
    next: VecDeque<(Target, usize)>,
    seen: HashSet<Digest>,
}

impl Walk {
    fn new(origin: &Reference) -> Self {
        let seen = match &origin.target {
            Target::Digest(digest) => HashSet::from([*digest]),
            Target::Tag(_) => HashSet::new(),
        };
        Self {
            origin: origin.clone(),
            next: VecDeque::from([(origin.target.clone(), 0)]),
            seen,
        }
    }

    fn next(&mut self) -> Option<(Reference, usize)> {
        let (target, depth) = self.next.pop_front()?;
        Some((
            Reference {
                target,
                ..self.origin.clone()
            },
            depth,
        ))
    }

    /// Adds a part of the image. Returns `false` if the part was already added.
    fn enter(&mut self, digest: Digest) -> Result<bool, Error> {
        if self.seen.len() >= MAX_PARTS {
            return Err(Error::Document(format!("more than {MAX_PARTS} parts")));
        }
        Ok(self.seen.insert(digest))
    }

    /// Adds a child manifest, which is visited later.
    fn descend(&mut self, digest: Digest, depth: usize) -> Result<bool, Error> {
        if !self.enter(digest)? {
            return Ok(false);
        }
        if depth >= Manifest::MAX_DEPTH {
            return Err(Error::Document(format!(
                "indexes nested deeper than {}",
                Manifest::MAX_DEPTH
            )));
        }
        self.next.push_back((Target::Digest(digest), depth + 1));
        Ok(true)
    }
}

/// Maximum number of platforms that the error text for a missing platform names.
const MAX_NAMED_PLATFORMS: usize = 32;

/// Searches an index and its nested indexes for the images of the wanted platforms.
struct PlatformSearch<'a> {
    /// The platforms for which no index had an image so far.
    missing: Vec<&'a Platform>,
    wanted: &'a [Platform],
    /// The first distinct platforms of all entries, at most [`MAX_NAMED_PLATFORMS`].
    offered: Vec<Platform>,
}

impl<'a> PlatformSearch<'a> {
    fn new(wanted: &'a [Platform]) -> Self {
        Self {
            missing: wanted.iter().collect(),
            wanted,
            offered: Vec::new(),
        }
    }

    /// Returns the entries of one index for the wanted platforms, or all entries if no platform is
    /// wanted. Nested indexes are always included.
    fn select<'e>(&mut self, entries: &'e [Descriptor]) -> Vec<&'e Descriptor> {
        if self.wanted.is_empty() {
            return entries.iter().collect();
        }
        let nested = entries.iter().filter(|entry| entry.media_type.is_index());
        let mut selected: Vec<_> = nested.collect();
        for platform in self.wanted {
            if let Some(entry) = platform.choose(entries) {
                selected.push(entry);
                self.missing.retain(|it| *it != platform);
            }
        }
        let offered = entries.iter().filter_map(|entry| entry.platform.as_ref());
        for platform in offered.filter(|offered| !offered.is_unknown()) {
            if self.offered.len() < MAX_NAMED_PLATFORMS && !self.offered.contains(platform) {
                self.offered.push(platform.clone());
            }
        }
        selected
    }

    /// Checks the result of the search after all indexes.
    ///
    /// # Errors
    /// No index has an image for one of the wanted platforms.
    fn finish(self) -> Result<(), Error> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<_> = self.missing.iter().map(ToString::to_string).collect();
        let missing = missing.join(" or ");
        let offered: Vec<_> = self.offered.iter().map(Platform::to_string).collect();
        Err(Error::BadRequest(match offered.is_empty() {
            true => {
                format!("the index has no image for {missing}, and its entries name no platform")
            }
            false => format!(
                "the index has no image for {missing}, only for {}",
                offered.join(", ")
            ),
        }))
    }
}

/// The error text for clients if a part of a pull fails. The cause is only logged, because it may
/// contain paths of this host.
fn describe(part: &str, error: &Error) -> String {
    tracing::warn!(part, error = %with_sources(error), "image pull failed");
    format!("{part}: {}", error.client_text())
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use pierhead_remote::{Client as Remote, Config as RemoteConfig, Upstream};
    use pierhead_testkit::images::{Document, Image};
    use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};

    use super::*;
    use crate::config::Config;
    use crate::proxy::Proxy;

    #[tokio::test]
    async fn an_image_of_another_platform_is_refused_with_both_names() {
        let upstream = FakeRegistry::builder().start().await;
        let image = Image::random(2, &[1000]);
        upstream.push("app", "1", &image);
        let data = tempfile::tempdir().unwrap();
        let (context, reference, _) = context(&upstream, data.path());
        let client = context.limits.operator();
        let warmed = async |platform: &str| {
            let platforms = [platform.parse().unwrap()];
            let left = std::future::pending();
            warm(&context, &client, &reference, &platforms, left, |_| {}).await
        };
        let refused = warmed("windows/amd64").await.unwrap_err();
        let names = "the image is for linux/amd64, not for windows/amd64";
        assert!(refused.contains(names), "{refused}");
        warmed("linux/amd64").await.unwrap();
    }

    /// Pushes an index with these entries as `app:1`.
    fn push_index(upstream: &FakeRegistry, entries: &[serde_json::Value]) {
        let media_type = pierhead_oci::MediaType::OCI_INDEX;
        let index = Document::new(&serde_json::json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "manifests": entries,
        }));
        let digest = upstream.put_manifest("app", media_type, index.bytes);
        upstream.tag("app", "1", digest);
    }

    #[tokio::test]
    async fn platforms_are_found_in_any_of_the_nested_indexes() {
        let upstream = FakeRegistry::builder().start().await;
        let parts = [(1, "amd64"), (2, "arm64")].map(|(seed, architecture)| {
            let image = Image::multi_arch(seed, &[architecture]);
            upstream.push("app", architecture, &image);
            image.root_document().descriptor()
        });
        push_index(&upstream, &parts);
        for (wanted, error) in [
            (&["linux/amd64", "linux/arm64"][..], None),
            (&["linux/arm64"], None),
            (
                &["linux/amd64", "linux/s390x"],
                Some("no image for linux/s390x, only for linux/amd64, linux/arm64/v8"),
            ),
            (
                &["linux/riscv64", "linux/s390x"],
                Some(
                    "no image for linux/riscv64 or linux/s390x, only for linux/amd64, linux/arm64/v8",
                ),
            ),
        ] {
            let data = tempfile::tempdir().unwrap();
            let (context, reference, _) = context(&upstream, data.path());
            let client = context.limits.operator();
            let platforms: Vec<Platform> = wanted.iter().map(|it| it.parse().unwrap()).collect();
            let left = std::future::pending();
            let warmed = warm(&context, &client, &reference, &platforms, left, |_| {}).await;
            match error {
                // Each image has a config and two layers.
                None => assert_eq!(warmed.unwrap().done, 3 * count(wanted.len()), "{wanted:?}"),
                Some(error) => assert!(warmed.unwrap_err().ends_with(error), "{wanted:?}"),
            }
        }
    }

    #[tokio::test]
    async fn an_index_without_platforms_is_refused_with_this_reason() {
        let upstream = FakeRegistry::builder().start().await;
        let image = Image::random(3, &[1000]);
        upstream.push("app", "part", &image);
        push_index(&upstream, &[image.root_document().descriptor()]);
        let data = tempfile::tempdir().unwrap();
        let (context, reference, _) = context(&upstream, data.path());
        let client = context.limits.operator();
        let platforms = ["linux/amd64".parse().unwrap()];
        let left = std::future::pending();
        let warmed = warm(&context, &client, &reference, &platforms, left, |_| {}).await;
        let refused = warmed.unwrap_err();
        let reason = "no image for linux/amd64, and its entries name no platform";
        assert!(refused.ends_with(reason), "{refused}");
    }

    #[test]
    fn clients_get_no_path_of_a_failed_part() {
        let lines = pierhead_testkit::log::capture();
        let cause = pierhead_cache::Error::Io {
            action: "read",
            path: "/srv/data/blob".into(),
            source: Arc::new(std::io::Error::other("bad sector")),
        };
        let text = describe("app:1: blob x", &Error::from(cause));
        assert!(text.starts_with("app:1: blob x: "), "{text}");
        assert!(!text.contains("/srv/data"), "{text}");
        let logged = &lines.with("image pull failed")[0];
        assert!(logged.contains("/srv/data/blob") && logged.contains("bad sector"));
        assert!(logged.contains("app:1: blob x"), "{logged}");
    }

    /// In a test, creates a proxy of `upstream` with an empty cache, and the name of the image
    /// `app:1`.
    fn context(
        upstream: &FakeRegistry,
        data: &std::path::Path,
    ) -> (Arc<RequestContext>, Reference, pierhead_cache::Cache) {
        let config = pierhead_cache::Config::new(data, 1 << 20);
        let policy = Box::new(pierhead_eviction::Lru::default());
        let cache = pierhead_cache::Cache::open(config, policy).unwrap();
        let entry = Upstream {
            url: upstream.url(),
            ..Upstream::default()
        };
        let mut remote = RemoteConfig::default();
        let registry = upstream.addr().to_string();
        remote.upstreams.insert(registry.parse().unwrap(), entry);
        let remote = Remote::new(remote).unwrap();
        let context = Proxy::new(cache.clone(), remote, Config::default()).current();
        let reference = format!("{registry}/app:1").parse().unwrap();
        (context, reference, cache)
    }

    #[tokio::test]
    async fn an_image_without_waiting_clients_begins_no_further_download() {
        let upstream = FakeRegistry::builder().start().await;
        let image = Image::random(1, &[1000; 6]);
        upstream.push("app", "1", &image);
        let gate = Gate::new();
        upstream.inject(Fault::GateBody(1, gate.clone()).on_blobs());
        let data = tempfile::tempdir().unwrap();
        let (context, reference, cache) = context(&upstream, data.path());
        let client = context.limits.operator();
        let (leave, left) = tokio::sync::oneshot::channel();
        let left = async { left.await.unwrap_or_default() };
        let warmed = warm(&context, &client, &reference, &[], left, |_| {});
        let leaves = async {
            gate.reached(MAX_PARALLEL).await;
            leave.send(()).unwrap();
            tokio::task::yield_now().await;
            gate.release();
        };
        let (warmed, ()) = tokio::join!(warmed, leaves);
        warmed.unwrap();
        let blobs = image.blobs.iter();
        let stored = blobs.filter(|blob| cache.contains(&blob.digest)).count();
        assert_eq!(stored, MAX_PARALLEL, "running downloads continue");
    }
}
