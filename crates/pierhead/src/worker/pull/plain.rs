//! Pulls an image through the OCI API (manifest and layers) when the server has no bundles.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use http::{StatusCode, header};
use pierhead_oci::{
    Body, Descriptor, Digest, Hasher, Manifest, MediaType, Platform, Reference, Target,
};

use super::super::http::{Answer, Request, Server};
use super::super::session::{Patience, Session};
use super::super::{Error, Url, names};
use crate::terminal::{MAX_PLATFORM_CHARS, escaped};

/// Platforms of an index that an error message names.
const MAX_PLATFORMS: usize = 32;
/// As registries bound them.
const MAX_MANIFEST: usize = 4 << 20;
/// A config is held in memory.
pub(super) const MAX_CONFIG: u64 = 8 << 20;
/// From a registry to its storage, once or twice.
const MAX_REDIRECTS: usize = 5;
const PIECE: usize = 256 << 10;

/// An image's manifest, exact bytes, and what it points to.
pub(super) struct Image {
    /// Of the manifest, never of an index.
    pub(super) digest: Digest,
    pub(super) manifest: Manifest,
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// Asks for the manifest; from an index, for that of the platform.
///
/// # Errors
/// Those of the exchange; that there is no such image, or platform.
pub(super) fn resolve(
    session: &Session,
    image: &Reference,
    platform: &Platform,
) -> Result<Image, Error> {
    let first = manifest(session, image, &image.target)?;
    let chosen = match &first.body {
        Body::Index { manifests, .. } => {
            let entry = first.choose(platform).ok_or_else(|| {
                let mut all: Vec<_> = manifests
                    .iter()
                    .filter_map(|entry| entry.platform.as_ref())
                    .filter(|platform| !platform.is_unknown())
                    .map(|platform| escaped(&platform.to_string(), MAX_PLATFORM_CHARS))
                    .collect();
                all.dedup();
                all.truncate(MAX_PLATFORMS);
                Error::Said(format!(
                    "{image} is not for {platform}; name one of its platforms with --platform: {}",
                    all.join(" ")
                ))
            })?;
            manifest(session, image, &Target::Digest(entry.digest))?
        }
        _ => first,
    };
    match &chosen.body {
        Body::Image { config, layers, .. } => Ok(Image {
            digest: chosen.digest(),
            config: config.clone(),
            layers: layers.clone(),
            manifest: chosen,
        }),
        _ => Err(Error::Said(format!("{image} is an index of indexes"))),
    }
}

/// Asks whether there is such an image.
///
/// # Errors
/// Those of the exchange; [`Error::NotFound`].
pub(in super::super) fn exists(session: &Session, image: &Reference) -> Result<(), Error> {
    manifest(session, image, &image.target).map(drop)
}

pub(super) fn not_found(image: &Reference, server: &Server) -> Error {
    Error::NotFound {
        image: image.to_string(),
        server: server.url().to_string(),
    }
}

fn manifest(session: &Session, image: &Reference, target: &Target) -> Result<Manifest, Error> {
    let path = names::manifest(image, target.clone());
    let accept = [
        MediaType::OCI_MANIFEST,
        MediaType::DOCKER_MANIFEST,
        MediaType::OCI_INDEX,
        MediaType::DOCKER_LIST,
    ];
    let headers = [("accept", accept.join(", "))];
    let mut patience = Patience::new();
    loop {
        match try_manifest(session, image, &path, &headers) {
            Ok(manifest) => {
                if let Target::Digest(wanted) = target {
                    let found = Digest::of(wanted.algorithm(), &manifest.bytes);
                    check(image, wanted, &found)?;
                }
                return Ok(manifest);
            }
            Err(error) => patience.after(error)?,
        }
    }
}

fn try_manifest(
    session: &Session,
    image: &Reference,
    path: &str,
    headers: &[(&'static str, String)],
) -> Result<Manifest, Error> {
    let server = session.server().clone();
    let answer = session.send(&Request::get(path, headers))?;
    match answer.status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(not_found(image, &server)),
        _ => return Err(answer.refusal(&server, &image.to_string())),
    }
    let media_type = answer.header(header::CONTENT_TYPE).map(str::to_owned);
    let doing = format!("the manifest of {image}");
    let bytes = answer.body.all(MAX_MANIFEST).map_err(Error::cut(doing))?;
    Manifest::parse(bytes.into(), media_type.as_deref())
        .map_err(|error| Error::Strange(server.url().to_string(), error.to_string()))
}

/// Gets a blob into a file, going on behind what lies there; verified when it returns.
///
/// # Errors
/// Those of the exchange and of the file; another digest, after which the file is empty.
pub(super) fn blob(
    session: &Session,
    image: &Reference,
    wanted: &Descriptor,
    to: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let doing = || format!("cannot write {}", to.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let mut file = pierhead_remote::open_file_with(&mut options, rustix::fs::OFlags::empty(), to)
        .map_err(Error::file(doing()))?;
    let mut hasher = Hasher::new(wanted.digest.algorithm());
    let mut have = hash(&mut file, &mut hasher).map_err(Error::file(doing()))?;
    if have > wanted.size {
        file.set_len(0).map_err(Error::file(doing()))?;
        file.rewind().map_err(Error::file(doing()))?;
        (have, hasher) = (0, Hasher::new(wanted.digest.algorithm()));
    }
    progress(have);
    let mut patience = Patience::new();
    while have < wanted.size {
        let before = have;
        let result = follow(session, image, wanted, have, |bytes| {
            file.write_all(bytes).map_err(Error::file(doing()))?;
            hasher.update(bytes);
            have += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            progress(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            Ok(())
        });
        if have > before {
            patience.renew();
        }
        if let Err(error) = result {
            patience.after(error)?;
        }
    }
    let found = hasher.finish();
    if found != wanted.digest {
        file.set_len(0).map_err(Error::file(doing()))?;
    }
    check(image, &wanted.digest, &found)
}

fn hash(file: &mut File, hasher: &mut Hasher) -> std::io::Result<u64> {
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return file.seek(SeekFrom::End(0)),
            read => hasher.update(&piece[..read]),
        }
    }
}

/// Asks for a blob from a byte on, wherever it is kept.
fn follow(
    session: &Session,
    image: &Reference,
    wanted: &Descriptor,
    from: u64,
    take: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let headers = match from {
        0 => Vec::new(),
        from => vec![("range", format!("bytes={from}-"))],
    };
    let mut elsewhere: Option<(Session, String)> = None;
    for _ in 0..=MAX_REDIRECTS {
        let own = names::blob(image, wanted.digest);
        let (session, path) = match &elsewhere {
            Some((session, path)) => (session, path.clone()),
            None => (session, own),
        };
        let server = session.server().clone();
        let answer = session.send(&Request::get(&path, &headers))?;
        if !answer.status.is_redirection() {
            return body(answer, &server, image, wanted, from, take);
        }
        let location = answer.header(header::LOCATION).unwrap_or_default();
        let (url, path) = match location.starts_with('/') {
            true => (server.url().clone(), location.to_owned()),
            false => Url::split(location).ok_or_else(|| {
                Error::Strange(server.url().to_string(), "it leads nowhere".to_owned())
            })?,
        };
        elsewhere = Some((Session::new(&server.elsewhere(url)), path));
    }
    let url = session.server().url().to_string();
    Err(Error::Strange(url, "it leads in circles".to_owned()))
}

fn body(
    mut answer: Answer,
    server: &Server,
    image: &Reference,
    wanted: &Descriptor,
    from: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut skip = match answer.status {
        StatusCode::PARTIAL_CONTENT if from > 0 => {
            let told = answer.header(header::CONTENT_RANGE).unwrap_or_default();
            if !told.starts_with(&format!("bytes {from}-")) {
                let why = format!("another range than was asked for: {told:?}");
                return Err(Error::Strange(server.url().to_string(), why));
            }
            0
        }
        // It does not know ranges: what is here already comes again.
        StatusCode::OK => from,
        _ => return Err(answer.refusal(server, &format!("{} of {image}", wanted.digest))),
    };
    let mut left = wanted.size - from;
    let mut piece = vec![0; PIECE];
    loop {
        let doing = || format!("{} of {image}", wanted.digest);
        let read = answer.body.read(&mut piece).map_err(Error::cut(doing()))?;
        if read == 0 {
            return match left {
                0 => Ok(()),
                _ => Err(Error::cut(doing())(
                    std::io::ErrorKind::UnexpectedEof.into(),
                )),
            };
        }
        let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(read);
        skip -= u64::try_from(skipped).unwrap_or(0);
        let fresh = &piece[skipped..read];
        left = left
            .checked_sub(u64::try_from(fresh.len()).unwrap_or(u64::MAX))
            .ok_or_else(|| {
                let why = format!("{} is longer than its manifest says", wanted.digest);
                Error::Strange(server.url().to_string(), why)
            })?;
        take(fresh)?;
    }
}

fn check(image: &Reference, wanted: &Digest, found: &Digest) -> Result<(), Error> {
    match wanted == found {
        true => Ok(()),
        false => Err(Error::Bundle(pierhead_toc::Error::Digest {
            what: format!("what was sent of {image}"),
            expected: wanted.to_string(),
            found: found.to_string(),
        })),
    }
}
