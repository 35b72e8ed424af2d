//! Sends a request with the authentication that the upstream demands: none, a password, or a token.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use pierhead_oci::Repository;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::auth::challenge::{self, Challenge};
use crate::auth::credentials::{Credentials, basic_header};
use crate::auth::helper;
use crate::auth::state::{AuthScheme, HelperCredentials, Scope};
use crate::auth::token::{MAX_TOKEN_RESPONSE, Token, TokenKey};
use crate::error::Error;
use crate::exchange::redirect::resolve;
use crate::exchange::{UpstreamResponse, follow, read, refusal, settle};
use crate::metrics::RequestKind;
use crate::upstream::session::Session;

/// How long the credentials that a credential helper returned are cached. A response 401 removes
/// these credentials from the cache immediately.
const HELPER_TTL: Duration = Duration::from_secs(300);

/// How long pierhead waits before it runs a failed credential helper again.
const HELPER_PAUSE: Duration = Duration::from_secs(10);

/// The value of an `Authorization` header.
enum Authorization {
    Basic(Zeroizing<String>),
    Bearer(Arc<Token>),
}

/// Sends a GET or HEAD. If the response is a 401, sends the request once more with authentication
/// and returns the second response, whatever its status is.
pub(crate) async fn request(
    session: &Session,
    kind: RequestKind,
    method: &Method,
    uri: Uri,
    mut headers: HeaderMap,
    repository: &Repository,
) -> Result<UpstreamResponse, Error> {
    let scheme = session.auth_state.lock().scheme.clone();
    let mut authorization = match &scheme {
        Some(scheme) => authorization_for(session, scheme, repository, None).await?,
        None => None,
    };
    let mut challenged = false;
    loop {
        match &authorization {
            Some(authorization) => headers.insert(AUTHORIZATION, authorization.header(session)?),
            None => headers.remove(AUTHORIZATION),
        };
        let response = follow(session, kind, method, uri.clone(), &headers, Bytes::new()).await?;
        if response.http.status() != StatusCode::UNAUTHORIZED
            || response.is_cross_origin
            || challenged
        {
            return Ok(response);
        }
        challenged = true;
        let Some(scheme) = choose(
            session,
            &response.uri,
            &challenge::of(response.http.headers()),
            repository,
        ) else {
            return Ok(response);
        };
        let Some(next) =
            authorization_for(session, &scheme, repository, authorization.as_ref()).await?
        else {
            return Ok(response);
        };
        settle(response.http).await;
        session.auth_state.lock().scheme = Some(scheme);
        authorization = Some(next);
    }
}

/// Chooses one of the authentication schemes that the upstream offers. Prefers Bearer, because
/// Bearer also works without credentials.
fn choose(
    session: &Session,
    requested: &Uri,
    challenges: &[Challenge],
    repository: &Repository,
) -> Option<AuthScheme> {
    let bearer = challenges
        .iter()
        .filter(|challenge| challenge.scheme == "bearer")
        .find_map(|challenge| {
            let realm = resolve(requested, challenge.get("realm")?)?;
            let service = challenge.get("service").map(str::to_owned);
            Some(AuthScheme::Bearer {
                realm,
                service,
                scope: Scope::of(challenge.get("scope"), repository),
            })
        });
    let basic = || {
        challenges
            .iter()
            .any(|challenge| challenge.scheme == "basic")
            && session.credentials().is_some()
    };
    bearer.or_else(|| basic().then_some(AuthScheme::Basic))
}

impl Authorization {
    fn header(&self, session: &Session) -> Result<HeaderValue, Error> {
        let value = match self {
            Self::Basic(header) => HeaderValue::from_str(header),
            Self::Bearer(token) => {
                HeaderValue::try_from(Zeroizing::new(format!("Bearer {}", *token.secret)).as_str())
            }
        };
        let mut value = value
            .map_err(|_| session.forbidden("the configured login cannot be sent in a header"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Returns the value of the `Authorization` header that a challenge demands. `None` if there are no
/// credentials. `rejected` is the value that the upstream has just refused.
async fn authorization_for(
    session: &Session,
    scheme: &AuthScheme,
    repository: &Repository,
    rejected: Option<&Authorization>,
) -> Result<Option<Authorization>, Error> {
    match scheme {
        AuthScheme::Basic => {
            if matches!(rejected, Some(Authorization::Basic(_)))
                && !forget_helper_credentials(session)
            {
                return Ok(None);
            }
            match credentials_of(session).await {
                Some(Credentials::Basic { user, password }) => {
                    Ok(Some(Authorization::Basic(basic_header(&user, &password))))
                }
                _ => Ok(None),
            }
        }
        AuthScheme::Bearer {
            realm,
            service,
            scope,
        } => {
            let rejected = match rejected {
                Some(Authorization::Bearer(token)) => Some(token),
                _ => None,
            };
            let scope = scope.text(repository);
            let key = TokenKey {
                registry: session.name.clone(),
                address: session.base.clone(),
                realm: realm.clone(),
                service: service.clone(),
                client: session.client_identity.as_ref().map(|it| it.fingerprint),
                scope,
            };
            let fetch = || fetch(session, realm, service.as_deref(), &key.scope);
            let token = session.tokens().get(&key, rejected, fetch).await?;
            Ok(Some(Authorization::Bearer(token)))
        }
    }
}

/// Returns the credentials of this session. Credentials from a credential helper are cached for
/// [`HELPER_TTL`].
async fn credentials_of(session: &Session) -> Option<Credentials> {
    let Some(Credentials::Helper(name)) = session.credentials() else {
        return session.credentials().cloned();
    };
    if let Some(cached) = &session.auth_state.lock().helper_credentials
        && Instant::now() < cached.expires
    {
        return cached.credentials.clone();
    }
    let result = helper::ask(
        name,
        &session.shared.helper_folders,
        &session.name,
        helper::HELPER_TIMEOUT,
    )
    .await;
    let (credentials, ttl) = match result {
        Ok(credentials) => (Some(credentials), HELPER_TTL),
        Err(reason) => {
            tracing::warn!(upstream = %session.name, reason, "continuing without credentials");
            (None, HELPER_PAUSE)
        }
    };
    session.auth_state.lock().helper_credentials = Some(HelperCredentials {
        credentials: credentials.clone(),
        expires: Instant::now() + ttl,
    });
    credentials
}

/// Removes the cached credentials of a helper. Returns `true` if credentials were cached. In that
/// case, running the helper again may give valid credentials.
fn forget_helper_credentials(session: &Session) -> bool {
    if session.client_identity.is_some() {
        return false;
    }
    let mut state = session.auth_state.lock();
    let cached = &mut state.helper_credentials;
    cached
        .take_if(|cached| cached.credentials.is_some())
        .is_some()
}

/// Fetches a token. If the token server refuses the credentials of a credential helper, runs the
/// helper once more. After any other failure, `fetch` does not try again, because the caller
/// repeats the whole request.
async fn fetch(
    session: &Session,
    realm: &Uri,
    service: Option<&str>,
    scope: &str,
) -> Result<Arc<Token>, Error> {
    let attempt = || async {
        let credentials = credentials_of(session).await;
        ask(session, realm, service, scope, credentials.as_ref()).await
    };
    match attempt().await {
        Err(Error::Denied { .. }) if forget_helper_credentials(session) => attempt().await,
        result => result,
    }
}

async fn ask(
    session: &Session,
    realm: &Uri,
    service: Option<&str>,
    scope: &str,
    credentials: Option<&Credentials>,
) -> Result<Arc<Token>, Error> {
    let mut fields = Vec::from_iter(service.map(|service| ("service", service)));
    fields.push(("scope", scope));
    let mut headers = HeaderMap::new();
    let response = match credentials {
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
            follow(
                session,
                RequestKind::Token,
                &method,
                realm.clone(),
                &headers,
                body,
            )
            .await?
        }
        credentials => {
            if let Some(Credentials::Basic { user, password }) = credentials {
                fields.push(("account", user));
                let authorization = Authorization::Basic(basic_header(user, password));
                headers.insert(AUTHORIZATION, authorization.header(session)?);
            }
            let mark = if realm.query().is_some() { '&' } else { '?' };
            let uri = format!("{realm}{mark}{}", form(&fields)).parse();
            let uri =
                uri.map_err(|_| session.protocol("the realm of its challenge is not a URL"))?;
            let (method, body) = (Method::GET, Bytes::new());
            follow(session, RequestKind::Token, &method, uri, &headers, body).await?
        }
    };
    match response.http.status() {
        StatusCode::OK => {
            let json = read(session, response.http, MAX_TOKEN_RESPONSE).await?;
            let token = Token::parse(&json)
                .ok_or_else(|| session.protocol("the response of its token server has no token"))?;
            session.budget.succeeded();
            Ok(Arc::new(token))
        }
        // If the token server has no such URL, the registry's challenge is wrong. The error must
        // not be "not found", because the image may exist.
        StatusCode::NOT_FOUND => Err(session.protocol("its token server has no such URL (404)")),
        _ => Err(refusal(session, &response)),
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish()
}
