//! What pierhead is told: defaults, then one TOML file, then the command line.
//!
//! Parsing is pure (text to [`Config`]); [`load()`] reads the file, [`files`] what it names. All of it
//! happens before anything is opened.

pub(crate) mod files;
mod keys;
mod load;
mod nearest;
mod parse;
mod secret;
mod show;
#[cfg(test)]
mod tests;
mod trace_file;
mod units;
mod validate;
mod value;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pierhead_eviction::Named;
use pierhead_eviction::admission::NamedAdmission;
use pierhead_oci::Registry;

use crate::machine::Cores;
use crate::pressure::Resource;
use crate::profile::{Origins, Profile};

#[cfg(test)]
pub(crate) use keys::paths;
pub(crate) use keys::{MANAGEMENT, check_level};
pub(crate) use load::{Overrides, Refused, can_be_read_again, load, parse_upstream};
pub(crate) use secret::Secret;
pub(crate) use show::{changes, show};
pub(crate) use trace_file::trace_file;
pub(crate) use units::{Size, human_bytes, parse_bytes};
pub(crate) use validate::{auth, open_proxy};
pub(crate) use value::{parse_address, parse_admin};

/// Everything that can be configured; [`keys`] says what each means.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) profile: Option<&'static Profile>,
    /// The keys whose value is a default that this machine, or a profile, gave.
    pub(crate) origins: Origins,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) data: PathBuf,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) default_upstream: Registry,
    pub(crate) docker_config: Option<PathBuf>,
    pub(crate) allow_open_proxy_with_credentials: bool,
    pub(crate) network: Network,
    pub(crate) cache: Cache,
    pub(crate) eviction: Eviction,
    pub(crate) trace: Trace,
    pub(crate) bundle: Bundle,
    pub(crate) tier: Tier,
    pub(crate) tags: Tags,
    pub(crate) access: pierhead_proxy::Rules,
    pub(crate) limits: Limits,
    pub(crate) tls: Tls,
    pub(crate) auth: Auth,
    pub(crate) log: Log,
    pub(crate) upstreams: BTreeMap<Registry, Upstream>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) interface: Option<String>,
    pub(crate) wait: Duration,
}

#[derive(Clone)]
pub(crate) struct Cache {
    pub(crate) size: Size,
    pub(crate) min_free: Size,
    /// Bytes; 0: none but the size.
    pub(crate) max_blob: u64,
    /// Bytes.
    pub(crate) memory: u64,
}

#[derive(Clone)]
pub(crate) struct Eviction {
    pub(crate) policy: Named,
    pub(crate) admission: NamedAdmission,
    /// Bytes; 0: as many as come.
    pub(crate) max_written_per_day: u64,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) file: Option<PathBuf>,
    /// Bytes.
    pub(crate) max_size: u64,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bundle {
    pub(crate) enabled: bool,
    pub(crate) size: Size,
    pub(crate) workers: usize,
    /// Percent of a core.
    pub(crate) cpu: usize,
    pub(crate) level: usize,
    pub(crate) pairs: usize,
    /// Bytes.
    pub(crate) apart: u64,
    pub(crate) earlier: Duration,
    /// Bytes.
    pub(crate) max_layer: u64,
    pub(crate) max_ratio: usize,
}

#[derive(Clone, PartialEq)]
pub(crate) struct Tier {
    pub(crate) kind: TierKind,
    pub(crate) path: Option<PathBuf>,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes; 0: as many as fit.
    pub(crate) limit: u64,
    pub(crate) follow_pressure: bool,
    pub(crate) rules: pierhead_cache::staging::Weights,
    /// Bytes a second.
    pub(crate) drain: Option<u64>,
    pub(crate) model: TierModel,
    pub(crate) disk_model: DiskModel,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TierKind {
    Off,
    Pmem,
    File,
}

impl TierKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Pmem => "pmem",
            Self::File => "file",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TierModel {
    Off,
    Nvdimm,
    Emmc,
}

impl TierModel {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Nvdimm => "nvdimm",
            Self::Emmc => "emmc",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskModel {
    Off,
    HardDisk,
    Emmc,
}

impl DiskModel {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::HardDisk => "hard-disk",
            Self::Emmc => "emmc",
        }
    }
}

#[derive(Clone)]
pub(crate) struct Tags {
    pub(crate) freshness: Duration,
}

#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) connections_per_client: usize,
    /// Bytes a second.
    pub(crate) upstream_bandwidth: Option<u64>,
    /// Bytes a second.
    pub(crate) upstream_minimum_rate: Option<u64>,
    pub(crate) upstream_fetches: usize,
    pub(crate) fetches_per_client: usize,
    pub(crate) fetches_per_registry: usize,
    /// Bytes.
    pub(crate) answer_memory: usize,
    pub(crate) answer_memory_per_client: usize,
    pub(crate) headers: usize,
    /// Bytes.
    pub(crate) header_size: usize,
    pub(crate) uri: usize,
    pub(crate) answer_within: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) header_timeout: Duration,
    pub(crate) stall_timeout: Duration,
    pub(crate) client_stall: Duration,
    pub(crate) drain: Duration,
    /// 0: one a core.
    pub(crate) threads: usize,
    /// Bytes that defaults are made from.
    pub(crate) memory: Option<u64>,
    pub(crate) cores: Cores,
    pub(crate) rest_under: Vec<Resource>,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) client_optional: bool,
    pub(crate) client_names: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Auth {
    pub(crate) mode: AuthMode,
    pub(crate) htpasswd: Option<PathBuf>,
    pub(crate) verdicts: Duration,
    pub(crate) anonymous: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthMode {
    None,
    Htpasswd,
    Mtls,
    PassThrough,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) level: String,
    pub(crate) format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

#[derive(Clone, Default)]
pub(crate) struct Upstream {
    /// `None`: `https://` and the registry's name.
    pub(crate) url: Option<String>,
    /// Instead of `url`; empty: there is one address.
    pub(crate) addresses: Vec<String>,
    pub(crate) login_hosts: Vec<String>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) identity_token: Option<Secret>,
    pub(crate) identity_token_file: Option<PathBuf>,
    pub(crate) credential_helper: Option<String>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) trusted_hosts: Vec<String>,
}

impl Upstream {
    /// Where this registry is, and whether that is the registry itself (which its login is for) and not a
    /// mirror, in the order of preference.
    pub(crate) fn places(&self, registry: &Registry) -> Vec<(String, bool)> {
        let default = pierhead_remote::default_url(registry);
        let urls = match (&self.addresses[..], &self.url) {
            ([], url) => vec![url.clone().unwrap_or_else(|| default.clone())],
            (addresses, _) => addresses.to_vec(),
        };
        let authority = |url: &str| url.parse::<http::Uri>().ok()?.into_parts().authority;
        let named = |url: &str, host: &str| {
            authority(url).is_some_and(|authority| {
                let host = host.strip_prefix("http://").unwrap_or(host);
                authority.as_str().eq_ignore_ascii_case(host)
                    || authority.host().eq_ignore_ascii_case(host)
            })
        };
        let is_own = |url: &str| match &self.login_hosts[..] {
            [] => authority(url) == authority(&default) || named(url, registry.as_str()),
            hosts => hosts.iter().any(|host| named(url, host)),
        };
        // Registries of a local name, all of whose addresses are its own.
        let none = urls.len() == 1 || !urls.iter().any(|url| is_own(url));
        let places = urls.into_iter();
        places
            .map(|url| {
                let own = none || is_own(&url);
                (url, own)
            })
            .collect()
    }

    pub(crate) fn has_credentials(&self) -> bool {
        self.username.is_some()
            || self.password.is_some()
            || self.password_file.is_some()
            || self.identity_token.is_some()
            || self.identity_token_file.is_some()
            || self.credential_helper.is_some()
    }
}

impl Config {
    /// Where the admin listener is unless told otherwise.
    pub(crate) const DEFAULT_ADMIN: SocketAddr =
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5001);

    /// What a bare `pierhead serve` uses, with this data folder.
    pub(crate) fn with_data(data: PathBuf) -> Self {
        let remote = pierhead_remote::Config::default();
        let proxy = pierhead_proxy::Config::default();
        Self {
            profile: None,
            origins: Origins::new(),
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 5000))],
            data,
            admin: Some(Self::DEFAULT_ADMIN),
            default_upstream: proxy.default_upstream,
            docker_config: None,
            allow_open_proxy_with_credentials: false,
            network: Network {
                interface: None,
                wait: Duration::from_secs(30),
            },
            cache: Cache {
                size: Size::Auto,
                min_free: Size::Bytes(512 << 20),
                max_blob: 0,
                memory: pierhead_cache::Config::new("", 0).memory,
            },
            eviction: Eviction {
                policy: Named::DEFAULT,
                admission: NamedAdmission::Always,
                max_written_per_day: 0,
            },
            trace: Trace {
                file: None,
                max_size: 64 << 20,
            },
            bundle: Bundle {
                enabled: true,
                size: Size::Auto,
                workers: 1,
                cpu: 50,
                level: 18,
                pairs: 2,
                apart: 256 << 20,
                earlier: Duration::from_secs(900),
                max_layer: 64 << 30,
                max_ratio: 1000,
            },
            tier: Tier {
                kind: TierKind::Off,
                path: None,
                size: 1 << 30,
                limit: 0,
                follow_pressure: false,
                rules: pierhead_cache::staging::Weights::default(),
                drain: None,
                model: TierModel::Off,
                disk_model: DiskModel::Off,
            },
            tags: Tags {
                freshness: proxy.tag_freshness,
            },
            access: pierhead_proxy::Rules::default(),
            limits: Limits {
                connections: proxy.max_connections,
                connections_per_client: proxy.limits.connections_per_client,
                upstream_bandwidth: remote.bandwidth,
                upstream_minimum_rate: Some(remote.minimum_rate).filter(|rate| *rate > 0),
                upstream_fetches: remote.max_fetches,
                fetches_per_client: proxy.limits.fetches_per_client,
                fetches_per_registry: proxy.limits.fetches_per_registry,
                answer_memory: proxy.limits.answer_memory,
                answer_memory_per_client: proxy.limits.answer_memory_per_client,
                headers: proxy.limits.headers,
                header_size: proxy.limits.header_size,
                uri: proxy.limits.uri,
                answer_within: proxy.answer_within,
                connect_timeout: remote.connect_timeout,
                header_timeout: remote.header_timeout,
                stall_timeout: remote.stall_timeout,
                client_stall: proxy.client_stall,
                drain: proxy.drain,
                threads: 0,
                memory: None,
                cores: Cores::All,
                rest_under: vec![Resource::Memory],
            },
            tls: Tls::default(),
            auth: Auth {
                mode: AuthMode::None,
                htpasswd: None,
                verdicts: Duration::from_secs(300),
                anonymous: true,
            },
            log: Log {
                level: "info".to_owned(),
                format: LogFormat::Text,
            },
            upstreams: BTreeMap::new(),
        }
    }
}

/// Something wrong with the configuration, with its mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// From 1; `None` when it is about no line of the file.
    pub(crate) line: Option<usize>,
    pub(crate) message: String,
}

impl Problem {
    fn new(line: Option<usize>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { line, message }
    }
}
