//! Reports the gauges of the cache (sizes, counts, fast tier) whenever Prometheus scrapes the
//! metrics.

use std::sync::Weak;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Unit;

use crate::clock::now;
use crate::store::Store;
use crate::tier::placement::TierStat;

/// Reads the state of the cache at each scrape.
#[derive(Debug)]
pub(crate) struct StateCollector(pub(crate) Weak<Store>);

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(store) = self.0.upgrade() else {
            return Ok(());
        };
        // `Store::free` makes a system call, which does not wait for the disk. The call is made
        // without the lock of the state.
        let free = store.free();
        let (figures, labels, shown) = {
            let mut state = store.state.lock();
            let tick = state.ranking.clock.read(now());
            let written = state.ranking.admission.written(tick);
            let ranking = &state.ranking;
            let labels = [
                ("policy", ranking.policy_name.clone()),
                ("admission", ranking.admission.name.clone()),
            ];
            let policy = u64::try_from(ranking.policy.memory()).unwrap_or(u64::MAX);
            let limit = ranking.admission.budget();
            let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            let figures = [
                (
                    "written_today",
                    "Bytes written since midnight (UTC), by blobs and by bundles",
                    Some(Unit::Bytes),
                    written,
                ),
                (
                    "daily_write_budget",
                    "Value of cache.daily_write_budget; 0: no limit",
                    Some(Unit::Bytes),
                    limit,
                ),
                (
                    "policy_memory",
                    "Memory of the eviction policy",
                    Some(Unit::Bytes),
                    policy,
                ),
                ("blobs", "Committed blobs", None, count(state.index.len())),
                (
                    "unreadable",
                    "Unreadable files of blobs and tags, which pierhead keeps and reads again later",
                    None,
                    count(state.unreadable()),
                ),
                (
                    "used",
                    "Bytes of committed blobs on disk",
                    Some(Unit::Bytes),
                    state.used,
                ),
                (
                    "reserved",
                    "Bytes reserved for running and interrupted downloads, and for deleted files that readers have open",
                    Some(Unit::Bytes),
                    state.reserved,
                ),
                (
                    "tags",
                    "Bytes of tags and tag lists on disk",
                    Some(Unit::Bytes),
                    state.tag_bytes,
                ),
                (
                    "capacity",
                    "Limit of used, reserved and tags together",
                    Some(Unit::Bytes),
                    state.capacity,
                ),
                (
                    "free",
                    "Free space of the file system of the data folder",
                    Some(Unit::Bytes),
                    free,
                ),
                (
                    "pinned",
                    "Bytes of committed blobs that are pinned",
                    Some(Unit::Bytes),
                    state.pinned_bytes,
                ),
                (
                    "fills",
                    "Running fills (downloads into the cache)",
                    None,
                    count(state.fills.len()),
                ),
                (
                    "memory",
                    "Bytes of the small blobs that are in memory",
                    Some(Unit::Bytes),
                    state.memory.bytes(),
                ),
                (
                    "memory_blobs",
                    "Number of small blobs that are in memory",
                    None,
                    count(state.memory.len()),
                ),
            ];
            (figures, labels, ranking.figures())
        };
        let of_policy = Family::<[(&str, &str); 1], Gauge<f64, AtomicU64>>::default();
        for (name, value) in shown {
            of_policy.get_or_create(&[("figure", name)]).set(value);
        }
        let described = encoder.encode_descriptor(
            "policy_figures",
            "Statistics of the eviction policy, by name",
            None,
            of_policy.metric_type(),
        )?;
        of_policy.encode(described)?;
        let info = Info::new(labels);
        let described = encoder.encode_descriptor(
            "eviction",
            "Eviction policy and admission in use",
            None,
            info.metric_type(),
        )?;
        info.encode(described)?;
        if let Some(placer) = &store.placer {
            tier(&mut encoder, &placer.stat())?;
        }
        for (name, help, unit, value) in figures {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let encoder =
                encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?;
            gauge.encode(encoder)?;
        }
        Ok(())
    }
}

/// Reports the gauges of the fast tier.
fn tier(encoder: &mut DescriptorEncoder<'_>, stat: &TierStat) -> Result<(), std::fmt::Error> {
    let info = Info::new([("class", stat.class)]);
    let described = encoder.encode_descriptor(
        "tier",
        "Whether the fast tier survives a power loss",
        None,
        info.metric_type(),
    )?;
    info.encode(described)?;
    let fast = &stat.fast;
    let bytes = Some(Unit::Bytes);
    let gauges = [
        (
            "tier_capacity",
            "Size of the medium of the fast tier",
            &bytes,
            stat.capacity,
        ),
        (
            "tier_free",
            "Free space on the medium of the fast tier",
            &bytes,
            fast.free,
        ),
        (
            "tier_used",
            "Bytes of pierhead on the fast tier",
            &bytes,
            fast.used,
        ),
        (
            "tier_limit",
            "Maximum number of bytes in the fast tier",
            &bytes,
            fast.limit,
        ),
        (
            "tier_dirty",
            "Bytes of the fast tier that are not yet on the disk",
            &bytes,
            fast.dirty_bytes,
        ),
        (
            "tier_blobs",
            "Complete blobs on the fast tier",
            &None,
            fast.blobs,
        ),
        (
            "tier_hot_blobs",
            "Blobs of which the fast tier has only the ranges that a container start reads",
            &None,
            fast.hot,
        ),
        (
            "tier_hot_used",
            "Bytes of hot ranges on the fast tier",
            &bytes,
            fast.hot_used,
        ),
        (
            "tier_queue",
            "Blobs of the fast tier that are not yet on the disk",
            &None,
            fast.dirty_blobs,
        ),
        (
            "tier_failed",
            "1: the medium of the fast tier has failed; the tier is unused until a restart",
            &None,
            fast.failed.into(),
        ),
    ];
    for (name, help, unit, value) in gauges {
        let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let described =
            encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?;
        gauge.encode(described)?;
    }
    let counters = [
        (
            "tier_staged",
            "Content written to the fast tier",
            &bytes,
            fast.staged,
        ),
        (
            "tier_written_back",
            "Content written back to the disk",
            &bytes,
            fast.written_back,
        ),
        (
            "tier_promoted",
            "Content copied from the disk to the fast tier",
            &bytes,
            fast.promoted,
        ),
        (
            "tier_moved",
            "Fills that moved from the fast tier to the disk",
            &None,
            fast.moved,
        ),
        (
            "tier_evictions",
            "Blobs evicted from the fast tier",
            &None,
            fast.evicted,
        ),
        (
            "tier_damaged",
            "Blobs found damaged on the fast tier",
            &None,
            fast.damaged,
        ),
        (
            "tier_corrupt_blobs",
            "Corrupt blobs on the fast tier, a part of pierhead_cache_corrupt_blobs_total",
            &None,
            fast.corrupt,
        ),
    ];
    for (name, help, unit, value) in counters {
        let counter = ConstCounter::new(value);
        let described =
            encoder.encode_descriptor(name, help, unit.as_ref(), counter.metric_type())?;
        counter.encode(described)?;
    }
    let hits = Family::<[(&str, &str); 1], Counter>::default();
    for (on, count) in [
        ("fast", fast.hits),
        ("both", fast.hot_hits),
        ("disk", fast.disk_hits),
    ] {
        hits.get_or_create(&[("on", on)]).inc_by(count);
    }
    let described = encoder.encode_descriptor(
        "tier_hits",
        "Blobs opened, by tier",
        None,
        hits.metric_type(),
    )?;
    hits.encode(described)
}
