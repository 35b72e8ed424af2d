//! Checks combinations of configuration keys: refuses keys that contradict each other, and
//! combinations that are unsafe.

use std::collections::HashMap;

use super::key_locations::Lines;
use super::self_loop::self_loops;
use super::{AuthMode, Config, Problem, TierKind};

/// The keys that the command line sets, each with its flag.
pub(super) type Flags = HashMap<&'static str, &'static str>;

/// Returns a problem for every contradiction. `lines` has the line of each key in the file, and
/// `flags` has the flag of each key that the command line sets.
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
                "network.interface = {interface:?} needs a wildcard address in listen, and listen has only fixed addresses: \
                 write 0.0.0.0:PORT into listen, or remove one of the two keys"
            ),
        );
    }
    for (registry, upstream) in &config.upstreams {
        let at_key = format!("upstreams.{registry}");
        let table = format!("[upstreams.\"{registry}\"]");
        let urls = upstream.urls(registry);
        // A password is not sent to a host only because the table of this registry lists that host:
        // the host must have the registry's name.
        if upstream.has_credentials()
            && upstream.credential_hosts.is_empty()
            && urls.iter().filter(|(_, own)| *own).count() > 1
        {
            report(
                &at_key,
                format!(
                    "{table}: set credential_hosts to the hosts of addresses that get the credentials"
                ),
            );
        }
        if !upstream.credential_hosts.is_empty() && upstream.addresses.len() < 2 {
            report(
                &at_key,
                format!("{table}: credential_hosts needs several addresses: remove it"),
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
    for (key, message) in self_loops(config) {
        report(&key, message);
    }
    if let Some(message) = open_proxy(config) {
        let is_set = |key: &str| lines.contains_key(key) || flags.contains_key(key);
        // If listen has its default, the message has the line of the credentials.
        let mut credentials = config.upstreams.iter().filter(|it| it.1.has_credentials());
        match credentials.next() {
            _ if is_set("listen") => report("listen", message),
            Some((registry, _)) => report(&format!("upstreams.{registry}"), message),
            None => report("docker_config", message),
        }
    }
    problems
}

fn no_tier_path(kind: TierKind) -> String {
    let kind = kind.as_str();
    format!(
        "tier.kind = \"{kind}\" needs the file of the tier: set tier.path, or tier.kind = \"off\""
    )
}

/// Returns the contradictions between the keys of client authentication.
pub(crate) fn auth(config: &Config) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    let (tls, auth) = (&config.tls, &config.auth);
    let mode = auth.mode.name();
    let (needs_password, needs_certificate) = match auth.mode {
        AuthMode::None | AuthMode::PassThrough | AuthMode::PassThroughLogin => (false, false),
        AuthMode::Htpasswd => (true, false),
        AuthMode::Mtls => (false, true),
        AuthMode::MtlsOrHtpasswd => (true, true),
    };
    if needs_password && auth.htpasswd.is_none() {
        let message = format!("auth.mode = \"{mode}\" needs a file of users: set auth.htpasswd");
        problems.push(("auth.mode", message));
    }
    if needs_certificate && tls.client_ca.is_none() {
        let message = format!(
            "auth.mode = \"{mode}\" needs the CA of the client certificates: set tls.client_ca"
        );
        problems.push(("auth.mode", message));
    }
    if tls.client_ca.is_none() && !tls.client_names.is_empty() {
        let message = "tls.client_names needs tls.client_ca".to_owned();
        problems.push(("tls.client_names", message));
    }
    problems
}

/// Refuses a listener without authentication together with upstream credentials: every client that
/// reaches the listener could pull private images with pierhead's credentials.
pub(crate) fn open_proxy(config: &Config) -> Option<String> {
    let is_restricted = match config.auth.mode {
        AuthMode::None => config.tls.client_ca.is_some(),
        AuthMode::Mtls | AuthMode::Htpasswd | AuthMode::MtlsOrHtpasswd => true,
        // In these modes, clients send their own credentials to the registry. Only
        // `pierhead cache warm` uses the configured credentials.
        AuthMode::PassThrough | AuthMode::PassThroughLogin => true,
    };
    if config.allow_open_proxy_with_credentials || is_restricted {
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
    let credentials = match (named, &config.docker_config) {
        (Some((registry, _)), _) => format!("credentials for {registry}"),
        (None, Some(path)) => format!("the credentials of {}", path.display()),
        (None, None) => return None,
    };
    Some(format!(
        "every client that reaches {open} could pull with {credentials}: listen on 127.0.0.1 only, \
         require a certificate (tls.client_ca) or a password (auth.mode), or set allow_open_proxy_with_credentials = true \
         if every client that can connect may use these credentials"
    ))
}

/// Whether an address is a loopback address, also in the IPv6 form of IPv4 addresses
/// (`::ffff:127.0.0.1`).
fn is_loopback(ip: std::net::IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}
