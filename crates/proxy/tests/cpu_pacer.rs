//! Tests that the CPU pacer delays blobs and no other responses. The test controls the clock of the
//! cgroup.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Fixture, FixtureOptions, metrics_text};
use pierhead_host::{CpuAllowance, CpuBudget, CpuReading};
use pierhead_testkit::http::Request;

/// Bytes of one piece of a blob.
const PIECE: usize = 256 << 10;

/// A CPU clock that counts how often it is read.
#[derive(Clone, Default)]
struct TestClock {
    readings: Arc<AtomicUsize>,
    /// Whether the cgroup has used all its CPU time.
    is_used_up: Arc<AtomicBool>,
}

impl TestClock {
    fn cpu_budget(&self) -> CpuBudget {
        let (clock, start) = (self.clone(), Instant::now());
        let allowance = CpuAllowance {
            thousandths: 500,
            period: Duration::from_millis(100),
            share: 90,
        };
        CpuBudget::with_clock(allowance, move || {
            clock.readings.fetch_add(1, Ordering::Relaxed);
            let now = start.elapsed();
            let used = match clock.is_used_up.load(Ordering::Relaxed) {
                true => now * 10,
                false => Duration::ZERO,
            };
            CpuReading { now, used }
        })
    }

    /// Returns the number of readings of the clock since the last call.
    fn take(&self) -> usize {
        self.readings.swap(0, Ordering::Relaxed)
    }

    async fn start(&self) -> Fixture {
        let cpu_budget = self.cpu_budget();
        let fixture = FixtureOptions::default()
            .config(|config| config.cpu_budget = Some(cpu_budget))
            .start()
            .await;
        self.take();
        fixture
    }
}

#[tokio::test]
async fn each_piece_of_a_blob_is_paced_and_short_responses_are_not() {
    let clock = TestClock::default();
    let fixture = clock.start().await;
    let image = fixture.push(51, &[8 * PIECE]);
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
            fixture.get(path).await;
        }
        let headed = fixture.send(Request::new("HEAD", &blob)).await;
        assert_eq!(headed.status, 200);
        assert_eq!(clock.take(), 0, "short responses, cold or cached");
    }
    // The blob is not cached: each piece is delayed when it arrives and when it is sent.
    assert_eq!(fixture.get(&blob).await.body.len(), 8 * PIECE);
    assert!(clock.take() >= 8 + 7);
    // At this request, the blob is cached and sent by `sendfile`.
    assert_eq!(fixture.get(&blob).await.status, 200);
    assert!(clock.take() >= 8);
    // At this request, hyper serves the blob, in the same way as over TLS.
    let through_hyper = Request::get(&blob).header("upgrade", "none");
    assert_eq!(fixture.send(through_hyper).await.status, 200);
    assert!(clock.take() >= 16);
}

#[tokio::test]
async fn a_blob_is_served_slowly_when_the_cpu_time_is_used_up() {
    let clock = TestClock::default();
    let fixture = clock.start().await;
    let image = fixture.push(52, &[PIECE + 1]);
    clock.is_used_up.store(true, Ordering::Relaxed);
    let layer = image.blobs[1].digest;
    let response = fixture.get(&format!("/v2/app/blobs/{layer}")).await;
    assert_eq!(
        (response.status, &response.body),
        (200, &image.blobs[1].bytes)
    );
    let text = metrics_text(&fixture);
    let waited = text
        .lines()
        .find_map(|line| line.strip_prefix("cpu_pacer_waited_seconds_total "));
    let waited: f64 = waited.unwrap().parse().unwrap();
    assert!(waited > 0.0, "{text}");
}
