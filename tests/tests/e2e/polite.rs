//! A small cgroup: profiles see it, and many clients are served in it beside work in the background.

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
    group::Group,
    pierhead::{Options, Pierhead, run_in},
    place,
    process::{self, Daemon},
    tool::or_skip,
    wait,
};
use tokio::task::JoinSet;

use crate::ask::{behind, get};

const MEMORY: u64 = 256 << 20;
/// Thousandths of a core.
const HALF: u64 = 500;
const CLIENTS: usize = 20;
/// How often each client pulls each version.
const ROUNDS: usize = 3;
const REPOSITORY: &str = "library/app";

#[test]
fn a_profile_is_of_the_group_that_it_runs_in() -> Result<()> {
    let Some(group) = or_skip(Group::new(MEMORY, HALF)) else {
        return Ok(());
    };
    let show = |profile| run_in(&group.enter(), &["config", "show", "--profile", profile]);
    let (status, said) = show("small")?;
    ensure!(status.success(), "{said}");
    for line in [
        "memory = \"256MiB\" # profile small: the limit of the cgroup (version ",
        "size = \"off\" # profile small: ",
    ] {
        ensure!(said.contains(line), "no {line:?} in\n{said}");
    }
    let (status, said) = show("server")?;
    ensure!(status.code() == Some(71), "{status}: {said}");
    ensure!(
        said.contains("the limit of the cgroup is 256.0 MiB; --profile small fits"),
        "{said}"
    );
    let options = Options::new()
        .inside(group.enter())
        .config("profile = \"bluefield2\"");
    let (status, said) = Pierhead::refuses(&options)?;
    ensure!(status.code() == Some(71), "{status}: {said}");
    ensure!(
        said.contains("pierhead.toml:1: profile \"bluefield2\" does not fit"),
        "{said}"
    );
    Ok(())
}

/// A version: a layer that all have, and one of its own with text that patches can be made of.
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
    let answer = connection.start(&Request::get(path)).await?;
    let answer = answer.whole().await?;
    ensure!(answer.status == 200, "{path}: {}", answer.status);
    ensure!(answer.end == End::Clean, "{path}: cut");
    Ok(answer)
}

/// Pulls each version a few times, from another one on.
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
            let answer = fetch(&mut connection, &path).await?;
            ensure!(answer.body == blob.bytes, "{path}: other bytes");
        }
    }
    Ok(())
}

/// How long manifests take, one after the other, until there are enough of them or it is over.
async fn manifests(address: SocketAddr, most: usize, over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(address).await?;
    let mut times = Vec::new();
    while times.len() < most && !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        fetch(&mut connection, &format!("/v2/{REPOSITORY}/manifests/0")).await?;
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(times)
}

fn at(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}

/// What a metric says, if it is there.
fn figure(admin: SocketAddr, name: &str) -> Result<Option<String>> {
    let metrics = get(admin, "/metrics")?;
    let metrics = String::from_utf8_lossy(&metrics.body);
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.map(|figure| figure.trim().to_owned()))
}

/// A daemon that sees no pressure but that of its group, and others in the group that take all of its half of a core.
#[test]
fn work_in_the_background_rests_while_the_group_is_short_of_time() -> Result<()> {
    let Some(group) = or_skip(Group::new(MEMORY, HALF)) else {
        return Ok(());
    };
    let Some(alone) = or_skip(group.alone()) else {
        return Ok(());
    };
    let options = Options::new()
        .inside(alone)
        .config("[limits]\npause_under = [\"cpu\"]");
    let (_hub, pierhead) = behind(FakeRegistry::builder(), options)?;
    let rests = |what: &str, expected: &str| {
        wait::until(what, || {
            // Each question is work in the group, and waits where the machine is busy: asked fifty times a second it is pressure itself.
            std::thread::sleep(Duration::from_secs(1));
            let name = "pierhead_pressure_background_paused{resource=\"cpu\"}";
            let figure = figure(pierhead.admin(), name)?;
            Ok((figure.as_deref() == Some(expected)).then_some(()))
        })
    };
    rests("a first look", "0")?;
    let folder = place::scratch("busy")?;
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
    rests("a rest", "1")?;
    drop(busy);
    rests("its end", "0")
}

/// 256 MiB and half a core, twenty clients, and behind their backs: layers indexed and packed, patches made, a fast tier drained, and a policy
/// trained.
#[test]
fn twenty_clients_are_served_in_a_small_group() -> Result<()> {
    let Some(group) = or_skip(Group::new(MEMORY, HALF)) else {
        return Ok(());
    };
    let folder = place::scratch("tier")?;
    let tier = folder.path().join("tier");
    let options = Options::new()
        .inside(group.enter())
        .argument("--profile")
        .argument("small")
        .config("[bundle]\nsize = \"auto\"\n[eviction]\npolicy = \"learned\"")
        // As the profiles for cards do: nothing may fail for a rest.
        .config("[limits]\npause_under = [\"memory\", \"cpu\"]")
        .config(&format!(
            "[tier]\nkind = \"file\"\npath = {tier:?}\nsize = \"64MiB\""
        ));
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), options)?;
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
    // One small image, so that there is a manifest; and then nothing else to do.
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
        "{killed} processes were killed for want of memory\n{log}"
    );
    let loaded = loaded.with_context(|| log.clone())?;
    ensure!(pierhead.daemon().status()?.is_none(), "it has ended\n{log}");
    // All of it was there to be done.
    let stat = get(pierhead.admin(), "/v1/stat")?.json();
    let of_bundles = |name: &str| stat["bundle"][name].as_u64().unwrap_or_default();
    ensure!(of_bundles("ready") + of_bundles("waiting") > 0, "{stat}");
    let staged = get(pierhead.admin(), "/v1/tier")?.json()["staged"].as_u64();
    ensure!(
        staged.unwrap_or_default() > 0,
        "nothing came to the fast tier"
    );
    let paused = |resource: &str| {
        let name =
            format!("pierhead_pressure_background_paused_seconds_total{{resource=\"{resource}\"}}");
        let figure = figure(pierhead.admin(), &name)?;
        Ok::<_, anyhow::Error>(figure.unwrap_or_else(|| "not counted".to_owned()))
    };
    eprintln!(
        "manifests alone: {} of them, p50 {:?}, p99 {:?}; with {CLIENTS} clients: {}, p50 {:?}, p99 {:?}; peak {} MiB of 256; background paused for want \
         of memory {} s, of cpu {} s",
        alone.len(),
        at(&alone, 50),
        at(&alone, 99),
        loaded.len(),
        at(&loaded, 50),
        at(&loaded, 99),
        peak >> 20,
        paused("memory")?,
        paused("cpu")?,
    );
    Ok(())
}
