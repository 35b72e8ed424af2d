//! The configuration keys of `[tls]` and `[auth]`, as rows of the key table.

use super::key::{HOUR, Key, Reload, SECOND, quote, quote_duration, quote_list, quote_path};
use crate::config::kind::Kind;
use crate::config::{AuthMode, Config};

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "tls",
        name: "cert",
        help: "PEM file with the server certificate, then its intermediate certificates. tls.cert \
               needs tls.key.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/tls.crt\"",
        reload: Reload::Restart(|new, old| new.tls.cert.clone_from(&old.tls.cert)),
        set: |config, value| value.path().map(|it| config.tls.cert = Some(it)),
        show: |config| config.tls.cert.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "key",
        help: "PEM file with the private key of tls.cert.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/tls.key\"",
        reload: Reload::Restart(|new, old| new.tls.key.clone_from(&old.tls.key)),
        set: |config, value| value.path().map(|it| config.tls.key = Some(it)),
        show: |config| config.tls.key.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "client_ca",
        help: "PEM file of certificate authorities. A client must have a certificate that one of \
               these authorities has signed.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/clients.crt\"",
        reload: Reload::Restart(|new, old| new.tls.client_ca.clone_from(&old.tls.client_ca)),
        set: |config, value| value.path().map(|it| config.tls.client_ca = Some(it)),
        show: |config| config.tls.client_ca.as_deref().map(quote_path),
    },
    Key {
        section: "tls",
        name: "client_names",
        help: "Names of client certificates that pierhead accepts: a DNS, URI or e-mail name of \
               the subject alternative names, or without those the common name. The complete name \
               must match.",
        kind: Kind::Names,
        example: "[\"node1.example\"]",
        reload: Reload::Restart(|new, old| new.tls.client_names.clone_from(&old.tls.client_names)),
        set: |config, value| value.names().map(|it| config.tls.client_names = it),
        show: |config| quote_list(&config.tls.client_names),
    },
    Key {
        section: "auth",
        name: "mode",
        help: "Authentication of clients: \"htpasswd\" needs a user and password of \
               auth.htpasswd, \"mtls\" a certificate of tls.client_ca, \"mtls-or-htpasswd\" one \
               of the two. With tls.client_ca, \"htpasswd\" needs password and certificate. With \
               \"pass-through\", pierhead checks at the upstream that the client's own \
               credentials may read the repository; clients without credentials may pull public \
               images. \"pass-through-login\" refuses clients without credentials; use it for \
               docker, which sends credentials only after a 401 response. A change to or from \
               \"mtls-or-htpasswd\" needs a restart.",
        kind: Kind::Choice {
            noun: "authentication mode",
            names: || AuthMode::ALL.iter().map(|mode| mode.name()).collect(),
        },
        example: "\"none\"",
        // A reload cannot make client certificates required or optional, since the listeners decide
        // this at their start.
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
        help: "File of users with one USER:HASH per line, with bcrypt hashes (`htpasswd -B`). \
               pierhead reads the file again when the file changes.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/htpasswd\"",
        reload: Reload::Live,
        set: |config, value| value.path().map(|it| config.auth.htpasswd = Some(it)),
        show: |config| config.auth.htpasswd.as_deref().map(quote_path),
    },
    Key {
        section: "auth",
        name: "cache_ttl",
        help: "How long pierhead caches that credentials are valid, by auth.htpasswd or by an \
               upstream. Lower this value if revoked credentials must stop working sooner.",
        kind: Kind::Duration {
            min: SECOND,
            max: HOUR,
        },
        example: "\"5m\"",
        reload: Reload::Live,
        set: |config, value| value.duration().map(|it| config.auth.cache_ttl = it),
        show: |config| quote_duration(config.auth.cache_ttl),
    },
];
