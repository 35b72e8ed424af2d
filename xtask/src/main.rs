//! `cargo xtask …`: the developer commands of this repository.

#![forbid(unsafe_code)]

mod apt;
mod chart;
mod check;
mod console;
mod corpus;
mod dist;
mod docs;
mod dpu_vm;
mod eviction;
mod exec;
mod fuzz;
mod guest;
mod image;
mod install;
mod k8s;
mod place;
mod pmem_vm;
mod systemd_vm;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Develop pierhead: check it, and build what the checks need.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check there is: what CI runs.
    ///
    /// As root on Debian it installs what is missing, and says what. A step that fails does not
    /// keep the others from running. With CI=true, a step that cannot run fails.
    Test(check::Options),
    /// Install what the checks need, and nothing else.
    Install,
    /// Build the images that tests pull, as an OCI image layout.
    Corpus {
        /// Where to put the layout, instead of `corpus` in the build folder.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Build even if it is there, from the packages of today.
        #[arg(long)]
        anew: bool,
    },
    /// Say whether the charts' READMEs and schemas are what their values and the configuration make them.
    Chart(chart::Options),
    /// Say whether the generated pages of docs/reference are current, or write them.
    Docs {
        /// Write them.
        #[arg(long)]
        write: bool,
    },
    /// Build what is released: programs, a container image, Debian packages, checksums and bills of materials.
    ///
    /// For x86-64 and aarch64, for glibc 2.31 and later: zig links them. Everything but the programs is put together
    /// here, without a daemon; the same programs and packages of Debian give the same bytes.
    Dist(dist::Options),
    /// Replay every eviction policy and print the tables of docs/explanation/eviction.md (needs a release build).
    EvictionTable(eviction::Options),
    /// Install, upgrade and remove the charts in a real Kubernetes control plane, or run CMD against it.
    ///
    /// etcd is Debian's; kube-apiserver, kube-controller-manager, kube-scheduler and kubectl 1.34 are built
    /// from their Go modules, which takes eight minutes of two cores, once; kwok plays the nodes. Everything listens
    /// on the loopback, and is gone at the end. It is no part of `cargo xtask test`: CI, which has 40 minutes, holds
    /// the charts against the offline schemas of PyPI's kubernetes-validate instead (step `chart`).
    K8s(k8s::Options),
    /// Boot a throw-away virtual machine with an emulated NVDIMM, and run the suite or CMD in it.
    ///
    /// The suite: classes of media and the tests of crates/pmem, then a boot that finds what the first
    /// wrote and is killed over more, then one that finds every commit of that. For CMD in the guest
    /// `PIERHEAD_PMEM_DIR` names a folder on persistent memory, where `MAP_SYNC` works.
    /// CMD's exit status is passed through. A kernel is fetched from Debian once, and kept.
    PmemVm(pmem_vm::Options),
    /// Boot a whole simulated DPU with pierhead on it, and run the suite, or CMD in it.
    ///
    /// QEMU emulates eight Cortex-A72 and 4 GiB. The suite: this machine pulls through it, from its cache, after a
    /// restart and after a power cut. CMD runs in the guest, which has busybox and pierhead; its exit status is passed
    /// through. A kernel is fetched from Debian once, and kept.
    DpuVm(dpu_vm::Options),
    /// Boot this machine's systemd in a virtual machine with pierhead's package in it, and run the suite, or CMD.
    ///
    /// The suite: installed, started with its data on a disk of its own, confined, pulled through, killed, hung, given a
    /// mistake, upgraded and purged. The guest sees this machine's root and writes none of it. A kernel is
    /// fetched from Debian once, and kept.
    SystemdVm(systemd_vm::Options),
    /// Run the fuzz targets, each for a minute (needs nightly Rust and cargo-fuzz).
    Fuzz {
        /// Only targets whose names contain this.
        #[arg(default_value = "")]
        filter: String,
        /// Seconds for each target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
}

fn main() -> ExitCode {
    let holds = |it: bool| ExitCode::from(u8::from(!it));
    let result = match Arguments::parse().task {
        Task::Test(options) => check::run(&options).map(holds),
        Task::Install => {
            install::all(install::Wanted { machine: true }).map(|()| ExitCode::SUCCESS)
        }
        Task::Chart(options) => chart::run(&options).map(|()| ExitCode::SUCCESS),
        Task::Docs { write } => docs::run(write).map(|()| ExitCode::SUCCESS),
        Task::Dist(options) => dist::run(&options).map(|()| ExitCode::SUCCESS),
        Task::EvictionTable(options) => eviction::run(&options).map(|()| ExitCode::SUCCESS),
        Task::K8s(options) => k8s::run(&options),
        Task::PmemVm(options) => pmem_vm::run(&options),
        Task::DpuVm(options) => dpu_vm::run(&options),
        Task::SystemdVm(options) => systemd_vm::run(&options),
        Task::Fuzz { filter, seconds } => fuzz::run(&filter, seconds).map(|()| ExitCode::SUCCESS),
        Task::Corpus { out, anew } => {
            corpus::build(&out.unwrap_or_else(place::corpus), anew).map(|()| ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
