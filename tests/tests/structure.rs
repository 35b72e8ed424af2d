//! Checks the inside of each crate: import cycles, type names, words that names and comments must
//! not use, module style. `architecture.rs` checks the dependencies between crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of files in an import cycle of a crate.
const MAX_CYCLE: usize = 3;

/// A folder whose files are alternatives for platforms. A build compiles one of these files.
const PLATFORM_FILES: &str = "crates/pmem/src/sys/flush/";

/// Words that no identifier may contain, each with its replacement. An identifier is split at `_`
/// and at upper-case letters, so that `rot` does not forbid `rotate`.
const RETIRED: &[(&str, &str)] = &[
    ("begun", "started_at, or started"),
    ("door", "admission"),
    ("doors", "admission"),
    ("errand", "operation"),
    ("flights", "fill or shared request"),
    ("guest", "client_identity or pass_through"),
    ("guests", "pass_through"),
    ("had", "base_images"),
    ("joins", "coalesced"),
    ("ledger", "tier_state"),
    ("lent", "the name of the memory's owner"),
    ("lies", "mismatch"),
    ("mend", "fix"),
    ("mends", "fix"),
    ("mistake", "error"),
    ("owed", "dirty"),
    ("owes", "dirty"),
    ("placing", "placement"),
    ("processor", "cpu"),
    ("rot", "corrupt"),
    ("rotten", "corrupt"),
    ("shelf", "paths"),
    ("turns", "keyed_lock"),
    ("unworn", "write_budget"),
    ("upkeep", "maintenance"),
    ("wear", "write_budget"),
    ("wish", "placement"),
];

/// The words of [`RETIRED`] that `xtask` may use: the guest of a virtual machine.
const ALLOWED_IN_XTASK: &[&str] = &["guest", "guests"];

/// Participles and quantities that must not be the whole name of a type or a constant.
const RETIRED_ALONE: &[(&str, &str)] = &[
    ("both", "the two things"),
    ("few", "the maximum number, with its unit"),
    ("had", "base_images"),
    ("lead", "fill_owner"),
    ("longest", "the maximum, with its unit"),
    ("recent", "the things that are recent"),
];

/// Minimum number of words of a name that is a sentence, such as the name of a test. The words of a
/// sentence have their usual meaning.
const SENTENCE_WORDS: usize = 5;

/// Further words that no declared name, key or metric may contain. Local variables may contain
/// these words.
const RETIRED_IN_DECLARATIONS: &[(&str, &str)] = &[
    ("behind", "write_back"),
    ("drain", "write_back"),
    ("earlier", "superseded"),
    ("kept", "the state: cached, stored or retained"),
    ("ranks", "policy_state"),
    ("said", "log_dedup"),
    ("told", "reported"),
];

/// Phrases that no comment and no page may contain, each with its replacement.
const RETIRED_IN_TEXT: &[(&str, &str)] = &[
    ("as it were", "delete it"),
    ("control group", "cgroup"),
    ("control groups", "cgroups"),
    ("door", "admission"),
    ("errand", "operation"),
    ("for good", "permanently"),
    ("given up", "cancelled"),
    ("gone on", "continued"),
    ("ledger", "the state"),
    ("lent", "borrowed"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("mends", "fixes"),
    ("mistake", "error"),
    ("mistakes", "errors"),
    ("owed", "dirty"),
    ("owes", "the state"),
    ("processor", "CPU"),
    ("processors", "CPUs"),
    ("shelf", "paths"),
    ("upkeep", "maintenance"),
    ("whom", "the client"),
    ("wish", "placement"),
];

#[test]
fn no_import_cycle_has_more_than_three_files() {
    let mut wrong = Vec::new();
    for krate in crates() {
        for cycle in krate.cycles() {
            if cycle.len() > MAX_CYCLE {
                wrong.push(format!("{}: {}", krate.name, cycle.join(", ")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "import cycles of more than {MAX_CYCLE} files:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_public_type_name_occurs_once_in_a_crate() {
    let mut wrong = Vec::new();
    for krate in crates() {
        let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for file in &krate.files {
            for declaration in declarations(&file.tokens) {
                if declaration.is_public && declaration.kind == "type" {
                    by_name
                        .entry(declaration.name)
                        .or_default()
                        .push(&file.path);
                }
            }
        }
        for (name, files) in by_name {
            let is_per_platform = files.iter().all(|it| it.starts_with(PLATFORM_FILES));
            if files.len() > 1 && !is_per_platform {
                wrong.push(format!("{}: {name} in {}", krate.name, files.join(", ")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "public type names that occur twice in a crate:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn no_name_contains_a_retired_word() {
    let mut wrong = BTreeSet::new();
    for krate in crates() {
        for file in &krate.files {
            let strings = user_names(&file.strings).map(str::to_owned);
            let declared = declared_names(&file.tokens);
            let names = file.module.iter().cloned().chain(declared).chain(strings);
            for name in names {
                for retired in [RETIRED, RETIRED_IN_DECLARATIONS] {
                    wrong.extend(fault_of_name(&file.path, &name, retired));
                }
            }
        }
    }
    // Names in tests and tools, whose sentences and local variables have more freedom.
    for path in all_sources() {
        let (path, text) = (relative(&path), read(&path));
        let tokens = lex(&text).0;
        for token in &tokens {
            if let Token::Word(name) = token {
                wrong.extend(fault_of_name(&path, name, RETIRED));
            }
        }
        for declaration in declarations(&tokens) {
            if matches!(declaration.kind, "type" | "constant") {
                wrong.extend(fault_of_name(
                    &path,
                    declaration.name,
                    RETIRED_IN_DECLARATIONS,
                ));
                let alone = RETIRED_ALONE.iter();
                let alone = alone.filter(|(word, _)| declaration.name.to_lowercase() == **word);
                let message = |(_, instead): &(&str, &str)| {
                    format!("{path}: {}: write {instead}", declaration.name)
                };
                wrong.extend(alone.map(message));
            }
        }
    }
    let wrong: Vec<_> = wrong.into_iter().collect();
    assert!(
        wrong.is_empty(),
        "retired words in names:\n{}",
        wrong.join("\n")
    );
}

/// Names that a file of the product declares.
fn declared_names(tokens: &[Token]) -> impl Iterator<Item = String> {
    let declared = declarations(tokens).into_iter();
    declared.map(|declaration| declaration.name.to_owned())
}

/// The message about a name that contains a retired word, if the name is no sentence.
fn fault_of_name(
    path: &str,
    name: &str,
    retired: &[(&'static str, &'static str)],
) -> Option<String> {
    let (word, instead) = retired_word(name, retired)?;
    let is_allowed = path.starts_with("xtask/") && ALLOWED_IN_XTASK.contains(&word);
    let is_sentence = name.split('_').count() >= SENTENCE_WORDS;
    (!is_allowed && !is_sentence).then(|| format!("{path}: {name}: write {instead}, not {word}"))
}

#[test]
fn no_comment_contains_a_retired_phrase() {
    let mut wrong = Vec::new();
    for path in all_sources() {
        let comments = read(&path);
        let comments = comments.lines().enumerate().filter_map(|(number, line)| {
            let comment = line.trim_start().strip_prefix("//")?;
            Some((number, comment.to_owned()))
        });
        wrong.extend(faults_of_text(&path, comments));
    }
    assert!(
        wrong.is_empty(),
        "retired phrases in comments:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn no_page_contains_a_retired_phrase() {
    let mut pages = Vec::new();
    for name in [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ] {
        pages.push(root().join(name));
    }
    pages.extend(files(&root().join("docs"), &["md"]));
    for folder in ["chart", "chart-host", "dpf", "systemd"] {
        let folder = root().join("bluefield").join(folder);
        pages.extend(files(
            &folder,
            &["md", "yaml", "tpl", "txt", "service", "toml"],
        ));
    }
    assert!(pages.len() > 100, "{pages:?}");
    let mut wrong = Vec::new();
    for path in pages {
        let text = read(&path);
        let lines = text.lines().map(str::to_owned).enumerate();
        wrong.extend(faults_of_text(&path, lines));
    }
    assert!(
        wrong.is_empty(),
        "retired phrases in pages:\n{}",
        wrong.join("\n")
    );
}

/// The messages about lines of a file that contain a retired phrase.
fn faults_of_text(path: &Path, lines: impl Iterator<Item = (usize, String)>) -> Vec<String> {
    let faults = lines.filter_map(|(number, line)| {
        let (phrase, instead) = retired_phrase(&line)?;
        let (path, number) = (relative(path), number + 1);
        Some(format!("{path}:{number}: write {instead}, not {phrase}"))
    });
    faults.collect()
}

#[test]
fn a_module_with_children_is_a_mod_rs() {
    let mut wrong = Vec::new();
    for folder in ["crates", "tests", "benches", "xtask", "fuzz"] {
        for path in sources(&root().join(folder)) {
            if path.with_extension("").is_dir() {
                wrong.push(relative(&path));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "move these into their folders as mod.rs, or main.rs for a test: {wrong:#?}"
    );
}

/// A crate of `crates/`, without its tests.
struct Crate {
    name: String,
    files: Vec<File>,
}

struct File {
    /// The path from the root of the repository.
    path: String,
    /// The path of the module in its crate; empty for `lib.rs`.
    module: Vec<String>,
    tokens: Vec<Token>,
    /// The contents of all string literals.
    strings: Vec<String>,
    /// Each name that a `use` brings into this module, with its full path.
    imports: Vec<(String, Vec<String>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    PathSeparator,
    Other(char),
}

impl Token {
    fn is(&self, text: &str) -> bool {
        matches!(self, Self::Word(word) if word == text)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the root of the repository")
        .to_owned()
}

fn relative(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap_or(path);
    path.to_string_lossy().into_owned()
}

fn crates() -> Vec<Crate> {
    let folders = fs::read_dir(root().join("crates")).expect("crates/ can be read");
    let mut names: Vec<_> = folders
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    let crates = names
        .iter()
        .map(|name| Crate::read(&name.to_string_lossy()));
    crates.filter(|krate| !krate.files.is_empty()).collect()
}

/// All Rust files of the repository.
fn all_sources() -> Vec<PathBuf> {
    let folders = [
        "crates",
        "tests",
        "benches",
        "xtask",
        "fuzz/src",
        "fuzz/fuzz_targets",
    ];
    let found = folders
        .iter()
        .flat_map(|folder| sources(&root().join(folder)));
    // This file lists the retired words.
    found.filter(|path| !path.ends_with(file!())).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a file can be read")
}

/// All Rust files below `folder`, sorted.
fn sources(folder: &Path) -> Vec<PathBuf> {
    files(folder, &["rs"])
}

/// All files below `folder` with one of these extensions, sorted.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|it| extensions.iter().any(|extension| it == *extension))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

impl Crate {
    fn read(name: &str) -> Self {
        let folder = root().join("crates").join(name).join("src");
        let mut files: Vec<_> = sources(&folder)
            .iter()
            .filter_map(|path| {
                let inside = path.strip_prefix(&folder).ok()?.with_extension("");
                let mut module: Vec<_> = inside
                    .iter()
                    .map(|part| part.to_string_lossy().into_owned())
                    .collect();
                let last = module.last()?.clone();
                let is_of_tests = |part: &String| part == "tests" || part == "bin";
                if module.iter().any(is_of_tests) {
                    return None;
                }
                if last == "mod" || (module.len() == 1 && (last == "lib" || last == "main")) {
                    module.pop();
                }
                let text = fs::read_to_string(path).expect("a source can be read");
                let (tokens, strings) = lex(&text);
                Some(File {
                    path: relative(path),
                    module,
                    tokens: without_tests(&tokens),
                    strings,
                    imports: Vec::new(),
                })
            })
            .collect();
        let modules: BTreeSet<_> = files.iter().map(|file| file.module.clone()).collect();
        for file in &mut files {
            file.imports = imports(file, &modules);
        }
        Self {
            name: name.to_owned(),
            files,
        }
    }

    /// The files of each import cycle.
    fn cycles(&self) -> Vec<Vec<String>> {
        let modules: BTreeSet<_> = self.files.iter().map(|file| file.module.clone()).collect();
        let edges: Vec<BTreeSet<usize>> = (0..self.files.len())
            .map(|index| {
                let file = &self.files[index];
                paths(file, &modules)
                    .into_iter()
                    .filter_map(|path| self.owner(&path, 0))
                    .filter(|owner| *owner != index)
                    .collect()
            })
            .collect();
        let reachable: Vec<_> = (0..edges.len()).map(|from| reach(&edges, from)).collect();
        let mut cycles = BTreeSet::new();
        for from in 0..edges.len() {
            let both = reachable[from].iter().copied();
            let cycle: BTreeSet<_> = both.filter(|to| reachable[*to].contains(&from)).collect();
            if cycle.len() > 1 {
                cycles.insert(cycle);
            }
        }
        let name = |index: &usize| self.files[*index].path.clone();
        let cycles = cycles.iter().map(|cycle| cycle.iter().map(name).collect());
        cycles.collect()
    }

    /// The file that defines the item at `path`, through re-exports.
    fn owner(&self, path: &[String], depth: usize) -> Option<usize> {
        let mut module = Vec::new();
        let mut rest = path;
        while let [first, more @ ..] = rest {
            module.push(first.clone());
            if !self.files.iter().any(|file| file.module == module) {
                module.pop();
                break;
            }
            rest = more;
        }
        let index = self.files.iter().position(|file| file.module == module)?;
        let file = &self.files[index];
        let [item, more @ ..] = rest else {
            return Some(index);
        };
        if depth > 8 {
            return Some(index);
        }
        let of_name = file.imports.iter().find(|(name, _)| name == item);
        let is_declared = declarations(&file.tokens)
            .iter()
            .any(|declaration| declaration.name == item);
        let glob = file.imports.iter().find(|(name, _)| name == "*");
        let target = match (of_name, glob) {
            (Some((_, target)), _) => [target, more].concat(),
            (None, Some((_, target))) if !is_declared => [target, rest].concat(),
            _ => return Some(index),
        };
        // The target of the path may be in another crate, whose files this test does not read here.
        if target.first().is_some_and(|first| first == "crate") {
            return self.owner(&target[1..], depth + 1);
        }
        Some(index)
    }
}

/// All files that can be reached from one file, including itself.
fn reach(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::from([from]);
    let mut waiting = vec![from];
    while let Some(next) = waiting.pop() {
        for to in &edges[next] {
            if seen.insert(*to) {
                waiting.push(*to);
            }
        }
    }
    seen
}

/// Tokens without comments, and the contents of string literals.
fn lex(text: &str) -> (Vec<Token>, Vec<String>) {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut strings) = (Vec::new(), Vec::new());
    let mut at = 0;
    let get = |at: usize| chars.get(at).copied().unwrap_or('\0');
    while at < chars.len() {
        match (get(at), get(at + 1)) {
            ('/', '/') => {
                while at < chars.len() && get(at) != '\n' {
                    at += 1;
                }
            }
            ('/', '*') => {
                at += 2;
                while at < chars.len() && (get(at), get(at + 1)) != ('*', '/') {
                    at += 1;
                }
                at += 2;
            }
            ('"', _) => {
                let begin = at + 1;
                at += 1;
                while at < chars.len() && get(at) != '"' {
                    at += if get(at) == '\\' { 2 } else { 1 };
                }
                strings.push(chars[begin..at.min(chars.len())].iter().collect());
                at += 1;
            }
            ('r', '"' | '#') if raw_string(&chars, at).is_some() => {
                let (begin, end, next) = raw_string(&chars, at).unwrap_or((at, at, at + 1));
                strings.push(chars[begin..end].iter().collect());
                at = next;
            }
            // A quote followed by a backslash begins a character literal, not a lifetime.
            ('\'', '\\') => {
                at += 3;
                while at < chars.len() && get(at) != '\'' {
                    at += 1;
                }
                at += 1;
            }
            ('\'', _) if get(at + 2) == '\'' => at += 3,
            (':', ':') => {
                tokens.push(Token::PathSeparator);
                at += 2;
            }
            (c, _) if c.is_alphanumeric() || c == '_' => {
                let begin = at;
                while get(at).is_alphanumeric() || get(at) == '_' {
                    at += 1;
                }
                tokens.push(Token::Word(chars[begin..at].iter().collect()));
            }
            (c, _) => {
                if !c.is_whitespace() {
                    tokens.push(Token::Other(c));
                }
                at += 1;
            }
        }
    }
    (tokens, strings)
}

/// The begin and the end of the contents of a raw string at `at`, and the position after it.
fn raw_string(chars: &[char], at: usize) -> Option<(usize, usize, usize)> {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let begin = at + 1 + hashes;
    if chars.get(begin) != Some(&'"') {
        return None;
    }
    let is_end = |end: usize| {
        chars[end] == '"'
            && chars[end + 1..].len() >= hashes
            && chars[end + 1..end + 1 + hashes].iter().all(|c| *c == '#')
    };
    let end = (begin + 1..chars.len()).find(|end| is_end(*end))?;
    Some((begin + 1, end, end + 1 + hashes))
}

/// Drops each item under `#[cfg(test)]`, or under a `cfg` that names `test`.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut product = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let end = attribute_end(tokens, at);
        let Some(end) = end else {
            product.push(tokens[at].clone());
            at += 1;
            continue;
        };
        let attribute = &tokens[at..end];
        let is_cfg = attribute.iter().any(|token| token.is("cfg"));
        let is_test = attribute.iter().any(|token| token.is("test"));
        let negated = attribute.iter().any(|token| token.is("not"));
        if !(is_cfg && is_test) || negated {
            product.extend_from_slice(attribute);
            at = end;
            continue;
        }
        at = item_end(tokens, end);
    }
    product
}

/// The end of the attribute that begins at `at`, if any.
fn attribute_end(tokens: &[Token], at: usize) -> Option<usize> {
    let opens = tokens.get(at) == Some(&Token::Other('#'));
    if !opens || tokens.get(at + 1) != Some(&Token::Other('[')) {
        return None;
    }
    Some(group_end(tokens, at + 1, '[', ']'))
}

/// The end of the group that opens at `at`.
fn group_end(tokens: &[Token], at: usize, open: char, close: char) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        if *token == Token::Other(open) {
            depth += 1;
        } else if *token == Token::Other(close) {
            depth -= 1;
            if depth == 0 {
                return index + 1;
            }
        }
    }
    tokens.len()
}

/// The end of the item at `at`: its `;`, `,` or closing brace.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        match token {
            Token::Other('#') => at = attribute_end(tokens, at).unwrap_or(at + 1),
            Token::Other('(') => at = group_end(tokens, at, '(', ')'),
            Token::Other('{') => return group_end(tokens, at, '{', '}'),
            Token::Other(';' | ',') => return at + 1,
            _ => at += 1,
        }
    }
    at
}

struct Declaration<'a> {
    kind: &'static str,
    name: &'a str,
    is_public: bool,
}

/// The types, functions, constants and modules that a file declares, without fields and variants.
fn declarations(tokens: &[Token]) -> Vec<Declaration<'_>> {
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let (Token::Word(keyword), Token::Word(name)) = (&pair[0], &pair[1]) else {
            continue;
        };
        let kind = match keyword.as_str() {
            "struct" | "enum" | "trait" | "type" | "union" => "type",
            "fn" => "function",
            "const" | "static" if name != "fn" => "constant",
            "mod" => "module",
            _ => continue,
        };
        found.push(Declaration {
            kind,
            name,
            is_public: is_public(&tokens[..at]),
        });
    }
    found
}

/// Whether the tokens before an item end with `pub`, `pub(crate)`, `pub(super)` or `pub(in …)`.
fn is_public(before: &[Token]) -> bool {
    let Some((last, before)) = before.split_last() else {
        return false;
    };
    if *last != Token::Other(')') {
        return last.is("pub");
    }
    let open = before.iter().rposition(|it| *it == Token::Other('('));
    open.is_some_and(|open| open > 0 && before[open - 1].is("pub"))
}

/// All paths in `file` that lead into its own crate, as module paths from the root of the crate.
fn paths(file: &File, modules: &BTreeSet<Vec<String>>) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let tokens = &file.tokens;
    for at in 0..tokens.len() {
        let follows = at > 0 && matches!(tokens[at - 1], Token::PathSeparator | Token::Other('.'));
        if follows || tokens.get(at + 1) != Some(&Token::PathSeparator) {
            continue;
        }
        let Token::Word(first) = &tokens[at] else {
            continue;
        };
        if let Some(base) = base_of(first, &file.module, modules) {
            tree(tokens, at + 2, base, &mut |path, _| {
                found.push(path);
            });
        }
    }
    found
}

/// The module that the first word of a path names. `None` for a word that names no module of this
/// crate.
fn base_of(first: &str, module: &[String], modules: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    match first {
        "crate" => Some(Vec::new()),
        "self" => Some(module.to_vec()),
        "super" => Some(module[..module.len().saturating_sub(1)].to_vec()),
        _ => {
            let child = [module, &[first.to_owned()]].concat();
            modules.contains(&child).then_some(child)
        }
    }
}

/// Walks a path or use tree from `at`, after a `::`. Calls `found` with each complete path and its
/// local name. Returns the end of the tree.
fn tree(
    tokens: &[Token],
    mut at: usize,
    mut base: Vec<String>,
    found: &mut dyn FnMut(Vec<String>, String),
) -> usize {
    loop {
        match tokens.get(at) {
            Some(Token::Other('{')) => {
                at += 1;
                loop {
                    match tokens.get(at) {
                        Some(Token::Other('}')) => return at + 1,
                        Some(Token::Other(',')) => at += 1,
                        Some(_) => {
                            let before = at;
                            at = tree(tokens, at, base.clone(), found);
                            at = at.max(before + 1);
                        }
                        None => return at,
                    }
                }
            }
            Some(Token::Other('*')) => {
                found(base, "*".to_owned());
                return at + 1;
            }
            Some(Token::Word(word)) => {
                match word.as_str() {
                    "self" => {}
                    "super" => {
                        base.pop();
                    }
                    _ => base.push(word.clone()),
                }
                at += 1;
                if tokens.get(at) == Some(&Token::PathSeparator) {
                    at += 1;
                    continue;
                }
                let mut name = base.last().cloned().unwrap_or_default();
                if let (Some(token), Some(Token::Word(other))) =
                    (tokens.get(at), tokens.get(at + 1))
                    && token.is("as")
                {
                    name.clone_from(other);
                    at += 2;
                }
                found(base, name);
                return at;
            }
            _ => {
                // A turbofish such as `Type::<…>`.
                found(base.clone(), String::new());
                return at;
            }
        }
    }
}

/// The names that the `use` items of a file bring in from its own crate, with `crate` at the front.
fn imports(file: &File, modules: &BTreeSet<Vec<String>>) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    let tokens = &file.tokens;
    for at in 0..tokens.len() {
        if !tokens[at].is("use") {
            continue;
        }
        let (Some(Token::Word(first)), Some(Token::PathSeparator)) =
            (tokens.get(at + 1), tokens.get(at + 2))
        else {
            continue;
        };
        if let Some(base) = base_of(first, &file.module, modules) {
            tree(tokens, at + 3, base, &mut |path, name| {
                let path = [vec!["crate".to_owned()], path].concat();
                all.push((name, path));
            });
        }
    }
    all
}

/// The string literals in the form of a key, metric or label: `snake_case` with at least two words.
fn user_names(strings: &[String]) -> impl Iterator<Item = &str> {
    strings.iter().map(String::as_str).filter(|text| {
        text.contains('_')
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b == b'_' || b == b'.')
    })
}

/// The forbidden word in a name, and its replacement.
fn retired_word(
    name: &str,
    retired: &[(&'static str, &'static str)],
) -> Option<(&'static str, &'static str)> {
    let mut words = Vec::new();
    for part in name.split(['_', '.']) {
        let mut word = String::new();
        let mut previous_is_lower = false;
        for c in part.chars() {
            if c.is_uppercase() && previous_is_lower {
                words.push(std::mem::take(&mut word));
            }
            previous_is_lower = c.is_lowercase();
            word.extend(c.to_lowercase());
        }
        words.push(word);
    }
    retired
        .iter()
        .copied()
        .find(|(retired, _)| words.iter().any(|word| word == retired))
}

/// The forbidden phrase in a comment, as whole words, and its replacement.
fn retired_phrase(comment: &str) -> Option<(&'static str, &'static str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<_> = comment
        .split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    RETIRED_IN_TEXT.iter().copied().find(|(phrase, _)| {
        let phrase: Vec<_> = phrase.split(' ').collect();
        words.windows(phrase.len()).any(|part| part == phrase)
    })
}

#[test]
fn types_of_a_crate_are_public() {
    let text = "struct A; pub struct B; pub(crate) enum C {} pub(in crate::x) trait D {} \
                fn f(e: usize) { struct E; }";
    let tokens = lex(text).0;
    let types: Vec<_> = declarations(&tokens)
        .into_iter()
        .filter(|it| it.kind == "type" && it.is_public)
        .map(|it| it.name)
        .collect();
    assert_eq!(types, ["B", "C", "D"]);
}

#[test]
fn names_are_split_into_words() {
    for (name, word) in [
        ("BrokenDoor", Some("door")),
        ("had_images", Some("had")),
        ("MAX_WEAR", Some("wear")),
        ("tier.owed_bytes", Some("owed")),
        ("rotate", None),
        ("Shadow", None),
    ] {
        let found = retired_word(name, RETIRED);
        assert_eq!(found.map(|(word, _)| word), word, "{name}");
    }
}

#[test]
fn phrases_are_found_as_whole_words() {
    for (comment, phrase) in [
        ("/ The lock is released for good.", Some("for good")),
        (" Mend the file.", Some("mend")),
        (" for goods; amendments; wished", None),
    ] {
        let found = retired_phrase(comment);
        assert_eq!(found.map(|(phrase, _)| phrase), phrase, "{comment}");
    }
}

#[test]
fn paths_of_all_forms_are_found() {
    let text = r#"
        use crate::a::{self, B, c::{D, E as F}};
        use super::g::*;
        fn f() { crate::h::i("crate::not"); j::k(); let _ = x.crate_; } // crate::neither
        #[cfg(test)]
        mod tests { use crate::only_in_tests::X; }
        #[cfg(test)]
        mod more;
        use crate::after::Y;
    "#;
    let module = vec!["m".to_owned(), "n".to_owned()];
    let tokens = without_tests(&lex(text).0);
    let file = File {
        path: String::new(),
        module: module.clone(),
        tokens,
        strings: Vec::new(),
        imports: Vec::new(),
    };
    let modules = BTreeSet::from([[module, vec!["j".to_owned()]].concat()]);
    let mut found: Vec<_> = paths(&file, &modules)
        .iter()
        .map(|path| path.join("::"))
        .collect();
    found.sort();
    assert_eq!(
        found,
        [
            "a",
            "a::B",
            "a::c::D",
            "a::c::E",
            "after::Y",
            "h::i",
            "m::g",
            "m::n::j::k"
        ]
    );
    let named = imports(&file, &modules);
    let of_f = named.iter().find(|(name, _)| name == "F");
    assert_eq!(
        of_f.map(|(_, path)| path.join("::")).as_deref(),
        Some("crate::a::c::E")
    );
}
