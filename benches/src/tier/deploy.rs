//! Benchmark of deployments with a fast cache tier (as in the paper N-Docker): the time to store an
//! image after its download, and the number of bytes on the fast medium.

use std::collections::HashSet;
use std::path::Path;

use anyhow::Result;
use pierhead_cache::Placement;

use super::hot_files::hot_layers;
use super::images::{Image, generate};
use super::setting::{Fast, Setting, World};
use crate::statistics::mega;

/// A placement of the layers of an image.
struct Way {
    name: &'static str,
    /// The placement rule of the fast tier; `None`: no fast tier.
    placement: Option<Placement>,
    /// Whether only layers that a start reads enter the fast tier.
    hot_only: bool,
    /// Whether an earlier pull has measured the rate of the link.
    knows_link: bool,
}

const WAYS: [Way; 5] = [
    Way {
        name: "disk alone",
        placement: None,
        hot_only: false,
        knows_link: true,
    },
    Way {
        name: "all on NVM",
        // Every blob enters the fast tier while the tier has space.
        placement: Some(Placement::Value),
        hot_only: false,
        knows_link: true,
    },
    Way {
        name: "layer-aware, as the paper's",
        placement: Some(Placement::LayerAware),
        hot_only: false,
        knows_link: false,
    },
    Way {
        name: "layer-aware, by time",
        placement: Some(Placement::LayerAware),
        hot_only: false,
        knows_link: true,
    },
    Way {
        name: "hot image files",
        placement: Some(Placement::Value),
        hot_only: true,
        knows_link: true,
    },
];

/// Sums over all images in seconds and bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    storing: f64,
    total: f64,
    staged: f64,
}

/// Deploys each image with each placement on empty media, and prints the table.
pub(super) async fn run(folder: &Path, world: &World, images: &[Image], runs: usize) -> Result<()> {
    let warm = generate(1).swap_remove(0);
    let mut sums = Vec::new();
    for way in &WAYS {
        let mut sum = Sum::default();
        for image in images {
            let mut best: Option<Sum> = None;
            for _ in 0..runs {
                let one = deploy(folder, world, way, image, &warm).await?;
                // Reports the minimum of the runs, because other load of the machine only adds
                // time.
                if best.is_none_or(|best| one.total < best.total) {
                    best = Some(one);
                }
            }
            let best = best.unwrap_or_default();
            eprintln!(
                "{}: {}: {:.3} s, of it {:.3} s after the download; {:.0} of {:.0} MB on NVM",
                way.name,
                image.name,
                best.total,
                best.storing,
                best.staged / 1e6,
                mega(image.size())
            );
            sum.storing += best.storing;
            sum.total += best.total;
            sum.staged += best.staged;
        }
        sums.push(sum);
    }
    table(images, &sums);
    Ok(())
}

async fn deploy(
    folder: &Path,
    world: &World,
    way: &Way,
    image: &Image,
    warm: &Image,
) -> Result<Sum> {
    let cold = match way.hot_only {
        true => {
            let hot = hot_layers(image);
            let layers = image.parts().map(|(digest, _)| *digest);
            layers.filter(|digest| !hot.contains(digest)).collect()
        }
        false => HashSet::new(),
    };
    let fast = way.placement.map(|placement| Fast {
        size: (image.size() + warm.size() + (64 << 20)).next_multiple_of(1 << 21),
        limit: 0,
        placement,
        cold,
    });
    let setting = Setting::new(folder, world, fast)?;
    if way.knows_link {
        setting.deploy(warm).await?;
        setting.settle().await;
    }
    let before = setting.staged();
    let deployment = setting.deploy(image).await?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let staged = (setting.staged() - before) as f64;
    setting.cache.close().await;
    Ok(Sum {
        storing: (deployment.total - deployment.download).as_secs_f64(),
        total: deployment.total.as_secs_f64(),
        staged,
    })
}

fn table(images: &[Image], sums: &[Sum]) {
    let (disk, nvm) = (sums[0], sums[1]);
    let bytes: u64 = images.iter().map(Image::size).sum();
    println!(
        "\n{} images, {:.0} MB of layers, each deployed on empty media\n",
        images.len(),
        mega(bytes)
    );
    println!(
        "| where layers go | deployment s | against disk alone | against all on NVM | of it after the download, s | less than disk alone | MB on NVM | less than all |"
    );
    println!("|{}", "---|".repeat(8));
    for (way, sum) in WAYS.iter().zip(sums) {
        println!(
            "| {} | {:.2} | {:.2} × | {:+.1} % | {:.2} | {:.1} % | {:.0} | {:.1} % |",
            way.name,
            sum.total,
            disk.total / sum.total,
            100.0 * (sum.total / nvm.total - 1.0),
            sum.storing,
            100.0 * (1.0 - sum.storing / disk.storing),
            sum.staged / 1e6,
            100.0 * (1.0 - sum.staged / nvm.staged),
        );
    }
}
