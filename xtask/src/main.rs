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
mod paths;
mod pmem_vm;
mod systemd_vm;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Developer commands of pierhead: checks, releases, test machines.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run all checks of the repository, as CI does
    ///
    /// As root on Debian it installs missing tools and prints their names. If a step fails, all
    /// other steps still run. With CI=true, a step that cannot run fails.
    Test(check::Options),
    /// Install the tools that the checks need
    Install,
    /// Build the image corpus that tests pull, as an OCI image layout
    Corpus {
        /// Write the layout into this folder instead of target/corpus
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Build the corpus even if it exists, from the current packages
        #[arg(long)]
        anew: bool,
    },
    /// Check that the charts' READMEs and schemas match their values and the configuration keys
    Chart(chart::Options),
    /// Check that the generated pages of docs/reference match the code
    Docs {
        /// Write the pages instead of checking them
        #[arg(long)]
        write: bool,
    },
    /// Build a release: programs, container image, Debian packages, checksums and bills of
    /// materials
    ///
    /// For x86-64 and aarch64, with glibc 2.31 and later; zig is the linker. No container daemon is
    /// needed. Two builds from the same programs and Debian packages have the same bytes.
    Dist(dist::Options),
    /// Replay every eviction policy and print the tables of docs/explanation/eviction.md (needs a
    /// release build)
    EvictionTable(eviction::Options),
    /// Install, upgrade and remove the charts in a real Kubernetes control plane, or run CMD
    /// against it
    ///
    /// etcd comes from Debian. kube-apiserver, kube-controller-manager, kube-scheduler and kubectl
    /// 1.34 are built once from their Go modules, in eight minutes on two cores. kwok simulates the
    /// nodes. All servers listen on the loopback interface and end with the command. `cargo xtask
    /// test` does not run this command: CI, with its limit of 40 minutes, validates the charts
    /// against the offline schemas of kubernetes-validate instead (step `chart`).
    K8s(k8s::Options),
    /// Boot a temporary virtual machine with an emulated NVDIMM, and run the test suite or CMD in
    /// it
    ///
    /// The suite has three boots: the first boot tests media and crates/pmem; the second boot reads
    /// the data that the first boot wrote, writes more and is killed; the third boot reads every
    /// commit of the second boot. CMD runs in the guest with `PIERHEAD_PMEM_DIR`, a folder on
    /// persistent memory where `MAP_SYNC` works. The exit status of CMD is returned. The kernel is
    /// downloaded from Debian once and cached.
    PmemVm(pmem_vm::Options),
    /// Boot a simulated DPU with pierhead, and run the test suite or CMD in it
    ///
    /// QEMU emulates eight Cortex-A72 cores and 4 GiB. In the suite, this machine pulls through the
    /// DPU and from its cache, after a restart and after a power cut. CMD runs in the guest, which
    /// has busybox and pierhead. The exit status of CMD is returned. The kernel is downloaded from
    /// Debian once and cached.
    DpuVm(dpu_vm::Options),
    /// Boot this machine's systemd in a virtual machine with pierhead's package, and run the test
    /// suite or CMD in it
    ///
    /// The suite installs the package, starts it with its data on a separate disk, checks its
    /// sandbox, pulls through it, kills and hangs it, gives it an invalid configuration, upgrades
    /// and purges it. The guest sees this machine's root read-only. The kernel is downloaded from
    /// Debian once and cached.
    SystemdVm(systemd_vm::Options),
    /// Run each fuzz target for a minute (needs nightly Rust and cargo-fuzz)
    Fuzz {
        /// Run only targets whose names contain this text
        #[arg(default_value = "")]
        filter: String,
        /// Seconds per target
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
}

fn main() -> ExitCode {
    let exit_code = |it: bool| ExitCode::from(u8::from(!it));
    let result = match Arguments::parse().task {
        Task::Test(options) => check::run(&options).map(exit_code),
        Task::Install => {
            install::all(install::OptionalTools { machine: true }).map(|()| ExitCode::SUCCESS)
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
            corpus::build(&out.unwrap_or_else(paths::corpus), anew).map(|()| ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
