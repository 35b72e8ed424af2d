//! Generates the table of values in a chart's README from the comments in `values.yaml`.

use anyhow::{Result, bail};

/// A key of values.yaml with its default and its comment.
struct Row {
    path: String,
    default: String,
    about: String,
}

/// README of a chart: the handwritten `head`, then the table of the keys in `values` (the text of
/// values.yaml).
///
/// # Errors
/// A key has no comment.
pub(crate) fn of(head: &str, values: &str) -> Result<String> {
    let mut text = format!(
        "{}\n\n## Values\n\n<!-- Made from values.yaml by `cargo xtask chart --write`. -->\n\n| value | default | |\n|---|---|---|\n",
        head.trim_end()
    );
    for row in rows(values)? {
        let about = row.about.replace('|', "\\|");
        text += &format!("| `{}` | `{}` | {about} |\n", row.path, row.default);
    }
    Ok(text)
}

/// The documented keys of values.yaml, with dots between levels.
///
/// # Errors
/// As [`of`].
pub(crate) fn keys(values: &str) -> Result<Vec<String>> {
    Ok(rows(values)?.into_iter().map(|row| row.path).collect())
}

/// Parses the subset of YAML that values.yaml uses: one key per line, two blanks of indent per
/// level. A comment begins with `# -- `; its further lines begin with `# `.
fn rows(values: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut path: Vec<&str> = Vec::new();
    let mut about: Option<String> = None;
    for (number, line) in values.lines().enumerate() {
        let bare = line.trim_start();
        let depth = (line.len() - bare.len()) / 2;
        if let Some(begin) = bare.strip_prefix("# -- ") {
            about = Some(begin.to_owned());
        } else if let Some(more) = bare.strip_prefix('#') {
            if let Some(about) = &mut about {
                *about = format!("{about} {}", more.trim());
            }
        } else if let Some((key, value)) = bare.split_once(':') {
            path.truncate(depth);
            path.push(key);
            let value = value.trim();
            match (about.take(), value) {
                // A section, whose keys have their own comments.
                (None, "") => {}
                // A key of a section whose comment describes all its keys.
                (None, _)
                    if rows
                        .last()
                        .is_some_and(|row: &Row| is_below(&path, &row.path)) => {}
                (None, _) => bail!(
                    "values.yaml:{}: {} has no comment",
                    number + 1,
                    path.join(".")
                ),
                (Some(about), value) => rows.push(Row {
                    path: path.join("."),
                    default: if value.is_empty() { "…" } else { value }.to_owned(),
                    about,
                }),
            }
        }
    }
    Ok(rows)
}

fn is_below(path: &[&str], parent: &str) -> bool {
    path.join(".")
        .strip_prefix(parent)
        .is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_path_with_default_and_comment() {
        let values = "# Of nobody.\n# -- A port,\n# for all.\nport: 5000\na:\n  # -- Either a | b\n  b: {}\nc: # no\n";
        assert!(of("# Head\n", values).is_err(), "c has no comment");
        let text = of("# Head\n", values.trim_end_matches("c: # no\n")).unwrap();
        assert!(text.starts_with("# Head\n\n## Values\n"));
        assert!(
            text.contains("| `port` | `5000` | A port, for all. |\n"),
            "{text}"
        );
        assert!(
            text.ends_with("| `a.b` | `{}` | Either a \\| b |\n"),
            "{text}"
        );
    }
}
