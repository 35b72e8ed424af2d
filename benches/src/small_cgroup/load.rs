//! The load of the benchmark `small-cgroup`: clients that pull at full speed, and one client that
//! measures the latency of manifest requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::images::{Images, REPOSITORY};
use crate::client::{Connection, Dial};

/// Nice value of the pulling clients, so that they do not delay the measuring client. With a real
/// DPU, the pulling clients run on other machines.
const LOWEST_PRIORITY: i32 = 19;

/// The parameters of the load.
pub(super) struct Load<'a> {
    pub(super) to: SocketAddr,
    pub(super) images: &'a Images,
    pub(super) clients: usize,
    /// Interval between two manifest requests.
    pub(super) every: Duration,
    pub(super) time: Duration,
}

/// The results of the load.
pub(super) struct LoadResult {
    /// Manifest latencies in milliseconds.
    pub(super) manifests: Vec<f64>,
    /// Bytes of downloaded blobs.
    pub(super) bytes: u64,
    pub(super) failed: u64,
    pub(super) wall: Duration,
}

impl Load<'_> {
    fn open(&self) -> Result<Connection> {
        Dial {
            to: self.to,
            tls: None,
        }
        .open()
    }

    /// Pulls one version over a new connection. Returns the bytes of its blobs.
    pub(super) fn pull(&self, nth: usize) -> Result<u64> {
        pull(&mut self.open()?, self.images, nth)
    }

    /// Requests manifests at the interval. Returns the response times, each measured from the time
    /// at which the request was due.
    pub(super) fn manifests(&self) -> Result<Vec<f64>> {
        let mut connection = self.open()?;
        let path = format!("/v2/{REPOSITORY}/manifests/0");
        let (started_at, mut due) = (Instant::now(), Instant::now());
        let mut times = Vec::new();
        while started_at.elapsed() < self.time {
            // If the timer is late, the due time moves. If the previous response was slow, the
            // delay counts as response time.
            let ahead = due.saturating_duration_since(Instant::now());
            let from = match ahead.is_zero() {
                true => due,
                false => {
                    std::thread::sleep(ahead);
                    Instant::now()
                }
            };
            connection.get(&path, from)?;
            times.push(from.elapsed().as_secs_f64() * 1e3);
            due += self.every;
        }
        Ok(times)
    }

    /// Requests manifests while all clients pull. A new version appears every `new_version`.
    pub(super) fn all(&self, new_version: Duration) -> Result<LoadResult> {
        let (over, bytes, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let started_at = Instant::now();
        let manifests = std::thread::scope(|scope| {
            for _ in 0..self.clients {
                scope.spawn(|| {
                    // Without permission to change the priority, the clients keep their priority.
                    let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
                    let pulls = || -> Result<()> {
                        let mut connection = self.open()?;
                        while !over.load(Ordering::Relaxed) {
                            let nth = started_at.elapsed().as_millis() / new_version.as_millis();
                            let nth = usize::try_from(nth)?.min(self.images.versions.len() - 1);
                            let pulled = pull(&mut connection, self.images, nth)?;
                            bytes.fetch_add(pulled, Ordering::Relaxed);
                        }
                        Ok(())
                    };
                    if let Err(error) = pulls() {
                        failed.fetch_add(1, Ordering::Relaxed);
                        eprintln!("a pull failed: {error:#}");
                    }
                });
            }
            let asking = scope.spawn(|| self.manifests());
            let manifests = asking.join();
            over.store(true, Ordering::Relaxed);
            manifests
        });
        let manifests = manifests.ok().context("a client thread panicked")??;
        Ok(LoadResult {
            manifests,
            bytes: bytes.into_inner(),
            failed: failed.into_inner(),
            wall: started_at.elapsed(),
        })
    }
}

fn pull(connection: &mut Connection, images: &Images, nth: usize) -> Result<u64> {
    let manifest = format!("/v2/{REPOSITORY}/manifests/{nth}");
    connection.get(&manifest, Instant::now())?;
    let mut bytes = 0;
    for digest in &images.versions[nth].blobs {
        let path = format!("/v2/{REPOSITORY}/blobs/{digest}");
        bytes += connection.get(&path, Instant::now())?.bytes;
    }
    Ok(bytes)
}
