//! What is known of one image: from a server's bundle of it, or from a store.

use std::path::Path;

use pierhead_bundle::api::{Ask, Progress};
use pierhead_bundle::format::Sizes;
use pierhead_bundle::store::{Store, wanted};
use pierhead_bundle::table::Node;
use pierhead_bundle::{Coding, Content, Table};
use pierhead_oci::{Body, Descriptor, Digest, Manifest, Platform, Reference};

use super::super::http::Server;
use super::super::pull::{Answered, Began, Waiting, ask_once, read_header};
use super::super::pulled::Pulled;
use super::super::session::Session;
use super::super::{Error, names};
use crate::cli::worker::LookArgs;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::quiet::note;

/// See the head of this module.
pub(in super::super) struct Seen {
    pub(super) name: String,
    pub(in super::super) digest: Digest,
    /// Compressed, as the manifest says.
    pub(super) layers: Vec<Descriptor>,
    pub(in super::super) table: Table,
    /// Numbers of contents in the order in which a bundle carries them; empty where nobody was asked.
    pub(super) order: Vec<u32>,
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

    /// Of a server alone.
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
                let held = digest.ok_or_else(|| {
                    Error::Said(format!(
                        "{image} was not pulled into this store for {}",
                        self.platform
                    ))
                })?;
                let held = store.image(&held)?;
                Ok(Seen {
                    name: image.to_string(),
                    digest: held.digest(),
                    layers: layers(&held.manifest, &held.media_type)?,
                    table: held.table,
                    order: Vec::new(),
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
        let sizes = Tables {
            want: &table,
            have: None,
        };
        let mut order = Vec::new();
        for frame in header.frames.cursor(&sizes)? {
            let members = frame?.members;
            order.extend(
                members
                    .iter()
                    .filter(|it| it.offset == 0)
                    .map(|it| it.content),
            );
        }
        Ok(Seen {
            name: image.to_string(),
            digest: Digest::of(pierhead_oci::Algorithm::Sha256, &header.manifest),
            layers: layers(&header.manifest, &header.media_type)?,
            table,
            order,
        })
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
                    // Asked again every second; each stage is a line.
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
pub(super) fn visible(table: &Table) -> impl Iterator<Item = (Content, u64)> + '_ {
    let count = usize::try_from(table.visible()).unwrap_or(usize::MAX);
    table.contents().iter().take(count)
}

/// The first path of each of these contents, in their order.
pub(super) fn paths(table: &Table, contents: &[u32]) -> Result<Vec<String>, Error> {
    let mut found = vec![None; contents.len()];
    let mut rows = table.rows();
    while let Some(row) = rows.next()? {
        if let Node::File(number) = row.node
            && let Some(at) = contents.iter().position(|wanted| *wanted == number)
            && found[at].is_none()
        {
            found[at] = Some(String::from_utf8_lossy(row.path).into_owned());
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// Whether a frame's bytes cross the line.
pub(super) const fn is_sent(coding: Coding) -> bool {
    !matches!(coding, Coding::Copy)
}
