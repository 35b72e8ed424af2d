//! What a start says: in the log for people, and in a file for scripts.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use pierhead_cache::Cache;
use pierhead_client_setup::Address;
use pierhead_oci::units::human_bytes;

use crate::config::{Config, files};

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
    let name = config.tls.cert.as_deref().map(files::first_name);
    if let Some(text) = listen.first().and_then(|first| usage(*first, name)) {
        tracing::info!("{text}");
    }
}

/// How clients use this listener. `name`: that of its certificate, where it has TLS; clients take no other name.
fn usage(listener: SocketAddr, name: Option<Option<String>>) -> Option<String> {
    let address = match name {
        None => Address::of_listener(listener, false),
        Some(name) => format!("https://{}:{}", name?, listener.port())
            .parse()
            .ok()?,
    };
    Some(format!(
        "try `docker pull {}/docker.io/library/alpine`; for all of Docker Hub put \
         {{\"registry-mirrors\": [\"{address}\"]}} into /etc/docker/daemon.json",
        address.authority()
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_a_name_of_the_certificate_or_none() {
        let listener = "0.0.0.0:5000".parse().expect("an address");
        let reported = usage(listener, None).expect("an address");
        assert!(reported.contains("\"http://127.0.0.1:5000\""), "{reported}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tls.crt");
        for (names, reported) in [
            (&["*.b", "p.b"][..], Some("\"https://p.b:5000\"")),
            (&["127.0.0.1"], None),
        ] {
            let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
            let pair = rcgen::generate_simple_self_signed(names).expect("a pair");
            std::fs::write(&path, pair.cert.pem()).expect("written");
            let usage = usage(listener, Some(files::first_name(&path)));
            assert_eq!(usage.is_some(), reported.is_some(), "{usage:?}");
            if let (Some(usage), Some(reported)) = (usage, reported) {
                assert!(usage.contains(reported), "{usage}");
            }
        }
    }
}
