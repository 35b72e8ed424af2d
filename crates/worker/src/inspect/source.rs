//! Looks up an image for `pierhead inspect` and `pierhead diff`, at a server or in a local store.

use crate::store::{Store, decode_toc};
use http::{StatusCode, header};
use pierhead_bundle::api::{BundleQuery, MAX_TRACE, StartOrder};
use pierhead_oci::{Algorithm, Body, Descriptor, Digest, Manifest, Platform, Reference, Target};
use pierhead_toc::{FileDigest, ImageToc};

use crate::http::{Request, RetryBackoff, Session};
use crate::image_names::ImageNames;
use crate::pull::{BundleResponse, BundleStart, ReadinessWait, read_header, request_bundle};
use crate::{Error, Progress, Server, request_path};

/// Maximum number of bytes of a start order: of [`MAX_TRACE`] paths.
const MAX_START_ORDER: usize = MAX_TRACE * 4096;

/// The TOC (table of contents) and the layers of an image.
pub(crate) struct ImageDetails {
    pub(super) image: Reference,
    /// The digest of the manifest.
    pub(crate) digest: Digest,
    /// The compressed layers, as the manifest lists them.
    pub(super) layers: Vec<Descriptor>,
    pub(crate) toc: ImageToc,
}

/// The source of images: a server if there is one, else a store.
pub struct ImageSource {
    pub(super) session: Option<Session>,
    pub(super) store: Option<(Store, ImageNames)>,
    platform: Platform,
}

impl ImageSource {
    /// Looks up images at `server`, or in `store` if there is no server. If both are given, the
    /// store is used only to compare images.
    ///
    /// # Errors
    /// [`Error::Usage`] if neither a server nor a store is given.
    pub fn new(
        server: Option<&Server>,
        store: Option<Store>,
        platform: Platform,
    ) -> Result<Self, Error> {
        if server.is_none() && store.is_none() {
            return Err(Error::Usage(
                "name a server (--server) or a store (--store)".to_owned(),
            ));
        }
        Ok(Self {
            session: server.map(Session::new),
            store: store.map(|store| {
                let names = ImageNames::read(store.folders());
                (store, names)
            }),
            platform,
        })
    }

    /// Looks up an image at the server or in the store.
    pub(crate) fn look_up(
        &self,
        image: &Reference,
        progress: &dyn Progress,
    ) -> Result<ImageDetails, Error> {
        match (&self.session, &self.store) {
            (Some(session), _) => self.look_up_at_server(session, image, progress),
            (None, Some((store, names))) => self.look_up_in_store(store, names, image),
            (None, None) => Err(Error::Usage(
                "name a server (--server) or a store (--store)".to_owned(),
            )),
        }
    }

    fn look_up_in_store(
        &self,
        store: &Store,
        names: &ImageNames,
        image: &Reference,
    ) -> Result<ImageDetails, Error> {
        let digest = match &image.target {
            Target::Digest(digest) => Some(*digest),
            Target::Tag(_) => names.find(image, &self.platform),
        };
        let not_stored = || Error::NotStored {
            image: image.to_string(),
            platform: self.platform.to_string(),
        };
        let stored = store.image(&digest.ok_or_else(not_stored)?);
        let stored = stored.map_err(|error| match error {
            Error::Missing(_) => not_stored(),
            error => error,
        })?;
        Ok(ImageDetails {
            image: image.clone(),
            digest: stored.digest(),
            layers: manifest_layers(&stored.manifest, &stored.media_type)?,
            toc: stored.toc,
        })
    }

    /// Requests a bundle without base images, and reads only the header of the bundle.
    fn look_up_at_server(
        &self,
        session: &Session,
        image: &Reference,
        progress: &dyn Progress,
    ) -> Result<ImageDetails, Error> {
        let start = self.start_bundle(session, image, Vec::new(), progress)?;
        let header = *start.header;
        Ok(ImageDetails {
            image: image.clone(),
            digest: Digest::of(Algorithm::Sha256, &header.manifest),
            layers: manifest_layers(&header.manifest, &header.media_type)?,
            toc: decode_toc(&header, &[])?,
        })
    }

    /// Requests a bundle and reads the header of the bundle.
    pub(super) fn start_bundle(
        &self,
        session: &Session,
        image: &Reference,
        base_images: Vec<Digest>,
        progress: &dyn Progress,
    ) -> Result<BundleStart, Error> {
        let query = BundleQuery {
            want: image.target.to_string(),
            platform: Some(self.platform.to_string()),
            base_images,
            ..BundleQuery::default()
        };
        let mut wait = ReadinessWait::new();
        let mut last_stage = String::new();
        loop {
            match request_bundle(session, image, &query) {
                Ok(BundleResponse::Bundle { etag, body }) => {
                    return read_header(session.server(), etag, body, &[]);
                }
                Ok(BundleResponse::Unavailable(reason)) => return Err(Error::NoBundle(reason)),
                // Each poll reports the stage of the preparation, but the user sees only a new
                // stage.
                Err(error) => wait.wait(error, &mut |stage, _| {
                    if last_stage != stage {
                        progress.note(&format!("{image} {stage}"));
                        last_stage = stage.to_owned();
                    }
                })?,
            }
        }
    }

    /// Returns the start order of an image. Returns `None` if there is no server, or if the server
    /// does not support start orders.
    pub(super) fn start_order(&self, details: &ImageDetails) -> Result<Option<StartOrder>, Error> {
        let Some(session) = &self.session else {
            return Ok(None);
        };
        let query = BundleQuery {
            want: details.digest.to_string(),
            platform: Some(self.platform.to_string()),
            start_order: true,
            ..BundleQuery::default()
        };
        let body = serde_json::to_vec(&query)
            .map_err(|error| Error::file("cannot encode the request")(error.into()))?;
        let path = request_path::bundle(&details.image);
        let mut backoff = RetryBackoff::new();
        loop {
            match request_start_order(session, details, &path, &body) {
                Err(error) => backoff.wait(error)?,
                response => return response,
            }
        }
    }
}

fn request_start_order(
    session: &Session,
    details: &ImageDetails,
    path: &str,
    body: &[u8],
) -> Result<Option<StartOrder>, Error> {
    let response = session.send(&Request::post(path, "application/json", body))?;
    let what = format!("the start order of {}", details.image);
    if response.status != StatusCode::OK {
        return Err(response.into_error(session.server(), &what));
    }
    if response.header(header::CONTENT_TYPE) != Some("application/json") {
        return Ok(None);
    }
    let body = response.body.all(MAX_START_ORDER);
    let body = body.map_err(Error::connection(what))?;
    let order = serde_json::from_slice(&body)
        .map_err(|error| Error::protocol(session.server().url(), error))?;
    Ok(Some(order))
}

fn manifest_layers(manifest: &[u8], media_type: &str) -> Result<Vec<Descriptor>, Error> {
    let manifest = Manifest::parse(manifest.to_vec().into(), Some(media_type));
    match manifest.map(|manifest| manifest.body) {
        Ok(Body::Image { layers, .. }) => Ok(layers),
        Ok(_) => Err(Error::Image("the manifest is no image manifest".to_owned())),
        Err(error) => Err(Error::Image(error.to_string())),
    }
}

/// Returns the file contents of the merged tree, with their sizes.
pub(super) fn tree_contents(toc: &ImageToc) -> impl Iterator<Item = (FileDigest, u64)> + '_ {
    let count = usize::try_from(toc.visible()).unwrap_or(usize::MAX);
    toc.contents().iter().take(count)
}
