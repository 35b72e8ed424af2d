//! The fuzz targets' properties over their kept corpora.

use std::path::Path;

use crate::properties;

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
fn reference() {
    each("reference", properties::reference);
}

#[test]
fn endpoint() {
    each("endpoint", properties::endpoint);
}

#[test]
fn manifest() {
    each("manifest", properties::manifest);
}
