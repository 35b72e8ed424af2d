//! The kept inputs of the fuzz targets, for tests that run without a fuzzer.

use std::path::Path;

/// Fewer seeds than this say little about a parser.
const AT_LEAST: usize = 6;
/// Longer inputs are not cut at every byte: that would be quadratic.
const SHORT: usize = 2 << 10;

/// Calls `property` with every input that is kept for `target`, and with every beginning of the short
/// ones: what is cut anywhere is what parsers stumble over.
///
/// # Panics
/// As `property` does; when there are hardly any inputs.
pub fn each(target: &str, property: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder of inputs") {
        let path = entry.expect("an input").path();
        let input = std::fs::read(&path).expect("an input that can be read");
        inputs += 1;
        println!("{}", path.display());
        property(&input);
        if input.len() <= SHORT {
            (0..input.len()).for_each(|len| property(&input[..len]));
        }
    }
    assert!(
        inputs >= AT_LEAST,
        "{inputs} inputs in {}",
        folder.display()
    );
}
