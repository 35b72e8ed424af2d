//! The type [`Config`] with the values of all keys, one struct per table.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use pierhead_eviction::PolicyName;
use pierhead_eviction::admission::AdmissionName;
use pierhead_host::machine::CpuSelection;
use pierhead_host::pressure::Resource;
use pierhead_host::profile::Profile;
use pierhead_oci::Registry;

use super::key_locations::KeyLocations;
use super::size::Size;
use super::upstream::Upstream;

/// Keys whose default value follows from this host or a profile, each with a description of the
/// source.
pub(crate) type DefaultSources = Vec<(&'static str, String)>;

/// The complete configuration of the daemon. The key table ([`super::keys`]) documents the fields.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) profile: Option<&'static Profile>,
    /// Keys whose default value follows from this host or a profile.
    pub(crate) default_sources: DefaultSources,
    /// File and line of each key that the configuration file sets.
    pub(crate) key_locations: KeyLocations,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) data: PathBuf,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) default_upstream: Registry,
    pub(crate) docker_config: Option<PathBuf>,
    pub(crate) allow_open_proxy_with_credentials: bool,
    pub(crate) network: Network,
    pub(crate) cache: Cache,
    pub(crate) eviction: Eviction,
    pub(crate) request_log: RequestLog,
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
}

#[derive(Clone)]
pub(crate) struct Cache {
    pub(crate) size: Size,
    pub(crate) min_free: Size,
    /// Maximum bytes written per day; 0 means no limit.
    pub(crate) daily_write_budget: u64,
    /// Maximum bytes of small blobs that the cache keeps in memory. No key sets this value; the
    /// value follows from `limits.memory` or the profile.
    pub(crate) memory: u64,
}

#[derive(Clone)]
pub(crate) struct Eviction {
    pub(crate) policy: PolicyName,
    pub(crate) admission: AdmissionName,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RequestLog {
    pub(crate) file: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bundle {
    /// Maximum size of the packs; `None` if bundles are off.
    pub(crate) size: Option<Size>,
    pub(crate) workers: usize,
}

#[derive(Clone, PartialEq)]
pub(crate) struct Tier {
    pub(crate) kind: TierKind,
    pub(crate) path: Option<PathBuf>,
    /// Bytes of memory or disk that pierhead uses for the tier.
    pub(crate) size: u64,
    pub(crate) placement: pierhead_cache::Placement,
    /// Maximum rate of the write-back in bytes per second.
    pub(crate) write_back_rate: Option<u64>,
}

impl Tier {
    /// Returns the bytes of memory that the file of the tier takes: `tier.size` on a tmpfs, and 0
    /// on a disk.
    pub(crate) fn bytes_in_memory(&self) -> u64 {
        let path = self.path.as_ref();
        let path = path.filter(|path| self.kind != TierKind::Off && pierhead_pmem::is_memory(path));
        path.map_or(0, |_| self.size)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TierKind {
    Off,
    Pmem,
    File,
}

impl TierKind {
    pub(crate) const ALL: [Self; 3] = [Self::Off, Self::Pmem, Self::File];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Pmem => "pmem",
            Self::File => "file",
        }
    }
}

#[derive(Clone)]
pub(crate) struct Tags {
    pub(crate) ttl: Duration,
}

#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    /// Maximum rate of all downloads from upstreams in bytes per second.
    pub(crate) upstream_bandwidth: Option<u64>,
    pub(crate) downloads: usize,
    /// Maximum bytes of responses in progress. No key sets this value; the value follows from
    /// `memory` or the profile.
    pub(crate) response_memory: usize,
    pub(crate) response_timeout: Duration,
    pub(crate) upstream_timeout: Duration,
    pub(crate) shutdown_grace: Duration,
    /// Memory budget in bytes, from which the defaults of other limits follow.
    pub(crate) memory: Option<u64>,
    pub(crate) cores: CpuSelection,
    pub(crate) pause_under: Vec<Resource>,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) client_names: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Auth {
    pub(crate) mode: AuthMode,
    pub(crate) htpasswd: Option<PathBuf>,
    pub(crate) cache_ttl: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthMode {
    None,
    Htpasswd,
    Mtls,
    MtlsOrHtpasswd,
    PassThrough,
    PassThroughLogin,
}

impl AuthMode {
    pub(crate) const ALL: [Self; 6] = [
        Self::None,
        Self::Htpasswd,
        Self::Mtls,
        Self::MtlsOrHtpasswd,
        Self::PassThrough,
        Self::PassThroughLogin,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Htpasswd => "htpasswd",
            Self::Mtls => "mtls",
            Self::MtlsOrHtpasswd => "mtls-or-htpasswd",
            Self::PassThrough => "pass-through",
            Self::PassThroughLogin => "pass-through-login",
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) level: String,
    pub(crate) format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines of plain text
    Text,
    /// One JSON object per log entry, each on one line
    Json,
}
