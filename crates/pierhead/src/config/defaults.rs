//! What a bare `pierhead serve` uses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pierhead_eviction::Named;
use pierhead_eviction::admission::NamedAdmission;

use super::{
    Auth, AuthMode, Bundle, Cache, Config, Eviction, Limits, Log, LogFormat, Network, Places, Size,
    Tags, Tier, TierKind, Tls, Trace,
};
use crate::machine::Cores;
use crate::pressure::Resource;
use crate::profile::Origins;

impl Config {
    /// Where the admin listener is unless told otherwise.
    pub(crate) const DEFAULT_ADMIN: SocketAddr =
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5001);

    /// All defaults, with this data folder.
    pub(crate) fn with_data(data: PathBuf) -> Self {
        let remote = pierhead_remote::Config::default();
        let proxy = pierhead_proxy::Config::default();
        Self {
            profile: None,
            origins: Origins::new(),
            places: Places::default(),
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
                memory: pierhead_cache::Config::new("", 0).memory,
            },
            eviction: Eviction {
                policy: Named::DEFAULT,
                admission: NamedAdmission::Always,
                max_written_per_day: 0,
            },
            trace: Trace { file: None },
            bundle: Bundle {
                enabled: true,
                size: Size::Auto,
                workers: 1,
                pairs: 2,
            },
            tier: Tier {
                kind: TierKind::Off,
                path: None,
                size: 1 << 30,
                limit: 0,
                follow_pressure: false,
                rules: pierhead_cache::staging::Weights::default(),
                drain: None,
            },
            tags: Tags {
                freshness: proxy.tag_freshness,
            },
            access: pierhead_proxy::Rules::default(),
            limits: Limits {
                connections: proxy.max_connections,
                connections_per_client: proxy.limits.connections_per_client,
                upstream_bandwidth: remote.bandwidth,
                upstream_fetches: proxy.limits.fetches,
                fetches_per_client: proxy.limits.fetches_per_client,
                answer_memory: proxy.limits.answer_memory,
                answer_within: proxy.answer_within,
                connect_timeout: remote.connect_timeout,
                header_timeout: remote.header_timeout,
                stall_timeout: remote.stall_timeout,
                client_stall: proxy.client_stall,
                drain: proxy.drain,
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
