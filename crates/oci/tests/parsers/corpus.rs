//! Checks the properties that the fuzz targets check, on the saved inputs in `fuzz/corpus`.

use std::path::Path;

use crate::properties;

/// Checks a property on each saved input of a fuzz target.
fn each(target: &str, property: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        property(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 8, "{inputs} inputs in {}", folder.display());
}

#[test]
fn the_property_of_references_holds_on_the_corpus() {
    each("reference", properties::reference);
}

#[test]
fn the_property_of_endpoints_holds_on_the_corpus() {
    each("endpoint", properties::endpoint);
}

#[test]
fn the_property_of_manifests_holds_on_the_corpus() {
    each("manifest", properties::manifest);
}
