//! A fetch that was begun: what a worker that was killed needs to go on.
//!
//! ```text
//! lock         held alone by who fetches
//! fetch.json   the request and the ETag
//! header       prelude and body, as they came
//! table        the want's
//! log          ordinals of the frames that were applied, four bytes each, little endian
//! parts/HEX    contents of which only some ranges are there
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pierhead_oci::{Algorithm, Digest, Manifest};
use rustix::fs::FlockOperation;
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use super::apply::Apply;
use super::{Store, image};
use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::{
    Header, MAX_BODY, MAX_FRAMES, MAX_TOC, PRELUDE, Prelude, UsableContents, bounded,
};
use pierhead_toc::{Error, FileDigest, ImageToc, durable};

/// A bundle whose header has come.
pub struct Begin<'a> {
    /// What is fetched, in the caller's words; [`Store::resume`] finds it by them.
    pub name: &'a str,
    /// The request.
    pub ask: &'a BundleQuery,
    /// Of the answer, quotes and all.
    pub etag: &'a str,
    /// From [`pierhead_bundle::format::Event::Header`].
    pub prelude: &'a Prelude,
    /// From there, too.
    pub body: &'a [u8],
    /// And this.
    pub header: Header,
    /// The table was made here, from the layers: it replaces what a server has said of the image before.
    pub proven: bool,
}

#[derive(Serialize, Deserialize)]
struct Record {
    ask: BundleQuery,
    etag: String,
}

/// The folder of a fetch; nobody else has it.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) ask: BundleQuery,
    pub(super) etag: String,
    pub(super) digest: [u8; 32],
    /// Of [`Begin`].
    pub(super) proven: bool,
    log: File,
    _lock: File,
}

impl Store {
    /// Begins to apply a bundle. What an earlier fetch of that name has left is given up, but for the contents that are whole.
    ///
    /// # Errors
    /// The header says what cannot be, or another tree than the one that is recorded of its image; it counts on an image that is not here; another process fetches this; the file system's.
    pub fn begin(&self, begin: Begin<'_>) -> Result<Apply, Error> {
        let path = self.fetch_path(begin.name);
        let lock = lock(&path)?;
        if !begin.proven {
            self.agrees(&begin.header)?;
        }
        for entry in super::upkeep::entries(&path)? {
            if entry.file_name() != Some("lock".as_ref()) {
                let _ = if entry.is_dir() {
                    fs::remove_dir_all(&entry)
                } else {
                    fs::remove_file(&entry)
                };
            }
        }
        self.unsynced()?;
        let tables = self.tables(&begin.header)?;
        let known: Vec<_> = tables.iter().map(Option::as_ref).collect();
        let want = wanted(&begin.header, &known)?;
        // None of this is synced: it is checked when it is read again, and a fetch without it begins anew.
        durable::replace(&path.join("table"), |file| want.write(file))?;
        drop(want);
        durable::replace(&path.join("header"), |file| {
            file.write_all(&begin.prelude.encode())?;
            file.write_all(begin.body)
        })?;
        let record = Record {
            ask: begin.ask.clone(),
            etag: begin.etag.to_owned(),
        };
        let record =
            serde_json::to_vec(&record).map_err(|error| Error::io("note a fetch", error.into()))?;
        durable::replace(&path.join("fetch.json"), |file| file.write_all(&record))?;
        let table = ImageToc::open(&path.join("table"))?;
        let folder = Folder::open(
            path,
            lock,
            begin.ask.clone(),
            begin.etag.to_owned(),
            begin.prelude.digest,
            begin.proven,
        )?;
        Apply::new(self.clone(), folder, begin.header, table, tables, &[])
    }

    /// Goes on with what a process that was killed has begun; `None` when there is nothing, or nothing of use.
    ///
    /// # Errors
    /// Another process fetches this; the file system's.
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

    /// Waits until the fetch that [`Error::Busy`] names has ended, in whichever way.
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
        let done = log(&path.join("log"))?;
        self.unsynced()?;
        let folder = Folder::open(path, lock, record.ask, record.etag, prelude.digest, false)?;
        Apply::new(self.clone(), folder, header, table, tables, &done)
    }

    /// Nothing ties a tree to a manifest but the layers, which a bundle does not bring: whoever sends another tree than
    /// the one that is recorded is not believed.
    pub(super) fn agrees(&self, header: &Header) -> Result<(), Error> {
        match self.image(&manifest_digest(&header.manifest)) {
            Ok(image) if sha(image.table.bytes()) != header.table.digest => Err(Error::malformed(
                "bundle",
                "another tree than the one that is here for the same manifest",
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

    /// Of the images that the header counts on.
    fn tables(&self, header: &Header) -> Result<Vec<Option<ImageToc>>, Error> {
        let table = |have: &pierhead_bundle::format::BaseImage| match have.usable {
            UsableContents::None => Ok(None),
            UsableContents::Visible | UsableContents::All => {
                let image = self.image(&have.manifest)?;
                if have.usable == UsableContents::All && !image.layers {
                    return Err(Error::malformed(
                        "bundle",
                        "it counts on layers that are not here",
                    ));
                }
                Ok(Some(image.table))
            }
        };
        header.base_images.iter().map(table).collect()
    }
}

impl Folder {
    fn open(
        path: PathBuf,
        lock: File,
        ask: BundleQuery,
        etag: String,
        digest: [u8; 32],
        proven: bool,
    ) -> Result<Self, Error> {
        let failed = |error| Error::io(format!("open {}", path.display()), error);
        fs::create_dir_all(path.join("parts")).map_err(failed)?;
        let log = File::options()
            .append(true)
            .create(true)
            .open(path.join("log"))
            .map_err(failed)?;
        Ok(Self {
            log,
            ask,
            etag,
            digest,
            proven,
            path,
            _lock: lock,
        })
    }

    /// Takes it away under another name first, so that who waits for it never finds half of it.
    pub(super) fn remove(&self) {
        let gone = self.path.with_extension("partial");
        let _ = fs::remove_dir_all(&gone);
        let removed = match fs::rename(&self.path, &gone) {
            Ok(()) => &gone,
            Err(_) => &self.path,
        };
        let _ = fs::remove_dir_all(removed);
    }

    pub(super) fn parts(&self) -> PathBuf {
        self.path.join("parts")
    }

    /// Notes that a frame was applied: one write, in one piece.
    pub(super) fn done(&self, frame: u32) -> Result<(), Error> {
        (&self.log)
            .write_all(&frame.to_le_bytes())
            .map_err(|error| Error::io("note a frame", error))
    }
}

/// The table that a header brings, checked against what the header says of it and of its image. `base_images` are the tables
/// of the images that the header names, as far as they are here. Memory is the length that the header says, which is
/// bounded, and that of a parsed table.
///
/// # Errors
/// `Malformed` and `Digest` when it is anything else.
pub fn wanted(header: &Header, base_images: &[Option<&ImageToc>]) -> Result<ImageToc, Error> {
    let wire = &header.table;
    let base = match wire.base {
        None => &[][..],
        Some(base) => match base_images.get(usize::from(base)) {
            Some(Some(table)) => table.bytes(),
            _ => return Err(Error::malformed("bundle header", "a table against nothing")),
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

/// The config is the manifest's, and the table's layers are the config's.
fn check_documents(header: &Header, table: &ImageToc) -> Result<(), Error> {
    let wrong = |why: &str| Error::malformed("bundle header", why);
    let manifest = Manifest::parse(header.manifest.clone().into(), Some(&header.media_type));
    let manifest = manifest.map_err(|error| wrong(&error.to_string()))?;
    let pierhead_oci::Body::Image { config, .. } = &manifest.body else {
        return Err(wrong("a manifest of no image"));
    };
    if Digest::of(config.digest.algorithm(), &header.config) != config.digest {
        return Err(wrong("a config that is not the manifest's"));
    }
    let config: Config =
        serde_json::from_slice(&header.config).map_err(|error| wrong(&error.to_string()))?;
    let mut expected = config.rootfs.diff_ids.iter();
    for layer in table.layers() {
        if expected.next() != Some(&Digest::from(layer?.diff_id)) {
            return Err(wrong("a table of other layers than the config's"));
        }
    }
    match expected.next() {
        None => Ok(()),
        Some(_) => Err(wrong("a table of fewer layers than the config's")),
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

fn sha(bytes: &[u8]) -> [u8; 32] {
    *FileDigest::of(bytes).as_bytes()
}

fn lock(path: &Path) -> Result<File, Error> {
    let failed = |error| Error::io(format!("fetch into {}", path.display()), error);
    let lock = path.join("lock");
    loop {
        fs::create_dir_all(path).map_err(failed)?;
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = match options.open(&lock) {
            // Whoever had the folder took it away meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.map_err(failed)?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::Busy(path.to_owned())),
            Err(error) => return Err(failed(error.into())),
        }
        let inode = file.metadata().map_err(failed)?.ino();
        if fs::metadata(&lock).is_ok_and(|named| named.ino() == inode) {
            return Ok(file);
        }
    }
}

fn log(path: &Path) -> Result<Vec<u32>, Error> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => {
            let limit = u64::try_from(4 * MAX_FRAMES).unwrap_or(u64::MAX);
            opened
                .and_then(|file| file.take(limit).read_to_end(&mut bytes))
                .map_err(|error| Error::io("read the log of a fetch", error))?;
        }
    }
    let (ordinals, _cut) = bytes.as_chunks::<4>();
    Ok(ordinals
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .collect())
}

/// Its hash algorithm is what digests of this store's images use.
pub(super) fn manifest_digest(manifest: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, manifest)
}
