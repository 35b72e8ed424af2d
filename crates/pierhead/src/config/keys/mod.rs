//! Every key: what it means, how it is read and shown. The parser, `config show` and the hints for
//! misspelt keys all come from these tables, so that none can forget one.

mod upstream;

use std::path::Path;
use std::time::Duration;

use tracing_subscriber::filter::Targets;

use super::units::exact_bytes;
use super::value::{Value, parse_admin};
use super::{AuthMode, Config, LogFormat};

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
    ("cache", "How much of the disk."),
    ("tags", "When a tag is asked for anew."),
    (
        "access",
        "What may be pulled: patterns of REGISTRY or REGISTRY/REPOSITORY. * stands for any run of characters but\n# /, and ** for any run at all; a registry alone means all of it. A blob that is in the cache is served to\n# whoever names its digest and a repository that may be pulled.",
    ),
    ("limits", "What protects pierhead, the disk and the uplink."),
    (
        "tls",
        "HTTPS for clients. The files are reread when they change.",
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

/// A number of bytes that fits into memory.
fn quote_bytes(bytes: usize) -> String {
    quote(&exact_bytes(u64::try_from(bytes).unwrap_or(u64::MAX)))
}

fn quote_duration(duration: Duration) -> Option<String> {
    Some(quote(&humantime::format_duration(duration).to_string()))
}

/// Keys of the file, in the order in which they are shown.
pub(crate) static KEYS: &[Key<Config>] = &[
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
        doc: "Start even though everybody who reaches a listen address can then pull whatever the configured\ncredentials can: there are upstream credentials and clients need no certificate (tls.client_ca).",
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
            match value.size()? {
            super::Size::Bytes(0) => Err("a cache of 0 bytes could store nothing: write bytes such as \"10GiB\", a share such as \"50%\", or \"auto\"".to_owned()),
            size => {
                config.cache.size = size;
                Ok(())
            }
        }
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
        section: "cache",
        name: "max_blob",
        doc: "Larger blobs are passed on to the client and not stored; 0 is no limit but cache.size. Needs a restart to change.",
        example: "\"0\"",
        set: |config, value| value.bytes().map(|it| config.cache.max_blob = it),
        show: |config| Some(quote(&exact_bytes(config.cache.max_blob))),
    },
    Key {
        section: "cache",
        name: "memory",
        doc: "Memory for small blobs (manifests, configs; up to 64KiB each), so that hot ones need no disk; 0 is none.\nNeeds a restart to change.",
        example: "\"4MiB\"",
        set: |config, value| value.bytes().map(|it| config.cache.memory = it),
        show: |config| Some(quote(&exact_bytes(config.cache.memory))),
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
        section: "limits",
        name: "connections",
        doc: "Connections of clients at once; more are answered 503.",
        example: "4096",
        set: |config, value| {
            value
                .count(1, 1_000_000)
                .map(|it| config.limits.connections = it)
        },
        show: |config| Some(config.limits.connections.to_string()),
    },
    Key {
        section: "limits",
        name: "connections_per_client",
        doc: "Connections of one client at once (an IPv4 address, an IPv6 /64); more are answered 503.",
        example: "2048",
        set: |config, value| {
            value
                .count(1, 1_000_000)
                .map(|it| config.limits.connections_per_client = it)
        },
        show: |config| Some(config.limits.connections_per_client.to_string()),
    },
    Key {
        section: "limits",
        name: "upstream_bandwidth",
        doc: "Bytes a second over all downloads, or \"off\".",
        example: "\"100MB/s\"",
        set: |config, value| value.rate().map(|it| config.limits.upstream_bandwidth = it),
        show: |config| {
            Some(config.limits.upstream_bandwidth.map_or_else(
                || quote("off"),
                |it| quote(&format!("{}/s", exact_bytes(it))),
            ))
        },
    },
    Key {
        section: "limits",
        name: "upstream_minimum_rate",
        doc: "A download slower than this, on average over stall_timeout and as far as the upstream is to blame, is\ncut and resumed, at another address where there is one, and given up when it is slow there too. Or \"off\".",
        example: "\"10KiB/s\"",
        set: |config, value| {
            value
                .rate()
                .map(|it| config.limits.upstream_minimum_rate = it)
        },
        show: |config| {
            Some(config.limits.upstream_minimum_rate.map_or_else(
                || quote("off"),
                |it| quote(&format!("{}/s", exact_bytes(it))),
            ))
        },
    },
    Key {
        section: "limits",
        name: "upstream_fetches",
        doc: "Downloads of blobs at once, over all upstreams; more wait.",
        example: "32",
        set: |config, value| {
            value
                .count(1, 4096)
                .map(|it| config.limits.upstream_fetches = it)
        },
        show: |config| Some(config.limits.upstream_fetches.to_string()),
    },
    Key {
        section: "limits",
        name: "upstream_fetches_per_client",
        doc: "Of these for one client. Four times as many may be under way or wait; more are answered 503.",
        example: "16",
        set: |config, value| {
            value
                .count(1, 4096)
                .map(|it| config.limits.fetches_per_client = it)
        },
        show: |config| Some(config.limits.fetches_per_client.to_string()),
    },
    Key {
        section: "limits",
        name: "upstream_fetches_per_registry",
        doc: "Of these from one registry; more wait.",
        example: "24",
        set: |config, value| {
            value
                .count(1, 4096)
                .map(|it| config.limits.fetches_per_registry = it)
        },
        show: |config| Some(config.limits.fetches_per_registry.to_string()),
    },
    Key {
        section: "limits",
        name: "answer_memory",
        doc: "Memory for answers on their way, until clients have taken them; more are answered 503.",
        example: "\"128MiB\"",
        set: |config, value| {
            value
                .memory(1 << 20, 1 << 40)
                .map(|it| config.limits.answer_memory = it)
        },
        show: |config| Some(quote_bytes(config.limits.answer_memory)),
    },
    Key {
        section: "limits",
        name: "answer_memory_per_client",
        doc: "Of this for one client.",
        example: "\"64MiB\"",
        set: |config, value| {
            value
                .memory(1 << 20, 1 << 40)
                .map(|it| config.limits.answer_memory_per_client = it)
        },
        show: |config| Some(quote_bytes(config.limits.answer_memory_per_client)),
    },
    Key {
        section: "limits",
        name: "headers",
        doc: "Headers of a request; more are answered 431.",
        example: "100",
        set: |config, value| value.count(1, 1000).map(|it| config.limits.headers = it),
        show: |config| Some(config.limits.headers.to_string()),
    },
    Key {
        section: "limits",
        name: "header_size",
        doc: "Bytes of a request's headers together; more are answered 431.",
        example: "\"16KiB\"",
        set: |config, value| {
            value
                .memory(1 << 10, 1 << 20)
                .map(|it| config.limits.header_size = it)
        },
        show: |config| Some(quote_bytes(config.limits.header_size)),
    },
    Key {
        section: "limits",
        name: "uri",
        doc: "Bytes of a request's path and query; more are answered 414.",
        example: "\"4KiB\"",
        set: |config, value| value.memory(256, 32 << 10).map(|it| config.limits.uri = it),
        show: |config| Some(quote_bytes(config.limits.uri)),
    },
    Key {
        section: "limits",
        name: "answer_within",
        doc: "A client gets data, stale data or an error within this time.",
        example: "\"5s\"",
        set: |config, value| {
            value
                .duration(100 * MILLISECOND, 60 * SECOND)
                .map(|it| config.limits.answer_within = it)
        },
        show: |config| quote_duration(config.limits.answer_within),
    },
    Key {
        section: "limits",
        name: "connect_timeout",
        doc: "For reaching an upstream: DNS, TCP and TLS together.",
        example: "\"3s\"",
        set: |config, value| {
            value
                .duration(MILLISECOND, HOUR)
                .map(|it| config.limits.connect_timeout = it)
        },
        show: |config| quote_duration(config.limits.connect_timeout),
    },
    Key {
        section: "limits",
        name: "header_timeout",
        doc: "From a request to an upstream to the head of its answer.",
        example: "\"4s\"",
        set: |config, value| {
            value
                .duration(MILLISECOND, HOUR)
                .map(|it| config.limits.header_timeout = it)
        },
        show: |config| quote_duration(config.limits.header_timeout),
    },
    Key {
        section: "limits",
        name: "stall_timeout",
        doc: "A download that brings nothing for so long is cut, and resumed.",
        example: "\"15s\"",
        set: |config, value| {
            value
                .duration(MILLISECOND, HOUR)
                .map(|it| config.limits.stall_timeout = it)
        },
        show: |config| quote_duration(config.limits.stall_timeout),
    },
    Key {
        section: "limits",
        name: "client_stall",
        doc: "A client that takes nothing of its answer for so long is cut.",
        example: "\"30s\"",
        set: |config, value| {
            let duration = value.duration(SECOND, HOUR);
            duration.map(|it| config.limits.client_stall = it)
        },
        show: |config| quote_duration(config.limits.client_stall),
    },
    Key {
        section: "limits",
        name: "drain",
        doc: "After SIGTERM, answers under way may take so long.",
        example: "\"30s\"",
        set: |config, value| {
            value
                .duration(Duration::ZERO, HOUR)
                .map(|it| config.limits.drain = it)
        },
        show: |config| quote_duration(config.limits.drain),
    },
    Key {
        section: "limits",
        name: "threads",
        doc: "Worker threads; 0 is one for each core, at most 16. Needs a restart to change.",
        example: "0",
        set: |config, value| value.count(0, 1024).map(|it| config.limits.threads = it),
        show: |config| Some(config.limits.threads.to_string()),
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
