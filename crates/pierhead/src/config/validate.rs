//! What no single key can say: keys that contradict each other, and what is refused for safety.

use super::load::Flags;
use super::parse::Lines;
use super::{AuthMode, Config, Problem, TierKind};

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
        if upstream.url.is_some() && !upstream.addresses.is_empty() {
            report(&at_key, format!("{table}: keep one of url and addresses"));
        }
        // A password must not be shown to a host just because it is listed beside another.
        if upstream.has_credentials()
            && upstream.login_hosts.is_empty()
            && places.iter().filter(|(_, own)| *own).count() > 1
        {
            report(
                &at_key,
                format!("{table}: say by login_hosts which of the addresses the login is for"),
            );
        }
        if !upstream.login_hosts.is_empty() && upstream.addresses.is_empty() {
            report(
                &at_key,
                format!("{table}: login_hosts is for several addresses: remove it"),
            );
        }
        let basic = [
            upstream.password.is_some(),
            upstream.password_file.is_some(),
        ];
        let token = [
            upstream.identity_token.is_some(),
            upstream.identity_token_file.is_some(),
        ];
        let ways = [
            &basic[..],
            &token[..],
            &[upstream.credential_helper.is_some()],
        ]
        .concat();
        let ways = ways.iter().filter(|way| **way).count();
        let key = format!("upstreams.{registry}");
        let at = format!("[upstreams.\"{registry}\"]");
        if ways > 1 {
            report(
                &key,
                format!(
                    "{at}: keep one of password, password_file, identity_token, identity_token_file and credential_helper"
                ),
            );
        } else if upstream.username.is_some() && !basic.contains(&true) {
            report(
                &key,
                format!("{at}: username needs password_file (or password)"),
            );
        } else if upstream.username.is_none() && basic.contains(&true) {
            report(&key, format!("{at}: a password needs username"));
        } else if upstream
            .password
            .as_ref()
            .is_some_and(super::Secret::is_empty)
        {
            report(
                &key,
                format!(
                    "{at}: password is empty: remove username and password to pull anonymously"
                ),
            );
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

/// What contradicts itself in how clients prove who they are.
pub(crate) fn auth(config: &Config) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    let mut report = |key, message: &str| problems.push((key, message.to_owned()));
    let (tls, auth) = (&config.tls, &config.auth);
    match auth.mode {
        AuthMode::Htpasswd if auth.htpasswd.is_none() => report(
            "auth.mode",
            "auth.mode = \"htpasswd\" needs a file of users: set auth.htpasswd",
        ),
        AuthMode::Mtls if tls.client_ca.is_none() => report(
            "auth.mode",
            "auth.mode = \"mtls\" needs the authorities of the clients: set tls.client_ca",
        ),
        _ => {}
    }
    if tls.client_ca.is_none() {
        if tls.client_optional {
            report(
                "tls.client_optional",
                "tls.client_optional needs tls.client_ca",
            );
        }
        if !tls.client_names.is_empty() {
            report("tls.client_names", "tls.client_names needs tls.client_ca");
        }
    } else if tls.client_optional && auth.mode != AuthMode::Htpasswd {
        report(
            "tls.client_optional",
            "tls.client_optional lets in everybody who has no certificate: set auth.mode = \"htpasswd\", or remove it",
        );
    }
    problems
}

/// An open listener would lend its upstream credentials to everybody who reaches it.
pub(crate) fn open_proxy(config: &Config) -> Option<String> {
    let closed = match config.auth.mode {
        AuthMode::None => config.tls.client_ca.is_some(),
        AuthMode::Mtls | AuthMode::Htpasswd => true,
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
