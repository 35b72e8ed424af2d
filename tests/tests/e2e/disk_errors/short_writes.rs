//! End-to-end tests of short writes: pierhead continues a write of which the disk took only a part,
//! and detects bytes of a write that the disk lost.

use std::fs;

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{http::End, images::random_bytes, registry::FakeRegistry};
use pierhead_tests::{
    pierhead::{Options, Pierhead},
    tool::or_skip,
    wait,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use super::{
    Blobs,
    injection::{Injection, strace},
};
use crate::requests::{committed, get, start_in_front, wait_for_commit};

/// Limit of the file size in bytes. No buffer of pierhead ends at this odd offset, so a file of
/// exactly this size shows a short write.
const LIMIT: u64 = 1_234_567;
const WRITES: &str = "pwrite64,pwritev,pwritev2";

/// Sets the maximum size of files that pierhead may write.
fn limit(pierhead: &mut Pierhead, bytes: Option<u64>) -> Result<()> {
    let pid = i32::try_from(pierhead.daemon().pid())?;
    let pid = Pid::from_raw(pid).context("no process")?;
    // Sets only the soft limit, because a process cannot raise a lowered hard limit again.
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    Ok(prlimit(Some(pid), Resource::Fsize, limit).map(drop)?)
}

/// A limit of the file size (`LimitFSIZE=` of a systemd unit) acts like a full disk for large
/// blobs. One write is short, and the next write fails. By default, the kernel would also kill the
/// process.
#[test]
fn a_blob_beyond_the_file_size_limit_is_served_uncached() -> Result<()> {
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let mut blobs = Blobs { hub: &hub, seed: 0 };
    limit(&mut pierhead, Some(LIMIT))?;
    let fresh = blobs.next();
    for _ in 0..2 {
        for (digest, path, bytes) in &fresh {
            let response = get(pierhead.address(), path)?;
            ensure!(response.body == *bytes, "{path}: other bytes");
            if (bytes.len() as u64) < LIMIT {
                wait_for_commit(&pierhead, digest)?;
            }
        }
    }
    let stored = fresh.iter().filter(|it| pierhead.blob(&it.0).exists());
    ensure!(stored.count() == 2, "the limit had no effect");
    limit(&mut pierhead, None)?;
    // Requests other blobs, because pierhead does not retry the failed blobs for a short time.
    for (digest, path, bytes) in &blobs.next() {
        ensure!(get(pierhead.address(), path)?.body == *bytes, "{path}");
        wait_for_commit(&pierhead, digest)?;
    }
    pierhead.cache(&["verify"]).map(drop)
}

/// The test stops the daemon after each write, and lifts the limit after the short write. pierhead
/// must write the remaining bytes at the right offset.
#[test]
fn a_short_write_continues() -> Result<()> {
    let Some(strace) = or_skip(strace()) else {
        return Ok(());
    };
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(1, 3_000_000);
    let digest = hub.put_blob("library/app", bytes.clone()).to_string();
    let path = format!("/v2/library/app/blobs/{digest}");
    limit(&mut pierhead, Some(LIMIT))?;
    let injection = Injection::start(&strace, &mut pierhead, WRITES, "signal=STOP")?;
    let (address, requested) = (pierhead.address(), path.clone());
    let client = std::thread::spawn(move || get(address, &requested));
    let staged = pierhead
        .data()
        .join("staging")
        .join(digest.replacen(':', "-", 1));
    let mut hit = false;
    wait::try_until("the answer", || {
        if stopped(&mut pierhead)? {
            // The daemon is stopped by a signal at this point.
            if fs::metadata(&staged).is_ok_and(|about| about.len() == LIMIT) {
                hit = true;
                limit(&mut pierhead, None)?;
            }
            pierhead.daemon().signal(Signal::CONT)?;
        }
        Ok((client.is_finished() && pierhead.blob(&digest).exists()).then_some(()))
    })?;
    ensure!(hit, "no write was short");
    let response = client.join().expect("no panic")?;
    ensure!(response.body == bytes, "{path}: other bytes");
    injection.end()?;
    pierhead.daemon().signal(Signal::CONT)?;
    wait_for_commit(&pierhead, &digest)?;
    pierhead.cache(&["verify"])?;
    ensure!(
        hub.gets_of(&digest.parse()?) == 1,
        "the blob was fetched again"
    );
    pierhead.stop()?;
    ensure!(committed(pierhead.data())? == 1);
    Ok(())
}

/// Whether pierhead is stopped by a `SIGSTOP`.
fn stopped(pierhead: &mut Pierhead) -> Result<bool> {
    let status = fs::read_to_string(format!("/proc/{}/status", pierhead.daemon().pid()))?;
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    Ok(state.is_some_and(|it| it.trim_start().to_lowercase().starts_with('t')))
}

/// Lost writes: the strace action `retval` skips the system call and reports success. pierhead
/// cannot notice this at once, but finds the corruption at a later read.
#[test]
fn a_lost_write_is_detected() -> Result<()> {
    let Some(strace) = or_skip(strace()) else {
        return Ok(());
    };
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let mut blobs = Blobs { hub: &hub, seed: 0 };
    let lie = "retval=1000:when=2+3";
    let injection = Injection::start(&strace, &mut pierhead, "pwritev", lie)?;
    let fresh = blobs.next();
    for (digest, path, _) in &fresh {
        get(pierhead.address(), path)?;
        wait_for_commit(&pierhead, digest)?;
    }
    injection.end_after_failure()?;
    pierhead.kill()?;
    ensure!(committed(pierhead.data()).is_err(), "no write was lost");
    pierhead.restart()?;
    let mut right = 0;
    for (_, path, bytes) in fresh.iter().chain(&fresh) {
        let response = get(pierhead.address(), path)?;
        if response.status == 200 && response.end == End::Clean {
            ensure!(response.body == *bytes, "{path}: wrong bytes were served");
            right += 1;
        }
    }
    // During the first request, pierhead finds the corruption after it has sent the response head.
    // The second request gets a new copy.
    ensure!(right >= fresh.len(), "only {right} were right");
    for (digest, ..) in &fresh {
        wait_for_commit(&pierhead, digest)?;
    }
    pierhead.cache(&["verify"])?;
    pierhead.stop()?;
    ensure!(committed(pierhead.data())? == fresh.len());
    Ok(())
}
