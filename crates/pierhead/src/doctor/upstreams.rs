//! The upstreams: whether they answer, how fast, whether the login works, and whether our clocks agree.

use std::time::{Duration, SystemTime};

use pierhead_oci::Registry;
use pierhead_remote::{CertificateFault, Client, Error, HostProbe, ProbeResponse};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::report::{Finding, Level};
use crate::config::Config;
use crate::environment::Environment;
use crate::wiring;

/// For DNS, TCP, TLS, an answer and a login, each of which has limits of its own.
const PATIENCE: Duration = Duration::from_secs(12);
/// Certificates and tokens are judged by the clock.
const SKEW: Duration = Duration::from_secs(60);

/// All that the configuration names, the default one, and those asked for; all at once.
pub(crate) async fn look(
    config: &Config,
    environment: &Environment,
    more: &[Registry],
) -> Vec<Finding> {
    let wrong = |what: String| {
        let fix = "fix it; `pierhead config check FILE` reads what the file names, too";
        vec![Finding::fail("upstreams", what, fix)]
    };
    let remote = match wiring::remote(config, environment) {
        Ok(remote) => remote,
        Err(message) => return wrong(message),
    };
    let client = match Client::new(remote) {
        Ok(client) => client,
        Err(error) => return wrong(error.to_string()),
    };
    let mut names: Vec<Registry> = config.upstreams.keys().cloned().collect();
    for name in std::iter::once(&config.default_upstream).chain(more) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names.sort();
    let mut asking = JoinSet::new();
    for name in names {
        let client = client.clone();
        asking.spawn(async move { one(&client, &name).await });
    }
    let mut findings: Vec<_> = asking.join_all().await.into_iter().flatten().collect();
    findings.sort_by(|a, b| a.about.cmp(&b.about));
    findings
}

async fn one(client: &Client, name: &Registry) -> Vec<Finding> {
    let about = format!("upstream {name}");
    let start = Instant::now();
    let probes = match tokio::time::timeout(PATIENCE, client.probe(name)).await {
        Ok(Ok(probes)) => probes,
        Ok(Err(error)) => return vec![failed(&about, name, None, &error)],
        Err(_) => {
            let what = format!("no answer within {} s", PATIENCE.as_secs());
            let url = format!("https://{name}");
            return vec![Finding::fail(about, what, fix_of_silence(&url))];
        }
    };
    let took = start.elapsed().as_millis();
    let several = probes.len() > 1;
    let mut findings = Vec::new();
    for probe in &probes {
        let at = several.then_some(probe.address.as_str());
        findings.push(match &probe.result {
            Ok(answered) => judge(&about, name, probe.has_credentials, at, answered, took),
            Err(error) => failed(&about, name, Some((probe, at)), error),
        });
        if let Ok(ProbeResponse {
            date: Some(date), ..
        }) = &probe.result
        {
            findings.extend(skew(name, *date, SystemTime::now()));
        }
    }
    // Where another address answers, clients notice nothing.
    if findings.iter().any(|finding| finding.level == Level::Ok) {
        for finding in &mut findings {
            if finding.about == about && finding.level == Level::Fail {
                finding.level = Level::Warn;
            }
        }
    }
    findings
}

fn judge(
    about: &str,
    name: &Registry,
    has_login: bool,
    at: Option<&str>,
    answered: &ProbeResponse,
    took: u128,
) -> Finding {
    let at = at.map(|at| format!("{at} ")).unwrap_or_default();
    match (answered.status, has_login) {
        (200..=299, true) if answered.demands_authentication => Finding::ok(
            about,
            format!("{at}answers in {took} ms, and the login works"),
        ),
        (200..=299, true) => Finding::ok(
            about,
            format!("{at}answers in {took} ms, and wants no login before a repository is named"),
        ),
        (401 | 403, true) => Finding::fail(
            about,
            format!("{at}refuses the configured login ({})", answered.status),
            format!(
                "see username and password of [upstreams.\"{name}\"], or whether the token has ended"
            ),
        ),
        (401, false) => Finding::ok(
            about,
            format!("{at}answers in {took} ms, and wants a login, of which there is none here"),
        ),
        (200..=299, false) => Finding::ok(about, format!("{at}answers in {took} ms")),
        (status, _) => Finding::fail(
            about,
            format!("{at}answers {status} where a registry says 200 or 401"),
            format!("see the address of [upstreams.\"{name}\"]: it must lead to a registry"),
        ),
    }
}

fn skew(name: &Registry, theirs: SystemTime, ours: SystemTime) -> Option<Finding> {
    let ahead = ours.duration_since(theirs);
    let by = ahead.clone().unwrap_or_else(|behind| behind.duration());
    (by > SKEW).then(|| {
        let way = if ahead.is_ok() { "ahead of" } else { "behind" };
        Finding::fail(
            "clock",
            format!(
                "this machine is {} s {way} {name}: certificates and tokens are judged wrongly",
                by.as_secs()
            ),
            "`timedatectl set-ntp true`, or run chrony",
        )
    })
}

fn fix_of_silence(url: &str) -> String {
    format!(
        "see `curl -sI {url}/v2/`; behind a proxy, https_proxy must be in pierhead's environment"
    )
}

fn failed(
    about: &str,
    name: &Registry,
    probe: Option<(&HostProbe, Option<&str>)>,
    error: &Error,
) -> Finding {
    let text = error.to_string();
    let what = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text);
    let has_login = probe.is_some_and(|(probe, _)| probe.has_credentials);
    let what = match probe.and_then(|(_, at)| at) {
        Some(at) => format!("{at}: {what}"),
        None => what.to_owned(),
    };
    if let Error::Transport {
        certificate: Some(CertificateFault::Clock),
        ..
    } = error
    {
        return Finding::clock(about, what);
    }
    let fix = match error {
        Error::Forbidden { .. } | Error::NoSuchHost { .. } | Error::Config { .. } => {
            format!("name it in [upstreams.\"{name}\"] if it is meant to be reached")
        }
        Error::Denied { .. } if has_login => {
            format!("see username and password of [upstreams.\"{name}\"]")
        }
        Error::Denied { .. } => format!("give [upstreams.\"{name}\"] a login"),
        Error::RateLimited { .. } => {
            format!("wait, or give [upstreams.\"{name}\"] a login, which has a limit of its own")
        }
        Error::Transport { .. } if what.contains("cannot be resolved") => {
            "see /etc/resolv.conf, and `getent hosts` of the name".to_owned()
        }
        Error::Transport { .. } if what.contains("TLS") => format!(
            "for a private authority set `ca` of [upstreams.\"{name}\"]; for plain HTTP a url with http://; and see the clock"
        ),
        _ => match probe {
            Some((probe, _)) => fix_of_silence(&probe.address),
            None => fix_of_silence(&format!("https://{name}")),
        },
    };
    Finding::fail(about, what, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared() {
        let name = "a.b".parse().expect("a name");
        let now = SystemTime::now();
        assert_eq!(skew(&name, now - Duration::from_secs(30), now), None);
        let ahead = skew(&name, now - Duration::from_secs(90), now).expect("ahead");
        assert!(ahead.what.contains("90 s ahead of a.b"), "{ahead:?}");
        let behind = skew(&name, now + Duration::from_secs(7200), now).expect("behind");
        assert!(behind.what.contains("7200 s behind"), "{behind:?}");
    }
}
