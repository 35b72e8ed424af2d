//! Deletes packs (files of compressed file contents) that no image needs, and the files of images
//! that the cache no longer has.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pierhead_oci::Digest;

use super::context::Context;
use super::paths::remove;
use super::plan_file::{PlanFile, pack_locations};
use super::plan_store::{fresh_plan_keys, request_key};
use super::record_locations::forget_locations;
use crate::Error;
use crate::pack::FrameIndex as _;
use pierhead_toc::ImageToc;

/// Maximum number of attempts to delete unused packs. An attempt fails when a thread indexes an
/// image meanwhile.
const MAX_TRIES: u32 = 3;

/// A bundle plan that will be deleted, unless all packs that it names remain.
struct DoubtfulPlan {
    path: PathBuf,
    version: Option<FileVersion>,
    /// The packs that the plan names. `None` when the plan is damaged, or when one of its records
    /// is already missing.
    packs: Option<HashSet<u32>>,
}

/// Identifies one version of a file: the inode, and the time of its last change in seconds and
/// nanoseconds.
type FileVersion = (u64, i64, i64);

/// Returns the version of a file, or `None` when the file does not exist.
fn version(path: &Path) -> Option<FileVersion> {
    let meta = path.symlink_metadata().ok()?;
    Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

/// Whether the cache still has a blob. When the lookup fails, returns `true`, so that nothing is
/// deleted because of an error.
pub(super) fn is_cached(context: &Context, digest: &Digest) -> bool {
    matches!(context.blobs.open(digest), Ok(Some(_)) | Err(_))
}

/// Removes an image that the cache no longer has, and its fresh plans (the bundle plans for workers
/// without base images).
pub(super) fn remove_image(context: &Context, manifest: &Digest) -> Result<(), Error> {
    for key in fresh_plan_keys(manifest) {
        context.plans.delete(&key);
    }
    context.images.settle(manifest, None)
}

/// Removes the images whose manifest or config the cache no longer has, with their TOCs, traces,
/// plans and layer indexes. Finally removes the packs that no remaining image needs.
pub(super) fn remove_uncached_images(context: &Context) -> Result<(), Error> {
    // Skips images that are being indexed: indexing itself removes an image whose blobs are gone.
    for (manifest, config) in context.images.configs_of_settled() {
        let has_config = config.is_none_or(|config| is_cached(context, &config));
        if has_config && is_cached(context, &manifest) {
            continue;
        }
        // Records that there are unused packs before it removes the image, since a later run does
        // not find this image any more.
        context.pack_usage.note_unused();
        remove_image(context, &manifest)?;
    }
    let known = context.images.manifests();
    close_files(context);
    let is_used = |digest: &Digest| known.contains(digest) || is_cached(context, digest);
    context.paths.retain_traces(is_used);
    // Both folders are visited, even if one of them is unreadable.
    let layers = context.paths.retain_layers(is_used);
    context.paths.retain_tocs(is_used).and(layers)?;
    drop_late(context)
}

/// Closes TOCs and layers, since evicted blobs and deleted files take disk space as long as they
/// are open.
pub(super) fn close_files(context: &Context) {
    context.tocs.close_all();
    context.layers.close_all();
}

/// Deletes packs that no remaining image needs, and the plans that name them. While an image is
/// being packed, does nothing, since no plan and no TOC names the packs of this image yet. The next
/// run of maintenance tries again.
fn drop_unused_packs(context: &Context) -> Result<(), Error> {
    for _ in 0..MAX_TRIES {
        if try_drop_unused_packs(context)? {
            return Ok(());
        }
    }
    tracing::info!("unused packs stay until no image is being indexed");
    context.pack_usage.note_unused();
    Ok(())
}

/// Tries once to delete unused packs. Returns `false` when an image was indexed or packed
/// meanwhile.
///
/// 1. Reading and hashing plans and TOCs holds no lock, so indexing continues.
/// 2. The deletion holds the packing lock, and first checks that no pack was written and no image
///    was indexed since step 1.
fn try_drop_unused_packs(context: &Context) -> Result<bool, Error> {
    let state = || {
        (
            context.pack_usage.indexing_runs(),
            context.packs.stat().appended,
        )
    };
    let before = context
        .pack_usage
        .try_begin_deletion()
        .map(|_guard| state());
    let Some(before) = before else {
        return Ok(false);
    };
    let superseded = context
        .plans
        .superseded(Some(&context.images.manifests()))?;
    let Some(mut used) = used_packs(context)? else {
        // The server cannot determine now which packs an image needs, so it deletes no pack.
        context.pack_usage.note_unused();
        return Ok(true);
    };
    // Packs of superseded plans are kept, since clients resume downloads with these plans.
    used.extend(&superseded.packs);
    let doubtful = doubtful_plans(context, &used)?;

    let Some(_deletion) = context.pack_usage.try_begin_deletion() else {
        return Ok(false);
    };
    if state() != before || !context.plans.has_all_superseded(&superseded)? {
        return Ok(false);
    }
    superseded.unusable.iter().for_each(|path| remove(path));
    // Closes the plans, so that only packs that a response still reads are kept open.
    context.plans.close_all();
    context.packs.retain(&|number| used.contains(&number))?;
    for plan in doubtful {
        let is_whole = |packs: &HashSet<u32>| packs.iter().all(|it| context.packs.has(*it));
        // A plan whose file has changed since it was read is not deleted. The server checks such a
        // plan at its next use.
        if !plan.packs.as_ref().is_some_and(is_whole) && version(&plan.path) == plan.version {
            remove(&plan.path);
        }
    }
    context.plans.recount();
    Ok(true)
}

/// Returns the plans that cannot be sent because they are damaged or lack records, and the plans
/// that name packs outside of `used`.
fn doubtful_plans(context: &Context, used: &HashSet<u32>) -> Result<Vec<DoubtfulPlan>, Error> {
    let mut doubtful = Vec::new();
    context.paths.each_plan(&mut |path| {
        let version = version(path);
        let packs = match PlanFile::open(path) {
            Ok(plan) => {
                let packs: HashSet<_> = pack_locations(&plan)
                    .map(|location| location.pack)
                    .collect();
                let has_packs = context.plans.has_packs(&plan);
                if has_packs && packs.is_subset(used) {
                    return;
                }
                has_packs.then_some(packs)
            }
            Err(Error::Malformed { .. }) => None,
            // A plan that cannot be opened now may be intact, so it is not deleted. Only a plan
            // that is proven to be damaged is deleted.
            Err(_) => return,
        };
        doubtful.push(DoubtfulPlan {
            path: path.to_owned(),
            version,
            packs,
        });
    })?;
    Ok(doubtful)
}

/// Deletes unused packs that an earlier call has not deleted because an image was being packed.
pub(super) fn drop_late(context: &Context) -> Result<(), Error> {
    if context.queue.is_stopped() || !context.pack_usage.take_unused() {
        return Ok(());
    }
    let done = drop_unused_packs(context).and_then(|()| forget_locations(context));
    if done.is_err() {
        context.pack_usage.note_unused();
    }
    done
}

/// Returns the packs that known images need: the packs that their plans name, and the packs that
/// their next plans will name. The latter are needed because plans may be deleted before packs.
/// Returns `None` when the packs of an image cannot be determined.
fn used_packs(context: &Context) -> Result<Option<HashSet<u32>>, Error> {
    let mut used = HashSet::new();
    for (manifest, was_started) in context.images.accepted() {
        used.extend(packs_of(context, &manifest)?);
        let toc = match ImageToc::open(&context.paths.toc(&manifest)).map_err(Error::from) {
            Ok(toc) => toc,
            // The indexing of this image has not begun, so the image has no packs.
            Err(Error::Missing(_)) if !was_started => continue,
            Err(Error::Missing(_) | Error::Malformed { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        for (content, _) in toc.contents().iter() {
            let locations = context.image_database.get(&content)?;
            used.extend(locations.into_iter().map(|location| location.pack));
        }
    }
    Ok(Some(used))
}

/// Returns the packs (files of stored frames) to which the fresh plans of an image refer. Fresh
/// plans are the bundle plans for workers without base images. The set is empty when there is no
/// plan, or when the plan is damaged.
///
/// # Errors
/// `Io` when the plan cannot be read. In this case, the packs of the plan are unknown, so no pack
/// may be deleted.
pub(super) fn packs_of(context: &Context, manifest: &Digest) -> Result<HashSet<u32>, Error> {
    // The plan for workers that rebuild layers refers to all packs of the other fresh plan.
    // `PlanFile::open` does not count as a use of the plan.
    match PlanFile::open(&context.paths.plan(&request_key(manifest, &[], true))) {
        Ok(plan) => Ok(pack_locations(&plan)
            .map(|location| location.pack)
            .collect()),
        Err(Error::Missing(_) | Error::Malformed { .. }) => Ok(HashSet::new()),
        Err(error) => Err(error),
    }
}

/// Deletes a fast pack if all its frames are optimized, and if no plan in use refers to the pack.
/// When a thread indexes an image meanwhile, deletes nothing; the next run of maintenance tries
/// again.
///
/// 1. Reading and hashing plans holds no lock, so indexing continues.
/// 2. The deletion holds the packing lock, and first checks that no image was indexed and no plan
///    was superseded since step 1.
pub(super) fn drop_unused_fast_packs(context: &Context) -> Result<(), Error> {
    let runs = || context.pack_usage.indexing_runs();
    let before = context.pack_usage.try_begin_deletion().map(|_guard| runs());
    let Some(before) = before else {
        return Ok(());
    };
    let mut used = HashSet::new();
    for manifest in context.images.fast_images() {
        used.extend(packs_of(context, &manifest)?);
    }
    let superseded = context.plans.superseded(None)?;
    used.extend(&superseded.packs);

    let Some(_deletion) = context.pack_usage.try_begin_deletion() else {
        return Ok(());
    };
    if runs() != before || !context.plans.has_all_superseded(&superseded)? {
        return Ok(());
    }
    used.extend(context.plans.packs_in_use());
    let deleted = context.packs.drop_fast(&|number| used.contains(&number))?;
    if deleted > 0 {
        let packs = &context.packs;
        context.image_database.retain_locations(|locations| {
            locations.iter().all(|location| packs.contains(location))
        })?;
    }
    Ok(())
}
