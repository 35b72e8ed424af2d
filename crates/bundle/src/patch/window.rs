//! For a range of a large file content, finds the most similar range of the content's old version.

use std::ops::Range;

use super::Anchor;

/// Maximum number of positions of an anchor in the old content. An anchor with more positions is
/// ignored, since it would not identify a single position.
const COMMON: usize = 4;

/// Aligns a new content with its old version. The value holds the sorted anchors of the old
/// version, of which each takes 16 bytes.
#[derive(Debug)]
pub struct Alignment {
    anchors: Vec<Anchor>,
    old_size: u64,
    new_size: u64,
}

impl Alignment {
    /// Creates the alignment. `anchors` are all anchors of the old content; the sizes are in bytes.
    pub fn new(mut anchors: Vec<Anchor>, old_size: u64, new_size: u64) -> Self {
        anchors.sort_unstable();
        Self {
            anchors,
            old_size,
            new_size,
        }
    }

    /// Returns a window of at most `len` bytes of the old content, for a range of the new content
    /// that has these anchors. The window contains more of these anchors than any other window. If
    /// the two contents have no anchor in common, the window is at the proportional position.
    pub fn window(&self, range: &Range<u64>, anchors: &[Anchor], len: u64) -> Range<u64> {
        if self.old_size <= len {
            return 0..self.old_size;
        }
        let mut found: Vec<u64> = Vec::new();
        for anchor in anchors {
            let from = self.anchors.partition_point(|old| old.hash < anchor.hash);
            let same = self.anchors[from..]
                .iter()
                .take(COMMON + 1)
                .take_while(|old| old.hash == anchor.hash);
            if same.clone().count() <= COMMON {
                found.extend(same.map(|old| old.offset));
            }
        }
        found.sort_unstable();
        let middle = match densest(&found, len) {
            Some(span) => span.start.midpoint(span.end),
            None => scaled(
                range.start.midpoint(range.end),
                self.old_size,
                self.new_size,
            ),
        };
        let start = middle
            .saturating_sub(len / 2)
            .min(self.old_size.saturating_sub(len));
        start..start + len
    }
}

/// Returns the window of at most `len` bytes with the largest number of `offsets`, which are
/// sorted.
fn densest(offsets: &[u64], len: u64) -> Option<Range<u64>> {
    let mut best: Option<(usize, Range<u64>)> = None;
    let mut first = 0;
    for (last, end) in offsets.iter().enumerate() {
        while offsets[first] + len < *end {
            first += 1;
        }
        let count = last + 1 - first;
        if best.as_ref().is_none_or(|(most, _)| count > *most) {
            best = Some((count, offsets[first]..*end));
        }
    }
    best.map(|(_, span)| span)
}

/// Returns the position in the old content that is proportional to position `at` in the new
/// content.
fn scaled(at: u64, old: u64, new: u64) -> u64 {
    let scaled = u128::from(at) * u128::from(old) / u128::from(new.max(1));
    u64::try_from(scaled).unwrap_or(old)
}
