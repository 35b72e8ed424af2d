//! Unit tests of the limits of merging layers: the number of path components that are resolved, and
//! the number of names.

use super::*;

fn entry(path: String, kind: Kind) -> Entry {
    Entry {
        path: path.into_bytes(),
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        modified: Time::default(),
        xattrs: Vec::new(),
    }
}

fn merged(entries: impl Iterator<Item = Entry>) -> Result<Merged, Error> {
    merge([LayerEntries {
        diff_id: FileDigest::of(b"layer").into(),
        skeleton: (FileDigest::of(b"skeleton"), 7),
        files: [],
        entries: entries.map(Ok),
    }])
}

#[test]
fn a_repeated_opaque_whiteout_takes_no_steps() {
    let count = 2000;
    let files = (0..count).map(|nth| entry(format!("d/{nth}"), Kind::Fifo));
    let markers = (0..count).map(|_| entry("d".to_owned(), Kind::Opaque));
    let merged = merged(files.chain(markers)).expect("a layer that can be merged");
    let steps = MAX_STEPS - merged.steps;
    // The bound covers the resolved steps to the files and to their folder, and one visit of each
    // file.
    assert!(steps <= 5 * count, "{steps} steps");
    assert!(steps >= 3 * count, "{steps} steps: visits are not counted");
}

#[test]
fn the_number_of_names_is_limited() {
    assert!(position(MAX_ENTRIES as usize).is_ok());
    let most = MAX_ENTRIES as usize + MAX_ENTRIES as usize / 4;
    assert!(position(most).is_err());
}
