//! Generates docs/reference/http-api.md from the route tables of both listeners and the documents
//! of the admin API.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use pierhead_oci::routes;

use super::check_page;
use crate::admin::route_table;

const API: &str = include_str!("../../admin/api.rs");

fn codes(statuses: &[u16]) -> String {
    let codes: Vec<_> = statuses.iter().map(ToString::to_string).collect();
    codes.join(", ")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn statuses(text: &mut String, rows: &[(u16, &str)]) {
    text.push_str("| status | meaning |\n|---|---|\n");
    for (code, meaning) in rows {
        let _ = writeln!(text, "| {code} | {} |", one_line(meaning));
    }
    text.push('\n');
}

fn distribution(text: &mut String) {
    text.push_str("## Client listener\n\n");
    text.push_str("| method | path | statuses | response |\n|---|---|---|---|\n");
    for route in routes::ROUTES {
        let methods = match route.methods {
            [] => "none".to_owned(),
            methods => methods.join(", "),
        };
        let (path, codes, purpose) = (route.path, codes(route.statuses), one_line(route.purpose));
        let _ = writeln!(text, "| {methods} | `{path}` | {codes} | {purpose} |");
    }
    text.push_str("\nQuery parameters, and fields of the body of a POST:\n\n");
    text.push_str("| path | name | meaning |\n|---|---|---|\n");
    for route in routes::ROUTES {
        for (name, meaning) in route.parameters {
            let _ = writeln!(text, "| `{}` | `{name}` | {meaning} |", route.path);
        }
    }
    text.push_str("\nStatuses of single paths:\n\n");
    statuses(text, routes::OTHER_STATUSES);
    text.push_str("Statuses of all paths:\n\n");
    statuses(text, routes::STATUSES);
}

fn admin(text: &mut String) {
    text.push_str("## Admin listener\n\n");
    text.push_str(
        "| method | path | input | output | statuses | purpose |\n|---|---|---|---|---|---|\n",
    );
    for route in route_table::ROUTES {
        let (codes, purpose) = (codes(route.statuses), one_line(route.purpose));
        let (input, output) = (route.input, route.output);
        let _ = writeln!(
            text,
            "| {} | `{}` | {input} | {output} | {codes} | {purpose} |",
            route.method, route.path
        );
    }
    text.push_str("\nStatuses of all paths:\n\n");
    statuses(text, route_table::STATUSES);
}

/// Returns the JSON type of a Rust type in `api.rs`, and whether a field of this Rust type may be
/// absent.
fn json_type(of: &str) -> (String, bool) {
    let inner = |prefix: &str| of.strip_prefix(prefix)?.strip_suffix('>');
    if let Some(inner) = inner("Option<") {
        return (json_type(inner).0, true);
    }
    if let Some(inner) = inner("Vec<") {
        return (format!("list of {}", json_type(inner).0), false);
    }
    let name = match of {
        "u64" | "f64" => "number",
        "bool" => "boolean",
        "String" => "string",
        "Digest" => "digest",
        map if map.starts_with("BTreeMap") => "object of numbers",
        document => {
            let is_document = document.starts_with(|first: char| first.is_ascii_uppercase());
            assert!(is_document, "the page has no JSON type for {document}");
            return (format!("`{document}`"), false);
        }
    };
    (name.to_owned(), false)
}

/// Removes the brackets of rustdoc links from a text.
fn without_links(text: &str) -> String {
    text.replace("[`", "`").replace("`]", "`")
}

/// Describes the structs of `api.rs` and the variants of its enum, with their fields.
fn documents(text: &mut String) {
    let (mut help, mut is_open) = (String::new(), false);
    for line in API.lines() {
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("/// ") {
            let _ = write!(help, "{doc} ");
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let description = without_links(help.trim());
        help.clear();
        let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
        let head = line.strip_prefix("struct ").or(line.strip_prefix("enum "));
        if let Some(name) = head.and_then(|rest| rest.strip_suffix(" {")) {
            let _ = write!(text, "### `{name}`\n\n{description}\n\n");
            text.push_str("| field | type | meaning |\n|---|---|---|\n");
            is_open = true;
        } else if line == "}" {
            if is_open {
                text.push('\n');
            }
            is_open = false;
        } else if !is_open {
        } else if let Some(variant) = line.strip_suffix(" {") {
            let _ = writeln!(
                text,
                "| `event: \"{}\"` | | {description} |",
                variant.to_lowercase()
            );
        } else if let Some((variant, fields)) = line.split_once(" { ") {
            let _ = writeln!(
                text,
                "| `event: \"{}\"` | | {description} |",
                variant.to_lowercase()
            );
            for field in fields.trim_end_matches(" },").split(", ") {
                field_row(text, field, "");
            }
        } else if line.contains(": ") {
            field_row(text, line.trim_end_matches(','), &description);
        }
    }
}

fn field_row(text: &mut String, field: &str, help: &str) {
    let (name, of) = field.split_once(": ").expect("a field");
    let (of, is_optional) = json_type(of);
    let of = match is_optional {
        true => format!("{of}, or absent"),
        false => of,
    };
    let _ = writeln!(text, "| `{name}` | {of} | {help} |");
}

#[test]
fn the_page_has_every_route_and_document() {
    let mut text = String::new();
    distribution(&mut text);
    admin(&mut text);
    text.push_str("## Documents of the admin listener\n\n");
    documents(&mut text);
    check_page("http-api.md", &format!("{}\n", text.trim_end()));
}

#[test]
fn every_document_of_a_route_is_described() {
    let mut text = String::new();
    documents(&mut text);
    for route in route_table::ROUTES {
        for named in [route.input, route.output] {
            let named = named.strip_prefix("lines of ").unwrap_or(named);
            let is_document = named.starts_with('`') && !named.starts_with("`?");
            assert!(
                !is_document || text.contains(&format!("### {named}\n")),
                "{named} of {}",
                route.path
            );
        }
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// Returns the HTTP statuses that occur in the code of a folder.
fn statuses_in(folder: &str) -> BTreeSet<u16> {
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    files(&root.join(folder), &mut found);
    let mut statuses = BTreeSet::new();
    for file in found {
        let text = fs::read_to_string(file).expect("a readable file");
        for rest in text.split("StatusCode::").skip(1) {
            let end = rest.find(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
            let name = &rest[..end.unwrap_or(rest.len())];
            // The name of the constant equals the reason phrase of its HTTP status.
            let of_name = (100..600).filter(|code| {
                let status = http::StatusCode::from_u16(*code).ok();
                let reason = status.and_then(|status| status.canonical_reason());
                reason.is_some_and(|reason| reason.to_uppercase().replace([' ', '-'], "_") == name)
            });
            statuses.extend(of_name);
        }
    }
    statuses
}

#[test]
fn the_tables_have_every_status_that_the_code_names() {
    let of_proxy = routes::STATUSES.iter().chain(routes::OTHER_STATUSES);
    let of_proxy: BTreeSet<_> = of_proxy.map(|(code, _)| *code).collect();
    // The status 204 is omitted: the code uses it for a response without a body before it sets the
    // real status.
    let named: BTreeSet<_> = statuses_in("proxy/src")
        .into_iter()
        .filter(|it| *it != 204)
        .collect();
    assert_eq!(named, of_proxy);
    let common = route_table::STATUSES.iter().map(|(code, _)| *code);
    let of_admin = route_table::ROUTES
        .iter()
        .flat_map(|route| route.statuses.iter().copied());
    let of_admin: BTreeSet<_> = of_admin.chain(common).collect();
    assert_eq!(statuses_in("pierhead/src/admin"), of_admin);
}
