//! Runs the properties of the fuzz targets over their stored corpus, in tests without a fuzzer.

use std::path::Path;

/// Minimum number of inputs of a target.
const MIN_INPUTS: usize = 6;
/// Maximum length in bytes of inputs whose prefixes are all tested. For longer ones this would take
/// quadratic time.
const MAX_PREFIX_TESTED: usize = 2 << 10;

/// Calls `property` with every stored input of `target`, and with every prefix of the short ones:
/// truncated inputs find most errors of parsers.
///
/// # Panics
/// When `property` panics, or when there are fewer than [`MIN_INPUTS`] inputs.
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
        if input.len() <= MAX_PREFIX_TESTED {
            (0..input.len()).for_each(|len| property(&input[..len]));
        }
    }
    assert!(
        inputs >= MIN_INPUTS,
        "{inputs} inputs in {}",
        folder.display()
    );
}
