//! Benchmark of the cold start of a serverless function: the time from the start of the pull, with
//! an empty store, until the process writes its first output.

use std::fs;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pierhead_tests::clients::{Client as _, Containerd};
use pierhead_tests::image::{GREETING, images};
use pierhead_tests::{paths, process, tool};
use serde_json::json;

use super::lab::{Lab, Shape};
use crate::layout::Layout;
use crate::server::Server;
use crate::statistics::{median, percentile};

/// AlphaBoot's published cold start in seconds.
const PAPER: f64 = 0.08;
/// The program of the function.
const ENTRY: &str = "/hello";

/// Seconds of one start.
struct Start {
    pull: f64,
    ready: f64,
}

/// Measures cold starts by every client and runtime, each with empty stores.
pub(super) fn run(pierhead: &Path, shape: &Shape, starts: usize) -> Result<()> {
    let pierhead = &pierhead.canonicalize()?;
    let image = images()?.small;
    let layout = Layout::open(image.layout().folder())?;
    let lab = Lab::up(1, shape, &layout)?;
    let machine = lab.machines.first().context("no machine")?;
    let (dpu, address) = lab.dpu();
    let registry = lab.registry()?;
    let server = Server::start(pierhead, &dpu.enter(), &address.to_string(), registry, "")?;
    let short = image.name();
    let short = short.strip_prefix("library/").unwrap_or(&short);
    machine.inside(|| server.warm(short, &[]))?;
    println!("\nmark: {PAPER} s from the pull to the process\n");
    println!(
        "| cold start of {short} | pull, ms | to its first word, ms | of 10, the slowest | by the mark |"
    );
    println!("|---|--:|--:|--:|--:|");
    let through = Pierhead {
        program: pierhead,
        address,
        image: &image.name(),
    };
    for runtime in [Runtime::Runc, Runtime::Chroot] {
        let Some(name) = runtime.name() else { continue };
        let mut all = Vec::new();
        machine.inside(|| {
            for _ in 0..starts {
                all.push(through.start(runtime)?);
            }
            Ok(())
        })?;
        row(&format!("`pierhead pull`, then {name}"), &all)?;
    }
    for (what, from) in [
        ("containerd through the warm pierhead", Some(address)),
        ("containerd, direct", None),
    ] {
        match Containerd::find() {
            Ok(_) => {
                let start = || containerd(&image.name(), from, registry, starts);
                row(what, &machine.inside(start)?)?;
            }
            Err(missing) => eprintln!("{what}: {missing}"),
        }
    }
    Ok(())
}

fn row(what: &str, all: &[Start]) -> Result<()> {
    let of = |figure: fn(&Start) -> f64| -> Vec<f64> { all.iter().map(figure).collect() };
    let ready = median(&mut of(|it| it.ready))?;
    println!(
        "| {what} | {:.0} | {:.0} | {:.0} | {:.2} × |",
        1e3 * median(&mut of(|it| it.pull))?,
        1e3 * ready,
        1e3 * percentile(&mut of(|it| it.ready), 90)?,
        ready / PAPER
    );
    Ok(())
}

/// The runtime that starts the process.
#[derive(Clone, Copy)]
enum Runtime {
    Runc,
    /// Without a container runtime: executes the program in its tree.
    Chroot,
}

impl Runtime {
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Runc => tool::find(&["runc"]).is_ok().then_some("runc"),
            Self::Chroot => Some("chroot"),
        }
    }
}

/// Cold starts by `pierhead pull`.
struct Pierhead<'a> {
    program: &'a Path,
    address: SocketAddr,
    image: &'a str,
}

impl Pierhead<'_> {
    fn start(&self, runtime: Runtime) -> Result<Start> {
        // runc requires a unique container ID on the machine.
        let folder = paths::scratch("start")?;
        let at = folder.path();
        let tree = at.join("rootfs");
        fs::write(at.join("config.json"), spec().to_string())?;
        let started_at = Instant::now();
        process::stdout(
            process::command(self.program)
                .args(["pull", &format!("docker.io/{}", self.image)])
                .args(["--via", &format!("http://{}", self.address)])
                .arg("--into")
                .arg(at.join("store"))
                .args(["--json", "--as", "rootfs", "--link", "hard", "--output"])
                .arg(&tree),
        )?;
        let pull = started_at.elapsed().as_secs_f64();
        let mut command = match runtime {
            Runtime::Runc => {
                let mut runc = Command::new("runc");
                runc.arg("--root").arg(at.join("state"));
                runc.args(["run", "--bundle"]).arg(at);
                runc.arg(at.file_name().context("a folder without a name")?);
                runc
            }
            Runtime::Chroot => {
                let mut chroot = Command::new("chroot");
                chroot.arg(&tree).arg(ENTRY);
                chroot
            }
        };
        let ready = first_word(&mut command, started_at)?;
        Ok(Start { pull, ready })
    }
}

/// A minimal runtime specification.
fn spec() -> serde_json::Value {
    json!({
        "ociVersion": "1.0.2",
        "process": { "args": [ENTRY], "cwd": "/", "user": { "uid": 0, "gid": 0 }, "noNewPrivileges": true },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
        "linux": { "namespaces": [
            { "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" }, { "type": "network" },
        ] },
    })
}

/// Seconds since `started_at` until the first output of the program. Waits for its exit with
/// success.
fn first_word(command: &mut Command, started_at: Instant) -> Result<f64> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.with_context(|| format!("{command:?}"))?;
    let mut said = vec![0; GREETING.len()];
    let heard = child
        .stdout
        .as_mut()
        .context("no pipe")?
        .read_exact(&mut said);
    let ready = started_at.elapsed().as_secs_f64();
    let output = child.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        heard.is_ok() && output.status.success() && said == GREETING.as_bytes(),
        "{command:?}: {error}"
    );
    Ok(ready)
}

/// Measures cold starts by containerd, through a pierhead or directly from the registry.
fn containerd(
    image: &str,
    through: Option<SocketAddr>,
    registry: SocketAddr,
    starts: usize,
) -> Result<Vec<Start>> {
    let containerd = match through {
        Some(address) => Containerd::with_mirror("docker.io", address)?,
        None => Containerd::with_mirror("docker.io", registry)?,
    };
    let name = format!("docker.io/{image}");
    let hosts: PathBuf = containerd.hosts().into();
    let mut all = Vec::new();
    for nth in 0..starts {
        containerd.empty()?;
        let started_at = Instant::now();
        let pull = ["images", "pull", "--hosts-dir"].map(str::to_owned);
        let pull = pull
            .into_iter()
            .chain([hosts.display().to_string(), name.clone()]);
        process::stdout(containerd.command().args(pull))?;
        let pull = started_at.elapsed().as_secs_f64();
        // All containerd daemons of a machine share the state folder of runc, so the container ID
        // must be unique.
        let id = format!("start-{}-{nth}", std::process::id());
        let mut run = containerd.command();
        run.args(["run", "--rm", &name, &id]);
        let ready = first_word(&mut run, started_at)?;
        all.push(Start { pull, ready });
    }
    Ok(all)
}
