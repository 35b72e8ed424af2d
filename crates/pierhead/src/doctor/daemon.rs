//! Checks of `pierhead doctor` on the running daemon: its version, its configuration and its
//! metrics.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Authority;
use pierhead_oci::units::human_bytes;

use pierhead_client_setup::Address;

use super::report::Finding;
use crate::admin::api::Stat;
use crate::cli::admin_client::{AdminClient, UnreachableListener};
use crate::config::{Config, Overrides};

/// Time limit of one request of `pierhead doctor` to the daemon, which is on the same host.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Uptime in seconds before which a daemon without any client request is normal.
const MIN_UPTIME_WITH_REQUESTS: u64 = 600;

/// The result of a query of the admin listener.
pub(crate) enum RunningDaemon {
    /// The configuration turns the admin listener off.
    Off,
    /// No process responds on the admin address, or another program responds.
    Unreachable { admin: SocketAddr, why: String },
    /// The daemon runs and has responded.
    Reachable {
        stat: Box<Stat>,
        metrics: Metrics,
        ready: bool,
        /// The configuration in effect, without secrets; `None` if an older version of the daemon
        /// does not report it.
        config: Option<String>,
    },
}

/// The fast tier of the running daemon.
pub(crate) struct ServedTier {
    /// Class of the medium (`pmem`, `emulated-file` or `volatile`); `None` without a fast tier.
    pub(crate) class: Option<String>,
    /// Number of corrupt blobs on the tier.
    pub(crate) damaged: f64,
    /// Whether the medium failed since the start.
    pub(crate) failed: bool,
}

impl RunningDaemon {
    /// The configuration file of the daemon.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Reachable { stat, .. } => stat.config.clone().map(PathBuf::from),
            _ => None,
        }
    }

    /// The configuration in effect, including flags of the command line, without secrets.
    pub(crate) fn config(&self) -> Option<&str> {
        match self {
            Self::Reachable { config, .. } => config.as_deref(),
            _ => None,
        }
    }

    /// Adds the daemon's `listen` and `data` to the overrides, unless the command line of `doctor`
    /// sets these keys.
    pub(crate) fn add_flags(&self, overrides: &mut Overrides) {
        let Self::Reachable { stat, .. } = self else {
            return;
        };
        if overrides.listen.is_empty() {
            let listen = stat.listen.iter().filter_map(|text| text.parse().ok());
            overrides.listen = listen.collect();
        }
        if overrides.data.is_none() {
            overrides.data = Some(PathBuf::from(&stat.data));
        }
    }

    /// Returns the bytes that the cache of the daemon uses on the disk.
    pub(crate) fn bytes_in_use(&self) -> Option<u64> {
        match self {
            Self::Reachable { stat, .. } => Some(stat.used.saturating_add(stat.reserved)),
            _ => None,
        }
    }

    /// Returns the fast tier in use, or `None` if the daemon does not run.
    pub(crate) fn tier(&self) -> Option<ServedTier> {
        let Self::Reachable { metrics, .. } = self else {
            return None;
        };
        let class = metrics
            .of("pierhead_cache_tier_info")
            .find_map(|(labels, _)| {
                let class = labels.strip_prefix("class=\"")?;
                class.strip_suffix('"').map(str::to_owned)
            });
        Some(ServedTier {
            class,
            damaged: metrics.sum("pierhead_cache_tier_damaged_total"),
            failed: metrics.sum("pierhead_cache_tier_failed") > 0.0,
        })
    }

    /// Returns the address at which clients on this host reach the daemon.
    pub(crate) fn address(&self) -> Option<Address> {
        match self {
            Self::Reachable { stat, .. } => stat.address(),
            _ => None,
        }
    }
}

/// Asks the admin listener of the daemon for its state.
pub(crate) async fn query(admin: Option<SocketAddr>) -> RunningDaemon {
    let Some(admin) = admin else {
        return RunningDaemon::Off;
    };
    let mut target = admin;
    if target.ip().is_unspecified() {
        target.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let Ok(authority) = target.to_string().parse::<Authority>() else {
        return RunningDaemon::Off;
    };
    let daemon = AdminClient::new(authority);
    let querying = async {
        let stat: Stat = daemon.get("/v1/stat").await?;
        let metrics = daemon.text("/metrics").await.unwrap_or_default();
        let ready = daemon.text("/readyz").await.is_ok();
        let config = daemon.text("/v1/config").await.ok();
        anyhow::Ok(RunningDaemon::Reachable {
            stat: Box::new(stat),
            metrics: Metrics::parse(&metrics),
            ready,
            config,
        })
    };
    match tokio::time::timeout(QUERY_TIMEOUT, querying).await {
        Ok(Ok(running)) => running,
        Ok(Err(error)) => RunningDaemon::Unreachable {
            admin,
            // The finding of this check already states that no daemon responds, so the reason is
            // omitted.
            why: match error.is::<UnreachableListener>() {
                true => String::new(),
                false => format!(": {error:#}"),
            },
        },
        Err(_) => RunningDaemon::Unreachable {
            admin,
            why: format!(": no response within {} s", QUERY_TIMEOUT.as_secs()),
        },
    }
}

/// Checks the state that the running daemon reports.
pub(crate) fn check(running: &RunningDaemon, config: &Config) -> Vec<Finding> {
    let (stat, metrics, ready) = match running {
        RunningDaemon::Off => {
            return vec![Finding::warn(
                "daemon",
                "the admin listener is off, so doctor cannot query the running pierhead",
                "set `admin = \"127.0.0.1:5001\"`",
            )];
        }
        RunningDaemon::Unreachable { admin, why } => {
            return vec![Finding::warn(
                "daemon",
                format!("no pierhead responds at http://{admin}{why}"),
                "start it: `systemctl start pierhead` or `pierhead serve`; or pass its admin address with --admin",
            )];
        }
        RunningDaemon::Reachable {
            stat,
            metrics,
            ready,
            ..
        } => (stat, metrics, *ready),
    };
    let own = env!("CARGO_PKG_VERSION");
    let up = humantime::format_duration(Duration::from_secs(stat.uptime_seconds));
    let mut findings = Vec::new();
    findings.push(if stat.version != own {
        Finding::warn(
            "daemon",
            format!(
                "the running version is {}, and this program is {own}",
                stat.version
            ),
            "restart it: `systemctl restart pierhead`",
        )
    } else if !ready {
        Finding::warn(
            "daemon",
            "it is shutting down",
            "start it again: `systemctl start pierhead`",
        )
    } else {
        Finding::ok(
            "daemon",
            format!("{own}, up {up}, {} of memory", human_bytes(stat.memory)),
        )
    });
    if stat.data != config.data.display().to_string() {
        findings.push(Finding::warn(
            "daemon",
            format!(
                "its data folder is {}, and this configuration has {}",
                stat.data,
                config.data.display()
            ),
            "pass its configuration file with --config, or restart it",
        ));
    }
    findings.extend(check_metrics(stat, metrics));
    findings
}

fn check_metrics(stat: &Stat, metrics: &Metrics) -> Vec<Finding> {
    let mut findings = Vec::new();
    let requests = metrics.sum("pierhead_proxy_requests_total");
    if requests > 0.0 {
        let hits = metrics.sum("pierhead_cache_hits_total");
        let misses = metrics.sum("pierhead_cache_misses_total");
        findings.push(Finding::ok(
            "traffic",
            format!("{requests} requests of clients; blobs: {hits} hits, {misses} misses"),
        ));
    } else if stat.uptime_seconds >= MIN_UPTIME_WITH_REQUESTS {
        findings.push(Finding::warn(
            "traffic",
            "no client has sent a request since the start",
            "see the clients below; `pierhead setup CLIENT` configures docker, containerd, podman or crio",
        ));
    }
    let eviction = &stat.eviction;
    let limit = eviction.daily_write_budget;
    if limit > 0 && eviction.written_today >= limit {
        findings.push(Finding::warn(
            "disk",
            format!(
                "the daily write budget of {} is used up: the cache stores no large blobs until 00:00 UTC",
                human_bytes(limit)
            ),
            "pulls still work; raise `cache.daily_write_budget`, or set it to \"0\" for no limit",
        ));
    }
    // Does not count corrupt blobs of the fast tier, which the check of the tier reports.
    let on_tier = metrics.sum("pierhead_cache_tier_corrupt_blobs_total");
    let corrupt = metrics.sum("pierhead_cache_corrupt_blobs_total") - on_tier;
    if corrupt > 0.0 {
        findings.push(Finding::fail(
            "disk",
            format!(
                "corrupt blobs on the disk since the start: {corrupt} (pierhead removed them, and fetches each at its next request)"
            ),
            "the disk or its controller returns wrong data: see `smartctl -a` and `dmesg`, then `pierhead cache verify`",
        ));
    }
    for (labels, state) in metrics.of("pierhead_remote_upstream_state") {
        // The metric is 0 for a healthy upstream, 1 for one that is being probed, and 2 for one
        // that is ejected. All registries without configuration share the series `other`.
        if labels.contains("upstream=\"other\"") || state < 1.0 {
            continue;
        }
        findings.push(Finding::warn(
            "upstreams",
            format!("the circuit breaker is open: pierhead sends no requests to {labels}"),
            "pierhead probes it again within seconds; the log has the cause",
        ));
    }
    for (labels, count) in metrics.of("pierhead_proxy_limited_total") {
        if count > 0.0 {
            findings.push(Finding::warn(
                "limits",
                format!("{count} requests exceeded the limit {labels}"),
                "raise the limit in [limits], or find the client with the many requests: docs/explanation/limits.md has the key of each limit",
            ));
        }
    }
    findings
}

/// Checks that the daemon accepts connections, or, if no daemon runs, that its addresses are free.
pub(crate) async fn ports(running: &RunningDaemon, config: &Config) -> Vec<Finding> {
    if let Some(address) = running.address() {
        let connecting = tokio::net::TcpStream::connect((address.host(), address.port()));
        return vec![
            match tokio::time::timeout(QUERY_TIMEOUT, connecting).await {
                Ok(Ok(_)) => Finding::ok("listen", format!("clients reach it at {address}")),
                Ok(Err(error)) => Finding::fail(
                    "listen",
                    format!("{address}: {error}"),
                    "see `listen`, and the firewall: `nft list ruleset`",
                ),
                Err(_) => Finding::fail(
                    "listen",
                    format!("{address} accepts no connection"),
                    "see the log: `journalctl -u pierhead`",
                ),
            },
        ];
    }
    let all = config.listen.iter().chain(&config.admin);
    all.filter(|address| address.port() != 0)
        .map(|address| match TcpListener::bind(address) {
            Ok(_) => Finding::ok("listen", format!("{address} is free")),
            Err(error) => {
                let fix = match error.kind() {
                    ErrorKind::AddrInUse => {
                        format!("`ss -ltnp sport = :{}` names the process that uses it; or set another address in `listen`", address.port())
                    }
                    ErrorKind::AddrNotAvailable => "no interface has this address: see `ip addr`".to_owned(),
                    ErrorKind::PermissionDenied => {
                        "ports below 1024 need root or CAP_NET_BIND_SERVICE".to_owned()
                    }
                    _ => "set another address in `listen`".to_owned(),
                };
                Finding::fail("listen", format!("{address}: {error}"), fix)
            }
        })
        .collect()
}

/// The values of metrics in OpenMetrics text, by name and labels.
#[derive(Debug, Default)]
pub(crate) struct Metrics(BTreeMap<String, Vec<(String, f64)>>);

impl Metrics {
    fn parse(text: &str) -> Self {
        let mut all = BTreeMap::<String, Vec<_>>::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let labels = labels.trim_end_matches('}').to_owned();
            all.entry(name.to_owned())
                .or_default()
                .push((labels, value));
        }
        Self(all)
    }

    fn of(&self, name: &str) -> impl Iterator<Item = (&str, f64)> {
        let values = self.0.get(name).into_iter().flatten();
        values.map(|(labels, value)| (labels.as_str(), *value))
    }

    fn sum(&self, name: &str) -> f64 {
        self.of(name).map(|(_, value)| value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat() -> Stat {
        serde_json::from_str(
            r#"{"version":"x","uptime_seconds":700,"listen":["0.0.0.0:5000"],"data":"/d","blobs":0,"used":0,
                "reserved":0,"capacity":0,"fills":0,"pinned":0,"memory":0}"#,
        )
        .expect("a document of an older version")
    }

    #[test]
    fn the_page_of_metrics_has_every_metric_that_doctor_reads() {
        let page = include_str!("../../../../docs/reference/metrics.md");
        let source = include_str!("daemon.rs");
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let names: Vec<_> = source
            .split('"')
            .filter(|text| text.starts_with("pierhead_"))
            .collect();
        assert!(names.len() >= 10, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn the_state_of_the_daemon_is_a_finding_with_its_fix() {
        let config = Config::with_data("/d".into());
        let reachable = |version: &str, data: &str, ready| {
            let mut stat = stat();
            stat.version = version.to_owned();
            stat.data = data.to_owned();
            RunningDaemon::Reachable {
                stat: Box::new(stat),
                metrics: Metrics::parse("pierhead_proxy_requests_total 1\n"),
                ready,
                config: None,
            }
        };
        let own = env!("CARGO_PKG_VERSION");
        let unreachable = |why: &str| RunningDaemon::Unreachable {
            admin: Config::DEFAULT_ADMIN,
            why: why.to_owned(),
        };
        for (running, what, fix) in [
            (
                RunningDaemon::Off,
                "the admin listener is off",
                Some("set `admin = "),
            ),
            (
                unreachable(""),
                "no pierhead responds at http://127.0.0.1:5001",
                Some("start it: "),
            ),
            (
                unreachable(": no response within 3 s"),
                "at http://127.0.0.1:5001: no response within 3 s",
                Some("start it: "),
            ),
            (
                reachable("0.0.1", "/d", true),
                "the running version is 0.0.1, and this program is ",
                Some("restart it: "),
            ),
            (
                reachable(own, "/d", false),
                "it is shutting down",
                Some("start it again: "),
            ),
            (
                reachable(own, "/d", true),
                "up 11m 40s, 0 B of memory",
                None,
            ),
        ] {
            let findings = check(&running, &config);
            let first = &findings[0];
            assert!(
                first.about == "daemon" && first.what.contains(what),
                "{first:?}"
            );
            assert_eq!(first.fix.is_some(), fix.is_some(), "{first:?}");
            let start = fix.unwrap_or_default();
            assert!(
                first.fix.as_deref().unwrap_or_default().starts_with(start),
                "{first:?}"
            );
            let is_other_data = findings.iter().any(|it| it.what.contains("data folder"));
            assert!(!is_other_data, "{findings:?}");
        }
        let findings = check(&reachable(own, "/elsewhere", true), &config);
        assert!(
            findings[1].what.contains("its data folder is /elsewhere"),
            "{findings:?}"
        );
    }

    #[tokio::test]
    async fn only_another_error_than_a_closed_port_has_a_reason() {
        let why = async |admin: SocketAddr| match query(Some(admin)).await {
            RunningDaemon::Unreachable { why, .. } => why,
            _ => panic!("no daemon runs"),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let admin = listener.local_addr().expect("an address");
        // Another program, which closes each connection.
        let program = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(stream);
            }
        });
        let other = why(admin).await;
        assert!(other.contains("does not respond with HTTP"), "{other}");
        program.abort();
        let _ = program.await;
        assert_eq!(why(admin).await, "");
    }

    #[tokio::test]
    async fn the_addresses_of_a_stopped_daemon_are_checked() {
        let used = TcpListener::bind("127.0.0.1:0").expect("a port");
        let used = (used.local_addr().expect("an address"), used);
        let mut config = Config::with_data("/d".into());
        config.admin = None;
        for (address, what, fix) in [
            ("127.0.0.1:0".to_owned(), "", ""),
            (used.0.to_string(), "in use", "`ss -ltnp sport = :"),
            // The address is in TEST-NET-1, a range for documentation, so no interface has it.
            (
                "192.0.2.1:5000".to_owned(),
                "192.0.2.1:5000: ",
                "no interface has this address",
            ),
        ] {
            config.listen = vec![address.parse().expect("an address")];
            let findings = ports(&RunningDaemon::Off, &config).await;
            if fix.is_empty() {
                assert_eq!(findings, [], "port 0 means any free port");
                continue;
            }
            let [finding] = findings.as_slice() else {
                panic!("{findings:?}");
            };
            assert!(finding.what.contains(what), "{finding:?}");
            assert!(
                finding.fix.as_deref().unwrap_or_default().starts_with(fix),
                "{finding:?}"
            );
        }
        // A running daemon whose port accepts no connection.
        let mut stat = stat();
        let mut running = |listen: Vec<String>| {
            stat.listen = listen;
            RunningDaemon::Reachable {
                stat: Box::new(serde_json::from_value(serde_json::json!(stat)).expect("a copy")),
                metrics: Metrics::default(),
                ready: true,
                config: None,
            }
        };
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let closed = closed.expect("an address").to_string();
        let findings = ports(&running(vec![closed]), &config).await;
        assert!(
            findings[0]
                .fix
                .as_deref()
                .is_some_and(|fix| fix.contains("nft")),
            "{findings:?}"
        );
        let findings = ports(&running(vec![used.0.to_string()]), &config).await;
        let reached = format!("clients reach it at http://{}", used.0);
        assert_eq!(findings, [Finding::ok("listen", reached)]);
    }

    #[test]
    fn an_exhausted_write_budget_is_a_finding() {
        let mut stat = stat();
        let is_reported = |stat: &Stat| {
            let findings = check_metrics(stat, &Metrics::default());
            findings.iter().any(|it| it.what.contains("used up"))
        };
        stat.eviction.written_today = 5;
        assert!(!is_reported(&stat), "no limit");
        stat.eviction.daily_write_budget = 6;
        assert!(!is_reported(&stat));
        stat.eviction.daily_write_budget = 5;
        assert!(is_reported(&stat));
    }

    #[test]
    fn corrupt_blobs_of_the_fast_tier_are_no_finding_of_the_disk() {
        let about = |text: &str| {
            let findings = check_metrics(&stat(), &Metrics::parse(text));
            let disk = findings.into_iter().find(|it| it.about == "disk");
            disk.map(|it| it.what)
        };
        let text =
            "pierhead_cache_corrupt_blobs_total 3\npierhead_cache_tier_corrupt_blobs_total 3\n";
        assert_eq!(about(text), None);
        let text =
            "pierhead_cache_corrupt_blobs_total 5\npierhead_cache_tier_corrupt_blobs_total 3\n";
        assert!(about(text).is_some_and(|what| what.contains("since the start: 2 (")));
        assert!(about("pierhead_cache_corrupt_blobs_total 1\n").is_some());
    }

    #[test]
    fn each_metric_with_a_problem_is_a_finding() {
        let without_requests = check_metrics(&stat(), &Metrics::parse(""));
        assert!(
            without_requests[0].what.contains("no client"),
            "{without_requests:?}"
        );
        let text = "# HELP x y\npierhead_proxy_requests_total{endpoint=\"blob\",cache=\"hit\"} 3\n\
                    pierhead_proxy_requests_total{endpoint=\"tags\"} 4\npierhead_cache_corrupt_blobs_total 1\n\
                    pierhead_remote_upstream_state{upstream=\"docker.io\",address=\"a\"} 2\n\
                    pierhead_remote_upstream_state{upstream=\"other\"} 7\n\
                    pierhead_proxy_limited_total{limit=\"bytes\"} 0\n# EOF\n";
        let findings = check_metrics(&stat(), &Metrics::parse(text));
        let about: Vec<_> = findings.iter().map(|it| it.about.as_str()).collect();
        assert_eq!(about, ["traffic", "disk", "upstreams"], "{findings:?}");
        assert!(findings[0].what.starts_with("7 requests"), "{findings:?}");
        assert!(findings[2].what.contains("docker.io"), "{findings:?}");
    }
}
