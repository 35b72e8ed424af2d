//! Pulls an image as layers: indexes the layers, and copies their files into the store.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use crate::store::{Apply, ApplyOutcome, Image, NewFetch};
use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::{Frames, Header, Sizes, WireToc};
use pierhead_oci::{Descriptor, Digest};
use pierhead_toc::layer::{self, LayerIndex, Limits, NoPacing};
use pierhead_toc::{FileBlob, FileDigest, ImageToc, Source as _, image_toc};
use serde::Deserialize;

use super::context::PullContext;
use super::report::{ContentCounts, PullMethod, PullReport};
use crate::http::Session;
use crate::registry::{self, MAX_CONFIG};
use crate::{Error, Unit};

/// Name of the folder of the store that holds layers until the image is complete.
const FOLDER: &str = "layers";
const READ_SIZE: usize = 256 << 10;
/// Compression level of the TOC (table of contents), which is not sent to another machine.
const TOC_LEVEL: i32 = 1;

/// Pulls manifest, config and layers, and completes the image in the store.
///
/// Layers stay on the disk until the image is complete, so that an interrupted pull resumes.
pub(super) fn pull(
    context: &PullContext<'_>,
    session: &Session,
    report: &mut PullReport,
) -> Result<Image, Error> {
    report.method = PullMethod::Layers;
    report.connections = 1;
    let reference = &context.image;
    let progress = context.progress;
    let resolved = registry::resolve(session, reference, &context.platform)?;
    let stored = context
        .store
        .complete(&resolved.digest, context.with_layers)?;
    if let Some(image) = stored {
        context.check_platform(&image.config, report, || Ok(resolved.is_of_index))?;
        report.contents.reused = u64::from(image.toc.visible());
        return Ok(image);
    }
    let folder = context.store.path().join(FOLDER);
    fs::create_dir_all(&folder)
        .map_err(Error::file(format!("cannot make {}", folder.display())))?;
    if resolved.config.size > MAX_CONFIG {
        let message = format!("the config of {reference} is too large");
        return Err(Error::Image(message));
    }
    // The config precedes the layers, so that an image of another platform is refused early.
    let blobs = || std::iter::once(&resolved.config).chain(&resolved.layers);
    let total = blobs().map(|blob| blob.size).sum();
    progress.begin(&reference.to_string(), Unit::Bytes, total);
    let path = |blob: &Descriptor| folder.join(blob.digest.hex());
    for blob in blobs() {
        let mut advance = |bytes| progress.advance(bytes);
        registry::fetch_blob(session, reference, blob, &path(blob), &mut advance)?;
        if blob.digest == resolved.config.digest {
            let config = read_config(&path(blob))?;
            context.check_platform(&config, report, || Ok(resolved.is_of_index))?;
        }
    }
    let config = read_config(&path(&resolved.config))?;
    let parsed: ImageConfig = serde_json::from_slice(&config)
        .map_err(|error| Error::Image(format!("the config of {reference}: {error}")))?;
    let diff_ids = parsed.rootfs.diff_ids;
    if diff_ids.len() != resolved.layers.len() {
        let message = format!("{reference} has another number of layers than its config");
        return Err(Error::Image(message));
    }
    let mut readers = Vec::new();
    progress.begin(&format!("indexing {reference}"), Unit::Bytes, total);
    for (blob, diff_id) in resolved.layers.iter().zip(&diff_ids) {
        let file = open_layer(&path(blob))?;
        let request = layer::Request {
            media_type: blob.media_type.as_str(),
            diff_id,
            limits: Limits::default(),
        };
        let index = path(blob).with_extension("index");
        let index = layer::index(&file, &request, &mut NoPacing, &index)?;
        progress.advance(blob.size);
        readers.push(index.reader(Arc::new(file)));
    }
    let indexes: Vec<&LayerIndex> = readers.iter().map(layer::LayerReader::index).collect();
    let toc = ImageToc::build(&indexes)?;
    // The store can only apply bundles. So this function makes a bundle that has a TOC and no
    // frames.
    let header = Header {
        layers: context.with_layers,
        media_type: resolved.manifest.media_type.to_string(),
        manifest: resolved.manifest.bytes.to_vec(),
        config,
        base_images: Vec::new(),
        toc: WireToc {
            base: None,
            digest: *FileDigest::of(toc.bytes()).as_bytes(),
            len: u32::try_from(toc.bytes().len()).unwrap_or(u32::MAX),
            coded: image_toc::compress(&toc, None, TOC_LEVEL)?,
        },
        frames: Frames::encode([], &NoSizes)?,
        records: 0,
    };
    drop(toc);
    let (prelude, body) = header.encode(TOC_LEVEL)?;
    let apply = context.store.begin(NewFetch {
        name: &format!("layers of {} {}", resolved.digest, context.with_layers),
        query: &BundleQuery::default(),
        etag: "\"layers\"",
        prelude: &prelude,
        body: &body,
        header,
        is_toc_verified: true,
    })?;
    let image = loop {
        match apply.finish()? {
            ApplyOutcome::Complete(complete) => break complete.recorded()?,
            ApplyOutcome::Missing(contents) => {
                let mut missing: HashMap<FileDigest, u64> = contents.into_iter().collect();
                let total = missing.values().sum();
                progress.begin(&format!("unpacking {reference}"), Unit::Bytes, total);
                for reader in &readers {
                    // The skeleton is the tar without file contents.
                    let skeleton = reader.index().skeleton();
                    // Reads files in the order of the tar, so that each byte is decompressed only
                    // once.
                    for file in std::iter::once(Ok(skeleton)).chain(reader.index().files()) {
                        let (content, _) = file?;
                        if let Some(size) = missing.remove(&content) {
                            store_content(context, &apply, reader, &content, size)?;
                        }
                    }
                }
                if !missing.is_empty() {
                    return Err(Error::Image(
                        "the layers lack files of their index".to_owned(),
                    ));
                }
            }
        }
    };
    report.contents = ContentCounts::new(&apply.counts());
    for blob in blobs() {
        // If this removal fails, the next pull of the image removes the file.
        let _ = fs::remove_file(path(blob));
        let _ = fs::remove_file(path(blob).with_extension("index"));
    }
    let _ = fs::remove_dir(&folder);
    Ok(image)
}

/// Copies one file content from its layer into the store.
fn store_content(
    context: &PullContext<'_>,
    apply: &Apply,
    reader: &layer::LayerReader,
    content: &FileDigest,
    size: u64,
) -> Result<(), Error> {
    let mut receive = apply.receive(content)?;
    let mut buffer = vec![0; READ_SIZE];
    let mut offset = 0;
    while offset < size {
        let len = usize::try_from(size - offset).unwrap_or(usize::MAX);
        let piece = &mut buffer[..len.min(READ_SIZE)];
        reader
            .read_at(content, offset, piece)
            .map_err(Error::file(format!("cannot read {content} in its layer")))?;
        receive.write(piece)?;
        let len = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        offset += len;
        context.progress.advance(len);
    }
    receive.commit()
}

/// The sizes of contents for a list of frames that is empty, so no size is ever looked up.
struct NoSizes;

impl Sizes for NoSizes {
    fn wanted(&self, _: u32) -> Option<u64> {
        None
    }

    fn base(&self, _: u16, _: u32) -> Option<u64> {
        None
    }
}

#[derive(Deserialize)]
struct ImageConfig {
    rootfs: RootfsConfig,
}

#[derive(Deserialize)]
struct RootfsConfig {
    diff_ids: Vec<Digest>,
}

fn read_config(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = pierhead_atomic_file::open_regular(path)
        .and_then(|file| file.take(MAX_CONFIG).read_to_end(&mut bytes));
    read.map_err(Error::file(format!("cannot read {}", path.display())))?;
    Ok(bytes)
}

fn open_layer(path: &Path) -> Result<FileBlob, Error> {
    let opened = pierhead_atomic_file::open_regular(path).and_then(FileBlob::new);
    opened.map_err(Error::file(format!("cannot read {}", path.display())))
}
