//! Looks up an image at a server or in a local store.

use std::path::Path;

use http::{StatusCode, header};
use pierhead_bundle::Coding;
use pierhead_bundle::api::{Ask, MAX_TRACE, Progress, StartOrder};
use pierhead_bundle::format::Sizes;
use pierhead_oci::{Body, Descriptor, Digest, Manifest, Platform, Reference};
use pierhead_toc::{FileDigest, Table};
use pierhead_worker::store::{Store, wanted};

use super::super::http::{Request, Server};
use super::super::pull::{Answered, Began, Waiting, ask_once, read_header};
use super::super::pulled::Pulled;
use super::super::session::{Patience, Session};
use super::super::{Error, names};
use crate::cli::worker::LookArgs;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::quiet::note;

/// Maximum size of a start order: [`MAX_TRACE`] paths.
const MAX_ORDER: usize = MAX_TRACE * 4096;

/// See the head of this module.
pub(in super::super) struct Seen {
    pub(super) image: Reference,
    pub(in super::super) digest: Digest,
    /// Compressed, as the manifest says.
    pub(super) layers: Vec<Descriptor>,
    pub(in super::super) table: Table,
}

/// Where images are looked up.
pub(in super::super) struct Place {
    pub(super) session: Option<Session>,
    pub(super) store: Option<(Store, Pulled)>,
    platform: Platform,
}

impl Place {
    pub(super) fn new(args: &LookArgs, environment: &Environment) -> Result<Self, Failure> {
        let session = match &args.via {
            Some(via) => {
                let server = super::super::server(via, &args.login, environment)?;
                Some(Session::new(&server))
            }
            None => None,
        };
        let store = match &args.from {
            Some(folder) if !folder.join("version").exists() => {
                let shown = folder.display();
                return Err(Failure::Refused(format!(
                    "{shown} is no store of `pierhead pull`"
                )));
            }
            Some(folder) => {
                let store = Store::open(folder, &[]).map_err(Error::from)?;
                Some((store, Pulled::read(std::iter::once::<&Path>(folder))))
            }
            None => None,
        };
        Ok(Self {
            session,
            store,
            platform: names::platform(args.platform.as_ref()),
        })
    }

    /// Looks images up at a server only.
    pub(in super::super) fn of_server(server: &Server, platform: Platform) -> Self {
        Self {
            session: Some(Session::new(server)),
            store: None,
            platform,
        }
    }

    /// Looks an image up: at the server if there is one.
    pub(in super::super) fn see(&self, image: &Reference) -> Result<Seen, Error> {
        match (&self.session, &self.store) {
            (Some(session), _) => self.ask(session, image),
            (None, Some((store, pulled))) => {
                let digest = match &image.target {
                    pierhead_oci::Target::Digest(digest) => Some(*digest),
                    pierhead_oci::Target::Tag(_) => pulled.find(image, &self.platform),
                };
                let absent = || Error::NotStored {
                    image: image.to_string(),
                    platform: self.platform.to_string(),
                };
                let held = store.image(&digest.ok_or_else(absent)?);
                let held = held.map_err(|error| match error {
                    pierhead_toc::Error::Missing(_) => absent(),
                    error => error.into(),
                })?;
                Ok(Seen {
                    image: image.clone(),
                    digest: held.digest(),
                    layers: layers(&held.manifest, &held.media_type)?,
                    table: held.table,
                })
            }
            (None, None) => Err(Error::Said("name a server or a store".to_owned())),
        }
    }

    /// Reads the header of a bundle from nothing, and no more.
    fn ask(&self, session: &Session, image: &Reference) -> Result<Seen, Error> {
        let began = self.bundle(session, image, Vec::new())?;
        let header = *began.header;
        let table = wanted(&header, &[])?;
        Ok(Seen {
            image: image.clone(),
            digest: Digest::of(pierhead_oci::Algorithm::Sha256, &header.manifest),
            layers: layers(&header.manifest, &header.media_type)?,
            table,
        })
    }

    /// The start order of an image; `None` when the server does not support it.
    pub(super) fn start_order(&self, seen: &Seen) -> Result<Option<StartOrder>, Error> {
        let Some(session) = &self.session else {
            return Ok(None);
        };
        let ask = Ask {
            want: seen.digest.to_string(),
            platform: Some(self.platform.to_string()),
            start_order: true,
            ..Ask::default()
        };
        let body = serde_json::to_vec(&ask).map_err(|error| Error::Said(error.to_string()))?;
        let path = names::bundle(&seen.image);
        let mut patience = Patience::new();
        loop {
            match ask_start_order(session, seen, &path, &body) {
                Err(error) => patience.after(error)?,
                answered => return answered,
            }
        }
    }

    /// The beginning of a bundle.
    pub(super) fn bundle(
        &self,
        session: &Session,
        image: &Reference,
        have: Vec<Digest>,
    ) -> Result<Began, Error> {
        let ask = Ask {
            want: image.target.to_string(),
            platform: Some(self.platform.to_string()),
            have,
            ..Ask::default()
        };
        let mut waiting = Waiting::new();
        let mut last = String::new();
        loop {
            match ask_once(session, image, &ask) {
                Ok(Answered::Bundle { etag, body }) => {
                    return read_header(session.server(), etag, body, &[]);
                }
                Ok(Answered::None(why)) => return Err(Error::Said(why)),
                Err(error) => {
                    // Polls every second and prints a line for each stage.
                    let mut show = |what: &str, _: &Progress| {
                        if last != what {
                            note!("{image} {what}");
                            last = what.to_owned();
                        }
                    };
                    waiting.after(error, &mut show)?;
                }
            }
        }
    }
}

fn ask_start_order(
    session: &Session,
    seen: &Seen,
    path: &str,
    body: &[u8],
) -> Result<Option<StartOrder>, Error> {
    let answer = session.send(&Request::post(path, "application/json", body))?;
    let what = format!("the start order of {}", seen.image);
    if answer.status != StatusCode::OK {
        return Err(answer.refusal(session.server(), &what));
    }
    if answer.header(header::CONTENT_TYPE) != Some("application/json") {
        return Ok(None);
    }
    let body = answer.body.all(MAX_ORDER).map_err(Error::cut(what))?;
    let order = serde_json::from_slice(&body)
        .map_err(|error| Error::Strange(session.server().url().to_string(), error.to_string()))?;
    Ok(Some(order))
}

/// Sizes of contents of two images.
pub(super) struct Tables<'a> {
    pub(super) want: &'a Table,
    pub(super) have: Option<&'a Table>,
}

impl Sizes for Tables<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.want.contents().size(content)
    }

    fn had(&self, have: u16, content: u32) -> Option<u64> {
        self.have.filter(|_| have == 0)?.contents().size(content)
    }
}

fn layers(manifest: &[u8], media_type: &str) -> Result<Vec<Descriptor>, Error> {
    let manifest = Manifest::parse(manifest.to_vec().into(), Some(media_type));
    match manifest.map(|manifest| manifest.body) {
        Ok(Body::Image { layers, .. }) => Ok(layers),
        Ok(_) => Err(Error::Said("a manifest of no image".to_owned())),
        Err(error) => Err(Error::Said(error.to_string())),
    }
}

/// Contents of the merged tree, by their names.
pub(super) fn visible(table: &Table) -> impl Iterator<Item = (FileDigest, u64)> + '_ {
    let count = usize::try_from(table.visible()).unwrap_or(usize::MAX);
    table.contents().iter().take(count)
}

/// Whether a frame's bytes cross the line.
pub(super) const fn is_sent(coding: Coding) -> bool {
    !matches!(coding, Coding::Copy)
}
