//! The endpoints of the Distribution API v1.1 and of pierhead's extension: parses their paths from
//! requests, and formats them.

use std::borrow::Cow;
use std::fmt::Write as _;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::{Digest, MediaType, Name, ParseError, Registry, Target};

/// An endpoint with the parameters in its path and query.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Endpoint {
    /// The base path `/v2/`, by which clients check the API.
    Base,
    /// The manifest of an image: `/v2/<name>/manifests/<reference>`
    Manifest {
        /// The repository, with or without a registry in front.
        name: Name,
        /// The tag or digest of the manifest.
        target: Target,
    },
    /// A blob of a repository: `/v2/<name>/blobs/<digest>`
    Blob {
        /// The repository, with or without a registry in front.
        name: Name,
        /// The digest of the blob.
        digest: Digest,
    },
    /// The tag list of a repository: `/v2/<name>/tags/list?n=&last=`
    Tags {
        /// The repository, with or without a registry in front.
        name: Name,
        /// Maximum number of tags in the response. 0 is valid: in this case, the response has no
        /// tags.
        n: Option<u32>,
        /// The response has the tags after this text, in lexical order. The text has at most 255
        /// bytes, and need not be a valid or existing tag.
        last: Option<String>,
    },
    /// The referrers list of a manifest: `/v2/<name>/referrers/<digest>?artifactType=`
    Referrers {
        /// The repository, with or without a registry in front.
        name: Name,
        /// The digest of the subject, to which the listed referrers are attached.
        digest: Digest,
        /// The artifact type of the listed referrers. `None` lists referrers of all types.
        artifact_type: Option<MediaType>,
    },
    /// `/v2/<name>/blobs/uploads/…`: a push, which a pull-through proxy refuses.
    Upload {
        /// The repository, with or without a registry in front.
        name: Name,
    },
    /// The list of API extensions: `/v2/_oci/ext/discover`, or `/v2/<name>/_oci/ext/discover`
    Discover {
        /// The repository. `None` means that the list is for all repositories.
        name: Option<Name>,
    },
    /// `/v2/<name>/_pierhead/bundle`: the delta bundle of an image (its changes since an older
    /// image). The method is POST.
    Bundle {
        /// The repository, with or without a registry in front.
        name: Name,
    },
    /// `/v2/<name>/_pierhead/file/<digest>?image=`: the contents of one file of an image.
    File {
        /// The repository, with or without a registry in front.
        name: Name,
        /// The SHA-256 digest of the file's contents.
        digest: Digest,
        /// The digest of the image's manifest.
        image: Digest,
    },
    /// `/v2/<name>/_pierhead/trace`: receives the order in which the start of a container opened
    /// the files of its image. The method is POST.
    Trace {
        /// The repository, with or without a registry in front.
        name: Name,
    },
}

/// Maximum length of a path or query in bytes. The longest valid path (registry, name and SHA-512
/// digest, with each byte percent-encoded) is shorter.
const MAX_LEN: usize = 4096;

/// Characters of a name that must be percent-encoded in a path: the brackets around an IPv6
/// address.
const BRACKETS: AsciiSet = CONTROLS.add(b'[').add(b']');

impl Endpoint {
    /// Parses the percent-encoded path and query of a request. Ignores query parameters that the
    /// endpoint does not have, as the API requires.
    ///
    /// # Errors
    /// The invalid part of the path or query, for the error response.
    pub fn parse(path: &str, query: Option<&str>) -> Result<Self, ParseError> {
        if path.len() > MAX_LEN {
            return Err(ParseError::Endpoint);
        }
        // Nearly all paths have no percent-encoding, so they need no decoding.
        let path = match path.contains('%') {
            false => Cow::Borrowed(path),
            // The decoder leaves an invalid escape in the text, and no grammar below accepts an
            // escape.
            true => percent_decode_str(path)
                .decode_utf8()
                .map_err(|_| ParseError::Endpoint)?,
        };
        let rest = path.strip_prefix("/v2").ok_or(ParseError::Endpoint)?;
        if rest.is_empty() || rest == "/" {
            return Ok(Self::Base);
        }
        let rest = rest.strip_prefix('/').ok_or(ParseError::Endpoint)?;
        if rest == "_oci/ext/discover" {
            return Ok(Self::Discover { name: None });
        }
        // The path is parsed from its end, because `manifests`, `blobs` and `tags` may be parts of
        // a name, too.
        if let Some(name) = rest.strip_suffix("/_oci/ext/discover") {
            return Ok(Self::Discover {
                name: Some(name.parse()?),
            });
        }
        // The endings below are unambiguous, because no part of a name begins with an underscore.
        if let Some(name) = rest.strip_suffix("/_pierhead/bundle") {
            return Ok(Self::Bundle {
                name: name.parse()?,
            });
        }
        if let Some(name) = rest.strip_suffix("/_pierhead/trace") {
            return Ok(Self::Trace {
                name: name.parse()?,
            });
        }
        if let Some(name) = rest.strip_suffix("/tags/list") {
            let n = parameter(query, "n", 20)?.map(|n| count(&n)).transpose()?;
            let last = parameter(query, "last", 255)?;
            return Ok(Self::Tags {
                name: name.parse()?,
                n,
                last,
            });
        }
        let (head, last) = rest.rsplit_once('/').ok_or(ParseError::Endpoint)?;
        // The session ID of an upload can be any text. The path that starts an upload ends with a
        // slash.
        if let Some(name) = head.strip_suffix("/blobs/uploads") {
            return Ok(Self::Upload {
                name: name.parse()?,
            });
        }
        if let Some(name) = head.strip_suffix("/_pierhead/file") {
            let image = parameter(query, "image", 140)?.ok_or(ParseError::Query("image"))?;
            return Ok(Self::File {
                name: name.parse()?,
                digest: last.parse()?,
                image: image.parse()?,
            });
        }
        let (name, kind) = head.rsplit_once('/').ok_or(ParseError::Endpoint)?;
        match kind {
            "manifests" => Ok(Self::Manifest {
                name: name.parse()?,
                target: last.parse()?,
            }),
            "blobs" if last == "uploads" => Ok(Self::Upload {
                name: name.parse()?,
            }),
            "blobs" => Ok(Self::Blob {
                name: name.parse()?,
                digest: last.parse()?,
            }),
            "referrers" => {
                let artifact_type = parameter(query, "artifactType", 255)?
                    .map(|text| MediaType::new(&text).ok_or(ParseError::Query("artifactType")))
                    .transpose()?;
                Ok(Self::Referrers {
                    name: name.parse()?,
                    digest: last.parse()?,
                    artifact_type,
                })
            }
            _ => Err(ParseError::Endpoint),
        }
    }

    /// Parses the query parameter `ns`, by which a client of a mirror names the registry.
    ///
    /// # Errors
    /// [`ParseError::Query`] if the query cannot be decoded. [`ParseError::Registry`] for an
    /// invalid registry.
    pub fn namespace(query: Option<&str>) -> Result<Option<Registry>, ParseError> {
        Self::namespace_text(query)?
            .map(|ns| ns.parse())
            .transpose()
    }

    /// Returns the decoded query parameter `ns` as the client wrote it.
    ///
    /// # Errors
    /// [`ParseError::Query`] if the query cannot be decoded.
    pub fn namespace_text(query: Option<&str>) -> Result<Option<String>, ParseError> {
        parameter(query, "ns", 300)
    }

    /// Returns the `<name>` in the path, if the path has one.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Base => None,
            Self::Discover { name } => name.as_ref(),
            Self::Manifest { name, .. }
            | Self::Blob { name, .. }
            | Self::Tags { name, .. }
            | Self::Referrers { name, .. }
            | Self::Bundle { name }
            | Self::File { name, .. }
            | Self::Trace { name }
            | Self::Upload { name } => Some(name),
        }
    }

    /// Formats the path and query of the endpoint.
    pub fn to_path(&self) -> String {
        let mut path = String::from("/v2/");
        if let Some(name) = self.name() {
            path.extend(utf8_percent_encode(&name.to_string(), &BRACKETS));
            path.push('/');
        }
        match self {
            Self::Base => {}
            Self::Discover { .. } => path.push_str("_oci/ext/discover"),
            Self::Upload { .. } => path.push_str("blobs/uploads/"),
            Self::Bundle { .. } => path.push_str("_pierhead/bundle"),
            Self::Trace { .. } => path.push_str("_pierhead/trace"),
            Self::File { digest, image, .. } => {
                let _ = write!(path, "_pierhead/file/{digest}");
                append(&mut path, &[("image", Some(&image.to_string()))]);
            }
            Self::Manifest { target, .. } => {
                let _ = write!(path, "manifests/{target}");
            }
            Self::Blob { digest, .. } => {
                let _ = write!(path, "blobs/{digest}");
            }
            Self::Tags { n, last, .. } => {
                path.push_str("tags/list");
                let n = n.map(|n| n.to_string());
                append(&mut path, &[("n", n.as_deref()), ("last", last.as_deref())]);
            }
            Self::Referrers {
                digest,
                artifact_type,
                ..
            } => {
                let _ = write!(path, "referrers/{digest}");
                let artifact_type = artifact_type.as_ref().map(MediaType::as_str);
                append(&mut path, &[("artifactType", artifact_type)]);
            }
        }
        path
    }
}

/// Returns the decoded value of the first query parameter with this name, of at most `max` bytes.
/// An empty value counts as no value.
fn parameter(
    query: Option<&str>,
    key: &'static str,
    max: usize,
) -> Result<Option<String>, ParseError> {
    let query = query.unwrap_or_default();
    if query.len() > MAX_LEN {
        return Err(ParseError::Query(key));
    }
    let Some((_, value)) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == key)
    else {
        return Ok(None);
    };
    // The decoder puts the replacement character in place of invalid UTF-8, so a value that has
    // this character is refused.
    if value.len() > max
        || value.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER)
    {
        return Err(ParseError::Query(key));
    }
    Ok(Some(value.into_owned()).filter(|value| !value.is_empty()))
}

fn append(path: &mut String, parameters: &[(&str, Option<&str>)]) {
    let mut mark = '?';
    for (key, value) in parameters {
        let Some(value) = value else { continue };
        let _ = write!(path, "{mark}{key}=");
        path.extend(form_urlencoded::byte_serialize(value.as_bytes()));
        mark = '&';
    }
}

/// Parses a page size. A number above `u32::MAX` counts as `u32::MAX`.
fn count(text: &str) -> Result<u32, ParseError> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseError::Query("n"));
    }
    Ok(text.parse().unwrap_or(u32::MAX))
}
