//! Checks the properties of the fuzz targets on their stored inputs, in regular tests that need no
//! fuzzer.

use std::path::Path;

/// Minimum number of stored inputs of a fuzz target.
const MIN_INPUTS: usize = 6;
/// Maximum length in bytes of an input of which all prefixes are tested. For a longer input, the
/// test of all prefixes would take too long, because its time grows with the square of the length.
const MAX_PREFIX_TESTED: usize = 2 << 10;

/// Calls `property` with every stored input of `target`, and with every prefix of the short inputs,
/// because truncated inputs find most errors of parsers.
///
/// # Panics
/// Panics if `property` panics, or if there are fewer than `MIN_INPUTS` inputs.
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
