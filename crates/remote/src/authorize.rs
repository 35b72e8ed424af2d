//! A request with whatever proof the upstream wants: none, a password, or a token fetched for it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use pierhead_oci::Repository;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::challenge::{self, Challenge};
use crate::credentials::basic_header;
use crate::exchange::{Answer, follow, read, refusal, settle};
use crate::metrics::Kind;
use crate::origin::Origin;
use crate::redirect::resolve;
use crate::token::{Key, MAX_ANSWER, Token};
use crate::{Credentials, Error, helper};

/// What a helper said is used for so long; a failed login ends it at once.
const HELPER_LIFE: Duration = Duration::from_secs(300);

/// A helper that failed is left alone for so long.
const HELPER_PAUSE: Duration = Duration::from_secs(10);

/// What is remembered of the logins at one upstream, so that most requests need no round trip to learn it.
#[derive(Default)]
pub(crate) struct Memory {
    way: Option<Way>,
    helped: Option<(Option<Credentials>, Instant)>,
}

/// How an upstream wants to be logged in to.
#[derive(Clone)]
enum Way {
    Basic,
    Bearer {
        realm: Uri,
        service: Option<String>,
        scope: Scope,
    },
}

/// Which scope a token of this upstream has to have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    /// `repository:<prefix><name>:pull`; upstreams under a path prefix know the repository by a longer name.
    Repository { prefix: String },
    /// The same for all repositories.
    Fixed(String),
}

/// What goes into the `Authorization` header.
enum Proof {
    Basic(Zeroizing<String>),
    Bearer(Arc<Token>),
}

/// Sends a GET or HEAD for `path`, logging in when asked to. A 401 that remains is an answer.
pub(crate) async fn request(
    origin: &Origin,
    kind: Kind,
    method: &Method,
    uri: Uri,
    mut headers: HeaderMap,
    repository: &Repository,
) -> Result<Answer, Error> {
    let way = origin
        .memory
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .way
        .clone();
    let mut proof = match &way {
        Some(way) => prove(origin, way, repository, None).await?,
        None => None,
    };
    let mut logins = 0;
    loop {
        match &proof {
            Some(proof) => headers.insert(AUTHORIZATION, proof.header(origin)?),
            None => headers.remove(AUTHORIZATION),
        };
        let answer = follow(origin, kind, method, uri.clone(), &headers, Bytes::new()).await?;
        if answer.response.status() != StatusCode::UNAUTHORIZED || answer.elsewhere || logins == 1 {
            return Ok(answer);
        }
        logins += 1;
        let Some(way) = choose(
            origin,
            &answer.uri,
            &challenge::of(answer.response.headers()),
            repository,
        ) else {
            return Ok(answer);
        };
        let Some(next) = prove(origin, &way, repository, proof.as_ref()).await? else {
            return Ok(answer);
        };
        settle(answer.response).await;
        origin
            .memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .way = Some(way);
        proof = Some(next);
    }
}

/// Bearer where it is offered, since it works without a login too.
fn choose(
    origin: &Origin,
    asked: &Uri,
    challenges: &[Challenge],
    repository: &Repository,
) -> Option<Way> {
    let bearer = challenges
        .iter()
        .filter(|challenge| challenge.scheme == "bearer")
        .find_map(|challenge| {
            let realm = resolve(asked, challenge.get("realm")?)?;
            let service = challenge.get("service").map(str::to_owned);
            Some(Way::Bearer {
                realm,
                service,
                scope: Scope::of(challenge.get("scope"), repository),
            })
        });
    let basic = || {
        challenges
            .iter()
            .any(|challenge| challenge.scheme == "basic")
            && origin.credentials().is_some()
    };
    bearer.or_else(|| basic().then_some(Way::Basic))
}

impl Scope {
    /// Never more than the right to pull, whatever the challenge names.
    fn of(named: Option<&str>, repository: &Repository) -> Self {
        let Some(named) = named.map(str::trim).filter(|named| !named.is_empty()) else {
            return Self::Repository {
                prefix: String::new(),
            };
        };
        match named.strip_prefix("repository:") {
            Some(rest) => {
                let name = rest.split(':').next().unwrap_or_default();
                let prefix = name.strip_suffix(repository.as_str()).unwrap_or_default();
                Self::Repository {
                    prefix: prefix.to_owned(),
                }
            }
            None => Self::Fixed(named.to_owned()),
        }
    }

    fn text(&self, repository: &Repository) -> String {
        match self {
            Self::Repository { prefix } => format!("repository:{prefix}{repository}:pull"),
            Self::Fixed(text) => text.clone(),
        }
    }
}

impl Proof {
    fn header(&self, origin: &Origin) -> Result<HeaderValue, Error> {
        let value = match self {
            Self::Basic(header) => HeaderValue::from_str(header),
            Self::Bearer(token) => {
                HeaderValue::try_from(Zeroizing::new(format!("Bearer {}", *token.secret)).as_str())
            }
        };
        let mut value = value
            .map_err(|_| origin.forbidden("the configured login cannot be sent in a header"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// `None` when there is nothing to log in with. `rejected` is what the upstream has just refused.
async fn prove(
    origin: &Origin,
    way: &Way,
    repository: &Repository,
    rejected: Option<&Proof>,
) -> Result<Option<Proof>, Error> {
    match way {
        Way::Basic => {
            if matches!(rejected, Some(Proof::Basic(_))) && !forget_helped(origin) {
                return Ok(None);
            }
            match login(origin).await {
                Some(Credentials::Basic { user, password }) => {
                    Ok(Some(Proof::Basic(basic_header(&user, &password))))
                }
                _ => Ok(None),
            }
        }
        Way::Bearer {
            realm,
            service,
            scope,
        } => {
            let rejected = match rejected {
                Some(Proof::Bearer(token)) => Some(token),
                _ => None,
            };
            let scope = scope.text(repository);
            let key = Key {
                registry: origin.name.clone(),
                address: origin.base.clone(),
                realm: realm.clone(),
                service: service.clone(),
                guest: origin.guest.as_ref().map(|guest| guest.who),
                scope,
            };
            let fetch = || fetch(origin, realm, service.as_deref(), &key.scope);
            let token = origin.tokens().get(&key, rejected, fetch).await?;
            Ok(Some(Proof::Bearer(token)))
        }
    }
}

/// The configured login; a helper's is asked for and kept for some minutes.
async fn login(origin: &Origin) -> Option<Credentials> {
    let Some(Credentials::Helper(name)) = origin.credentials() else {
        return origin.credentials().cloned();
    };
    if let Some((helped, until)) = &origin
        .memory
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .helped
        && Instant::now() < *until
    {
        return helped.clone();
    }
    let answer = helper::ask(
        name,
        &origin.shared.helper_folders,
        &origin.name,
        helper::TIMEOUT,
    )
    .await;
    let (helped, life) = match answer {
        Ok(credentials) => (Some(credentials), HELPER_LIFE),
        Err(reason) => {
            tracing::warn!(upstream = %origin.name, reason, "going on without a login");
            (None, HELPER_PAUSE)
        }
    };
    origin
        .memory
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .helped = Some((helped.clone(), Instant::now() + life));
    helped
}

/// Whether a helper's answer was forgotten, so that asking it anew may help.
fn forget_helped(origin: &Origin) -> bool {
    if origin.guest.is_some() {
        return false;
    }
    let mut memory = origin.memory.lock().unwrap_or_else(PoisonError::into_inner);
    memory
        .helped
        .take_if(|(helped, _)| helped.is_some())
        .is_some()
}

/// Fetches a token; a login of a helper that is refused is asked for once more. Not tried again here:
/// the whole request is.
async fn fetch(
    origin: &Origin,
    realm: &Uri,
    service: Option<&str>,
    scope: &str,
) -> Result<Arc<Token>, Error> {
    let attempt = || async {
        let credentials = login(origin).await;
        ask(origin, realm, service, scope, credentials.as_ref()).await
    };
    match attempt().await {
        Err(Error::Denied { .. }) if forget_helped(origin) => attempt().await,
        result => result,
    }
}

async fn ask(
    origin: &Origin,
    realm: &Uri,
    service: Option<&str>,
    scope: &str,
    credentials: Option<&Credentials>,
) -> Result<Arc<Token>, Error> {
    let mut fields = Vec::from_iter(service.map(|service| ("service", service)));
    fields.push(("scope", scope));
    let mut headers = HeaderMap::new();
    let answer = match credentials {
        Some(Credentials::Identity(identity)) => {
            fields.extend([
                ("grant_type", "refresh_token"),
                ("client_id", "pierhead"),
                ("refresh_token", identity.as_str()),
            ]);
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("application/x-www-form-urlencoded"),
            );
            let (method, body) = (Method::POST, form(&fields).into());
            follow(origin, Kind::Token, &method, realm.clone(), &headers, body).await?
        }
        credentials => {
            if let Some(Credentials::Basic { user, password }) = credentials {
                fields.push(("account", user));
                let proof = Proof::Basic(basic_header(user, password));
                headers.insert(AUTHORIZATION, proof.header(origin)?);
            }
            let mark = if realm.query().is_some() { '&' } else { '?' };
            let uri = format!("{realm}{mark}{}", form(&fields)).parse();
            let uri = uri.map_err(|_| origin.protocol("its token realm is no URL"))?;
            let (method, body) = (Method::GET, Bytes::new());
            follow(origin, Kind::Token, &method, uri, &headers, body).await?
        }
    };
    match answer.response.status() {
        StatusCode::OK => {
            let json = read(origin, answer.response, MAX_ANSWER).await?;
            let token = Token::parse(&json)
                .ok_or_else(|| origin.protocol("its token server answered without a token"))?;
            origin.budget.succeeded();
            Ok(Arc::new(token))
        }
        // No such place to log in at is a broken challenge, not a missing image.
        StatusCode::NOT_FOUND => Err(origin.protocol("its token server is not there (404)")),
        _ => Err(refusal(origin, &answer)),
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_follow_the_challenge_but_only_pull() {
        let name: Repository = "library/redis".parse().unwrap();
        let other: Repository = "a/b".parse().unwrap();
        for (named, expected) in [
            (None, "repository:a/b:pull"),
            (Some(" "), "repository:a/b:pull"),
            (Some("repository:library/redis:pull"), "repository:a/b:pull"),
            (
                Some("repository:library/redis:pull,push,delete"),
                "repository:a/b:pull",
            ),
            (
                Some("repository:hub-cache/library/redis:pull"),
                "repository:hub-cache/a/b:pull",
            ),
            (Some("repository:unrelated:pull"), "repository:a/b:pull"),
            (Some("aws"), "aws"),
        ] {
            assert_eq!(Scope::of(named, &name).text(&other), expected, "{named:?}");
        }
    }
}
