//! Warnings about a configuration that is valid but probably not intended. Each message has its
//! fix.

use pierhead_oci::units::human_bytes;

use super::{AuthMode, Config, Size, files};

/// Returns all warnings that depend only on the configuration and its files.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = secrets_readable_by_all(config);
    warnings.extend(passwords_without_tls(config));
    warnings.extend(server_certificate_is_ca(config));
    warnings
}

/// Warns of a CA certificate in `tls.cert`, since pierhead's own commands do not accept it as the
/// certificate of a server.
fn server_certificate_is_ca(config: &Config) -> Option<String> {
    let path = config.tls.cert.as_deref()?;
    files::is_authority(path).then(|| {
        format!(
            "tls.cert: {} is a CA certificate, which pierhead's own commands refuse as a server certificate: {}",
            path.display(),
            files::NO_AUTHORITY
        )
    })
}

/// Returns the problem and its fix if `cache.size` is `wanted` bytes, but the file system has room
/// for only `available` bytes.
pub(crate) fn size_above_disk(
    config: &Config,
    wanted: u64,
    available: u64,
) -> Option<(String, String)> {
    if config.cache.size == Size::Auto || wanted <= available {
        return None;
    }
    // Rounds down to a unit that the key accepts.
    let fitting = match available >> 30 {
        0 => format!("{}MiB", available >> 20),
        gib => format!("{gib}GiB"),
    };
    let problem = format!(
        "cache.size is {}, and the disk has room for {}, the cached bytes included",
        human_bytes(wanted),
        human_bytes(available)
    );
    let fix = format!("set `cache.size = \"{fitting}\"`, or free disk space");
    Some((problem, fix))
}

/// Warns of passwords on a listener without TLS. A listener without TLS is no error, since clients
/// on this host can send passwords safely.
fn passwords_without_tls(config: &Config) -> Option<String> {
    let needs_password = matches!(
        config.auth.mode,
        AuthMode::Htpasswd
            | AuthMode::MtlsOrHtpasswd
            | AuthMode::PassThrough
            | AuthMode::PassThroughLogin
    );
    let mut listen = config.listen.iter();
    let reachable = listen.find(|it| !it.ip().to_canonical().is_loopback())?;
    (needs_password && config.tls.cert.is_none()).then(|| {
        format!(
            "without TLS, pierhead accepts passwords from this host only, and other hosts reach {reachable}: set tls.cert and tls.key"
        )
    })
}

/// Warns of files with secrets that every user of this host can read.
fn secrets_readable_by_all(config: &Config) -> Vec<String> {
    let upstreams = config.upstreams.values();
    upstreams
        .filter_map(|upstream| upstream.password_file.as_deref())
        .chain(config.docker_config.as_deref())
        .chain(config.auth.htpasswd.as_deref())
        .chain(config.tls.key.as_deref())
        .filter(|path| files::readable_by_all(path))
        .map(|path| {
            format!(
                "{} holds a secret, and every user of this host can read it: chmod 600 it",
                path.display()
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_above_the_disk_is_a_warning_with_a_size_that_fits() {
        const GIB: u64 = 1 << 30;
        let mut config = Config::with_data("/nowhere".into());
        for (size, wanted, available, fix) in [
            (Size::Auto, 100 * GIB, GIB, None),
            (Size::Bytes(100 * GIB), 100 * GIB, 100 * GIB, None),
            (
                Size::Bytes(100 * GIB),
                100 * GIB,
                42 * GIB + 7,
                Some("42GiB"),
            ),
            // Less than 1 GiB: in a smaller unit, and not 0GiB.
            (Size::Bytes(GIB), GIB, 700 << 20, Some("700MiB")),
        ] {
            config.cache.size = size;
            let found = size_above_disk(&config, wanted, available);
            let expected = fix.map(|it| format!("set `cache.size = \"{it}\"`, or free disk space"));
            assert_eq!(found.map(|it| it.1), expected);
        }
    }

    #[test]
    fn passwords_without_tls_are_a_warning_if_other_hosts_reach_the_listener() {
        let mut config = Config::with_data("/nowhere".into());
        for (mode, listen, tls, is_warning) in [
            (AuthMode::None, "0.0.0.0:5000", false, false),
            (AuthMode::Mtls, "0.0.0.0:5000", false, false),
            (AuthMode::Htpasswd, "0.0.0.0:5000", false, true),
            (AuthMode::MtlsOrHtpasswd, "[::]:5000", false, true),
            (AuthMode::PassThrough, "10.0.0.1:5000", false, true),
            (AuthMode::PassThroughLogin, "10.0.0.1:5000", false, true),
            (AuthMode::Htpasswd, "127.0.0.1:5000", false, false),
            (AuthMode::Htpasswd, "[::1]:5000", false, false),
            (AuthMode::Htpasswd, "[::ffff:127.0.0.1]:5000", false, false),
            (AuthMode::Htpasswd, "0.0.0.0:5000", true, false),
        ] {
            config.auth.mode = mode;
            config.listen = vec![listen.parse().expect("an address")];
            config.tls.cert = tls.then(|| "/cert.pem".into());
            let found = passwords_without_tls(&config);
            assert_eq!(found.is_some(), is_warning, "{} {listen}", mode.name());
            assert!(found.is_none_or(|it| it.contains(listen) && it.contains("tls.cert")));
        }
    }
}
