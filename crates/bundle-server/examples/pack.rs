//! Packs an image of an OCI layout, and prints the CPU time, the memory and the size of the packs,
//! for the measurements in `docs/formats/disk.md`.
//!
//! `cargo run --release -p pierhead-bundle-server --example pack -- LAYOUT REF FOLDER [LEVEL [SMALL GROUP]]`:
//! SMALL and GROUP are sizes in KiB. The program writes an index of each layer (which the next run
//! uses) and the packs (which each run makes again) to FOLDER.

use std::collections::HashSet;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pierhead_bundle_server::pack::{
    Contents, MemoryFrameIndex, PackConfig, PackItem, PackSettings, Packs, pack,
};
use pierhead_testkit::layout::OciLayout;
use pierhead_toc::layer::{self, LayerIndex, Limits, NoPacing, Request};
use pierhead_toc::{Blob, FileBlob, FileDigest, Kind, Source};

type Done<T> = Result<T, Box<dyn Error>>;

/// A source without any file contents, so that reads are served from packs only.
struct Nothing;

impl Source for Nothing {
    fn size(&self, _: &FileDigest) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn read_at(&self, _: &FileDigest, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn main() -> Done<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [layout, reference, folder, rest @ ..] = &args[..] else {
        return Err("LAYOUT REF FOLDER [LEVEL [SMALL GROUP]]".into());
    };
    let (layout, folder) = (Path::new(layout), Path::new(folder));
    let mut settings = PackSettings::default();
    if let Some(level) = rest.first() {
        settings.level = level.parse()?;
    }
    if let [_, small, group] = rest {
        (settings.small, settings.group) =
            (small.parse::<u64>()? << 10, group.parse::<u64>()? << 10);
    }
    fs::create_dir_all(folder)?;
    let layers = layers(layout, reference, folder)?;
    let compressed: u64 = layers.iter().map(|(_, blob)| blob.size()).sum();
    let packs_folder = folder.join("packs");
    let _ = fs::remove_dir_all(&packs_folder);
    let packs = Arc::new(Packs::open(PackConfig::new(&packs_folder, 64 << 30))?);
    let known = Arc::new(MemoryFrameIndex::default());

    let (began, cpu, before) = (Instant::now(), cpu_seconds()?, peak()?);
    let (mut seen, mut raw, mut packed, mut frames) = (HashSet::new(), 0, 0, Vec::new());
    for (index, blob) in &layers {
        let items = items(index, &mut seen)?;
        let reader = index.reader(blob.clone());
        let done = pack(&items, &reader, &packs, &*known, &settings, &mut |_| Ok(()))?;
        (raw, packed) = (raw + done.raw, packed + done.packed);
        frames.extend(done.frames);
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{reference}: level {}, small {} KiB, groups of {} KiB: {:.1} MiB raw, {:.1} MiB packed, {:.1} MiB of layers, \
         ratio {:.4}, {} frames; {cpu:.1} CPU-s, {seconds:.1} s, {:.1} MiB/s, peak {before} to {} KiB",
        settings.level,
        settings.small >> 10,
        settings.group >> 10,
        mib(raw),
        mib(packed),
        mib(compressed),
        packed as f64 / compressed as f64,
        frames.len(),
        mib(raw) / cpu,
        peak()?,
    );

    let (began, mut total) = (Instant::now(), 0);
    for location in &frames {
        packs.check(location)?;
        total += u64::from(location.len);
    }
    println!(
        "checked at {:.0} MiB/s",
        mib(total) / began.elapsed().as_secs_f64()
    );
    let source = Contents::new(packs, known, Arc::new(Nothing), 16 << 20);
    let began = Instant::now();
    let mut read = 0;
    let mut buf = vec![0; 1 << 20];
    for content in seen {
        let size = source.size(&content)?.ok_or("a content is not packed")?;
        for at in (0..size).step_by(buf.len()) {
            let len = usize::try_from(size - at)?.min(buf.len());
            source.read_at(&content, at, &mut buf[..len])?;
            read += len as u64;
        }
    }
    println!(
        "read in no order at {:.0} MiB/s",
        mib(read) / began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Indexes the layers of an image, and returns one index for each layer.
fn layers(layout: &Path, reference: &str, folder: &Path) -> Done<Vec<(LayerIndex, Arc<dyn Blob>)>> {
    let mut layers = Vec::new();
    for layer in OciLayout::new(layout).layers(reference, "amd64")? {
        let blob: Arc<dyn Blob> = Arc::new(FileBlob::new(File::open(&layer.path)?)?);
        let diff_id = layer.diff_id;
        let out = folder.join(diff_id.hex());
        let index = match LayerIndex::open(&out) {
            Ok(index) => index,
            Err(_) => {
                let request = Request {
                    media_type: &layer.media_type,
                    diff_id: &diff_id,
                    limits: Limits::default(),
                };
                layer::index(&*blob, &request, &mut NoPacing, &out)?
            }
        };
        layers.push((index, blob));
    }
    Ok(layers)
}

fn items(index: &LayerIndex, seen: &mut HashSet<FileDigest>) -> Done<Vec<PackItem>> {
    let mut items = Vec::new();
    for entry in index.entries() {
        let entry = entry?;
        if let Kind::File { content, size } = entry.kind
            && size > 0
            && seen.insert(content)
        {
            items.push(PackItem::file(content, size, &entry.path));
        }
    }
    let (skeleton, size) = index.skeleton();
    if seen.insert(skeleton) {
        items.push(PackItem::in_own_frame(skeleton, size));
    }
    Ok(items)
}

/// Returns the CPU time of this process, user and system, in seconds.
fn cpu_seconds() -> Done<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// Returns the peak of this process's resident memory (`VmHWM`) in KiB.
fn peak() -> Done<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .ok_or("no peak")?;
    Ok(kib.trim().parse()?)
}
