//! Parameters of generated registry workloads, with the study behind each default.

/// The parameters of a workload. [`WorkloadParameters::default`] reproduces the following
/// statistics, which tests check.
///
/// | statistic | target | source |
/// |---|---|---|
/// | layers below 1 MB, below 10 MB | 65 %, 80 % | FAST '18 |
/// | GETs of 1 MB or more | 13 % | FAST '18 |
/// | GETs of layers that go to the 1 % most wanted layers | 42 % | FAST '18 |
/// | layers of an image: median, 90th percentile | 8, 18 | CLUSTER '19 |
/// | images with the empty layer | 52 % | CLUSTER '19 |
///
/// FAST '18: Anwar et al., "Improving Docker registry design based on production workload analysis"
/// (five data centers, 75 days). CLUSTER '19: Zhao et al., "Large-scale analysis of the Docker Hub
/// dataset" (355 000 images). Some facts are in neither study: how many nodes use one cache, how
/// much each node stores, and how often a project releases. The parameters for these facts are
/// fitted, so that the statistics above are reached, and so that LRU, SIEVE, S3-FIFO and GDSF miss
/// about as often as in published replays of registry traces. The words "assumed" and "fitted" mark
/// such parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadParameters {
    /// Number of requests of the workload.
    pub requests: u64,
    /// Number of repositories. The number is an assumption, for one site and not for a public
    /// registry.
    pub repositories: usize,
    /// Exponent of the Zipf law of the demand for repositories. In the studies, a few repositories
    /// dominate. Fitted to the 42 % in the table above.
    pub skew: f64,
    /// Number of Linux distributions, whose root file systems are the lowest layers that images
    /// share. Language runtimes build on these layers.
    pub distributions: usize,
    /// Number of language runtimes, which build on the distributions.
    pub runtimes: usize,
    /// Mean number of days between two releases of a base image. Distributions publish monthly.
    pub base_days: f64,
    /// Range of the mean number of days between two releases of a repository. Values in the range
    /// are log-uniform. The value is assumed.
    pub release_days: (f64, f64),
    /// Mean number of upper layers that a release changes in addition to the first upper layer.
    /// The value is assumed.
    pub changed_layers: f64,
    /// Number of available versions of a repository. A release deletes the oldest version.
    pub versions: usize,
    /// Share of pulls that request an older version than the newest. Each older version is half as
    /// likely as the next newer version.
    pub pinned: f64,
    /// Range of the number of a repository's own layers. Values in the range are log-uniform. Its
    /// base image adds two to seven layers.
    pub own_layers: (usize, usize),
    /// Share of an image's own layers that are the empty layer of 32 bytes.
    pub empty: f64,
    /// Sizes of layers as a list of rising points (share of layers of at most this size, size in
    /// bytes). The points are the 65 % and 80 % of the FAST '18 study; the other points follow the
    /// CLUSTER '19 study, in which 90 % of the layers are below 63 MB.
    pub layer_bytes: Vec<(f64, f64)>,
    /// Range of the size of a distribution's lowest layer in bytes: a whole root file system.
    pub root_bytes: (f64, f64),
    /// Range of the size of a manifest in bytes: some kilobytes (FAST '18).
    pub manifest_bytes: (f64, f64),
    /// Range of the size of a config in bytes.
    pub config_bytes: (f64, f64),
    /// Number of nodes behind the cache, each with its own store. The value is assumed.
    pub nodes: usize,
    /// Geometric mean of the size of a node's store in bytes. The value is assumed.
    pub node_bytes: f64,
    /// Share of pulls by nodes with an empty store, such as new nodes and build runners.
    pub fresh: f64,
    /// The exponent as in [`WorkloadParameters::skew`], but for pulls by nodes with an empty store.
    /// Such nodes pull few different images. The value is fitted.
    pub fresh_skew: f64,
    /// Number of pulls per working day, without the pulls of rollouts. FAST '18 covers 75 days.
    pub pulls_a_day: f64,
    /// Number of nodes that run the most popular repository and pull it. When a release is rolled
    /// out, all these nodes pull it, one every [`WorkloadParameters::rollout_seconds`] on average:
    /// these are the bursts of the workload.
    pub homes: f64,
    /// Exponent by which the number of nodes of every other repository follows from its share of
    /// the demand. Each repository has at least one node. The value is fitted.
    pub homes_follow: f64,
    /// Mean number of seconds between the pulls of two nodes during a rollout.
    pub rollout_seconds: f64,
    /// Amplitude of the daily variation of the demand, 0 to 1: highest at 15 h, lowest at 3 h.
    pub diurnal: f64,
    /// Demand on the sixth and the seventh day of the week, as a fraction of the demand on the
    /// other days.
    pub weekend: f64,
}

/// The error of a parameter that is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter} of a synthetic workload must be {allowed}")]
#[non_exhaustive]
pub struct ParameterOutOfRange {
    /// Name of the parameter that is out of its range.
    pub parameter: &'static str,
    /// The allowed range of the parameter.
    pub allowed: &'static str,
}

impl Default for WorkloadParameters {
    fn default() -> Self {
        Self {
            requests: 800_000,
            repositories: 2000,
            skew: 0.95,
            distributions: 12,
            runtimes: 40,
            base_days: 60.0,
            release_days: (1.0, 60.0),
            changed_layers: 0.3,
            versions: 8,
            pinned: 0.45,
            own_layers: (1, 18),
            empty: 0.1,
            layer_bytes: vec![
                (0.0, 90.0),
                (0.05, 150.0),
                (0.25, 1e3),
                (0.5, 20e3),
                (0.65, 1e6),
                (0.80, 10e6),
                (0.90, 35e6),
                (0.99, 200e6),
                (0.999, 800e6),
                (1.0, 3e9),
            ],
            root_bytes: (10e6, 80e6),
            manifest_bytes: (400.0, 6e3),
            config_bytes: (800.0, 15e3),
            nodes: 140,
            node_bytes: 20e9,
            fresh: 0.05,
            fresh_skew: 1.15,
            pulls_a_day: 9_000.0,
            homes: 140.0,
            homes_follow: 0.55,
            rollout_seconds: 120.0,
            diurnal: 0.6,
            weekend: 0.5,
        }
    }
}

impl WorkloadParameters {
    /// Checks that each parameter is in its range.
    ///
    /// # Errors
    /// [`ParameterOutOfRange`] with the first parameter that is out of its range.
    pub fn check(&self) -> Result<(), ParameterOutOfRange> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let range = |(low, high): (f64, f64)| positive(low) && low <= high && high.is_finite();
        let rising = self.layer_bytes.len() >= 2
            && self
                .layer_bytes
                .is_sorted_by(|one, two| one.0 < two.0 && one.1 <= two.1)
            && self
                .layer_bytes
                .iter()
                .all(|(at, bytes)| share(*at) && (1.0..=2e12).contains(bytes));
        let at_least_one = "at least 1 and at most 1000000";
        let count = |value: usize| (1..=1_000_000).contains(&value);
        for (fits, parameter, allowed) in [
            (count(self.repositories), "repositories", at_least_one),
            (count(self.distributions), "distributions", at_least_one),
            (count(self.runtimes), "runtimes", at_least_one),
            (count(self.versions), "versions", at_least_one),
            (count(self.nodes), "nodes", at_least_one),
            (
                count(self.own_layers.0)
                    && self.own_layers.0 <= self.own_layers.1
                    && self.own_layers.1 <= 127,
                "own_layers",
                "from 1 to 127, the smaller first",
            ),
            ((0.0..=5.0).contains(&self.skew), "skew", "from 0 to 5"),
            (
                (0.0..=5.0).contains(&self.fresh_skew),
                "fresh_skew",
                "from 0 to 5",
            ),
            (positive(self.base_days), "base_days", "above 0"),
            (
                range(self.release_days),
                "release_days",
                "above 0, the smaller first",
            ),
            (
                (0.0..=127.0).contains(&self.changed_layers),
                "changed_layers",
                "from 0 to 127",
            ),
            (share(self.pinned), "pinned", "a share from 0 to 1"),
            (share(self.empty), "empty", "a share from 0 to 1"),
            (share(self.fresh), "fresh", "a share from 0 to 1"),
            (share(self.diurnal), "diurnal", "a share from 0 to 1"),
            (
                positive(self.weekend) && share(self.weekend),
                "weekend",
                "a share above 0 and to 1",
            ),
            (
                rising,
                "layer_bytes",
                "two or more points with rising shares from 0 to 1 and sizes from 1 to 2e12",
            ),
            (
                range(self.root_bytes),
                "root_bytes",
                "above 0, the smaller first",
            ),
            (
                range(self.manifest_bytes),
                "manifest_bytes",
                "above 0, the smaller first",
            ),
            (
                range(self.config_bytes),
                "config_bytes",
                "above 0, the smaller first",
            ),
            (positive(self.node_bytes), "node_bytes", "above 0"),
            (positive(self.pulls_a_day), "pulls_a_day", "above 0"),
            (
                (0.0..=1e6).contains(&self.homes),
                "homes",
                "from 0 to 1000000",
            ),
            (positive(self.rollout_seconds), "rollout_seconds", "above 0"),
        ] {
            if !fits {
                return Err(ParameterOutOfRange { parameter, allowed });
            }
        }
        Ok(())
    }
}
