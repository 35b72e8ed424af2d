//! The running daemon: whether there is one, of which version, with which configuration, and how it fares.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Authority;
use pierhead_oci::units::human_bytes;

use pierhead_client_setup::Address;

use super::report::Finding;
use crate::api::Stat;
use crate::client::Daemon;
use crate::config::{Config, Overrides};

/// It is on this machine.
const PATIENCE: Duration = Duration::from_secs(3);
/// Younger than this, nobody needs to have asked it.
const YOUNG: u64 = 600;

/// What the admin listener says.
pub(crate) enum Running {
    /// There is none to ask.
    Off,
    /// Nobody answers, or not as a pierhead does.
    No { admin: SocketAddr, why: String },
    /// It runs.
    Yes {
        stat: Box<Stat>,
        metrics: Metrics,
        ready: bool,
        /// The configuration in effect, without secrets; `None`: an older version does not tell it.
        config: Option<String>,
    },
}

/// The fast tier of a daemon that runs.
pub(crate) struct ServedTier {
    /// What becomes of it when the power goes; `None`: it has none.
    pub(crate) class: Option<String>,
    /// Blobs that were damaged on it.
    pub(crate) damaged: f64,
    /// Its medium was lost while it ran.
    pub(crate) failed: bool,
}

impl Running {
    /// Its configuration file.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Yes { stat, .. } => stat.config.clone().map(PathBuf::from),
            _ => None,
        }
    }

    /// The configuration that it runs with, flags included, and without secrets.
    pub(crate) fn config(&self) -> Option<&str> {
        match self {
            Self::Yes { config, .. } => config.as_deref(),
            _ => None,
        }
    }

    /// What its command line may have said over its file, where ours says nothing.
    pub(crate) fn complete(&self, overrides: &mut Overrides) {
        let Self::Yes { stat, .. } = self else {
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

    /// Bytes that it holds on the disk.
    pub(crate) fn in_use(&self) -> Option<u64> {
        match self {
            Self::Yes { stat, .. } => Some(stat.used.saturating_add(stat.reserved)),
            _ => None,
        }
    }

    /// What it serves with: `None` when it does not run.
    pub(crate) fn tier(&self) -> Option<ServedTier> {
        let Self::Yes { metrics, .. } = self else {
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

    /// Where its clients reach it from this machine.
    pub(crate) fn address(&self) -> Option<Address> {
        match self {
            Self::Yes { stat, .. } => stat.address(),
            _ => None,
        }
    }
}

/// Asks it.
pub(crate) async fn ask(admin: Option<SocketAddr>) -> Running {
    let Some(admin) = admin else {
        return Running::Off;
    };
    let mut target = admin;
    if target.ip().is_unspecified() {
        target.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let Ok(authority) = target.to_string().parse::<Authority>() else {
        return Running::Off;
    };
    let daemon = Daemon::new(authority);
    let asking = async {
        let stat: Stat = daemon.get("/v1/stat").await?;
        let metrics = daemon.text("/metrics").await.unwrap_or_default();
        let ready = daemon.text("/readyz").await.is_ok();
        let config = daemon.text("/v1/config").await.ok();
        anyhow::Ok(Running::Yes {
            stat: Box::new(stat),
            metrics: Metrics::parse(&metrics),
            ready,
            config,
        })
    };
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(Ok(running)) => running,
        Ok(Err(error)) => Running::No {
            admin,
            // That nothing answers is all that there is to say of a refused connection.
            why: if error.to_string().starts_with("nothing answers") {
                String::new()
            } else {
                format!(": {error:#}")
            },
        },
        Err(_) => Running::No {
            admin,
            why: format!(": no answer within {} s", PATIENCE.as_secs()),
        },
    }
}

/// What it says of itself.
pub(crate) fn look(running: &Running, config: &Config) -> Vec<Finding> {
    let (stat, metrics, ready) = match running {
        Running::Off => {
            return vec![Finding::warn(
                "daemon",
                "the admin listener is off, so that nobody can look at the running pierhead",
                "set `admin = \"127.0.0.1:5001\"`",
            )];
        }
        Running::No { admin, why } => {
            return vec![Finding::warn(
                "daemon",
                format!("no pierhead answers at http://{admin}{why}"),
                "start it: `systemctl start pierhead` or `pierhead serve`; or name its address with --admin",
            )];
        }
        Running::Yes {
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
            format!("version {} runs, and this is {own}", stat.version),
            "restart it: `systemctl restart pierhead`",
        )
    } else if !ready {
        Finding::warn(
            "daemon",
            "it is ending",
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
                "it keeps its data in {}, and this configuration says {}",
                stat.data,
                config.data.display()
            ),
            "name its file with --config, or restart it",
        ));
    }
    findings.extend(of_metrics(stat, metrics));
    findings
}

fn of_metrics(stat: &Stat, metrics: &Metrics) -> Vec<Finding> {
    let mut findings = Vec::new();
    let asked = metrics.sum("pierhead_proxy_requests_total");
    if asked > 0.0 {
        let hits = metrics.sum("pierhead_cache_hits_total");
        let misses = metrics.sum("pierhead_cache_misses_total");
        findings.push(Finding::ok(
            "traffic",
            format!("{asked} requests of clients; blobs: {hits} from the cache, {misses} fetched"),
        ));
    } else if stat.uptime_seconds >= YOUNG {
        findings.push(Finding::warn(
            "traffic",
            "no client has asked since it started",
            "see the clients below; `pierhead setup docker` (containerd, podman, crio) makes them",
        ));
    }
    let eviction = &stat.eviction;
    let limit = eviction.daily_write_budget;
    if limit > 0 && eviction.written_today >= limit {
        findings.push(Finding::warn(
            "disk",
            format!(
                "the {} that may be written a day are used up: nothing large enters the cache until 00:00 UTC",
                human_bytes(limit)
            ),
            "clients are served all the same; raise `cache.daily_write_budget`, or set \"0\" for no limit",
        ));
    }
    // What was damaged on the fast tier is the tier's finding.
    let on_tier = metrics.sum("pierhead_cache_tier_corrupt_blobs_total");
    let rot = metrics.sum("pierhead_cache_corrupt_blobs_total") - on_tier;
    if rot > 0.0 {
        findings.push(Finding::fail(
            "disk",
            format!("{rot} blobs were damaged on the disk since it started (and fetched again)"),
            "the disk or its controller returns wrong bytes: see `smartctl -a` and `dmesg`, then `pierhead cache verify`",
        ));
    }
    for (labels, state) in metrics.of("pierhead_remote_upstream_state") {
        // 0 asked, 1 on probation, 2 out; registries that are not configured share a count.
        if labels.contains("upstream=\"other\"") || state < 1.0 {
            continue;
        }
        findings.push(Finding::warn(
            "upstreams",
            format!("the circuit breaker keeps requests from {labels}"),
            "it is asked again within seconds; the log of pierhead says why it failed",
        ));
    }
    for (labels, count) in metrics.of("pierhead_proxy_limited_total") {
        if count > 0.0 {
            findings.push(Finding::warn(
                "limits",
                format!("{count} requests met the limit {labels}"),
                "raise it below [limits], or find out who asks so much: docs/explanation/limits.md names the key of each",
            ));
        }
    }
    findings
}

/// Whether its addresses can be had, or it answers there.
pub(crate) async fn ports(running: &Running, config: &Config) -> Vec<Finding> {
    if let Some(address) = running.address() {
        let connecting = tokio::net::TcpStream::connect((address.host(), address.port()));
        return vec![match tokio::time::timeout(PATIENCE, connecting).await {
            Ok(Ok(_)) => Finding::ok("listen", format!("clients reach it at {address}")),
            Ok(Err(error)) => Finding::fail(
                "listen",
                format!("{address}: {error}"),
                "see `listen`, and the firewall: `nft list ruleset`",
            ),
            Err(_) => Finding::fail(
                "listen",
                format!("{address} takes no connection"),
                "see the log: `journalctl -u pierhead`",
            ),
        }];
    }
    let all = config.listen.iter().chain(&config.admin);
    all.filter(|address| address.port() != 0)
        .map(|address| match TcpListener::bind(address) {
            Ok(_) => Finding::ok("listen", format!("{address} is free")),
            Err(error) => {
                let fix = match error.kind() {
                    ErrorKind::AddrInUse => {
                        format!("`ss -ltnp sport = :{}` names who has it; or choose another in `listen`", address.port())
                    }
                    ErrorKind::AddrNotAvailable => "no interface has it: see `ip addr`".to_owned(),
                    ErrorKind::PermissionDenied => {
                        "ports below 1024 need root or CAP_NET_BIND_SERVICE".to_owned()
                    }
                    _ => "choose another address in `listen`".to_owned(),
                };
                Finding::fail("listen", format!("{address}: {error}"), fix)
            }
        })
        .collect()
}

/// Values of the OpenMetrics text, by name and labels.
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
    fn a_day_whose_bytes_are_used_up_is_told() {
        let mut stat = stat();
        let about = |stat: &Stat| {
            let findings = of_metrics(stat, &Metrics::default());
            findings.iter().any(|it| it.what.contains("used up"))
        };
        stat.eviction.written_today = 5;
        assert!(!about(&stat), "no limit");
        stat.eviction.daily_write_budget = 6;
        assert!(!about(&stat));
        stat.eviction.daily_write_budget = 5;
        assert!(about(&stat));
    }

    #[test]
    fn damage_on_the_fast_tier_is_not_the_disks() {
        let about = |text: &str| {
            let findings = of_metrics(&stat(), &Metrics::parse(text));
            let disk = findings.into_iter().find(|it| it.about == "disk");
            disk.map(|it| it.what)
        };
        let text =
            "pierhead_cache_corrupt_blobs_total 3\npierhead_cache_tier_corrupt_blobs_total 3\n";
        assert_eq!(about(text), None);
        let text =
            "pierhead_cache_corrupt_blobs_total 5\npierhead_cache_tier_corrupt_blobs_total 3\n";
        assert!(about(text).is_some_and(|what| what.starts_with("2 blobs")));
        assert!(about("pierhead_cache_corrupt_blobs_total 1\n").is_some());
    }

    #[test]
    fn metrics_tell_what_to_look_at() {
        let quiet = of_metrics(&stat(), &Metrics::parse(""));
        assert!(quiet[0].what.contains("no client"), "{quiet:?}");
        let text = "# HELP x y\npierhead_proxy_requests_total{endpoint=\"blob\",cache=\"hit\"} 3\n\
                    pierhead_proxy_requests_total{endpoint=\"tags\"} 4\npierhead_cache_corrupt_blobs_total 1\n\
                    pierhead_remote_upstream_state{upstream=\"docker.io\",address=\"a\"} 2\n\
                    pierhead_remote_upstream_state{upstream=\"other\"} 7\n\
                    pierhead_proxy_limited_total{limit=\"bytes\"} 0\n# EOF\n";
        let findings = of_metrics(&stat(), &Metrics::parse(text));
        let about: Vec<_> = findings.iter().map(|it| it.about.as_str()).collect();
        assert_eq!(about, ["traffic", "disk", "upstreams"], "{findings:?}");
        assert!(findings[0].what.starts_with("7 requests"), "{findings:?}");
        assert!(findings[2].what.contains("docker.io"), "{findings:?}");
    }
}
