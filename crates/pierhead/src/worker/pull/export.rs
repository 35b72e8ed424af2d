//! A pulled image in the form that something else takes.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

use pierhead_bundle::export::rootfs::{self, Contents, Options, Reuse};
use pierhead_bundle::store::{Image, Store};
use pierhead_oci::Reference;

use super::super::Error;
use super::view::View;
use crate::cli::worker::{Form, Link};

/// Threads that write files, besides the one that makes names.
const WRITERS: usize = 3;

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
            Form::OciLayout | Form::DockerArchive => Err(Error::Said(
                "the image is in the store; this form cannot be written yet".to_owned(),
            )),
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
            files: None,
        };
        let told = |bytes| self.view.more(bytes);
        let summary = rootfs::rootfs(table, contents, to, &options, &told)?;
        let missing = [
            (summary.owners, "entries without their owner"),
            (summary.devices, "devices that could not be made"),
            (summary.xattrs, "attributes that could not be set"),
        ];
        let told = missing.iter().filter(|(count, _)| *count > 0);
        Ok(told
            .map(|(count, what)| format!("{count} {what}: run as root"))
            .collect())
    }

}
