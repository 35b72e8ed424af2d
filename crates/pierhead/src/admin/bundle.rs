//! State of the bundle server for `GET /v1/stat`, and its metrics for `/metrics`. State and metrics
//! are read at each request.

use std::fmt;

use pierhead_bundle_server::BundleServer;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::api::BundleStat;

/// Returns the part of the response to `GET /v1/stat` that is about bundles.
pub(super) fn stat(bundle_server: &BundleServer) -> BundleStat {
    let stat = bundle_server.stat();
    BundleStat {
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

/// Collects the metrics of the bundle server at each scrape.
pub(super) struct BundleMetrics(pub(super) BundleServer);

impl fmt::Debug for BundleMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BundleMetrics")
    }
}

impl Collector for BundleMetrics {
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
            ("jobs", "Background jobs that wait or run", None, stat.jobs),
            (
                "layers_fast",
                "Layers whose packs have a fast zstd level and wait for level 18; their images can be bundled",
                None,
                stat.fast_layers,
            ),
            ("packs", "Bytes of packs on disk", bytes.clone(), stat.packs),
            (
                "packs_capacity",
                "Maximum bytes of packs on disk",
                bytes.clone(),
                stat.packs_budget,
            ),
            (
                "plans",
                "Bytes of plans and their patches on disk",
                bytes.clone(),
                stat.plans,
            ),
            (
                "plans_capacity",
                "Maximum bytes of plans and their patches on disk",
                bytes.clone(),
                stat.plans_budget,
            ),
            (
                "index",
                "Bytes of layer indexes and tables of contents on disk",
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
                "Packs evicted to free space",
                None,
                stat.packs_evicted,
            ),
            (
                "indexed_layers",
                "Indexed layers",
                None,
                stat.indexed_layers,
            ),
            (
                "indexed",
                "Compressed bytes of indexed layers",
                bytes,
                stat.indexed_bytes,
            ),
            (
                "diff_id_mismatches",
                "Layers whose contents do not match their diff ID",
                None,
                stat.diff_id_mismatches,
            ),
            (
                "failed",
                "Background jobs that failed for a local reason, such as a full disk",
                None,
                stat.failed,
            ),
            (
                "cancelled",
                "Background jobs that stopped under pressure to free memory, and start again later",
                None,
                stat.cancelled,
            ),
            (
                "pairs_prepared",
                "Pairs of images with prepared patches",
                None,
                stat.pairs,
            ),
            (
                "optimized",
                "Images whose fast frames were replaced by optimized ones",
                None,
                stat.optimized,
            ),
            (
                "plans_made",
                "Plans made at the request of a worker",
                None,
                stat.planned,
            ),
            (
                "plans_found",
                "Requests of workers for which a plan existed",
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
    use parking_lot::{Condvar, Mutex};
    use std::io;
    use std::sync::Arc;

    use pierhead_bundle_server::{Config, Image};
    use pierhead_oci::{Algorithm, Digest};
    use pierhead_testkit::wait::until;
    use pierhead_toc::{Blob, Blobs};

    use super::*;

    /// A cache without blobs, which blocks every `open` while its flag is set.
    #[derive(Default)]
    struct BlockingBlobs(Mutex<bool>, Condvar);

    impl Blobs for BlockingBlobs {
        fn open(&self, _: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
            let mut blocked = self.0.lock();
            self.1.wait_while(&mut blocked, |blocked| *blocked);
            drop(blocked);
            Ok(None)
        }
    }

    fn jobs(bundle_server: &BundleServer) -> u64 {
        let collector = Box::new(BundleMetrics(bundle_server.clone()));
        let text = pierhead_testkit::metrics::metrics_text(|registry| {
            let bundle = registry.sub_registry_with_prefix("pierhead_bundle");
            bundle.register_collector(collector);
        });
        let value = |line: &str| line.strip_prefix("pierhead_bundle_jobs ")?.parse().ok();
        text.lines().find_map(value).expect("the metric exists")
    }

    fn until_idle(bundle_server: &BundleServer) {
        until("the end of the jobs", || jobs(bundle_server) == 0);
    }

    #[test]
    fn the_metric_of_jobs_counts_waiting_and_running_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Arc::<BlockingBlobs>::default();
        let config = Config::new(folder.path(), 64 << 20, 16 << 20);
        let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
        *blobs.0.lock() = true;
        for nth in 0..3_u8 {
            bundle_server.offer(Image {
                manifest: Digest::of(Algorithm::Sha256, &[nth]),
                repository: "registry/app".into(),
            });
        }
        // While the cache blocks, no job can end, whether a thread runs the job or not. The cleanup
        // after the start may be one more job.
        assert!(jobs(&bundle_server) >= 3);
        *blobs.0.lock() = false;
        blobs.1.notify_all();
        until_idle(&bundle_server);
        bundle_server.close();
    }
}
