//! Tests of merging layers into a table of contents: the result is the tree that a container
//! runtime would unpack, in one canonical form.

use pierhead_toc::ImageToc;
use pierhead_toc::image_toc::compare;
use proptest::prelude::*;

use super::model::{self, Change};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn layers_merge_to_the_tree_of_the_model(layers in model::layers()) {
        prop_assume!(!model::is_outside_model(&layers));
        match (model::merge(&layers), model::merge_by_model(&layers)) {
            (Ok(toc), Some(expected)) => prop_assert_eq!(model::leaves(&toc), expected),
            (Err(_), None) => {}
            (found, expected) => {
                prop_assert!(false, "{:?} instead of {:?}", found.map(|toc| model::leaves(&toc)), expected);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_layers_have_one_canonical_form(layers in model::layers()) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let parsed = ImageToc::parse(toc.bytes().to_vec()).unwrap();
        prop_assert_eq!(parsed.bytes(), toc.bytes());
        prop_assert_eq!(parsed.entries(), toc.entries());
        prop_assert_eq!(parsed.visible(), toc.visible());
        prop_assert_eq!(model::leaves(&parsed), model::leaves(&toc));
        prop_assert!(model::merge(&layers).unwrap().bytes() == toc.bytes());
    }

    #[test]
    fn an_upper_layer_without_changes_adds_only_its_skeleton(layers in model::layers()) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let mut more = layers;
        more.push(Vec::new());
        let more = model::merge(&more).unwrap();
        prop_assert_eq!(model::leaves(&more), model::leaves(&toc));
        prop_assert_eq!(more.visible(), toc.visible());
        prop_assert_eq!(more.contents().len(), toc.contents().len() + 1);
        prop_assert_eq!(more.layers().count(), toc.layers().count() + 1);
    }

    #[test]
    fn each_layer_lists_its_files_in_the_order_of_the_tar(layers in model::layers()) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        for (layer, found) in layers.iter().zip(toc.layers()) {
            let contents = found.unwrap().files.into_iter();
            let contents = contents.map(|number| toc.contents().content(number).unwrap());
            let files = layer.iter().filter_map(|(_, change)| match change {
                Change::File(number) => Some(model::content(*number).0),
                _ => None,
            });
            prop_assert!(contents.eq(files));
        }
    }

    #[test]
    fn rows_ascend_and_each_parent_comes_first(layers in model::layers()) {
        let Ok(toc) = model::merge(&layers) else { return Ok(()) };
        let paths: Vec<String> = model::leaves(&toc).into_keys().collect();
        let mut last = Vec::new();
        let mut rows = toc.rows();
        while let Some(row) = rows.next().unwrap() {
            prop_assert!(row.ordinal == 0 || compare(&last, row.path).is_lt());
            let path = String::from_utf8(row.path.to_vec()).unwrap();
            if let Some((parent, _)) = path.rsplit_once('/') {
                prop_assert!(paths.iter().any(|other| other == parent));
            }
            last = row.path.to_vec();
        }
    }
}
