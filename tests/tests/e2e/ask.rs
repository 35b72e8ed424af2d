//! Raw requests from tests that are not asynchronous, and what a body really was.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    http::{Connection, End, Request, Response},
    registry::{Background, Builder},
};
use pierhead_tests::{
    layout::Hash,
    pierhead::{Options, Pierhead},
};
use tokio::{runtime::Runtime, sync::Barrier, task::JoinSet};

/// Threads for requests at once.
fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?)
}

/// Sends one request and reads the answer whole.
pub(crate) fn ask(addr: SocketAddr, request: &Request) -> Result<Response> {
    let answer = runtime()?.block_on(request.send(addr));
    answer.with_context(|| format!("{request:?}"))
}

/// GET.
pub(crate) fn get(addr: SocketAddr, path: &str) -> Result<Response> {
    ask(addr, &Request::get(path))
}

/// So many GETs of the same path at once, each on its own connection: the bodies, which may be
/// large, are hashed as they come. `streaming` is called once every client has a first piece of its
/// body, before any reads on. Returns the digests.
///
/// # Errors
/// Any answer that is not 200 with a clean end.
pub(crate) fn get_at_once(
    addr: SocketAddr,
    path: &str,
    clients: usize,
    streaming: impl FnOnce(),
) -> Result<Vec<String>> {
    let connected = Arc::new(Barrier::new(clients));
    let started = Arc::new(Barrier::new(clients + 1));
    runtime()?.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (request, connected, started) = (
                Request::get(path),
                Arc::clone(&connected),
                Arc::clone(&started),
            );
            tasks.spawn(async move {
                let mut connection = Connection::open(addr).await?;
                connected.wait().await;
                let mut answer = connection.start(&request).await?;
                ensure!(answer.status == 200, "{request:?}: {}", answer.status);
                let mut hash = Hash::default();
                hash.update(&answer.chunk().await.context("an empty body")?);
                started.wait().await;
                while let Some(bytes) = answer.chunk().await {
                    hash.update(&bytes);
                }
                ensure!(
                    answer.end() == Some(End::Clean),
                    "{request:?}: the body was cut"
                );
                Ok(hash.digest())
            });
        }
        let mut digests = Vec::new();
        let mut streaming = Some(streaming);
        loop {
            tokio::select! {
                _ = started.wait(), if streaming.is_some() => {
                    streaming.take().into_iter().for_each(|tell| tell());
                }
                done = tasks.join_next() => match done {
                    // A failure before all have started ends the wait for them, too.
                    Some(done) => digests.push(done??),
                    None => return Ok(digests),
                },
            }
        }
    })
}

/// A fake Docker Hub and a pierhead in front of it.
pub(crate) fn behind(hub: Builder, options: Options) -> Result<(Background, Pierhead)> {
    let hub = hub.start_in_background();
    let pierhead = Pierhead::start(options.upstream("docker.io", &hub.url()))?;
    Ok((hub, pierhead))
}
