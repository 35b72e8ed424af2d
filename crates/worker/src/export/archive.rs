//! Writes an image as a tar archive for `docker load` and `podman load`: an OCI layout with
//! `manifest.json`, as `docker save` writes it.
//!
//! The same image always gives the same bytes. The archive is a stream, so the size of a layer
//! precedes the layer. The export therefore rebuilds each layer twice: the first time with zeros in
//! place of the files, to measure the layer, and the second time with the files.

use std::io::{self, Write};

use pierhead_oci::{Algorithm, Digest};
use serde_json::json;

use super::layout::{
    Documents, ImageLabels, RebuiltLayer, distinct, documents, layers_of, to_vec, write_layer,
};
use crate::Error;
use crate::store::Image;
use pierhead_toc::{FileDigest, Source};

/// Size of a tar block in bytes.
const BLOCK: u64 = 512;

/// Writes the image as a tar archive. `progress` is called with the bytes of layers written since
/// the last call.
///
/// # Errors
/// Errors of [`super::layout::layout`]. After an error, the archive is incomplete and has no end
/// mark.
pub fn archive(
    image: &Image,
    source: &dyn Source,
    names: ImageLabels<'_>,
    out: &mut dyn Write,
    progress: &dyn Fn(u64),
) -> Result<(), Error> {
    let all = layers_of(image)?;
    let mut sizes = Vec::with_capacity(all.len());
    for layer in &all {
        sizes.push(RebuiltLayer {
            diff_id: layer.diff_id,
            size: measure(image, layer, source)?,
        });
    }
    let Documents { mut files, .. } = documents(image, &sizes, names)?;
    let blob = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
    let config = Digest::of(Algorithm::Sha256, &image.config);
    let paths: Vec<String> = sizes
        .iter()
        .map(|layer| blob(&layer.diff_id.into()))
        .collect();
    let tags: Vec<&str> = names.full.into_iter().collect();
    let manifest = json!([{"Config": blob(&config), "RepoTags": tags, "Layers": paths}]);
    files.push(("manifest.json".into(), to_vec(&manifest)?));
    let mut tar = Tar { out };
    for layer in distinct(all) {
        let size = sizes
            .iter()
            .find(|size| size.diff_id == layer.diff_id)
            .map_or(0, |size| size.size);
        tar.header(&blob(&layer.diff_id.into()), size)?;
        let written = write_layer(image, &layer, source, tar.out, progress)?;
        if written.size != size {
            return Err(Error::malformed(
                "skeleton",
                "it gives another length the second time",
            ));
        }
        tar.pad(size)?;
    }
    for (name, bytes) in &files {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        tar.header(name, size)?;
        tar.write(bytes)?;
        tar.pad(size)?;
    }
    tar.write(&[0; 1024])?;
    tar.out.flush().map_err(failed)
}

/// Returns the number of bytes of a rebuilt layer, which depends only on the skeleton (the tar
/// without file contents) and on the sizes of the files.
fn measure(
    image: &Image,
    layer: &pierhead_toc::image_toc::TocLayer,
    source: &dyn Source,
) -> Result<u64, Error> {
    let skeleton = image.toc.contents().content(layer.skeleton);
    let zero_files = ZeroFiles { source, skeleton };
    let bytes = std::cell::Cell::new(0);
    let count = |more| bytes.set(bytes.get() + more);
    match write_layer(image, layer, &zero_files, &mut io::sink(), &count) {
        // A digest mismatch is expected, since zeros replace the files.
        Ok(_) | Err(Error::Digest { .. }) => Ok(bytes.get()),
        Err(error) => Err(error),
    }
}

/// A source of contents that returns the real skeleton, and zeros for every file.
struct ZeroFiles<'a> {
    source: &'a dyn Source,
    skeleton: Option<FileDigest>,
}

impl Source for ZeroFiles<'_> {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        self.source.size(content)
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.skeleton == Some(*content) {
            return self.source.read_at(content, offset, buf);
        }
        Ok(())
    }
}

struct Tar<'a> {
    out: &'a mut dyn Write,
}

impl Tar<'_> {
    fn header(&mut self, name: &str, size: u64) -> Result<(), Error> {
        let mut header = tar::Header::new_gnu();
        header.set_path(name).map_err(failed)?;
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(size);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        self.write(header.as_bytes())
    }

    fn pad(&mut self, size: u64) -> Result<(), Error> {
        let used = usize::try_from(size % BLOCK).unwrap_or(0);
        match used {
            0 => Ok(()),
            used => self.write(&[0; 512][used..]),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(failed)
    }
}

fn failed(error: io::Error) -> Error {
    Error::io("write the archive", error)
}
