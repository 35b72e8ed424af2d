//! Repository names and tags, and the `<name>` of a request, which may start with a registry.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{ParseError, Registry};

/// The name of a repository in a registry, such as `library/redis`. A name has at most 255 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository(Arc<str>);

/// A tag, which has at most 128 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(Arc<str>);

/// The `<name>` in a path of the API.
///
/// A client of a pull-through proxy may send a registry as the first segment (`ghcr.io/a/b`,
/// `localhost:5000/a`). But `ghcr.io/a/b` is also a valid repository name. Therefore the type keeps
/// both interpretations, and the router chooses one of them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name {
    registry: Option<Registry>,
    repository: Repository,
    whole: Option<Repository>,
}

impl Repository {
    /// Maximum length of a repository name in bytes.
    pub const MAX_LEN: usize = 255;
}

impl FromStr for Repository {
    type Err = ParseError;

    /// The grammar of a repository name is `component('/'component)*`, where a component is
    /// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError::Repository("it is empty"));
        }
        if text.len() > Self::MAX_LEN {
            return Err(ParseError::Repository("it is longer than 255 bytes"));
        }
        text.split('/')
            .try_for_each(|part| component(part.as_bytes()))
            .map_err(ParseError::Repository)?;
        Ok(Self(text.into()))
    }
}

fn component(part: &[u8]) -> Result<(), &'static str> {
    let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if part.is_empty() {
        return Err("it has an empty part");
    }
    if !part
        .iter()
        .all(|b| alphanumeric(b) || matches!(b, b'.' | b'_' | b'-'))
    {
        return Err("only a-z 0-9 . _ - / are allowed");
    }
    if !part.first().is_some_and(alphanumeric) || !part.last().is_some_and(alphanumeric) {
        return Err("each part starts and ends with a letter or digit");
    }
    let mut separators = part.split(alphanumeric).filter(|run| !run.is_empty());
    if separators.all(|run| matches!(run, b"." | b"_" | b"__") || run.iter().all(|b| *b == b'-')) {
        Ok(())
    } else {
        Err("parts are joined by one '.', one or two '_', or any number of '-'")
    }
}

impl FromStr for Tag {
    type Err = ParseError;

    /// The grammar of a tag is `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bytes = text.as_bytes();
        let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let starts = bytes.first().is_some_and(|b| word(*b));
        if starts
            && bytes.len() <= 128
            && bytes.iter().all(|b| word(*b) || matches!(b, b'.' | b'-'))
        {
            Ok(Self(text.into()))
        } else {
            Err(ParseError::Tag)
        }
    }
}

impl Name {
    /// Returns the first segment, if this segment is a registry and another segment follows. A
    /// registry has a dot or a port, or is `localhost`.
    pub fn registry(&self) -> Option<&Registry> {
        self.registry.as_ref()
    }

    /// Returns the segments after the [`Name::registry`], or all segments if there is no registry.
    /// The prefix `library/` is not added by this function, but by [`Registry::qualify`].
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Returns the whole name as a repository name. `None` if the name is no valid repository name,
    /// such as `localhost:5000/a`.
    pub fn whole(&self) -> Option<&Repository> {
        self.whole.as_ref()
    }

    /// Splits off the first segment as a registry, even if it has no dot and no port. The router
    /// calls this for upstreams whose configured name is a single word. `None` if there is only one
    /// segment.
    pub fn split_first(&self) -> Option<(Registry, Repository)> {
        if let Some(registry) = &self.registry {
            return Some((registry.clone(), self.repository.clone()));
        }
        let (first, rest) = self.repository.as_str().split_once('/')?;
        Some((first.parse().ok()?, rest.parse().ok()?))
    }
}

impl From<Repository> for Name {
    fn from(whole: Repository) -> Self {
        let split = whole
            .as_str()
            .split_once('/')
            .filter(|(first, _)| Registry::looks_like(first));
        let split = split.and_then(|(first, rest)| Some((first.parse().ok()?, rest.parse().ok()?)));
        match split {
            Some((registry, repository)) => Self {
                registry: Some(registry),
                repository,
                whole: Some(whole),
            },
            None => Self {
                registry: None,
                repository: whole.clone(),
                whole: Some(whole),
            },
        }
    }
}

impl FromStr for Name {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refused = match text.parse::<Repository>() {
            Ok(whole) => return Ok(whole.into()),
            Err(refused) => refused,
        };
        // The text is not a repository name, so the name is valid only if it starts with a
        // registry.
        let (first, rest) = text
            .split_once('/')
            .filter(|(first, _)| Registry::looks_like(first))
            .ok_or(refused)?;
        let (registry, repository) = (first.parse::<Registry>()?, rest.parse::<Repository>()?);
        // The text in lower case may also be a repository name. The text is parsed in lower case,
        // because equal names must have equal values.
        Ok(
            match format!("{registry}/{repository}").parse::<Repository>() {
                Ok(whole) => whole.into(),
                Err(_) => Self {
                    registry: Some(registry),
                    repository,
                    whole: None,
                },
            },
        )
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.whole, &self.registry) {
            (None, Some(registry)) => write!(f, "{registry}/{}", self.repository),
            (Some(whole), _) => whole.fmt(f),
            (None, None) => self.repository.fmt(f),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! text {
    ($($name:ident),*) => {$(
        impl $name {
            /// Returns the text of the repository name or tag.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
text!(Registry, Repository, Tag);
