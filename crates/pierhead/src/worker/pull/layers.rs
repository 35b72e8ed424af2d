//! An image by its layers, where there is no bundle: indexed here, as a server does it, and taken apart into the store.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use pierhead_bundle::api::Ask;
use pierhead_bundle::format::{Frames, Header, Sizes, WireTable};
use pierhead_oci::{Descriptor, Digest};
use pierhead_toc::layer::{self, LayerIndex, Limits, Unhurried};
use pierhead_toc::{FileBlob, FileDigest, Source as _, Table, table};
use pierhead_worker::store::{Begin, Image, Outcome};
use serde::Deserialize;

use super::super::Error;
use super::super::session::Session;
use super::Pull;
use super::plain::{self, MAX_CONFIG};
use super::view::{Counts, Report};

/// Below the store; one pull of the same image at a time.
const FOLDER: &str = "layers";
const PIECE: usize = 256 << 10;
/// It goes nowhere.
const TABLE_LEVEL: i32 = 1;

/// Pulls manifest, config and layers, and makes the image whole in the store.
///
/// Layers lie on the disk until the image is whole, so that a pull that was stopped goes on.
pub(super) fn pull(
    pull: &Pull<'_>,
    session: &Session,
    report: &mut Report,
) -> Result<Image, Error> {
    let resolved = plain::resolve(session, &pull.args.image, &pull.platform)?;
    if let Some(image) = pull.store.complete(&resolved.digest, pull.layers)? {
        report.contents.reused = u64::from(image.table.visible());
        return Ok(image);
    }
    let folder = pull.args.into.join(FOLDER);
    fs::create_dir_all(&folder)
        .map_err(Error::file(format!("cannot make {}", folder.display())))?;
    if resolved.config.size > MAX_CONFIG {
        return Err(Error::Said(format!(
            "the config of {} is too large",
            pull.args.image
        )));
    }
    let blobs = || resolved.layers.iter().chain([&resolved.config]);
    let total = blobs().map(|blob| blob.size).sum();
    pull.view.begin(&pull.args.image.to_string(), total);
    let path = |blob: &Descriptor| folder.join(blob.digest.hex());
    for blob in blobs() {
        let mut progress = |bytes| pull.view.more(bytes);
        plain::blob(session, &pull.args.image, blob, &path(blob), &mut progress)?;
    }
    let config = read(&path(&resolved.config))?;
    let parsed: Config = serde_json::from_slice(&config)
        .map_err(|error| Error::Said(format!("the config of {}: {error}", pull.args.image)))?;
    let diff_ids = parsed.rootfs.diff_ids;
    if diff_ids.len() != resolved.layers.len() {
        let image = &pull.args.image;
        return Err(Error::Said(format!(
            "{image} has not as many layers as its config says"
        )));
    }
    let mut readers = Vec::new();
    pull.view
        .begin(&format!("{} is indexed", pull.args.image), total);
    for (blob, diff_id) in resolved.layers.iter().zip(&diff_ids) {
        let file = received(&path(blob))?;
        let request = layer::Request {
            media_type: blob.media_type.as_str(),
            diff_id,
            limits: Limits::default(),
        };
        let index = path(blob).with_extension("index");
        let index = layer::index(&file, &request, &mut Unhurried, &index)?;
        pull.view.more(blob.size);
        readers.push(index.reader(Arc::new(file)));
    }
    let indexes: Vec<&LayerIndex> = readers.iter().map(layer::LayerReader::index).collect();
    let table = Table::build(&indexes)?;
    let header = Header {
        layers: pull.layers,
        media_type: resolved.manifest.media_type.to_string(),
        manifest: resolved.manifest.bytes.to_vec(),
        config,
        haves: Vec::new(),
        table: WireTable {
            base: None,
            digest: *FileDigest::of(table.bytes()).as_bytes(),
            len: u32::try_from(table.bytes().len()).unwrap_or(u32::MAX),
            coded: table::encode(&table, None, TABLE_LEVEL)?,
        },
        frames: Frames::encode([], &Nothing)?,
        records: 0,
    };
    drop(table);
    let (prelude, body) = header.encode(TABLE_LEVEL)?;
    let apply = pull.store.begin(Begin {
        name: &format!("layers of {} {}", resolved.digest, pull.layers),
        ask: &Ask::default(),
        etag: "\"layers\"",
        prelude: &prelude,
        body: &body,
        header,
        proven: true,
    })?;
    let image = loop {
        match apply.finish()? {
            Outcome::Complete(whole) => break whole.recorded()?,
            Outcome::Need(contents) => {
                let mut need: HashMap<FileDigest, u64> = contents.into_iter().collect();
                pull.view.begin(
                    &format!("{} is unpacked", pull.args.image),
                    need.values().sum(),
                );
                for reader in &readers {
                    let skeleton = reader.index().skeleton();
                    // In the order of the tar: each byte is inflated once.
                    for file in std::iter::once(Ok(skeleton)).chain(reader.index().files()) {
                        let (content, _) = file?;
                        if let Some(size) = need.remove(&content) {
                            take(pull, &apply, reader, &content, size)?;
                        }
                    }
                }
                if !need.is_empty() {
                    return Err(Error::Said(
                        "the layers lack files of their own index".to_owned(),
                    ));
                }
            }
        }
    };
    report.contents = Counts::of(&apply.counts());
    for blob in blobs() {
        // What stays is found, and removed, by the next pull of it.
        let _ = fs::remove_file(path(blob));
        let _ = fs::remove_file(path(blob).with_extension("index"));
    }
    let _ = fs::remove_dir(&folder);
    Ok(image)
}

fn take(
    pull: &Pull<'_>,
    apply: &pierhead_worker::store::Apply,
    reader: &layer::LayerReader,
    content: &FileDigest,
    size: u64,
) -> Result<(), Error> {
    let mut receive = apply.receive(content)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let len = usize::try_from(size - at).unwrap_or(usize::MAX).min(PIECE);
        reader
            .read_at(content, at, &mut piece[..len])
            .map_err(Error::file(format!("cannot read {content} in its layer")))?;
        receive.write(&piece[..len])?;
        at += u64::try_from(len).unwrap_or(u64::MAX);
        pull.view.more(u64::try_from(len).unwrap_or(u64::MAX));
    }
    Ok(receive.commit()?)
}

/// A frame list without frames asks for no size.
struct Nothing;

impl Sizes for Nothing {
    fn wanted(&self, _: u32) -> Option<u64> {
        None
    }

    fn had(&self, _: u16, _: u32) -> Option<u64> {
        None
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

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = pierhead_remote::open_file(path)
        .and_then(|file| file.take(MAX_CONFIG).read_to_end(&mut bytes));
    read.map_err(Error::file(format!("cannot read {}", path.display())))?;
    Ok(bytes)
}

/// A layer as it was received.
fn received(path: &Path) -> Result<FileBlob, Error> {
    let opened = pierhead_remote::open_file(path).and_then(FileBlob::new);
    opened.map_err(Error::file(format!("cannot read {}", path.display())))
}
