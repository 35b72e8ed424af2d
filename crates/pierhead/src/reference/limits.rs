//! `limits.md`, from the constants of the code that bound something.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::check_page;

/// Crates without a bound that a user meets: simulators, drawings, fixtures, and policies.
const SKIPPED_CRATES: &[&str] = &["eviction", "plot", "replay", "testkit"];
/// Files without a bound of the product.
const SKIPPED_FILES: &[&str] = &["tests", "fuzzing", "examples", "reference", "forge.rs"];
/// Beginnings and ends of the names of bounds.
const PREFIXES: &[&str] = &["MAX_", "MIN_"];
const SUFFIXES: &[&str] = &["_LIMIT", "_TIMEOUT", "_TTL", "_LIFETIME", "_CAPACITY"];
/// Whole names of bounds.
const NAMES: &[&str] = &[
    "AT_ONCE",
    "CAPACITY",
    "CONNECTIONS",
    "LIFETIME",
    "LIMIT",
    "LONGEST",
    "MAX",
    "MOST",
    "PER_CLIENT",
    "STREAMS",
    "TIMEOUT",
    "TTL",
];
/// Beginnings and parts of a description that tell a size from a count.
const OF_BYTES: &[&str] = &[
    "bytes of",
    "most bytes",
    "in bytes",
    "longest",
    "maximum size",
];
const OF_COUNT: &[&str] = &[
    "blobs",
    "entries",
    "facts",
    "hints",
    "images",
    "maximum number",
    "number of",
    "most contents",
    "most files",
    "runs",
];
/// Names of a size whose value is one power of two.
const SIZES: &[&str] = &["FILE", "LINE", "CONFIG", "SPECIAL"];
/// Fewer bounds than this mean that the test reads nothing.
const FEWEST: usize = 80;

#[derive(Debug, PartialEq)]
enum Value {
    Number(u64),
    Time(Duration),
}

/// A constant as the source has it.
struct Constant {
    name: String,
    expression: String,
    help: String,
}

/// The constants of a file that are numbers or times.
fn constants(text: &str) -> Vec<Constant> {
    const TYPES: &[&str] = &["usize", "u64", "u32", "u16", "u8", "i64", "Duration"];
    let (mut found, mut help) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("/// ") {
            help.push(doc);
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let help = std::mem::take(&mut help).join(" ");
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest.split_once("const ").map_or("", |(_, rest)| rest),
            None => line.strip_prefix("const ").unwrap_or_default(),
        };
        let Some((name, rest)) = line.split_once(": ") else {
            continue;
        };
        let Some((of, expression)) = rest.split_once(" = ") else {
            continue;
        };
        if TYPES.contains(&of)
            && name
                .bytes()
                .all(|it| it.is_ascii_uppercase() || b"_0123456789".contains(&it))
        {
            found.push(Constant {
                name: name.to_owned(),
                expression: expression.trim_end_matches(';').to_owned(),
                help,
            });
        }
    }
    found
}

/// The value of an expression of numbers, `<<`, `*`, `+`, `-`, other constants and `Duration`.
fn value(expression: &str, known: &BTreeMap<String, String>, depth: usize) -> Option<Value> {
    let expression = expression.trim();
    for (name, unit) in [("secs", 1_000_000), ("millis", 1000), ("micros", 1)] {
        let inner = expression.strip_prefix(&format!("Duration::from_{name}("));
        if let Some(inner) = inner.and_then(|rest| rest.strip_suffix(')')) {
            let number = number(inner, known, depth)?;
            return Some(Value::Time(Duration::from_micros(
                number.checked_mul(unit)?,
            )));
        }
    }
    match known.get(expression) {
        Some(other) if depth > 0 => value(other, known, depth - 1),
        _ => number(expression, known, depth).map(Value::Number),
    }
}

/// Left to right by the weakest operator first, without brackets: no bound has any.
fn number(expression: &str, known: &BTreeMap<String, String>, depth: usize) -> Option<u64> {
    let expression = expression.trim();
    for operator in [" << ", " + ", " - ", " * "] {
        if let Some((left, right)) = expression.rsplit_once(operator) {
            let (left, right) = (number(left, known, depth)?, number(right, known, depth)?);
            return match operator {
                " << " => left.checked_shl(u32::try_from(right).ok()?),
                " - " => left.checked_sub(right),
                " + " => left.checked_add(right),
                _ => left.checked_mul(right),
            };
        }
    }
    let plain = expression.split(" as ").next().unwrap_or_default();
    if let Ok(number) = plain.replace('_', "").parse() {
        return Some(number);
    }
    let other = known.get(plain.rsplit("::").next()?)?;
    (depth > 0)
        .then(|| number(other, known, depth - 1))
        .flatten()
}

fn shown(constant: &Constant, value: Option<&Value>) -> String {
    let number = match value {
        None => return format!("`{}`", constant.expression),
        Some(Value::Time(time)) => return shown_time(*time),
        Some(Value::Number(number)) => *number,
    };
    let help = constant.help.to_lowercase();
    let is_size = match () {
        () if constant.name.contains("_BYTES") => true,
        () if OF_COUNT.iter().any(|words| help.starts_with(words)) => false,
        () if OF_BYTES.iter().any(|words| help.contains(words)) => true,
        () if constant.name.ends_with('S') => false,
        () if constant.expression.starts_with("1 <<") => {
            SIZES.iter().any(|size| constant.name.ends_with(size))
        }
        () => constant.expression.contains(" << "),
    };
    match is_size {
        true => pierhead_oci::units::exact_bytes(number),
        false => number.to_string(),
    }
}

fn shown_time(time: Duration) -> String {
    let (seconds, millis) = (time.as_secs(), time.as_millis());
    match seconds {
        0 => format!("{millis} ms"),
        _ if time.subsec_millis() > 0 => format!("{} s", time.as_secs_f64()),
        _ if seconds % 86_400 == 0 => format!("{} d", seconds / 86_400),
        _ if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        _ if seconds % 60 == 0 && seconds > 60 => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

fn pairs(all: &[Constant]) -> impl Iterator<Item = (String, String)> {
    all.iter()
        .map(|it| (it.name.clone(), it.expression.clone()))
}

fn is_bound(name: &str) -> bool {
    NAMES.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let stem = name.strip_suffix(".rs").unwrap_or(&name);
        if SKIPPED_FILES.contains(&name.as_str()) || SKIPPED_FILES.contains(&stem) {
            continue;
        }
        match path.is_dir() {
            true => sources(&path, found),
            false if name.ends_with(".rs") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn the_page_has_every_bound() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = crates.canonicalize().expect("the crates");
    let mut names: Vec<_> = fs::read_dir(&crates)
        .expect("a readable folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| !SKIPPED_CRATES.contains(&name.as_str()))
        .collect();
    names.sort();
    let mut sources_of = Vec::new();
    for name in names {
        let mut files = Vec::new();
        sources(&crates.join(&name).join("src"), &mut files);
        files.sort();
        let read = files.into_iter().map(|file| {
            let source = fs::read_to_string(&file).expect("a readable file");
            // What stands below the tests of a file is no bound of the product.
            let source = source
                .split("#[cfg(test)]\nmod tests")
                .next()
                .unwrap_or_default();
            let place = file
                .strip_prefix(&crates)
                .expect("below")
                .display()
                .to_string();
            (place, constants(source))
        });
        sources_of.push((name, read.collect::<Vec<_>>()));
    }
    // A bound may be made of one of another file.
    let everywhere = sources_of.iter().flat_map(|(_, files)| files);
    let everywhere: BTreeMap<_, _> = everywhere.flat_map(|(_, all)| pairs(all)).collect();
    let (mut text, mut count) = (String::new(), 0);
    for (name, files) in sources_of {
        let mut rows = String::new();
        for (place, all) in files {
            let mut known = everywhere.clone();
            known.extend(pairs(&all));
            for constant in all
                .iter()
                .filter(|it| is_bound(&it.name) && !it.help.is_empty())
            {
                let value = value(&constant.expression, &known, 4);
                let (shown, help) = (
                    shown(constant, value.as_ref()),
                    constant.help.replace("[`", "`"),
                );
                let (name, help) = (&constant.name, help.replace("`]", "`").replace('|', "\\|"));
                let _ = writeln!(rows, "| `{name}` | {shown} | {help} | `{place}` |");
                count += 1;
            }
        }
        if !rows.is_empty() {
            let head =
                "| constant | value | what it bounds | file below `crates/` |\n|---|---|---|---|\n";
            let _ = write!(text, "## {name}\n\n{head}{rows}\n");
        }
    }
    assert!(count >= FEWEST, "only {count} bounds");
    check_page("limits.md", &format!("{}\n", text.trim_end()));
}

#[test]
fn values_are_read_as_the_compiler_reads_them() {
    let source = "/// Bytes.\npub const MAX_A: usize = 4 << 20;\nconst B: u64 = 24 * 3600;\n\
                  /// Days.\npub(crate) const MAX_C: Duration = Duration::from_secs(365 * B);\n\
                  const D: u64 = MAX_A as u64;\nconst TEXT: &str = \"x\";\n";
    let all = constants(source);
    let known: BTreeMap<_, _> = all
        .iter()
        .map(|it| (it.name.clone(), it.expression.clone()))
        .collect();
    let read = |index: usize| value(&all[index].expression, &known, 4);
    assert_eq!(read(0), Some(Value::Number(4 << 20)));
    assert_eq!(read(1), Some(Value::Number(86_400)));
    assert_eq!(
        read(2),
        Some(Value::Time(Duration::from_secs(365 * 86_400)))
    );
    assert_eq!(read(3), Some(Value::Number(4 << 20)));
    assert_eq!(all.len(), 4);
    assert_eq!(shown(&all[0], read(0).as_ref()), "4MiB");
    assert_eq!(shown(&all[2], read(2).as_ref()), "365 d");
}
