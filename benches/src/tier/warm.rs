//! What a warm blob costs that leaves from the fast tier, beside nginx with sendfile; and how fast one is written through it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use pierhead_cache::staging::Placement;
use pierhead_cache::tier::{DiskTier, Hint, Options, PmemTier, Tier, Trailer, WriteBehind};
use pierhead_oci::{Algorithm, Digest};
use pierhead_pmem::{Config, Log, Medium, Region};

use crate::client;
use crate::image::Image;
use crate::target::{Kind, Running, Target};
use crate::upstream::Upstream;

const BLOB: u64 = 256 << 20;
/// Of the region: the blob, its trailer, and what a log needs.
const REGION: u64 = 640 << 20;
/// Downloads of one measurement, and how often all take their turns: the least counts.
const GETS: usize = 8;
const ROUNDS: usize = 5;
/// Blobs that are written one after the other into one region: more than it has room for.
const LAPS: u8 = 5;
/// Bytes that are written at once, as by a fill.
const PIECE: usize = 256 << 10;

/// Warm downloads from regions in two places and from nginx, in turns; prints the table.
pub(super) fn serve(pierhead: &Path, places: [(&str, &Path); 2]) -> Result<()> {
    let work = tempfile::tempdir()?;
    let image = Image::generate(&work.path().join("image"), BLOB)?;
    let upstream = Upstream::start(image.clone(), 1_000_000_000)?;
    let mut servers: Vec<(String, Running)> = Vec::new();
    match Target::find(Kind::Nginx, pierhead)? {
        Some(nginx) => {
            let running = nginx.start(&upstream, &image, None)?;
            servers.push((Kind::Nginx.to_string(), running));
        }
        None => eprintln!("nginx is not installed: left out"),
    }
    let mut regions = Vec::new();
    if let Some(pierhead) = Target::find(Kind::Pierhead, pierhead)? {
        for (name, place) in places {
            let region = tempfile::tempdir_in(place)?;
            let settings = format!(
                "[tier]\nkind = \"file\"\npath = \"{}\"\nsize = \"{REGION}\"\nrules = \"value=1\"\n",
                region.path().join("tier").display()
            );
            let running = pierhead.start_with(&upstream, &image, None, &settings)?;
            servers.push((format!("pierhead, tier {name}"), running));
            regions.push(region);
        }
    }
    for (_, running) in &servers {
        client::get(&running.dial, &image.manifest_path())?;
        client::get(&running.dial, &image.blob_path())?;
    }
    let mut least = vec![f64::INFINITY; servers.len()];
    for _ in 0..ROUNDS {
        for ((_, running), least) in servers.iter().zip(&mut least) {
            let before = running.process.cpu_seconds()?;
            let got = client::at_once(&running.dial, &image.blob_path(), 1, GETS)?;
            let bytes: u64 = got.downloads.iter().map(|download| download.bytes).sum();
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let cost = (running.process.cpu_seconds()? - before) / (bytes as f64 / 1e9);
            *least = least.min(cost);
        }
    }
    println!(
        "\n| a warm blob of {} MiB | CPU-s/GB | × the first |",
        BLOB >> 20
    );
    println!("|{}", "---|".repeat(3));
    for ((name, _), cost) in servers.iter().zip(&least) {
        println!("| {name} | {cost:.3} | {:.2} |", cost / least[0]);
    }
    Ok(())
}

/// Writes a blob into new regions, alone and as a fill of both tiers; prints the table. Nothing is hashed for either, nothing is drained
/// meanwhile, and no model is in between.
pub(super) fn write(folder: &Path) -> Result<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let piece = vec![0x5a; PIECE];
    let (mut alone, mut through) = ([f64::INFINITY; 2], [f64::INFINITY; 2]);
    for round in 0..ROUNDS {
        let config = Config {
            path: folder.path().join(format!("alone{round}")),
            size: REGION,
        };
        let region = Region::open(&config)?;
        // The first time each page is given by the system, the second it is there.
        for least in &mut alone {
            let begun = Instant::now();
            for offset in (0..BLOB).step_by(PIECE) {
                region.write(offset, &piece)?;
            }
            region.flush(0, BLOB)?;
            region.fence()?;
            *least = least.min(begun.elapsed().as_secs_f64());
        }
        drop(region);
        std::fs::remove_file(&config.path)?;

        let config = Config {
            path: folder.path().join(format!("through{round}")),
            ..config
        };
        let (log, _) = Log::open(Region::open(&config)?, pierhead_pmem::Options::default())?;
        let slow = Arc::new(DiskTier::new(&folder.path().join(format!("disk{round}")))?);
        let options = Options {
            unhinted: Placement::Fast,
            drain_rate: 1,
            ..Options::new(REGION)
        };
        let both = WriteBehind::open(Arc::new(PmemTier::new(log, None)), slow, options)?;
        let content: Vec<u8> = piece.repeat(usize::try_from(BLOB)? / PIECE);
        let trailer = Trailer::of(&content, None);
        // The log has written everywhere before it comes back to where it began.
        let mut warming = f64::INFINITY;
        for nth in 0..LAPS {
            let least = match nth {
                0 => &mut through[0],
                it if it + 1 == LAPS => &mut through[1],
                _ => &mut warming,
            };
            let digest = Digest::of(Algorithm::Sha256, &[nth]);
            let hint = Hint {
                placement: Placement::Fast,
                priority: 1.0,
                bytes: BLOB,
            };
            both.hint(digest, hint);
            let begun = Instant::now();
            let mut staged = both.stage(&digest)?;
            for _ in 0..content.len() / PIECE {
                staged.write(&piece)?;
            }
            staged.commit(trailer.clone())?;
            *least = least.min(begun.elapsed().as_secs_f64());
            ensure!(both.holds(&digest), "it went to the disk");
            // Its room is the next one's.
            both.remove(&digest)?;
        }
        both.close();
        drop(both);
        std::fs::remove_file(&config.path)?;
    }
    println!(
        "\n| writing {} MiB | medium alone, GB/s | through the tier, GB/s | of it |",
        BLOB >> 20
    );
    println!("|{}", "---|".repeat(4));
    for (what, at) in [("into a new region", 0), ("where was written before", 1)] {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = |seconds: f64| BLOB as f64 / seconds / 1e9;
        println!(
            "| {what} | {:.2} | {:.2} | {:.0} % |",
            rate(alone[at]),
            rate(through[at]),
            100.0 * alone[at] / through[at]
        );
    }
    Ok(())
}
