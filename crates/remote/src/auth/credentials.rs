//! Credentials for upstreams, from the configuration or from Docker's `config.json`, whose parser
//! is here.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pierhead_oci::Registry;
use serde::Deserialize;
use zeroize::Zeroizing;

/// Credentials for one registry. `Debug` prints no secret, and the memory of the secret is zeroed
/// on drop.
#[derive(Clone)]
#[non_exhaustive]
pub enum Credentials {
    /// User and password. User and password are sent to the registry by basic authentication, or to
    /// the token server.
    Basic {
        /// The name of the user.
        user: String,
        /// The user's password or access token.
        password: Zeroizing<String>,
    },
    /// An identity token (OAuth2 refresh token), as `docker login` may store it.
    Identity(Zeroizing<String>),
    /// The name of a helper program: `docker-credential-<name>`. If the upstream refuses the
    /// credentials from the helper, pierhead runs the helper again.
    Helper(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// Returns the value of an `Authorization: Basic` header.
pub fn basic_header(user: &str, password: &str) -> Zeroizing<String> {
    let plain = Zeroizing::new(format!("{user}:{password}"));
    let mut header = Zeroizing::new(String::from("Basic "));
    STANDARD.encode_string(plain.as_bytes(), &mut header);
    header
}

/// The reason why a Docker `config.json` cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DockerConfigError {
    /// The file is not the JSON that Docker writes. The error message gives the position of the
    /// error and never the contents of the file.
    #[error("not a Docker config: line {line}, column {column}")]
    Json {
        /// Line of the error, counted from 1.
        line: usize,
        /// Column of the error, counted from 1.
        column: usize,
    },
    /// The value of `auth` of this registry is not `user:password` in base64.
    #[error("the auth of {0} is not user:password in base64")]
    Auth(String),
    /// The name of a credential helper is not a plain file name.
    #[error("the credential helper of {0} is not a plain name")]
    Helper(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    auths: HashMap<String, Auth>,
    #[serde(default)]
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Deserialize)]
struct Auth {
    auth: Option<Zeroizing<String>>,
    username: Option<String>,
    password: Option<Zeroizing<String>>,
    identitytoken: Option<Zeroizing<String>>,
}

/// Parses the bytes of a Docker `config.json`: `auths` (with `identitytoken`), `credHelpers` and
/// `credsStore`. If the entry of a registry in `auths` is empty, the helper that `credsStore` names
/// has the secret. A helper for one registry in `credHelpers` takes precedence over the registry's
/// entry in `auths`, in the same way as in Docker. Keys that do not name a registry are ignored.
///
/// # Errors
/// The file is not usable: see [`DockerConfigError`].
pub fn docker_config(bytes: &[u8]) -> Result<HashMap<Registry, Credentials>, DockerConfigError> {
    let file: File = serde_json::from_slice(bytes).map_err(|e| DockerConfigError::Json {
        line: e.line(),
        column: e.column(),
    })?;
    let mut found = HashMap::new();
    let store = file.creds_store.filter(|name| !name.is_empty());
    for (key, entry) in file.auths {
        let Some(registry) = registry_of(&key) else {
            continue;
        };
        let stored = store.clone().map(|name| helper(name, &key)).transpose()?;
        if let Some(credentials) = entry.credentials(&key)?.or(stored) {
            found.insert(registry, credentials);
        }
    }
    for (key, name) in file.cred_helpers {
        if let Some(registry) = registry_of(&key) {
            found.insert(registry, helper(name, &key)?);
        }
    }
    Ok(found)
}

fn helper(name: String, key: &str) -> Result<Credentials, DockerConfigError> {
    if is_helper_name(&name) {
        Ok(Credentials::Helper(name))
    } else {
        Err(DockerConfigError::Helper(key.to_owned()))
    }
}

/// Whether the name of a helper is a plain file name of harmless characters: never a path, never an
/// option.
pub(crate) fn is_helper_name(name: &str) -> bool {
    let fits = (1..=64).contains(&name.len()) && !name.starts_with(['-', '.']);
    fits && name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Returns the registry that a key of `auths` names. The key is `host`, `host:port`, or a URL such
/// as `https://host/v1/`.
pub(crate) fn registry_of(key: &str) -> Option<Registry> {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    rest.split('/').next()?.parse().ok()
}

impl Auth {
    fn credentials(self, key: &str) -> Result<Option<Credentials>, DockerConfigError> {
        if let Some(token) = self.identitytoken.filter(|token| !token.is_empty()) {
            return Ok(Some(Credentials::Identity(token)));
        }
        if let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) {
            let wrong = || DockerConfigError::Auth(key.to_owned());
            let plain = Zeroizing::new(STANDARD.decode(auth.as_bytes()).map_err(|_| wrong())?);
            let plain = std::str::from_utf8(&plain).map_err(|_| wrong())?;
            let (user, password) = plain.split_once(':').ok_or_else(wrong)?;
            // Old Docker clients pad the password with NUL bytes.
            let password = password.trim_end_matches('\0');
            return Ok(Some(Credentials::Basic {
                user: user.to_owned(),
                password: Zeroizing::new(password.to_owned()),
            }));
        }
        Ok(match (self.username, self.password) {
            (Some(user), Some(password)) if !user.is_empty() => {
                Some(Credentials::Basic { user, password })
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(json: &str) -> Result<Vec<String>, DockerConfigError> {
        let mut all: Vec<_> = docker_config(json.as_bytes())?
            .into_iter()
            .map(|(registry, credentials)| match credentials {
                Credentials::Basic { user, password } => format!("{registry} {user} {}", *password),
                Credentials::Identity(token) => format!("{registry} identity {}", *token),
                Credentials::Helper(name) => format!("{registry} helper {name}"),
            })
            .collect();
        all.sort();
        Ok(all)
    }

    #[test]
    fn every_form_that_docker_writes_is_read() {
        let json = r#"{
            "auths": {
                "https://index.docker.io/v1/": {"auth": "aHViOnA6dw=="},
                "ghcr.io": {"username": "u", "password": "p"},
                "10.0.0.1:5000": {"identitytoken": "t", "auth": "eDp5"},
                "quay.io": {},
                "helped.io": {"auth": "eDp5"},
                "not a registry": {"auth": "eDp5"}
            },
            "credHelpers": {"helped.io": "ecr-login"},
            "credsStore": "pass",
            "HttpHeaders": {"User-Agent": "x"}
        }"#;
        let expected = [
            "10.0.0.1:5000 identity t",
            "docker.io hub p:w",
            "ghcr.io u p",
            "helped.io helper ecr-login",
            "quay.io helper pass",
        ];
        assert_eq!(show(json).unwrap(), expected);
        assert!(show("{}").unwrap().is_empty());
        assert!(show(r#"{"auths": {"quay.io": {}}}"#).unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_registry_and_never_the_secret() {
        for (json, expected) in [
            (r#"{"auths": 7}"#, "not a Docker config: line 1, column 11"),
            (
                r#"{"auths": {"a.io": {"auth": "c2VjcmV0"}}}"#,
                "the auth of a.io is not user:password in base64",
            ),
            (
                r#"{"auths": {"a.io": {"auth": "s3cret!"}}}"#,
                "the auth of a.io is not user:password in base64",
            ),
            (
                r#"{"credHelpers": {"a.io": "../../bin/sh"}}"#,
                "the credential helper of a.io is not a plain name",
            ),
            (
                r#"{"credHelpers": {"a.io": "-x"}}"#,
                "the credential helper of a.io is not a plain name",
            ),
        ] {
            assert_eq!(show(json).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn debug_prints_no_secret() {
        let credentials = Credentials::Basic {
            user: "name".into(),
            password: Zeroizing::new("hush".into()),
        };
        let text = format!(
            "{credentials:?} {:?}",
            Credentials::Identity(Zeroizing::new("hush".into()))
        );
        assert!(!text.contains("hush") && !text.contains("name"), "{text}");
    }

    #[test]
    fn the_basic_header_is_base64() {
        assert_eq!(
            *basic_header("Aladdin", "open sesame"),
            "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
        );
    }
}
