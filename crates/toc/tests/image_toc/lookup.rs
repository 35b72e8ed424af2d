//! Tests of lookups in a table of contents: contents by digest in memory and in a file, files by
//! path, and contents that other images lack.

use std::collections::BTreeSet;

use pierhead_toc::image_toc::{BlockCache, TocFile};
use pierhead_toc::{FileDigest, ImageToc, TocView, Tree};
use proptest::prelude::*;

use super::model::{self, CONTENTS, Leaf};

/// Returns all contents that a mount of an image needs, without the empty content.
fn mounted(toc: &ImageToc) -> BTreeSet<FileDigest> {
    let leaves = model::leaves(toc).into_values();
    let contents = leaves.filter_map(|leaf| match leaf {
        Leaf::File(content) => Some(content),
        _ => None,
    });
    contents
        .filter(|content| *content != FileDigest::of(b""))
        .collect()
}

proptest! {
    #[test]
    fn each_content_is_found_by_its_digest(layers in model::layers()) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("toc");
        toc.save(&path).unwrap();
        let file = TocFile::open(&path, &BlockCache::new(1 << 20)).unwrap();
        for (number, (content, size)) in (0..).zip(toc.contents().iter()) {
            prop_assert_eq!(toc.find(&content), Some(number));
            prop_assert_eq!(file.find(&content).unwrap(), Some((number, size)));
        }
        for number in 0..CONTENTS.len() {
            let (content, _) = model::content(number);
            let is_in_toc = toc.contents().iter().any(|(other, _)| other == content);
            prop_assert_eq!(toc.find(&content).is_some(), is_in_toc);
            prop_assert_eq!(file.find(&content).unwrap().is_some(), is_in_toc);
        }
    }

    #[test]
    fn digests_ascend_in_their_index(layers in model::layers()) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let digests: Vec<_> = toc
            .by_digest()
            .iter()
            .map(|number| toc.contents().content(number).unwrap())
            .collect();
        prop_assert_eq!(digests.len(), usize::try_from(toc.contents().len()).unwrap());
        prop_assert!(digests.is_sorted());
    }

    #[test]
    fn each_file_is_found_by_its_path(layers in model::layers()) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let tree = Tree::of(TocView::mounted(&toc)).unwrap();
        let leaves = model::leaves(&toc);
        let is_named = |leaf: &&Leaf| **leaf != Leaf::Directory;
        // A hard link to a symbolic link has no own path in a [`pierhead_toc::Tree`].
        let named = leaves.values().filter(is_named).count();
        prop_assert!(tree.len() <= named);
        let is_empty = tree.files().next().is_none() && !leaves.values().any(|leaf| *leaf == Leaf::Symlink);
        prop_assert_eq!(tree.is_empty(), is_empty);
        for (path, leaf) in &leaves {
            let found = tree.file(path.as_bytes());
            match leaf {
                Leaf::File(content) => {
                    let found = tree.content(found.unwrap()).unwrap();
                    prop_assert_eq!(found.0, *content);
                    let at = tree.find(path.as_bytes()).unwrap();
                    prop_assert_eq!(tree.path(at), path.as_bytes());
                }
                _ => prop_assert_eq!(found, None),
            }
        }
        let files = leaves.values().filter(|leaf| matches!(leaf, Leaf::File(_)));
        prop_assert_eq!(tree.files().count(), files.count());
        prop_assert_eq!(tree.find(b"not/there"), None);
    }

    #[test]
    fn lacking_contents_are_in_no_base_image(
        wanted in model::layers(),
        bases in proptest::collection::vec(model::layers(), 0..3),
    ) {
        let Ok(wanted) = model::merge(&wanted) else { return Ok(()) };
        let bases: Vec<ImageToc> = bases.iter().filter_map(|base| model::merge(base).ok()).collect();
        let views: Vec<TocView<'_>> = bases.iter().map(TocView::mounted).collect();
        let lacking = TocView::mounted(&wanted).lacking(&views);
        let lacking: BTreeSet<FileDigest> = (0..)
            .zip(lacking)
            .filter(|(_, is_lacking)| *is_lacking)
            .map(|(number, _)| wanted.contents().content(number).unwrap())
            .collect();
        let mut expected = mounted(&wanted);
        for base in &bases {
            for content in mounted(base) {
                expected.remove(&content);
            }
        }
        prop_assert_eq!(lacking, expected);
    }

    #[test]
    fn a_view_with_layers_lacks_no_content_of_itself(layers in model::layers()) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let all = TocView::with_layers(&toc);
        prop_assert!(all.lacking(&[all]).iter().all(|is_lacking| !is_lacking));
        let lacking = all.lacking(&[TocView::mounted(&toc)]);
        for (number, is_lacking) in (0..).zip(lacking) {
            let size = toc.contents().size(number).unwrap();
            prop_assert_eq!(is_lacking, number >= toc.visible() && size > 0);
        }
    }
}
