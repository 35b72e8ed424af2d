//! Keys of one upstream.

use super::{Key, quote, quote_path};
use crate::config::Upstream;
use crate::config::value::parse_url;

/// A secret that is set, without it.
const MASK: &str = "\"********\"";

fn list(items: &[String]) -> Option<String> {
    let items: Vec<_> = items.iter().map(|item| quote(item)).collect();
    (!items.is_empty()).then(|| format!("[{}]", items.join(", ")))
}

/// What `[upstreams."NAME"]` may hold.
pub(crate) static UPSTREAM_KEYS: &[Key<Upstream>] = &[
    Key {
        section: "",
        name: "url",
        doc: "Where the registry is, when not at https://NAME. http:// and private addresses are allowed here.",
        example: "\"https://mirror.example:5000\"",
        set: |upstream, value| parse_url(value.text()?).map(|it| upstream.url = Some(it)),
        show: |upstream| upstream.url.as_deref().map(quote),
    },
    Key {
        section: "",
        name: "addresses",
        doc: "Instead of url: several places where the registry can be had, mirrors and itself, the preferred one\nfirst. The next one is asked when one fails, lacks something, refuses it or is silent for a second.",
        example: "[\"https://mirror.example\", \"https://registry.example\"]",
        set: |upstream, value| value.urls().map(|it| upstream.addresses = it),
        show: |upstream| list(&upstream.addresses),
    },
    Key {
        section: "",
        name: "login_hosts",
        doc: "Which hosts of addresses the login below is for; without this, the host that is the registry itself\nby its name. Another address has the login of the table of its own name, such as\n[upstreams.\"mirror.example\"], or none.",
        example: "[\"registry.example\"]",
        set: |upstream, value| value.hosts().map(|it| upstream.login_hosts = it),
        show: |upstream| list(&upstream.login_hosts),
    },
    Key {
        section: "",
        name: "username",
        doc: "Whom to log in as; with password or password_file.",
        example: "\"someone\"",
        set: |upstream, value| {
            value
                .text()
                .map(|it| upstream.username = Some(it.to_owned()))
        },
        show: |upstream| upstream.username.as_deref().map(quote),
    },
    Key {
        section: "",
        name: "password",
        doc: "Password or access token. Better: password_file.",
        example: "\"…\"",
        set: |upstream, value| value.secret().map(|it| upstream.password = Some(it)),
        show: |upstream| upstream.password.as_ref().map(|_| MASK.to_owned()),
    },
    Key {
        section: "",
        name: "password_file",
        doc: "A file with the password in its first line.",
        example: "\"/etc/pierhead/password\"",
        set: |upstream, value| value.path().map(|it| upstream.password_file = Some(it)),
        show: |upstream| upstream.password_file.as_deref().map(quote_path),
    },
    Key {
        section: "",
        name: "identity_token",
        doc: "An OAuth2 refresh token instead of a user and password. Better: identity_token_file.",
        example: "\"…\"",
        set: |upstream, value| value.secret().map(|it| upstream.identity_token = Some(it)),
        show: |upstream| upstream.identity_token.as_ref().map(|_| MASK.to_owned()),
    },
    Key {
        section: "",
        name: "identity_token_file",
        doc: "A file with the refresh token in its first line.",
        example: "\"/etc/pierhead/token\"",
        set: |upstream, value| {
            value
                .path()
                .map(|it| upstream.identity_token_file = Some(it))
        },
        show: |upstream| upstream.identity_token_file.as_deref().map(quote_path),
    },
    Key {
        section: "",
        name: "credential_helper",
        doc: "Ask the program docker-credential-<this> for user and password.",
        example: "\"ecr-login\"",
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
        doc: "PEM file of authorities to trust for this upstream, beside the system's.",
        example: "\"/etc/pierhead/upstream-ca.crt\"",
        set: |upstream, value| value.path().map(|it| upstream.ca = Some(it)),
        show: |upstream| upstream.ca.as_deref().map(quote_path),
    },
    Key {
        section: "",
        name: "trusted_hosts",
        doc: "Internal places that this upstream may redirect to, or have its token server at; after http:// also\nwithout TLS. Public places need no mention.",
        example: "[\"auth.lab:5001\"]",
        set: |upstream, value| value.hosts().map(|it| upstream.trusted_hosts = it),
        show: |upstream| list(&upstream.trusted_hosts),
    },
];
