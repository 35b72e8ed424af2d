//! Client of the Distribution API: fetches manifests and blobs from a registry, for images that are
//! pulled as layers.

#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use http::{StatusCode, header};
use pierhead_oci::{
    Body, Descriptor, Digest, Hasher, Manifest, MediaType, Platform, Reference, Target,
};

use crate::http::{Request, Response, RetryBackoff, Session};
use crate::{Error, Server, Url, request_path};

/// Maximum number of platforms of an index that an error message lists.
const MAX_LISTED_PLATFORMS: usize = 32;
/// Maximum number of characters of one platform in an error message.
const MAX_PLATFORM_CHARS: usize = 64;
/// Maximum number of bytes of a manifest, which is also the limit of registries.
const MAX_MANIFEST: usize = 4 << 20;
/// Maximum number of bytes of a config, which is read into memory.
pub(crate) const MAX_CONFIG: u64 = 8 << 20;
/// Maximum number of redirects of a blob. A registry redirects to its storage once or twice.
const MAX_REDIRECTS: usize = 5;
const READ_SIZE: usize = 256 << 10;

/// An image manifest with its exact bytes, its config and its layers.
pub(crate) struct ResolvedImage {
    /// Whether the manifest was chosen from an index by its platform.
    pub(crate) is_of_index: bool,
    /// The digest of the image manifest, never of an index.
    pub(crate) digest: Digest,
    pub(crate) manifest: Manifest,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// Fetches the manifest of an image. If the reference names an index, chooses the manifest of the
/// platform.
///
/// # Errors
/// Errors of the HTTP exchange, [`Error::NotFound`], and [`Error::Image`] if the index lacks the
/// platform.
pub(crate) fn resolve(
    session: &Session,
    image: &Reference,
    platform: &Platform,
) -> Result<ResolvedImage, Error> {
    let first = fetch_manifest(session, image, &image.target)?;
    let is_of_index = matches!(first.body, Body::Index { .. });
    let chosen = match &first.body {
        Body::Index { manifests, .. } => {
            let entry = first.choose(platform).ok_or_else(|| {
                let mut all: Vec<_> = manifests
                    .iter()
                    .filter_map(|entry| entry.platform.as_ref())
                    .filter(|platform| !platform.is_unknown())
                    .map(shown_platform)
                    .collect();
                all.dedup();
                all.truncate(MAX_LISTED_PLATFORMS);
                Error::Image(format!(
                    "{image} has no image for {platform}; name one of its platforms by --platform: {}",
                    all.join(" ")
                ))
            })?;
            fetch_manifest(session, image, &Target::Digest(entry.digest))?
        }
        _ => first,
    };
    match &chosen.body {
        Body::Image { config, layers, .. } => Ok(ResolvedImage {
            is_of_index,
            digest: chosen.digest(),
            config: config.clone(),
            layers: layers.clone(),
            manifest: chosen,
        }),
        _ => Err(Error::Image(format!("{image} is an index of indexes"))),
    }
}

/// Returns the text of a platform as the index states it, without control characters and with at
/// most [`MAX_PLATFORM_CHARS`] characters.
fn shown_platform(platform: &Platform) -> String {
    let text = platform.to_string();
    let mut shown: String = text.escape_debug().take(MAX_PLATFORM_CHARS).collect();
    if text.escape_debug().count() > MAX_PLATFORM_CHARS {
        shown.push('…');
    }
    shown
}

/// Checks that a server has an image.
///
/// # Errors
/// Errors of the HTTP exchange, and [`Error::NotFound`].
pub fn require_image(server: &Server, image: &Reference) -> Result<(), Error> {
    check_manifest(&Session::new(server), image)
}

/// Checks that a server has an image, over an open session.
pub(crate) fn check_manifest(session: &Session, image: &Reference) -> Result<(), Error> {
    fetch_manifest(session, image, &image.target).map(drop)
}

pub(crate) fn not_found(image: &Reference, server: &Server) -> Error {
    Error::NotFound {
        image: image.to_string(),
        server: server.url().to_string(),
    }
}

/// Fetches a manifest, with retries.
fn fetch_manifest(
    session: &Session,
    image: &Reference,
    target: &Target,
) -> Result<Manifest, Error> {
    let path = request_path::manifest(image, target.clone());
    let accept = [
        MediaType::OCI_MANIFEST,
        MediaType::DOCKER_MANIFEST,
        MediaType::OCI_INDEX,
        MediaType::DOCKER_LIST,
    ];
    let headers = [("accept", accept.join(", "))];
    let mut backoff = RetryBackoff::new();
    loop {
        match try_manifest(session, image, &path, &headers) {
            Ok(manifest) => {
                if let Target::Digest(wanted) = target {
                    let found = Digest::of(wanted.algorithm(), &manifest.bytes);
                    check_digest(image, wanted, &found)?;
                }
                return Ok(manifest);
            }
            Err(error) => backoff.wait(error)?,
        }
    }
}

fn try_manifest(
    session: &Session,
    image: &Reference,
    path: &str,
    headers: &[(&'static str, String)],
) -> Result<Manifest, Error> {
    let server = session.server();
    let response = session.send(&Request::get(path, headers))?;
    match response.status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(not_found(image, server)),
        _ => return Err(response.into_error(server, &image.to_string())),
    }
    let media_type = response.header(header::CONTENT_TYPE).map(str::to_owned);
    let doing = format!("the manifest of {image}");
    let bytes = response.body.all(MAX_MANIFEST);
    let bytes = bytes.map_err(Error::connection(doing))?;
    Manifest::parse(bytes.into(), media_type.as_deref())
        .map_err(|error| Error::protocol(server.url(), error))
}

/// Fetches a blob into a file and verifies its digest. If the file already has bytes, fetches only
/// the bytes after them.
///
/// # Errors
/// Errors of the HTTP exchange and of the file. After a digest mismatch, the file is empty.
pub(crate) fn fetch_blob(
    session: &Session,
    image: &Reference,
    wanted: &Descriptor,
    to: &Path,
    advance: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let doing = || format!("cannot write {}", to.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let mut file =
        pierhead_atomic_file::open_regular_with(&mut options, rustix::fs::OFlags::empty(), to)
            .map_err(Error::file(doing()))?;
    let mut hasher = Hasher::new(wanted.digest.algorithm());
    let mut offset = hash_file(&mut file, &mut hasher).map_err(Error::file(doing()))?;
    if offset > wanted.size {
        file.set_len(0).map_err(Error::file(doing()))?;
        file.rewind().map_err(Error::file(doing()))?;
        (offset, hasher) = (0, Hasher::new(wanted.digest.algorithm()));
    }
    advance(offset);
    let mut backoff = RetryBackoff::new();
    while offset < wanted.size {
        let before = offset;
        let result = request_blob(session, image, wanted, offset, |bytes| {
            file.write_all(bytes).map_err(Error::file(doing()))?;
            hasher.update(bytes);
            let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            offset += len;
            advance(len);
            Ok(())
        });
        if offset > before {
            backoff.reset();
        }
        if let Err(error) = result {
            backoff.wait(error)?;
        }
    }
    let found = hasher.finish();
    if found != wanted.digest {
        file.set_len(0).map_err(Error::file(doing()))?;
    }
    check_digest(image, &wanted.digest, &found)
}

/// Hashes a file from its start. Returns its length.
fn hash_file(file: &mut File, hasher: &mut Hasher) -> std::io::Result<u64> {
    let mut buffer = vec![0; READ_SIZE];
    loop {
        match file.read(&mut buffer)? {
            0 => return file.seek(SeekFrom::End(0)),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// Requests the bytes of a blob from an offset on, and follows redirects.
fn request_blob(
    session: &Session,
    image: &Reference,
    wanted: &Descriptor,
    offset: u64,
    write: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let headers = match offset {
        0 => Vec::new(),
        offset => vec![("range", format!("bytes={offset}-"))],
    };
    let mut redirected: Option<(Session, String)> = None;
    for _ in 0..=MAX_REDIRECTS {
        let (session, path) = match &redirected {
            Some((session, path)) => (session, path.clone()),
            None => (session, request_path::blob(image, wanted.digest)),
        };
        let server = session.server().clone();
        let response = session.send(&Request::get(&path, &headers))?;
        if !response.status.is_redirection() {
            return read_blob(response, &server, image, wanted, offset, write);
        }
        let location = response.header(header::LOCATION).unwrap_or_default();
        let (url, path) = match location.starts_with('/') {
            true => (server.url().clone(), location.to_owned()),
            false => Url::split(location).ok_or_else(|| {
                Error::protocol(server.url(), "a redirect without a valid location")
            })?,
        };
        redirected = Some((Session::new(&server.redirected_to(url)), path));
    }
    Err(Error::protocol(
        session.server().url(),
        "too many redirects",
    ))
}

fn read_blob(
    mut response: Response,
    server: &Server,
    image: &Reference,
    wanted: &Descriptor,
    offset: u64,
    mut write: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut skip = match response.status {
        StatusCode::PARTIAL_CONTENT if offset > 0 => {
            let range = response.header(header::CONTENT_RANGE).unwrap_or_default();
            if !range.starts_with(&format!("bytes {offset}-")) {
                let reason = format!("another range than the requested one: {range:?}");
                return Err(Error::protocol(server.url(), reason));
            }
            0
        }
        // A server that does not support ranges sends the bytes before the offset again.
        StatusCode::OK => offset,
        _ => return Err(response.into_error(server, &format!("{} of {image}", wanted.digest))),
    };
    let mut left = wanted.size - offset;
    let mut buffer = vec![0; READ_SIZE];
    loop {
        let doing = || format!("{} of {image}", wanted.digest);
        let read = response.body.read(&mut buffer);
        let read = read.map_err(Error::connection(doing()))?;
        if read == 0 {
            return match left {
                0 => Ok(()),
                _ => Err(Error::connection(doing())(
                    std::io::ErrorKind::UnexpectedEof.into(),
                )),
            };
        }
        let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(read);
        skip -= u64::try_from(skipped).unwrap_or(0);
        let bytes = &buffer[skipped..read];
        left = left
            .checked_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            .ok_or_else(|| {
                let reason = format!("{} is longer than its manifest states", wanted.digest);
                Error::protocol(server.url(), reason)
            })?;
        write(bytes)?;
    }
}

fn check_digest(image: &Reference, wanted: &Digest, found: &Digest) -> Result<(), Error> {
    match wanted == found {
        true => Ok(()),
        false => Err(Error::Digest {
            what: format!("the response for {image}"),
            expected: wanted.to_string(),
            found: found.to_string(),
        }),
    }
}
