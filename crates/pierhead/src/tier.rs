//! The fast tier, from its configuration: which file, what it turned out to be, and the log in it.

use std::path::Path;
use std::sync::Arc;

use pierhead_cache::FastTier;
use pierhead_cache::tier::{DiskTier, ModelledTier, Options, PmemTier};
use pierhead_pmem::{Class, Log, Medium, Model, Modelled, Region};

use crate::config::{DiskModel, Tier, TierKind, TierModel};

/// Opens it; `None` when there is to be none. Blocks: a file that is new is allocated.
///
/// # Errors
/// For people: what is wrong with the file, and the mend.
pub(crate) fn open(tier: &Tier) -> Result<Option<FastTier>, String> {
    let Some(region) = region(tier)? else {
        return Ok(None);
    };
    let told = |error: &dyn std::error::Error| error.to_string();
    let (report, len) = (region.report().clone(), region.report().len);
    let file = region.sendable().map(std::fs::File::try_clone);
    let file = file.transpose().map_err(|error| told(&error))?;
    let medium: Arc<dyn Medium> = match tier.model {
        TierModel::Off => Arc::new(region),
        TierModel::Nvdimm => Arc::new(Modelled::new(region, Model::NVDIMM)),
        TierModel::Emmc => Arc::new(Modelled::new(region, Model::EMMC)),
    };
    let (log, found) =
        Log::open(medium, pierhead_pmem::Options::default()).map_err(|error| told(&error))?;
    tracing::info!(
        class = %report.class, blobs = found.entries,
        "fast tier: {report}"
    );
    let damaged = found.dropped + found.damaged;
    if damaged > 0 {
        tracing::warn!(
            damaged,
            path = %report.path.display(),
            "parts of the fast tier are damaged: what lay there is served from the disk, or fetched again; when that comes \
             again, look into the kernel's log and replace the medium"
        );
    }
    // Heads and the ends of segments take their part.
    let most = log.capacity() / 32 * 31;
    let limit = match tier.limit {
        0 => most,
        limit => limit.min(most),
    };
    let options = Options {
        most,
        volatile: !report.class.is_persistent(),
        drain_rate: tier.drain.unwrap_or(0),
        damaged,
        ..Options::new(limit)
    };
    Ok(Some(FastTier {
        // A model would not slow down what is sent from the file.
        tier: Arc::new(PmemTier::new(
            log,
            file.filter(|_| tier.model == TierModel::Off),
        )),
        options,
        weights: tier.rules,
        class: report.class.as_str(),
        capacity: len,
    }))
}

/// What the file of the tier takes of the memory that this process is bound to, once it is made: nothing on a disk.
pub(crate) fn bytes_in_memory(tier: &Tier) -> u64 {
    let path = tier.path.as_ref();
    let path = path.filter(|path| tier.kind != TierKind::Off && pierhead_pmem::is_memory(path));
    path.map_or(0, |_| tier.size)
}

/// The disk of the cache, as slow as its model if it has one.
///
/// # Errors
/// The system's.
pub(crate) fn disk(
    data: &Path,
    model: DiskModel,
) -> std::io::Result<Arc<dyn pierhead_cache::tier::Tier>> {
    /// What a small machine has for its page cache.
    const MEMORY: u64 = 256 << 20;
    let disk = DiskTier::new(data)?;
    let model = match model {
        DiskModel::Off => return Ok(Arc::new(disk)),
        DiskModel::HardDisk => Model::HARD_DISK,
        DiskModel::Emmc => Model::EMMC,
    };
    tracing::warn!(
        ?model,
        "the disk is slowed down to a model: tier.disk_model is for experiments"
    );
    Ok(Arc::new(ModelledTier::new(Arc::new(disk), model, MEMORY)))
}

/// The file, mapped; `None` when there is to be none.
///
/// # Errors
/// As [`open`].
pub(crate) fn region(tier: &Tier) -> Result<Option<Region>, String> {
    let path = match (tier.kind, &tier.path) {
        (TierKind::Off, _) => return Ok(None),
        (_, None) => return Err("tier.path is not set: name the file of the tier".to_owned()),
        (_, Some(path)) => path.clone(),
    };
    let config = pierhead_pmem::Config {
        path,
        size: tier.size,
    };
    let region = Region::open(&config).map_err(|error| error.to_string())?;
    let report = region.report();
    if tier.kind == TierKind::Pmem && report.class != Class::Pmem {
        return Err(format!(
            "{report}: no persistent memory; tier.kind = \"file\" uses it as what it is"
        ));
    }
    Ok(Some(region))
}
