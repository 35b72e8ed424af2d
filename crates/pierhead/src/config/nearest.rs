//! The name that was most likely meant.

/// The known key or name that was most likely meant: a beginning of it, the closest spelling, or the same name
/// in another table.
pub(super) fn nearest(path: &str, known: impl Iterator<Item = String>) -> Option<String> {
    // Hostile lengths cost nothing.
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
        // One letter in the whole path is nearer than an equal name in another table.
        whole
            .min(part + 1)
            .min(if abbreviated { 2 } else { usize::MAX })
    };
    // Of those that are as near as each other it is the first of the table, which has what matters most in front.
    let (distance, candidate) = known
        .map(|candidate| (score(&candidate), candidate))
        .min_by_key(|(distance, _)| *distance)?;
    // Beyond a third of the letters a guess confuses more than it helps.
    (distance <= 1 + name.chars().count() / 3).then_some(candidate)
}
