//! From the one configuration to the small one of each crate.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;

use pierhead_cache::Cache;
use pierhead_eviction::admission::AdmissionName;
use pierhead_host::{CpuAllowance, CpuBudget};
use pierhead_oci::units::human_bytes;
use pierhead_proxy::Auth;
use pierhead_remote::{Credentials, UpstreamAddress};
use rustls::RootCertStore;

use crate::config::{AuthMode, Config, IDENTITY_TOKEN_USER, Size, Upstream, files};
use crate::environment::Environment;
use pierhead_host::machine::Machine;

/// For the registry client. Reads the files with secrets.
///
/// # Errors
/// For people: which file cannot be read.
pub(crate) fn remote(
    config: &Config,
    environment: &Environment,
) -> Result<pierhead_remote::Config, String> {
    // Of a registry's own table, and else what a Docker config has for it.
    let mut logins = match &config.docker_config {
        Some(path) => files::docker_config(path)?,
        None => HashMap::new(),
    };
    let by_docker = logins.clone();
    for (registry, upstream) in &config.upstreams {
        let own =
            credentials(upstream).map_err(|message| format!("upstream {registry}: {message}"))?;
        if let Some(own) = own {
            logins.insert(registry.clone(), own);
        }
    }
    let mut upstreams = HashMap::new();
    for (registry, upstream) in &config.upstreams {
        let mut addresses = upstream.places(registry).into_iter().map(|(url, own)| {
            let host: Option<http::Uri> = url.parse().ok();
            let host = host.and_then(|url| url.into_parts().authority);
            let name = match own {
                true => Some(registry.clone()),
                false => host.and_then(|host| host.as_str().parse().ok()),
            };
            UpstreamAddress {
                credentials: name.and_then(|name| logins.get(&name).cloned()),
                url,
                mirror: !own,
            }
        });
        let first = addresses.next().unwrap_or_default();
        let upstream = pierhead_remote::Upstream {
            url: first.url,
            credentials: first.credentials,
            mirror: first.mirror,
            others: addresses.collect(),
            ca: upstream.ca.clone(),
            trusted_hosts: upstream.trusted_hosts.clone(),
        };
        upstreams.insert(registry.clone(), upstream);
    }
    /// Least rate of a download, in bytes per second: no registry holds a download slot for ever by dripping.
    const MIN_BYTES_PER_SECOND: u64 = 10 << 10;
    let timeouts = pierhead_remote::Config::default();
    Ok(pierhead_remote::Config {
        upstreams,
        credentials: by_docker,
        roots: Arc::new(roots()),
        connect_timeout: timeouts.connect_timeout.min(config.limits.upstream_timeout),
        header_timeout: timeouts.header_timeout.min(config.limits.upstream_timeout),
        stall_timeout: config.limits.upstream_timeout,
        minimum_rate: MIN_BYTES_PER_SECOND,
        bandwidth: config.limits.upstream_bandwidth,
        https_proxy: environment.https_proxy.clone(),
        resolver: None,
        no_proxy: environment.no_proxy.clone(),
        // Helpers are found by the system's search path.
        helper_folders: Vec::new(),
    })
}

fn credentials(upstream: &Upstream) -> Result<Option<Credentials>, String> {
    if let Some(name) = &upstream.credential_helper {
        return Ok(Some(Credentials::Helper(name.clone())));
    }
    let (Some(user), Some(file)) = (&upstream.username, &upstream.password_file) else {
        return Ok(None);
    };
    let password = files::first_line(file)?.reveal();
    Ok(Some(match user == IDENTITY_TOKEN_USER {
        true => Credentials::Identity(password),
        false => Credentials::Basic {
            user: user.clone(),
            password,
        },
    }))
}

/// Who leaves the cache and who enters it, for a cache of `capacity` bytes.
pub(crate) fn eviction(config: &Config, capacity: u64) -> pierhead_cache::Eviction {
    // Lots that nobody outside can foresee.
    let seed = RandomState::new().build_hasher().finish();
    let eviction = &config.eviction;
    pierhead_cache::Eviction {
        policy_name: eviction.policy.name().into(),
        policy: eviction.policy.build(capacity, seed),
        admission_name: eviction.admission.name().into(),
        admission: match eviction.admission {
            // Nothing is asked of it, or saved.
            AdmissionName::Always => None,
            named => Some(named.build(capacity, seed)),
        },
        daily_write_budget: config.cache.daily_write_budget,
    }
}

/// For the library of bundles, on a file system where `space` is left.
pub(crate) fn library(config: &Config, space: Space) -> pierhead_bundle_server::Config {
    /// Below this bundles are of little use; nobody who did not ask for it gives more.
    const AUTO: (u64, u64) = (256 << 20, 100 << 30);
    let bundle = &config.bundle;
    let taken = ["packs", "plans"].map(|name| folder_bytes(&config.data.join(name)));
    let size = match bundle.size {
        None => 0,
        Some(Size::Auto) => {
            let available = space.free.saturating_add(taken.iter().sum());
            (available / 10).clamp(AUTO.0, AUTO.1)
        }
        Some(size) => size.resolve(space.total, 0),
    };
    let plans = size / 8;
    let mut library = pierhead_bundle_server::Config::new(&config.data, size - plans, plans);
    library.workers = bundle.workers;
    if let Some(profile) = config.profile {
        library.cpu_percent = profile.worker_cpu;
    }
    library
}

/// What may be written in a day, of which bundles take their part: they lie on the disk of the cache.
pub(crate) struct Day(pub(crate) Cache);

impl fmt::Debug for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Day")
    }
}

impl pierhead_bundle_server::WriteBudget for Day {
    fn wrote(&self, bytes: u64) {
        self.0.wrote(bytes);
    }

    fn may_write(&self, is_awaited: bool) -> bool {
        self.0.may_write(is_awaited)
    }
}

/// Bytes of the files of a folder; none when there is no such.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

/// What of the cgroup's processor time all work keeps within; `None` where nothing bounds it.
pub(crate) fn quota(machine: &Machine) -> Option<CpuBudget> {
    /// The kernel stops a process that takes all; what it counts late fits into the rest (docs/explanation/profiles.md).
    const CPU_SHARE_PERCENT: u64 = 90;
    let quota = machine.cpu_limit.as_ref()?;
    Some(CpuBudget::new(CpuAllowance {
        thousandths: quota.amount,
        period: quota.period,
        share: CPU_SHARE_PERCENT,
    }))
}

/// Worker threads: one for each core that `limits.cores` leaves, as far as the cgroup's quota keeps them busy.
pub(crate) fn threads(config: &Config, machine: &Machine) -> usize {
    /// Worker threads. More cost memory and bring nothing at the rate of an uplink.
    const MAX_THREADS: usize = 16;
    let cores = config.limits.cores.resolve(machine).ok().flatten();
    let cores = cores.map_or(MAX_THREADS, |cores| cores.len());
    let of_profile = config.profile.map(|profile| profile.threads);
    let most = of_profile.filter(|most| *most > 0).unwrap_or(MAX_THREADS);
    machine.parallel().min(cores).min(most)
}

/// For the proxy.
pub(crate) fn proxy(config: &Config) -> pierhead_proxy::Config {
    pierhead_proxy::Config {
        default_upstream: config.default_upstream.clone(),
        known: config.upstreams.keys().cloned().collect(),
        rules: config.access.clone(),
        tag_freshness: config.tags.ttl,
        answer_within: config.limits.response_timeout,
        max_connections: config.limits.connections,
        limits: pierhead_proxy::Limits {
            connections_per_client: pierhead_proxy::Limits::connections_of_one(
                config.limits.connections,
            ),
            fetches: config.limits.downloads,
            fetches_per_client: (config.limits.downloads / 2).max(1),
            fetches_per_registry: pierhead_proxy::Limits::fetches_of_one_registry(
                config.limits.downloads,
            ),
            answer_memory: config.limits.response_memory,
            answer_memory_per_client: config.limits.response_memory / 2,
            ..pierhead_proxy::Limits::default()
        },
        auth: auth(config),
        drain: config.limits.shutdown_grace,
        ..pierhead_proxy::Config::default()
    }
}

fn auth(config: &Config) -> Auth {
    let lifetime = config.auth.cache_ttl;
    match (config.auth.mode, &config.auth.htpasswd) {
        (AuthMode::None, _) => Auth::Open,
        (AuthMode::Mtls, _) => Auth::Certificate,
        (AuthMode::PassThrough, _) => Auth::PassThrough {
            lifetime,
            anonymous: config.auth.anonymous,
        },
        (AuthMode::Htpasswd | AuthMode::MtlsOrHtpasswd, Some(file)) => Auth::Htpasswd {
            file: file.clone(),
            lifetime,
        },
        // Refused before: no client has a certificate where none is asked for.
        (AuthMode::Htpasswd | AuthMode::MtlsOrHtpasswd, None) => Auth::Certificate,
    }
}

/// What is allowed and yet hardly meant: for people, each with its fix.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = readable_secrets(config);
    warnings.extend(passwords_in_the_clear(config));
    warnings.extend(authority_as_server(config));
    warnings
}

/// A certificate that pierhead's own commands refuse.
fn authority_as_server(config: &Config) -> Option<String> {
    let path = config.tls.cert.as_deref()?;
    files::is_authority(path).then(|| {
        format!(
            "tls.cert: {} is that of an authority, which pierhead's own commands refuse of a server: {}",
            path.display(),
            files::NO_AUTHORITY
        )
    })
}

/// What to say of a `cache.size` of `wanted` bytes where the file system can give `can_have`, and the fix.
pub(crate) fn size_above_disk(
    config: &Config,
    wanted: u64,
    can_have: u64,
) -> Option<(String, String)> {
    if config.cache.size == Size::Auto || wanted <= can_have {
        return None;
    }
    // As a configuration takes it.
    let fits = match can_have >> 30 {
        0 => format!("{}MiB", can_have >> 20),
        gib => format!("{gib}GiB"),
    };
    let what = format!(
        "cache.size is {}, and there is room for {} with what the cache holds",
        human_bytes(wanted),
        human_bytes(can_have)
    );
    let fix = format!("set `cache.size = \"{fits}\"`, or make room");
    Some((what, fix))
}

/// Passwords that nobody could use: said, not refused, since clients on this machine can.
fn passwords_in_the_clear(config: &Config) -> Option<String> {
    let asks = matches!(
        config.auth.mode,
        AuthMode::Htpasswd | AuthMode::MtlsOrHtpasswd | AuthMode::PassThrough
    );
    let mut listen = config.listen.iter();
    let open = listen.find(|it| !it.ip().to_canonical().is_loopback())?;
    (asks && config.tls.cert.is_none()).then(|| {
        format!(
            "passwords are taken from this machine only, and {open} is reached by others: set tls.cert and tls.key"
        )
    })
}

/// Files with secrets that everybody on this machine can read: said, not refused.
fn readable_secrets(config: &Config) -> Vec<String> {
    let upstreams = config.upstreams.values();
    upstreams
        .filter_map(|upstream| upstream.password_file.as_deref())
        .chain(config.docker_config.as_deref())
        .chain(config.auth.htpasswd.as_deref())
        .chain(config.tls.key.as_deref())
        .filter(|path| files::readable_by_all(path))
        .map(|path| {
            format!(
                "{} holds a secret and can be read by everybody: chmod 600 it",
                path.display()
            )
        })
        .collect()
}

/// TLS of the client listeners, when there is any.
pub(crate) fn tls(config: &Config) -> Option<pierhead_proxy::Tls> {
    let (Some(certificate), Some(key)) = (config.tls.cert.clone(), config.tls.key.clone()) else {
        return None;
    };
    Some(pierhead_proxy::Tls {
        certificate,
        key,
        client_ca: config.tls.client_ca.clone(),
        client_optional: config.auth.mode == AuthMode::MtlsOrHtpasswd,
        client_names: config.tls.client_names.clone(),
    })
}

/// The authorities that upstreams are trusted by: the system's, or Mozilla's list where the system has none
/// (a bare container image).
pub(crate) fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("certificate authorities of the system: {error}");
    }
    // What another program added and cannot be parsed is no reason to distrust the rest.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(
            "the system has no certificate authorities (package ca-certificates): Mozilla's list is used"
        );
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// A file system's size, and what of it may still be written, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Space {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// The file system on which `path` is, or will be once it is made.
pub(crate) fn space(path: &Path) -> io::Result<Space> {
    let absolute = std::path::absolute(path)?;
    let existing = absolute
        .ancestors()
        .find(|folder| folder.exists())
        .unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(existing)?;
    Ok(Space {
        total: stat.f_blocks.saturating_mul(stat.f_frsize),
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}
