//! Sends raw HTTP requests from synchronous tests, pulls images, and reads committed blobs from
//! disk.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    http::{Connection, End, Request, Response},
    images::Image,
    registry::{Background, Builder},
};
use pierhead_tests::{
    layout::Hash,
    pierhead::{Options, Pierhead},
    wait,
};
use tokio::{runtime::Runtime, sync::Barrier, task::JoinSet};

/// A runtime for concurrent requests.
fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?)
}

/// Sends one request and reads the complete response.
pub(crate) fn ask(addr: SocketAddr, request: &Request) -> Result<Response> {
    let response = runtime()?.block_on(request.send(addr));
    response.with_context(|| format!("{request:?}"))
}

/// Sends one GET and reads the complete response.
pub(crate) fn get(addr: SocketAddr, path: &str) -> Result<Response> {
    ask(addr, &Request::get(path))
}

/// Sends `count` concurrent GETs of one path, each on its own connection, and hashes the bodies.
/// When every client has received its first bytes, and before any client continues to read, calls
/// `streaming`. Returns the digests.
///
/// # Errors
/// A response that is not a complete 200.
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
                let mut response = connection.start(&request).await?;
                ensure!(response.status == 200, "{request:?}: {}", response.status);
                let mut hash = Hash::default();
                hash.update(&response.chunk().await.context("an empty body")?);
                started.wait().await;
                while let Some(bytes) = response.chunk().await {
                    hash.update(&bytes);
                }
                ensure!(
                    response.end() == Some(End::Clean),
                    "{request:?}: the body is incomplete"
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
                    // A failed request also ends the wait for all clients.
                    Some(done) => digests.push(done??),
                    None => return Ok(digests),
                },
            }
        }
    })
}

/// Sends GETs until the response is 200. pierhead caches the failure of an upstream for a short
/// time.
pub(crate) fn get_until_ok(addr: SocketAddr, path: &str) -> Result<Response> {
    wait::try_until(path, || {
        let response = get(addr, path)?;
        Ok((response.status == 200).then_some(response))
    })
}

/// Waits until a pulled blob is committed, which happens after the client has its last byte.
/// Returns the path of the blob's file.
pub(crate) fn wait_for_commit(pierhead: &Pierhead, digest: &str) -> Result<PathBuf> {
    wait::try_until("a committed blob", || {
        let list = get(pierhead.admin(), "/v1/blobs")?;
        let listed = std::str::from_utf8(&list.body)?.contains(digest);
        Ok(listed.then(|| pierhead.blob(digest)))
    })
}

/// Pulls `repository:1` like a client, compares all bytes, and waits until all blobs are committed.
pub(crate) fn pull(pierhead: &Pierhead, repository: &str, image: &Image) -> Result<()> {
    let path = format!("/v2/{repository}/manifests/1");
    let manifest = get(pierhead.address(), &path)?;
    ensure!(manifest.status == 200, "{path}: {}", manifest.status);
    ensure!(
        manifest.body == image.root_document().bytes,
        "{path}: other bytes"
    );
    for blob in &image.blobs {
        let path = format!("/v2/{repository}/blobs/{}", blob.digest);
        let response = get(pierhead.address(), &path)?;
        ensure!(
            response.status == 200 && response.end == End::Clean,
            "{path}: {}",
            response.status
        );
        ensure!(response.body == blob.bytes, "{path}: other bytes");
    }
    for digest in image.digests() {
        wait_for_commit(pierhead, &digest.to_string())?;
    }
    Ok(())
}

/// Verifies every committed blob of a data folder without a running daemon. Returns the number of
/// blobs.
///
/// # Errors
/// The contents of a blob do not match its digest.
pub(crate) fn committed(data: &Path) -> Result<usize> {
    let mut files = Vec::new();
    let mut folders = vec![data.join("blobs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    for path in &files {
        let bytes = fs::read(path)?;
        // The file has the contents, checksums, and a footer of 32 bytes that begins with the
        // length of the contents.
        let footer = bytes.len().checked_sub(32).map(|at| &bytes[at..at + 8]);
        let footer = footer.with_context(|| format!("{} has no footer", path.display()))?;
        let size = usize::try_from(u64::from_le_bytes(footer.try_into()?))?;
        let content = bytes
            .get(..size)
            .context("a length beyond the end of the file")?;
        let mut hash = Hash::default();
        hash.update(content);
        let digest = hash.digest();
        ensure!(
            path.to_string_lossy()
                .ends_with(&digest.replacen("sha256:", "", 1)),
            "{} holds {digest}",
            path.display()
        );
    }
    Ok(files.len())
}

/// Size of all files below a folder in bytes.
pub(crate) fn bytes_below(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry?;
        // The daemon may remove a file before this function reads its size.
        let Ok(about) = entry.metadata() else {
            continue;
        };
        sum += if about.is_dir() {
            bytes_below(&entry.path())?
        } else {
            about.len()
        };
    }
    Ok(sum)
}

/// Starts a fake Docker Hub and a pierhead in front of it.
pub(crate) fn start_in_front(hub: Builder, options: Options) -> Result<(Background, Pierhead)> {
    let hub = hub.start_in_background();
    let pierhead = Pierhead::start(options.upstream("docker.io", &hub.url()))?;
    Ok((hub, pierhead))
}
