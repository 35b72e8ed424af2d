//! The configuration keys of one upstream registry (`[upstreams."NAME"]`), as rows of the key
//! table.

use super::key::{Key, Reload, quote, quote_list, quote_path};
use crate::config::Upstream;
use crate::config::kind::Kind;

/// A user name by Docker's convention: with this name, the password is an OAuth2 refresh token.
pub(crate) const IDENTITY_TOKEN_USER: &str = "<token>";

/// The configuration keys of one upstream registry.
pub(crate) static UPSTREAM_KEYS: &[Key<Upstream>] = &[
    Key {
        section: "",
        name: "addresses",
        help: "One URL, or a list of URLs in the order of preference, such as mirrors before the \
               registry itself; without it, https://NAME. pierhead tries the next URL when one \
               fails, does not have the content, denies it, or does not respond within a second. \
               http:// and private addresses are allowed. A path in a URL comes before /v2.",
        kind: Kind::Urls,
        example: "[\"https://mirror.example\", \"https://registry.example\"]",
        reload: Reload::Live,
        set: |upstream, value| value.urls().map(|it| upstream.addresses = it),
        show: |upstream| quote_list(&upstream.addresses),
    },
    Key {
        section: "",
        name: "credential_hosts",
        help: "Hosts in `addresses` to which pierhead sends the credentials of this table. \
               With one address, pierhead sends the credentials to its host. With several \
               addresses and without this key, pierhead sends them only to the host that has the \
               name of the registry. Any other host gets the credentials of the table with its \
               own name, such as [upstreams.\"mirror.example\"], or none.",
        kind: Kind::Hosts,
        example: "[\"registry.example\"]",
        reload: Reload::Live,
        set: |upstream, value| value.hosts().map(|it| upstream.credential_hosts = it),
        show: |upstream| quote_list(&upstream.credential_hosts),
    },
    Key {
        section: "",
        name: "username",
        help: "User name for the password in password_file. \"<token>\" means, as in Docker, that \
               the file has an OAuth2 refresh token (identity token).",
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
        help: "NAME of the program docker-credential-NAME, from which pierhead gets user and \
               password.",
        kind: Kind::Text,
        example: "\"ecr-login\"",
        reload: Reload::Live,
        set: |upstream, value| {
            let name = value.text()?;
            let is_valid = !name.is_empty()
                && !name.starts_with(['-', '.'])
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            if !is_valid {
                return Err(format!(
                    "{name:?} is not the name of a credential helper: write the part of the program's name after docker-credential-"
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
        help: "PEM file of certificate authorities to trust for this upstream in addition to \
               those of the host.",
        kind: Kind::Path,
        example: "\"/etc/pierhead/upstream-ca.crt\"",
        reload: Reload::Live,
        set: |upstream, value| value.path().map(|it| upstream.ca = Some(it)),
        show: |upstream| upstream.ca.as_deref().map(quote_path),
    },
    Key {
        section: "",
        name: "trusted_hosts",
        help: "Private hosts to which this upstream may redirect, or that issue its tokens. \
               http://HOST allows plain HTTP. Public hosts are always allowed.",
        kind: Kind::Hosts,
        example: "[\"auth.lab:5001\"]",
        reload: Reload::Live,
        set: |upstream, value| value.hosts().map(|it| upstream.trusted_hosts = it),
        show: |upstream| quote_list(&upstream.trusted_hosts),
    },
    Key {
        section: "",
        name: "keep_deleted",
        help: "Whether pierhead serves the last known manifest of a tag when the registry answers \
               404, because somebody deleted the tag or the repository. Set this key where \
               running machines must be able to pull an image after its deletion. With auth.mode \
               \"pass-through\", only clients that read the repository within auth.cache_ttl get \
               the deleted tag.",
        kind: Kind::Boolean,
        example: "true",
        reload: Reload::Live,
        set: |upstream, value| value.boolean().map(|it| upstream.keep_deleted = it),
        show: |upstream| upstream.keep_deleted.then(|| "true".to_owned()),
    },
];
