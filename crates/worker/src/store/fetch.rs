//! Starts and resumes fetches (transfers of one bundle into the store), and verifies the TOC in the
//! header of a bundle.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use pierhead_atomic_file::Options;
use pierhead_oci::{Digest, Manifest};
use rustix::fs::FlockOperation;
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};

use super::apply::Apply;
use super::fetch_dir::{FetchDir, lock, read_log};
use super::folder;
use super::image::{self, manifest_digest};
use super::image_store::Store;
use crate::Error;
use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::{
    Header, MAX_BODY, MAX_TOC, PRELUDE, Prelude, UsableContents, bounded,
};
use pierhead_toc::{FileDigest, ImageToc};

/// The data to start a fetch: the request for a bundle, and the header of the bundle in the
/// response.
pub struct NewFetch<'a> {
    /// The name that the caller gives the fetch. [`Store::resume`] finds the fetch by this name.
    pub name: &'a str,
    /// The request to which the bundle is the response.
    pub query: &'a BundleQuery,
    /// The `ETag` of the response, with its quotes.
    pub etag: &'a str,
    /// The prelude, from [`pierhead_bundle::format::Event::Header`].
    pub prelude: &'a Prelude,
    /// The encoded header of the bundle, from the same event.
    pub body: &'a [u8],
    /// The decoded header of the bundle, from the same event.
    pub header: Header,
    /// Whether this process made the TOC from the layers. Such a TOC replaces a recorded TOC that
    /// came from a server.
    pub is_toc_verified: bool,
}

#[derive(Serialize, Deserialize)]
struct Record {
    #[serde(rename = "ask")]
    query: BundleQuery,
    etag: String,
}

impl Store {
    /// Starts to apply a bundle. Deletes an earlier fetch of the same name. Contents that the
    /// deleted fetch has completed remain in the store.
    ///
    /// # Errors
    /// `Malformed` if the header is invalid or if its tree differs from the recorded tree of its
    /// image. `Missing` if the bundle needs an image that is not stored. `Busy` if another process
    /// has a fetch of this name. Errors of the file system.
    pub fn begin(&self, begin: NewFetch<'_>) -> Result<Apply, Error> {
        let path = self.fetch_path(begin.name);
        let lock = lock(&path)?;
        if !begin.is_toc_verified {
            self.check_toc(&begin.header)?;
        }
        for entry in folder::entries(&path)? {
            if entry.file_name() != Some("lock".as_ref()) {
                let _ = if entry.is_dir() {
                    fs::remove_dir_all(&entry)
                } else {
                    fs::remove_file(&entry)
                };
            }
        }
        self.mark_unsynced()?;
        let base_images = self.base_image_tocs(&begin.header)?;
        let base_tocs: Vec<_> = base_images.iter().map(Option::as_ref).collect();
        let wanted = decode_toc(&begin.header, &base_tocs)?;
        // The files of the fetch are not synced, since `resume` verifies them. If they are damaged,
        // the caller starts a new fetch.
        replace(&path.join("table"), |file| wanted.write(file))?;
        drop(wanted);
        replace(&path.join("header"), |file| {
            file.write_all(&begin.prelude.encode())?;
            file.write_all(begin.body)
        })?;
        let record = Record {
            query: begin.query.clone(),
            etag: begin.etag.to_owned(),
        };
        let record = serde_json::to_vec(&record)
            .map_err(|error| Error::io("encode the record of a fetch", error.into()))?;
        replace(&path.join("fetch.json"), |file| file.write_all(&record))?;
        let toc = ImageToc::open(&path.join("table"))?;
        let folder = FetchDir::open(
            path,
            lock,
            begin.query.clone(),
            begin.etag.to_owned(),
            begin.prelude.digest,
            begin.is_toc_verified,
        )?;
        Apply::new(self.clone(), folder, begin.header, toc, base_images, &[])
    }

    /// Resumes the fetch of a killed process. Returns `None` if there is no fetch of this name, or
    /// if its files are damaged.
    ///
    /// # Errors
    /// `Busy` if another process has a fetch of this name. Errors of the file system.
    pub fn resume(&self, name: &str) -> Result<Option<Apply>, Error> {
        let path = self.fetch_path(name);
        if !path.join("fetch.json").exists() {
            return Ok(None);
        }
        let lock = lock(&path)?;
        match self.load(path.clone(), lock) {
            Ok(apply) => Ok(Some(apply)),
            Err(error @ Error::File { .. }) => Err(error),
            Err(_) => {
                let _ = fs::remove_dir_all(&path);
                Ok(None)
            }
        }
    }

    /// Waits until the fetch that [`Error::Busy`] names has ended, with or without success.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn wait(fetch: &Path) -> Result<(), Error> {
        let failed = |error| Error::io(format!("wait for {}", fetch.display()), error);
        let file = match File::open(fetch.join("lock")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(failed)?,
        };
        let locked = retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockShared));
        locked.map_err(|error| failed(error.into()))
    }

    fn load(&self, path: PathBuf, lock: File) -> Result<Apply, Error> {
        let damaged = || Error::Missing(path.display().to_string());
        let record: Record =
            serde_json::from_slice(&image::read(&path.join("fetch.json"), 1 << 20)?)
                .map_err(|_| damaged())?;
        let bytes = image::read(&path.join("header"), PRELUDE + MAX_BODY)?;
        let (prelude, body) = bytes.split_first_chunk().ok_or_else(damaged)?;
        let prelude = Prelude::decode(prelude)?;
        let header = Header::decode(&prelude, body)?;
        drop(bytes);
        let base_images = self.base_image_tocs(&header)?;
        let toc = match ImageToc::open(&path.join("table")) {
            Ok(toc) if sha(toc.bytes()) == header.toc.digest => toc,
            Err(error @ pierhead_toc::Error::Io { .. }) => return Err(error.into()),
            _ => return Err(damaged()),
        };
        let done = read_log(&path.join("log"))?;
        self.mark_unsynced()?;
        let folder = FetchDir::open(path, lock, record.query, record.etag, prelude.digest, false)?;
        Apply::new(self.clone(), folder, header, toc, base_images, &done)
    }

    /// Returns an error if the tree in the header differs from the recorded tree of the same
    /// manifest. The check is needed because only the layers prove which tree belongs to a
    /// manifest, and a bundle does not contain layers.
    pub(super) fn check_toc(&self, header: &Header) -> Result<(), Error> {
        match self.image(&manifest_digest(&header.manifest)) {
            Ok(image) if sha(image.toc.bytes()) != header.toc.digest => Err(Error::malformed(
                "bundle",
                "its tree differs from the stored tree of the same manifest",
            )),
            _ => Ok(()),
        }
    }

    fn fetch_path(&self, name: &str) -> PathBuf {
        self.0
            .path
            .join("fetches")
            .join(FileDigest::of(name.as_bytes()).hex())
    }

    /// Returns the TOC of each base image in the header, or `None` for a base image that the bundle
    /// does not use.
    fn base_image_tocs(&self, header: &Header) -> Result<Vec<Option<ImageToc>>, Error> {
        let toc = |base_image: &pierhead_bundle::format::BaseImage| match base_image.usable {
            UsableContents::None => Ok(None),
            UsableContents::Visible | UsableContents::All => {
                let image = self.image(&base_image.manifest)?;
                if base_image.usable == UsableContents::All && !image.layers {
                    return Err(Error::malformed(
                        "bundle",
                        "it needs layers that are not stored",
                    ));
                }
                Ok(Some(image.toc))
            }
        };
        header.base_images.iter().map(toc).collect()
    }
}

/// Decodes the TOC in a header, and verifies it against its digest, the config and the manifest.
/// `base_images` contains the TOC of each base image in the header. The function takes memory for
/// the coded TOC, whose stated length is limited, and for the parsed TOC.
///
/// # Errors
/// `Malformed` or `Digest` if a check fails.
pub fn decode_toc(header: &Header, base_images: &[Option<&ImageToc>]) -> Result<ImageToc, Error> {
    let wire = &header.toc;
    let base = match wire.base {
        None => &[][..],
        Some(base) => match base_images.get(usize::from(base)) {
            Some(Some(toc)) => toc.bytes(),
            _ => {
                return Err(Error::malformed(
                    "bundle header",
                    "its TOC is coded against a base image that is not stored",
                ));
            }
        },
    };
    let len = usize::try_from(wire.len).ok().filter(|len| *len <= MAX_TOC);
    let len = len.ok_or_else(|| Error::malformed("bundle header", "the TOC is too long"))?;
    let bytes = bounded::decompress(&wire.coded, len, base)?;
    let found = sha(&bytes);
    if found != wire.digest {
        return Err(Error::Digest {
            what: "the TOC of a bundle".into(),
            expected: FileDigest::from_bytes(wire.digest).hex(),
            found: FileDigest::from_bytes(found).hex(),
        });
    }
    let toc = ImageToc::parse(bytes)?;
    check_documents(header, &toc)?;
    Ok(toc)
}

/// Checks that the manifest names the config, and that the config names the layers of the TOC.
fn check_documents(header: &Header, toc: &ImageToc) -> Result<(), Error> {
    let wrong = |why: &str| Error::malformed("bundle header", why);
    let manifest = Manifest::parse(header.manifest.clone().into(), Some(&header.media_type));
    let manifest = manifest.map_err(|error| wrong(&error.to_string()))?;
    let pierhead_oci::Body::Image { config, .. } = &manifest.body else {
        return Err(wrong("the manifest is no image manifest"));
    };
    if Digest::of(config.digest.algorithm(), &header.config) != config.digest {
        return Err(wrong("the manifest names another config"));
    }
    let config: Config =
        serde_json::from_slice(&header.config).map_err(|error| wrong(&error.to_string()))?;
    let mut expected = config.rootfs.diff_ids.iter();
    for layer in toc.layers() {
        if expected.next() != Some(&Digest::from(layer?.diff_id)) {
            return Err(wrong("the TOC has other layers than the config"));
        }
    }
    match expected.next() {
        None => Ok(()),
        Some(_) => Err(wrong("the TOC has fewer layers than the config")),
    }
}

#[derive(Deserialize)]
struct Config {
    rootfs: Rootfs,
}

#[derive(Deserialize)]
struct Rootfs {
    diff_ids: Vec<Digest>,
}

/// Replaces a file atomically, without a sync.
fn replace(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
    Options::new()
        .without_sync()
        .write_with(path, fill)
        .map_err(|error| Error::io(format!("write {}", path.display()), error))
}

fn sha(bytes: &[u8]) -> [u8; 32] {
    *FileDigest::of(bytes).as_bytes()
}
