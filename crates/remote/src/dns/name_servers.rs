//! Reads the system's resolver configuration (resolv.conf and /etc/hosts), and sends DNS queries to
//! its name servers.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::ProtoError;
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, TokioResolver};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{LOOKUP_LIMIT, LookupError};
use crate::file_stamp::FileStamp;

/// Maximum number of name servers that are used: the limit that resolv.conf(5) states.
const MAX_SERVERS: usize = 3;

/// If a name server has not answered after this time, the next name server is queried, too.
const SERVER_DELAY: Duration = Duration::from_millis(500);

/// How long a DNS lookup that has addresses of one family (IPv4 or IPv6) waits for addresses of the
/// other family. Some name servers never answer AAAA queries.
const FAMILY_DELAY: Duration = Duration::from_millis(50);

/// Maximum number of bytes that are read from resolv.conf or /etc/hosts.
const MAX_FILE: u64 = 8 << 20;

/// Paths of the system's resolver files, and the port of the name servers.
#[derive(Clone, Debug)]
pub(crate) struct SystemFiles {
    pub(crate) resolv_conf: PathBuf,
    pub(crate) hosts: PathBuf,
    /// Port on which all name servers listen.
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

impl SystemFiles {
    /// Returns a value that differs after each change of the resolver files. Blocks.
    pub(super) fn stamp(&self) -> [Option<FileStamp>; 2] {
        [&self.resolv_conf, &self.hosts].map(|path| FileStamp::read(path))
    }
}

/// The addresses of a name, and how long they are valid (TTL).
pub(super) struct FoundAddresses {
    pub(super) addresses: Arc<[IpAddr]>,
    pub(super) ttl: Duration,
}

/// The name servers and the hosts entries of the system.
pub(super) struct NameServers {
    /// The name servers in the order of resolv.conf.
    servers: Vec<NameServer>,
    search: Vec<Name>,
    /// A name with fewer dots is looked up in the domains of `search` first.
    ndots: usize,
    hosts: Hosts,
    stamp: [Option<FileStamp>; 2],
}

struct NameServer {
    address: IpAddr,
    resolver: TokioResolver,
}

/// Formats the addresses of the name servers for log lines.
impl fmt::Display for NameServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.servers.iter().map(|server| server.address))
            .finish()
    }
}

impl NameServers {
    /// Creates a value without name servers and hosts entries.
    pub(super) fn empty() -> Self {
        Self {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            hosts: Hosts::default(),
            stamp: [None; 2],
        }
    }

    /// Reads the resolver files of the system. Blocks.
    pub(super) fn read(files: &SystemFiles, stamp: [Option<FileStamp>; 2]) -> io::Result<Self> {
        let mut text = read(&files.resolv_conf)?;
        let names_server = |line: &[u8]| line.trim_ascii_start().starts_with(b"nameserver");
        if !text.split(|byte| *byte == b'\n').any(names_server) {
            // If the file names no name server, the name server is 127.0.0.1, as resolv.conf(5)
            // says.
            text.extend_from_slice(b"\nnameserver 127.0.0.1\n");
        }
        let (config, options) = parse_resolv_conf(text).map_err(io::Error::other)?;
        let search = match config.search() {
            [] => config.domain().cloned().into_iter().collect(),
            search => search.to_vec(),
        };
        let mut servers = Vec::new();
        for server in config.name_servers().iter().take(MAX_SERVERS) {
            let resolver = resolver(server.ip, files.port, &options).map_err(io::Error::other)?;
            let address = server.ip;
            servers.push(NameServer { address, resolver });
        }
        let mut hosts = Hosts::default();
        hosts.read_hosts_conf(read(&files.hosts)?.as_slice())?;
        Ok(Self {
            servers,
            search,
            ndots: options.ndots,
            hosts,
            stamp,
        })
    }

    pub(super) fn stamp(&self) -> &[Option<FileStamp>; 2] {
        &self.stamp
    }

    /// Returns the addresses of that name in `/etc/hosts`.
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

    /// Queries the name servers in order until one of them returns an address. A negative answer
    /// counts only if all earlier servers failed or did not answer until the deadline, because only
    /// the first server may know internal names.
    pub(super) async fn lookup(
        &self,
        host: &str,
        deadline: Instant,
    ) -> Result<FoundAddresses, LookupError> {
        let names = self.names(host)?;
        let mut waiting = self.servers.iter().enumerate();
        let (mut running, mut unanswered) = (FuturesUnordered::new(), Vec::new());
        let mut failed = LookupError::Failed("there is no name server".into());
        // The first server that gave a negative answer.
        let mut refusing = None;
        loop {
            if refusing.is_none()
                && let Some((place, server)) = waiting.next()
            {
                unanswered.push(place);
                let names = &names;
                running.push(async move { (place, server.lookup(names).await) });
            }
            let more = refusing.is_none() && waiting.len() > 0;
            let ended = tokio::select! {
                ended = running.next() => ended,
                () = sleep(SERVER_DELAY), if more => continue,
                () = sleep_until(deadline) => {
                    return Err(refusing.map_or(LookupError::Timeout, |_| LookupError::NotFound));
                }
            };
            let Some((place, answer)) = ended else {
                return Err(failed);
            };
            unanswered.retain(|it| *it != place);
            match answer {
                Ok(found) => return Ok(found),
                Err(LookupError::NotFound) => {
                    refusing = Some(refusing.map_or(place, |first: usize| first.min(place)));
                }
                Err(error) => failed = error,
            }
            if let Some(first) = refusing
                && unanswered.iter().all(|it| *it > first)
            {
                return Err(LookupError::NotFound);
            }
        }
    }

    /// Returns the names to query for a host, in the order of resolv.conf(5).
    fn names(&self, host: &str) -> Result<Vec<Name>, LookupError> {
        let failed = |error: ProtoError| LookupError::Failed(format!("{host}: {error}"));
        let name = Name::from_utf8(host).map_err(failed)?;
        if name.is_fqdn() {
            return Ok(vec![name]);
        }
        let mut whole = name.clone();
        whole.set_fqdn(true);
        // A search domain that makes the name too long is skipped.
        let searched = self.search.iter();
        let searched = searched.filter_map(|domain| name.clone().append_domain(domain).ok());
        let mut names: Vec<_> = searched.collect();
        let is_first = usize::from(name.num_labels()) > self.ndots || name.is_localhost();
        names.insert(if is_first { 0 } else { names.len() }, whole);
        Ok(names)
    }
}

impl NameServer {
    /// Queries the names in order until one of them has an address.
    async fn lookup(&self, names: &[Name]) -> Result<FoundAddresses, LookupError> {
        let mut failed = LookupError::NotFound;
        for name in names {
            match self.addresses(name).await {
                Ok(found) => return Ok(found),
                Err(LookupError::NotFound) => {}
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Returns the addresses of both families (IPv4 and IPv6), or of one family if the other is
    /// late or fails. The answer is negative only if both families have a negative answer.
    async fn addresses(&self, name: &Name) -> Result<FoundAddresses, LookupError> {
        let families = [RecordType::AAAA, RecordType::A];
        let mut questions: FuturesUnordered<_> = families
            .into_iter()
            .map(|family| self.ask(name, family))
            .collect();
        let (mut found, mut failed): (Option<FoundAddresses>, _) = (None, LookupError::NotFound);
        loop {
            let answer = match &found {
                Some(_) => timeout(FAMILY_DELAY, questions.next()).await,
                None => Ok(questions.next().await),
            };
            match answer {
                Ok(Some(Ok(more))) => found = Some(more.and(found)),
                Ok(Some(Err(LookupError::NotFound))) => {}
                Ok(Some(Err(error))) => failed = error,
                Ok(None) | Err(_) => return found.ok_or(failed),
            }
        }
    }

    async fn ask(&self, name: &Name, family: RecordType) -> Result<FoundAddresses, LookupError> {
        let lookup = match self.resolver.lookup(name.clone(), family).await {
            Ok(lookup) => lookup,
            Err(error) if is_negative_answer(&error) => return Err(LookupError::NotFound),
            Err(NetError::Timeout) => return Err(LookupError::Timeout),
            Err(error) => {
                let why = format!("name server {}: {error}", self.address);
                return Err(LookupError::Failed(why));
            }
        };
        let records = lookup.answers().iter();
        let addresses: Arc<[_]> = records.filter_map(|it| it.data.ip_addr()).collect();
        if addresses.is_empty() {
            return Err(LookupError::NotFound);
        }
        let now = Instant::now().into_std();
        let ttl = lookup.valid_until().saturating_duration_since(now);
        Ok(FoundAddresses { addresses, ttl })
    }
}

impl FoundAddresses {
    /// Adds the addresses of the other family. IPv6 addresses come first in the result.
    fn and(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        let mut addresses = [&*self.addresses, &*other.addresses].concat();
        addresses.sort_by_key(IpAddr::is_ipv4);
        Self {
            addresses: addresses.into(),
            ttl: self.ttl.min(other.ttl),
        }
    }
}

/// Whether the error is a negative answer: the name does not exist, or has no address of this
/// family.
fn is_negative_answer(error: &NetError) -> bool {
    matches!(
        error,
        NetError::Dns(DnsError::NoRecordsFound(none))
            if matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError)
    )
}

/// Builds a resolver that sends fully qualified names to one server. The resolver has no cache and
/// reads no files, because the callers cache answers and read the files.
fn resolver(address: IpAddr, port: u16, options: &ResolverOpts) -> Result<TokioResolver, NetError> {
    let mut server = NameServerConfig::udp_and_tcp(address);
    for connection in &mut server.connections {
        connection.port = port;
    }
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let own = builder.options_mut();
    *own = options.clone();
    own.use_hosts_file = ResolveHosts::Never;
    own.cache_size = 0;
    // Within the time limit, the hickory library resends the query each third of a second anyway.
    own.attempts = 0;
    own.timeout = LOOKUP_LIMIT;
    builder.build()
}

/// Returns the contents of a file. A missing file counts as empty.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text)?;
    Ok(text)
}
