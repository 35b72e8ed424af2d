//! Remembers the last authentication scheme that one upstream host demanded, so that most requests
//! can authenticate at once, without a response 401.

use http::Uri;
use pierhead_oci::Repository;
use tokio::time::Instant;

use crate::auth::credentials::Credentials;

#[derive(Default)]
pub(crate) struct AuthState {
    /// The scheme that the host demanded last. `None` before the first challenge.
    pub(crate) scheme: Option<AuthScheme>,
    pub(crate) helper_credentials: Option<HelperCredentials>,
}

/// The cached result of a credential helper.
pub(crate) struct HelperCredentials {
    /// The credentials that the helper returned. `None`: the helper failed.
    pub(crate) credentials: Option<Credentials>,
    pub(crate) expires: Instant,
}

/// The authentication that a host demands.
#[derive(Clone)]
pub(crate) enum AuthScheme {
    Basic,
    Bearer {
        realm: Uri,
        service: Option<String>,
        scope: Scope,
    },
}

/// The scope of the tokens for a host: the right that a token request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The scope `repository:<prefix><name>:pull`. If the upstream has a path prefix, the prefix is
    /// a part of the repository name in the scope.
    Repository { prefix: String },
    /// One scope for all repositories of the host.
    Fixed(String),
}

impl Scope {
    /// Returns the scope to request for a challenge. `named` is the scope in the challenge. If the
    /// challenge names a repository, the returned scope contains only the right to pull. Any other
    /// scope is returned unchanged.
    pub(crate) fn of(named: Option<&str>, repository: &Repository) -> Self {
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

    pub(crate) fn text(&self, repository: &Repository) -> String {
        match self {
            Self::Repository { prefix } => format!("repository:{prefix}{repository}:pull"),
            Self::Fixed(text) => text.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_follow_the_challenge_but_request_pull_only() {
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
