//! Benchmarks of delta bundles (downloads of only the file contents that a machine lacks): transfer
//! size, latency, memory, CPU, and provisioning time, compared with target values.

mod bytes;
mod load;
mod provision;
mod volume;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use tempfile::TempDir;

use crate::layout::Layout;
use crate::server::{self, Server};

/// Options of the bundle benchmarks.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    task: Task,
    /// An OCI image layout with several versions of its images. Without a layout, images of
    /// `--files` files are generated.
    #[arg(id = "images", long = "layout", global = true)]
    layout: Option<PathBuf>,
    /// Number of files in each generated image.
    #[arg(
        long,
        global = true,
        value_delimiter = ',',
        default_value = "5000,84000"
    )]
    files: Vec<u32>,
    /// Use only images whose names begin with this prefix.
    #[arg(id = "named", long = "only", global = true, value_delimiter = ',')]
    only: Vec<String>,
    /// Path of the pierhead binary to measure.
    #[arg(
        id = "server",
        long = "pierhead",
        global = true,
        default_value = "target/release/pierhead"
    )]
    pierhead: PathBuf,
    /// Configuration file for the server.
    #[arg(long, global = true)]
    config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Task {
    /// Measure the bytes of fresh pulls and updates, compared with compressed layers and ideal
    /// deltas.
    Bytes(bytes::Options),
    /// Measure the first byte of a prepared bundle, and the server's memory with concurrent
    /// requests.
    Load(load::Options),
    /// Measure the CPU of serving packed bundles, compared with nginx sending a file of the same
    /// size by sendfile.
    Serve(load::ServeOptions),
    /// Measure the time until the root file system is complete over an emulated link, compared with
    /// containerd (needs root).
    Provision(provision::Options),
}

/// The inputs of all bundle benchmarks.
struct Bench {
    layout: Layout,
    pierhead: PathBuf,
    config: String,
    only: Vec<String>,
    _made: Option<TempDir>,
}

/// Two consecutive versions of an image.
struct Pair {
    old: String,
    new: String,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let made = match &options.layout {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("bundle-bench").tempdir()?),
    };
    let config = match &options.config {
        Some(path) => std::fs::read_to_string(path)?,
        None => String::new(),
    };
    let layout = match (&options.layout, &made) {
        (Some(layout), _) => Layout::open(layout)?,
        (None, Some(made)) => {
            eprintln!("generating images …");
            Layout::generate(made.path(), &options.files)?
        }
        (None, None) => unreachable!("either a layout or generated files"),
    };
    let bench = Bench {
        layout,
        pierhead: options.pierhead.clone(),
        config,
        only: options.only.clone(),
        _made: made,
    };
    match &options.task {
        Task::Bytes(options) => bytes::run(&bench, options),
        Task::Load(options) => load::run(&bench, options),
        Task::Serve(options) => load::serve(&bench, options),
        Task::Provision(options) => provision::run(&bench, options),
    }
}

impl Bench {
    /// Starts a server on the loopback interface that pulls from the layout.
    fn server(&self) -> Result<Server> {
        let listener = std::net::TcpListener::bind(server::loopback())?;
        let upstream = listener.local_addr()?;
        self.layout.serve(listener);
        Server::start(&self.pierhead, &[], "127.0.0.1:0", upstream, &self.config)
    }

    /// Names of the selected images.
    fn names(&self) -> Vec<&str> {
        let wanted = |name: &&str| {
            self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only.as_str()))
        };
        self.layout.names().filter(wanted).collect()
    }

    /// All pairs of consecutive versions, ordered by the numbers in their tags.
    fn pairs(&self) -> Vec<Pair> {
        let mut names = self.names();
        names.sort_by_key(|name| numbers(name));
        let pairs = names.windows(2).filter(|pair| {
            let of = |name: &str| name.split(':').next().map(str::to_owned);
            of(pair[0]) == of(pair[1])
        });
        pairs
            .map(|pair| Pair {
                old: pair[0].to_owned(),
                new: pair[1].to_owned(),
            })
            .collect()
    }
}

/// The name and tag, split into text and numbers, so that `u9` sorts before `u10`, and `1` before
/// `1-u1`.
fn numbers(name: &str) -> (String, Vec<(u64, String)>) {
    let (repository, tag) = name.split_once(':').unwrap_or((name, ""));
    let mut parts = Vec::new();
    for part in tag.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        parts.push((digits.parse().unwrap_or(0), part[digits.len()..].to_owned()));
    }
    (repository.to_owned(), parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_by_their_numbers() {
        for (older, newer) in [
            ("redis:7.0.15-u7", "redis:7.0.15-u10"),
            ("redis:7.0.15-u10", "redis:8.0.2"),
            ("memcached:1.6.18", "memcached:1.6.18-u1"),
            ("node:18-express4.18", "node:18-express4.21"),
            ("app:v1", "app:v2"),
        ] {
            assert!(numbers(older) < numbers(newer), "{older} {newer}");
        }
    }
}
