//! Who waits for the processor time of a cgroup, and who never does. The clock is the test's.

mod stage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pierhead_host::{CpuAllowance, CpuBudget, CpuReading};
use pierhead_testkit::http::Request;
use stage::{Plan, Stage};

/// What a piece of a file has.
const PIECE: usize = 256 << 10;

/// Counts how often somebody asks whether there is time.
#[derive(Clone, Default)]
struct Asked {
    times: Arc<AtomicUsize>,
    /// Whether there is none.
    used_up: Arc<AtomicBool>,
}

impl Asked {
    fn quota(&self) -> CpuBudget {
        let (asked, begun) = (self.clone(), Instant::now());
        let allowance = CpuAllowance {
            thousandths: 500,
            period: Duration::from_millis(100),
            share: 90,
        };
        CpuBudget::with_clock(allowance, move || {
            asked.times.fetch_add(1, Ordering::Relaxed);
            let now = begun.elapsed();
            let used = match asked.used_up.load(Ordering::Relaxed) {
                true => now * 10,
                false => Duration::ZERO,
            };
            CpuReading { now, used }
        })
    }

    /// Since it was asked for last.
    fn take(&self) -> usize {
        self.times.swap(0, Ordering::Relaxed)
    }

    async fn stage(&self) -> Stage {
        let quota = self.quota();
        let stage = Plan::default()
            .config(|config| config.cpu_budget = Some(quota))
            .open()
            .await;
        self.take();
        stage
    }
}

#[tokio::test]
async fn each_piece_of_a_blob_waits_and_nothing_short_does() {
    let asked = Asked::default();
    let stage = asked.stage().await;
    let image = stage.push(51, &[8 * PIECE]);
    let layer = image.blobs[1].digest;
    let blob = format!("/v2/app/blobs/{layer}");
    let manifest = format!("/v2/app/manifests/{}", image.root);
    let short = [
        "/v2/",
        "/v2/app/manifests/1",
        &manifest,
        "/v2/app/tags/list",
        "/v2/app/manifests/absent",
        "/v2/app/blobs/sha256:zz",
    ];
    for _ in 0..2 {
        for path in short {
            stage.get(path).await;
        }
        let headed = stage.ask(Request::new("HEAD", &blob)).await;
        assert_eq!(headed.status, 200);
        assert_eq!(asked.take(), 0, "cold or cached, they never ask");
    }
    // Cold: pieces on their way in, and out.
    assert_eq!(stage.get(&blob).await.body.len(), 8 * PIECE);
    assert!(asked.take() >= 8 + 7);
    // From its file.
    assert_eq!(stage.get(&blob).await.status, 200);
    assert!(asked.take() >= 8);
    // Through hyper, as over TLS.
    let through_hyper = Request::get(&blob).header("upgrade", "none");
    assert_eq!(stage.ask(through_hyper).await.status, 200);
    assert!(asked.take() >= 16);
}

#[tokio::test]
async fn blobs_get_on_slowly_where_others_use_all_there_is() {
    let asked = Asked::default();
    let stage = asked.stage().await;
    let image = stage.push(52, &[PIECE + 1]);
    asked.used_up.store(true, Ordering::Relaxed);
    let layer = image.blobs[1].digest;
    let answer = stage.get(&format!("/v2/app/blobs/{layer}")).await;
    assert_eq!((answer.status, &answer.body), (200, &image.blobs[1].bytes));
    let mut registry = prometheus_client::registry::Registry::default();
    stage.proxy.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let waited = text
        .lines()
        .find_map(|line| line.strip_prefix("cpu_pacer_waited_seconds_total "));
    let waited: f64 = waited.unwrap().parse().unwrap();
    assert!(waited > 0.0, "{text}");
}
