//! The command line, and the help that teaches it.

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

Formats (found by what a file holds; --format overrides; zstd, gzip or neither):
  oracle-general    libCacheSim's records of 24 bytes
  csv               columns called time, key, size, and perhaps cost (seconds) and shared;
                    or --csv
  ibm-registry      the registry log of the FAST '18 study: successful GETs; a key is a
                    blob's hash
  ibm-object-store  the object store log of the HotStorage '20 study: GETs, each of a whole
                    object
  pierhead          what pierhead serve records
  nginx             nginx's log in its `combined` format; with $request_time behind it, that is
                    the cost
  distribution      the log of CNCF distribution (docker.io/library/registry), as text or JSON
In an access log a request is a successful GET of a whole blob. A blob costs the longest time
that one of its requests took, since others may have been answered from a cache.

Rules for what a trace should not hold:
  size zero         left out, as libCacheSim does
  above the cache   goes past it: a miss each time, nothing is evicted for it
  time runs back    taken to be as late as the latest before
  cut at its end    an error; with --cut-ok what is whole of it is replayed
  unreadable        an error with the file, the line or record, and the fix
What was left out or changed is said at the end.

Policies: the daemon offers lru, s3-fifo, gdsf, cherry, size-split and learned. The simulator
also has fifo, lfu, sieve, arc, w-tinylfu and lhd, and belady and belady-size, which know the
future. A size in % is of the footprint: the bytes of all different objects.
The cost of a miss is what the trace says, or else 0.44 s and 0.94 s a megabyte.
The verdict names, for each size, the policy of the daemon with the least client waiting time, and
how much less that is than with --current.
requests/s is of one core when --jobs is not above the cores that are free.";

/// Sends traces of requests through simulated caches, to see which eviction policy would miss the least.
///
/// The traces come from the request log of pierhead, from the access log of another registry or proxy,
/// from other simulators, or are made up. No cache is touched and nothing is fetched.
#[derive(Parser)]
#[command(name = "pierhead-replay", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Print results, warnings and errors only: no progress and no notes
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Files to replay, each on its own
    #[arg(long, required_unless_present = "synthetic", num_args = 1.., value_name = "FILE")]
    pub(crate) trace: Vec<PathBuf>,

    /// Replay a made up registry workload instead, one for each --seed
    #[arg(long, conflicts_with_all = ["trace", "format", "csv", "join", "cut_ok"])]
    pub(crate) synthetic: bool,

    /// Requests of a synthetic workload; 800000 unless told
    #[arg(long, value_name = "N", requires = "synthetic", conflicts_with = "trace", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// The files are parts of one trace, in this order
    #[arg(long)]
    pub(crate) join: bool,

    /// Policies, or "all"
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "all", value_parser = parse_policies)]
    pub(crate) policy: Vec<Policies>,

    /// The policy that the verdict compares with
    #[arg(long, value_name = "POLICY", default_value_t = SimulatedPolicy::OfDaemon(PolicyName::DEFAULT))]
    pub(crate) current: SimulatedPolicy,

    /// Sizes of the cache: bytes such as 4GiB, or a share of the footprint such as 0.1%
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "0.1%,1%,10%"
    )]
    pub(crate) size: Vec<CacheSize>,

    /// Who enters: always, second-hit, size-aware or tinylfu
    #[arg(long, value_name = "ADMISSION", default_value_t)]
    pub(crate) admission: AdmissionName,

    /// The format of the files
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,

    /// Where a CSV has what: numbers from 0 or names, such as time=0,key=1,size=2
    #[arg(long, value_name = "COLUMNS")]
    pub(crate) csv: Option<Columns>,

    /// Replay what is whole of a trace that is cut
    #[arg(long)]
    pub(crate) cut_ok: bool,

    /// Whose parameters: those that pierhead chose, or those of libCacheSim 0.3.5
    #[arg(long, value_enum, default_value_t = Rules::Pierhead)]
    pub(crate) rules: Rules,

    /// Where lots are drawn from, by policies and synthetic workloads; several replay several times
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(crate) seed: Vec<u64>,

    /// Replays at once; as many as there are cores unless told
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<NonZeroUsize>,

    /// Print {"rows": [...], "traces": [...]}
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw the miss ratios over the sizes into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Write the trace as oracle-general, for other simulators
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,

    /// Save each policy's state at the end, as FOLDER/POLICY-BYTES.state (none that knows the future)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) save_state: Option<PathBuf>,

    /// Begin with the states saved in FOLDER instead of an empty cache
    #[arg(long, value_name = "FOLDER")]
    pub(crate) restore_state: Option<PathBuf>,
}

/// What one word of `--policy` stands for.
pub(crate) type Policies = std::sync::Arc<[SimulatedPolicy]>;

fn parse_policies(word: &str) -> Result<Policies, String> {
    if word == "all" {
        return Ok(SimulatedPolicy::all().collect());
    }
    let policy = word.parse::<SimulatedPolicy>();
    policy.map(|it| [it].into()).map_err(|it| it.to_string())
}

/// Whose parameters the policies have.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rules {
    /// The defaults of `pierhead serve`
    Pierhead,
    /// Those of libCacheSim, to compare with it
    Libcachesim,
}

impl From<Rules> for ParameterSet {
    fn from(rules: Rules) -> Self {
        match rules {
            Rules::Pierhead => Self::Pierhead,
            Rules::Libcachesim => Self::Libcachesim,
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

    /// `cargo xtask docs --write` runs this test with `PIERHEAD_WRITE_DOCS=1`, which writes the page.
    #[test]
    fn the_page_of_the_reference_is_current() {
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
             `pierhead-replay --help` prints the same. [eviction.md](../explanation/eviction.md#measuring) explains how to use it.\n\n\
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
