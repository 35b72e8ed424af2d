//! Reports a successful start: in the log for the operator, and in the ready file for scripts.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use pierhead_cache::Cache;
use pierhead_client_setup::Address;
use pierhead_oci::units::human_bytes;

use crate::config::{Config, files};

/// Logs version, addresses, data folder and policies, and example commands for clients of the first
/// listener.
pub(super) fn log_start(
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
        "pierhead {} listens on {}; data in {}, {} of {}; eviction {}, admission {}; admin {}",
        env!("CARGO_PKG_VERSION"),
        list.join(" "),
        config.data.display(),
        human_bytes(stat.used),
        room_used(cache.room(), stat.capacity),
        config.eviction.policy.name(),
        config.eviction.admission.name(),
        admin.map_or_else(|| "off".to_owned(), |address| format!("http://{address}")),
    );
    let name = config.tls.cert.as_deref().map(files::first_name);
    if let Some(text) = listen.first().and_then(|first| usage(*first, name)) {
        tracing::info!("{text}");
    }
}

/// Returns the size of the cache after the used bytes: of the room on the disk, if it is less than
/// `cache.size`.
fn room_used(room: u64, capacity: u64) -> String {
    match room < capacity {
        true => format!(
            "{} used (cache.size {})",
            human_bytes(room),
            human_bytes(capacity)
        ),
        false => format!("{} used", human_bytes(capacity)),
    }
}

/// Returns commands for clients of this listener. `name` is `None` without TLS. With TLS, `name` is
/// the host name in the certificate, since clients accept no other name.
fn usage(listener: SocketAddr, name: Option<Option<String>>) -> Option<String> {
    let address = match name {
        None => Address::of_listener(listener, false),
        Some(name) => format!("https://{}:{}", name?, listener.port())
            .parse()
            .ok()?,
    };
    Some(format!(
        "try `docker pull {}/docker.io/library/alpine`; for all of Docker Hub run \
         `sudo pierhead setup docker --address {address}`",
        address.authority()
    ))
}

/// Writes the ready file atomically: a script may read this file as soon as it exists.
pub(super) fn write_ready_file(
    path: &Path,
    listen: &[SocketAddr],
    admin: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let text = serde_json::json!({ "listen": listen, "admin": admin }).to_string();
    let options = pierhead_atomic_file::Options::new().without_sync();
    let written = options.write(path, text.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_on_the_disk_is_shown_if_it_is_less_than_the_size() {
        let (mib, gib) = (1 << 20, 1 << 30);
        assert_eq!(room_used(gib, gib), "1.0 GiB used");
        assert_eq!(
            room_used(30 * mib, gib),
            "30.0 MiB used (cache.size 1.0 GiB)"
        );
    }

    #[test]
    fn the_usage_has_the_host_name_of_the_certificate() {
        let listener = "0.0.0.0:5000".parse().expect("an address");
        let text = usage(listener, None).expect("an address");
        assert!(text.contains("--address http://127.0.0.1:5000`"), "{text}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tls.crt");
        for (names, expected) in [
            (&["*.b", "p.b"][..], Some("--address https://p.b:5000`")),
            (&["127.0.0.1"], None),
        ] {
            let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
            let pair = rcgen::generate_simple_self_signed(names).expect("a pair");
            std::fs::write(&path, pair.cert.pem()).expect("written");
            let usage = usage(listener, Some(files::first_name(&path)));
            assert_eq!(usage.is_some(), expected.is_some(), "{usage:?}");
            if let (Some(usage), Some(expected)) = (usage, expected) {
                assert!(usage.contains(expected), "{usage}");
            }
        }
    }
}
