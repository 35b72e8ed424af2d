//! The identity of upstream requests in pass-through mode: the credentials of a client, and a keyed
//! hash of these credentials.

use std::fmt;

use zeroize::Zeroizing;

use crate::auth::credentials::Credentials;
use crate::auth::keyed_hash::{KeyedHash, KeyedHasher};
use crate::error::Error;

/// The credentials that a client sends. A client may also send none. `Debug` prints no secret, and
/// the memory of the password is zeroed on drop. The caller limits the length of user and password.
#[derive(Clone)]
pub struct ClientCredentials(Option<UserPassword>);

#[derive(Clone)]
struct UserPassword {
    user: Zeroizing<String>,
    password: Zeroizing<String>,
}

impl ClientCredentials {
    /// Creates the value for a client without credentials.
    pub fn anonymous() -> Self {
        Self(None)
    }

    /// Creates the value for a client that sends user and password by `Authorization: Basic`.
    pub fn basic(user: &str, password: &str) -> Self {
        Self(Some(UserPassword {
            user: Zeroizing::new(user.to_owned()),
            password: Zeroizing::new(password.to_owned()),
        }))
    }

    /// Whether the client sends no credentials.
    pub fn is_anonymous(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCredentials(…)")
    }
}

/// A keyed hash of credentials, used as a key of caches. The hash reveals nothing of the
/// credentials: the key of the hash is random, new at each start of pierhead, and never leaves the
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(KeyedHash);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(…)")
    }
}

/// The secret key for the fingerprints of the clients of one process.
pub(crate) struct FingerprintKey(KeyedHasher);

impl FingerprintKey {
    pub(crate) fn new() -> Result<Self, Error> {
        let hasher = KeyedHasher::new();
        hasher.map(Self).ok_or_else(|| Error::Config {
            what: "the system returns no random numbers".to_owned(),
        })
    }

    /// Computes the fingerprint of these credentials. Takes some microseconds.
    pub(crate) fn fingerprint(&self, credentials: &ClientCredentials) -> Fingerprint {
        Fingerprint(match &credentials.0 {
            Some(UserPassword { user, password }) => {
                self.0.hash(&[user.as_bytes(), password.as_bytes()])
            }
            None => self.0.hash(&[]),
        })
    }
}

/// The client on whose behalf requests to an upstream are sent.
pub(crate) struct ClientIdentity {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) fingerprint: Fingerprint,
}

impl ClientIdentity {
    pub(crate) fn new(credentials: &ClientCredentials, fingerprint: Fingerprint) -> Self {
        let basic = |pair: &UserPassword| Credentials::Basic {
            user: String::clone(&pair.user),
            password: pair.password.clone(),
        };
        Self {
            credentials: credentials.0.as_ref().map(basic),
            fingerprint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_differ_by_credentials_and_by_key() {
        let (key, other) = (
            FingerprintKey::new().unwrap(),
            FingerprintKey::new().unwrap(),
        );
        let all = [
            ClientCredentials::anonymous(),
            ClientCredentials::basic("", ""),
            ClientCredentials::basic("ab", "c"),
            ClientCredentials::basic("a", "bc"),
            ClientCredentials::basic("ab", "d"),
        ];
        let prints: std::collections::HashSet<_> =
            all.iter().map(|one| key.fingerprint(one)).collect();
        assert_eq!(prints.len(), all.len());
        for one in &all {
            assert_eq!(key.fingerprint(one), key.fingerprint(&one.clone()));
            assert_ne!(key.fingerprint(one), other.fingerprint(one));
        }
    }

    #[test]
    fn debug_prints_no_credentials() {
        let credentials = ClientCredentials::basic("name", "hush");
        let print = FingerprintKey::new().unwrap().fingerprint(&credentials);
        let text = format!("{credentials:?} {print:?}");
        assert_eq!(text, "ClientCredentials(…) Fingerprint(…)");
    }
}
