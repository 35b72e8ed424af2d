//! Parses a request of the bundle extension (bundle, single file or trace), before the access
//! check.

use bytes::Bytes;
use http::request::Parts;
use pierhead_bundle::api::{BundleQuery, Trace};
use pierhead_oci::{Digest, Endpoint, ParseError, Target};
use pierhead_toc::FileDigest;

use crate::error::Error;
use crate::http::request_body;

/// A parsed request, which may be a request of the bundle extension.
pub(crate) enum BundleRequest {
    /// A request to an endpoint outside of the extension.
    Other,
    Bundle(BundleQuery, Target),
    File(FileDigest, Digest),
    Trace(Trace, Target),
}

impl BundleRequest {
    /// Parses a request to an endpoint of the extension.
    pub(crate) fn of(
        endpoint: &Endpoint,
        is_post: bool,
        parts: &Parts,
        body: &Result<Bytes, Error>,
    ) -> Result<Self, Error> {
        if let Endpoint::File { digest, image, .. } = endpoint {
            if is_post {
                return Err(Error::ReadOnly);
            }
            return match FileDigest::try_from(digest) {
                Ok(file) => Ok(Self::File(file, *image)),
                Err(_) => Err(ParseError::DigestAlgorithm.into()),
            };
        }
        if !is_post {
            return Err(Error::PostOnly);
        }
        if !request_body::is_json(parts) {
            return Err(Error::NotJson);
        }
        let body = body.as_ref().map_err(Clone::clone)?;
        let malformed = |error: pierhead_bundle::Error| Error::BadRequest(error.to_string());
        Ok(match endpoint {
            Endpoint::Bundle { .. } => {
                let query = BundleQuery::parse(body).map_err(malformed)?;
                let target = query.want.parse()?;
                Self::Bundle(query, target)
            }
            _ => {
                let trace = Trace::parse(body).map_err(malformed)?;
                let target = trace.image.parse()?;
                Self::Trace(trace, target)
            }
        })
    }

    /// Returns the pull that stands for this request in the access check: the client needs the
    /// right to make this pull.
    pub(crate) fn as_pull(&self, endpoint: &Endpoint) -> Option<Endpoint> {
        let target = match self {
            Self::Other => return None,
            Self::Bundle(_, target) | Self::Trace(_, target) => target.clone(),
            Self::File(_, image) => Target::Digest(*image),
        };
        let name = endpoint.name()?.clone();
        Some(Endpoint::Manifest { name, target })
    }
}
