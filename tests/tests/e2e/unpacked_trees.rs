//! Compares the root file systems that umoci, containerd and `pierhead pull` unpack, entry by
//! entry.

use std::collections::{BTreeMap, btree_map::Entry};

use anyhow::{Result, ensure};
use pierhead_testkit::images::TreeOptions;
use pierhead_tests::{
    image::corpus,
    layout::Image,
    paths,
    pierhead::{self, Options, Pierhead},
    registry::{self, Registry},
    tool::or_skip,
    tree::{Leniency, Tree},
    unpack::{Snapshotter, Umoci, Unpacker},
};
use tempfile::TempDir;

use crate::random_images;

/// Seeds of random images: by default a few, or as many as `PIERHEAD_SEEDS` says.
fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("PIERHEAD_SEEDS");
    0..seeds.ok().and_then(|it| it.parse().ok()).unwrap_or(3)
}

/// Deviations of containerd: it does not restore the time of a directory when an upper layer writes
/// into the directory.
const CONTAINERD: Leniency = Leniency {
    times_of_directories: true,
    nanoseconds: false,
    links_of_specials: false,
    times_of_symlinks: false,
    root: true,
    xattrs_of_directories: false,
};

/// Deviations of containerd's native snapshotter: it keeps the attributes of an existing directory,
/// and copies each name of a hard-linked symbolic link or device.
const NATIVE: Leniency = Leniency {
    links_of_specials: true,
    xattrs_of_directories: true,
    ..CONTAINERD
};

fn same(image: &Image, one: &Tree, other: &Tree, who: &str, leniency: Leniency) -> Result<()> {
    let text = one.differences(other, leniency);
    ensure!(
        text.is_empty(),
        "{} of {who} differs:\n{}",
        image.name(),
        text.join("\n")
    );
    Ok(())
}

#[test]
fn umoci_and_containerd_agree_on_the_corpus() -> Result<()> {
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
fn umoci_and_containerd_agree_on_random_images() -> Result<()> {
    let Some(umoci) = or_skip(Umoci::find()) else {
        return Ok(());
    };
    if or_skip(Unpacker::find()).is_none() {
        return Ok(());
    }
    for seed in seeds() {
        let folder = paths::scratch("random")?;
        let options = TreeOptions {
            sparse_pax: true,
            ..TreeOptions::default()
        };
        let images = random_images::versions(folder.path(), seed, &options)?;
        let containerd = Unpacker::start(&images.iter().collect::<Vec<_>>(), Snapshotter::Native)?;
        for image in &images {
            let (one, other) = (umoci.tree(image)?, containerd.tree(image)?);
            same(image, &one, &other, "umoci and containerd", NATIVE)?;
        }
    }
    Ok(())
}

/// The images that umoci supports, each with the tree that umoci unpacks.
fn expected<'a>(images: &'a [Image], umoci: &Umoci) -> Result<Vec<(&'a Image, Tree)>> {
    let mut trees = Vec::new();
    for image in images {
        if umoci.understands(image)? {
            trees.push((image, umoci.tree(image)?));
        }
    }
    Ok(trees)
}

/// Pulls every version of each image into one store, which contains the previous version. The trees
/// must equal those of umoci in every attribute, and must stay equal after later pulls.
fn assert_pierhead_agrees(expected: &[(&Image, Tree)], link: &str) -> Result<()> {
    let images: Vec<&Image> = expected.iter().map(|(image, _)| *image).collect();
    let registry = Registry::start(&images)?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    let mut stores: BTreeMap<&str, TempDir> = BTreeMap::new();
    let mut all = Vec::new();
    for (image, one) in expected {
        let made = paths::scratch("rootfs")?;
        let store = match stores.entry(&image.repository) {
            Entry::Vacant(entry) => entry.insert(paths::scratch("store")?),
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
        // With hard links, trees share files with the store and with each other.
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
fn pierhead_and_umoci_agree_on_the_corpus() -> Result<()> {
    let Some(images) = or_skip(corpus()) else {
        return Ok(());
    };
    let (Some(umoci), Some(_)) = (or_skip(Umoci::find()), or_skip(registry::find())) else {
        return Ok(());
    };
    let expected = expected(&images, &umoci)?;
    assert_pierhead_agrees(&expected, "reflink")?;
    assert_pierhead_agrees(&expected, "hard")
}

#[test]
fn pierhead_and_umoci_agree_on_random_images() -> Result<()> {
    let (Some(umoci), Some(_)) = (or_skip(Umoci::find()), or_skip(registry::find())) else {
        return Ok(());
    };
    for seed in seeds() {
        let folder = paths::scratch("random")?;
        let options = TreeOptions {
            sparse_pax: true,
            parents: seed % 2 == 0,
            ..TreeOptions::default()
        };
        let images = random_images::versions(folder.path(), seed, &options)?;
        let expected = expected(&images, &umoci)?;
        assert_pierhead_agrees(&expected, "reflink")?;
        assert_pierhead_agrees(&expected, "hard")?;
    }
    Ok(())
}
