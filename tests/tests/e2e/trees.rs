//! Root file systems entry by entry: what others unpack, and what pierhead makes.

use std::collections::{BTreeMap, btree_map::Entry};

use anyhow::{Result, ensure};
use pierhead_testkit::images::TreeOptions;
use pierhead_tests::{
    image::corpus,
    layout::Image,
    pierhead::{self, Options, Pierhead},
    place,
    registry::{self, Registry},
    tool::or_skip,
    tree::{Leniency, Tree},
    unpack::{Snapshotter, Umoci, Unpacker},
};
use tempfile::TempDir;

use crate::random;

/// Of random images: a few, or as many as `PIERHEAD_SEEDS` says.
fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("PIERHEAD_SEEDS");
    0..seeds.ok().and_then(|it| it.parse().ok()).unwrap_or(3)
}

/// containerd sets no directory's time back when a layer above writes into it.
const CONTAINERD: Leniency = Leniency {
    times_of_directories: true,
    nanoseconds: false,
    links_of_specials: false,
    times_of_symlinks: false,
    root: true,
    xattrs_of_directories: false,
};

/// Its native snapshotter leaves what is set of a directory that is there, and copies each name of a link or device.
const NATIVE: Leniency = Leniency {
    links_of_specials: true,
    xattrs_of_directories: true,
    ..CONTAINERD
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
    let containerd = Unpacker::start(&images, Snapshotter::Overlay)?;
    for image in images {
        if umoci.understands(image)? {
            let (one, other) = (umoci.tree(image)?, containerd.tree(image)?);
            same(image, &one, &other, "umoci and containerd", CONTAINERD)?;
        }
    }
    Ok(())
}

#[test]
fn the_others_agree_on_random_images() -> Result<()> {
    let Some(umoci) = or_skip(Umoci::find()) else {
        return Ok(());
    };
    if or_skip(Unpacker::find()).is_none() {
        return Ok(());
    }
    for seed in seeds() {
        let folder = place::scratch("random")?;
        let options = TreeOptions {
            sparse_pax: true,
            ..TreeOptions::default()
        };
        let images = random::versions(folder.path(), seed, &options)?;
        let containerd = Unpacker::start(&images.iter().collect::<Vec<_>>(), Snapshotter::Native)?;
        for image in &images {
            let (one, other) = (umoci.tree(image)?, containerd.tree(image)?);
            same(image, &one, &other, "umoci and containerd", NATIVE)?;
        }
    }
    Ok(())
}

/// The images that umoci understands, with its trees.
fn expected<'a>(images: &'a [Image], umoci: &Umoci) -> Result<Vec<(&'a Image, Tree)>> {
    let mut trees = Vec::new();
    for image in images {
        if umoci.understands(image)? {
            trees.push((image, umoci.tree(image)?));
        }
    }
    Ok(trees)
}

/// Every version of each image in turn into one store, with what is there from the version before; the trees must be umoci's
/// to the last attribute, also once those after them were made.
fn pierhead_makes_the_same(expected: &[(&Image, Tree)], link: &str) -> Result<()> {
    let images: Vec<&Image> = expected.iter().map(|(image, _)| *image).collect();
    let registry = Registry::start(&images)?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    let mut stores: BTreeMap<&str, TempDir> = BTreeMap::new();
    let mut all = Vec::new();
    for (image, one) in expected {
        let made = place::scratch("rootfs")?;
        let store = match stores.entry(&image.repository) {
            Entry::Vacant(entry) => entry.insert(place::scratch("store")?),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        let root = made.path().join("tree");
        let via = format!("http://{}", pierhead.address());
        let into = store.path().display().to_string();
        let output = root.display().to_string();
        let (status, said) = pierhead::run(&[
            "pull",
            &format!("docker.io/{}", image.name()),
            "--via",
            &via,
            "--into",
            &into,
            "--as",
            "rootfs",
            "--link",
            link,
            "--output",
            &output,
            "--json",
        ])?;
        ensure!(status.success(), "{}: {said}", image.name());
        let other = Tree::read(&root)?;
        let who = "umoci and pierhead";
        same(image, one, &other, who, Leniency::default())?;
        // Trees that share files with the store, and so with each other.
        if link == "hard" {
            all.push((image, one, root, made));
        }
    }
    for (image, one, root, _made) in &all {
        let who = "umoci and pierhead later";
        same(image, one, &Tree::read(root)?, who, Leniency::default())?;
    }
    Ok(())
}

#[test]
fn pierhead_makes_the_trees_of_the_corpus() -> Result<()> {
    let Some(images) = or_skip(corpus()) else {
        return Ok(());
    };
    let (Some(umoci), Some(_)) = (or_skip(Umoci::find()), or_skip(registry::find())) else {
        return Ok(());
    };
    let expected = expected(&images, &umoci)?;
    pierhead_makes_the_same(&expected, "reflink")?;
    pierhead_makes_the_same(&expected, "hard")
}

#[test]
fn pierhead_makes_the_trees_of_random_images() -> Result<()> {
    let (Some(umoci), Some(_)) = (or_skip(Umoci::find()), or_skip(registry::find())) else {
        return Ok(());
    };
    for seed in seeds() {
        let folder = place::scratch("random")?;
        let options = TreeOptions {
            sparse_pax: true,
            parents: seed % 2 == 0,
            ..TreeOptions::default()
        };
        let images = random::versions(folder.path(), seed, &options)?;
        let expected = expected(&images, &umoci)?;
        pierhead_makes_the_same(&expected, "reflink")?;
        pierhead_makes_the_same(&expected, "hard")?;
    }
    Ok(())
}
