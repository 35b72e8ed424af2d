//! The orders in which starts opened the files of images: one small file an image, replaced as a whole.
//!
//! Not in the directory: an order has up to a megabyte and may be sent as often as somebody likes, and sled keeps a
//! value of that size in a file of its own, which it does not delete when another takes its place.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use pierhead_oci::Digest;

use super::Inner;
use crate::api::MAX_DOCUMENT;
use crate::plan::{self, Tree};
use crate::{Error, durable};

const WHAT: &str = "trace";

/// What became of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Its entries that are regular files of the image, each counted once.
    pub matched: usize,
    /// Whether it was not known before.
    pub is_new: bool,
}

impl Inner {
    /// What a start of that image opened, in order. One that is damaged is deleted.
    pub(super) fn traced(&self, image: &Digest) -> Result<Option<Vec<String>>, Error> {
        let path = self.shelf.trace(image);
        match read(&path) {
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, %image, "a trace is forgotten");
                super::shelf::remove(&path);
                Ok(None)
            }
            found => found,
        }
    }

    /// Notes the files of a trace that the image has, each once. One without any is not noted.
    pub(super) fn note_trace(&self, image: &Digest, files: &[String]) -> Result<Noted, Error> {
        let table = self.made_table(image)?;
        let tree = Tree::of(plan::Image::mounted(&table))?;
        let mut seen = HashSet::new();
        let files: Vec<_> = files
            .iter()
            .filter(|path| tree.file(path.as_bytes()).is_some() && seen.insert(path.as_str()))
            .cloned()
            .collect();
        let matched = files.len();
        // Bundles that are under way go on as they are.
        let is_new = matched > 0 && self.traced(image)?.as_ref() != Some(&files);
        if is_new {
            write(&self.shelf.trace(image), &files)?;
        }
        Ok(Noted { matched, is_new })
    }
}

fn write(path: &Path, files: &[String]) -> Result<(), Error> {
    let failed = |error| Error::io("write a trace", io::Error::other(error));
    let bytes = postcard::to_stdvec(files).map_err(failed)?;
    durable::write(path, |file| {
        file.write_all(&crc32c::crc32c(&bytes).to_le_bytes())?;
        file.write_all(&bytes)
    })
}

fn read(path: &Path) -> Result<Option<Vec<String>>, Error> {
    let failed = |error| Error::io(format!("read {}", path.display()), error);
    let wrong = |why: &str| Error::malformed(WHAT, why);
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        // A document of a worker is longer than what is kept of it: quotes and commas are more than lengths.
        Ok(meta) if usize::try_from(meta.len()).is_ok_and(|len| len <= MAX_DOCUMENT) => {}
        Ok(_) => return Err(wrong("it is too long")),
    }
    let bytes = fs::read(path).map_err(failed)?;
    let (sum, bytes) = bytes
        .split_first_chunk()
        .ok_or_else(|| wrong("its length"))?;
    if crc32c::crc32c(bytes).to_le_bytes() != *sum {
        return Err(wrong("its checksum does not match"));
    }
    postcard::from_bytes(bytes)
        .map(Some)
        .map_err(|_| wrong("its form"))
}
