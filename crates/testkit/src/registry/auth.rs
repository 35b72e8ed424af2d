//! Authentication of the fake registry: basic authentication, and a token server that behaves like
//! the token server of Docker Hub.

use std::collections::{BTreeSet, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::time::Instant;

use super::log::{RecordedRequest, Role};
use super::reply::Reply;
use super::settings::{Auth, TokenAuth};
use super::shared::Shared;

const SERVICE: &str = "fake-registry";

/// The tokens that the token server has issued, both valid and expired.
#[derive(Default)]
pub(super) struct Issued {
    tokens: HashMap<String, Grant>,
    /// Number of tokens that were ever issued. The counter is never reset, so that each token is
    /// unique.
    count: u64,
}

struct Grant {
    repositories: BTreeSet<String>,
    expires: Instant,
    /// Number of requests for which the token is still valid.
    uses: Option<u32>,
}

impl Issued {
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
    }
}

/// Accepts a request, or returns the response that refuses it.
pub(super) fn check(shared: &Shared, request: &RecordedRequest) -> Result<(), Reply> {
    if request.role != Role::Registry {
        return Ok(());
    }
    let auth = shared.settings.lock().auth.clone();
    match auth {
        Auth::Open => Ok(()),
        Auth::Basic { user, password } => {
            let let_in = basic(request) == Some((user, password));
            let challenge = "Basic realm=\"fake registry\"";
            if let_in {
                Ok(())
            } else {
                Err(unauthorized(challenge.to_owned()))
            }
        }
        Auth::Token(_) => bearer(shared, request),
    }
}

fn unauthorized(challenge: String) -> Reply {
    Reply::error(401, "UNAUTHORIZED")
        .header("www-authenticate", challenge)
        .header("docker-distribution-api-version", "registry/2.0")
}

fn bearer(shared: &Shared, request: &RecordedRequest) -> Result<(), Reply> {
    let repository = repository(&request.path);
    let authorization = request.header("authorization").unwrap_or_default();
    let token = authorization
        .split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let mut error = "";
    if let Some((_, token)) = token {
        let mut issued = shared.issued.lock();
        match issued.tokens.get_mut(token) {
            Some(grant) if grant.expires > Instant::now() && grant.uses != Some(0) => {
                if repository.is_none_or(|name| grant.repositories.contains(name)) {
                    grant.uses = grant.uses.map(|left| left - 1);
                    return Ok(());
                }
                error = ",error=\"insufficient_scope\"";
            }
            _ => error = ",error=\"invalid_token\"",
        }
    }
    let realm = shared
        .bases
        .get()
        .map(|bases| bases.tokens.as_str())
        .unwrap_or_default();
    let scope = repository
        .map(|name| format!(",scope=\"repository:{name}:pull\""))
        .unwrap_or_default();
    Err(unauthorized(format!(
        "Bearer realm=\"{realm}/token\",service=\"{SERVICE}\"{scope}{error}"
    )))
}

/// Returns the repository in a path of the API.
fn repository(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/v2/")?;
    let ends = ["/manifests/", "/blobs/", "/tags/", "/referrers/"];
    ends.iter()
        .find_map(|end| rest.rfind(end))
        .map(|at| &rest[..at])
}

fn basic(request: &RecordedRequest) -> Option<(String, String)> {
    let (scheme, encoded) = request.header("authorization")?.split_once(' ')?;
    let decoded = scheme
        .eq_ignore_ascii_case("basic")
        .then(|| STANDARD.decode(encoded.trim()))?
        .ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Creates the response of the token server.
pub(super) fn token(shared: &Shared, request: &RecordedRequest) -> Reply {
    let auth = shared.settings.lock().auth.clone();
    let Auth::Token(rules) = auth else {
        return Reply::error(404, "UNSUPPORTED");
    };
    if request.path != "/token" {
        return Reply::error(404, "UNSUPPORTED");
    }
    let requested = if request.method == "POST" {
        &request.body[..]
    } else {
        request.query.as_deref().unwrap_or("").as_bytes()
    };
    let requested: Vec<(String, String)> = form_urlencoded::parse(requested).into_owned().collect();
    let Some(known) = login(&rules, request, &requested) else {
        return unauthorized("Basic realm=\"tokens\"".to_owned());
    };
    if !requested
        .iter()
        .any(|(key, value)| key == "service" && value == SERVICE)
    {
        return Reply::error(400, "UNSUPPORTED");
    }
    let scopes = requested
        .iter()
        .filter(|(key, _)| key == "scope")
        .flat_map(|(_, scopes)| scopes.split(' '));
    let granted = scopes
        .filter_map(|scope| scope.strip_prefix("repository:")?.rsplit_once(':'))
        .filter(|(_, actions)| actions.split(',').any(|action| action == "pull"))
        .map(|(name, _)| name.to_owned())
        .filter(|name| known || !rules.private.contains(name))
        .collect();
    let mut issued = shared.issued.lock();
    issued.count += 1;
    // The token contains the port of this registry, because another fake registry must not accept
    // the token.
    let port = shared
        .bases
        .get()
        .and_then(|bases| bases.tokens.rsplit(':').next());
    let token = format!("token-{}-{}", port.unwrap_or_default(), issued.count);
    let grant = Grant {
        repositories: granted,
        expires: Instant::now() + rules.lifetime,
        uses: rules.uses,
    };
    issued.tokens.insert(token.clone(), grant);
    let mut response = json!({ "access_token": token });
    if !rules.only_access_token {
        response["token"] = response["access_token"].clone();
    }
    if rules.tells_expiry {
        response["expires_in"] = json!(rules.lifetime.as_secs());
    }
    Reply::json(200, &response)
}

/// Whether the client is a user (`true`) or anonymous (`false`). Returns `None` if the client gets
/// no token.
fn login(
    rules: &TokenAuth,
    request: &RecordedRequest,
    requested: &[(String, String)],
) -> Option<bool> {
    let field = |name: &str| {
        requested
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    };
    if request.method == "POST" {
        return match field("grant_type").as_deref() {
            Some("refresh_token") => (field("refresh_token").is_some()
                && field("refresh_token") == rules.identity)
                .then_some(true),
            Some("password") => rules
                .users
                .contains(&(field("username")?, field("password")?))
                .then_some(true),
            _ => None,
        };
    }
    if request.header("authorization").is_some() {
        return rules.users.contains(&basic(request)?).then_some(true);
    }
    rules.anonymous.then_some(false)
}
