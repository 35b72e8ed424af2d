//! The settings of the fake registry.

use std::time::Duration;

/// Settings that [`FakeRegistry::configure`](super::FakeRegistry::configure) can change at run
/// time.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The required authentication.
    pub auth: Auth,
    /// Whether blobs are redirected (307) to the CDN, which refuses a request with an
    /// `Authorization`.
    pub redirect_blobs: bool,
    /// Whether the referrers API exists. Without it, its status is 404, and clients use the tag
    /// schema.
    pub referrers_api: bool,
    /// Maximum number of tags per page, whatever the client requests.
    pub tags_page: Option<usize>,
    /// The rate limit of manifest GETs, like Docker Hub's.
    pub rate_limit: Option<RateLimit>,
    /// Maximum bytes per second of all bodies together.
    pub bandwidth: Option<u64>,
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
        }
    }
}

/// The required authentication.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Auth {
    /// No authentication.
    Open,
    /// One user, by basic authentication.
    Basic {
        /// The name of the user.
        user: String,
        /// The password of the user.
        password: String,
    },
    /// A token of the token server.
    Token(TokenAuth),
}

/// How the token server issues tokens.
#[derive(Clone, Debug)]
pub struct TokenAuth {
    /// Issues tokens to callers without credentials.
    pub anonymous: bool,
    /// Names and passwords of the users.
    pub users: Vec<(String, String)>,
    /// An accepted identity token (OAuth2 refresh token, sent by POST).
    pub identity: Option<String>,
    /// Repositories to which an anonymous token gives no access.
    pub private: Vec<String>,
    /// Lifetime of a token. Zero issues expired tokens.
    pub lifetime: Duration,
    /// Number of requests for which a token is valid; `None`: no limit within its lifetime.
    pub uses: Option<u32>,
    /// Whether the response contains `expires_in`.
    pub tells_expiry: bool,
    /// Whether the token is in `access_token` only, not in `token`.
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

/// Docker Hub's limit of pulls, reported in `ratelimit-limit` and `ratelimit-remaining`.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    /// Maximum number of manifest GETs per window.
    pub limit: u64,
    /// Number of remaining manifest GETs. At 0, a manifest GET gets a 429.
    pub remaining: u64,
    /// The reported window in seconds. The fake window never ends.
    pub window: u64,
}
