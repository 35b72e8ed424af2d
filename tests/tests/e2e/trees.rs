//! Root file systems entry by entry: what others unpack, and what pierhead makes.

use anyhow::{Result, ensure};
use pierhead_tests::{
    image::corpus,
    layout::Image,
    tool::or_skip,
    tree::{Leniency, Tree},
    unpack::{Umoci, Unpacker},
};

/// containerd sets no directory's time back when a layer above writes into it.
const CONTAINERD: Leniency = Leniency {
    times_of_directories: true,
    nanoseconds: false,
    hard_links: false,
    times_of_symlinks: false,
    root: true,
};

fn same(image: &Image, one: &Tree, other: &Tree, who: &str, leniency: Leniency) -> Result<()> {
    let told = one.differences(other, leniency);
    ensure!(
        told.is_empty(),
        "{} of {who} differs:\n{}",
        image.name(),
        told.join("\n")
    );
    Ok(())
}

#[test]
fn the_others_agree_on_the_corpus() -> Result<()> {
    let Some(images) = or_skip(corpus()) else {
        return Ok(());
    };
    let Some(umoci) = or_skip(Umoci::find()) else {
        return Ok(());
    };
    if or_skip(Unpacker::find()).is_none() {
        return Ok(());
    }
    let images: Vec<&Image> = images.iter().collect();
    let containerd = Unpacker::start(&images)?;
    for image in images {
        if umoci.understands(image)? {
            let (one, other) = (umoci.tree(image)?, containerd.tree(image)?);
            same(image, &one, &other, "umoci and containerd", CONTAINERD)?;
        }
    }
    Ok(())
}
