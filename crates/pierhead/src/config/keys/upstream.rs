//! Keys of one upstream.

use super::key::{Key, Reload, quote, quote_list, quote_path};
use super::kind::Kind;
use crate::config::Upstream;

/// Docker's convention: with this user, the password is an OAuth2 refresh token.
pub(crate) const IDENTITY_TOKEN_USER: &str = "<token>";

/// What `[upstreams."NAME"]` may hold.
pub(crate) static UPSTREAM_KEYS: &[Key<Upstream>] = &[
    Key {
        section: "",
        name: "addresses",
        help: "Where the registry is, if not at https://NAME: one URL, or mirrors and the registry itself in the order of \
               preference. pierhead asks the next one when one fails, lacks something, refuses it or is silent for a second. \
               http:// and private addresses are allowed here.",
        kind: Kind::Urls,
        example: "[\"https://mirror.example\", \"https://registry.example\"]",
        reload: Reload::Live,
        set: |upstream, value| value.urls().map(|it| upstream.addresses = it),
        show: |upstream| quote_list(&upstream.addresses),
    },
    Key {
        section: "",
        name: "credential_hosts",
        help: "Hosts of addresses that get the credentials below; without it, the host that is the registry itself by its \
               name. Another address gets the credentials of the table of its own name, such as \
               [upstreams.\"mirror.example\"], or none.",
        kind: Kind::Hosts,
        example: "[\"registry.example\"]",
        reload: Reload::Live,
        set: |upstream, value| value.hosts().map(|it| upstream.credential_hosts = it),
        show: |upstream| quote_list(&upstream.credential_hosts),
    },
    Key {
        section: "",
        name: "username",
        help: "User whose password is in password_file. As Docker does it, \"<token>\" means that the file has an OAuth2 refresh \
               token (identity token).",
        kind: Kind::Text,
        example: "\"someone\"",
        reload: Reload::Live,
        set: |upstream, value| {
            value
                .text()
                .map(|it| upstream.username = Some(it.to_owned()))
        },
        show: |upstream| upstream.username.as_deref().map(quote),
    },
    Key {
        section: "",
        name: "password_file",
        help: "A file with the password, access token or refresh token in its first line.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/password\"",
        reload: Reload::Live,
        set: |upstream, value| value.path().map(|it| upstream.password_file = Some(it)),
        show: |upstream| upstream.password_file.as_deref().map(quote_path),
    },
    Key {
        section: "",
        name: "credential_helper",
        help: "pierhead asks the program docker-credential-NAME for user and password.",
        kind: Kind::Text,
        example: "\"ecr-login\"",
        reload: Reload::Live,
        set: |upstream, value| {
            let name = value.text()?;
            let sane = !name.is_empty()
                && !name.starts_with(['-', '.'])
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            if !sane {
                return Err(format!(
                    "{name:?} is not the name of a credential helper: write what follows docker-credential- in the program's name"
                ));
            }
            upstream.credential_helper = Some(name.to_owned());
            Ok(())
        },
        show: |upstream| upstream.credential_helper.as_deref().map(quote),
    },
    Key {
        section: "",
        name: "ca",
        help: "PEM file of certificate authorities to trust for this upstream in addition to those of the host.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/upstream-ca.crt\"",
        reload: Reload::Live,
        set: |upstream, value| value.path().map(|it| upstream.ca = Some(it)),
        show: |upstream| upstream.ca.as_deref().map(quote_path),
    },
    Key {
        section: "",
        name: "trusted_hosts",
        help: "Private hosts to which this upstream may redirect or that serve its tokens; after http:// also without TLS. \
               Public hosts need no mention.",
        kind: Kind::Hosts,
        example: "[\"auth.lab:5001\"]",
        reload: Reload::Live,
        set: |upstream, value| value.hosts().map(|it| upstream.trusted_hosts = it),
        show: |upstream| quote_list(&upstream.trusted_hosts),
    },
];
