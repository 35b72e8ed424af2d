//! Writes an image as an OCI layout. Rebuilds the layers of the image, and verifies the diff ID of
//! each layer.
//!
//! The original manifest names compressed blobs, which only the program that compressed them could
//! reproduce. The layout therefore has the original config under a new manifest, whose layers are
//! uncompressed tars. The digests of these tars are the diff IDs. The layout also contains the
//! original manifest as a blob, which an annotation of the new manifest names. If the original
//! layers are uncompressed, the layout keeps the original manifest and so the digest of the image.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use pierhead_atomic_file::Options;
use pierhead_oci::{Algorithm, Body, Digest, Manifest};
use serde_json::{Map, Value, json};

use crate::Error;
use crate::store::Image;
use pierhead_toc::image_toc::TocLayer;
use pierhead_toc::layer::rebuild;
use pierhead_toc::{FileDigest, Source};

/// The annotation that names the digest of the original manifest.
pub const ORIGINAL_MANIFEST: &str = "dev.pierhead.manifest.original";

/// Media types of the written documents.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Name and contents of the file that marks a folder as an OCI layout.
const MARKER: (&str, &[u8]) = ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The names of an image in an export. An image without names can be found by its digest only.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageLabels<'a> {
    /// The full name of the image, such as `docker.io/library/redis:7`.
    pub full: Option<&'a str>,
    /// The name inside a layout, such as `7`.
    pub short: Option<&'a str>,
}

/// A layer that was rebuilt and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuiltLayer {
    /// SHA-256 of the layer's tar.
    pub diff_id: FileDigest,
    /// Number of bytes of the layer's tar.
    pub size: u64,
}

/// The small JSON files of an OCI layout.
pub(super) struct Documents {
    /// The files, each with its path and its bytes.
    pub(super) files: Vec<(String, Vec<u8>)>,
    /// Digest of the manifest in `index.json`.
    pub(super) digest: Digest,
}

/// Writes a layout into a folder that is missing, empty or already a layout. If the folder already
/// is a layout, replaces its index.
///
/// Calls `progress` with the bytes written since the last call. Returns the digest of the manifest
/// in `index.json`.
///
/// # Errors
/// `Missing` if the image was pulled without its layers, or if the store lacks a file content.
/// `Digest` if a rebuilt layer does not match its diff ID. Errors of the file system.
pub fn layout(
    image: &Image,
    source: &dyn Source,
    names: ImageLabels<'_>,
    folder: &Path,
    progress: &dyn Fn(u64),
) -> Result<Digest, Error> {
    let failed = |path: &Path| {
        let doing = format!("write {}", path.display());
        move |error| Error::io(doing, error)
    };
    let blobs = folder.join("blobs/sha256");
    let (marker, text) = MARKER;
    // A killed export may leave only a temporary marker file. No other program creates files of
    // this name.
    let is_marker = |name: &std::ffi::OsStr| {
        let name = name.to_string_lossy();
        name.starts_with(marker) && (name == marker || name.ends_with(pierhead_atomic_file::SUFFIX))
    };
    let mut found = fs::read_dir(folder).into_iter().flatten().flatten();
    let foreign = found.any(|entry| !is_marker(&entry.file_name()));
    if foreign && !folder.join(marker).exists() {
        let error = io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the folder holds other files; name an empty folder or an OCI layout",
        );
        return Err(failed(folder)(error));
    }
    let all = layers_of(image)?;
    // The marker file is written first, so that an interrupted export can run again.
    fs::create_dir_all(folder).map_err(failed(folder))?;
    write_file(&folder.join(marker), text)?;
    fs::create_dir_all(&blobs).map_err(failed(&blobs))?;
    let mut layers = Vec::new();
    for layer in all {
        let path = blobs.join(layer.diff_id.hex());
        let file = Options::new().create(&path).map_err(failed(&path))?;
        let mut out = BufWriter::with_capacity(1 << 18, file.file());
        layers.push(write_layer(image, &layer, source, &mut out, progress)?);
        out.flush().map_err(failed(&path))?;
        drop(out);
        file.commit_name().map_err(failed(&path))?;
    }
    pierhead_atomic_file::sync_folder(&blobs).map_err(failed(&blobs))?;
    let documents = documents(image, &layers, names)?;
    // The index is written last, because readers find the image by the index.
    for (name, bytes) in &documents.files {
        write_file(&folder.join(name), bytes)?;
    }
    Ok(documents.digest)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    pierhead_atomic_file::write(path, bytes)
        .map_err(|error| Error::io(format!("write {}", path.display()), error))
}

/// Returns the layers of an image, if the store has all file contents of these layers.
///
/// # Errors
/// `Missing` if the image was pulled without its layers.
pub(super) fn layers_of(image: &Image) -> Result<Vec<TocLayer>, Error> {
    if !image.layers {
        let what = format!("the layer data of {}", image.digest());
        return Err(Error::Missing(what));
    }
    Ok(image.toc.layers().collect::<Result<_, _>>()?)
}

/// Writes the tar of one layer, and at the end verifies the digest of the tar.
pub(super) fn write_layer(
    image: &Image,
    layer: &TocLayer,
    source: &dyn Source,
    out: &mut dyn Write,
    progress: &dyn Fn(u64),
) -> Result<RebuiltLayer, Error> {
    let contents = image.toc.contents();
    let named = |number: u32| {
        let found = contents.content(number).zip(contents.size(number));
        found.ok_or_else(|| {
            pierhead_toc::Error::malformed("TOC", "it names a content that it does not list")
        })
    };
    let (skeleton, size) = named(layer.skeleton)?;
    let mut limit = size.saturating_mul(512).saturating_add(SLACK);
    for number in &layer.files {
        limit = limit.saturating_add(named(*number)?.1);
    }
    let reader = Reader {
        source,
        content: skeleton,
        at: 0,
        left: size,
    };
    // The skeleton (the tar without file contents) has a gap for each regular file that is not
    // empty.
    let files = layer.files.iter().map(|number| named(*number));
    let mut files = files.filter(|file| !matches!(file, Ok((_, 0))));
    let mut out = Counted {
        out,
        progress,
        bytes: 0,
    };
    let digest = rebuild(
        &mut BufReader::with_capacity(1 << 16, reader),
        &mut files,
        source,
        limit,
        &mut out,
    )?;
    if digest != Digest::from(layer.diff_id) {
        return Err(Error::Digest {
            what: "a rebuilt layer".into(),
            expected: layer.diff_id.to_string(),
            found: digest.to_string(),
        });
    }
    Ok(RebuiltLayer {
        diff_id: layer.diff_id,
        size: out.bytes,
    })
}

/// Maximum number of padding bytes at the end of a tar, which a skeleton encodes in few bytes.
/// Every other byte of a skeleton adds at most one tar block.
const SLACK: u64 = 16 << 20;

/// Returns all files of a layout except the layers. `index.json` is the last one.
pub(super) fn documents(
    image: &Image,
    layers: &[RebuiltLayer],
    names: ImageLabels<'_>,
) -> Result<Documents, Error> {
    let original = image.digest();
    let config = Digest::of(Algorithm::Sha256, &image.config);
    let (media_type, manifest) = match is_original_manifest(image, layers) {
        true => (&*image.media_type, image.manifest.clone()),
        false => (MANIFEST, manifest(image, &config, layers)?),
    };
    let digest = Digest::of(Algorithm::Sha256, &manifest);
    let mut annotations = Map::new();
    let named = [
        (
            "org.opencontainers.image.ref.name",
            names.short.map(str::to_owned),
        ),
        ("io.containerd.image.name", names.full.map(str::to_owned)),
        (
            ORIGINAL_MANIFEST,
            (digest != original).then(|| original.to_string()),
        ),
    ];
    for (key, value) in named {
        if let Some(value) = value {
            annotations.insert(key.to_owned(), value.into());
        }
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": media_type,
            "digest": digest.to_string(),
            "size": manifest.len(),
            "annotations": annotations,
        }],
    });
    let blob = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
    let mut files = vec![
        (blob(&config), image.config.clone()),
        (blob(&digest), manifest),
    ];
    if digest != original {
        files.push((blob(&original), image.manifest.clone()));
    }
    files.push((MARKER.0.into(), MARKER.1.to_vec()));
    files.push(("index.json".into(), to_vec(&index)?));
    Ok(Documents { files, digest })
}

/// Whether the layers that the original manifest lists are uncompressed, and so equal the written
/// tars.
fn is_original_manifest(image: &Image, layers: &[RebuiltLayer]) -> bool {
    let parsed = Manifest::parse(image.manifest.clone().into(), Some(&image.media_type));
    let Ok(Body::Image { layers: named, .. }) = parsed.map(|manifest| manifest.body) else {
        return false;
    };
    let named = named.iter().map(|layer| (layer.digest, layer.size));
    named.eq(layers
        .iter()
        .map(|layer| (Digest::from(layer.diff_id), layer.size)))
}

fn manifest(image: &Image, config: &Digest, layers: &[RebuiltLayer]) -> Result<Vec<u8>, Error> {
    let original: Value = serde_json::from_slice(&image.manifest)
        .map_err(|error| Error::malformed("manifest", error.to_string()))?;
    let mut annotations = match original.get("annotations") {
        Some(Value::Object(annotations)) => annotations.clone(),
        _ => Map::new(),
    };
    annotations.insert(ORIGINAL_MANIFEST.into(), image.digest().to_string().into());
    let layers: Vec<Value> = layers
        .iter()
        .map(|layer| json!({"mediaType": LAYER, "digest": layer.diff_id.to_string(), "size": layer.size}))
        .collect();
    to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": config.to_string(), "size": image.config.len()},
        "layers": layers,
        "annotations": annotations,
    }))
}

pub(super) fn to_vec(value: &Value) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| Error::io("write JSON", error.into()))
}

/// Removes repeated layers: an image may have the same layer twice.
pub(super) fn distinct(layers: Vec<TocLayer>) -> Vec<TocLayer> {
    let mut seen = BTreeSet::new();
    layers
        .into_iter()
        .filter(|layer| seen.insert(layer.diff_id))
        .collect()
}

/// Reads a file content from its start to its end.
struct Reader<'a> {
    source: &'a dyn Source,
    content: FileDigest,
    at: u64,
    left: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        self.source
            .read_at(&self.content, self.at, &mut buffer[..len])?;
        let taken = u64::try_from(len).unwrap_or(0);
        self.at += taken;
        self.left -= taken;
        Ok(len)
    }
}

/// A writer that reports the size of each written piece to `progress`.
struct Counted<'a> {
    out: &'a mut dyn Write,
    progress: &'a dyn Fn(u64),
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.out.write(bytes)?;
        let written = u64::try_from(len).unwrap_or(0);
        self.bytes += written;
        (self.progress)(written);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
