//! Benchmark of transfer sizes: the bytes of a bundle, compared with the compressed layers of the
//! image and with ideal deltas.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use super::{Bench, Pair};
use crate::statistics::{mega, ratio};

/// Target values of bundle sizes, for fresh pulls and updates.
const MARKS: &str = "marks: fresh 0.80 × compressed; updates of up to 125 MB 1.15 × ideal in all and 1.3 × each; larger \
                     ones 0.6 × whole-file delta in all; none over 1.02 × whole-file delta";
/// Maximum compressed size of a small image in bytes.
const MAX_SMALL_IMAGE: u64 = 125_000_000;

#[derive(Args)]
pub(crate) struct Options {
    /// JSON files with the sizes of ideal deltas: `{"pairs": [{"image", "old", "new", "delta",
    /// "bindelta"}]}`.
    #[arg(long, value_delimiter = ',')]
    ideal: Vec<PathBuf>,
    /// Also measure the first request for an update from one version to another, before the server
    /// has prepared patches between the versions.
    #[arg(long)]
    unprepared: bool,
    /// Do not measure fresh pulls.
    #[arg(long)]
    updates: bool,
}

/// Sizes of the ideal deltas of one pair in bytes.
struct Ideal {
    /// All changed files, each compressed separately.
    whole: u64,
    /// All changed files, each as a patch of the old file at the same path.
    patched: u64,
}

#[derive(Default)]
struct Sum {
    bytes: u64,
    ideal: u64,
}

pub(crate) fn run(bench: &Bench, options: &Options) -> Result<()> {
    let ideal = ideal(&options.ideal)?;
    let server = bench.server()?;
    println!("{MARKS}\n");
    if !options.updates {
        println!("| fresh | compressed MB | bundle MB | ratio |\n|---|--:|--:|--:|");
        for name in bench.names() {
            let image = bench.layout.image(name)?;
            let bytes = server.warm(name, &[])?.bytes;
            let compressed = image.compressed();
            println!(
                "| {name} | {:.2} | {:.2} | {:.3} |",
                mega(compressed),
                mega(bytes),
                ratio(bytes, compressed)
            );
        }
    }
    println!(
        "\n| update | unprepared MB | prepared MB | whole-file delta MB | ideal MB | by whole-file | by ideal | CPU-s |\n|---|--:|--:|--:|--:|--:|--:|--:|"
    );
    let (mut small, mut large) = (Sum::default(), Sum::default());
    for Pair { old, new } in bench.pairs() {
        let base_images = [bench.layout.image(&old)?.manifest];
        let compressed = bench.layout.image(&new)?.compressed();
        server.warm(&old, &[])?;
        // Lets the server index and pack the image before the measurement, which then includes only
        // the work for the pair of versions.
        server.bundle(&new, &[])?;
        let unprepared = match options.unprepared {
            true => format!("{:.2}", mega(server.bundle(&new, &base_images)?.bytes)),
            false => String::new(),
        };
        server.settle()?;
        let before = server.process.cpu_seconds()?;
        let bytes = server.warm(&new, &base_images)?.bytes;
        let cpu = server.process.cpu_seconds()? - before;
        let columns = match ideal.get(&(old.clone(), new.clone())) {
            None => "| | | |".to_owned(),
            Some(ideal) => {
                let (sum, against) = match compressed {
                    ..=MAX_SMALL_IMAGE => (&mut small, ideal.patched),
                    _ => (&mut large, ideal.whole),
                };
                sum.bytes += bytes;
                sum.ideal += against;
                format!(
                    "{:.2} | {:.2} | {:.3} | {:.3}",
                    mega(ideal.whole),
                    mega(ideal.patched),
                    ratio(bytes, ideal.whole),
                    ratio(bytes, ideal.patched)
                )
            }
        };
        println!(
            "| {old} → {new} | {unprepared} | {:.2} | {columns} | {cpu:.1} |",
            mega(bytes)
        );
    }
    for (what, sum) in [("small, by ideal", small), ("large, by whole-file", large)] {
        if sum.ideal > 0 {
            println!(
                "\n{what}: {:.2} MB of {:.2}: {:.3}",
                mega(sum.bytes),
                mega(sum.ideal),
                ratio(sum.bytes, sum.ideal)
            );
        }
    }
    Ok(())
}

fn ideal(files: &[PathBuf]) -> Result<BTreeMap<(String, String), Ideal>> {
    let mut found = BTreeMap::new();
    for file in files {
        let document: Value = serde_json::from_slice(&fs::read(file)?)?;
        for pair in document["pairs"].as_array().context("no pairs")? {
            let text = |key: &str| pair[key].as_str().with_context(|| key.to_owned());
            let number = |key: &str| pair[key].as_u64().with_context(|| key.to_owned());
            let image = text("image")?;
            found.insert(
                (
                    format!("{image}:{}", text("old")?),
                    format!("{image}:{}", text("new")?),
                ),
                Ideal {
                    whole: number("delta")?,
                    patched: number("bindelta")?,
                },
            );
        }
    }
    Ok(found)
}
