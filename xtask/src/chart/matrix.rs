//! Chooses few combinations of the files of chart values `ci/AXIS-CASE.yaml` (one case of one axis,
//! such as `storage-hostpath.yaml`), so that every two files of different axes occur together.

use std::{collections::BTreeSet, path::PathBuf};

/// Groups files with names AXIS-CASE.yaml by axis, and returns combinations: one file of each
/// axis, with the axes sorted by name.
///
/// Every two files of different axes occur together in a combination, so that the tests see how two
/// values affect each other. The number of combinations grows with the product of the two largest
/// axes, not of all axes.
pub(crate) fn cover(files: &[PathBuf]) -> Vec<Vec<PathBuf>> {
    let mut axes: Vec<(&str, Vec<&PathBuf>)> = Vec::new();
    for file in files {
        let stem = file.file_stem().and_then(|it| it.to_str()).unwrap_or("");
        let axis = stem.split_once('-').map_or(stem, |(axis, _)| axis);
        match axes.iter_mut().find(|(name, _)| *name == axis) {
            Some((_, values)) => values.push(file),
            None => axes.push((axis, vec![file])),
        }
    }
    axes.sort_by_key(|(name, _)| *name);
    let axes: Vec<Vec<&PathBuf>> = axes.into_iter().map(|(_, values)| values).collect();
    let sizes: Vec<usize> = axes.iter().map(Vec::len).collect();
    pairwise(&sizes)
        .into_iter()
        .map(|row| {
            let chosen = row.iter().zip(&axes);
            chosen.map(|(&value, axis)| axis[value].clone()).collect()
        })
        .collect()
}

/// Two values of two axes, each as (axis, value).
type Pair = [(usize, usize); 2];

/// Combinations of one value of each axis; `sizes` has the number of values of each axis. A greedy
/// algorithm: a combination begins with a pair that no earlier combination has, and takes on each
/// further axis the value that adds the most new pairs.
fn pairwise(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut unseen: BTreeSet<Pair> = BTreeSet::new();
    for (first, &count) in sizes.iter().enumerate() {
        for (second, &others) in sizes.iter().enumerate().skip(first + 1) {
            let pairs = (0..count).flat_map(|a| (0..others).map(move |b| (a, b)));
            unseen.extend(pairs.map(|(a, b)| [(first, a), (second, b)]));
        }
    }
    let mut rows = Vec::new();
    while let Some(&seed) = unseen.first() {
        let mut row: Vec<Option<usize>> = vec![None; sizes.len()];
        for (axis, value) in seed {
            row[axis] = Some(value);
        }
        for axis in 0..sizes.len() {
            if row[axis].is_some() {
                continue;
            }
            let gain = |value: &usize| {
                let set = row.iter().enumerate();
                set.filter_map(|(other, it)| Some(pair((axis, *value), (other, (*it)?))))
                    .filter(|it| unseen.contains(it))
                    .count()
            };
            // Of equally good values, take the first value, so that the combinations stay the same
            // in each run.
            row[axis] = (0..sizes[axis]).rev().max_by_key(gain);
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        for first in 0..row.len() {
            for second in first + 1..row.len() {
                unseen.remove(&[(first, row[first]), (second, row[second])]);
            }
        }
        rows.push(row);
    }
    if let ([_], true) = (sizes, rows.is_empty()) {
        rows = (0..sizes[0]).map(|value| vec![value]).collect();
    }
    rows
}

fn pair(one: (usize, usize), other: (usize, usize)) -> Pair {
    if one < other {
        [one, other]
    } else {
        [other, one]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_values_meet() {
        let sizes = [4, 4, 3, 3, 2, 3, 4];
        let rows = pairwise(&sizes);
        for (first, &count) in sizes.iter().enumerate() {
            for (second, &others) in sizes.iter().enumerate().skip(first + 1) {
                for (a, b) in (0..count).flat_map(|a| (0..others).map(move |b| (a, b))) {
                    assert!(
                        rows.iter().any(|row| row[first] == a && row[second] == b),
                        "value {a} of axis {first} never meets {b} of {second}"
                    );
                }
            }
        }
        assert!(rows.len() < 40, "{} rows", rows.len());
    }

    #[test]
    fn files_are_one_of_each_axis() {
        let files = ["a-1.yaml", "a-2.yaml", "b-1.yaml"].map(PathBuf::from);
        let cases = cover(&files);
        assert_eq!(
            cases,
            [["a-1.yaml", "b-1.yaml"], ["a-2.yaml", "b-1.yaml"]].map(|it| it.map(PathBuf::from))
        );
        assert_eq!(cover(&files[..2]).len(), 2, "one axis alone");
    }
}
