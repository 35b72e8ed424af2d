//! Writes that take less than they were given, or nothing: they go on where they ended.

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
use crate::ask::{behind, committed, get, kept};

/// Where files end for a while. No buffer of anybody's ends at such a place: a file that does was cut
/// by a short write.
const LIMIT: u64 = 1_234_567;
const WRITES: &str = "pwrite64,pwritev,pwritev2";

/// The largest file that pierhead may write from now on.
fn limit(pierhead: &mut Pierhead, bytes: Option<u64>) -> Result<()> {
    let pid = i32::try_from(pierhead.daemon().pid())?;
    let pid = Pid::from_raw(pid).context("no process")?;
    // Only the soft limit: who lowers the other one cannot raise it again.
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    Ok(prlimit(Some(pid), Resource::Fsize, limit).map(drop)?)
}

/// A limit on the size of files (`LimitFSIZE=` of a unit) is a disk that is full for large blobs: the
/// write before it is short, the next one fails, and by default the system ends who tries.
#[test]
fn beyond_the_largest_file() -> Result<()> {
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    let mut blobs = Blobs { hub: &hub, seed: 0 };
    limit(&mut pierhead, Some(LIMIT))?;
    let fresh = blobs.next();
    for _ in 0..2 {
        for (digest, path, bytes) in &fresh {
            let answer = get(pierhead.address(), path)?;
            ensure!(answer.body == *bytes, "{path}: other bytes");
            if (bytes.len() as u64) < LIMIT {
                kept(&pierhead, digest)?;
            }
        }
    }
    let stored = fresh.iter().filter(|it| pierhead.blob(&it.0).exists());
    ensure!(stored.count() == 2, "the limit did not strike");
    limit(&mut pierhead, None)?;
    // Others: what could not be stored just now is not tried again for a moment.
    for (digest, path, bytes) in &blobs.next() {
        ensure!(get(pierhead.address(), path)?.body == *bytes, "{path}");
        kept(&pierhead, digest)?;
    }
    pierhead.cache(&["verify"]).map(drop)
}

/// Each write is followed by a stop, and after the short one the limit is lifted: the rest goes behind
/// what there is, not over it and not beyond it.
#[test]
fn a_short_write_goes_on() -> Result<()> {
    let Some(strace) = or_skip(strace()) else {
        return Ok(());
    };
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(1, 3_000_000);
    let digest = hub.put_blob("library/app", bytes.clone()).to_string();
    let path = format!("/v2/library/app/blobs/{digest}");
    limit(&mut pierhead, Some(LIMIT))?;
    let injection = Injection::start(&strace, &mut pierhead, WRITES, "signal=STOP")?;
    let (address, asked) = (pierhead.address(), path.clone());
    let client = std::thread::spawn(move || get(address, &asked));
    let staged = pierhead
        .data()
        .join("staging")
        .join(digest.replacen(':', "-", 1));
    let mut struck = false;
    wait::until("the answer", || {
        if stopped(&mut pierhead)? {
            // Nothing moves now.
            if fs::metadata(&staged).is_ok_and(|about| about.len() == LIMIT) {
                struck = true;
                limit(&mut pierhead, None)?;
            }
            pierhead.daemon().signal(Signal::CONT)?;
        }
        Ok((client.is_finished() && pierhead.blob(&digest).exists()).then_some(()))
    })?;
    ensure!(struck, "no write was short");
    let answer = client.join().expect("no panic")?;
    ensure!(answer.body == bytes, "{path}: other bytes");
    injection.end()?;
    pierhead.daemon().signal(Signal::CONT)?;
    kept(&pierhead, &digest)?;
    pierhead.cache(&["verify"])?;
    ensure!(hub.gets_of(&digest.parse()?) == 1, "it was fetched again");
    pierhead.stop()?;
    ensure!(committed(pierhead.data())? == 1);
    Ok(())
}

/// Whether it was sent a `SIGSTOP` that took effect.
fn stopped(pierhead: &mut Pierhead) -> Result<bool> {
    let status = fs::read_to_string(format!("/proc/{}/status", pierhead.daemon().pid()))?;
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    Ok(state.is_some_and(|it| it.trim_start().to_lowercase().starts_with('t')))
}

/// A system that says it has written what it has not: `retval` makes it say so of calls that it does
/// not make. No program can know at once; but nothing of it outlives what was noted in memory.
#[test]
fn a_lost_write_is_found() -> Result<()> {
    let Some(strace) = or_skip(strace()) else {
        return Ok(());
    };
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    let mut blobs = Blobs { hub: &hub, seed: 0 };
    let lie = "retval=1000:when=2+3";
    let injection = Injection::start(&strace, &mut pierhead, "pwritev", lie)?;
    let fresh = blobs.next();
    for (digest, path, _) in &fresh {
        get(pierhead.address(), path)?;
        kept(&pierhead, digest)?;
    }
    injection.end_struck()?;
    pierhead.kill()?;
    ensure!(committed(pierhead.data()).is_err(), "nothing was lost");
    pierhead.restart()?;
    let mut right = 0;
    for (_, path, bytes) in fresh.iter().chain(&fresh) {
        let answer = get(pierhead.address(), path)?;
        if answer.status == 200 && answer.end == End::Clean {
            ensure!(answer.body == *bytes, "{path}: a hole was handed out");
            right += 1;
        }
    }
    // Found at the first look where it shows after the head is out, the second has it anew.
    ensure!(right >= fresh.len(), "only {right} were right");
    for (digest, ..) in &fresh {
        kept(&pierhead, digest)?;
    }
    pierhead.cache(&["verify"])?;
    pierhead.stop()?;
    ensure!(committed(pierhead.data())? == fresh.len());
    Ok(())
}
