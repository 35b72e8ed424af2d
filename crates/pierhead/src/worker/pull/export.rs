//! A pulled image in the form that something else takes.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use pierhead_oci::{Digest, Reference, Target};
use pierhead_worker::export::rootfs::{self, Contents, Options, Reuse};
use pierhead_worker::export::{Names, archive, layout};
use pierhead_worker::store::{Image, Store};

use super::super::Error;
use super::view::View;
use crate::cli::worker::{Form, Link};

/// Threads that write files, besides the one that makes names.
const WRITERS: usize = 3;
const BUFFER: usize = 1 << 20;

/// See the head of this module.
pub(super) struct Export<'a> {
    pub(super) store: &'a Store,
    pub(super) image: &'a Image,
    pub(super) reference: &'a Reference,
    pub(super) link: Link,
    pub(super) view: &'a View,
}

impl Export<'_> {
    /// Writes it; what could not be written here, for people.
    pub(super) fn write(&self, form: Form, to: &Path) -> Result<Vec<String>, Error> {
        match form {
            Form::Rootfs => self.rootfs(to),
            Form::OciLayout => self.layout(to),
            Form::DockerArchive => self.archive(to),
        }
    }

    fn rootfs(&self, to: &Path) -> Result<Vec<String>, Error> {
        let table = &self.image.table;
        let visible = usize::try_from(table.visible()).unwrap_or(usize::MAX);
        let total = table
            .contents()
            .iter()
            .take(visible)
            .map(|(_, size)| size)
            .sum();
        self.view
            .begin(&format!("{} is written", self.reference), total);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let options = Options {
            reuse: match self.link {
                Link::Reflink => Reuse::Clone,
                Link::Hard => Reuse::HardLink,
            },
            threads: NonZeroUsize::new(cores.clamp(1, WRITERS)).unwrap_or(NonZeroUsize::MIN),
            ..Options::default()
        };
        let contents = Contents {
            source: self.store,
            files: Some(self.store),
        };
        let told = |bytes| self.view.more(bytes);
        let summary = rootfs::rootfs(table, contents, to, &options, &told)?;
        let missing = [
            (summary.owners, "entries without their owner: run as root"),
            (
                summary.modes,
                "files not setuid or setgid, for want of their owner",
            ),
            (
                summary.devices,
                "devices that could not be made: run as root",
            ),
            (summary.xattrs, "attributes that could not be set here"),
        ];
        let told = missing.iter().filter(|(count, _)| *count > 0);
        Ok(told
            .map(|(count, what)| format!("{count} {what}"))
            .collect())
    }

    fn layout(&self, to: &Path) -> Result<Vec<String>, Error> {
        self.begin();
        let (full, short) = self.names();
        let names = Names {
            full: full.as_deref(),
            short: short.as_deref(),
        };
        let told = |bytes| self.view.more(bytes);
        let digest = layout(self.image, self.store, names, to, &told)?;
        Ok(self.renamed(&digest))
    }

    fn archive(&self, to: &Path) -> Result<Vec<String>, Error> {
        self.begin();
        let (full, short) = self.names();
        let names = Names {
            full: full.as_deref(),
            short: short.as_deref(),
        };
        let told = |bytes| self.view.more(bytes);
        if to == Path::new("-") {
            let mut out = BufWriter::with_capacity(BUFFER, io::stdout().lock());
            archive(self.image, self.store, names, &mut out, &told)?;
            return Ok(Vec::new());
        }
        let failed = || Error::file(format!("cannot write {}", to.display()));
        // Whoever finds the name finds all of it.
        let mut partial = to.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(failed())?;
        let mut out = BufWriter::with_capacity(BUFFER, &file);
        let written = archive(self.image, self.store, names, &mut out, &told)
            .map_err(Error::from)
            .and_then(|()| out.flush().map_err(failed()));
        drop(out);
        let written = written.and_then(|()| fs::rename(&partial, to).map_err(failed()));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written.map(|()| Vec::new())
    }

    fn begin(&self) {
        let total = self
            .image
            .table
            .contents()
            .iter()
            .map(|(_, size)| size)
            .sum();
        self.view
            .begin(&format!("{} is written", self.reference), total);
    }

    /// In full, and its tag.
    fn names(&self) -> (Option<String>, Option<String>) {
        match &self.reference.target {
            Target::Tag(tag) => (Some(self.reference.to_string()), Some(tag.to_string())),
            // A digest names the original manifest, which may not be that of what is written.
            Target::Digest(_) => (None, None),
        }
    }

    fn renamed(&self, digest: &Digest) -> Vec<String> {
        let same = *digest == self.image.digest();
        let told =
            format!("layers are not compressed here, so that the image's digest is {digest}");
        (!same).then_some(told).into_iter().collect()
    }
}
