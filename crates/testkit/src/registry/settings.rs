//! The settings of the fake registry that a test can change: authentication, redirects, rate
//! limits.

use std::time::Duration;

/// Settings that [`FakeRegistry::configure`](super::FakeRegistry::configure) can change at run
/// time.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The required authentication.
    pub auth: Auth,
    /// Whether requests for blobs are redirected (307) to the CDN. The CDN refuses a request with
    /// an `Authorization` header.
    pub redirect_blobs: bool,
    /// Whether the registry has the referrers API. Without it, the API responds 404, and clients
    /// use the referrers tag.
    pub referrers_api: bool,
    /// Maximum number of tags per page, whatever the client requests.
    pub tags_page: Option<usize>,
    /// The rate limit of manifest GETs, like Docker Hub's.
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
    /// No authentication.
    Open,
    /// Basic authentication of one user.
    Basic {
        /// The name of the user.
        user: String,
        /// The password of the user.
        password: String,
    },
    /// A bearer token of the token server.
    Token(TokenAuth),
}

/// How the token server issues tokens.
#[derive(Clone, Debug)]
pub struct TokenAuth {
    /// Whether clients without credentials get tokens.
    pub anonymous: bool,
    /// Names and passwords of the users.
    pub users: Vec<(String, String)>,
    /// The identity token that is accepted, if any (an OAuth2 refresh token, sent by POST).
    pub identity: Option<String>,
    /// Repositories to which an anonymous token gives no access.
    pub private: Vec<String>,
    /// Lifetime of a token. If the lifetime is zero, the issued tokens are expired.
    pub lifetime: Duration,
    /// Number of requests for which a token is valid. `None`: no limit within its lifetime.
    pub uses: Option<u32>,
    /// Whether the response contains `expires_in`.
    pub tells_expiry: bool,
    /// Whether the token is only in `access_token`, not in `token`.
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

/// A limit of pulls like Docker Hub's, reported in `ratelimit-limit` and `ratelimit-remaining`.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    /// Maximum number of manifest GETs per time window.
    pub limit: u64,
    /// Number of remaining manifest GETs. At 0, a manifest GET gets a 429.
    pub remaining: u64,
    /// The reported time window in seconds. The window of the fake registry never ends.
    pub window: u64,
}
