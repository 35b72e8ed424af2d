//! Checks that each metric in alert rules and dashboards is registered in the daemon's sources.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};

/// Suffixes that exporters append to a registered metric name: units, and those of OpenMetrics.
const SUFFIXES: &[&str] = &[
    "_total", "_bucket", "_sum", "_count", "_info", "_bytes", "_seconds",
];

/// Names of metrics in `text` that no crate below `crates` registers.
///
/// # Errors
/// The sources cannot be read.
pub(crate) fn unknown(text: &str, crates: &Path) -> Result<Vec<String>> {
    let mut literals = BTreeSet::new();
    collect(crates, &mut literals)?;
    Ok(named(text)
        .into_iter()
        .filter(|name| !is_registered(name, &literals))
        .collect())
}

/// Words in `text` that look like pierhead's metrics: `pierhead_PART_NAME`, and metrics of the
/// process.
fn named(text: &str) -> BTreeSet<String> {
    text.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'))
        .filter(|word| word.starts_with("pierhead_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

/// Checks that string literals in the sources combine to the metric name: a prefix and a name, with
/// or without a suffix.
fn is_registered(name: &str, literals: &BTreeSet<String>) -> bool {
    let mut bare = vec![name];
    while let Some(shorter) = bare.last().and_then(|last| {
        let suffix = SUFFIXES.iter().find(|suffix| last.ends_with(**suffix))?;
        last.strip_suffix(suffix)
    }) {
        bare.push(shorter);
    }
    bare.into_iter().any(|name| {
        literals.contains(name)
            || name
                .match_indices('_')
                .any(|(at, _)| literals.contains(&name[..at]) && literals.contains(&name[at + 1..]))
    })
}

/// Collects the string literals in the Rust sources of `folder` that could be a metric name or a
/// part of one.
fn collect(folder: &Path, literals: &mut BTreeSet<String>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, literals)?;
        } else if path.extension().is_some_and(|it| it == "rs") {
            let is_name = |it: &&str| {
                !it.is_empty() && it.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
            };
            let source = fs::read_to_string(&path)?;
            literals.extend(source.split('"').filter(is_name).map(str::to_owned));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_prefix_and_literal() {
        let literals = ["pierhead_cache", "hits", "written_today", "pierhead_build"];
        let literals = literals.map(str::to_owned).into();
        for good in [
            "pierhead_cache_hits_total",
            "pierhead_cache_written_today_bytes",
            "pierhead_build_info",
        ] {
            assert!(is_registered(good, &literals), "{good}");
        }
        for bad in ["pierhead_cache_hit_total", "pierhead_proxy_hits_total"] {
            assert!(!is_registered(bad, &literals), "{bad}");
        }
    }

    #[test]
    fn names_are_found_in_expressions() {
        let text = "sum(rate(pierhead_cache_hits_total{node=\"a\"}[5m])) / pierhead_x";
        assert_eq!(
            named(text).into_iter().collect::<Vec<_>>(),
            ["pierhead_cache_hits_total", "pierhead_x"]
        );
    }
}
