//! What kind of registry it plays.

use std::time::Duration;

/// Changeable at run time by [`FakeRegistry::configure`](super::FakeRegistry::configure).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who may read.
    pub auth: Auth,
    /// Blobs are answered by 307 to the CDN's port, which refuses a request with an `Authorization`.
    pub redirect_blobs: bool,
    /// Off: the referrers API answers 404, and the tag schema has to do.
    pub referrers_api: bool,
    /// No page of a tag list has more entries, whatever the client asks for.
    pub tags_page: Option<usize>,
    /// Manifest GETs are counted and limited as Docker Hub does.
    pub rate_limit: Option<RateLimit>,
    /// Bytes a second that all bodies together get.
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

/// Who may read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Auth {
    /// Everybody.
    Open,
    /// One user, by basic authentication.
    Basic {
        /// Its name.
        user: String,
        /// Its password.
        password: String,
    },
    /// Whoever brings a token of the token server.
    Token(TokenAuth),
}

/// How the token server issues tokens.
#[derive(Clone, Debug)]
pub struct TokenAuth {
    /// Issues tokens to callers without credentials.
    pub anonymous: bool,
    /// Name and password of those who may log in.
    pub users: Vec<(String, String)>,
    /// An identity token that counts as a login (OAuth2 refresh token, sent by POST).
    pub identity: Option<String>,
    /// Repositories of which an anonymous token grants nothing.
    pub private: Vec<String>,
    /// How long a token is good for; zero issues expired ones.
    pub lifetime: Duration,
    /// How many requests a token is good for; `None` for any number while it lives.
    pub uses: Option<u32>,
    /// Whether the answer tells `expires_in`.
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

/// Docker Hub's limit on pulls, told by `ratelimit-limit` and `ratelimit-remaining`.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    /// Manifest GETs in a window.
    pub limit: u64,
    /// How many are left; at none, a manifest GET is answered 429.
    pub remaining: u64,
    /// The window in seconds, as told; it never ends.
    pub window: u64,
}
