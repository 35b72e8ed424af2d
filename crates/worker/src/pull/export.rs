//! Exports a pulled image: as a root file system, an OCI layout or a Docker archive.

use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use crate::export::rootfs::{self, ContentSource, Options, ReuseMode};
use crate::export::{ImageLabels, archive, layout};
use crate::store::{Image, Store};
use pierhead_oci::{Digest, Reference, Target};

use crate::{Error, Progress, Unit};

/// Maximum number of threads that write files of an exported root file system. One more thread
/// creates the directory entries.
const MAX_WRITERS: usize = 3;
const WRITE_BUFFER: usize = 1 << 20;

/// The form in which an image is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportForm {
    /// The file tree of a container. The target is an empty folder.
    Rootfs(FileSharing),
    /// An OCI image layout. The target of the export is a folder.
    OciLayout,
    /// A tar archive for `docker load`. The target is a file or a stream.
    DockerArchive,
}

impl ExportForm {
    /// Whether this form contains layers, which the export has to rebuild.
    pub fn needs_layers(self) -> bool {
        !matches!(self, Self::Rootfs(_))
    }
}

/// How the files of an exported root file system share disk blocks with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSharing {
    /// The files share blocks where the file system has reflinks (btrfs, XFS). On other file
    /// systems, the files are copies.
    Reflink,
    /// The files are hard links to files of the store. Hard links are for read-only trees: a write
    /// to such a file damages the store.
    HardLink,
}

/// Where an export writes the image.
pub enum ExportTarget {
    /// A file or a folder. The file appears under this path only when it is complete.
    Path(PathBuf),
    /// A stream, for [`ExportForm::DockerArchive`] only.
    Stream(Box<dyn Write>),
}

/// How to export an image, and where to.
pub struct ExportOptions {
    /// The form of the export.
    pub form: ExportForm,
    /// Where the export writes the image.
    pub target: ExportTarget,
}

/// The image that is exported, with its store.
pub(super) struct ExportSource<'a> {
    pub(super) store: &'a Store,
    pub(super) image: &'a Image,
    pub(super) reference: &'a Reference,
    pub(super) progress: &'a dyn Progress,
}

impl ExportSource<'_> {
    /// Exports the image to the target. Returns a warning for each kind of property that this
    /// system could not set.
    pub(super) fn write(&self, export: ExportOptions) -> Result<Vec<String>, Error> {
        match (export.form, export.target) {
            (ExportForm::Rootfs(sharing), ExportTarget::Path(to)) => self.rootfs(sharing, &to),
            (ExportForm::OciLayout, ExportTarget::Path(to)) => self.layout(&to),
            (ExportForm::DockerArchive, ExportTarget::Path(to)) => self.archive_file(&to),
            (ExportForm::DockerArchive, ExportTarget::Stream(stream)) => {
                let mut out = BufWriter::with_capacity(WRITE_BUFFER, stream);
                self.archive(&mut out)?;
                let flushed = out.flush();
                flushed.map_err(Error::file("cannot write the archive"))?;
                Ok(Vec::new())
            }
            (_, ExportTarget::Stream(_)) => Err(Error::Usage(
                "only a docker-archive can be written to a stream".to_owned(),
            )),
        }
    }

    fn rootfs(&self, sharing: FileSharing, to: &Path) -> Result<Vec<String>, Error> {
        let toc = &self.image.toc;
        let visible = usize::try_from(toc.visible()).unwrap_or(usize::MAX);
        self.begin(visible);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let options = Options {
            reuse: match sharing {
                FileSharing::Reflink => ReuseMode::Clone,
                FileSharing::HardLink => ReuseMode::HardLink,
            },
            threads: NonZeroUsize::new(cores.clamp(1, MAX_WRITERS)).unwrap_or(NonZeroUsize::MIN),
            ..Options::default()
        };
        let contents = ContentSource {
            source: self.store,
            files: Some(self.store),
        };
        let advance = |bytes| self.progress.advance(bytes);
        let summary = rootfs::rootfs(toc, contents, to, &options, &advance)?;
        let missing = [
            (
                summary.owners,
                "entries do not have the owner of the image: run the export as root",
            ),
            (
                summary.modes,
                "files lost setuid or setgid, because their owner could not be set: run the export as root",
            ),
            (
                summary.devices,
                "devices could not be created: run the export as root",
            ),
            (
                summary.xattrs,
                "extended attributes could not be set on this file system",
            ),
        ];
        let missing = missing.iter().filter(|(count, _)| *count > 0);
        Ok(missing
            .map(|(count, what)| format!("{count} {what}"))
            .collect())
    }

    fn layout(&self, to: &Path) -> Result<Vec<String>, Error> {
        self.begin(usize::MAX);
        let (full, short) = self.names();
        let names = ImageLabels {
            full: full.as_deref(),
            short: short.as_deref(),
        };
        let advance = |bytes| self.progress.advance(bytes);
        let digest = layout(self.image, self.store, names, to, &advance)?;
        Ok(self.changed_digest(&digest).into_iter().collect())
    }

    fn archive_file(&self, to: &Path) -> Result<Vec<String>, Error> {
        let failed = || Error::file(format!("cannot write {}", to.display()));
        // A power cut may damage the archive. The user then exports the image again.
        let options = pierhead_atomic_file::Options::new().without_sync();
        let mut file = options.create(to).map_err(failed())?;
        let mut out = BufWriter::with_capacity(WRITE_BUFFER, &mut file);
        self.archive(&mut out)?;
        out.flush().map_err(failed())?;
        drop(out);
        file.commit().map_err(failed())?;
        Ok(Vec::new())
    }

    fn archive(&self, out: &mut dyn Write) -> Result<(), Error> {
        self.begin(usize::MAX);
        let (full, short) = self.names();
        let names = ImageLabels {
            full: full.as_deref(),
            short: short.as_deref(),
        };
        let advance = |bytes| self.progress.advance(bytes);
        archive(self.image, self.store, names, out, &advance)
    }

    /// Starts the progress bar, whose total is the size of the first `contents` contents of the
    /// image.
    fn begin(&self, contents: usize) {
        let sizes = self.image.toc.contents().iter().take(contents);
        let total = sizes.map(|(_, size)| size).sum();
        let subject = format!("exporting {}", self.reference);
        self.progress.begin(&subject, Unit::Bytes, total);
    }

    /// The full reference and its tag, if the reference has a tag. A reference with a digest gives
    /// no name, since the digest is of the original manifest, which may differ from the exported
    /// manifest.
    fn names(&self) -> (Option<String>, Option<String>) {
        match &self.reference.target {
            Target::Tag(tag) => (Some(self.reference.to_string()), Some(tag.to_string())),
            Target::Digest(_) => (None, None),
        }
    }

    fn changed_digest(&self, digest: &Digest) -> Option<String> {
        (*digest != self.image.digest()).then(|| {
            format!("the exported layers are not compressed, so that the digest of the exported image is {digest}")
        })
    }
}
