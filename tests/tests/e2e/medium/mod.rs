//! A disk that fails below the running daemon: every kind of system call that it makes answers with an
//! error for a while, injected by `strace`. Meanwhile clients get the right bytes, past the disk, or a
//! clean refusal; afterwards all is as before.

mod injection;
mod short;

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    http::End,
    images::random_bytes,
    registry::{Background, FakeRegistry},
};
use pierhead_tests::{pierhead::Options, tool::or_skip};

use crate::ask::{behind, committed, get, get_soon, kept};
use injection::{Injection, strace};

/// Three blobs of as many sizes that nobody has asked for before.
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
fn a_disk_that_fails() -> Result<()> {
    let Some(strace) = or_skip(strace()) else {
        return Ok(());
    };
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), Options::new())?;
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
        // Interrupted before they did anything, every other time.
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
            // Broken off before its head is one more clean refusal.
            let Ok(answer) = get(pierhead.address(), path) else {
                continue;
            };
            if answer.status == 200 && answer.end == End::Clean {
                ensure!(answer.body == *bytes, "{}: other bytes", named());
                whole += 1;
            } else {
                ensure!(
                    answer.status >= 500 || bytes.starts_with(&answer.body),
                    "{}: {path} is {} and {} bytes",
                    named(),
                    answer.status,
                    answer.body.len()
                );
            }
        }
        // What cannot be stored can still be had; what cannot be read may be cut.
        let reads = calls.contains("read") || calls == "sendfile";
        let least = match error {
            _ if error.starts_with("EINTR") => 2 * fresh.len() + known.len(),
            _ if reads => 0,
            _ => 2 * fresh.len(),
        };
        ensure!(
            whole >= least,
            "{}: only {whole} answers were whole; log:\n{}",
            named(),
            pierhead.log()
        );
        injection.end_struck().with_context(named)?;
        for (_, path, bytes) in fresh.iter().chain(&known) {
            let answer = get_soon(pierhead.address(), path)?;
            ensure!(
                answer.end == End::Clean && answer.body == *bytes,
                "{}: {path} after it",
                named()
            );
        }
        let after = blobs.next();
        for (digest, path, bytes) in &after {
            let answer = get(pierhead.address(), path)?;
            ensure!(answer.body == *bytes, "{}: {path} after it", named());
            kept(&pierhead, digest).with_context(named)?;
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
