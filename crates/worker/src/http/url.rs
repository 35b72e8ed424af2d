//! The type `Url`: the address of a server, with a scheme, a host and a port.

use std::fmt;

use http::uri::{Scheme, Uri};

/// The URL of a server: `http://HOST[:PORT]` or `https://HOST[:PORT]`, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether the scheme is https, and not http.
    pub tls: bool,
    /// A host name or an IP address. An IPv6 address has no brackets.
    pub host: String,
    /// The port. If the URL names no port, 80 for http or 443 for https.
    pub port: u16,
    /// Host and port in the spelling of the user: the value of the `Host` header.
    authority: String,
}

impl Url {
    /// Parses the URL of a server. A path is allowed only if it is `/` or `/v2/`. Without a scheme,
    /// the URL means plain HTTP.
    ///
    /// # Errors
    /// A message for the user that states the expected form.
    pub fn parse(text: &str) -> Result<Self, String> {
        // A text without a scheme means plain HTTP, as for the address of `pierhead setup`.
        let with_scheme = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        let (url, rest) = Self::split(&with_scheme).ok_or(
            "write http://HOST:PORT or https://HOST, such as http://pierhead.example:5000",
        )?;
        match rest.as_str() {
            "" | "/" | "/v2" | "/v2/" => Ok(url),
            _ => Err("write it without a path: http://HOST:PORT".to_owned()),
        }
    }

    /// Splits an absolute URL into its server and its path with query.
    pub(crate) fn split(text: &str) -> Option<(Self, String)> {
        let uri: Uri = text.parse().ok()?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let url = Self {
            tls,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
        };
        let rest = uri.path_and_query().map_or("/", |rest| rest.as_str());
        Some((url, rest.to_owned()))
    }

    /// Returns host and port in the form of the `Host` header and of Docker's config.json.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_urls_without_credentials_and_path_are_accepted() {
        let url = Url::parse("http://[::1]:5000/").expect("an address");
        assert_eq!((url.host.as_str(), url.port, url.tls), ("::1", 5000, false));
        assert_eq!(url.to_string(), "http://[::1]:5000");
        let url = Url::parse("https://pierhead.example").expect("a name");
        assert_eq!((url.port, url.tls), (443, true));
        let url = Url::parse("pierhead.example:5000").expect("an address");
        assert_eq!(url.to_string(), "http://pierhead.example:5000");
        for wrong in [
            "user:pw@a:5000",
            "ftp://a",
            "http://user:pw@a",
            "http://a/b",
            "http://",
            "",
        ] {
            assert!(Url::parse(wrong).is_err(), "{wrong}");
        }
        let (url, rest) = Url::split("https://cdn.example/a?b=c").expect("a redirect");
        assert_eq!((url.authority(), rest.as_str()), ("cdn.example", "/a?b=c"));
    }
}
