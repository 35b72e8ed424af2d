//! The fault matrix: pulls by every real client, for every fault of the upstream and every state of
//! the cache. In each cell of the matrix, the client must get the image. The image comes from
//! pierhead if the upstream or the cache has it, and otherwise from the origin registry, the
//! client's fallback. pierhead must respond within five seconds, never with 429 or 401, and must
//! not cache wrong bytes.

mod faults;
mod stage;

use std::{
    env,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use pierhead_testkit::registry::{Background, FakeRegistry};
use pierhead_tests::{
    clients::{Client, Containerd, Docker, Podman},
    tool::or_skip,
};

use faults::{Available, Fault};
use stage::Stage;

/// The state of the cache at the begin of the pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The cache is empty.
    Cold,
    /// The image is complete, and its tag is fresh.
    Fresh,
    /// The image is complete, and its tag needs revalidation.
    Stale,
    /// One layer is missing, and the tag needs revalidation.
    Holed,
    /// The cache is empty, and the upstream has a second, working address.
    Second,
}

/// The cache states of each test. The cells of a client are split into three tests, which run in
/// parallel.
const COLD: &[State] = &[State::Cold];
const CACHED: &[State] = &[State::Fresh, State::Stale, State::Holed];
const SECOND: &[State] = &[State::Second];

/// The source from which a client gets the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Pierhead,
    Origin,
    Nowhere,
}

/// Maximum time until pierhead responds: pierhead's limit of five seconds, and another second for a
/// busy machine.
const MAX_RESPONSE_TIME: Duration = Duration::from_secs(6);
/// Maximum time of a pull. This time includes the default times for which pierhead waits for a
/// stalled upstream.
const MAX_PULL_TIME: Duration = Duration::from_secs(40);

/// A client and its fallback behaviour.
struct Kind {
    make: fn(&Wires<'_>) -> Result<Box<dyn Client>>,
    /// Whether the client has no fallback once it has a manifest.
    trusts_manifests: bool,
    /// Whether the client downloads a layer with wrong bytes again, completely, from the origin.
    starts_anew: bool,
}

/// The addresses to which a client connects.
struct Wires<'a> {
    mirror: SocketAddr,
    origin: &'a Background,
    /// An HTTP proxy to the origin, for clients with a fixed name of the origin.
    proxy: SocketAddr,
    authority: PathBuf,
}

#[test]
fn docker_pulls_with_a_cold_cache() -> Result<()> {
    docker(COLD)
}

#[test]
fn docker_pulls_a_cached_image() -> Result<()> {
    docker(CACHED)
}

#[test]
fn docker_pulls_with_a_second_address() -> Result<()> {
    docker(SECOND)
}

fn docker(states: &[State]) -> Result<()> {
    if or_skip(Docker::find()).is_none() {
        return Ok(());
    }
    let hub = FakeRegistry::builder().tls_for(&["registry-1.docker.io"]);
    let kind = Kind {
        make: |wires| {
            Ok(Box::new(Docker::with_hub(
                wires.mirror,
                wires.proxy,
                &wires.authority,
            )?))
        },
        trusts_manifests: false,
        starts_anew: true,
    };
    all(&kind, hub.start_in_background(), states)
}

#[test]
fn containerd_pulls_with_a_cold_cache() -> Result<()> {
    containerd(COLD)
}

#[test]
fn containerd_pulls_a_cached_image() -> Result<()> {
    containerd(CACHED)
}

#[test]
fn containerd_pulls_with_a_second_address() -> Result<()> {
    containerd(SECOND)
}

fn containerd(states: &[State]) -> Result<()> {
    if or_skip(Containerd::find()).is_none() {
        return Ok(());
    }
    let kind = Kind {
        make: |wires| {
            let origin = wires.origin.addr();
            Ok(Box::new(Containerd::with_origin(
                "docker.io",
                wires.mirror,
                origin,
            )?))
        },
        trusts_manifests: false,
        starts_anew: false,
    };
    let origin = FakeRegistry::builder().start_in_background();
    all(&kind, origin, states)
}

#[test]
fn podman_pulls_with_a_cold_cache() -> Result<()> {
    podman(COLD)
}

#[test]
fn podman_pulls_a_cached_image() -> Result<()> {
    podman(CACHED)
}

#[test]
fn podman_pulls_with_a_second_address() -> Result<()> {
    podman(SECOND)
}

fn podman(states: &[State]) -> Result<()> {
    if or_skip(Podman::find()).is_none() {
        return Ok(());
    }
    let kind = Kind {
        make: |wires| {
            let origin = wires.origin.addr();
            Ok(Box::new(Podman::with_origin(
                "docker.io",
                wires.mirror,
                origin,
            )?))
        },
        trusts_manifests: true,
        starts_anew: false,
    };
    let origin = FakeRegistry::builder().start_in_background();
    all(&kind, origin, states)
}

/// Runs every cell of a client in these cache states, and lists all failures at the end.
/// `PIERHEAD_CELLS` selects the cells whose names contain its value.
fn all(kind: &Kind, origin: Background, states: &[State]) -> Result<()> {
    let stage = Stage::set(origin)?;
    let client = (kind.make)(&stage.wires())?;
    let only = env::var("PIERHEAD_CELLS").unwrap_or_default();
    let (mut wrong, mut cells) = (Vec::new(), 0);
    for fault in faults::all() {
        for &state in fault.states().iter().filter(|it| states.contains(it)) {
            let name = format!("{}, {}, {state:?}", client.name(), fault.name);
            if !name.contains(&only) {
                continue;
            }
            cells += 1;
            let started = Instant::now();
            let verdict = cell(&stage, &*client, kind, &fault, state);
            println!("{name}: {verdict:?} in {:?}", started.elapsed());
            wrong.extend(verdict.err().map(|error| format!("{name}: {error:#}")));
        }
    }
    ensure!(cells > 0, "no cell has {only} in its name");
    ensure!(
        wrong.is_empty(),
        "{} of {cells} cells:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

fn cell(
    stage: &Stage,
    client: &dyn Client,
    kind: &Kind,
    fault: &Fault,
    state: State,
) -> Result<Way> {
    client.empty()?;
    let mut pierhead = stage.pierhead(fault, state)?;
    let started = Instant::now();
    let pulled = client.pull(&stage.image.name());
    let took = started.elapsed();
    let seen = stage.mirror.take();
    let asked_origin = stage.origin.count(|_| true);
    let log = pierhead.log();
    pierhead.kill()?;
    crate::requests::committed(pierhead.data())?;

    let way = match (&pulled, asked_origin) {
        (Ok(_), 0) => Way::Pierhead,
        (Ok(_), _) => Way::Origin,
        (Err(_), _) => Way::Nowhere,
    };
    if let Ok(pulled) = &pulled {
        ensure!(*pulled == stage.expected, "another image: {pulled:?}");
    }
    let expected = expected(kind, fault, state);
    ensure!(
        expected.contains(&way),
        "from {way:?} instead of {expected:?} ({:?}); answers {:?}, the slowest after {:?}; log:\n{log}",
        pulled.err().map(|error| format!("{error:#}")),
        seen.statuses,
        seen.slowest,
    );
    ensure!(
        seen.slowest <= MAX_RESPONSE_TIME,
        "a response took {:?}; log:
{log}",
        seen.slowest
    );
    ensure!(took <= MAX_PULL_TIME, "the pull took {took:?}");
    ensure!(
        !seen.statuses.iter().any(|it| matches!(it, 401 | 429)),
        "pierhead answered {:?}",
        seen.statuses
    );
    if state == State::Fresh {
        let requested = stage.hub.requests();
        ensure!(
            requested.is_empty(),
            "the upstream got requests: {requested:#?}; log:
{log}"
        );
    }
    (fault.and)(stage, state)?;
    Ok(way)
}

fn expected(kind: &Kind, fault: &Fault, state: State) -> &'static [Way] {
    match (state, fault.available) {
        (State::Fresh, _) | (_, Available::Everything) => &[Way::Pierhead],
        (State::Second, Available::WrongBytes) if kind.starts_anew => &[Way::Pierhead, Way::Origin],
        (State::Second, Available::WrongBytes) => &[Way::Pierhead, Way::Origin, Way::Nowhere],
        (State::Second, _) => &[Way::Pierhead],
        // A client without access must get nothing from the cache.
        (_, Available::Verdict) => &[Way::Origin],
        (State::Stale, _) | (State::Holed, Available::Blobs) => &[Way::Pierhead],
        (_, Available::Nothing | Available::Blobs) => &[Way::Origin],
        (_, Available::Manifests | Available::WrongBytes) if kind.trusts_manifests => {
            &[Way::Nowhere]
        }
        // The client falls back to the origin if it has received no wrong bytes. If the client has
        // received wrong bytes, it resumes its download after these bytes.
        (_, Available::WrongBytes) if !kind.starts_anew => &[Way::Origin, Way::Nowhere],
        (_, Available::Manifests | Available::WrongBytes) => &[Way::Origin],
    }
}
