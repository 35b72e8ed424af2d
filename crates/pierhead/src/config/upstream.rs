//! What the configuration says of one registry, and where that is then.

use std::path::PathBuf;

use pierhead_oci::Registry;

use super::Secret;

#[derive(Clone, Default)]
pub(crate) struct Upstream {
    /// `None`: `https://` and the registry's name.
    pub(crate) url: Option<String>,
    /// Instead of `url`; empty: there is one address.
    pub(crate) addresses: Vec<String>,
    pub(crate) login_hosts: Vec<String>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) identity_token: Option<Secret>,
    pub(crate) identity_token_file: Option<PathBuf>,
    pub(crate) credential_helper: Option<String>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) trusted_hosts: Vec<String>,
}

impl Upstream {
    /// Where this registry is, and whether that is the registry itself (which its login is for) and not a
    /// mirror, in the order of preference.
    pub(crate) fn places(&self, registry: &Registry) -> Vec<(String, bool)> {
        let default = pierhead_remote::default_url(registry);
        let urls = match (&self.addresses[..], &self.url) {
            ([], url) => vec![url.clone().unwrap_or_else(|| default.clone())],
            (addresses, _) => addresses.to_vec(),
        };
        let authority = |url: &str| url.parse::<http::Uri>().ok()?.into_parts().authority;
        let named = |url: &str, host: &str| {
            authority(url).is_some_and(|authority| {
                let host = host.strip_prefix("http://").unwrap_or(host);
                authority.as_str().eq_ignore_ascii_case(host)
                    || authority.host().eq_ignore_ascii_case(host)
            })
        };
        let is_own = |url: &str| match &self.login_hosts[..] {
            [] => authority(url) == authority(&default) || named(url, registry.as_str()),
            hosts => hosts.iter().any(|host| named(url, host)),
        };
        // Registries of a local name, all of whose addresses are its own.
        let none = urls.len() == 1 || !urls.iter().any(|url| is_own(url));
        let places = urls.into_iter();
        places
            .map(|url| {
                let own = none || is_own(&url);
                (url, own)
            })
            .collect()
    }

    /// Whether both have the same addresses, trust anchors and login. Ignores inline secrets, since they are masked when shown.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        fn told(of: &Upstream) -> impl PartialEq + '_ {
            let Upstream {
                url,
                addresses,
                login_hosts,
                username,
                password: _,
                password_file,
                identity_token: _,
                identity_token_file,
                credential_helper,
                ca,
                trusted_hosts,
            } = of;
            (
                (url, addresses, ca, trusted_hosts),
                (login_hosts, username, credential_helper),
                (password_file, identity_token_file),
            )
        }
        told(self) == told(other)
    }

    pub(crate) fn without_credentials(self) -> Self {
        Self {
            url: self.url,
            addresses: self.addresses,
            ca: self.ca,
            trusted_hosts: self.trusted_hosts,
            ..Self::default()
        }
    }

    pub(crate) fn has_credentials(&self) -> bool {
        self.username.is_some()
            || self.password.is_some()
            || self.password_file.is_some()
            || self.identity_token.is_some()
            || self.identity_token_file.is_some()
            || self.credential_helper.is_some()
    }
}
