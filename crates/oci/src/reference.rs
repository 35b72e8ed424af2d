//! References to images, such as `docker.io/library/redis:7`: a registry, a repository, and a tag
//! or digest.

use std::fmt;
use std::str::FromStr;

use crate::{Digest, ParseError, Registry, Repository, Tag};

/// A tag or a digest: the last part of a reference, and of the path of a manifest.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Target {
    /// A tag, which can later name another manifest.
    Tag(Tag),
    /// A digest, which always names the same manifest.
    Digest(Digest),
}

/// The complete name of an image: `registry/repository:tag` or `registry/repository@digest`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Reference {
    /// The registry of the image.
    pub registry: Registry,
    /// The repository in the registry.
    pub repository: Repository,
    /// The tag or digest in the repository.
    pub target: Target,
}

/// Parses the short forms that users write: `redis` is `docker.io/library/redis:latest`, and
/// `name:tag@digest` is `name@digest`.
impl FromStr for Reference {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (text, digest) = match text.split_once('@') {
            Some((text, digest)) => (text, Some(digest.parse()?)),
            None => (text, None),
        };
        // A colon before the last slash belongs to the port of a registry.
        let (name, tag) = match text.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.parse()?)),
            _ => (text, None),
        };
        let (registry, rest) = match name
            .split_once('/')
            .filter(|(first, _)| Registry::looks_like(first))
        {
            Some((first, rest)) => (first.parse::<Registry>()?, rest),
            None => (Registry::DOCKER_HUB.parse()?, name),
        };
        let repository = registry.qualify(rest.parse()?);
        let target = match (digest, tag) {
            (Some(digest), _) => Target::Digest(digest),
            (None, Some(tag)) => Target::Tag(tag),
            (None, None) => Target::Tag("latest".parse()?),
        };
        Ok(Self {
            registry,
            repository,
            target,
        })
    }
}

impl FromStr for Target {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        // Every digest has a colon, and no tag has a colon.
        if text.contains(':') {
            text.parse().map(Self::Digest)
        } else {
            text.parse().map(Self::Tag)
        }
    }
}

/// Formats the complete form, so that equal references have equal texts and a text can be used as a
/// key.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match &self.target {
            Target::Tag(tag) => write!(f, ":{tag}"),
            Target::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => tag.fmt(f),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}
