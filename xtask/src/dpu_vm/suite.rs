//! Tests of pierhead on the simulated DPU: two boots with the same disk, with a power cut between
//! them.

use std::{path::Path, time::Instant};

use anyhow::{Result, bail, ensure};

use super::machine::Machine;
use crate::{
    check::test_count::TestCount,
    console::say,
    guest::{Peer, Up},
};

/// Output of `pierhead doctor` on a Cortex-A72, the core of a BlueField-2.
const NO_INSTRUCTION: &str = "no dc cvap";

/// Shell command that stops pierhead, then the machine, with the exit status of pierhead.
pub(super) const POWER_OFF: &str = "finish TERM; tell \"exit $?\"; umount /data; sync; poweroff -f";

/// Runs the suite. `peer` is the path of the example program.
///
/// # Errors
/// The machine does not boot.
pub(super) fn run(machine: &Machine, peer: &Path) -> Result<TestCount> {
    let mut peer = Peer::start(peer)?;
    let mut checks = TestCount::default();

    let mut dpu = boot(machine, "first", &peer)?;
    let url = peer.url.clone();
    checks.tell("pull through", || {
        let pulled = peer.pull(dpu.address)?;
        ensure!(pulled.asked > 0, "{url} was not asked");
        Ok(pulled.to_string())
    });
    checks.tell("cached pull", || Ok(peer.cached(dpu.address)?.to_string()));
    checks.tell("metrics", || {
        let metrics = peer.get(dpu.admin, "/metrics")?;
        let class = "pierhead_cache_tier_info{class=\"emulated-file\"} 1\n";
        let lines = metrics.lines().count();
        for wanted in [class, "# EOF\n"] {
            ensure!(metrics.contains(wanted), "no {wanted:?} in {lines} lines");
        }
        Ok(format!("{lines} lines"))
    });
    checks.tell("doctor, of a daemon that runs", || {
        let (_, said) = dpu.output("pierhead doctor --config /etc/pierhead.toml | cat")?;
        for wanted in ["docker.io", "in use, emulated-file"] {
            ensure!(said.contains(wanted), "no {wanted:?} in:\n{said}");
        }
        Ok(format!("{} lines", said.lines().count()))
    });
    if let Err(error) = peer.down() {
        bail!("{error:#}");
    }
    checks.tell("doctor, of a Cortex-A72", || {
        dpu.output("finish KILL")?;
        let (_, said) =
            dpu.output("pierhead doctor --offline --config /etc/pierhead.toml | cat")?;
        let line = said.lines().find(|line| line.contains(NO_INSTRUCTION));
        let line = line.map(|line| line.trim().to_owned());
        line.ok_or_else(|| anyhow::anyhow!("no {NO_INSTRUCTION:?} in:\n{said}"))
    });
    checks.tell("restart, without an upstream", || {
        let started_at = Instant::now();
        let status = dpu.shell("begin", |line| say!("  | {line}"))?;
        ensure!(status == 0, "pierhead did not start");
        let took = started_at.elapsed().as_secs_f64();
        let pulled = peer.pull(dpu.address)?;
        Ok(format!("serves after {took:.1} s; {pulled}"))
    });
    dpu.cut()?;

    let dpu = boot(machine, "second", &peer)?;
    checks.tell("power cut, without an upstream", || {
        Ok(peer.pull(dpu.address)?.to_string())
    });
    checks.tell("end in order", || {
        let ended = dpu.off(POWER_OFF)?;
        ensure!(ended.status == 0, "pierhead ended with {}", ended.status);
        Ok(format!("off after {:.1} s", ended.took.as_secs_f64()))
    });
    Ok(checks)
}

fn boot(machine: &Machine, name: &str, peer: &Peer) -> Result<Up> {
    let dpu = machine.boot(name, Some(&peer.url))?;
    let (ready, took) = dpu.ready();
    say!(
        "  {name} boot: serves after {:.1} s, {ready} s of its own clock",
        took.as_secs_f64()
    );
    Ok(dpu)
}
