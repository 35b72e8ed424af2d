//! Access rules: lists of patterns for the registries and repositories that clients may pull.

use std::fmt;
use std::str::FromStr;

use pierhead_oci::{Registry, Repository};

use crate::error::Error;

/// Maximum bytes of a pattern. The longest possible name of a repository is shorter.
const MAX_PATTERN_BYTES: usize = 512;

/// Access rules. The default rules allow every registry and repository.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// If this list is not empty, a repository must match one of its patterns.
    pub allow: Vec<Pattern>,
    /// A repository that matches one of these patterns is denied, even if it matches `allow`.
    pub deny: Vec<Pattern>,
}

impl Rules {
    /// Whether clients may pull from `repository` of `registry`. Takes some hundred nanoseconds per
    /// pattern.
    pub(crate) fn check(&self, registry: &Registry, repository: &Repository) -> Result<(), Error> {
        let (registry, repository) = (registry.as_str(), repository.as_str());
        let matches = |pattern: &&Pattern| pattern.matches(registry, repository);
        let refused = |why: String| Error::Forbidden {
            name: format!("{registry}/{repository}"),
            why,
        };
        if let Some(pattern) = self.deny.iter().find(matches) {
            return Err(refused(format!(
                "access.deny has {:?}",
                pattern.to_string()
            )));
        }
        if self.allow.is_empty() || self.allow.iter().any(|pattern| matches(&pattern)) {
            return Ok(());
        }
        Err(refused("no pattern in access.allow matches it".to_owned()))
    }
}

/// A pattern of the form `REGISTRY` or `REGISTRY/REPOSITORY`. `*` matches any characters except
/// `/`, and `**` matches any characters. A pattern with only a registry matches all repositories of
/// that registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    registry: String,
    /// The pattern of the repository. `None` matches all repositories.
    repository: Option<String>,
}

impl Pattern {
    /// Whether the pattern matches. `registry` and `repository` must be in their canonical form.
    fn matches(&self, registry: &str, repository: &str) -> bool {
        glob(&self.registry, registry)
            && self
                .repository
                .as_deref()
                .is_none_or(|pattern| glob(pattern, repository))
    }
}

impl FromStr for Pattern {
    type Err = String;

    /// Parses a pattern. The error message states the problem and a pattern that works.
    fn from_str(text: &str) -> Result<Self, String> {
        let allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-:/*[]".contains(c);
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES || !text.chars().all(allowed) {
            return Err(format!(
                "{text:?} is not a pattern: write, for example, \"docker.io/library/*\" or \"ghcr.io/owner/**\""
            ));
        }
        let (registry, repository) = match text.split_once('/') {
            Some((registry, repository)) => (registry, Some(repository)),
            None => (text, None),
        };
        let is_hub = |registry: &Registry| registry.is_docker_hub();
        let matches_hub = glob(registry, Registry::DOCKER_HUB);
        let registry = match registry.contains('*') {
            true => registry.to_owned(),
            // Docker Hub has several host names. The pattern gets the canonical host name, because
            // requests are matched by the canonical name.
            false => registry
                .parse::<Registry>()
                .map_err(|error| format!("{text:?}: {error}"))?
                .to_string(),
        };
        let names_hub = registry.parse().is_ok_and(|registry| is_hub(&registry));
        let Some(repository) = repository else {
            return Ok(Self {
                registry,
                repository: None,
            });
        };
        if repository.is_empty() {
            return Err(format!(
                "{text:?} ends with a slash: leave it out, or add **"
            ));
        }
        if repository.contains([':', '[', ']']) {
            return Err(format!(
                "{text:?} matches nothing: the name of a repository has no ':', '[' or ']'; leave a tag out"
            ));
        }
        let repository = match repository {
            // On Docker Hub every repository name has two parts. A pattern with one part would
            // never match, so it is refused.
            name if (names_hub || matches_hub) && !name.contains('/') && !name.contains("**") => {
                if name.contains('*') {
                    return Err(format!(
                        "{text:?} matches nothing on Docker Hub, where every name has two parts: write {registry}/library/{name} or {registry}/**"
                    ));
                }
                match names_hub {
                    true => format!("library/{name}"),
                    false => name.to_owned(),
                }
            }
            name => name.to_owned(),
        };
        Ok(Self {
            registry,
            repository: Some(repository),
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.repository {
            Some(repository) => write!(f, "{}/{repository}", self.registry),
            None => f.write_str(&self.registry),
        }
    }
}

/// Whether `pattern` matches all of `text`. The time is at most proportional to the product of the
/// two lengths.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // The state for backtracking: the positions after the last `*` and the last `**`, and the ends
    // of the text that they matched. No earlier position is needed, because the last `**` matches
    // all text that a later `*` cannot match.
    let mut star: Option<(usize, usize)> = None;
    let mut deep: Option<(usize, usize)> = None;
    loop {
        if pattern[p..].starts_with(b"**") {
            let rest = pattern[p..]
                .iter()
                .take_while(|byte| **byte == b'*')
                .count();
            p += rest;
            (star, deep) = (None, Some((p, t)));
            continue;
        }
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return true;
        }
        if t < text.len() && pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
            continue;
        }
        match (&mut star, &mut deep) {
            (Some((behind, taken)), _) if *taken < text.len() && text[*taken] != b'/' => {
                *taken += 1;
                (p, t) = (*behind, *taken);
            }
            (_, Some((behind, taken))) if *taken < text.len() => {
                *taken += 1;
                (p, t) = (*behind, *taken);
                star = None;
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(allow: &[&str], deny: &[&str]) -> Rules {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Rules {
            allow: parse(allow),
            deny: parse(deny),
        }
    }

    fn allows(rules: &Rules, name: &str) -> bool {
        let (registry, repository) = name.split_once('/').unwrap();
        let (registry, repository) = (registry.parse().unwrap(), repository.parse().unwrap());
        rules.check(&registry, &repository).is_ok()
    }

    #[test]
    fn a_pattern_matches_its_names_and_no_others() {
        for (pattern, matching, others) in [
            (
                "ghcr.io",
                &["ghcr.io/a", "ghcr.io/a/b/c"][..],
                &["ghcr.io:5000/a", "xghcr.io/a"][..],
            ),
            (
                "docker.io/library/*",
                &["docker.io/library/redis"],
                &["docker.io/bitnami/redis", "docker.io/library/a/b"],
            ),
            (
                "docker.io/redis",
                &["docker.io/library/redis"],
                &["docker.io/library/redis2"],
            ),
            (
                "index.docker.io/library/redis",
                &["docker.io/library/redis"],
                &["docker.io/library/re"],
            ),
            (
                "ghcr.io/owner/**",
                &["ghcr.io/owner/a", "ghcr.io/owner/a/b"],
                &["ghcr.io/owner", "ghcr.io/owner2/a"],
            ),
            (
                "*.corp.example/team-*",
                &["a.corp.example/team-b"],
                &["corp.example/team-b", "a.corp.example/team-b/c"],
            ),
            (
                "**/cosign",
                &["quay.io/cosign", "gcr.io/cosign"],
                &["quay.io/x/cosign"],
            ),
            (
                "*/**/cosign",
                &["quay.io/x/y/cosign"],
                &["quay.io/x/cosign-2"],
            ),
            (
                "10.0.0.1:5000/**",
                &["10.0.0.1:5000/a/b"],
                &["10.0.0.1:5001/a"],
            ),
        ] {
            let only = rules(&[pattern], &[]);
            for name in matching {
                assert!(allows(&only, name), "{pattern} {name}");
            }
            for name in others {
                assert!(!allows(&only, name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn a_refusal_names_its_key_and_a_denial_has_precedence() {
        let both = rules(&["docker.io/**"], &["docker.io/evil/**"]);
        assert!(allows(&both, "docker.io/library/redis"));
        let refusal = |name: &str| {
            let (registry, repository) = name.split_once('/').unwrap();
            let checked = both.check(&registry.parse().unwrap(), &repository.parse().unwrap());
            checked.unwrap_err().to_string()
        };
        assert_eq!(
            refusal("docker.io/evil/x"),
            "docker.io/evil/x may not be pulled here: access.deny has \"docker.io/evil/**\""
        );
        assert_eq!(
            refusal("ghcr.io/a"),
            "ghcr.io/a may not be pulled here: no pattern in access.allow matches it"
        );
        assert!(allows(&Rules::default(), "ghcr.io/a"));
    }

    #[test]
    fn patterns_that_never_match_are_refused() {
        for text in [
            "",
            "docker.io/*",
            "docker.io/redis*",
            "docker.io/",
            "Docker.io/x",
            "a b/c",
            "https://a.io",
            "*/redis*",
            "docker.io/library/redis:7@x",
            "docker.io/library/redis:7",
            "ghcr.io/[a-z]*",
            "no_registry!/x",
        ] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }

    /// The reference matcher for the test: implements the definition of a pattern character by
    /// character, slowly but simply.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([b'*', b'*', rest @ ..], _) => {
                let rest = &rest[rest.iter().take_while(|byte| **byte == b'*').count()..];
                (0..=text.len()).any(|at| naive(rest, &text[at..]))
            }
            ([b'*', rest @ ..], _) => (0..=text.len())
                .take_while(|at| !text[..*at].contains(&b'/'))
                .any(|at| naive(rest, &text[at..])),
            ([a, rest @ ..], [b, others @ ..]) => a == b && naive(rest, others),
            ([], []) => true,
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn glob_agrees_with_the_definition(pattern in "[ab/*]{0,10}", text in "[ab/]{0,12}") {
            prop_assert_eq!(glob(&pattern, &text), naive(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn a_name_matches_itself_and_hostile_patterns_terminate(text in "[a-z0-9._-]{1,20}(/[a-z0-9._-]{1,10}){0,4}") {
            prop_assert!(glob(&text, &text));
            prop_assert!(glob("**", &text));
            let hostile = "*a".repeat(200) + "!";
            prop_assert!(!glob(&hostile, &"a".repeat(400)));
        }

        #[test]
        fn a_denial_never_allows_more(
            allow in proptest::collection::vec("[a*]{1,3}\\.io(/[ab*]{1,3}){1,3}", 0..3),
            deny in proptest::collection::vec("[a*]{1,3}\\.io(/[ab*]{1,3}){1,3}", 0..3),
            name in "[a]{1,2}\\.io(/[ab]{1,3}){1,3}",
        ) {
            let parse = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect();
            let (allow, deny): (Vec<_>, Vec<_>) = (parse(&allow), parse(&deny));
            let lenient = Rules { allow: allow.clone(), deny: Vec::new() };
            let strict = Rules { allow, deny: deny.clone() };
            let is_denied = deny.iter().any(|pattern| {
                let (registry, repository) = name.split_once('/').unwrap();
                pattern.matches(registry, repository)
            });
            prop_assert_eq!(allows(&strict, &name), allows(&lenient, &name) && !is_denied);
        }
    }
}
