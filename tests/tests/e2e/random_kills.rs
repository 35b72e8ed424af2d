//! Kills pierhead by SIGKILL at 200 random times of a mixed load. After each kill: committed blobs
//! match their digests, the size limit holds, the next start succeeds, and no response was wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use pierhead_testkit::{
    http::{Connection, End, Request},
    images::Image,
    registry::{FakeRegistry, Role},
};
use pierhead_tests::pierhead::Options;

use crate::requests::{bytes_below, committed, get_until_ok, start_in_front};

const KILLS: usize = 200;
const CLIENTS: u64 = 6;
/// Size limit of the cache in bytes: a third of the requested blobs, so that evictions are
/// frequent.
const BOUND: u64 = 6 << 20;
/// Maximum time from a start to the kill: long enough that some fills end, and short enough that
/// many are interrupted.
const LIFE: Duration = Duration::from_millis(120);

/// A requested path with its expected body.
struct Content {
    blobs: Vec<(String, Bytes)>,
    manifest: Bytes,
}

/// Number of requests by outcome.
#[derive(Default)]
struct Count {
    whole: AtomicUsize,
    parts: AtomicUsize,
    tags: AtomicUsize,
    aborted: AtomicUsize,
    broken: AtomicUsize,
}

#[test]
fn killed_at_two_hundred_instants() -> Result<()> {
    let seed = std::env::var("PIERHEAD_SEED")
        .ok()
        .and_then(|it| it.parse().ok());
    #[expect(clippy::disallowed_methods, reason = "the wall clock of this test")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = seed.unwrap_or_else(|| u64::from(now.subsec_nanos()));
    println!("PIERHEAD_SEED={seed} repeats this");
    // The upstream is slow, so that the download of a large blob takes a part of each daemon's
    // lifetime.
    let hub = FakeRegistry::builder().with(|settings| settings.bandwidth = Some(60_000_000));
    let options = Options::new()
        .argument("--cache-size")
        .argument(format!("{BOUND}B"))
        .config("[tags]\nttl = \"0s\"");
    let (hub, mut pierhead) = start_in_front(hub, options)?;
    let sizes = [900, 70_000, 300_000, 1_000_000, 2_500_000];
    let image = Image::random(seed, &sizes.repeat(4));
    hub.push("library/app", "1", &image);
    let content = Arc::new(Content {
        blobs: image
            .blobs
            .iter()
            .map(|it| {
                (
                    format!("/v2/library/app/blobs/{}", it.digest),
                    it.bytes.clone(),
                )
            })
            .collect(),
        manifest: image.root_document().bytes.clone(),
    });
    let count = Arc::new(Count::default());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut resumable, mut slowest) = (0, Duration::ZERO);
    for kill in 0..KILLS {
        let over = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let client = Client {
                    addr: pierhead.address(),
                    random: fastrand::Rng::with_seed(random.u64(..)),
                    content: Arc::clone(&content),
                    count: Arc::clone(&count),
                    over: Arc::clone(&over),
                };
                runtime.spawn(client.run())
            })
            .collect();
        // The kill comes at a random time, not in a chosen state.
        thread::sleep(LIFE.mul_f64(random.f64()));
        over.store(true, Ordering::SeqCst);
        pierhead.kill()?;
        for client in clients {
            runtime
                .block_on(client)?
                .with_context(|| format!("before kill {kill}"))?;
        }
        let left = committed(pierhead.data()).with_context(|| format!("after kill {kill}"));
        left?;
        let staged = bytes_below(&pierhead.data().join("staging"))?;
        let held = bytes_below(&pierhead.data().join("blobs"))? + staged;
        ensure!(held <= BOUND, "{held} bytes are stored after kill {kill}");
        resumable += usize::from(staged > 128 << 10);
        let started = Instant::now();
        pierhead
            .restart()
            .with_context(|| format!("after kill {kill}"))?;
        slowest = slowest.max(started.elapsed());
    }
    // At the end, a client pulls everything without kills.
    for (path, bytes) in &content.blobs {
        let answer = get_until_ok(pierhead.address(), path)?;
        ensure!(
            answer.end == End::Clean && answer.body == *bytes,
            "{path}: wrong bytes after the last kill"
        );
    }
    pierhead.cache(&["verify"])?;
    let resumed = hub.count(|it| it.role == Role::Registry && it.header("range").is_some());
    println!(
        "whole {:?}, parts {:?}, tags {:?}, left {:?}, broken off {:?}; resumed {resumed}, after {resumable} \
         kills with something to resume; the slowest start took {slowest:?}",
        count.whole, count.parts, count.tags, count.aborted, count.broken
    );
    for (what, count) in [
        ("whole", &count.whole),
        ("parts", &count.parts),
        ("tags", &count.tags),
        ("left", &count.aborted),
        ("broken off", &count.broken),
    ] {
        ensure!(count.load(Ordering::SeqCst) > 0, "no requests: {what}");
    }
    ensure!(
        resumable > 0 && resumed > 0,
        "{resumed} downloads were resumed, after {resumable} kills with a partial download"
    );
    // A start reads only the index of the cache. The limit detects a start that hangs.
    ensure!(slowest < Duration::from_secs(5), "a start took {slowest:?}");
    Ok(())
}

struct Client {
    addr: std::net::SocketAddr,
    random: fastrand::Rng,
    content: Arc<Content>,
    count: Arc<Count>,
    over: Arc<AtomicBool>,
}

impl Client {
    /// Sends one request after the other until the connection to pierhead fails.
    ///
    /// # Errors
    /// A complete response with wrong bytes.
    async fn run(mut self) -> Result<()> {
        while !self.over.load(Ordering::SeqCst) {
            let Ok(mut connection) = Connection::open(self.addr).await else {
                break;
            };
            while !self.over.load(Ordering::SeqCst) {
                match self.ask(&mut connection).await? {
                    true => {}
                    false => break,
                }
            }
        }
        Ok(())
    }

    /// Sends one request. Returns whether the connection can be reused.
    async fn ask(&mut self, connection: &mut Connection) -> Result<bool> {
        let content = Arc::clone(&self.content);
        let nth = self.random.usize(..content.blobs.len());
        let (path, bytes) = &content.blobs[nth];
        let (mut request, mut expected) = (Request::get(path.as_str()), bytes.clone());
        let mut kind = &self.count.whole;
        let mut leave = false;
        match self.random.u8(..10) {
            0 => {
                request = Request::get("/v2/library/app/manifests/1");
                expected = content.manifest.clone();
                kind = &self.count.tags;
            }
            1 | 2 => {
                let first = self.random.usize(..bytes.len());
                let last = self.random.usize(first..bytes.len());
                request = request.header("range", format!("bytes={first}-{last}"));
                expected = bytes.slice(first..=last);
                kind = &self.count.parts;
            }
            3 => leave = true,
            _ => {}
        }
        let Ok(mut answer) = connection.start(&request).await else {
            self.count.broken.fetch_add(1, Ordering::SeqCst);
            return Ok(false);
        };
        if leave {
            let _ = answer.chunk().await;
            self.count.aborted.fetch_add(1, Ordering::SeqCst);
            return Ok(false);
        }
        let status = answer.status;
        let mut body = Vec::new();
        while let Some(bytes) = answer.chunk().await {
            body.extend_from_slice(&bytes);
        }
        if answer.end() != Some(End::Clean) {
            ensure!(
                expected.starts_with(&body) || status >= 400,
                "{request:?}: wrong bytes in an aborted response"
            );
            self.count.broken.fetch_add(1, Ordering::SeqCst);
            return Ok(false);
        }
        ensure!(
            matches!(status, 200 | 206),
            "{request:?}: {status} {}",
            String::from_utf8_lossy(&body)
        );
        ensure!(
            body == expected,
            "{request:?}: wrong bytes in a complete response"
        );
        kind.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }
}
