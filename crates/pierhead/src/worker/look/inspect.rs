//! `pierhead inspect`.

use std::collections::HashSet;
use std::io::{self, Write as _};

use pierhead_bundle::api::{OrderSource, StartOrder};
use pierhead_oci::units::human_bytes;
use serde::Serialize;

use super::seen::{Place, visible};
use crate::cli::worker::InspectArgs;
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
    /// The first files of the start order.
    hot: Vec<String>,
    /// In full, where a server was asked that tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_order: Option<StartOrder>,
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
    let start_order = place.start_order(&seen)?;
    let files = start_order.iter().flat_map(|order| &order.files);
    let report = Report {
        image: seen.image.to_string(),
        digest: seen.digest.to_string(),
        entries: table.entries(),
        contents: table.visible(),
        bytes: visible(table).map(|(_, size)| size).sum(),
        bytes_compressed: seen.layers.iter().map(|layer| layer.size).sum(),
        layers,
        shared,
        hot: files.take(HOT).cloned().collect(),
        start_order,
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
    if let Some(order) = &report.start_order {
        write!(out, "{}", described(order))?;
    }
    for path in &report.hot {
        writeln!(out, "  {}", path.escape_debug())?;
    }
    Ok(())
}

/// The lines above the files of a start order.
fn described(order: &StartOrder) -> String {
    let source = match &order.source {
        OrderSource::Trace { image, clients } => {
            let by = match clients {
                Some(1) => " by 1 client".to_owned(),
                Some(clients) => format!(" by {clients} clients"),
                None => String::new(),
            };
            format!("starts of {image} recorded{by} (pierhead trace)")
        }
        OrderSource::Config => {
            "the command of the config, its interpreters and libraries".to_owned()
        }
        _ => "a source that this version does not know".to_owned(),
    };
    let applied = match order.applied {
        true => "bundles carry these files first",
        false => "bundles do not have this order yet",
    };
    let compressed = match order.layers_waiting {
        0 => "all layers are optimized".to_owned(),
        waiting => format!("{waiting} of {} layers wait to be optimized", order.layers),
    };
    format!(
        "start order  {} files\n  source     {source}\n  prepared   {applied}; {compressed}\n",
        order.files.len()
    )
}

#[cfg(test)]
mod tests {
    use pierhead_oci::{Algorithm, Digest};

    use super::*;

    #[test]
    fn the_source_and_the_preparation_of_an_order_are_told() {
        let image = Digest::of(Algorithm::Sha256, b"image");
        let mut order = StartOrder {
            source: OrderSource::Trace {
                image,
                clients: Some(2),
            },
            files: vec!["bin/sh".to_owned(), "etc/passwd".to_owned()],
            applied: false,
            layers: 3,
            layers_waiting: 1,
        };
        let expected = format!(
            "start order  2 files\n  source     starts of {image} recorded by 2 clients (pierhead trace)\n  \
             prepared   bundles do not have this order yet; 1 of 3 layers wait to be optimized\n"
        );
        assert_eq!(described(&order), expected);
        (order.applied, order.layers_waiting) = (true, 0);
        order.source = OrderSource::Config;
        let told = described(&order);
        assert!(
            told.contains("carry these files first; all layers are optimized"),
            "{told}"
        );
        assert!(told.contains("the command of the config"), "{told}");
    }
}
