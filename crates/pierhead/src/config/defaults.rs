//! The default values of all configuration keys.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pierhead_eviction::PolicyName;
use pierhead_eviction::admission::AdmissionName;

use super::{
    Auth, AuthMode, Bundle, Cache, Config, DefaultSources, Eviction, KeyLocations, Limits, Log,
    LogFormat, Network, RequestLog, Size, Tags, Tier, TierKind, Tls,
};
use pierhead_host::machine::CpuSelection;
use pierhead_host::pressure::Resource;

impl Config {
    /// Default value of the key `admin`.
    pub(crate) const DEFAULT_ADMIN: SocketAddr =
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5001);

    /// Returns the default configuration for this data folder.
    pub(crate) fn with_data(data: PathBuf) -> Self {
        let remote = pierhead_remote::Config::default();
        let proxy = pierhead_proxy::Config::default();
        Self {
            profile: None,
            default_sources: DefaultSources::new(),
            key_locations: KeyLocations::default(),
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 5000))],
            data,
            admin: Some(Self::DEFAULT_ADMIN),
            default_upstream: proxy.default_upstream,
            docker_config: None,
            allow_open_proxy_with_credentials: false,
            network: Network { interface: None },
            cache: Cache {
                size: Size::Auto,
                min_free: Size::Bytes(512 << 20),
                daily_write_budget: 0,
                memory: pierhead_cache::Config::new("", 0).memory,
            },
            eviction: Eviction {
                policy: PolicyName::DEFAULT,
                admission: AdmissionName::Always,
            },
            request_log: RequestLog { file: None },
            bundle: Bundle {
                size: Some(Size::Auto),
                workers: 1,
            },
            tier: Tier {
                kind: TierKind::Off,
                path: None,
                size: 1 << 30,
                placement: pierhead_cache::Placement::default(),
                write_back_rate: None,
            },
            tags: Tags {
                ttl: proxy.tags_ttl,
            },
            access: pierhead_proxy::Rules::default(),
            limits: Limits {
                connections: proxy.max_connections,
                upstream_bandwidth: remote.upstream_bandwidth,
                downloads: proxy.limits.downloads,
                response_memory: proxy.limits.response_memory,
                response_timeout: proxy.response_timeout,
                upstream_timeout: remote.upstream_timeout,
                shutdown_grace: proxy.shutdown_grace,
                memory: None,
                cores: CpuSelection::All,
                pause_under: vec![Resource::Memory],
            },
            tls: Tls::default(),
            auth: Auth {
                mode: AuthMode::None,
                htpasswd: None,
                cache_ttl: Duration::from_secs(300),
            },
            log: Log {
                level: "info".to_owned(),
                format: LogFormat::Text,
            },
            upstreams: BTreeMap::new(),
        }
    }
}
