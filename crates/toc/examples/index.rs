//! Measures the CPU time and the peak memory of indexing the layers of an OCI layout: `cargo run
//! --release -p pierhead-toc --example index -- LAYOUT [LEAST_BYTES] [--rebuild]`.
//!
//! With `--rebuild`, the example also rebuilds each tar: from its skeleton (the tar without file
//! contents), and from the file contents, which are read through the checkpoints of the index.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pierhead_oci::Digest;
use pierhead_testkit::layout::{OciLayout, descriptor_digest};
use pierhead_toc::layer::{self, Limits, NoPacing, Request};
use pierhead_toc::{Blob, FileBlob, Source};
use serde_json::Value;

struct Layer {
    media_type: String,
    diff_id: Digest,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let rebuild = arguments.iter().any(|argument| argument == "--rebuild");
    arguments.retain(|argument| !argument.starts_with("--"));
    let [root, rest @ ..] = &arguments[..] else {
        return Err("usage: index LAYOUT [LEAST_BYTES] [--rebuild]".into());
    };
    let layout = OciLayout::new(Path::new(root));
    let least: u64 = rest.first().map_or(Ok(0), |text| text.parse())?;
    let mut layers = BTreeMap::new();
    for entry in &layout.entries()? {
        collect(&layout, entry, &mut layers)?;
    }
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("index");
    let (mut bytes, mut blobs, mut indexes) = (0u64, 0u64, 0u64);
    let mut spent = Duration::ZERO;
    for (digest, layer) in &layers {
        let opened = Arc::new(FileBlob::new(File::open(layout.path(digest))?)?);
        let size = opened.size();
        if size < least {
            continue;
        }
        let request = Request {
            media_type: &layer.media_type,
            diff_id: &layer.diff_id,
            limits: Limits::default(),
        };
        let begin = cpu()?;
        let index = match layer::index(&*opened, &request, &mut NoPacing, &out) {
            Ok(index) => index,
            Err(error) => {
                println!("{digest} {error}");
                continue;
            }
        };
        let took = cpu()?.saturating_sub(begin);
        spent += took;
        bytes += index.size();
        blobs += size;
        let own = fs::metadata(&out)?.len();
        indexes += own;
        println!(
            "{digest} {size} -> {} bytes, {} entries, index {own}, skeleton {}, {:.0} MB/s",
            index.size(),
            index.entry_count(),
            index.skeleton().1,
            rate(index.size(), took),
        );
        if rebuild {
            check(&index, &(opened as Arc<dyn Blob>))?;
        }
    }
    println!(
        "{blobs} bytes of blobs, {bytes} of tar, {indexes} of indexes, {:.1} s, {:.0} MB/s; {}",
        spent.as_secs_f64(),
        rate(bytes, spent),
        fs::read_to_string("/proc/self/status")?
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap_or_default()
    );
    Ok(())
}

fn check(index: &layer::LayerIndex, blob: &Arc<dyn Blob>) -> Result<(), Box<dyn Error>> {
    let begin = cpu()?;
    let reader = index.reader(blob.clone());
    let (content, size) = index.skeleton();
    let mut skeleton = vec![0; usize::try_from(size)?];
    reader.read_at(&content, 0, &mut skeleton)?;
    let digest = layer::rebuild(
        &mut &skeleton[..],
        &mut index.files(),
        &reader,
        index.size(),
        &mut io::sink(),
    )?;
    if digest != index.diff_id() {
        return Err("the rebuilt tar has another digest".into());
    }
    println!(
        "    made again at {:.0} MB/s",
        rate(index.size(), cpu()?.saturating_sub(begin))
    );
    Ok(())
}

/// Returns the CPU time of this thread since its start.
fn cpu() -> Result<Duration, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split(' ').next().unwrap_or_default().parse()?;
    Ok(Duration::from_nanos(nanos))
}

fn rate(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64()
}

/// All layers of the index or manifest of a descriptor, by digest. Skips blobs that the layout
/// lacks.
fn collect(
    layout: &OciLayout,
    descriptor: &Value,
    layers: &mut BTreeMap<Digest, Layer>,
) -> Result<(), Box<dyn Error>> {
    let has = |descriptor: &Value| {
        descriptor_digest(descriptor).is_ok_and(|digest| layout.path(digest).exists())
    };
    if !has(descriptor) {
        return Ok(());
    }
    let document = layout.document(descriptor)?;
    for child in document["manifests"].as_array().into_iter().flatten() {
        collect(layout, child, layers)?;
    }
    let list = document["layers"].as_array();
    let Some(list) = list.filter(|_| has(&document["config"])) else {
        return Ok(());
    };
    let config = layout.document(&document["config"])?;
    let ids = config["rootfs"]["diff_ids"].as_array();
    for (layer, diff_id) in list.iter().zip(ids.into_iter().flatten()) {
        if has(layer) {
            let media_type = layer["mediaType"].as_str().unwrap_or_default().to_owned();
            let diff_id = diff_id.as_str().unwrap_or_default().parse()?;
            let layer_of_digest = Layer {
                media_type,
                diff_id,
            };
            layers.insert(descriptor_digest(layer)?, layer_of_digest);
        }
    }
    Ok(())
}
