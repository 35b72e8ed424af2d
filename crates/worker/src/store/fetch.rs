//! Starts and resumes fetches, and checks the table of contents that a bundle brings.

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
use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::{
    Header, MAX_BODY, MAX_TOC, PRELUDE, Prelude, UsableContents, bounded,
};
use pierhead_toc::{Error, FileDigest, ImageToc};

/// A fetch to start: the request, and the header of the bundle that answers it.
pub struct NewFetch<'a> {
    /// The caller's name of the fetch. [`Store::resume`] finds it by this name.
    pub name: &'a str,
    /// The request.
    pub ask: &'a BundleQuery,
    /// The `ETag` of the response, with its quotes.
    pub etag: &'a str,
    /// From [`pierhead_bundle::format::Event::Header`].
    pub prelude: &'a Prelude,
    /// The encoded header, from the same event.
    pub body: &'a [u8],
    /// The decoded header, from the same event.
    pub header: Header,
    /// Whether this process made the table from the layers. Then it replaces a recorded table, which a server sent.
    pub is_toc_verified: bool,
}

#[derive(Serialize, Deserialize)]
struct Record {
    ask: BundleQuery,
    etag: String,
}

impl Store {
    /// Starts to apply a bundle. Deletes an earlier fetch of the same name, but keeps its complete contents.
    ///
    /// # Errors
    /// `Malformed` when the header is invalid or its tree differs from the recorded tree of its image. `Missing` when it
    /// needs an image that is not stored. `Busy` when another process fetches the same. Errors of the file system.
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
        let tables = self.tables(&begin.header)?;
        let known: Vec<_> = tables.iter().map(Option::as_ref).collect();
        let want = decode_toc(&begin.header, &known)?;
        // No sync: `resume` verifies these files, and starts anew without them.
        replace(&path.join("table"), |file| want.write(file))?;
        drop(want);
        replace(&path.join("header"), |file| {
            file.write_all(&begin.prelude.encode())?;
            file.write_all(begin.body)
        })?;
        let record = Record {
            ask: begin.ask.clone(),
            etag: begin.etag.to_owned(),
        };
        let record = serde_json::to_vec(&record)
            .map_err(|error| Error::io("encode the record of a fetch", error.into()))?;
        replace(&path.join("fetch.json"), |file| file.write_all(&record))?;
        let table = ImageToc::open(&path.join("table"))?;
        let folder = FetchDir::open(
            path,
            lock,
            begin.ask.clone(),
            begin.etag.to_owned(),
            begin.prelude.digest,
            begin.is_toc_verified,
        )?;
        Apply::new(self.clone(), folder, begin.header, table, tables, &[])
    }

    /// Resumes the fetch of a killed process. `None` when there is none, or its files are unusable.
    ///
    /// # Errors
    /// `Busy` when another process fetches the same. Errors of the file system.
    pub fn resume(&self, name: &str) -> Result<Option<Apply>, Error> {
        let path = self.fetch_path(name);
        if !path.join("fetch.json").exists() {
            return Ok(None);
        }
        let lock = lock(&path)?;
        match self.load(path.clone(), lock) {
            Ok(apply) => Ok(Some(apply)),
            Err(error @ Error::Io { .. }) => Err(error),
            Err(_) => {
                let _ = fs::remove_dir_all(&path);
                Ok(None)
            }
        }
    }

    /// Waits until the fetch that [`Error::Busy`] names has ended, with or without success.
    ///
    /// # Errors
    /// The file system's.
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
        let bad = || Error::Missing(path.display().to_string());
        let record: Record =
            serde_json::from_slice(&image::read(&path.join("fetch.json"), 1 << 20)?)
                .map_err(|_| bad())?;
        let bytes = image::read(&path.join("header"), PRELUDE + MAX_BODY)?;
        let (prelude, body) = bytes.split_first_chunk().ok_or_else(bad)?;
        let prelude = Prelude::decode(prelude)?;
        let header = Header::decode(&prelude, body)?;
        drop(bytes);
        let tables = self.tables(&header)?;
        let table = match ImageToc::open(&path.join("table")) {
            Ok(table) if sha(table.bytes()) == header.table.digest => table,
            Err(error @ Error::Io { .. }) => return Err(error),
            _ => return Err(bad()),
        };
        let done = read_log(&path.join("log"))?;
        self.mark_unsynced()?;
        let folder = FetchDir::open(path, lock, record.ask, record.etag, prelude.digest, false)?;
        Apply::new(self.clone(), folder, header, table, tables, &done)
    }

    /// Rejects a tree that differs from the recorded tree of the same manifest. Only the layers prove which tree belongs to
    /// a manifest, and a bundle does not contain them.
    pub(super) fn check_toc(&self, header: &Header) -> Result<(), Error> {
        match self.image(&manifest_digest(&header.manifest)) {
            Ok(image) if sha(image.table.bytes()) != header.table.digest => Err(Error::malformed(
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

    /// The tables of the base images that the header names; `None` for those that the server does not know.
    fn tables(&self, header: &Header) -> Result<Vec<Option<ImageToc>>, Error> {
        let table = |have: &pierhead_bundle::format::BaseImage| match have.usable {
            UsableContents::None => Ok(None),
            UsableContents::Visible | UsableContents::All => {
                let image = self.image(&have.manifest)?;
                if have.usable == UsableContents::All && !image.layers {
                    return Err(Error::malformed(
                        "bundle",
                        "it needs layers that are not stored",
                    ));
                }
                Ok(Some(image.table))
            }
        };
        header.base_images.iter().map(table).collect()
    }
}

/// Decodes the table of contents in a header, and checks it against digest, config and manifest. `base_images` are the tables of
/// the base images that the header names. Memory: the stated length, which is bounded, and a parsed table.
///
/// # Errors
/// `Malformed` or `Digest` when a check fails.
pub fn decode_toc(header: &Header, base_images: &[Option<&ImageToc>]) -> Result<ImageToc, Error> {
    let wire = &header.table;
    let base = match wire.base {
        None => &[][..],
        Some(base) => match base_images.get(usize::from(base)) {
            Some(Some(table)) => table.bytes(),
            _ => {
                return Err(Error::malformed(
                    "bundle header",
                    "its table is coded against a base image that is not stored",
                ));
            }
        },
    };
    let len = usize::try_from(wire.len).ok().filter(|len| *len <= MAX_TOC);
    let len = len.ok_or_else(|| Error::malformed("bundle header", "the table is too long"))?;
    let bytes = bounded::decompress(&wire.coded, len, base)?;
    let found = sha(&bytes);
    if found != wire.digest {
        return Err(Error::Digest {
            what: "the table of a bundle".into(),
            expected: FileDigest::from_bytes(wire.digest).hex(),
            found: FileDigest::from_bytes(found).hex(),
        });
    }
    let table = ImageToc::parse(bytes)?;
    check_documents(header, &table)?;
    Ok(table)
}

/// Checks that the manifest names the config, and that the config names the layers of the table.
fn check_documents(header: &Header, table: &ImageToc) -> Result<(), Error> {
    let wrong = |why: &str| Error::malformed("bundle header", why);
    let manifest = Manifest::parse(header.manifest.clone().into(), Some(&header.media_type));
    let manifest = manifest.map_err(|error| wrong(&error.to_string()))?;
    let pierhead_oci::Body::Image { config, .. } = &manifest.body else {
        return Err(wrong("the manifest is not of an image"));
    };
    if Digest::of(config.digest.algorithm(), &header.config) != config.digest {
        return Err(wrong("the manifest names another config"));
    }
    let config: Config =
        serde_json::from_slice(&header.config).map_err(|error| wrong(&error.to_string()))?;
    let mut expected = config.rootfs.diff_ids.iter();
    for layer in table.layers() {
        if expected.next() != Some(&Digest::from(layer?.diff_id)) {
            return Err(wrong("the table has other layers than the config"));
        }
    }
    match expected.next() {
        None => Ok(()),
        Some(_) => Err(wrong("the table has fewer layers than the config")),
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
