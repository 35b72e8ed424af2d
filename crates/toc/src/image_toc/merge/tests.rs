//! What merging may cost.

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
fn what_is_hidden_once_is_not_looked_through_again() {
    let count = 2000;
    let files = (0..count).map(|nth| entry(format!("d/{nth}"), Kind::Fifo));
    let markers = (0..count).map(|_| entry("d".to_owned(), Kind::Opaque));
    let merged = merged(files.chain(markers)).expect("a layer that can be merged");
    let steps = MAX_STEPS - merged.steps;
    // Those of the files, their folder, and one look at each.
    assert!(steps <= 5 * count, "{steps} steps");
    assert!(steps >= 3 * count, "{steps} steps: no look is counted");
}

#[test]
fn names_that_a_table_has_no_room_for_are_not_held() {
    assert!(position(MAX_ENTRIES as usize).is_ok());
    let most = MAX_ENTRIES as usize + MAX_ENTRIES as usize / 4;
    assert!(position(most).is_err());
}
