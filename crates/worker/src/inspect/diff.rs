//! Compares the bytes that an update of an image transfers: as compressed layers, as single files
//! and as a bundle.

use std::collections::HashSet;
use std::io::{self, Read as _};

use crate::store::decode_toc;
use pierhead_bundle::Coding;
use pierhead_bundle::format::{Event, Sizes};
use pierhead_oci::Reference;
use pierhead_toc::{FileDigest, ImageToc};
use serde::Serialize;

use super::source::{ImageDetails, ImageSource, tree_contents};
use crate::http::Session;
use crate::{Error, Progress};

const READ_SIZE: usize = 64 << 10;

/// The number of bytes that an update transfers by each method. The serialized form of this value
/// is the output of `pierhead diff --json`.
#[derive(Serialize)]
pub struct DiffReport {
    /// Reference of the old image.
    pub old: String,
    /// Reference of the new image.
    pub new: String,
    /// Compressed layers that the old image lacks.
    pub layers: TransferSize,
    /// File contents that the old image lacks.
    pub files: TransferSize,
    /// The bundle of the update, if the images come from a server that offers bundles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BundleSize>,
}

/// A number of items and the sum of their bytes.
#[derive(Clone, Copy, Default, Serialize)]
pub struct TransferSize {
    /// Number of items, such as layers or files.
    pub count: u64,
    /// The sum of the bytes of these items.
    pub bytes: u64,
}

/// The bytes of a bundle by the coding of its frames.
#[derive(Default, Serialize)]
pub struct BundleSize {
    /// Bytes of the bundle, including its header.
    pub bytes: u64,
    /// Bytes of the header of the bundle.
    pub header: u64,
    /// Frames that need no old contents, and the bytes of their records.
    pub full: TransferSize,
    /// Frames that are patches against old contents, and the bytes of their records.
    pub patched: TransferSize,
    /// Frames that only copy parts of old contents. The bundle does not contain these bytes.
    pub chunked: TransferSize,
}

/// Compares the transfer sizes of an update from one image to another. If there is a server,
/// receives the bundle of the update, counts its bytes and discards it.
///
/// # Errors
/// Errors of the lookup: described at [`Error`].
pub fn diff(
    source: &ImageSource,
    old: &Reference,
    new: &Reference,
    progress: &dyn Progress,
) -> Result<DiffReport, Error> {
    let old = source.look_up(old, progress)?;
    let bundle = match &source.session {
        Some(session) => Some(measure_bundle(source, session, new, &old, progress)?),
        None => None,
    };
    let new = source.look_up(new, progress)?;
    let old_layers: HashSet<_> = old.layers.iter().map(|layer| layer.digest).collect();
    let missing = new
        .layers
        .iter()
        .filter(|layer| !old_layers.contains(&layer.digest));
    Ok(DiffReport {
        layers: sum(missing.map(|layer| layer.size)),
        files: sum(new_contents(&old.toc, &new.toc)),
        bundle,
        old: old.image.to_string(),
        new: new.image.to_string(),
    })
}

/// Returns the sizes of the file contents in the new tree that the old tree lacks.
fn new_contents<'a>(old: &ImageToc, new: &'a ImageToc) -> impl Iterator<Item = u64> + use<'a> {
    let old: HashSet<FileDigest> = tree_contents(old).map(|(content, _)| content).collect();
    tree_contents(new)
        .filter(move |(content, _)| !old.contains(content))
        .map(|(_, size)| size)
}

fn sum(sizes: impl Iterator<Item = u64>) -> TransferSize {
    sizes.fold(TransferSize::default(), |sum, size| TransferSize {
        count: sum.count + 1,
        bytes: sum.bytes + size,
    })
}

/// Receives the bundle of an update, and counts its bytes.
fn measure_bundle(
    source: &ImageSource,
    session: &Session,
    new: &Reference,
    old: &ImageDetails,
    progress: &dyn Progress,
) -> Result<BundleSize, Error> {
    let mut start = source.start_bundle(session, new, vec![old.digest], progress)?;
    let toc = decode_toc(&start.header, &[Some(&old.toc)])?;
    let sizes = ContentSizes {
        new: &toc,
        old: &old.toc,
    };
    let header = u64::from(start.prelude.body);
    let mut size = BundleSize {
        header,
        bytes: header,
        ..BundleSize::default()
    };
    for frame in start.header.frames.cursor(&sizes)? {
        let frame = frame?;
        // A frame that only copies old contents has no record in the bundle.
        if frame.coding == Coding::Copy {
            size.chunked.count += 1;
            size.chunked.bytes += frame.members.iter().map(|member| member.len).sum::<u64>();
        }
    }
    let mut count = |event: Event| {
        if let Event::Record {
            coding, payload, ..
        } = event
        {
            let bytes = u64::try_from(payload.len()).unwrap_or(u64::MAX);
            size.bytes += bytes;
            let coded = match coding {
                Coding::Patch => &mut size.patched,
                _ => &mut size.full,
            };
            coded.count += 1;
            coded.bytes += bytes;
        }
    };
    let mut buffer = vec![0; READ_SIZE];
    let mut bytes = &start.rest[..];
    loop {
        while let Some(event) = start.decoder.feed(&mut bytes)? {
            count(event);
        }
        let doing = "the transfer of the bundle was interrupted; try again";
        let read = start.from.read(&mut buffer);
        match read.map_err(Error::connection(doing))? {
            0 if start.decoder.is_ended() => return Ok(size),
            0 => {
                let error = io::ErrorKind::UnexpectedEof.into();
                return Err(Error::connection(doing)(error));
            }
            read => bytes = &buffer[..read],
        }
    }
}

/// Finds the size of each file content of the new and the old image by the number of the content.
struct ContentSizes<'a> {
    new: &'a ImageToc,
    old: &'a ImageToc,
}

impl Sizes for ContentSizes<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.new.contents().size(content)
    }

    fn base(&self, base: u16, content: u32) -> Option<u64> {
        (base == 0).then(|| self.old.contents().size(content))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{TestImage, noise};

    #[test]
    fn only_contents_that_the_old_tree_lacks_count_as_files() {
        let old = TestImage::of(&[("a", noise(1, 100)), ("b", noise(2, 200))]);
        // The new image has a file with old bytes under another name, two files with the same new
        // bytes, and a changed file.
        let new = TestImage::of(&[
            ("c", noise(1, 100)),
            ("d", noise(3, 300)),
            ("e", noise(3, 300)),
            ("b", noise(4, 50)),
        ]);
        let total = |old: &TestImage, new: &TestImage| sum(new_contents(&old.toc(), &new.toc()));
        let counts = |size: TransferSize| (size.count, size.bytes);
        assert_eq!(counts(total(&old, &new)), (2, 350));
        assert_eq!(counts(total(&new, &old)), (1, 200));
        assert_eq!(counts(total(&old, &old)), (0, 0));
    }

    #[test]
    fn the_size_of_a_content_comes_from_the_toc_of_its_image() {
        let (old, new) = (
            TestImage::of(&[("a", noise(1, 7))]),
            TestImage::of(&[("a", noise(2, 9))]),
        );
        let (old, new) = (old.toc(), new.toc());
        let sizes = ContentSizes {
            new: &new,
            old: &old,
        };
        assert_eq!((sizes.wanted(0), sizes.base(0, 0)), (Some(9), Some(7)));
        assert_eq!(sizes.base(1, 0), None, "there is one base image");
        assert_eq!(sizes.wanted(u32::MAX), None);
    }
}
