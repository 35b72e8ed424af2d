//! What the admin listener says of bundles: read when asked for.

use std::fmt;

use pierhead_bundle_server::BundleServer;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::api::Bundle;

/// For `GET /v1/stat`.
pub(super) fn stat(library: &BundleServer) -> Bundle {
    let stat = library.stat();
    Bundle {
        ready: stat.ready,
        waiting: stat.waiting,
        refused: stat.refused,
        jobs: stat.jobs,
        packs: stat.packs,
        packs_capacity: stat.packs_budget,
        plans: stat.plans,
        plans_capacity: stat.plans_budget,
        index: stat.index,
    }
}

/// For `GET /metrics`.
pub(super) struct Figures(pub(super) BundleServer);

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Figures")
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stat = self.0.stat();
        let bytes = Some(Unit::Bytes);
        for (name, help, unit, value) in [
            (
                "images_ready",
                "Images that can be bundled",
                None,
                stat.ready,
            ),
            (
                "images_waiting",
                "Images that wait to be indexed",
                None,
                stat.waiting,
            ),
            (
                "images_refused",
                "Images that cannot be bundled",
                None,
                stat.refused,
            ),
            (
                "jobs",
                "Work of the background that waits or is being done",
                None,
                stat.jobs,
            ),
            (
                "layers_fast",
                "Layers that wait to be packed at level 18 of zstd; their images can be bundled",
                None,
                stat.fast_layers,
            ),
            ("packs", "Packs, on disk", bytes.clone(), stat.packs),
            (
                "packs_capacity",
                "The bound on packs",
                bytes.clone(),
                stat.packs_budget,
            ),
            (
                "plans",
                "Plans and their patches, on disk",
                bytes.clone(),
                stat.plans,
            ),
            (
                "plans_capacity",
                "The bound on plans",
                bytes.clone(),
                stat.plans_budget,
            ),
            (
                "index",
                "Indexes and tables, on disk",
                bytes.clone(),
                stat.index,
            ),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let encoder =
                encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?;
            gauge.encode(encoder)?;
        }
        for (name, help, unit, value) in [
            (
                "packs_evicted",
                "Packs that left to make room",
                None,
                stat.packs_evicted,
            ),
            (
                "indexed_layers",
                "Layers that were indexed",
                None,
                stat.indexed_layers,
            ),
            (
                "indexed",
                "Blobs of layers that were indexed",
                bytes,
                stat.indexed_bytes,
            ),
            (
                "diff_id_mismatches",
                "Layers that are not what their diff IDs say",
                None,
                stat.diff_id_mismatches,
            ),
            (
                "failed",
                "Work that failed for this machine's sake",
                None,
                stat.failed,
            ),
            (
                "cancelled",
                "Work that gave back what it held while the machine was short of something, and begins again",
                None,
                stat.cancelled,
            ),
            (
                "pairs_prepared",
                "Pairs of images that patches were made for",
                None,
                stat.pairs,
            ),
            (
                "optimized",
                "Images whose quick frames were replaced by better ones",
                None,
                stat.optimized,
            ),
            (
                "plans_made",
                "Plans that were made when they were asked for",
                None,
                stat.planned,
            ),
            (
                "plans_found",
                "Plans that were there when they were asked for",
                None,
                stat.plan_hits,
            ),
        ] {
            let counter = ConstCounter::new(value);
            let encoder =
                encoder.encode_descriptor(name, help, unit.as_ref(), counter.metric_type())?;
            counter.encode(encoder)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::{Duration, Instant};

    use pierhead_bundle_server::{Config, Image};
    use pierhead_oci::{Algorithm, Digest};
    use pierhead_toc::{Blob, Blobs};
    use prometheus_client::registry::Registry;

    use super::*;

    /// Has nothing, and says so when it is let.
    #[derive(Default)]
    struct Held(Mutex<bool>, Condvar);

    impl Blobs for Held {
        fn open(&self, _: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
            let held = self.1.wait_while(self.0.lock().unwrap(), |held| *held);
            drop(held.unwrap());
            Ok(None)
        }
    }

    fn jobs(library: &BundleServer) -> u64 {
        let mut registry = Registry::default();
        let bundle = registry.sub_registry_with_prefix("pierhead_bundle");
        bundle.register_collector(Box::new(Figures(library.clone())));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let value = |line: &str| line.strip_prefix("pierhead_bundle_jobs ")?.parse().ok();
        text.lines().find_map(value).expect("it is told")
    }

    fn until_idle(library: &BundleServer) {
        let started = Instant::now();
        while jobs(library) > 0 {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "it takes too long"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn jobs_are_told_while_they_wait_or_are_done_and_none_when_it_is_idle() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Arc::<Held>::default();
        let config = Config::new(folder.path(), 64 << 20, 16 << 20);
        let library = BundleServer::open(config, blobs.clone()).unwrap();
        *blobs.0.lock().unwrap() = true;
        for nth in 0..3_u8 {
            library.offer(Image {
                manifest: Digest::of(Algorithm::Sha256, &[nth]),
                repository: "registry/app".into(),
            });
        }
        // None of them is done, taken or not; the tidying after the start may be one more.
        assert!(jobs(&library) >= 3);
        *blobs.0.lock().unwrap() = false;
        blobs.1.notify_all();
        until_idle(&library);
        library.close();
    }
}
