//! The configuration keys (as rows of the key table) at the top level, and the keys of `[log]`.

use tracing_subscriber::filter::Targets;

use super::key::{Key, Reload, quote, quote_path};
use crate::config::kind::Kind;
use crate::config::profile::profile_named;
use crate::config::value::{parse_admin, registry_name};
use crate::config::{Config, LogFormat};
use pierhead_host::profile::PROFILES;

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "",
        name: "profile",
        help: "The share of the host that pierhead takes. A profile sets the defaults of other \
               keys, and computes limits.memory from the memory limit of the cgroup or the memory \
               of the host (docs/explanation/profiles.md). Set this key if other programs share \
               the host with pierhead.",
        kind: Kind::Choice {
            noun: "profile",
            names: || {
                let profiles = PROFILES.iter().map(|profile| profile.name);
                profiles.chain(["none"]).collect()
            },
        },
        example: "\"none\"",
        reload: Reload::Restart(|new, old| new.profile = old.profile),
        set: |config, value| {
            config.profile = match value.choice()? {
                "none" => None,
                name => Some(profile_named(name)?),
            };
            Ok(())
        },
        show: |config| Some(quote(config.profile.map_or("none", |it| it.name))),
    },
    Key {
        section: "",
        name: "listen",
        help: "Addresses on which pierhead serves clients: IP:PORT or localhost:PORT.",
        kind: Kind::Addresses,
        example: "[\"0.0.0.0:5000\"]",
        reload: Reload::Restart(|new, old| new.listen.clone_from(&old.listen)),
        set: |config, value| value.addresses().map(|it| config.listen = it),
        show: |config| super::key::quote_list(&config.listen),
    },
    Key {
        section: "",
        name: "data",
        help: "The data folder, which has the cache and all state. Only one process can use the \
               folder at a time. A user other than root without HOME gets ./pierhead-data.",
        kind: Kind::Path,
        example: "\"/var/lib/pierhead\"",
        reload: Reload::Restart(|new, old| new.data.clone_from(&old.data)),
        set: |config, value| value.path().map(|it| config.data = it),
        show: |config| Some(quote_path(&config.data)),
    },
    Key {
        section: "",
        name: "admin",
        help: "Address of the admin listener: metrics, health and the cache API. Clients on other \
               hosts than pierhead's get metrics and health only.",
        kind: Kind::AddressOrOff,
        example: "\"127.0.0.1:5001\"",
        reload: Reload::Restart(|new, old| new.admin = old.admin),
        set: |config, value| parse_admin(value.text()?).map(|it| config.admin = it),
        show: |config| {
            let admin = config.admin.map(|it| quote(&it.to_string()));
            Some(admin.unwrap_or_else(|| quote("off")))
        },
    },
    Key {
        section: "",
        name: "default_upstream",
        help: "The registry of requests that name no registry. Docker sends such requests to a \
               registry mirror.",
        kind: Kind::Text,
        example: "\"docker.io\"",
        reload: Reload::Live,
        set: |config, value| registry_name(value.text()?).map(|it| config.default_upstream = it),
        show: |config| Some(quote(config.default_upstream.as_str())),
    },
    Key {
        section: "",
        name: "docker_config",
        help: "A Docker config.json with credentials for upstreams. pierhead also runs the \
               credential helpers that the file names.",
        kind: Kind::PathOrOff,
        example: "\"/root/.docker/config.json\"",
        reload: Reload::Live,
        set: |config, value| value.optional_path().map(|it| config.docker_config = it),
        show: |config| config.docker_config.as_deref().map(quote_path),
    },
    Key {
        section: "",
        name: "allow_open_proxy_with_credentials",
        help: "Allow upstream credentials on a listener without client authentication: every \
               client that reaches the listener can pull with these credentials. Without this \
               key, a configuration with upstream credentials needs tls.client_ca, auth.mode, or \
               only loopback addresses in listen.",
        kind: Kind::Boolean,
        example: "false",
        reload: Reload::Live,
        set: |config, value| {
            value
                .boolean()
                .map(|it| config.allow_open_proxy_with_credentials = it)
        },
        show: |config| Some(config.allow_open_proxy_with_credentials.to_string()),
    },
];

pub(super) static LOG_KEYS: &[Key<Config>] = &[
    Key {
        section: "log",
        name: "level",
        help: "Level of the log: error, warn, info, debug or trace; also per module, such as \
               \"info,pierhead_remote=debug\". Write \"debug\" to find the cause of a failure.",
        kind: Kind::Text,
        example: "\"info\"",
        reload: Reload::Live,
        set: |config, value| check_level(value.text()?).map(|it| config.log.level = it),
        show: |config| Some(quote(&config.log.level)),
    },
    Key {
        section: "log",
        name: "format",
        help: "Format of the log: \"text\" for people, \"json\" for log collectors.",
        kind: Kind::Choice {
            noun: "log format",
            names: || vec!["text", "json"],
        },
        example: "\"text\"",
        reload: Reload::Restart(|new, old| new.log.format = old.log.format),
        set: |config, value| {
            config.log.format = match value.choice()? {
                "json" => LogFormat::Json,
                _ => LogFormat::Text,
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

/// Checks the value of the key `log.level`.
pub(crate) fn check_level(text: &str) -> Result<String, String> {
    match text.parse::<Targets>() {
        // The log filter reads a single unknown word as the name of a module, so a misspelt level
        // would turn the log off.
        Ok(_)
            if text.contains(['=', ','])
                || text.parse::<tracing::level_filters::LevelFilter>().is_ok() =>
        {
            Ok(text.to_owned())
        }
        _ => Err(format!(
            "{text:?} is not a log level: write error, warn, info, debug or trace, or levels per module such as \"info,pierhead_remote=debug\""
        )),
    }
}
