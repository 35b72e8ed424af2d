//! What no single key can say: keys that contradict each other, and what is refused for safety.

use std::collections::HashMap;

use super::key_locations::Lines;
use super::{AuthMode, Config, Problem, TierKind};

/// The keys that the command line overrides, each with its flag.
pub(super) type Flags = HashMap<&'static str, &'static str>;

/// Every contradiction. `lines` says where the keys stand, as far as they come from a file, and `flags` which the command line said
/// over it.
pub(crate) fn validate(config: &Config, lines: &Lines, flags: &Flags) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |key: &str, message: String| {
        problems.push(Problem {
            flag: flags.get(key).copied(),
            ..Problem::new(lines.get(key).copied(), message)
        });
    };

    match (&config.tls.cert, &config.tls.key) {
        (Some(_), None) => report(
            "tls.cert",
            "tls.cert needs its private key: set tls.key".to_owned(),
        ),
        (None, Some(_)) => report(
            "tls.key",
            "tls.key needs its certificate: set tls.cert".to_owned(),
        ),
        (None, None) if config.tls.client_ca.is_some() => {
            report(
                "tls.client_ca",
                "tls.client_ca needs TLS: set tls.cert and tls.key".to_owned(),
            );
        }
        _ => {}
    }
    for (key, message) in auth(config) {
        report(key, message);
    }
    if let Some(admin) = config.admin
        && admin.port() != 0
        && config.listen.contains(&admin)
    {
        report(
            "admin",
            format!("admin and listen are both {admin}: give one of them another port"),
        );
    }
    for (index, address) in config.listen.iter().enumerate() {
        if address.port() != 0 && config.listen[..index].contains(address) {
            report("listen", format!("listen names {address} twice: keep one"));
        }
    }
    if config.tier.kind != TierKind::Off && config.tier.path.is_none() {
        report("tier.kind", no_tier_path(config.tier.kind));
    }
    if let Some(interface) = &config.network.interface
        && !config.listen.iter().any(|it| it.ip().is_unspecified())
    {
        report(
            "network.interface",
            format!(
                "network.interface = {interface:?} chooses among the addresses of this machine, and listen names none but \
                 fixed ones: write 0.0.0.0:PORT into listen, or remove one of the two keys"
            ),
        );
    }
    for (registry, upstream) in &config.upstreams {
        let at_key = format!("upstreams.{registry}");
        let table = format!("[upstreams.\"{registry}\"]");
        let places = upstream.places(registry);
        // A password must not be shown to a host just because it is listed beside another.
        if upstream.has_credentials()
            && upstream.credential_hosts.is_empty()
            && places.iter().filter(|(_, own)| *own).count() > 1
        {
            report(
                &at_key,
                format!(
                    "{table}: write into credential_hosts which of the addresses get the credentials"
                ),
            );
        }
        if !upstream.credential_hosts.is_empty() && upstream.addresses.len() < 2 {
            report(
                &at_key,
                format!("{table}: credential_hosts is for several addresses: remove it"),
            );
        }
        let (user, file) = (&upstream.username, &upstream.password_file);
        if file.is_some() && upstream.credential_helper.is_some() {
            report(
                &at_key,
                format!("{table}: keep one of password_file and credential_helper"),
            );
        } else if user.is_some() && file.is_none() {
            report(&at_key, format!("{table}: username needs password_file"));
        } else if user.is_none() && file.is_some() {
            report(&at_key, format!("{table}: password_file needs username"));
        }
    }
    if let Some(message) = open_proxy(config) {
        report("listen", message);
    }
    problems
}

fn no_tier_path(kind: TierKind) -> String {
    let kind = kind.as_str();
    format!(
        "tier.kind = \"{kind}\" needs the file of the tier: set tier.path, or tier.kind = \"off\""
    )
}

/// Contradictions in how clients authenticate.
pub(crate) fn auth(config: &Config) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    let (tls, auth) = (&config.tls, &config.auth);
    let mode = auth.mode.name();
    let (asks_password, asks_certificate) = match auth.mode {
        AuthMode::None | AuthMode::PassThrough => (false, false),
        AuthMode::Htpasswd => (true, false),
        AuthMode::Mtls => (false, true),
        AuthMode::MtlsOrHtpasswd => (true, true),
    };
    if asks_password && auth.htpasswd.is_none() {
        let message = format!("auth.mode = \"{mode}\" needs a file of users: set auth.htpasswd");
        problems.push(("auth.mode", message));
    }
    if asks_certificate && tls.client_ca.is_none() {
        let message = format!(
            "auth.mode = \"{mode}\" needs the authorities of the clients: set tls.client_ca"
        );
        problems.push(("auth.mode", message));
    }
    if tls.client_ca.is_none() && !tls.client_names.is_empty() {
        let message = "tls.client_names needs tls.client_ca".to_owned();
        problems.push(("tls.client_names", message));
    }
    problems
}

/// An open listener would lend its upstream credentials to everybody who reaches it.
pub(crate) fn open_proxy(config: &Config) -> Option<String> {
    let closed = match config.auth.mode {
        AuthMode::None => config.tls.client_ca.is_some(),
        AuthMode::Mtls | AuthMode::Htpasswd | AuthMode::MtlsOrHtpasswd => true,
        // Clients are asked for their own, and ours are for `pierhead cache warm` only.
        AuthMode::PassThrough => true,
    };
    if config.allow_open_proxy_with_credentials || closed {
        return None;
    }
    let open = config
        .listen
        .iter()
        .find(|address| !is_loopback(address.ip()))?;
    let named = config
        .upstreams
        .iter()
        .find(|(_, upstream)| upstream.has_credentials());
    let whose = match (named, &config.docker_config) {
        (Some((registry, _)), _) => format!("credentials for {registry}"),
        (None, Some(path)) => format!("the credentials of {}", path.display()),
        (None, None) => return None,
    };
    Some(format!(
        "pierhead would lend {whose} to everybody who reaches {open}: listen on 127.0.0.1 only, \
         or ask clients for a certificate (tls.client_ca) or a password (auth.mode), or set allow_open_proxy_with_credentials = true \
         if everybody who can connect may pull what these credentials can"
    ))
}

/// Also when written as an IPv6 address that carries an IPv4 one.
fn is_loopback(ip: std::net::IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}
