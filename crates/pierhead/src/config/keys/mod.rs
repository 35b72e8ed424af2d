//! Every key: what it means, how it is read and shown. The parser, `config show` and the hints for
//! misspelt keys all come from these tables, so that none can forget one.

mod bundle;
mod eviction;
mod limits;
mod network;
mod tier;
mod upstream;

use std::path::Path;
use std::time::Duration;

use tracing_subscriber::filter::Targets;

use super::value::{Value, parse_admin};
use super::{AuthMode, Config, LogFormat};
use crate::profile::Profile;

pub(crate) use network::MANAGEMENT;
pub(crate) use upstream::UPSTREAM_KEYS;

/// One key of a `T`: the whole configuration, or one upstream.
pub(crate) struct Key<T> {
    /// Table that it stands in; empty at the top.
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    /// For `config show`.
    pub(crate) doc: &'static str,
    /// A TOML literal, shown behind `#` where nothing is set.
    pub(crate) example: &'static str,
    pub(crate) set: fn(&mut T, &Value<'_>) -> Result<(), String>,
    /// A TOML literal, secrets masked; `None` when unset.
    pub(crate) show: fn(&T) -> Option<String>,
}

impl<T> Key<T> {
    /// As people name it: `cache.size`.
    pub(crate) fn path(&self) -> String {
        match self.section {
            "" => self.name.to_owned(),
            section => format!("{section}.{}", self.name),
        }
    }
}

/// What stands above each table in `config show`.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    (
        "network",
        "Which interface clients come by. Changes need a restart.",
    ),
    ("cache", "How much of the disk."),
    ("eviction", "What stays in the cache, and what enters it."),
    (
        "trace",
        "A record of all requests, to replay them against other policies: `pierhead replay --trace FILE`. Changes need\n# a restart.",
    ),
    (
        "bundle",
        "Delta bundles: just the file contents that a worker lacks (docs/bundles.md). Changes need a restart.",
    ),
    (
        "tier",
        "A fast tier in front of the disk, for what shortens a wait (docs/staging.md). Changes need a restart.",
    ),
    ("tags", "When a tag is asked for anew."),
    (
        "access",
        "What may be pulled: patterns of REGISTRY or REGISTRY/REPOSITORY. * stands for any run of characters but\n# /, and ** for any run at all; a registry alone means all of it. A blob that is in the cache is served to\n# whoever names its digest and a repository that may be pulled.",
    ),
    ("limits", "What protects pierhead, the disk and the uplink."),
    (
        "tls",
        "HTTPS for clients. The files are reread when they change; other keys or paths need a restart.",
    ),
    (
        "auth",
        "How clients prove who they are. Passwords are taken over TLS or from this machine only.",
    ),
    ("log", "What is written to standard error."),
];

/// The table of upstreams, one table each below it.
pub(crate) const UPSTREAMS: &str = "upstreams";

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

fn quote_duration(duration: Duration) -> Option<String> {
    Some(quote(&humantime::format_duration(duration).to_string()))
}

/// All keys of the file; those of one section in the order in which they are shown.
pub(crate) fn keys() -> impl Iterator<Item = &'static Key<Config>> {
    KEYS.iter()
        .chain(eviction::KEYS)
        .chain(bundle::KEYS)
        .chain(tier::KEYS)
        .chain(network::KEYS)
        .chain(limits::KEYS)
}

/// As people name them.
#[cfg(test)]
pub(crate) fn paths() -> impl Iterator<Item = String> {
    keys().map(Key::path)
}

static KEYS: &[Key<Config>] = &[
    Key {
        section: "",
        name: "profile",
        doc: "How much of this machine pierhead takes: \"small\", \"bluefield2\", \"bluefield3\" or \"server\" give other keys their defaults, and\nlimits.memory from the limit of the control group or the machine's memory; \"none\" gives none (docs/profiles.md). Needs a restart\nto change.",
        example: "\"none\"",
        set: |config, value| {
            config.profile = match value.text()? {
                "none" => None,
                name => Some(Profile::named(name)?),
            };
            Ok(())
        },
        show: |config| Some(quote(config.profile.map_or("none", |it| it.name))),
    },
    Key {
        section: "",
        name: "listen",
        doc: "Addresses for clients. Needs a restart to change.",
        example: "[\"0.0.0.0:5000\"]",
        set: |config, value| value.addresses().map(|it| config.listen = it),
        show: |config| {
            let addresses: Vec<_> = config
                .listen
                .iter()
                .map(|it| quote(&it.to_string()))
                .collect();
            Some(format!("[{}]", addresses.join(", ")))
        },
    },
    Key {
        section: "",
        name: "data",
        doc: "The folder of the cache; one process at a time. Needs a restart to change.",
        example: "\"/var/lib/pierhead\"",
        set: |config, value| value.path().map(|it| config.data = it),
        show: |config| Some(quote_path(&config.data)),
    },
    Key {
        section: "",
        name: "admin",
        doc: "Address of metrics, health and the cache commands, or \"off\". On an address that is not\nloopback, others get metrics and health only. Needs a restart to change.",
        example: "\"127.0.0.1:5001\"",
        set: |config, value| parse_admin(value.text()?).map(|it| config.admin = it),
        show: |config| {
            Some(
                config
                    .admin
                    .map_or_else(|| quote("off"), |it| quote(&it.to_string())),
            )
        },
    },
    Key {
        section: "",
        name: "default_upstream",
        doc: "The registry that a client means who names none (docker's registry-mirrors).",
        example: "\"docker.io\"",
        set: |config, value| {
            let registry = value.text()?.parse().map_err(|error| format!("{error}"));
            registry.map(|it| config.default_upstream = it)
        },
        show: |config| Some(quote(config.default_upstream.as_str())),
    },
    Key {
        section: "",
        name: "docker_config",
        doc: "A Docker config.json with credentials for upstreams (also through its credential helpers), or \"off\".",
        example: "\"/root/.docker/config.json\"",
        set: |config, value| value.optional_path().map(|it| config.docker_config = it),
        show: |config| config.docker_config.as_deref().map(quote_path),
    },
    Key {
        section: "",
        name: "allow_open_proxy_with_credentials",
        doc: "Start even though everybody who reaches a listen address can then pull whatever the configured\ncredentials can: there are upstream credentials and clients need neither a certificate (tls.client_ca)\nnor a login (auth.mode).",
        example: "false",
        set: |config, value| {
            value
                .boolean()
                .map(|it| config.allow_open_proxy_with_credentials = it)
        },
        show: |config| Some(config.allow_open_proxy_with_credentials.to_string()),
    },
    Key {
        section: "cache",
        name: "size",
        doc: "Hard bound of all blobs, downloads under way included: bytes, a share of the file system, or \"auto\":\n80 % of what is free or in the cache already, at least 1GiB, at most 1TiB.",
        example: "\"auto\"",
        set: |config, value| {
            config.cache.size = value.size()?.of_a_cache()?;
            Ok(())
        },
        show: |config| Some(quote(&config.cache.size.to_string())),
    },
    Key {
        section: "cache",
        name: "min_free",
        doc: "What the file system must keep free for others: bytes or a share of the file system.",
        example: "\"512MiB\"",
        set: |config, value| {
            match value.size()? {
            super::Size::Auto => Err("\"auto\" is for cache.size: write bytes such as \"512MiB\", or a share such as \"5%\"".to_owned()),
            size => {
                config.cache.min_free = size;
                Ok(())
            }
        }
        },
        show: |config| Some(quote(&config.cache.min_free.to_string())),
    },
    Key {
        section: "tags",
        name: "freshness",
        doc: "How long a tag or a list is served without asking the upstream whether it changed.\n0s: never, \
              and what was not there is asked for anew, too.",
        example: "\"1m\"",
        set: |config, value| {
            value
                .duration(Duration::ZERO, YEAR)
                .map(|it| config.tags.freshness = it)
        },
        show: |config| quote_duration(config.tags.freshness),
    },
    Key {
        section: "access",
        name: "allow",
        doc: "Only what fits one of these; nothing here means everything.",
        example: "[\"docker.io/library/*\", \"ghcr.io/owner/**\"]",
        set: |config, value| value.patterns().map(|it| config.access.allow = it),
        show: |config| patterns(&config.access.allow),
    },
    Key {
        section: "access",
        name: "deny",
        doc: "Nothing that fits one of these, whatever allow says. Answered 403, from the cache neither.",
        example: "[\"docker.io/somebody/**\"]",
        set: |config, value| value.patterns().map(|it| config.access.deny = it),
        show: |config| patterns(&config.access.deny),
    },
    Key {
        section: "tls",
        name: "cert",
        doc: "PEM file: the server's certificate, then its intermediates. Together with key.",
        example: "\"/etc/pierhead/tls.crt\"",
        set: |config, value| value.path().map(|it| config.tls.cert = Some(it)),
        show: |config| config.tls.cert.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "key",
        doc: "PEM file: the private key of cert.",
        example: "\"/etc/pierhead/tls.key\"",
        set: |config, value| value.path().map(|it| config.tls.key = Some(it)),
        show: |config| config.tls.key.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "client_ca",
        doc: "PEM file of authorities: when set, a client must show a certificate of one of them.",
        example: "\"/etc/pierhead/clients.crt\"",
        set: |config, value| value.path().map(|it| config.tls.client_ca = Some(it)),
        show: |config| config.tls.client_ca.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "client_optional",
        doc: "Let clients without a certificate in when they have a password (auth.mode = \"htpasswd\") instead.",
        example: "false",
        set: |config, value| value.boolean().map(|it| config.tls.client_optional = it),
        show: |config| Some(config.tls.client_optional.to_string()),
    },
    Key {
        section: "tls",
        name: "client_names",
        doc: "When set, a client's certificate must have one of these names: DNS, URI or e-mail among its alternative\nnames, else its common name. Compared whole.",
        example: "[\"node1.example\"]",
        set: |config, value| value.names().map(|it| config.tls.client_names = it),
        show: |config| {
            let names: Vec<_> = config.tls.client_names.iter().map(|it| quote(it)).collect();
            (!names.is_empty()).then(|| format!("[{}]", names.join(", ")))
        },
    },
    Key {
        section: "auth",
        name: "mode",
        doc: "\"none\", \"htpasswd\" (user and password of a file), \"mtls\" (a certificate of tls.client_ca) or \"pass-through\"\n(what the upstream lets the client's own login read, and nothing else).",
        example: "\"none\"",
        set: |config, value| {
            config.auth.mode = match value.text()? {
                "none" => AuthMode::None,
                "htpasswd" => AuthMode::Htpasswd,
                "mtls" => AuthMode::Mtls,
                "pass-through" => AuthMode::PassThrough,
                other => {
                    return Err(format!(
                        "{other:?} is no way to let clients in: write \"none\", \"htpasswd\", \"mtls\" or \"pass-through\""
                    ));
                }
            };
            Ok(())
        },
        show: |config| {
            Some(quote(match config.auth.mode {
                AuthMode::None => "none",
                AuthMode::Htpasswd => "htpasswd",
                AuthMode::Mtls => "mtls",
                AuthMode::PassThrough => "pass-through",
            }))
        },
    },
    Key {
        section: "auth",
        name: "htpasswd",
        doc: "File of users, one USER:HASH a line with hashes of bcrypt (`htpasswd -B`). Reread when it changes.",
        example: "\"/etc/pierhead/htpasswd\"",
        set: |config, value| value.path().map(|it| config.auth.htpasswd = Some(it)),
        show: |config| config.auth.htpasswd.as_deref().map(quote_path),
    },
    Key {
        section: "auth",
        name: "verdicts",
        doc: "How long a login that was found good (by the file, or by an upstream) is not looked at again.",
        example: "\"5m\"",
        set: |config, value| {
            value
                .duration(SECOND, HOUR)
                .map(|it| config.auth.verdicts = it)
        },
        show: |config| quote_duration(config.auth.verdicts),
    },
    Key {
        section: "auth",
        name: "anonymous",
        doc: "With pass-through: clients without a login may read what upstreams let everybody read. docker, which asks\nbefore it sends a login, sends none unless this is false.",
        example: "true",
        set: |config, value| value.boolean().map(|it| config.auth.anonymous = it),
        show: |config| Some(config.auth.anonymous.to_string()),
    },
    Key {
        section: "log",
        name: "level",
        doc: "error, warn, info, debug or trace; also by module, such as \"info,pierhead_remote=debug\".",
        example: "\"info\"",
        set: |config, value| check_level(value.text()?).map(|it| config.log.level = it),
        show: |config| Some(quote(&config.log.level)),
    },
    Key {
        section: "log",
        name: "format",
        doc: "\"text\" for people, \"json\" for collectors. Needs a restart to change.",
        example: "\"text\"",
        set: |config, value| {
            config.log.format = match value.text()? {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                other => {
                    return Err(format!(
                        "{other:?} is not a log format: write \"text\" or \"json\""
                    ));
                }
            };
            Ok(())
        },
        show: |config| {
            Some(quote(match config.log.format {
                LogFormat::Text => "text",
                LogFormat::Json => "json",
            }))
        },
    },
];

fn patterns(patterns: &[pierhead_proxy::Pattern]) -> Option<String> {
    let items: Vec<_> = patterns.iter().map(|it| quote(&it.to_string())).collect();
    (!items.is_empty()).then(|| format!("[{}]", items.join(", ")))
}

/// Directives for the log that can be understood.
pub(crate) fn check_level(text: &str) -> Result<String, String> {
    match text.parse::<Targets>() {
        // A lone word that is no level is taken for a module's name by the filter: a typo goes silent.
        Ok(_)
            if text.contains(['=', ','])
                || text.parse::<tracing::level_filters::LevelFilter>().is_ok() =>
        {
            Ok(text.to_owned())
        }
        _ => Err(format!(
            "{text:?} is not a log level: write error, warn, info, debug or trace, or such as \"info,pierhead_remote=debug\""
        )),
    }
}
