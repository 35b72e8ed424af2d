//! Gauges of the cache, read at each scrape.

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
        // A system call that reads no disk; not under the lock all the same.
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
            let limit = ranking.admission.cap();
            let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            let figures = [
                (
                    "written_today",
                    "Written since midnight (UTC), by blobs and by bundles",
                    Some(Unit::Bytes),
                    written,
                ),
                (
                    "daily_write_budget",
                    "Most of that; 0: no limit",
                    Some(Unit::Bytes),
                    limit,
                ),
                (
                    "policy_memory",
                    "What the policy takes of memory",
                    Some(Unit::Bytes),
                    policy,
                ),
                ("blobs", "Committed blobs", None, count(state.index.len())),
                (
                    "unreadable",
                    "Files of blobs and tags that cannot be read: they stay, and are tried again",
                    None,
                    count(state.unreadable()),
                ),
                (
                    "used",
                    "Committed blobs, on disk",
                    Some(Unit::Bytes),
                    state.used,
                ),
                (
                    "reserved",
                    "Fills, partial fills and deleted files still read",
                    Some(Unit::Bytes),
                    state.reserved,
                ),
                (
                    "tags",
                    "Tags and lists, on disk",
                    Some(Unit::Bytes),
                    state.names,
                ),
                (
                    "capacity",
                    "The bound on used, reserved and names",
                    Some(Unit::Bytes),
                    state.capacity,
                ),
                (
                    "free",
                    "What the file system of the data folder can still take",
                    Some(Unit::Bytes),
                    free,
                ),
                (
                    "pinned",
                    "Committed blobs that pins keep",
                    Some(Unit::Bytes),
                    state.pinned_bytes,
                ),
                ("fills", "Fills under way", None, count(state.fills.len())),
                (
                    "memory",
                    "Small blobs held in memory",
                    Some(Unit::Bytes),
                    state.memory.bytes(),
                ),
                (
                    "memory_blobs",
                    "Small blobs held in memory",
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
            "What the policy shows of itself",
            None,
            of_policy.metric_type(),
        )?;
        of_policy.encode(described)?;
        let info = Info::new(labels);
        let described = encoder.encode_descriptor(
            "eviction",
            "Who leaves and who enters",
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

/// The fast tier, where there is one.
fn tier(encoder: &mut DescriptorEncoder<'_>, stat: &TierStat) -> Result<(), std::fmt::Error> {
    let info = Info::new([("class", stat.class)]);
    let described = encoder.encode_descriptor(
        "tier",
        "What becomes of the fast tier when the power goes",
        None,
        info.metric_type(),
    )?;
    info.encode(described)?;
    let fast = &stat.fast;
    let bytes = Some(Unit::Bytes);
    let gauges = [
        (
            "tier_capacity",
            "The medium of the fast tier",
            &bytes,
            stat.capacity,
        ),
        ("tier_free", "What it has still to give", &bytes, fast.free),
        ("tier_used", "Ours on the fast tier", &bytes, fast.used),
        ("tier_limit", "The bound on that", &bytes, fast.limit),
        (
            "tier_dirty",
            "What the disk has still to take of it",
            &bytes,
            fast.dirty_bytes,
        ),
        (
            "tier_blobs",
            "Blobs on the fast tier, whole",
            &None,
            fast.blobs,
        ),
        (
            "tier_hot_blobs",
            "Blobs of which the fast tier has what a start reads",
            &None,
            fast.hot,
        ),
        ("tier_hot_used", "Ours in these", &bytes, fast.hot_used),
        (
            "tier_queue",
            "Blobs that the disk has still to take",
            &None,
            fast.dirty_blobs,
        ),
        (
            "tier_failed",
            "1: the medium of the fast tier has failed, and nothing goes there until a restart",
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
            "Content copied to the disk behind",
            &bytes,
            fast.written_back,
        ),
        (
            "tier_promoted",
            "Content copied to the fast tier from the disk",
            &bytes,
            fast.promoted,
        ),
        (
            "tier_moved",
            "Fills that went on on the disk",
            &None,
            fast.moved,
        ),
        (
            "tier_evictions",
            "Blobs that left the fast tier for room",
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
            "Of the stored blobs found corrupt, those on the fast tier",
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
