//! End-to-end tests of disk errors: `strace` lets each kind of system call fail for a while. During
//! the errors, clients get the right bytes or an error. After the errors, pierhead works as before.

mod injection;
mod short_writes;

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    http::End,
    images::random_bytes,
    registry::{Background, FakeRegistry},
};
use pierhead_tests::{pierhead::Options, tool::or_skip};

use crate::requests::{committed, get, get_until_ok, start_in_front, wait_for_commit};
use injection::{Injection, strace};

/// Blobs of three sizes that no client has requested before.
struct Blobs<'a> {
    hub: &'a Background,
    seed: u64,
}

impl Blobs<'_> {
    fn next(&mut self) -> Vec<(String, String, bytes::Bytes)> {
        [1_000, 300_000, 3_000_000]
            .map(|size| {
                self.seed += 1;
                let bytes = random_bytes(self.seed, size);
                let digest = self.hub.put_blob("library/app", bytes.clone()).to_string();
                (
                    digest.clone(),
                    format!("/v2/library/app/blobs/{digest}"),
                    bytes,
                )
            })
            .into()
    }
}

#[test]
fn clients_get_right_bytes_or_an_error_while_the_disk_fails() -> Result<()> {
    let Some(strace) = or_skip(strace()) else {
        return Ok(());
    };
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let mut blobs = Blobs { hub: &hub, seed: 0 };
    let writes = "pwrite64,pwritev,pwritev2";
    let mut known = Vec::new();
    for (calls, error) in [
        (writes, "EIO"),
        (writes, "ENOSPC"),
        ("fdatasync", "EIO"),
        ("fsync", "EIO"),
        ("rename,renameat,renameat2", "EIO"),
        ("rename,renameat,renameat2", "ENOSPC"),
        ("pread64,preadv,preadv2", "EIO"),
        ("sendfile", "EIO"),
        // A signal interrupts every second call before the call has an effect.
        (writes, "EINTR:when=1+2"),
        ("fdatasync", "EINTR:when=1+2"),
        ("pread64,preadv,preadv2", "EINTR:when=1+2"),
        ("sendfile", "EINTR:when=1+2"),
    ] {
        let named = || format!("{error} of {calls}");
        let injection = Injection::start(&strace, &mut pierhead, calls, &format!("error={error}"))?;
        let fresh = blobs.next();
        let mut whole = 0;
        for (_, path, bytes) in fresh.iter().chain(&fresh).chain(&known) {
            // A connection that closes before the response head counts as a refused request.
            let Ok(response) = get(pierhead.address(), path) else {
                continue;
            };
            if response.status == 200 && response.end == End::Clean {
                ensure!(response.body == *bytes, "{}: other bytes", named());
                whole += 1;
            } else {
                ensure!(
                    response.status >= 500 || bytes.starts_with(&response.body),
                    "{}: {path} is {} and {} bytes",
                    named(),
                    response.status,
                    response.body.len()
                );
            }
        }
        // pierhead serves blobs that it cannot store. pierhead may abort responses with blobs that
        // it cannot read.
        let reads = calls.contains("read") || calls == "sendfile";
        let least = match error {
            _ if error.starts_with("EINTR") => 2 * fresh.len() + known.len(),
            _ if reads => 0,
            _ => 2 * fresh.len(),
        };
        ensure!(
            whole >= least,
            "{}: only {whole} responses were complete; log:
{}",
            named(),
            pierhead.log()
        );
        injection.end_after_failure().with_context(named)?;
        for (_, path, bytes) in fresh.iter().chain(&known) {
            let response = get_until_ok(pierhead.address(), path)?;
            ensure!(
                response.end == End::Clean && response.body == *bytes,
                "{}: {path} after it",
                named()
            );
        }
        let after = blobs.next();
        for (digest, path, bytes) in &after {
            let response = get(pierhead.address(), path)?;
            ensure!(response.body == *bytes, "{}: {path} after it", named());
            wait_for_commit(&pierhead, digest).with_context(named)?;
        }
        known = after;
        pierhead.cache(&["verify"]).with_context(named)?;
    }
    pierhead.kill()?;
    committed(pierhead.data())?;
    pierhead.restart()?;
    hub.stop();
    for (_, path, bytes) in &known {
        ensure!(get(pierhead.address(), path)?.body == *bytes, "{path}");
    }
    Ok(())
}
