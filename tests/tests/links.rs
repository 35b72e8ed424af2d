//! Checks the links of the documentation: every relative link and anchor leads to an existing
//! target, every page that source code mentions exists, and the index lists every page of docs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders without source files of this repository.
const SKIPPED: &[&str] = &["target", ".git"];
/// Extensions of the files whose text may name a page (`docs/….md`).
const TEXT: &[&str] = &[
    "rs", "toml", "yaml", "tpl", "sh", "py", "json", "service", "txt",
];
/// Minimum number of links. Fewer links mean that the test reads no files.
const MIN_LINKS: usize = 100;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_ref()) {
                files(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

fn with_ending(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root(), &mut found);
    found.retain(|path| {
        let ending = path.extension().and_then(|it| it.to_str());
        ending.is_some_and(|it| endings.contains(&it))
    });
    found.sort();
    found
}

/// The path without `.` and `..`, so that each file has one path.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The lines of a page outside of its code blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchor of a heading, as GitHub and GitLab generate it.
fn anchor_of(heading: &str) -> String {
    let mut anchor = String::new();
    for letter in heading.trim().chars() {
        match letter {
            ' ' => anchor.push('-'),
            '-' | '_' => anchor.push(letter),
            letter if letter.is_alphanumeric() => anchor.extend(letter.to_lowercase()),
            _ => {}
        }
    }
    anchor
}

fn anchors_of(page: &str) -> BTreeSet<String> {
    let mut times = BTreeMap::<String, usize>::new();
    let headings = prose(page).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let anchor = anchor_of(line.trim_start_matches('#'));
            let count = times.entry(anchor.clone()).or_default();
            *count += 1;
            match *count {
                1 => anchor,
                more => format!("{anchor}-{}", more - 1),
            }
        })
        .collect()
}

/// The targets of the links in a line: `[text](target)` and `[text]: target`.
fn targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    let mut rest = line;
    while let Some((_, after)) = rest.split_once("](") {
        let end = after.find([')', ' ']).unwrap_or(after.len());
        targets.push(&after[..end]);
        rest = &after[end..];
    }
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        targets.push(target.trim());
    }
    targets
}

#[test]
fn every_relative_link_and_anchor_exists() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in with_ending(&["md"]) {
        let text = fs::read_to_string(&page).expect("a readable page");
        for target in prose(&text).flat_map(targets) {
            if target.starts_with("https://") || target.starts_with("http://") {
                continue;
            }
            count += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = match path {
                "" => page.clone(),
                path => normal(&page.parent().expect("a folder").join(path)),
            };
            let has_anchor = || {
                let linked = fs::read_to_string(&to).unwrap_or_default();
                anchor.is_empty() || anchors_of(&linked).contains(anchor)
            };
            if !to.exists() || !has_anchor() {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links without a target: {wrong:#?}");
    assert!(count >= MIN_LINKS, "only {count} links");
}

/// The pages that a text names by their paths from the root of the repository: `docs/….md`.
fn pages_named(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("docs/").filter_map(|(start, _)| {
        let path = &text[start..];
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "/-_.".contains(letter);
        let end = path.find(|letter| !is_name(letter)).unwrap_or(path.len());
        let end = path[..end].rfind(".md")? + ".md".len();
        Some(&path[..end])
    })
}

#[test]
fn every_page_that_code_names_exists() {
    let mut wrong = Vec::new();
    for file in with_ending(TEXT) {
        let text = fs::read_to_string(&file).unwrap_or_default();
        for page in pages_named(&text) {
            if !root().join(page).exists() {
                wrong.push(format!("{}: {page}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such pages: {wrong:#?}");
}

#[test]
fn every_page_of_docs_is_in_the_index() {
    let docs = normal(&root().join("docs"));
    let index = fs::read_to_string(docs.join("README.md")).expect("the index");
    let linked: BTreeSet<_> = prose(&index)
        .flat_map(targets)
        .map(|target| normal(&docs.join(target.split('#').next().unwrap_or_default())))
        .collect();
    let pages = with_ending(&["md"]).into_iter().map(|page| normal(&page));
    let missing: Vec<_> = pages
        .filter(|page| page.starts_with(&docs) && !page.ends_with("README.md"))
        .filter(|page| !linked.contains(page))
        .collect();
    assert!(missing.is_empty(), "not in docs/README.md: {missing:#?}");
}
