//! Builds the configuration of each library crate of pierhead from the configuration of the daemon.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;

use pierhead_bundle_server::MAX_TOC_MEMORY;
use pierhead_cache::Cache;
use pierhead_eviction::admission::AdmissionName;
use pierhead_host::{CpuAllowance, CpuBudget};
use pierhead_proxy::Auth;
use pierhead_remote::{Credentials, UpstreamAddress};
use rustls::RootCertStore;

use super::environment::Environment;
use super::{AuthMode, Config, IDENTITY_TOKEN_USER, Size, Upstream, files};
use pierhead_host::machine::Machine;

/// Builds the configuration of the registry client. Reads the files with secrets.
///
/// # Errors
/// A message for the operator that names the unreadable file.
pub(crate) fn remote(
    config: &Config,
    environment: &Environment,
) -> Result<pierhead_remote::Config, String> {
    // Credentials in the table of a registry take precedence over its credentials in the file of
    // `docker_config`.
    let mut credentials_of = match &config.docker_config {
        Some(path) => files::docker_config(path)?,
        None => HashMap::new(),
    };
    let docker_credentials = credentials_of.clone();
    for (registry, upstream) in &config.upstreams {
        let own =
            credentials(upstream).map_err(|message| format!("upstream {registry}: {message}"))?;
        if let Some(own) = own {
            credentials_of.insert(registry.clone(), own);
        }
    }
    let mut upstreams = HashMap::new();
    for (registry, upstream) in &config.upstreams {
        let mut addresses = upstream.urls(registry).into_iter().map(|(url, own)| {
            let host: Option<http::Uri> = url.parse().ok();
            let host = host.and_then(|url| url.into_parts().authority);
            let name = match own {
                true => Some(registry.clone()),
                false => host.and_then(|host| host.as_str().parse().ok()),
            };
            UpstreamAddress {
                credentials: name.and_then(|name| credentials_of.get(&name).cloned()),
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
    /// Minimum rate of a download in bytes per second. Without this minimum, a slow registry would
    /// occupy a download slot without end.
    const MIN_BYTES_PER_SECOND: u64 = 10 << 10;
    let timeouts = pierhead_remote::Config::default();
    Ok(pierhead_remote::Config {
        upstreams,
        credentials: docker_credentials,
        roots: Arc::new(trusted_roots()),
        connect_timeout: timeouts.connect_timeout.min(config.limits.upstream_timeout),
        header_timeout: timeouts.header_timeout.min(config.limits.upstream_timeout),
        upstream_timeout: config.limits.upstream_timeout,
        minimum_rate: MIN_BYTES_PER_SECOND,
        upstream_bandwidth: config.limits.upstream_bandwidth,
        https_proxy: environment.https_proxy.clone(),
        resolver: None,
        spawner: pierhead_remote::Spawner::default(),
        no_proxy: environment.no_proxy.clone(),
        // An empty list: pierhead looks for credential helpers in the folders of PATH.
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

/// Builds the eviction policy, admission and write budget of a cache of `capacity` bytes.
pub(crate) fn eviction(config: &Config, capacity: u64) -> pierhead_cache::Eviction {
    // A random seed, so that no client can predict which blobs the policy samples.
    let seed = RandomState::new().build_hasher().finish();
    let eviction = &config.eviction;
    pierhead_cache::Eviction {
        policy_name: eviction.policy.name().into(),
        policy: eviction.policy.build(capacity, seed),
        admission_name: eviction.admission.name().into(),
        admission: match eviction.admission {
            // The admission filter `always` admits everything, so it has no state to save.
            AdmissionName::Always => None,
            named => Some(named.build(capacity, seed)),
        },
        daily_write_budget: config.cache.daily_write_budget,
    }
}

/// Builds the configuration of the bundle server. `space` is the space of the file system of the
/// data folder.
pub(crate) fn bundle_server(
    config: &Config,
    space: FileSystemSpace,
) -> pierhead_bundle_server::Config {
    /// Minimum of `bundle.size = "auto"` in bytes. A smaller size would hold too few packs to be
    /// useful.
    const MIN_AUTO_BYTES: u64 = 256 << 20;
    /// Maximum of `bundle.size = "auto"` in bytes. An operator must configure a larger size.
    const MAX_AUTO_BYTES: u64 = 100 << 30;
    let bundle = &config.bundle;
    let in_use = ["packs", "plans"].map(|name| folder_bytes(&config.data.join(name)));
    let size = match bundle.size {
        None => 0,
        Some(Size::Auto) => {
            let available = space.free.saturating_add(in_use.iter().sum());
            (available / 10).clamp(MIN_AUTO_BYTES, MAX_AUTO_BYTES)
        }
        Some(size) => size.resolve(space.total, 0),
    };
    let plans = size / 8;
    let mut server = pierhead_bundle_server::Config::new(&config.data, size - plans, plans);
    server.workers = bundle.workers;
    server.toc_memory = toc_memory(config.limits.memory);
    if let Some(profile) = config.profile {
        server.cpu_percent = profile.worker_cpu;
    }
    server
}

/// Returns the memory for TOCs (tables of contents) of planning: an eighth of `limits.memory`, at
/// most [`MAX_TOC_MEMORY`].
fn toc_memory(limit: Option<u64>) -> u64 {
    /// The part of `limits.memory` for TOCs: one in this number.
    const TOC_SHARE: u64 = 8;
    limit.map_or(MAX_TOC_MEMORY, |limit| {
        (limit / TOC_SHARE).min(MAX_TOC_MEMORY)
    })
}

/// The daily write budget of the cache, which also limits the writes of bundles, since bundles are
/// on the same disk as blobs.
pub(crate) struct BundleWriteBudget(pub(crate) Cache);

impl fmt::Debug for BundleWriteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BundleWriteBudget")
    }
}

impl pierhead_bundle_server::WriteBudget for BundleWriteBudget {
    fn wrote(&self, bytes: u64) {
        self.0.count_written(bytes);
    }

    fn may_write(&self, is_awaited: bool) -> bool {
        self.0.may_write(is_awaited)
    }
}

/// Returns the total bytes of the files in a folder, or 0 if the folder does not exist.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

/// Returns the CPU time that all work shares, from the CPU quota of the cgroup; `None` without a
/// quota.
pub(crate) fn cpu_budget(machine: &Machine) -> Option<CpuBudget> {
    /// Share of the quota that pierhead uses, in percent. The kernel throttles a process that uses
    /// 100 %, and the kernel counts CPU time with a delay (docs/explanation/profiles.md).
    const CPU_SHARE_PERCENT: u64 = 90;
    let quota = machine.cpu_limit.as_ref()?;
    Some(CpuBudget::new(CpuAllowance {
        thousandths: quota.amount,
        period: quota.period,
        share: CPU_SHARE_PERCENT,
    }))
}

/// Returns the number of worker threads: one per core of `limits.cores`, and at most as many as the
/// CPU quota of the cgroup keeps busy.
pub(crate) fn worker_threads(config: &Config, machine: &Machine) -> usize {
    /// Maximum number of worker threads. More threads take memory and do not raise the throughput
    /// of an uplink.
    const MAX_THREADS: usize = 16;
    let cores = config.limits.cores.resolve(machine).ok().flatten();
    let cores = cores.map_or(MAX_THREADS, |cores| cores.len());
    let of_profile = config.profile.map(|profile| profile.threads);
    let max = of_profile.filter(|max| *max > 0).unwrap_or(MAX_THREADS);
    machine.parallel().min(cores).min(max)
}

/// Builds the configuration of the proxy.
pub(crate) fn proxy(config: &Config) -> pierhead_proxy::Config {
    let kept = config.upstreams.iter();
    let kept = kept.filter(|(_, upstream)| upstream.keep_deleted);
    pierhead_proxy::Config {
        default_upstream: config.default_upstream.clone(),
        upstreams: config.upstreams.keys().cloned().collect(),
        keep_deleted: kept.map(|(registry, _)| registry.clone()).collect(),
        rules: config.access.clone(),
        tags_ttl: config.tags.ttl,
        response_timeout: config.limits.response_timeout,
        max_connections: config.limits.connections,
        limits: pierhead_proxy::Limits::new(
            config.limits.connections,
            config.limits.downloads,
            config.limits.response_memory,
        ),
        auth: auth(config),
        shutdown_grace: config.limits.shutdown_grace,
        ..pierhead_proxy::Config::default()
    }
}

fn auth(config: &Config) -> Auth {
    let cache_ttl = config.auth.cache_ttl;
    match (config.auth.mode, &config.auth.htpasswd) {
        (AuthMode::None, _) => Auth::Open,
        (AuthMode::Mtls, _) => Auth::Certificate,
        (mode @ (AuthMode::PassThrough | AuthMode::PassThroughLogin), _) => Auth::PassThrough {
            cache_ttl,
            anonymous: mode == AuthMode::PassThrough,
        },
        (AuthMode::Htpasswd | AuthMode::MtlsOrHtpasswd, Some(file)) => Auth::Htpasswd {
            file: file.clone(),
            cache_ttl,
        },
        // `config::load` refuses this combination of keys. If it happened nevertheless,
        // `Certificate` would deny every client, since the listener has no `tls.client_ca`.
        (AuthMode::Htpasswd | AuthMode::MtlsOrHtpasswd, None) => Auth::Certificate,
    }
}

/// Builds the TLS settings of the client listeners. Returns `None` without `tls.cert`.
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

/// Returns the certificate authorities that pierhead trusts for upstreams: the authorities of the
/// system, or Mozilla's list if the system has none, as in a minimal container image.
pub(crate) fn trusted_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("certificate authorities of the system: {error}");
    }
    // A certificate that cannot be parsed does not invalidate the other certificates.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(
            "the system has no certificate authorities: pierhead uses Mozilla's list (install the package ca-certificates for the system's own)"
        );
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// The size in bytes of a file system, and the free part that this user can write to.
#[derive(Clone, Copy)]
pub(crate) struct FileSystemSpace {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// Reads the space of the file system of `path`. If `path` does not exist, reads the space of the
/// closest folder above it that exists.
pub(crate) fn file_system_space(path: &Path) -> io::Result<FileSystemSpace> {
    let absolute = std::path::absolute(path)?;
    let existing = absolute
        .ancestors()
        .find(|folder| folder.exists())
        .unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(existing)?;
    Ok(FileSystemSpace {
        total: stat.f_blocks.saturating_mul(stat.f_frsize),
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Registry;

    use super::*;
    use crate::config::Overrides;

    /// Loads a configuration file. `FOLDER` in the text becomes the folder of the file.
    fn config(folder: &Path, text: &str) -> Config {
        let file = folder.join("pierhead.toml");
        let text = text.replace("FOLDER", &folder.display().to_string());
        std::fs::write(&file, text).expect("written");
        let overrides = Overrides {
            listen: vec![([127, 0, 0, 1], 5000).into()],
            ..Overrides::default()
        };
        crate::config::load(Some(&file), &overrides, folder, &Machine::default())
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// A readable form of the credentials.
    fn shown(credentials: Option<&Credentials>) -> String {
        match credentials {
            None => "none".to_owned(),
            Some(Credentials::Basic { user, password }) => format!("{user}:{}", password.as_str()),
            Some(Credentials::Identity(token)) => format!("token {}", token.as_str()),
            Some(Credentials::Helper(name)) => format!("helper {name}"),
            Some(_) => "another kind".to_owned(),
        }
    }

    #[test]
    fn each_address_gets_the_credentials_of_its_own_registry() {
        let folder = tempfile::tempdir().expect("a folder");
        // docker:hub, and user:mirror
        let docker = r#"{"auths":{
            "https://index.docker.io/v1/":{"auth":"ZG9ja2VyOmh1Yg=="},
            "mirror.example":{"auth":"dXNlcjptaXJyb3I="},
            "quay.io":{"auth":"ZG9ja2VyOmh1Yg=="}}}"#;
        std::fs::write(folder.path().join("config.json"), docker).expect("written");
        std::fs::write(folder.path().join("password"), "own\n").expect("written");
        let config = config(
            folder.path(),
            r#"
docker_config = "FOLDER/config.json"
[upstreams."docker.io"]
addresses = ["https://mirror.example", "https://other.example", "https://registry-1.docker.io"]
[upstreams."quay.io"]
username = "me"
password_file = "FOLDER/password"
[upstreams."ghcr.io"]
credential_helper = "pass"
[upstreams."azure.example"]
username = "<token>"
password_file = "FOLDER/password"
[upstreams."registry.lab"]
addresses = "http://10.0.0.5:5000"
username = "me"
password_file = "FOLDER/password"
"#,
        );
        let remote = remote(&config, &Environment::read()).expect("readable files");
        // (registry, number of its address, credentials, whether the address is a mirror)
        for (registry, address, credentials, mirror) in [
            ("docker.io", 0, "user:mirror", true),
            ("docker.io", 1, "none", true),
            ("docker.io", 2, "docker:hub", false),
            // The table of a registry takes precedence over docker_config.
            ("quay.io", 0, "me:own", false),
            ("ghcr.io", 0, "helper pass", false),
            ("azure.example", 0, "token own", false),
            // The only address of a registry is the registry itself, under any name.
            ("registry.lab", 0, "me:own", false),
        ] {
            let name: Registry = registry.parse().expect("a name");
            let upstream = &remote.upstreams[&name];
            let (found, is_mirror) = match address {
                0 => (upstream.credentials.as_ref(), upstream.mirror),
                nth => {
                    let other = &upstream.others[nth - 1];
                    (other.credentials.as_ref(), other.mirror)
                }
            };
            assert_eq!(shown(found), credentials, "{registry} {address}");
            assert_eq!(is_mirror, mirror, "{registry} {address}");
        }
        // limits.upstream_timeout also caps the time limits for connecting and for the response
        // headers.
        let mut fast = config;
        fast.limits.upstream_timeout = std::time::Duration::from_secs(1);
        let remote = super::remote(&fast, &Environment::read()).expect("readable files");
        assert_eq!(remote.connect_timeout, fast.limits.upstream_timeout);
        assert_eq!(remote.header_timeout, fast.limits.upstream_timeout);
        // A file that vanishes after the check is an error with its name.
        std::fs::remove_file(folder.path().join("password")).expect("removed");
        let error = super::remote(&fast, &Environment::read()).expect_err("an error");
        assert!(
            error.starts_with("upstream ") && error.contains("password"),
            "{error}"
        );
    }

    #[test]
    fn the_authentication_mode_decides_what_a_client_needs() {
        let mut config = Config::with_data("/nowhere".into());
        let file = Path::new("/users");
        for (mode, htpasswd, expected) in [
            (AuthMode::None, None, "Open"),
            (AuthMode::None, Some(file), "Open"),
            (AuthMode::Mtls, None, "Certificate"),
            (AuthMode::PassThrough, None, "PassThrough, anonymous"),
            (AuthMode::PassThroughLogin, None, "PassThrough"),
            (AuthMode::Htpasswd, Some(file), "Htpasswd"),
            (AuthMode::MtlsOrHtpasswd, Some(file), "Htpasswd"),
            // Without users, no client may pull.
            (AuthMode::Htpasswd, None, "Certificate"),
            (AuthMode::MtlsOrHtpasswd, None, "Certificate"),
        ] {
            config.auth.mode = mode;
            config.auth.htpasswd = htpasswd.map(Path::to_owned);
            let name = match auth(&config) {
                Auth::Open => "Open",
                Auth::Certificate => "Certificate",
                Auth::PassThrough {
                    anonymous: true, ..
                } => "PassThrough, anonymous",
                Auth::PassThrough {
                    anonymous: false, ..
                } => "PassThrough",
                Auth::Htpasswd { .. } => "Htpasswd",
                _ => "another",
            };
            assert_eq!(name, expected, "{} {htpasswd:?}", mode.name());
        }
    }

    #[test]
    fn tls_needs_both_files_and_a_certificate_is_optional_in_one_mode() {
        let mut config = Config::with_data("/nowhere".into());
        assert!(tls(&config).is_none());
        config.tls.cert = Some("/cert.pem".into());
        assert!(tls(&config).is_none(), "without a key");
        config.tls.key = Some("/key.pem".into());
        for (mode, is_optional) in [
            (AuthMode::None, false),
            (AuthMode::Mtls, false),
            (AuthMode::Htpasswd, false),
            (AuthMode::MtlsOrHtpasswd, true),
        ] {
            config.auth.mode = mode;
            let tls = tls(&config).expect("both files");
            assert_eq!(tls.client_optional, is_optional, "{}", mode.name());
        }
    }

    #[test]
    fn the_automatic_size_of_bundles_is_a_tenth_of_the_free_space_within_bounds() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::with_data(folder.path().to_owned());
        const GIB: u64 = 1 << 30;
        // (free space, total of packs and plans)
        for (free, expected) in [
            (0, GIB / 4),
            (GIB, GIB / 4),
            (100 * GIB, 10 * GIB),
            (1 << 50, 100 * GIB),
        ] {
            config.bundle.size = Some(Size::Auto);
            let space = FileSystemSpace { total: free, free };
            let server = bundle_server(&config, space);
            let size = server.pack_budget + server.plan_budget;
            assert_eq!(size, expected, "{free}");
            assert_eq!(server.plan_budget, expected / 8, "{free}");
        }
        // Bytes that bundles take already count as free, so that the size does not shrink.
        std::fs::create_dir(folder.path().join("packs")).expect("made");
        let pack = std::fs::File::create(folder.path().join("packs/1.pack")).expect("made");
        pack.set_len(50 * GIB).expect("a sparse file");
        let space = FileSystemSpace {
            total: 100 * GIB,
            free: 50 * GIB,
        };
        let server = bundle_server(&config, space);
        assert_eq!(server.pack_budget + server.plan_budget, 10 * GIB);
        config.bundle.size = None;
        let server = bundle_server(&config, space);
        assert_eq!(
            server.pack_budget + server.plan_budget,
            0,
            "bundles are off"
        );
    }

    #[test]
    fn the_space_of_a_missing_folder_is_that_of_the_folder_above() {
        let folder = tempfile::tempdir().expect("a folder");
        let above = file_system_space(folder.path()).expect("a file system");
        let missing = folder.path().join("not/yet/there");
        let found = file_system_space(&missing).expect("a file system");
        assert!(found.total > 0 && found.total == above.total);
        assert!(found.free <= found.total);
    }
}
