//! The cache of bearer tokens for upstreams. If several requests need the same token, pierhead
//! fetches the token once.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use pierhead_oci::Registry;
use pierhead_ttl_cache::TtlCache;
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::auth::identity::Fingerprint;
use crate::error::Error;

/// Maximum number of cached tokens over all upstreams. A token has 1 to 4 KiB.
const MAX_TOKENS: usize = 512;

/// Maximum size of the response of a token server, in bytes.
pub(crate) const MAX_TOKEN_RESPONSE: usize = 64 << 10;

/// The lifetime of a token if the response of the token server has no lifetime (Distribution token
/// specification).
const DEFAULT_LIFETIME: Duration = Duration::from_secs(60);

/// Maximum time that a token is used. After this time, a revoked right has no more effect.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);

/// How long a request waits for a new token while the old token is still valid.
const RENEWAL_LIMIT: Duration = Duration::from_secs(1);

/// How long pierhead uses the old token after it could not fetch a new token.
const RENEWAL_PAUSE: Duration = Duration::from_secs(10);

/// A bearer token with its lifetime.
pub(crate) struct Token {
    pub(crate) secret: Zeroizing<String>,
    /// The time from which on a new token is fetched.
    renew: Instant,
    /// The time until which this token is used if no new token can be fetched.
    expires: Instant,
}

/// Identifies a cached token. A token is sent only to the address that demanded it: a mirror must
/// not see the registry's token, and the registry refuses a mirror's token.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct TokenKey {
    /// The registry as configured. The registry is a part of the key, because two upstreams with
    /// the same address may have different credentials.
    pub(crate) registry: Registry,
    /// The base URL that demands the token.
    pub(crate) address: String,
    /// The URL of the token server.
    pub(crate) realm: Uri,
    pub(crate) service: Option<String>,
    /// The client of a pass-through request. `None`: the token is for the configured credentials,
    /// or for no credentials.
    pub(crate) client: Option<Fingerprint>,
    pub(crate) scope: String,
}

/// A token that is cached or being fetched.
type TokenCell = Arc<OnceCell<Result<Arc<Token>, Error>>>;

/// The cached tokens of all upstreams. A full cache evicts the least recently used token.
pub(crate) struct Tokens(TtlCache<TokenKey, TokenCell>);

impl Default for Tokens {
    fn default() -> Self {
        Self(TtlCache::new(MAX_TOKENS, None))
    }
}

impl Tokens {
    /// Returns a valid token: the cached token, the token that is being fetched, or the token that
    /// `fetch` returns. The token `rejected`, which the upstream refused, counts as absent. If a
    /// fetch fails, all requests that waited for it get the error; later requests fetch again.
    ///
    /// Cancel safe: if the request that fetches the token is dropped, another waiting request
    /// fetches the token instead.
    pub(crate) async fn get<F>(
        &self,
        key: &TokenKey,
        rejected: Option<&Arc<Token>>,
        fetch: impl FnOnce() -> F,
    ) -> Result<Arc<Token>, Error>
    where
        F: Future<Output = Result<Arc<Token>, Error>>,
    {
        let (cell, old) = self.cell(key, rejected);
        let Some(old) = old else {
            return cell.get_or_init(fetch).await.clone();
        };
        let renewed = cell.get_or_init(|| async {
            match tokio::time::timeout(RENEWAL_LIMIT, fetch()).await {
                Ok(Err(error)) if !error.is_retryable() => Err(error),
                Ok(Ok(token)) => Ok(token),
                _ => Ok(Arc::new(old.extended())),
            }
        });
        renewed.await.clone()
    }

    /// Returns the cell of a token. If the old token is due for renewal and still valid, also
    /// returns the old token.
    fn cell(
        &self,
        key: &TokenKey,
        rejected: Option<&Arc<Token>>,
    ) -> (TokenCell, Option<Arc<Token>>) {
        let now = Instant::now();
        let is_rejected =
            |token: &Arc<Token>| rejected.is_some_and(|rejected| Arc::ptr_eq(rejected, token));
        let is_usable = |cell: &TokenCell| match cell.get() {
            None => true,
            Some(Ok(token)) => token.renew > now && !is_rejected(token),
            Some(Err(_)) => false,
        };
        if let Some(cell) = self.0.get(key).filter(is_usable) {
            return (cell, None);
        }
        let (mut cell, mut old) = (TokenCell::default(), None);
        self.0.update(key.clone(), |current| {
            if let Some(current) = current {
                // Another request may have begun a fetch in the meantime.
                if is_usable(current) {
                    cell = Arc::clone(current);
                    return None;
                }
                let token = current.get().and_then(|token| token.clone().ok());
                old = token.filter(|token| token.expires > now && !is_rejected(token));
            }
            Some(Arc::clone(&cell))
        });
        (cell, old)
    }
}

#[derive(Deserialize)]
struct TokenResponse {
    token: Option<Zeroizing<String>>,
    access_token: Option<Zeroizing<String>>,
    expires_in: Option<u64>,
}

impl Token {
    /// Parses the JSON of a token server. `None` if the JSON contains no token that is valid in a
    /// header. The lifetime counts from the arrival of the token. `issued_at` is ignored, because
    /// the clock of the token server may differ. pierhead fetches a new token in the last tenth of
    /// the lifetime, so that no token expires during a request.
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        let response: TokenResponse = serde_json::from_slice(json).ok()?;
        let filled = |token: &Zeroizing<String>| !token.is_empty();
        let secret = response
            .token
            .filter(filled)
            .or(response.access_token.filter(filled))?;
        if !secret.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        let life = response
            .expires_in
            .map_or(DEFAULT_LIFETIME, Duration::from_secs)
            .clamp(Duration::from_secs(1), MAX_LIFETIME);
        Some(Self {
            secret,
            renew: Instant::now() + life.mul_f64(0.9),
            expires: Instant::now() + life,
        })
    }

    /// Returns the same token with a longer lifetime, for use while the token server fails.
    fn extended(&self) -> Self {
        Self {
            secret: self.secret.clone(),
            renew: (Instant::now() + RENEWAL_PAUSE).min(self.expires),
            expires: self.expires,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::auth::identity::{ClientCredentials, FingerprintKey};

    fn key(scope: &str) -> TokenKey {
        TokenKey {
            registry: "quay.io".parse().unwrap(),
            address: "https://quay.io".into(),
            realm: "https://quay.io/token".parse().unwrap(),
            service: None,
            client: None,
            scope: scope.into(),
        }
    }

    fn token(json: &str) -> Option<Arc<Token>> {
        Token::parse(json.as_bytes()).map(Arc::new)
    }

    #[test]
    fn responses_of_token_servers_parse() {
        let secret = |json| token(json).map(|token| token.secret.to_string());
        assert_eq!(
            secret(r#"{"token":"a","access_token":"b","expires_in":300}"#).as_deref(),
            Some("a")
        );
        assert_eq!(
            secret(r#"{"token":"","access_token":"b"}"#).as_deref(),
            Some("b")
        );
        assert_eq!(
            secret(r#"{"token":"a","expires_in":18446744073709551615}"#).as_deref(),
            Some("a")
        );
        for json in [
            "",
            "{}",
            r#"{"token":""}"#,
            r#"{"token":"a\r\nb: c"}"#,
            r#"{"token":7}"#,
            r#"{"token":"a","expires_in":-1}"#,
            r#"{"token":"a b"}"#,
            "{\"token\":\"a\u{e9}\"}",
            &"[".repeat(60_000),
            &format!("{{\"token\":{}1{}}}", "[".repeat(200), "]".repeat(200)),
        ] {
            assert_eq!(secret(json), None, "{json}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_cached_until_it_expires_or_is_rejected() {
        let tokens = Tokens::default();
        let fetched = AtomicUsize::new(0);
        let get = async |rejected: Option<&Arc<Token>>| {
            let fetch = || async {
                fetched.fetch_add(1, Ordering::Relaxed);
                Ok(token(r#"{"token":"a","expires_in":100}"#).unwrap())
            };
            tokens.get(&key("x"), rejected, fetch).await.unwrap()
        };
        let first = get(None).await;
        assert!(Arc::ptr_eq(&first, &get(None).await));
        tokio::time::advance(Duration::from_secs(89)).await;
        assert!(Arc::ptr_eq(&first, &get(None).await));
        tokio::time::advance(Duration::from_secs(2)).await;
        let second = get(None).await;
        assert_eq!(fetched.load(Ordering::Relaxed), 2);
        let third = get(Some(&second)).await;
        // A request that still uses the second token gets the third token from the cache, without a
        // fetch.
        assert!(Arc::ptr_eq(&third, &get(Some(&second)).await));
        assert_eq!(fetched.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_token_is_used_until_it_expires_while_renewals_fail() {
        let tokens = Tokens::default();
        let key = key("x");
        let fresh = || async { Ok(token(r#"{"token":"a","expires_in":1000}"#).unwrap()) };
        let first = tokens.get(&key, None, fresh).await.unwrap();
        let requested = AtomicUsize::new(0);
        let down = || async {
            requested.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        };
        tokio::time::advance(Duration::from_secs(901)).await;
        for _ in 0..3 {
            let get = tokens.get(&key, None, down);
            let old = tokio::time::timeout(RENEWAL_LIMIT * 2, get).await;
            assert_eq!(old.unwrap().unwrap().secret, first.secret);
        }
        assert_eq!(requested.load(Ordering::Relaxed), 1, "not at each request");
        tokio::time::advance(RENEWAL_PAUSE).await;
        let refused = || async {
            Err(Error::Denied {
                upstream: "x".into(),
                has_credentials: false,
                status: 401,
            })
        };
        assert!(tokens.get(&key, None, refused).await.is_err(), "a verdict");

        let first = tokens.get(&key, None, fresh).await.unwrap();
        tokio::time::advance(Duration::from_secs(901)).await;
        let broken = || async {
            Err(Error::Status {
                upstream: "x".into(),
                status: 503,
            })
        };
        assert!(
            tokens.get(&key, Some(&first), broken).await.is_err(),
            "it was rejected"
        );
        tokens.get(&key, None, fresh).await.unwrap();
        tokio::time::advance(Duration::from_secs(1001)).await;
        assert!(tokens.get(&key, None, broken).await.is_err(), "expired");
    }

    #[tokio::test]
    async fn one_fetch_serves_all_waiting_requests_and_its_failure_too() {
        let tokens = Tokens::default();
        let fetched = AtomicUsize::new(0);
        let fetch = || async {
            fetched.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Err(Error::NotFound {
                upstream: "x".into(),
            })
        };
        let key = key("x");
        let all = (0..10).map(|_| tokens.get(&key, None, fetch));
        let results = futures_util::future::join_all(all).await;
        assert!(results.iter().all(Result::is_err));
        assert_eq!(fetched.load(Ordering::Relaxed), 1);
        assert!(tokens.get(&key, None, fetch).await.is_err());
        assert_eq!(
            fetched.load(Ordering::Relaxed),
            2,
            "a failure is not cached"
        );
    }

    #[tokio::test]
    async fn each_part_of_the_key_separates_tokens() {
        let client = FingerprintKey::new().unwrap();
        let client = client.fingerprint(&ClientCredentials::basic("ann", "right"));
        let keys = [
            key("x"),
            TokenKey {
                registry: "ghcr.io".parse().unwrap(),
                ..key("x")
            },
            TokenKey {
                address: "https://mirror.example".into(),
                ..key("x")
            },
            TokenKey {
                realm: "https://mirror.example/token".parse().unwrap(),
                ..key("x")
            },
            TokenKey {
                service: Some("s".into()),
                ..key("x")
            },
            TokenKey {
                client: Some(client),
                ..key("x")
            },
            key("y"),
        ];
        let tokens = Tokens::default();
        for (nth, key) in keys.iter().enumerate() {
            let json = format!("{{\"token\":\"{nth}\"}}");
            let fetch = || async { Ok(token(&json).unwrap()) };
            tokens.get(key, None, fetch).await.unwrap();
        }
        for (nth, key) in keys.iter().enumerate() {
            let fetch = || async { unreachable!("the token is cached") };
            let cached = tokens.get(key, None, fetch).await.unwrap();
            assert_eq!(*cached.secret, nth.to_string());
        }
    }

    #[tokio::test]
    async fn the_number_of_tokens_is_bounded() {
        let tokens = Tokens::default();
        for n in 0..2 * MAX_TOKENS {
            let fetch = || async { Ok(token(r#"{"token":"a"}"#).unwrap()) };
            tokens.get(&key(&n.to_string()), None, fetch).await.unwrap();
        }
        assert_eq!(tokens.0.len(), MAX_TOKENS);
        let latest = key(&(2 * MAX_TOKENS - 1).to_string());
        assert!(tokens.0.contains(&latest));
    }
}
