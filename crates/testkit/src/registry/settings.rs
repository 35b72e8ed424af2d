//! The settings of the fake registry that a test can change: authentication, redirects, rate
//! limits.

use std::time::Duration;

/// Settings that [`FakeRegistry::configure`](super::FakeRegistry::configure) can change at run
/// time.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The authentication that the registry requires.
    pub auth: Auth,
    /// Whether the registry redirects (307) requests for blobs to the CDN. The CDN refuses a
    /// request with an `Authorization` header.
    pub redirect_blobs: bool,
    /// Whether the registry has the referrers API. Without the API, requests to it get a 404, and
    /// clients use the referrers tag.
    pub referrers_api: bool,
    /// Maximum number of tags per page, even if the client requests more.
    pub tags_page: Option<usize>,
    /// The rate limit of manifest GETs, similar to the limit of Docker Hub.
    pub rate_limit: Option<RateLimit>,
    /// Maximum bytes per second of all bodies together.
    pub bandwidth: Option<u64>,
    /// The `Warning` header of each response to a request for a manifest or list.
    pub warning: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            auth: Auth::Open,
            redirect_blobs: false,
            referrers_api: true,
            tags_page: None,
            rate_limit: None,
            bandwidth: None,
            warning: None,
        }
    }
}

/// The authentication that the registry requires.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Auth {
    /// The registry requires no authentication.
    Open,
    /// The registry requires basic authentication of one user.
    Basic {
        /// The name of the user.
        user: String,
        /// The password of the user.
        password: String,
    },
    /// The registry requires a bearer token of the token server.
    Token(TokenAuth),
}

/// How the token server issues tokens.
#[derive(Clone, Debug)]
pub struct TokenAuth {
    /// Whether clients without credentials get tokens.
    pub anonymous: bool,
    /// Names and passwords of the users.
    pub users: Vec<(String, String)>,
    /// The identity token (an OAuth2 refresh token, sent by POST) that the token server accepts;
    /// `None` to accept none.
    pub identity: Option<String>,
    /// Repositories to which an anonymous token gives no access.
    pub private: Vec<String>,
    /// Lifetime of a token. With a lifetime of zero, each token is already expired when it is
    /// issued.
    pub lifetime: Duration,
    /// Number of requests for which a token is valid. With `None`, the number is not limited within
    /// the lifetime.
    pub uses: Option<u32>,
    /// Whether the response of the token server contains `expires_in`.
    pub tells_expiry: bool,
    /// Whether the response has the token only in `access_token`, and not in `token`.
    pub only_access_token: bool,
}

impl Default for TokenAuth {
    fn default() -> Self {
        Self {
            anonymous: true,
            users: Vec::new(),
            identity: None,
            private: Vec::new(),
            lifetime: Duration::from_secs(300),
            uses: None,
            tells_expiry: true,
            only_access_token: false,
        }
    }
}

/// A limit of pulls like the limit of Docker Hub, which the registry reports in `ratelimit-limit`
/// and `ratelimit-remaining`.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    /// Maximum number of manifest GETs per time window.
    pub limit: u64,
    /// Number of remaining manifest GETs. When this number is 0, a manifest GET gets a 429.
    pub remaining: u64,
    /// The reported time window in seconds. The window of the fake registry never ends.
    pub window: u64,
}
