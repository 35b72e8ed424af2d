//! What a DPU must do for its host: two boots with the same disk, between which the plug is pulled.

use std::{path::Path, time::Instant};

use anyhow::{Result, bail, ensure};

use super::{
    machine::{Dpu, Machine},
    peer::{Peer, Pulled},
};
use crate::check::count::Count;

/// What doctor says of a Cortex-A72, which is what a BlueField-2 has.
const NO_INSTRUCTION: &str = "no dc cvap";

/// Runs it: `peer` is the program.
///
/// # Errors
/// When the machine does not boot.
pub(super) fn run(machine: &Machine, peer: &Path) -> Result<Count> {
    let mut peer = Peer::start(peer)?;
    let mut checks = Checks::default();

    let mut dpu = boot(machine, "first", &peer)?;
    let url = peer.url.clone();
    checks.run("pull through", || {
        let pulled = peer.pull(dpu.address)?;
        ensure!(pulled.asked > 0, "{url} was not asked");
        Ok(told(&pulled))
    });
    checks.run("cached pull", || cached(&mut peer, &dpu));
    checks.run("metrics", || {
        let metrics = peer.get(dpu.admin, "/metrics")?;
        let class = "pierhead_cache_tier_info{class=\"emulated-file\"} 1\n";
        let lines = metrics.lines().count();
        for wanted in [class, "# EOF\n"] {
            ensure!(metrics.contains(wanted), "no {wanted:?} in {lines} lines");
        }
        Ok(format!("{lines} lines"))
    });
    checks.run("doctor, of a daemon that runs", || {
        let said = output(
            &mut dpu,
            "pierhead doctor --config /etc/pierhead.toml | cat",
        )?;
        for wanted in ["docker.io", "in use, emulated-file"] {
            ensure!(said.contains(wanted), "no {wanted:?} in:\n{said}");
        }
        Ok(format!("{} lines", said.lines().count()))
    });
    if let Err(error) = peer.down() {
        bail!("{error:#}");
    }
    checks.run("doctor, of a Cortex-A72", || {
        output(&mut dpu, "finish KILL")?;
        let said = output(
            &mut dpu,
            "pierhead doctor --offline --config /etc/pierhead.toml | cat",
        )?;
        let line = said.lines().find(|line| line.contains(NO_INSTRUCTION));
        let line = line.map(|line| line.trim().to_owned());
        line.ok_or_else(|| anyhow::anyhow!("no {NO_INSTRUCTION:?} in:\n{said}"))
    });
    checks.run("restart, without an upstream", || {
        let begun = Instant::now();
        let status = dpu.shell("begin", |line| println!("  | {line}"))?;
        ensure!(status == 0, "pierhead did not start");
        let took = begun.elapsed().as_secs_f64();
        let pulled = peer.pull(dpu.address)?;
        Ok(format!("serves after {took:.1} s; {}", told(&pulled)))
    });
    dpu.cut()?;

    let dpu = boot(machine, "second", &peer)?;
    checks.run("power cut, without an upstream", || {
        Ok(told(&peer.pull(dpu.address)?))
    });
    checks.run("end in order", || {
        let ended = dpu.off()?;
        ensure!(ended.status == 0, "pierhead ended with {}", ended.status);
        Ok(format!("off after {:.1} s", ended.took.as_secs_f64()))
    });
    Ok(checks.0)
}

fn boot(machine: &Machine, name: &str, peer: &Peer) -> Result<Dpu> {
    let dpu = machine.boot(name, Some(&peer.url))?;
    let (ready, took) = dpu.ready();
    println!(
        "  {name} boot: serves after {:.1} s, {ready} s of its own clock",
        took.as_secs_f64()
    );
    Ok(dpu)
}

/// Pulls again until all of it was stored: the last client has its bytes before that.
fn cached(peer: &mut Peer, dpu: &Dpu) -> Result<String> {
    loop {
        let pulled = peer.pull(dpu.address)?;
        let [answers, hits] = pulled.answers;
        if hits == answers {
            ensure!(pulled.asked == 0, "the upstream was asked");
            return Ok(told(&pulled));
        }
    }
}

/// What a line of shell prints, whatever its status is. Through a pipe there is no colour in it.
fn output(dpu: &mut Dpu, line: &str) -> Result<String> {
    let mut text = String::new();
    dpu.shell(line, |line| {
        text.push_str(line);
        text.push('\n');
    })?;
    Ok(text)
}

fn told(pulled: &Pulled) -> String {
    let [manifest, all] = pulled.seconds;
    let [answers, hits] = pulled.answers;
    format!(
        "manifest in {manifest:.2} s, {} bytes in {all:.2} s, {hits} of {answers} from the cache",
        pulled.bytes
    )
}

/// Adds up what was looked at, each as one.
#[derive(Default)]
struct Checks(Count);

impl Checks {
    fn run(&mut self, name: &str, check: impl FnOnce() -> Result<String>) {
        match check() {
            Ok(what) => {
                println!("  {name}: {what}");
                self.0.passed += 1;
            }
            Err(error) => {
                let error = format!("{error:#}");
                println!("  {name} FAILED: {error}");
                self.0.failed += 1;
                let first = error.lines().next().unwrap_or_default();
                self.0.failures.push(format!("{name}: {first}"));
            }
        }
    }
}
