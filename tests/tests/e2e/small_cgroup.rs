//! End-to-end tests in a small cgroup (256 MiB, half a core): profiles, pauses under pressure, and
//! many clients beside background work.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    http::{Connection, End, Request, Response},
    images::{Image, random_bytes},
    registry::FakeRegistry,
};
use pierhead_tests::{
    cgroup::Cgroup,
    paths,
    pierhead::{Options, Pierhead, run_in},
    process::{self, Daemon},
    tool::or_skip,
    wait,
};
use tokio::task::JoinSet;

use crate::requests::{get, start_in_front};

const MEMORY: u64 = 256 << 20;
/// CPU limit in thousandths of a core.
const CPU_LIMIT: u64 = 500;
const CLIENTS: usize = 20;
/// Number of pulls of each version per client.
const ROUNDS: usize = 3;
const REPOSITORY: &str = "library/app";

#[test]
fn a_profile_is_checked_against_the_cgroup() -> Result<()> {
    let Some(group) = or_skip(Cgroup::new(MEMORY, CPU_LIMIT)) else {
        return Ok(());
    };
    let show = |profile| run_in(&group.enter(), &["config", "show", "--profile", profile]);
    let (status, output) = show("small")?;
    ensure!(status.success(), "{output}");
    for line in [
        "memory = \"256MiB\" # profile small: the memory limit of the cgroup (version ",
        "size = \"off\" # profile small: ",
    ] {
        ensure!(output.contains(line), "no {line:?} in\n{output}");
    }
    let (status, output) = show("server")?;
    ensure!(status.code() == Some(71), "{status}: {output}");
    ensure!(
        output.contains("the memory limit of the cgroup is 256.0 MiB; --profile small fits"),
        "{output}"
    );
    let options = Options::new()
        .inside(group.enter())
        .config("profile = \"bluefield2\"");
    let (status, output) = Pierhead::refuses(&options)?;
    ensure!(status.code() == Some(71), "{status}: {output}");
    ensure!(
        output.contains("pierhead.toml:1: profile \"bluefield2\" does not fit"),
        "{output}"
    );
    Ok(())
}

/// An image version with two layers: one that all versions share, and one with text for which
/// pierhead can make patches.
fn version(nth: u64) -> Result<Image> {
    let layer = |name: &str, bytes: &[u8]| -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, bytes)?;
        Ok(tar.into_inner()?)
    };
    let base = layer("usr/lib/base", &random_bytes(1, 8 << 20))?;
    let mut own = random_bytes(2, 2 << 20).to_vec();
    own.extend_from_slice(format!("version {nth}").as_bytes());
    own.extend_from_slice(&random_bytes(10 + nth, 1 << 20));
    Ok(Image::of_tars(
        "amd64",
        &[base, layer("usr/bin/app", &own)?],
    ))
}

async fn fetch(connection: &mut Connection, path: &str) -> Result<Response> {
    let response = connection.start(&Request::get(path)).await?;
    let response = response.whole().await?;
    ensure!(response.status == 200, "{path}: {}", response.status);
    ensure!(response.end == End::Clean, "{path}: cut");
    Ok(response)
}

/// Pulls each version several times, beginning with a different version.
async fn client(address: SocketAddr, images: Arc<Vec<Image>>, first: usize) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    for round in 0..ROUNDS * images.len() {
        let nth = (first + round) % images.len();
        let image = &images[nth];
        let manifest = format!("/v2/{REPOSITORY}/manifests/{nth}");
        let manifest = fetch(&mut connection, &manifest).await?;
        ensure!(
            manifest.body == image.root_document().bytes,
            "another manifest"
        );
        for blob in &image.blobs {
            let path = format!("/v2/{REPOSITORY}/blobs/{}", blob.digest);
            let response = fetch(&mut connection, &path).await?;
            ensure!(response.body == blob.bytes, "{path}: other bytes");
        }
    }
    Ok(())
}

/// Requests manifests one after the other until `most` responses or until `over` is set. Returns
/// the response times.
async fn manifests(address: SocketAddr, most: usize, over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(address).await?;
    let mut times = Vec::new();
    while times.len() < most && !over.load(Ordering::Relaxed) {
        let started_at = Instant::now();
        fetch(&mut connection, &format!("/v2/{REPOSITORY}/manifests/0")).await?;
        times.push(started_at.elapsed());
    }
    times.sort();
    Ok(times)
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}

/// The value of a metric, if it exists.
fn metric(admin: SocketAddr, name: &str) -> Result<Option<String>> {
    let metrics = get(admin, "/metrics")?;
    let metrics = String::from_utf8_lossy(&metrics.body);
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.map(|metric| metric.trim().to_owned()))
}

/// The daemon sees only the pressure of its cgroup, in which other processes use the whole CPU
/// limit.
#[test]
fn background_work_pauses_under_cpu_pressure_of_the_cgroup() -> Result<()> {
    let Some(group) = or_skip(Cgroup::new(MEMORY, CPU_LIMIT)) else {
        return Ok(());
    };
    let Some(alone) = or_skip(group.alone()) else {
        return Ok(());
    };
    let options = Options::new()
        .inside(alone)
        .config("[limits]\npause_under = [\"cpu\"]");
    let (_hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let wait_for_pause = |what: &str, expected: &str| {
        wait::try_until(what, || {
            // Each request needs CPU time of the cgroup. Without this pause, the test would send
            // fifty requests per second, which would themselves cause pressure.
            std::thread::sleep(Duration::from_secs(1));
            let name = "pierhead_pressure_background_paused{resource=\"cpu\"}";
            let metric = metric(pierhead.admin(), name)?;
            Ok((metric.as_deref() == Some(expected)).then_some(()))
        })
    };
    wait_for_pause("a first look", "0")?;
    let folder = paths::scratch("busy")?;
    let busy = (0..3).map(|nth| {
        let words = group.enter();
        let (program, words) = words.split_first().context("a program")?;
        let mut command = process::command(Path::new(program));
        command
            .args(words)
            .args(["sh", "-c", "while :; do :; done"]);
        Daemon::start("a loop", &mut command, &folder.path().join(nth.to_string()))
    });
    let busy = busy.collect::<Result<Vec<_>>>()?;
    wait_for_pause("a pause", "1")?;
    drop(busy);
    wait_for_pause("its end", "0")
}

/// Twenty clients in 256 MiB and half a core, beside background work: indexing, packing, patches,
/// write-back of a fast tier, training of a policy.
#[test]
fn twenty_clients_are_served_in_a_small_group() -> Result<()> {
    let Some(group) = or_skip(Cgroup::new(MEMORY, CPU_LIMIT)) else {
        return Ok(());
    };
    let folder = paths::scratch("tier")?;
    let tier = folder.path().join("tier");
    let options = Options::new()
        .inside(group.enter())
        .argument("--profile")
        .argument("small")
        .config("[bundle]\nsize = \"auto\"\n[eviction]\npolicy = \"learned\"")
        // The setting of the profiles for DPUs. A pause of background work must not fail any
        // request.
        .config("[limits]\npause_under = [\"memory\", \"cpu\"]")
        .config(&format!(
            "[tier]\nkind = \"file\"\npath = {tier:?}\nsize = \"64MiB\""
        ));
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let images = (0..4).map(version).collect::<Result<Vec<_>>>()?;
    for (nth, image) in images.iter().enumerate() {
        hub.push(REPOSITORY, &nth.to_string(), image);
    }
    let (address, images) = (pierhead.address(), Arc::new(images));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let over = Arc::new(AtomicBool::new(false));
    // A single small image, so that a manifest exists and no background work remains.
    let alone = runtime.block_on(manifests(address, 300, &over))?;
    let loaded = runtime.block_on(async {
        let mut clients = JoinSet::new();
        for first in 0..CLIENTS {
            clients.spawn(client(address, Arc::clone(&images), first));
        }
        let probe = {
            let over = Arc::clone(&over);
            tokio::spawn(async move { manifests(address, usize::MAX, &over).await })
        };
        let mut outcome = Ok(());
        while let Some(ended) = clients.join_next().await {
            outcome = outcome.and(ended?);
        }
        over.store(true, Ordering::Relaxed);
        let times = probe.await?;
        outcome.context("a pull failed").and(times)
    });
    let (killed, peak) = group.memory()?;
    let log = pierhead.log();
    ensure!(
        killed == 0,
        "the kernel killed {killed} processes for lack of memory
{log}"
    );
    let loaded = loaded.with_context(|| log.clone())?;
    ensure!(
        pierhead.daemon().status()?.is_none(),
        "the daemon has exited
{log}"
    );
    // Asserts that every kind of background work ran.
    let stat = get(pierhead.admin(), "/v1/stat")?.json();
    let of_bundles = |name: &str| stat["bundle"][name].as_u64().unwrap_or_default();
    ensure!(of_bundles("ready") + of_bundles("waiting") > 0, "{stat}");
    let staged = get(pierhead.admin(), "/v1/tier")?.json()["staged"].as_u64();
    ensure!(
        staged.unwrap_or_default() > 0,
        "no blob reached the fast tier"
    );
    let paused = |resource: &str| {
        let name =
            format!("pierhead_pressure_background_paused_seconds_total{{resource=\"{resource}\"}}");
        let metric = metric(pierhead.admin(), &name)?;
        Ok::<_, anyhow::Error>(metric.unwrap_or_else(|| "not counted".to_owned()))
    };
    eprintln!(
        "manifests alone: {} of them, p50 {:?}, p99 {:?}; with {CLIENTS} clients: {}, p50 {:?}, p99 {:?}; peak {} MiB of 256; background paused for want \
         of memory {} s, of cpu {} s",
        alone.len(),
        percentile(&alone, 50),
        percentile(&alone, 99),
        loaded.len(),
        percentile(&loaded, 50),
        percentile(&loaded, 99),
        peak >> 20,
        paused("memory")?,
        paused("cpu")?,
    );
    Ok(())
}
