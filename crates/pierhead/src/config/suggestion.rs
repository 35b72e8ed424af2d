//! "Did you mean …?": finds the known name that is closest to a misspelt name.

/// Returns the known key or name that is closest to `path`. Finds abbreviations, similar spellings,
/// and the same name in another table.
pub(super) fn suggest(path: &str, known: impl Iterator<Item = String>) -> Option<String> {
    // The comparison takes quadratic time, so long names are not compared.
    if path.len() > 64 {
        return None;
    }
    let last = |path: &str| {
        path.rsplit('.')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase()
    };
    let (path, name) = (path.to_ascii_lowercase(), last(path));
    let score = |candidate: &String| {
        let other = last(candidate);
        let abbreviated = name.len() > 2 && (other.starts_with(&name) || name.starts_with(&other));
        let whole = strsim::damerau_levenshtein(&path, candidate);
        let part = strsim::damerau_levenshtein(&name, &other);
        // A path that differs by one letter from a known path is closer than an equal name in
        // another table.
        whole
            .min(part + 1)
            .min(if abbreviated { 2 } else { usize::MAX })
    };
    // If several names are equally close, the first in the key table wins.
    let (distance, candidate) = known
        .map(|candidate| (score(&candidate), candidate))
        .min_by_key(|(distance, _)| *distance)?;
    // A name that differs in more than a third of its letters would be no useful suggestion.
    (distance <= 1 + name.chars().count() / 3).then_some(candidate)
}
