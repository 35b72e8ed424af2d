//! Requests in the name of a client: with its own login, never with a configured one.

use std::fmt;

use http::header::{CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderValue, Method, StatusCode};
use pierhead_oci::{Digest, Repository, Target};
use ring::hmac;
use ring::rand::SystemRandom;
use zeroize::Zeroizing;

use crate::authorize::request;
use crate::exchange::{Answer, refusal};
use crate::failover::{Addresses, none, reach};
use crate::metrics::{Errand, Kind};
use crate::range::ContentRange;
use crate::retry::Patience;
use crate::{Credentials, Error, manifest};

/// What a client of ours logs in with, or that it does not. `Debug` prints nothing of it, memory is
/// zeroised on drop. Bounding its length is the caller's.
#[derive(Clone)]
pub struct ClientCredentials(Option<Login>);

#[derive(Clone)]
struct Login {
    user: Zeroizing<String>,
    password: Zeroizing<String>,
}

impl ClientCredentials {
    /// A client that does not say who it is.
    pub fn anonymous() -> Self {
        Self(None)
    }

    /// User and password, as in the `Authorization: Basic` of a client.
    pub fn basic(user: &str, password: &str) -> Self {
        Self(Some(Login {
            user: Zeroizing::new(user.to_owned()),
            password: Zeroizing::new(password.to_owned()),
        }))
    }

    /// Whether it says who it is.
    pub fn is_anonymous(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCredentials(…)")
    }
}

/// Stands for a login in tables, and tells nothing of it: a hash under a key that never leaves this
/// process and is another after each start.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(…)")
    }
}

/// The key of all fingerprints of one client.
pub(crate) struct Sealer(hmac::Key);

impl Sealer {
    pub(crate) fn new() -> Result<Self, Error> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        key.map(Self).map_err(|_| Error::Config {
            what: "the system gives no random numbers".to_owned(),
        })
    }

    /// Some microseconds.
    pub(crate) fn fingerprint(&self, credentials: &ClientCredentials) -> Fingerprint {
        let mut context = hmac::Context::with_key(&self.0);
        if let Some(Login { user, password }) = &credentials.0 {
            // With its length, so that no user and password run into another pair.
            context.update(&user.len().to_be_bytes());
            context.update(user.as_bytes());
            context.update(password.as_bytes());
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(context.sign().as_ref());
        Fingerprint(hash)
    }
}

/// In whose name an upstream is asked, when it is a client's.
pub(crate) struct Guest {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) who: Fingerprint,
}

impl Guest {
    pub(crate) fn new(credentials: &ClientCredentials, who: Fingerprint) -> Self {
        let credentials =
            credentials
                .0
                .as_ref()
                .map(|Login { user, password }| Credentials::Basic {
                    user: String::clone(user),
                    password: password.clone(),
                });
        Self { credentials, who }
    }
}

/// What a client wants to read.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// A manifest or index.
    Manifest(&'a Target),
    /// A blob.
    Blob(&'a Digest),
}

/// What an upstream says to a client's wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may read that, and it is there.
    Granted,
    /// The login is wrong, or not good for that.
    Denied,
    /// Not there, for this client: many registries say so instead of `Denied`. No right to anything.
    Absent,
}

/// Asks by HEAD; what answers elsewhere and not well is asked for a byte by GET.
pub(crate) async fn authorize(
    addresses: &Addresses,
    repository: &Repository,
    wanted: Wanted<'_>,
) -> Result<Verdict, Error> {
    let (kind, path, headers) = match wanted {
        Wanted::Manifest(target) => (
            Kind::Manifest,
            format!("/v2/{repository}/manifests/{target}"),
            manifest::accept(),
        ),
        Wanted::Blob(digest) => (
            Kind::Blob,
            format!("/v2/{repository}/blobs/{digest}"),
            http::HeaderMap::new(),
        ),
    };
    let (errand, patience) = (Errand::head(kind), Patience::DOCUMENT);
    let (path, headers) = (&path, &headers);
    let verdict = reach(
        addresses,
        (errand, repository),
        patience,
        none,
        |origin| async move {
            let uri = origin.url(path)?;
            let (head, mut headers) = (Method::HEAD, headers.clone());
            let mut answer = request(
                &origin,
                kind,
                &head,
                uri.clone(),
                headers.clone(),
                repository,
            )
            .await?;
            if matches!(wanted, Wanted::Blob(_)) && is_doubtful(&answer) {
                headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
                // Drops the body unread. A long body thereby closes the connection.
                answer = request(&origin, kind, &Method::GET, uri, headers, repository).await?;
            }
            match answer.response.status().as_u16() {
                200 | 206 if answers(wanted, &answer) => {}
                200 | 206 => {
                    return Err(
                        origin.protocol("it answers with something else than was asked for")
                    );
                }
                _ => return Err(refusal(&origin, &answer)),
            }
            origin.budget.succeeded();
            Ok(Verdict::Granted)
        },
    );
    match verdict.await {
        Err(Error::Denied { .. }) => Ok(Verdict::Denied),
        Err(Error::NotFound { .. }) => Ok(Verdict::Absent),
        other => other,
    }
}

/// Whether HEAD leaves it open what is elsewhere. Signed URLs of object stores are often good for GET
/// alone; and the login of a gateway in front of the registry may answer HEAD by anything.
fn is_doubtful(answer: &Answer) -> bool {
    let untyped = !answer.response.headers().contains_key(CONTENT_TYPE);
    answer.elsewhere
        && match answer.response.status().as_u16() {
            200 => untyped,
            429 => false,
            status => (400..500).contains(&status),
        }
}

/// Whether a 200 or 206 is about what was asked for: the page of a login form says nothing of rights.
fn answers(wanted: Wanted<'_>, answer: &Answer) -> bool {
    let headers = answer.response.headers();
    let text = |name| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.map(str::to_ascii_lowercase)
    };
    let kind = text(CONTENT_TYPE);
    let is = |word: &str| kind.as_ref().is_some_and(|text| text.contains(word));
    if answer.response.status() == StatusCode::PARTIAL_CONTENT {
        let range = text(CONTENT_RANGE).and_then(|text| ContentRange::parse(&text));
        let from_start = matches!(range, Some(ContentRange::Part { first: 0, .. }));
        return from_start && matches!(wanted, Wanted::Blob(_)) && !is("html");
    }
    match wanted {
        Wanted::Manifest(_) => {
            manifest::claimed_digest(headers).is_some() || is("manifest") || is("index")
        }
        Wanted::Blob(_) => !is("html") && (kind.is_some() || !answer.elsewhere),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_logins_apart_and_keys_too() {
        let (sealer, other) = (Sealer::new().unwrap(), Sealer::new().unwrap());
        let all = [
            ClientCredentials::anonymous(),
            ClientCredentials::basic("", ""),
            ClientCredentials::basic("ab", "c"),
            ClientCredentials::basic("a", "bc"),
            ClientCredentials::basic("ab", "d"),
        ];
        let prints: std::collections::HashSet<_> =
            all.iter().map(|one| sealer.fingerprint(one)).collect();
        assert_eq!(prints.len(), all.len());
        for one in &all {
            assert_eq!(sealer.fingerprint(one), sealer.fingerprint(&one.clone()));
            assert_ne!(sealer.fingerprint(one), other.fingerprint(one));
        }
    }

    #[test]
    fn nothing_of_a_login_is_printed() {
        let credentials = ClientCredentials::basic("name", "hush");
        let print = Sealer::new().unwrap().fingerprint(&credentials);
        let text = format!("{credentials:?} {print:?}");
        assert_eq!(text, "ClientCredentials(…) Fingerprint(…)");
    }
}
