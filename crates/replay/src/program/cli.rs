//! The command line of `pierhead-replay` and its help text.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use pierhead_eviction::{AdmissionName, PolicyName};
use pierhead_replay::SimulatedPolicy;
use pierhead_replay::policy::ParameterSet;
use pierhead_replay::trace::Format;
use pierhead_replay::trace::csv::Columns;

use super::CacheSize;

const EXAMPLES: &str = "\
Examples:
  pierhead-replay --trace pulls.oracleGeneral.bin.zst
  pierhead-replay --trace pulls.csv.gz --policy lru,s3-fifo,belady --size 1%,10%,4GiB
  pierhead-replay --trace log.csv --csv time=0,key=3,size=2 --json | jq .rows
  pierhead-replay --trace day1.trace day2.trace --join --svg misses.svg
  pierhead-replay --synthetic --seed 1,2,3 --policy lru,size-split --size 1%,10%
  pierhead-replay --trace monday.trace --size 4GiB --save-state states
  pierhead-replay --trace access.log --current lru --size 50GiB
  pierhead-replay --trace tuesday.trace --size 4GiB --restore-state states

Formats (detected from the file; --format overrides; files may be packed by zstd or gzip):
  oracle-general    libCacheSim's records of 24 bytes
  csv               columns time, key, size, optionally cost (seconds) and shared (number
                    of images that contain the object); other columns with --csv
  ibm-registry      the registry log of the FAST '18 study: successful GETs; the key is a
                    blob's hash
  ibm-object-store  the object store log of the HotStorage '20 study: GETs, each of a whole
                    object
  pierhead          the request log of pierhead serve
  nginx             nginx's log in its `combined` format; a field $request_time after this format
                    is the cost
  distribution      the log of CNCF distribution (docker.io/library/registry), as text or JSON
In an access log, a request is a successful GET of a whole blob. The cost of a blob is the
longest duration of its requests, since shorter ones may be cache hits.

Unusual requests:
  size zero         left out, as in libCacheSim
  too large         above the cache size: not stored, a miss each time; evicts nothing
  time decreases    replaced by the latest time before
  truncated file    an error; with --cut-ok the complete requests are replayed
  unreadable        an error with the file, the line or record, and the fix
Numbers of skipped and changed requests are printed at the end.

Policies: the daemon offers lru, s3-fifo, gdsf, cherry, size-split and learned. The simulator
also has fifo, lfu, sieve, arc, w-tinylfu and lhd, and belady and belady-size, which know the
future. A size in % is of the footprint: the bytes of all different objects.
The cost of a miss is that of the trace, or else 0.44 s plus 0.94 s per megabyte.
For each size, the verdict names the policy of the daemon with the least client waiting time, and
how much less clients wait than with --current.
requests/s is per core, as long as --jobs is at most the number of idle cores.";

/// Compares eviction policies: replays request traces on simulated caches and reports hits and
/// client waiting time.
///
/// Sources of traces: the request log of pierhead, access logs of other registries and proxies,
/// files of other simulators, and generated workloads. The program touches no real cache and
/// fetches nothing.
#[derive(Parser)]
#[command(name = "pierhead-replay", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Print only results, warnings and errors, without progress and notes
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Trace files to replay; each file is a separate trace unless --join is given
    #[arg(long, required_unless_present = "synthetic", num_args = 1.., value_name = "FILE")]
    pub(crate) trace: Vec<PathBuf>,

    /// Replay generated registry workloads, one per --seed, instead of trace files
    #[arg(long, conflicts_with_all = ["trace", "format", "csv", "join", "cut_ok"])]
    pub(crate) synthetic: bool,

    /// Number of requests of a generated workload (default: 800000)
    #[arg(long, value_name = "N", requires = "synthetic", conflicts_with = "trace", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// Join all trace files to one trace, in the order of the command line
    #[arg(long)]
    pub(crate) join: bool,

    /// Policies to simulate, or "all"
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "all", value_parser = parse_policies)]
    pub(crate) policy: Vec<Policies>,

    /// The policy that the cache uses now, with which the verdict compares other policies
    #[arg(long, value_name = "POLICY", default_value_t = SimulatedPolicy::OfDaemon(PolicyName::DEFAULT))]
    pub(crate) current: SimulatedPolicy,

    /// Cache sizes: bytes such as 4GiB, or a share of the size of all distinct objects in the
    /// trace, such as 0.1%
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "0.1%,1%,10%"
    )]
    pub(crate) size: Vec<CacheSize>,

    /// Admission filter, which decides what may enter the cache: always, second-hit, size-aware or
    /// tinylfu
    #[arg(long, value_name = "ADMISSION", default_value_t)]
    pub(crate) admission: AdmissionName,

    /// Format of the trace files (default: detected from the files)
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,

    /// Columns of CSV files, as numbers from 0 or names, such as time=0,key=1,size=2
    #[arg(long, value_name = "COLUMNS")]
    pub(crate) csv: Option<Columns>,

    /// If a trace file is truncated, replay its complete requests instead of failing
    #[arg(long)]
    pub(crate) cut_ok: bool,

    /// Set of policy parameters: the defaults of pierhead, or the parameters of libCacheSim 0.3.5
    #[arg(long, value_enum, default_value_t = Parameters::Pierhead)]
    pub(crate) parameters: Parameters,

    /// Seeds for the random numbers of policies and generated workloads; each seed causes one
    /// replay
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(crate) seed: Vec<u64>,

    /// Number of parallel replays (default: number of cores)
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<NonZeroUsize>,

    /// Print one JSON object instead of text: {"rows": [...], "traces": [...], "verdicts": [...]}
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw the miss ratios at all cache sizes into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Write the trace to this file in the format oracle-general, which other simulators read
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,

    /// At the end, save the state of each policy to FOLDER/POLICY-BYTES.state (except policies that
    /// know the future)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) save_state: Option<PathBuf>,

    /// Start with the policy states in FOLDER, instead of empty caches
    #[arg(long, value_name = "FOLDER")]
    pub(crate) restore_state: Option<PathBuf>,
}

/// The policies of one value of `--policy`.
pub(crate) type Policies = std::sync::Arc<[SimulatedPolicy]>;

fn parse_policies(word: &str) -> Result<Policies, String> {
    if word == "all" {
        return Ok(SimulatedPolicy::all().collect());
    }
    let policy = word.parse::<SimulatedPolicy>();
    policy.map(|it| [it].into()).map_err(|it| it.to_string())
}

/// A set of parameters for all policies.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Parameters {
    /// The defaults of `pierhead serve`
    Pierhead,
    /// The parameters of libCacheSim 0.3.5, for comparisons with its results
    Libcachesim,
}

impl From<Parameters> for ParameterSet {
    fn from(parameters: Parameters) -> Self {
        match parameters {
            Parameters::Pierhead => Self::Pierhead,
            Parameters::Libcachesim => Self::Libcachesim,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    /// `cargo xtask docs --write` runs this test with `PIERHEAD_WRITE_DOCS=1`, which writes the
    /// page.
    #[test]
    fn the_reference_page_is_current() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/replay.md"
        );
        let help = super::Cli::command().term_width(100).render_long_help();
        let help: Vec<String> = help
            .to_string()
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        let page = format!(
            "# The eviction simulator\n\n\
             `pierhead-replay --help` prints this text.\n\
             [eviction.md](../explanation/eviction.md#measuring) explains how to use the program.\n\n\
             <!-- Generated from the code by `cargo xtask docs --write`. Edit the code instead. -->\n\n\
             ```text\n{}\n```\n",
            help.join("\n").trim_end()
        );
        if fs::read_to_string(path).is_ok_and(|found| found == page) {
            return;
        }
        if std::env::var_os("PIERHEAD_WRITE_DOCS").is_some() {
            fs::write(path, page).expect("the page is writable");
            return;
        }
        panic!("docs/reference/replay.md is not current: run `cargo xtask docs --write`");
    }
}
