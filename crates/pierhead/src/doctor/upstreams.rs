//! Checks the upstreams: whether each registry responds, how fast, whether the credentials work,
//! and whether its clock agrees with the clock of this host.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use pierhead_oci::Registry;
use pierhead_remote::{CertificateFault, Client, Error, HostProbe, ProbeResponse};
use tokio::task::JoinSet;

use super::report::{Finding, Severity};
use crate::config::Config;
use crate::config::crate_configs;
use crate::config::environment::Environment;
use pierhead_host::clock;

/// Time limit of the check of one upstream: DNS, TCP, TLS, a request and authentication. Each of
/// these steps also has a shorter time limit of its own.
const PROBE_TIMEOUT: Duration = Duration::from_secs(12);
/// Maximum difference between the clock of this host and the clock of an upstream. A larger
/// difference can make certificates and tokens invalid.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Checks the configured upstreams, the default upstream and the registries of `--registry`. All
/// these registries are checked concurrently.
pub(crate) async fn check(
    config: &Config,
    environment: &Environment,
    additional: &[Registry],
) -> Vec<Finding> {
    let config_error = |what: String| {
        let fix = "fix the file; `pierhead config check FILE` also checks the files that it names";
        vec![Finding::fail("upstreams", what, fix)]
    };
    let remote = match crate_configs::remote(config, environment) {
        Ok(remote) => remote,
        Err(message) => return config_error(message),
    };
    let client = match Client::new(remote) {
        Ok(client) => client,
        Err(error) => return config_error(error.to_string()),
    };
    let mut names: Vec<Registry> = config.upstreams.keys().cloned().collect();
    for name in std::iter::once(&config.default_upstream).chain(additional) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names.sort();
    let mut checks = JoinSet::new();
    for name in names {
        let client = client.clone();
        checks.spawn(async move { check_upstream(&client, &name).await });
    }
    let mut findings: Vec<_> = checks.join_all().await.into_iter().flatten().collect();
    findings.sort_by(|a, b| a.about.cmp(&b.about));
    findings
}

async fn check_upstream(client: &Client, name: &Registry) -> Vec<Finding> {
    let about = format!("upstream {name}");
    let probes = match tokio::time::timeout(PROBE_TIMEOUT, client.probe(name)).await {
        Ok(Ok(probes)) => probes,
        Ok(Err(error)) => return vec![failed(&about, name, None, &error)],
        Err(_) => {
            let what = format!("no response within {} s", PROBE_TIMEOUT.as_secs());
            let url = format!("https://{name}");
            return vec![Finding::fail(about, what, no_response_fix(&url))];
        }
    };
    let several = probes.len() > 1;
    let mut findings = Vec::new();
    for probe in &probes {
        let at = several.then_some(probe.address.as_str());
        findings.push(match &probe.result {
            Ok(response) => {
                let took = probe.elapsed.as_millis();
                check_response(&about, name, probe.has_credentials, at, response, took)
            }
            Err(error) => failed(&about, name, Some((probe, at)), error),
        });
        if let Ok(ProbeResponse {
            date: Some(date), ..
        }) = &probe.result
        {
            findings.extend(skew(name, *date, clock::now()));
        }
    }
    // If another address of this upstream works, the failed address is only a warning, since pulls
    // then use the working address.
    if findings.iter().any(|finding| finding.level == Severity::Ok) {
        for finding in &mut findings {
            if finding.about == about && finding.level == Severity::Fail {
                finding.level = Severity::Warn;
            }
        }
    }
    findings
}

fn check_response(
    about: &str,
    name: &Registry,
    has_credentials: bool,
    at: Option<&str>,
    response: &ProbeResponse,
    took: u128,
) -> Finding {
    let at = at.map(|at| format!("{at} ")).unwrap_or_default();
    match (response.status, has_credentials) {
        (200..=299, true) if response.demands_authentication => Finding::ok(
            about,
            format!("{at}responds in {took} ms, and the credentials work"),
        ),
        (200..=299, true) => Finding::ok(
            about,
            format!("{at}responds in {took} ms, and checks credentials per repository only"),
        ),
        (401 | 403, true) => Finding::fail(
            about,
            format!(
                "{at}refuses the configured credentials ({})",
                response.status
            ),
            format!(
                "check username and password_file of [upstreams.\"{name}\"], or whether the token has expired"
            ),
        ),
        (401, false) => Finding::ok(
            about,
            format!("{at}responds in {took} ms, and needs credentials, which are not configured"),
        ),
        (200..=299, false) => Finding::ok(about, format!("{at}responds in {took} ms")),
        (429, has_credentials) => Finding::warn(
            about,
            format!("{at}limits our rate (429)"),
            rate_fix(name, has_credentials),
        ),
        (status, _) => Finding::fail(
            about,
            format!("{at}responds with {status}; a registry responds with 200 or 401"),
            format!("check the addresses of [upstreams.\"{name}\"]: each must be a registry"),
        ),
    }
}

fn skew(name: &Registry, theirs: SystemTime, ours: SystemTime) -> Option<Finding> {
    let ahead = ours.duration_since(theirs);
    let by = ahead.clone().unwrap_or_else(|behind| behind.duration());
    (by > MAX_CLOCK_SKEW).then(|| {
        let way = if ahead.is_ok() { "ahead of" } else { "behind" };
        Finding::fail(
            "clock",
            format!(
                "the clock of this host is {} s {way} that of {name}: certificates and tokens may be rejected",
                by.as_secs()
            ),
            "`timedatectl set-ntp true`, or run chrony",
        )
    })
}

fn no_response_fix(url: &str) -> String {
    let mut fix = format!("try `curl -sI {url}/v2/`");
    let host = host_of(url);
    let is_loopback = host == "localhost"
        || host
            .trim_matches(['[', ']'])
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback());
    // pierhead connects by the proxy only to https addresses of other machines.
    if url.starts_with("https://") && !is_loopback {
        fix.push_str("; behind a proxy, set https_proxy in pierhead's environment");
    }
    fix
}

/// Returns the host of a URL, without the port.
fn host_of(url: &str) -> String {
    let uri = url.parse::<http::Uri>();
    uri.ok()
        .and_then(|uri| uri.host().map(str::to_owned))
        .unwrap_or_default()
}

fn rate_fix(name: &Registry, has_credentials: bool) -> String {
    match has_credentials {
        true => "wait: the registry allows more requests later".to_owned(),
        false => format!(
            "wait, or set username and password_file in [upstreams.\"{name}\"]: registries allow more requests with credentials"
        ),
    }
}

fn resolve_fix(url: &str) -> String {
    format!(
        "check /etc/resolv.conf, and try `getent hosts {}`",
        host_of(url)
    )
}

/// Returns the fix for a failed TLS handshake whose error text is `what`.
fn tls_fix(name: &Registry, fault: Option<&CertificateFault>, what: &str) -> String {
    let fix = match fault {
        Some(CertificateFault::Issuer) => {
            return format!("for a private CA set `ca` in [upstreams.\"{name}\"]");
        }
        Some(CertificateFault::Certificate) if what.contains("expired") => {
            "renew the certificate of the registry, or correct the clock of this machine"
        }
        Some(CertificateFault::Certificate) if what.contains("not valid for name") => {
            "write an address with a name of the certificate"
        }
        Some(_) => "install a new certificate on the registry",
        None => "if the registry has plain HTTP, write its address with http://",
    };
    fix.to_owned()
}

fn failed(
    about: &str,
    name: &Registry,
    probe: Option<(&HostProbe, Option<&str>)>,
    error: &Error,
) -> Finding {
    let text = error.to_string();
    let what = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text);
    let has_credentials = probe.is_some_and(|(probe, _)| probe.has_credentials);
    let what = match probe.and_then(|(_, at)| at) {
        Some(at) => format!("{at}: {what}"),
        None => what.to_owned(),
    };
    if let Error::Transport {
        certificate: Some(CertificateFault::Clock),
        ..
    } = error
    {
        return Finding::clock_error(about, what);
    }
    let url = probe.map_or_else(
        || format!("https://{name}"),
        |(probe, _)| probe.address.clone(),
    );
    // A client must not learn whether a name exists, but the operator has to.
    if let Error::NoSuchHost { .. } = error {
        let what = format!("{} cannot be resolved", host_of(&url));
        return Finding::fail(about, what, resolve_fix(&url));
    }
    if let Error::RateLimited { .. } = error {
        return Finding::warn(about, what, rate_fix(name, has_credentials));
    }
    let fix = match error {
        Error::Forbidden { .. } | Error::Config { .. } => {
            format!("add [upstreams.\"{name}\"] if pierhead may connect to it")
        }
        Error::Denied { .. } if has_credentials => {
            format!("check username and password_file of [upstreams.\"{name}\"]")
        }
        Error::Denied { .. } => format!("set username and password_file in [upstreams.\"{name}\"]"),
        Error::Transport { .. } if what.contains("cannot be resolved") => resolve_fix(&url),
        Error::Transport { certificate, .. } if what.contains("TLS") => {
            tls_fix(name, certificate.as_ref(), &what)
        }
        _ => no_response_fix(&url),
    };
    Finding::fail(about, what, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, demands_authentication: bool) -> ProbeResponse {
        ProbeResponse {
            status,
            demands_authentication,
            date: None,
        }
    }

    #[test]
    fn a_response_is_a_finding_with_the_fix_of_its_status() {
        let name: Registry = "lab:5000".parse().expect("a name");
        let credentials = Some("check username and password_file of [upstreams.\"lab:5000\"]");
        let addresses = Some("check the addresses of [upstreams.\"lab:5000\"]");
        for (status, demands, has_credentials, what, fix) in [
            (200, true, true, "the credentials work", None),
            (
                200,
                false,
                true,
                "checks credentials per repository only",
                None,
            ),
            (200, false, false, "responds in 7 ms", None),
            (
                401,
                true,
                false,
                "needs credentials, which are not configured",
                None,
            ),
            (
                401,
                true,
                true,
                "refuses the configured credentials (401)",
                credentials,
            ),
            (
                403,
                true,
                true,
                "refuses the configured credentials (403)",
                credentials,
            ),
            (403, false, false, "responds with 403", addresses),
            (301, false, false, "responds with 301", addresses),
            (404, false, true, "responds with 404", addresses),
            (500, false, true, "responds with 500", addresses),
        ] {
            let response = response(status, demands);
            let finding = check_response("x", &name, has_credentials, None, &response, 7);
            assert!(finding.what.contains(what), "{finding:?}");
            let found = finding.fix.as_deref();
            assert_eq!(found.is_some(), fix.is_some(), "{finding:?}");
            assert!(
                found
                    .unwrap_or_default()
                    .starts_with(fix.unwrap_or_default()),
                "{finding:?}"
            );
            assert_eq!(finding.level == Severity::Ok, fix.is_none(), "{finding:?}");
        }
        let finding = check_response("x", &name, false, None, &response(429, false), 7);
        assert!(finding.level == Severity::Warn, "{finding:?}");
        assert!(
            finding.what.contains("limits our rate (429)"),
            "{finding:?}"
        );
        for (url, has_proxy) in [
            ("https://a.example", true),
            ("http://a.example", false),
            ("https://127.0.0.1:5000", false),
            ("https://[::1]:5000", false),
        ] {
            let fix = no_response_fix(url);
            assert_eq!(fix.contains("https_proxy"), has_proxy, "{fix}");
        }
        // With several addresses, the finding names the address.
        let at = Some("http://10.0.0.5:5000");
        let finding = check_response("x", &name, false, at, &response(200, false), 7);
        assert_eq!(finding.what, "http://10.0.0.5:5000 responds in 7 ms");
    }

    #[test]
    fn each_error_of_an_upstream_has_its_fix() {
        let name: Registry = "lab:5000".parse().expect("a name");
        let upstream = || "lab:5000".to_owned();
        let transport = |what: &str, certificate| Error::Transport {
            upstream: upstream(),
            what: what.to_owned(),
            certificate,
        };
        let denied = || Error::Denied {
            upstream: upstream(),
            has_credentials: false,
            status: 401,
        };
        for (error, has_credentials, what, fix) in [
            (
                Error::Forbidden {
                    upstream: upstream(),
                    what: "a private address".to_owned(),
                },
                false,
                "lab:5000 is refused: a private address",
                "add [upstreams.\"lab:5000\"] if pierhead may connect to it",
            ),
            (
                denied(),
                true,
                "(401)",
                "check username and password_file of",
            ),
            (
                denied(),
                false,
                "(401)",
                "set username and password_file in",
            ),
            // The name of the upstream is the subject of the finding already.
            (
                transport("the name cannot be resolved", None),
                false,
                "http://a:1: the name cannot be resolved",
                "check /etc/resolv.conf, and try `getent hosts a`",
            ),
            (
                transport("TLS: expired", Some(CertificateFault::Certificate)),
                false,
                "http://a:1: TLS: expired",
                "renew the certificate",
            ),
            (
                transport(
                    "TLS: certificate not valid for name \"a\"",
                    Some(CertificateFault::Certificate),
                ),
                false,
                "not valid for name",
                "write an address with a name of the certificate",
            ),
            (
                transport("TLS: received corrupt message", None),
                false,
                "corrupt message",
                "if the registry has plain HTTP, write its address with http://",
            ),
            (
                Error::NoSuchHost {
                    upstream: upstream(),
                    what: "no public address".to_owned(),
                },
                false,
                "a cannot be resolved",
                "check /etc/resolv.conf, and try `getent hosts a`",
            ),
            (
                transport("TLS: unknown issuer", Some(CertificateFault::Issuer)),
                false,
                "http://a:1: TLS: unknown issuer",
                "for a private CA set `ca` in [upstreams.\"lab:5000\"]",
            ),
            (
                transport("connection refused", None),
                false,
                "http://a:1: connection refused",
                "try `curl -sI http://a:1/v2/`",
            ),
        ] {
            let probe = HostProbe {
                address: "http://a:1".to_owned(),
                has_credentials,
                elapsed: Duration::ZERO,
                result: Ok(response(200, false)),
            };
            let finding = failed("x", &name, Some((&probe, Some("http://a:1"))), &error);
            assert!(
                finding.level == Severity::Fail && !finding.is_clock_error,
                "{finding:?}"
            );
            assert!(finding.what.contains(what), "{finding:?}");
            assert!(
                finding.fix.as_deref().unwrap_or_default().starts_with(fix),
                "{finding:?}"
            );
        }
        let limited = Error::RateLimited {
            upstream: upstream(),
            retry_after: None,
        };
        let finding = failed("x", &name, None, &limited);
        assert!(finding.level == Severity::Warn, "{finding:?}");
        let fix = finding.fix.as_deref().unwrap_or_default();
        assert!(fix.starts_with("wait, or set username"), "{finding:?}");
        let clock = transport("TLS: expired", Some(CertificateFault::Clock));
        let finding = failed("x", &name, None, &clock);
        assert!(finding.is_clock_error, "exit code 75: {finding:?}");
        assert_eq!(finding.what, "TLS: expired");
    }

    #[test]
    fn a_clock_skew_is_a_failure() {
        let name = "a.b".parse().expect("a name");
        let now = clock::now();
        assert_eq!(skew(&name, now - Duration::from_secs(30), now), None);
        let ahead = skew(&name, now - Duration::from_secs(90), now).expect("ahead");
        assert!(
            ahead.what.contains("90 s ahead of that of a.b"),
            "{ahead:?}"
        );
        let behind = skew(&name, now + Duration::from_secs(7200), now).expect("behind");
        assert!(behind.what.contains("7200 s behind"), "{behind:?}");
    }
}
