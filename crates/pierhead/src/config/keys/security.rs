//! Keys of `[tls]` and `[auth]`.

use super::key::{HOUR, Key, Reload, SECOND, quote, quote_duration, quote_list, quote_path};
use super::kind::Kind;
use crate::config::{AuthMode, Config};

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "tls",
        name: "cert",
        help: "PEM file: the server's certificate, then its intermediates. It needs tls.key.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/tls.crt\"",
        reload: Reload::Restart(|new, old| new.tls.cert.clone_from(&old.tls.cert)),
        set: |config, value| value.path().map(|it| config.tls.cert = Some(it)),
        show: |config| config.tls.cert.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "key",
        help: "PEM file: the private key of tls.cert.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/tls.key\"",
        reload: Reload::Restart(|new, old| new.tls.key.clone_from(&old.tls.key)),
        set: |config, value| value.path().map(|it| config.tls.key = Some(it)),
        show: |config| config.tls.key.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "client_ca",
        help: "PEM file of certificate authorities: a client must show a certificate of one of them.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/clients.crt\"",
        reload: Reload::Restart(|new, old| new.tls.client_ca.clone_from(&old.tls.client_ca)),
        set: |config, value| value.path().map(|it| config.tls.client_ca = Some(it)),
        show: |config| config.tls.client_ca.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "client_names",
        help: "A client's certificate must have one of these names: DNS, URI or e-mail among its alternative names, else its \
               common name. pierhead compares whole names.",
        kind: Kind::Names,
        example: "[\"node1.example\"]",
        reload: Reload::Restart(|new, old| new.tls.client_names.clone_from(&old.tls.client_names)),
        set: |config, value| value.names().map(|it| config.tls.client_names = it),
        show: |config| quote_list(&config.tls.client_names),
    },
    Key {
        section: "auth",
        name: "mode",
        help: "\"htpasswd\" asks for a user and password of auth.htpasswd, \"mtls\" for a certificate of tls.client_ca, \
               \"mtls-or-htpasswd\" for one of the two. With tls.client_ca, \"htpasswd\" asks for both. With \"pass-through\", a \
               client reads what its own credentials may read at the upstream. A change to or from \"mtls-or-htpasswd\" needs \
               a restart.",
        kind: Kind::Choice {
            noun: "authentication mode",
            names: || AuthMode::ALL.iter().map(|mode| mode.name()).collect(),
        },
        example: "\"none\"",
        // The listeners decide at start whether a certificate is optional.
        reload: Reload::SomeRestart(|new, old| {
            let is_optional = |config: &Config| config.auth.mode == AuthMode::MtlsOrHtpasswd;
            if is_optional(new) != is_optional(old) {
                new.auth.mode = old.auth.mode;
            }
        }),
        set: |config, value| {
            let name = value.choice()?;
            let mode = AuthMode::ALL.into_iter().find(|mode| mode.name() == name);
            config.auth.mode = mode.unwrap_or(AuthMode::None);
            Ok(())
        },
        show: |config| Some(quote(config.auth.mode.name())),
    },
    Key {
        section: "auth",
        name: "htpasswd",
        help: "File of users, one USER:HASH a line with bcrypt hashes (`htpasswd -B`). pierhead reads it again when it \
               changes.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/htpasswd\"",
        reload: Reload::Live,
        set: |config, value| value.path().map(|it| config.auth.htpasswd = Some(it)),
        show: |config| config.auth.htpasswd.as_deref().map(quote_path),
    },
    Key {
        section: "auth",
        name: "cache_ttl",
        help: "How long pierhead remembers that credentials were good, by auth.htpasswd or by an upstream. Lower it to \
               withdraw access sooner.",
        kind: Kind::Duration {
            min: SECOND,
            max: HOUR,
        },
        example: "\"5m\"",
        reload: Reload::Live,
        set: |config, value| value.duration().map(|it| config.auth.cache_ttl = it),
        show: |config| quote_duration(config.auth.cache_ttl),
    },
    Key {
        section: "auth",
        name: "anonymous",
        help: "With \"pass-through\": clients without credentials read what upstreams let everybody read. Set it to false for \
               docker, which sends credentials only when it is asked for them.",
        kind: Kind::Boolean,
        example: "true",
        reload: Reload::Live,
        set: |config, value| value.boolean().map(|it| config.auth.anonymous = it),
        show: |config| Some(config.auth.anonymous.to_string()),
    },
];
