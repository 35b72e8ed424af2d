//! What a start says: in the log for people, and in a file for scripts.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use pierhead_cache::Cache;

use crate::config::{Config, human_bytes};

/// The lines that people look for after a start.
pub(super) fn announce(
    config: &Config,
    cache: &Cache,
    listen: &[SocketAddr],
    admin: Option<SocketAddr>,
) {
    let stat = cache.stat();
    let scheme = if config.tls.cert.is_some() {
        "https"
    } else {
        "http"
    };
    let list: Vec<_> = listen
        .iter()
        .map(|address| format!("{scheme}://{address}"))
        .collect();
    tracing::info!(
        "pierhead {} listens on {}; data in {}, {} of {} used; eviction {}, admission {}; admin {}",
        env!("CARGO_PKG_VERSION"),
        list.join(" "),
        config.data.display(),
        human_bytes(stat.used),
        human_bytes(stat.capacity),
        config.eviction.policy.name(),
        config.eviction.admission.name(),
        admin.map_or_else(|| "off".to_owned(), |address| format!("http://{address}")),
    );
    if let Some(first) = listen.first() {
        let host = if first.ip().is_unspecified() {
            "127.0.0.1".to_owned()
        } else {
            first.ip().to_string()
        };
        let host = if first.is_ipv6() && !first.ip().is_unspecified() {
            format!("[{host}]")
        } else {
            host
        };
        let port = first.port();
        tracing::info!(
            "try `docker pull {host}:{port}/docker.io/library/alpine`; for all of Docker Hub put \
             {{\"registry-mirrors\": [\"{scheme}://{host}:{port}\"]}} into /etc/docker/daemon.json"
        );
    }
}

/// Whole or not at all: whoever waits for the file may read it as soon as it is there.
pub(super) fn write_ready(
    path: &Path,
    listen: &[SocketAddr],
    admin: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let text = serde_json::json!({ "listen": listen, "admin": admin }).to_string();
    let write = || {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        std::fs::write(&name, text)?;
        std::fs::rename(&name, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
