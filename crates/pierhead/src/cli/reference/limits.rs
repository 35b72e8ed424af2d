//! Checks that docs/reference/limits.md lists the constants of the code that are limits, and writes
//! the page for `cargo xtask docs --write`.
//!
//! A constant is a limit if its name begins with one of [`PREFIXES`] or ends with one of
//! [`SUFFIXES`]. A limit needs a doc comment that is clear alone, since the page shows the comment
//! without its context.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::check_page;

/// Crates that the page omits, since no user of pierhead meets their limits: eviction policies, the
/// simulator and test fixtures.
const SKIPPED_CRATES: &[&str] = &["eviction", "replay", "testkit"];
/// Files and folders that the page omits, since they have no code of the daemon or of a command.
const SKIPPED_FILES: &[&str] = &["tests", "fuzzing", "examples", "reference", "forge.rs"];
/// A constant whose name begins with one of these prefixes is a limit.
const PREFIXES: &[&str] = &["MAX_", "MIN_"];
/// A constant whose name ends with one of these suffixes is a limit.
const SUFFIXES: &[&str] = &[
    "_CAPACITY",
    "_INTERVAL",
    "_LIFETIME",
    "_LIMIT",
    "_SLOTS",
    "_TIMEOUT",
    "_TTL",
];
/// Names that say neither what is limited nor in which unit, so no constant may have them.
const BARE_NAMES: &[&str] = &[
    "AT_ONCE",
    "CAPACITY",
    "CONNECTIONS",
    "LIFETIME",
    "LIMIT",
    "LONGEST",
    "MAX",
    "MIN",
    "MOST",
    "PER_CLIENT",
    "STREAMS",
    "TIMEOUT",
    "TTL",
];
/// First words of a doc comment that is not clear without its context.
const DANGLING_WORDS: &[&str] = &[
    "Above", "As", "Below", "Beyond", "Bytes", "Fewer", "Half", "Longer", "More", "Of", "Shorter",
    "Some", "Than", "That", "These", "They", "This", "What",
];
/// Sections of the page: heading, introduction, and the paths below `crates/` whose limits the
/// section lists.
const SECTIONS: &[(&str, &str, &[&str])] = &[
    (
        "Limits that clients meet",
        "Limits of the requests, responses and connections of clients. A client that exceeds a limit gets an error, waits, or is disconnected.",
        &["proxy/", "oci/"],
    ),
    (
        "Limits of registries and images",
        "Responses of registries, and the contents of images. Beyond these, pierhead treats a response as invalid, or makes no \
         bundle of the image.",
        &["remote/", "toc/", "bundle/", "bundle-server/"],
    ),
    (
        "Limits that operators meet",
        "Configuration, command line and admin listener of the daemon, `pierhead setup`, and the commands of a worker.",
        &["pierhead/", "client-setup/", "worker/"],
    ),
    (
        "Internal limits",
        "Memory, queues and intervals of the cache and of background work. No request meets them.",
        &["atomic-file/", "cache/", "host/", "pmem/"],
    ),
];
/// A limit whose doc comment contains one of these parts is a size in bytes.
const OF_BYTES: &[&str] = &[
    "bytes of",
    "most bytes",
    "in bytes",
    "longest",
    "maximum size",
];
/// A limit whose doc comment begins with one of these words is a count, not a size in bytes.
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
/// Suffixes of the names of sizes whose value is a single power of two.
const SIZES: &[&str] = &["FILE", "LINE", "CONFIG", "SPECIAL"];
/// Minimum number of limits in the sources. A test that finds fewer limits has not read all
/// sources.
const MIN_LIMITS: usize = 80;

#[derive(Debug, PartialEq)]
enum Value {
    Number(u64),
    Time(Duration),
}

/// A constant of the source code.
struct Constant {
    name: String,
    expression: String,
    help: String,
}

/// Finds the constants in a source file whose type is a number or a duration.
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

/// Evaluates an expression of numbers, `<<`, `*`, `+`, `-`, other constants and `Duration`.
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

/// Evaluates an expression without brackets, since no limit has brackets.
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

fn format_value(constant: &Constant, value: Option<&Value>) -> String {
    let number = match value {
        None => return format!("`{}`", constant.expression),
        Some(Value::Time(time)) => return format_time(*time),
        Some(Value::Number(number)) => *number,
    };
    let help = constant.help.to_lowercase();
    let is_size = match () {
        () if constant.name.contains("_BYTES") => true,
        () if help.contains("number of bytes") || help.starts_with("maximum bytes") => true,
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

fn format_time(time: Duration) -> String {
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

fn is_limit(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Returns the fault of a doc comment that would be unclear on the page, which shows the comment
/// without its code.
fn comment_problem(help: &str) -> Option<&'static str> {
    let first = help.split([' ', ',']).next().unwrap_or_default();
    match () {
        () if help.is_empty() => Some("has no comment"),
        () if !help.ends_with('.') => Some("has a comment that does not end with a full stop"),
        () if !first.starts_with(|it: char| it.is_uppercase()) => {
            Some("has a comment that does not begin with a capital letter")
        }
        () if help.split_whitespace().count() < 4 => Some("has a comment of less than four words"),
        () if DANGLING_WORDS.contains(&first) => Some(
            "has a comment that needs its context: begin with a noun, such as \"Maximum number of …\"",
        ),
        () => None,
    }
}

/// Adds the source files of a folder to `found`, without tests.
pub(super) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
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

/// Returns the sources of all crates: each file's path below `crates/`, with its constants.
fn all_constants() -> Vec<(String, Vec<Constant>)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = crates.canonicalize().expect("the crates");
    let mut found = Vec::new();
    for entry in fs::read_dir(&crates).expect("a readable folder") {
        let folder = entry.expect("an entry").path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if !SKIPPED_CRATES.contains(&&*name) {
            sources(&folder.join("src"), &mut found);
        }
    }
    found.sort();
    let constants_of = |file: PathBuf| {
        let source = fs::read_to_string(&file).expect("a readable file");
        // Skips the unit tests at the end of a file.
        let source = source.split("#[cfg(test)]\nmod tests").next();
        let path = file.strip_prefix(&crates).expect("a path below crates");
        (
            path.display().to_string(),
            constants(source.unwrap_or_default()),
        )
    };
    found.into_iter().map(constants_of).collect()
}

/// Formats one row of a table on the page.
fn row(path: &str, constant: &Constant, known: &BTreeMap<String, String>) -> String {
    let value = value(&constant.expression, known, 4);
    let value = format_value(constant, value.as_ref());
    let help = constant.help.replace("[`", "`").replace("`]", "`");
    let help = help.replace('|', "\\|");
    format!("| {help} | {value} | `{}` in `{path}` |\n", constant.name)
}

#[test]
fn the_page_has_every_limit() {
    let files = all_constants();
    // Limits may be computed from constants of other files, so all constants are known here.
    let everywhere: BTreeMap<_, _> = files.iter().flat_map(|(_, all)| pairs(all)).collect();
    let (mut text, mut count) = (String::new(), 0);
    for (heading, introduction, paths) in SECTIONS {
        let introduction = super::wrap(introduction);
        let _ = write!(
            text,
            "## {heading}\n\n{introduction}\n\n| limit | value | constant |\n|---|---|---|\n"
        );
        for (path, all) in &files {
            if !paths.iter().any(|prefix| path.starts_with(prefix)) {
                continue;
            }
            let mut known = everywhere.clone();
            known.extend(pairs(all));
            for constant in all.iter().filter(|it| is_limit(&it.name)) {
                text.push_str(&row(path, constant, &known));
                count += 1;
            }
        }
        text.push('\n');
    }
    let all = files.iter().flat_map(|(_, all)| all);
    let limits = all.filter(|it| is_limit(&it.name)).count();
    assert_eq!(count, limits, "a crate is in no section");
    assert!(count >= MIN_LIMITS, "only {count} limits");
    check_page("limits.md", &format!("{}\n", text.trim_end()));
}

#[test]
fn every_limit_has_a_comment_that_reads_alone() {
    let mut problems = Vec::new();
    for (path, all) in all_constants() {
        for constant in all {
            if BARE_NAMES.contains(&&*constant.name) {
                problems.push(format!(
                    "{path}: {} does not say what it limits",
                    constant.name
                ));
            }
            let is_listed = is_limit(&constant.name);
            if let Some(problem) = comment_problem(&constant.help).filter(|_| is_listed) {
                problems.push(format!("{path}: {} {problem}", constant.name));
            }
        }
    }
    assert_eq!(problems.len(), 0, "{problems:#?}");
}

#[test]
fn constant_expressions_are_evaluated_like_the_compiler_does() {
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
    assert_eq!(format_value(&all[0], read(0).as_ref()), "4MiB");
    assert_eq!(format_value(&all[2], read(2).as_ref()), "365 d");
}
