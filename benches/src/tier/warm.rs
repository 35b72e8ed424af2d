//! Benchmark of a blob on the fast cache tier: the CPU time of serving the blob, compared with
//! nginx and sendfile, and the rate of writing the blob.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{
    DiskTier, Hint, MultiTier as _, Options, PmemTier, Tier, Trailer, WriteBack,
};
use pierhead_oci::{Algorithm, Digest};
use pierhead_pmem::{Config, Log, Medium, Region};

use crate::client;
use crate::image::Image;
use crate::target::{Kind, Running, Target};
use crate::upstream::Upstream;

const BLOB: u64 = 256 << 20;
/// Size of the region in bytes: the blob, its trailer, and the log.
const REGION: u64 = 640 << 20;
/// Numbers of concurrent clients, and number of downloads per measurement.
const CLIENTS: [usize; 2] = [1, 8];
const GETS: usize = 8;
/// Number of rounds over all servers. The median is reported, because a round in which client and
/// server share a core costs only half.
const SERVE_ROUNDS: usize = 9;
/// Number of writes of a region, of which the minimum is reported.
const WRITE_ROUNDS: usize = 5;
/// Number of blobs written to one region, more than fit into it.
const LAPS: u8 = 5;
/// Size of one write in bytes, as in a fill.
const PIECE: usize = 256 << 10;

/// Measures downloads from regions, and from files of nginx, in both locations alternately. Prints
/// the table.
pub(super) fn serve(pierhead: &Path, places: [(&str, &Path); 2]) -> Result<()> {
    // Keeps the resources of each server alive.
    let (mut folders, mut upstreams) = (Vec::new(), Vec::new());
    let mut servers: Vec<(String, Running, Image)> = Vec::new();
    let nginx = Target::find(Kind::Nginx, pierhead)?;
    if nginx.is_none() {
        eprintln!("nginx is not installed: left out");
    }
    let pierhead = Target::find(Kind::Pierhead, pierhead)?;
    for (name, place) in places {
        let folder = tempfile::tempdir_in(place)?;
        let image = Image::generate(&folder.path().join("image"), BLOB)?;
        let upstream = Upstream::start(image.clone(), 1_000_000_000)?;
        if let Some(nginx) = &nginx {
            let running = nginx.start(&upstream, &image, None)?;
            servers.push((
                format!("nginx with sendfile, file {name}"),
                running,
                image.clone(),
            ));
        }
        if let Some(pierhead) = &pierhead {
            let settings = format!(
                "[tier]\nkind = \"file\"\npath = \"{}\"\nsize = \"{REGION}B\"\nplacement = \"value\"\n",
                folder.path().join("tier").display()
            );
            let running = pierhead.start_with(&upstream, &image, None, &settings)?;
            servers.push((format!("pierhead, tier {name}"), running, image));
        }
        folders.push(folder);
        upstreams.push(upstream);
    }
    for (_, running, image) in &servers {
        client::get(&running.dial, &image.manifest_path())?;
        client::get(&running.dial, &image.blob_path())?;
        wait_until_idle(running)?;
    }
    let mut costs = vec![[const { Vec::new() }; CLIENTS.len()]; servers.len()];
    for _ in 0..SERVE_ROUNDS {
        for ((_, running, image), costs) in servers.iter().zip(&mut costs) {
            for (clients, costs) in CLIENTS.into_iter().zip(costs) {
                let before = running.process.cpu_seconds()?;
                let got =
                    client::at_once(&running.dial, &image.blob_path(), clients, GETS / clients)?;
                let bytes: u64 = got.downloads.iter().map(|download| download.bytes).sum();
                #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
                costs.push((running.process.cpu_seconds()? - before) / (bytes as f64 / 1e9));
            }
        }
    }
    println!(
        "\n| a warm blob of {} MiB | CPU-s/GB, {} / {} clients | × the first |",
        BLOB >> 20,
        CLIENTS[0],
        CLIENTS[1]
    );
    println!("|{}", "---|".repeat(3));
    let medians: Vec<_> = costs.into_iter().map(|costs| costs.map(median)).collect();
    for ((name, _, _), cost) in servers.iter().zip(&medians) {
        println!(
            "| {name} | {:.3} / {:.3} | {:.2} / {:.2} |",
            cost[0],
            cost[1],
            cost[0] / medians[0][0],
            cost[1] / medians[0][1]
        );
    }
    Ok(())
}

/// Waits until a server uses no CPU, so that its write-back is complete.
fn wait_until_idle(running: &Running) -> Result<()> {
    let mut before = running.process.cpu_seconds()?;
    for _ in 0..120 {
        std::thread::sleep(Duration::from_millis(500));
        let now = running.process.cpu_seconds()?;
        if now - before < 0.02 {
            return Ok(());
        }
        before = now;
    }
    bail!("an idle server still uses CPU after a minute")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Writes a blob to new regions, directly and as a fill of both tiers, and prints the table. The
/// measurement excludes hashing, write-back and device models.
pub(super) fn write(folder: &Path) -> Result<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let piece = vec![0x5a; PIECE];
    let (mut alone, mut through) = ([f64::INFINITY; 2], [f64::INFINITY; 2]);
    for round in 0..WRITE_ROUNDS {
        let config = Config {
            path: folder.path().join(format!("alone{round}")),
            size: REGION,
        };
        let region = Region::open(&config)?;
        // The first write of a page allocates the page, and the second write uses it again.
        for least in &mut alone {
            let started_at = Instant::now();
            for offset in (0..BLOB).step_by(PIECE) {
                region.write(offset, &piece)?;
            }
            region.flush(0, BLOB)?;
            region.fence()?;
            *least = least.min(started_at.elapsed().as_secs_f64());
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
            default_destination: Destination::Fast,
            write_back_rate: 1,
            ..Options::new(REGION)
        };
        let both = WriteBack::open(Arc::new(PmemTier::new(log, None)), slow, options)?;
        let content: Vec<u8> = piece.repeat(usize::try_from(BLOB)? / PIECE);
        let trailer = Trailer::of(&content, None);
        // The log writes the whole region before it uses the beginning of the region again.
        let mut warming = f64::INFINITY;
        for nth in 0..LAPS {
            let least = match nth {
                0 => &mut through[0],
                it if it + 1 == LAPS => &mut through[1],
                _ => &mut warming,
            };
            let digest = Digest::of(Algorithm::Sha256, &[nth]);
            let hint = Hint {
                destination: Destination::Fast,
                priority: 1.0,
                bytes: BLOB,
            };
            both.hint(digest, hint);
            let started_at = Instant::now();
            let mut staged = both.stage(&digest)?;
            for _ in 0..content.len() / PIECE {
                staged.write(&[&piece])?;
            }
            staged.commit(trailer.clone())?;
            *least = least.min(started_at.elapsed().as_secs_f64());
            ensure!(both.has_copy(&digest), "the blob went to the disk");
            // Removes the blob, so that the next blob uses the same space.
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
