//! Warming: pulls whole images into the cache in advance. A cached blob that an operator warms again counts as no hit.

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
use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::limits::downloads::DownloadWaiters;
use crate::pull::blob_request::BlobRequest;
use crate::pull::claim::{ClaimResult, claim_of};
use crate::pull::fetch::{self, AdmissionMode};
use crate::pull::manifest::{is_distributable, manifest};

/// Blobs fetched at once: what docker and containerd do.
const MAX_PARALLEL: usize = 3;
/// Manifests and blobs of one image. An index of 20 platforms has some hundreds.
const MAX_PARTS: usize = 10_000;
/// How often a warm joins the fill of a client again after one that was not let in: clients that come just before
/// it each time are no reason to give up, and none to go on for ever.
const MAX_JOINS: usize = 8;
/// How often progress within large blobs is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// What [`Proxy::warm`](crate::Proxy::warm) reports as it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blobs done, of `blobs`.
    pub done: u64,
    /// Blobs in all, as far as known.
    pub blobs: u64,
    /// Bytes done, of `bytes`.
    pub bytes_done: u64,
    /// Bytes in all, as far as known.
    pub bytes: u64,
}

/// See [`Proxy::warm`](crate::Proxy::warm)(crate::proxy::Proxy::warm). All of it counts for `client`. When dropped, fetches of its own end; what is staged stays.
///
/// When `left` resolves, nobody waits for the image any more. No further download begins. A running download goes on until
/// another download needs its slot, and in any case while a client reads it.
pub(crate) async fn warm(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
    platforms: &[Platform],
    left: impl Future<Output = ()> + Send,
    mut report: impl FnMut(Progress) + Send,
) -> Result<Progress, String> {
    let (mut left, mut has_left) = (pin!(left), false);
    let rules = &context.config.load().rules;
    let allowed = rules.check(&reference.registry, &reference.repository);
    allowed.map_err(|error| error.to_string())?;
    let blobs = tokio::select! {
        blobs = blobs(context, client, reference, platforms) => blobs,
        () = left.as_mut() => return Ok(Progress::default()),
    };
    let blobs = blobs.map_err(|error| format!("{reference}: {error}"))?;
    let mut progress = Progress {
        blobs: count(blobs.len()),
        ..Progress::default()
    };
    // Sizes are what somebody wrote: they are summed, never believed.
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
            running.spawn(async move {
                let _watch = context.cache.panics().watch(BackgroundTask::FillOwner);
                one(&context, request, &arrived, left).await
            });
        }
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok(Ok((size, fetched)))) => {
                    progress.done += 1;
                    settled += size.saturating_sub(fetched);
                }
                Some(Ok(Err((digest, error)))) => return Err(format!("{reference}: blob {digest}: {error}")),
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

/// Resolves when nobody waits for the image any more.
async fn has_left(left: &mut watch::Receiver<bool>) {
    if left.wait_for(|it| *it).await.is_err() {
        std::future::pending().await
    }
}

/// What a blob counts for that nobody waits for any more.
const ABANDONED: (u64, u64) = (0, 0);

/// Gets one blob; its size, and how many bytes of that were counted while they came.
async fn one(
    context: &Arc<RequestContext>,
    request: BlobRequest,
    arrived: &AtomicU64,
    mut left: watch::Receiver<bool>,
) -> Result<(u64, u64), (Digest, Error)> {
    let mut got = claimed(context, &request, arrived, &mut left).await;
    // The fills of clients that it joined were not let in: its own will be.
    for _ in 0..MAX_JOINS {
        match &got {
            Err(error) if error.is_passed_on() => {
                got = claimed(context, &request, arrived, &mut left).await;
            }
            _ => break,
        }
    }
    got.map_err(|error| (request.digest, error))
}

async fn claimed(
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
            // Another registry fills it; what comes of that is the same, if anything.
            None => tokio::select! {
                () = tokio::time::sleep(REPORT_INTERVAL) => {}
                () = has_left(left) => return Ok(ABANDONED),
            },
        }
    };
    match claimed {
        ClaimResult::Stored(blob) => Ok((blob.size(), 0)),
        ClaimResult::Follower(content, None) => tokio::select! {
            blob = fetch::committed(content) => Ok((blob?.size(), 0)),
            () = has_left(left) => Ok(ABANDONED),
        },
        ClaimResult::Follower(content, Some(offer)) => {
            let ticket = context.limits.queue(&request.client)?;
            let offered =
                fetch::offer_slot(context, ticket, (request, DownloadWaiters::owner()), offer);
            let both = async { tokio::join!(fetch::committed(content), offered) };
            tokio::select! {
                (blob, ()) = both => Ok((blob?.size(), 0)),
                () = has_left(left) => Ok(ABANDONED),
            }
        }
        ClaimResult::Leader(fill, content, owner) => {
            // Only clients count as readers.
            drop(content);
            let readers = fill.readers();
            let ticket = context.limits.queue(&request.client)?;
            let slot = {
                let mut slot = pin!(fetch::acquire_slot_for_fill(
                    context,
                    (request, DownloadWaiters::owner_and(readers.clone())),
                    ticket,
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
            let mut run = pin!(fetch::run(
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

/// The blobs of an image, without repetition; its manifests are in the cache when this returns.
async fn blobs(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
    platforms: &[Platform],
) -> Result<Vec<Descriptor>, Error> {
    let mut walk = Walk::new(reference);
    let mut blobs = Vec::new();
    while let Some((reference, depth)) = walk.next() {
        let deadline = Deadline::new(context.config.load().answer_within);
        let (document, _) = manifest(context, client, &reference, deadline).await?;
        let bytes = document.bytes(Manifest::MAX_SIZE).await?;
        let manifest = Manifest::parse(bytes, Some(document.media_type.as_str()))?;
        walk.seen.insert(document.digest);
        match &manifest.body {
            Body::Index { manifests, .. } => {
                for child in chosen(manifests, platforms)? {
                    walk.descend(child.digest, depth)?;
                }
            }
            _ => {
                for child in manifest.children().filter(|child| is_distributable(child)) {
                    if walk.enter(child.digest)? {
                        blobs.push(child.clone());
                    }
                }
            }
        }
    }
    Ok(blobs)
}

/// A walk through manifests that ends, whatever they say: each is visited once, depth and number are bounded.
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

    /// Notes a part; `false` when it is known already.
    fn enter(&mut self, digest: Digest) -> Result<bool, Error> {
        if self.seen.len() >= MAX_PARTS {
            return Err(Error::Document(format!("more than {MAX_PARTS} parts")));
        }
        Ok(self.seen.insert(digest))
    }

    /// Notes a child manifest, to be visited later.
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

/// The entries that those platforms run; all when none is named. Indexes within an index always.
fn chosen<'a>(
    entries: &'a [Descriptor],
    platforms: &[Platform],
) -> Result<Vec<&'a Descriptor>, Error> {
    if platforms.is_empty() {
        return Ok(entries.iter().collect());
    }
    let nested = entries.iter().filter(|entry| entry.media_type.is_index());
    let mut chosen: Vec<_> = nested.collect();
    for platform in platforms {
        match platform.choose(entries) {
            Some(entry) => chosen.push(entry),
            None if chosen.is_empty() => {
                return Err(Error::Document(format!("nothing for {platform} in it")));
            }
            None => {}
        }
    }
    Ok(chosen)
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use pierhead_remote::{Client as Remote, Config as RemoteConfig, Upstream};
    use pierhead_testkit::images::Image;
    use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};

    use super::*;
    use crate::config::Config;
    use crate::proxy::Proxy;

    #[tokio::test]
    async fn an_image_that_nobody_waits_for_begins_no_further_download() {
        let upstream = FakeRegistry::builder().start().await;
        let image = Image::random(1, &[1000; 6]);
        upstream.push("app", "1", &image);
        let gate = Gate::new();
        upstream.inject(Fault::GateBody(1, gate.clone()).on_blobs());
        let data = tempfile::tempdir().unwrap();
        let config = pierhead_cache::Config::new(data.path(), 1 << 20);
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
        let (client, reference) = (context.limits.own(), format!("{registry}/app:1"));
        let reference = reference.parse().unwrap();
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
        assert_eq!(stored, MAX_PARALLEL, "those that ran go on");
    }
}
