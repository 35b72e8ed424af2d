//! What the configuration says of one registry, and where that is then.

use std::path::PathBuf;

use pierhead_oci::Registry;

#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// Empty: `https://` and the registry's name.
    pub(crate) addresses: Vec<String>,
    pub(crate) credential_hosts: Vec<String>,
    pub(crate) username: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) credential_helper: Option<String>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) trusted_hosts: Vec<String>,
}

impl Upstream {
    /// Where this registry is, and whether that is the registry itself (which its login is for) and not a
    /// mirror, in the order of preference.
    pub(crate) fn places(&self, registry: &Registry) -> Vec<(String, bool)> {
        let default = pierhead_remote::default_url(registry);
        let urls = match &self.addresses[..] {
            [] => vec![default.clone()],
            addresses => addresses.to_vec(),
        };
        let authority = |url: &str| url.parse::<http::Uri>().ok()?.into_parts().authority;
        let named = |url: &str, host: &str| {
            authority(url).is_some_and(|authority| {
                let host = host.strip_prefix("http://").unwrap_or(host);
                authority.as_str().eq_ignore_ascii_case(host)
                    || authority.host().eq_ignore_ascii_case(host)
            })
        };
        let is_own = |url: &str| match &self.credential_hosts[..] {
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

    pub(crate) fn without_credentials(self) -> Self {
        Self {
            addresses: self.addresses,
            ca: self.ca,
            trusted_hosts: self.trusted_hosts,
            ..Self::default()
        }
    }

    pub(crate) fn has_credentials(&self) -> bool {
        self.username.is_some() || self.password_file.is_some() || self.credential_helper.is_some()
    }
}
