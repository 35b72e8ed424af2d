//! The name servers and hosts that the files of the system name, and one question to them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, TokioResolver};

use super::{LOOKUP_LIMIT, LookupError};

/// As many servers as resolv.conf(5) allows.
const MAX_SERVERS: usize = 3;

/// The next name server is asked beside a silent one after so long. The order of the file counts: where
/// the first server alone knows internal names, the second must not answer before it.
const SERVER_DELAY: Duration = Duration::from_millis(500);

/// Bytes of a file that are read.
const MAX_FILE: u64 = 8 << 20;

/// Where the configuration of the system is.
#[derive(Clone, Debug)]
pub(crate) struct SystemFiles {
    pub(crate) resolv_conf: PathBuf,
    pub(crate) hosts: PathBuf,
    /// Of each name server.
    pub(crate) port: u16,
}

impl Default for SystemFiles {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
            port: 53,
        }
    }
}

/// When a file was last written, and its size; `None` when there is none.
type FileStamp = Option<(SystemTime, u64)>;

impl SystemFiles {
    /// Another value after each change. Blocks.
    pub(super) fn stamp(&self) -> [FileStamp; 2] {
        [&self.resolv_conf, &self.hosts].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }
}

/// Addresses, and how long they are good.
pub(super) struct Found {
    pub(super) addresses: Arc<[IpAddr]>,
    pub(super) ttl: Duration,
}

/// See the head of this module.
pub(super) struct NameServers {
    /// One resolver for each server, in the order of the file.
    servers: Vec<(IpAddr, TokioResolver)>,
    hosts: Hosts,
    stamp: [FileStamp; 2],
}

/// Their addresses, for the log.
impl fmt::Display for NameServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.servers.iter().map(|(address, _)| address))
            .finish()
    }
}

impl NameServers {
    /// No server and no host.
    pub(super) fn none() -> Self {
        Self {
            servers: Vec::new(),
            hosts: Hosts::default(),
            stamp: [None; 2],
        }
    }

    /// Reads the files. Blocks.
    pub(super) fn read(files: &SystemFiles, stamp: [FileStamp; 2]) -> io::Result<Self> {
        let mut text = read(&files.resolv_conf)?;
        let names_server = |line: &[u8]| line.trim_ascii_start().starts_with(b"nameserver");
        if !text.split(|byte| *byte == b'\n').any(names_server) {
            // As resolv.conf(5) says.
            text.extend_from_slice(b"\nnameserver 127.0.0.1\n");
        }
        let (config, options) = parse_resolv_conf(text).map_err(io::Error::other)?;
        let search = match config.search() {
            [] => config.domain().cloned().into_iter().collect(),
            search => search.to_vec(),
        };
        let mut servers = Vec::new();
        for server in config.name_servers().iter().take(MAX_SERVERS) {
            let resolver = resolver(server.ip, files.port, search.clone(), &options);
            servers.push((server.ip, resolver.map_err(io::Error::other)?));
        }
        let mut hosts = Hosts::default();
        hosts.read_hosts_conf(read(&files.hosts)?.as_slice())?;
        Ok(Self {
            servers,
            hosts,
            stamp,
        })
    }

    pub(super) fn stamp(&self) -> &[FileStamp; 2] {
        &self.stamp
    }

    /// The addresses that the file of hosts has for that name.
    pub(super) fn host(&self, host: &str) -> Option<Arc<[IpAddr]>> {
        let name = Name::from_utf8(host).ok()?;
        let lookups = [RecordType::AAAA, RecordType::A].into_iter();
        let lookups = lookups.filter_map(|kind| {
            let query = Query::query(name.clone(), kind);
            self.hosts.lookup_static_host(&query)
        });
        let addresses: Arc<[_]> = lookups
            .flat_map(|lookup| {
                let records = lookup.answers().iter();
                let addresses = records.filter_map(|record| record.data.ip_addr());
                addresses.collect::<Vec<_>>()
            })
            .collect();
        (!addresses.is_empty()).then_some(addresses)
    }

    /// Asks the servers in their order. The first that says yes or no decides.
    pub(super) async fn lookup(&self, host: &str) -> Result<Found, LookupError> {
        let mut waiting = self.servers.iter();
        let mut running = FuturesUnordered::new();
        let mut failed = LookupError::Failed("there is no name server".into());
        loop {
            if let Some((address, resolver)) = waiting.next() {
                running.push(async move { (address, resolver.lookup_ip(host).await) });
            }
            let more = waiting.len() > 0;
            let ended = tokio::select! {
                ended = running.next() => ended,
                () = tokio::time::sleep(SERVER_DELAY), if more => continue,
            };
            match ended {
                Some((_, Ok(found))) => {
                    let addresses: Arc<[_]> = found.iter().collect();
                    if addresses.is_empty() {
                        return Err(LookupError::NotFound);
                    }
                    let ttl = found
                        .valid_until()
                        .saturating_duration_since(Instant::now());
                    return Ok(Found { addresses, ttl });
                }
                Some((_, Err(error))) if is_verdict(&error) => return Err(LookupError::NotFound),
                Some((_, Err(NetError::Timeout))) => failed = LookupError::Timeout,
                Some((address, Err(error))) => {
                    failed = LookupError::Failed(format!("name server {address}: {error}"));
                }
                None => return Err(failed),
            }
        }
    }
}

/// Whether the server says that there is no such name, or no address of it.
fn is_verdict(error: &NetError) -> bool {
    matches!(
        error,
        NetError::Dns(DnsError::NoRecordsFound(none))
            if matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError)
    )
}

/// Asks one server. It caches nothing and reads no file: that is done above it.
fn resolver(
    address: IpAddr,
    port: u16,
    search: Vec<Name>,
    options: &ResolverOpts,
) -> Result<TokioResolver, NetError> {
    let mut server = NameServerConfig::udp_and_tcp(address);
    for connection in &mut server.connections {
        connection.port = port;
    }
    let config = ResolverConfig::from_parts(None, search, vec![server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let own = builder.options_mut();
    *own = options.clone();
    own.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    own.use_hosts_file = ResolveHosts::Never;
    own.cache_size = 0;
    // A question is sent anew each third of a second until then.
    own.attempts = 0;
    own.timeout = LOOKUP_LIMIT;
    builder.build()
}

/// Nothing when there is no such file.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text)?;
    Ok(text)
}
