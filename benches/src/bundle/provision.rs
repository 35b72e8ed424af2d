//! Benchmark of provisioning over an emulated link: the time from the first request until the root
//! file system is complete, for `pierhead pull` and containerd.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use pierhead_tests::{process, wait};

use super::volume::{FileSystem, Volume};
use super::{Bench, Pair};
use crate::link::{Link, SERVER};
use crate::process::Process;
use crate::server::Server;
use crate::statistics::{median, mega};

/// Port of the server in its namespace.
const PORT: u16 = 5000;

#[derive(Args)]
pub(crate) struct Options {
    /// Round-trip times in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0,50,150")]
    rtt: Vec<u64>,
    /// Rates to the client in Mbit/s; 0: no limit.
    #[arg(long, value_delimiter = ',', default_value = "100,0")]
    mbit: Vec<u64>,
    /// Number of runs, of which the median is reported.
    #[arg(long, short, default_value_t = 3)]
    n: usize,
    /// Measure only `fresh` or only `update`.
    #[arg(long)]
    scenario: Option<String>,
    /// Folder for a sparse file of up to 24 GiB that contains the file system of each run.
    #[arg(long, default_value = "target")]
    work: PathBuf,
    /// Type of the file system of each run.
    #[arg(long, default_value = "ext4")]
    fs: FileSystem,
    /// How the tree of pierhead shares bytes with its store: `reflink` or `hard`.
    #[arg(long, default_value = "reflink")]
    link: String,
    /// The client to measure.
    #[arg(long, value_delimiter = ',', default_value = "pierhead,containerd")]
    targets: Vec<Target>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    Pierhead,
    Containerd,
}

/// The result of one pull.
struct Run {
    seconds: f64,
    down: u64,
    up: u64,
    cpu: f64,
}

struct Stage {
    link: Link,
    server: Server,
    pierhead: PathBuf,
    work: PathBuf,
    reuse: String,
}

pub(crate) fn run(bench: &Bench, options: &Options) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "namespaces and mounts need root"
    );
    let link = Link::up()?;
    let listener = link
        .server
        .inside(|| Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?))?;
    let upstream = listener.local_addr()?;
    bench.layout.serve(listener);
    let listen = format!("{SERVER}:{PORT}");
    let server = Server::start(
        &bench.pierhead,
        &link.server.enter(),
        &listen,
        upstream,
        &bench.config,
    )?;
    fs::create_dir_all(&options.work)?;
    let stage = Stage {
        link,
        server,
        pierhead: bench.pierhead.canonicalize()?,
        work: options.work.canonicalize()?,
        reuse: options.link.clone(),
    };
    println!(
        "marks: 2 × faster fresh at 0 ms without limit, 4 × on updates at 100 Mbit/s, 150 ms at most 1 s over 0 ms\n"
    );
    println!(
        "| image | RTT ms | Mbit/s | containerd s | pierhead s | times | MB down | kB up | CPU-s of the client |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    let wanted = |what: &str| options.scenario.as_deref().is_none_or(|it| it == what);
    for Pair { old, new } in bench.pairs() {
        stage.warm(options, &old, &new)?;
        for old in [None, Some(old.as_str())] {
            if !wanted(if old.is_none() { "fresh" } else { "update" }) {
                continue;
            }
            for &rtt in &options.rtt {
                for &mbit in &options.mbit {
                    stage.row(options, old, &new, rtt, mbit)?;
                }
            }
        }
    }
    Ok(())
}

impl Stage {
    /// Lets the server cache and pack both images, and prepare the update.
    fn warm(&self, options: &Options, old: &str, new: &str) -> Result<()> {
        self.link.set(Duration::ZERO, 0);
        // The second request gets the bundle that the server prepared after the first request.
        for _ in 0..2 {
            let volume = Volume::new(&self.work, options.fs)?;
            for name in [old, new] {
                if options.targets.contains(&Target::Pierhead) {
                    self.pull(name, volume.path())?;
                    self.server.settle()?;
                } else {
                    Containerd::start(self, &volume)?.pull(name)?;
                }
            }
        }
        Ok(())
    }

    fn row(
        &self,
        options: &Options,
        old: Option<&str>,
        new: &str,
        rtt: u64,
        mbit: u64,
    ) -> Result<()> {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..options.n {
            if options.targets.contains(&Target::Pierhead) {
                let volume = Volume::new(&self.work, options.fs)?;
                let pull = |name: &str| self.pull(name, volume.path());
                ours.push(self.timed(old, new, rtt, mbit, pull)?);
            }
            if options.targets.contains(&Target::Containerd) {
                let volume = Volume::new(&self.work, options.fs)?;
                let containerd = Containerd::start(self, &volume)?;
                let pull = |name: &str| containerd.pull(name);
                theirs.push(self.timed(old, new, rtt, mbit, pull)?);
            }
        }
        // A client that the user did not select has no result.
        let middle = |runs: &[Run], of: fn(&Run) -> f64| {
            median(&mut runs.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        let seconds = middle(&ours, |run| run.seconds);
        let other = middle(&theirs, |run| run.seconds);
        let both =
            |of: fn(&Run) -> f64| format!("{:.2} / {:.2}", middle(&theirs, of), middle(&ours, of));
        let what = old.map_or_else(|| new.to_owned(), |old| format!("{old} → {new}"));
        let rate = if mbit == 0 {
            "–".to_owned()
        } else {
            mbit.to_string()
        };
        println!(
            "| {what} | {rtt} | {rate} | {other:.2} | {seconds:.2} | {:.1} | {} | {} | {} |",
            other / seconds,
            both(|run| mega(run.down)),
            both(|run| mega(run.up) * 1e3),
            both(|run| run.cpu),
        );
        Ok(())
    }

    /// Pulls the old version without measurement, then measures the pull of the new version over
    /// the link.
    fn timed(
        &self,
        old: Option<&str>,
        new: &str,
        rtt: u64,
        mbit: u64,
        pull: impl Fn(&str) -> Result<f64>,
    ) -> Result<Run> {
        self.link.set(Duration::ZERO, 0);
        if let Some(old) = old {
            pull(old)?;
        }
        self.link.set(Duration::from_millis(rtt), mbit);
        let before = self.link.traffic();
        let start = Instant::now();
        let cpu = pull(new)?;
        let seconds = start.elapsed().as_secs_f64();
        let after = self.link.traffic();
        self.link.set(Duration::ZERO, 0);
        Ok(Run {
            seconds,
            down: after.down - before.down,
            up: after.up - before.up,
            cpu,
        })
    }

    /// Pulls by `pierhead pull` with store and tree below `folder`. Returns the CPU seconds.
    fn pull(&self, name: &str, folder: &Path) -> Result<f64> {
        let tree = folder.join(format!("rootfs-{}", name.replace([':', '/'], "-")));
        let mut command = self.link.client.command("/usr/bin/env");
        // Measures the CPU time by a shell, because the kernel does not keep the CPU time of a
        // single ended child.
        command
            .args([
                "bash",
                "-c",
                "\"$@\"; status=$?; times >&2; exit $status",
                "it",
            ])
            .arg(&self.pierhead)
            .args(["pull", &format!("docker.io/library/{name}")])
            .args(["--via", &format!("http://{SERVER}:{PORT}")])
            .arg("--into")
            .arg(folder.join("store"))
            .args([
                "--json",
                "--as",
                "rootfs",
                "--link",
                &self.reuse,
                "--output",
            ])
            .arg(tree);
        // `bash` writes the times last, after all output of pierhead.
        children_cpu(&process::run(&mut command)?)
    }
}

/// Parses the last line of bash's command `times`, such as `0m1.234s 0m0.567s`: the user and system
/// time of the shell's children.
fn children_cpu(said: &str) -> Result<f64> {
    let line = said.lines().last().context("no times")?;
    let mut sum = 0.0;
    for word in line.split_whitespace() {
        let (minutes, seconds) = word
            .trim_end_matches('s')
            .split_once('m')
            .context("no time")?;
        sum += minutes.parse::<f64>()? * 60.0 + seconds.parse::<f64>()?;
    }
    Ok(sum)
}

/// A containerd in the client's namespace, with an empty store.
struct Containerd<'a> {
    process: Process,
    stage: &'a Stage,
    folder: PathBuf,
}

impl<'a> Containerd<'a> {
    fn start(stage: &'a Stage, volume: &Volume) -> Result<Self> {
        let folder = volume.path().to_owned();
        let at = folder.display();
        fs::write(
            folder.join("config.toml"),
            format!(
                "version = 2\nroot = \"{at}/root\"\nstate = \"{at}/state\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
                 \"io.containerd.cri.v1.images\", \"io.containerd.cri.v1.runtime\"]\n[grpc]\naddress = \"{at}/s\"\n[ttrpc]\naddress = \"{at}/t\"\n"
            ),
        )?;
        let hosts = folder.join("hosts/docker.io");
        fs::create_dir_all(&hosts)?;
        fs::write(
            hosts.join("hosts.toml"),
            format!("server = \"http://{SERVER}:{PORT}\"\n"),
        )?;
        let mut command = stage.link.client.command("containerd");
        command.arg("--config").arg(folder.join("config.toml"));
        let containerd = Self {
            process: Process::spawn(&mut command)?,
            stage,
            folder,
        };
        wait::try_until("containerd responds", || {
            let version = containerd.ctr(&["version"]).output()?;
            Ok(version.status.success().then_some(()))
        })?;
        Ok(containerd)
    }

    fn ctr(&self, words: &[&str]) -> Command {
        let mut command = self.stage.link.client.command("ctr");
        command
            .arg("--address")
            .arg(self.folder.join("s"))
            .args(words);
        command
    }

    /// Downloads and unpacks an image. Returns the CPU seconds of the daemon.
    fn pull(&self, name: &str) -> Result<f64> {
        let hosts = self.folder.join("hosts").display().to_string();
        let name = format!("docker.io/library/{name}");
        let before = self.process.cpu_seconds()?;
        process::run(&mut self.ctr(&["images", "pull", "--hosts-dir", &hosts, &name]))?;
        Ok(self.process.cpu_seconds()? - before)
    }
}

impl Drop for Containerd<'_> {
    fn drop(&mut self) {
        self.process.end();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = self.folder.display().to_string();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
            if point.starts_with(&below) {
                let _ = Command::new("umount").args(["-l", point]).status();
            }
        }
    }
}
