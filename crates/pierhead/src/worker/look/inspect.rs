//! `pierhead inspect`.

use std::collections::HashSet;
use std::io::{self, Write as _};

use serde::Serialize;

use super::seen::{Place, paths, visible};
use crate::cli::worker::InspectArgs;
use crate::config::human_bytes;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::worker::Error;

/// Files that come first, as many as are shown.
const HOT: usize = 20;

/// The object of `--json`.
#[derive(Serialize)]
struct Report {
    image: String,
    digest: String,
    entries: u32,
    /// Different contents of the merged tree.
    contents: u32,
    /// Their bytes.
    bytes: u64,
    /// As a registry serves them.
    bytes_compressed: u64,
    layers: Vec<Layer>,
    shared: Vec<Shared>,
    hot: Vec<String>,
}

#[derive(Serialize)]
struct Layer {
    digest: String,
    diff_id: String,
    media_type: String,
    bytes_compressed: u64,
    files: usize,
    bytes: u64,
}

/// What another image of the store has in common with this one.
#[derive(Serialize)]
struct Shared {
    image: String,
    contents: u64,
    bytes: u64,
}

/// Runs it.
pub(crate) fn run(args: &InspectArgs, environment: &Environment) -> Result<(), Failure> {
    let place = Place::new(&args.look, environment)?;
    let seen = place.see(&args.image)?;
    let table = &seen.table;
    let mut layers = Vec::new();
    for (blob, layer) in seen.layers.iter().zip(table.layers()) {
        let layer = layer.map_err(Error::from)?;
        let sizes = layer
            .files
            .iter()
            .filter_map(|number| table.contents().size(*number));
        layers.push(Layer {
            digest: blob.digest.to_string(),
            diff_id: layer.diff_id.to_string(),
            media_type: blob.media_type.to_string(),
            bytes_compressed: blob.size,
            files: layer.files.len(),
            bytes: sizes.sum(),
        });
    }
    let own: HashSet<_> = visible(table).map(|(content, _)| content).collect();
    let mut shared = Vec::new();
    if let Some((store, pulled)) = &place.store {
        for held in store.images().map_err(Error::from)? {
            if held.manifest == seen.digest {
                continue;
            }
            let other = store.image(&held.manifest).map_err(Error::from)?;
            let both = visible(&other.table).filter(|(content, _)| own.contains(content));
            let (mut contents, mut bytes) = (0, 0);
            both.for_each(|(_, size)| (contents, bytes) = (contents + 1, bytes + size));
            let name = pulled.of(&held.manifest);
            shared.push(Shared {
                image: name.unwrap_or_else(|| held.manifest.to_string()),
                contents,
                bytes,
            });
        }
        shared.sort_by_key(|shared| std::cmp::Reverse(shared.bytes));
    }
    let first = &seen.order[..seen.order.len().min(HOT)];
    let report = Report {
        image: seen.name.clone(),
        digest: seen.digest.to_string(),
        entries: table.entries(),
        contents: table.visible(),
        bytes: visible(table).map(|(_, size)| size).sum(),
        bytes_compressed: seen.layers.iter().map(|layer| layer.size).sum(),
        layers,
        shared,
        hot: paths(table, first)?,
    };
    print(&report, args.look.json)?;
    Ok(())
}

fn print(report: &Report, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report)?;
        return out.write_all(b"\n");
    }
    writeln!(out, "image     {}", report.image)?;
    writeln!(out, "digest    {}", report.digest)?;
    let (bytes, compressed) = (
        human_bytes(report.bytes),
        human_bytes(report.bytes_compressed),
    );
    writeln!(
        out,
        "tree      {} entries, {} different contents, {bytes}",
        report.entries, report.contents
    )?;
    writeln!(
        out,
        "layers    {}, {compressed} as they are pulled",
        report.layers.len()
    )?;
    for layer in &report.layers {
        let (packed, plain) = (
            human_bytes(layer.bytes_compressed),
            human_bytes(layer.bytes),
        );
        writeln!(
            out,
            "  {}  {packed:>10}  {:>6} files  {plain:>10}",
            layer.digest, layer.files
        )?;
    }
    if !report.shared.is_empty() {
        writeln!(out, "shared with")?;
    }
    for shared in &report.shared {
        let bytes = human_bytes(shared.bytes);
        writeln!(
            out,
            "  {bytes:>10}  {:>6} contents  {}",
            shared.contents, shared.image
        )?;
    }
    if !report.hot.is_empty() {
        writeln!(out, "first in a bundle")?;
    }
    for path in &report.hot {
        writeln!(out, "  {}", path.escape_debug())?;
    }
    Ok(())
}
