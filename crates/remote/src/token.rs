//! Bearer tokens: fetched once for all who wait, kept until they expire, bounded in number.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Uri;
use pierhead_oci::Registry;
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::{Error, Fingerprint};

/// Tokens kept, over all upstreams; each has some 1 to 4 KiB.
const CAPACITY: usize = 512;

/// What a token server must answer within.
pub(crate) const MAX_ANSWER: usize = 64 << 10;

/// The token spec: a server that says nothing means a minute, and none means less.
const SHORTEST_LIFE: Duration = Duration::from_secs(60);

/// Not believed for longer, so that a revoked right ends.
const LONGEST_LIFE: Duration = Duration::from_secs(3600);

/// While an old token will do, a new one is not waited for any longer.
const RENEWAL: Duration = Duration::from_secs(1);

/// And after that failed, not asked for again for so long.
const RENEWAL_PAUSE: Duration = Duration::from_secs(10);

/// A bearer token.
pub(crate) struct Token {
    pub(crate) secret: Zeroizing<String>,
    /// From then on a new one is fetched.
    renew: Instant,
    /// Until then this one will do when none can be had.
    expires: Instant,
}

/// The scope of a token. A token goes only to the address that demanded it: a mirror must not see the registry's
/// token, and the registry refuses a mirror's.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// As configured: two upstreams may share an address, with credentials of their own.
    pub(crate) registry: Registry,
    /// The base URL that demands the token.
    pub(crate) address: String,
    /// The token server, and the service.
    pub(crate) realm: Uri,
    pub(crate) service: Option<String>,
    /// `None`: the configured credentials, or none.
    pub(crate) guest: Option<Fingerprint>,
    pub(crate) scope: String,
}

type Cell = Arc<OnceCell<Result<Arc<Token>, Error>>>;

#[derive(Default)]
struct Cells {
    by_key: HashMap<Key, (Cell, u64)>,
    tick: u64,
}

/// The tokens of all upstreams.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<Cells>);

impl Tokens {
    /// A fresh token: the one that is there, the one that is being fetched, or what `fetch` brings. A
    /// `rejected` one counts as not there. A failure is told to all who waited for it, and to nobody else.
    ///
    /// Cancel safe: when the one who fetches leaves, another who waits takes over.
    pub(crate) async fn get<F>(
        &self,
        key: &Key,
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
            match tokio::time::timeout(RENEWAL, fetch()).await {
                Ok(Err(error)) if !error.is_retryable() => Err(error),
                Ok(Ok(token)) => Ok(token),
                _ => Ok(Arc::new(old.for_now())),
            }
        });
        renewed.await.clone()
    }

    /// The place of that token; and the one that is due to be renewed, when it is good for some time yet.
    fn cell(&self, key: &Key, rejected: Option<&Arc<Token>>) -> (Cell, Option<Arc<Token>>) {
        let now = Instant::now();
        let is_rejected =
            |token: &Arc<Token>| rejected.is_some_and(|rejected| Arc::ptr_eq(rejected, token));
        let usable = |cell: &Cell| match cell.get() {
            None => true,
            Some(Ok(token)) => token.renew > now && !is_rejected(token),
            Some(Err(_)) => false,
        };
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cells.tick += 1;
        let tick = cells.tick;
        if let Some((cell, used)) = cells.by_key.get_mut(key) {
            *used = tick;
            let mut old = None;
            if !usable(cell) {
                let cell = std::mem::take(cell);
                old = cell.get().and_then(|token| token.clone().ok());
                old = old.filter(|token| token.expires > now && !is_rejected(token));
            }
            return (Arc::clone(cell), old);
        }
        if cells.by_key.len() >= CAPACITY {
            cells.by_key.retain(|_, (cell, _)| usable(cell));
        }
        if cells.by_key.len() >= CAPACITY {
            let oldest = cells
                .by_key
                .iter()
                .min_by_key(|(_, (_, used))| *used)
                .map(|(key, _)| key.clone());
            oldest.map(|key| cells.by_key.remove(&key));
        }
        let cell = Cell::default();
        cells.by_key.insert(key.clone(), (Arc::clone(&cell), tick));
        (cell, None)
    }
}

#[derive(Deserialize)]
struct Answer {
    token: Option<Zeroizing<String>>,
    access_token: Option<Zeroizing<String>>,
    expires_in: Option<u64>,
}

impl Token {
    /// From a token server's JSON. `None` when there is no token in it that a header can carry.
    ///
    /// The life begins now and not at `issued_at`, whose clock is another's; its last tenth is used only
    /// while no other can be had, so that no token expires on the way.
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        let answer: Answer = serde_json::from_slice(json).ok()?;
        let filled = |token: &Zeroizing<String>| !token.is_empty();
        let secret = answer
            .token
            .filter(filled)
            .or(answer.access_token.filter(filled))?;
        if !secret.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        let life = answer
            .expires_in
            .map_or(SHORTEST_LIFE, Duration::from_secs)
            .clamp(Duration::from_secs(1), LONGEST_LIFE);
        Some(Self {
            secret,
            renew: Instant::now() + life.mul_f64(0.9),
            expires: Instant::now() + life,
        })
    }

    /// The same, to be used while the token server is in trouble.
    fn for_now(&self) -> Self {
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

    fn key(scope: &str) -> Key {
        Key {
            registry: "quay.io".parse().unwrap(),
            address: "https://quay.io".into(),
            realm: "https://quay.io/token".parse().unwrap(),
            service: None,
            guest: None,
            scope: scope.into(),
        }
    }

    fn token(json: &str) -> Option<Arc<Token>> {
        Token::parse(json.as_bytes()).map(Arc::new)
    }

    #[test]
    fn answers_of_token_servers() {
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
    async fn a_token_is_kept_until_it_expires_or_is_rejected() {
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
        // Who still holds the second finds that it has been replaced already.
        assert!(Arc::ptr_eq(&third, &get(Some(&second)).await));
        assert_eq!(fetched.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_token_will_do_until_it_expires_while_none_can_be_had() {
        let tokens = Tokens::default();
        let key = key("x");
        let fresh = || async { Ok(token(r#"{"token":"a","expires_in":1000}"#).unwrap()) };
        let first = tokens.get(&key, None, fresh).await.unwrap();
        let asked = AtomicUsize::new(0);
        let down = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        };
        tokio::time::advance(Duration::from_secs(901)).await;
        for _ in 0..3 {
            let get = tokens.get(&key, None, down);
            let old = tokio::time::timeout(RENEWAL * 2, get).await;
            assert_eq!(old.unwrap().unwrap().secret, first.secret);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1, "not at each request");
        tokio::time::advance(RENEWAL_PAUSE).await;
        let refused = || async {
            Err(Error::Denied {
                upstream: "x".into(),
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
    async fn one_fetch_for_all_who_wait_also_when_it_fails() {
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
            "a failure is not remembered"
        );
    }

    #[tokio::test]
    async fn their_number_is_bounded() {
        let tokens = Tokens::default();
        for n in 0..2 * CAPACITY {
            let fetch = || async { Ok(token(r#"{"token":"a"}"#).unwrap()) };
            tokens.get(&key(&n.to_string()), None, fetch).await.unwrap();
        }
        let cells = tokens.0.lock().unwrap();
        assert_eq!(cells.by_key.len(), CAPACITY);
        assert!(
            cells
                .by_key
                .contains_key(&key(&(2 * CAPACITY - 1).to_string()))
        );
    }
}
