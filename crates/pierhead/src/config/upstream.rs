//! The configuration of one upstream registry, and the URLs at which pierhead contacts this
//! registry.

use std::path::PathBuf;

use pierhead_oci::Registry;

/// The keys of one table `[upstreams."NAME"]`.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// URLs in the order of preference. An empty list stands for `https://NAME`.
    pub(crate) addresses: Vec<String>,
    pub(crate) credential_hosts: Vec<String>,
    pub(crate) username: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) credential_helper: Option<String>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) trusted_hosts: Vec<String>,
    pub(crate) keep_deleted: bool,
}

impl Upstream {
    /// Returns the URLs of this registry in the order of preference. The boolean is true for a URL
    /// of the registry itself, which gets the credentials, and false for the URL of a mirror.
    pub(crate) fn urls(&self, registry: &Registry) -> Vec<(String, bool)> {
        let default = pierhead_remote::default_url(registry);
        let urls = match &self.addresses[..] {
            [] => vec![default.clone()],
            addresses => addresses.to_vec(),
        };
        let authority = |url: &str| url.parse::<http::Uri>().ok()?.into_parts().authority;
        let has_host = |url: &str, host: &str| {
            authority(url).is_some_and(|authority| {
                let host = host.strip_prefix("http://").unwrap_or(host);
                authority.as_str().eq_ignore_ascii_case(host)
                    || authority.host().eq_ignore_ascii_case(host)
            })
        };
        let is_own = |url: &str| match &self.credential_hosts[..] {
            [] => authority(url) == authority(&default) || has_host(url, registry.as_str()),
            hosts => hosts.iter().any(|host| has_host(url, host)),
        };
        // If no URL has the registry's name, as with a local alias, each URL counts as the registry
        // itself.
        let all_own = urls.len() == 1 || !urls.iter().any(|url| is_own(url));
        urls.into_iter()
            .map(|url| {
                let own = all_own || is_own(&url);
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
