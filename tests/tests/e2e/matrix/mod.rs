//! The matrix: every client, every fault of its upstream, every state of the cache, real programs all
//! of them.
//!
//! Expected is what can be had: the image from pierhead wherever the upstream or the cache has it, else
//! the image from the origin, to which the client falls back. In every cell pierhead answers within its
//! five seconds, never says 429 or 401, and keeps nothing that is not what its name says.

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

use faults::{Fault, Leaves};
use stage::Stage;

/// What the cache holds when the pull begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing.
    Cold,
    /// All of the image, and its tag need not be asked for.
    Fresh,
    /// All of the image, but its tag must be asked for.
    Stale,
    /// All of the image but one layer, and its tag must be asked for.
    Holed,
    /// Nothing; the upstream has a second address, which works.
    Second,
}

/// The states by the tests that go through them: a client's cells in three tests, which run at once.
const COLD: &[State] = &[State::Cold];
const CACHED: &[State] = &[State::Fresh, State::Stale, State::Holed];
const SECOND: &[State] = &[State::Second];

/// Where a client has the image from in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Pierhead,
    Origin,
    Nowhere,
}

/// Of pierhead's answers, a second for a busy machine included.
const ANSWER: Duration = Duration::from_secs(6);
/// Of a whole pull: beyond the stalls of an upstream that pierhead sits out at its defaults.
const PULL: Duration = Duration::from_secs(40);

/// A client, between which addresses and how it falls back.
struct Kind {
    make: fn(&Wires<'_>) -> Result<Box<dyn Client>>,
    /// It has no way back once it was handed a manifest.
    trusts_manifests: bool,
    /// A layer that turns out wrong is asked for again from its first byte, elsewhere.
    starts_anew: bool,
}

/// What a client is connected to.
struct Wires<'a> {
    mirror: SocketAddr,
    origin: &'a Background,
    /// An HTTP proxy to the origin, for whom the origin has a fixed name.
    proxy: SocketAddr,
    authority: PathBuf,
}

#[test]
fn docker_and_a_cold_cache() -> Result<()> {
    docker(COLD)
}

#[test]
fn docker_and_a_cached_image() -> Result<()> {
    docker(CACHED)
}

#[test]
fn docker_and_a_second_address() -> Result<()> {
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
fn containerd_and_a_cold_cache() -> Result<()> {
    containerd(COLD)
}

#[test]
fn containerd_and_a_cached_image() -> Result<()> {
    containerd(CACHED)
}

#[test]
fn containerd_and_a_second_address() -> Result<()> {
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
fn podman_and_a_cold_cache() -> Result<()> {
    podman(COLD)
}

#[test]
fn podman_and_a_cached_image() -> Result<()> {
    podman(CACHED)
}

#[test]
fn podman_and_a_second_address() -> Result<()> {
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

/// Every cell of a client in these states; all that failed are told at the end. `PIERHEAD_CELLS` picks those whose name
/// contains it.
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
    ensure!(cells > 0, "no cell is called {only}");
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
    crate::ask::committed(pierhead.data())?;

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
        seen.slowest <= ANSWER,
        "an answer took {:?}; log:\n{log}",
        seen.slowest
    );
    ensure!(took <= PULL, "the pull took {took:?}");
    ensure!(
        !seen.statuses.iter().any(|it| matches!(it, 401 | 429)),
        "pierhead answered {:?}",
        seen.statuses
    );
    if state == State::Fresh {
        let asked = stage.hub.requests();
        ensure!(
            asked.is_empty(),
            "the upstream was asked: {asked:#?}; log:\n{log}"
        );
    }
    (fault.and)(stage, state)?;
    Ok(way)
}

fn expected(kind: &Kind, fault: &Fault, state: State) -> &'static [Way] {
    match (state, fault.leaves) {
        (State::Fresh, _) | (_, Leaves::Everything) => &[Way::Pierhead],
        (State::Second, Leaves::Lies) if kind.starts_anew => &[Way::Pierhead, Way::Origin],
        (State::Second, Leaves::Lies) => &[Way::Pierhead, Way::Origin, Way::Nowhere],
        (State::Second, _) => &[Way::Pierhead],
        // Who is no longer let in gets nothing more from the cache.
        (_, Leaves::Verdict) => &[Way::Origin],
        (State::Stale, _) | (State::Holed, Leaves::Blobs) => &[Way::Pierhead],
        (_, Leaves::Nothing | Leaves::Blobs) => &[Way::Origin],
        (_, Leaves::Manifests | Leaves::Lies) if kind.trusts_manifests => &[Way::Nowhere],
        // By chance the client has none of the wrong bytes yet; else it goes on where they ended.
        (_, Leaves::Lies) if !kind.starts_anew => &[Way::Origin, Way::Nowhere],
        (_, Leaves::Manifests | Leaves::Lies) => &[Way::Origin],
    }
}
