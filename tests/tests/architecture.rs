//! Checks the dependencies between crates, and what each crate must not use.
//! `docs/explanation/architecture.md` gives the reasons. The first test fails for a crate that this
//! file does not list, so that a new crate needs a decision about its dependencies.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// The crate that only tests may depend on.
const TESTKIT: &str = "pierhead-testkit";

/// Every package of the workspace, and the workspace packages on which it may depend.
/// Dev-dependencies may also name [`TESTKIT`].
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("pierhead-allocator", &[]),
    ("pierhead-atomic-file", &[]),
    ("pierhead-oci", &[]),
    ("pierhead-eviction", &[]),
    ("pierhead-pmem", &["pierhead-atomic-file"]),
    ("pierhead-host", &[]),
    ("pierhead-ttl-cache", &[]),
    ("pierhead-replay", &["pierhead-oci", "pierhead-eviction"]),
    (
        "pierhead-remote",
        &["pierhead-atomic-file", "pierhead-oci", "pierhead-ttl-cache"],
    ),
    ("pierhead-toc", &["pierhead-atomic-file", "pierhead-oci"]),
    ("pierhead-bundle", &["pierhead-oci", "pierhead-toc"]),
    ("pierhead-client-setup", &["pierhead-atomic-file"]),
    (
        "pierhead-bundle-server",
        &[
            "pierhead-atomic-file",
            "pierhead-oci",
            "pierhead-toc",
            "pierhead-bundle",
            "pierhead-host",
        ],
    ),
    (
        "pierhead-cache",
        &[
            "pierhead-atomic-file",
            "pierhead-oci",
            "pierhead-eviction",
            "pierhead-pmem",
            "pierhead-host",
        ],
    ),
    (
        "pierhead-proxy",
        &[
            "pierhead-atomic-file",
            "pierhead-oci",
            "pierhead-remote",
            "pierhead-toc",
            "pierhead-bundle",
            "pierhead-bundle-server",
            "pierhead-cache",
            "pierhead-host",
            "pierhead-ttl-cache",
        ],
    ),
    (
        "pierhead-worker",
        &[
            "pierhead-atomic-file",
            "pierhead-oci",
            "pierhead-toc",
            "pierhead-bundle",
            "pierhead-remote",
        ],
    ),
    (
        "pierhead",
        &[
            "pierhead-allocator",
            "pierhead-atomic-file",
            "pierhead-oci",
            "pierhead-eviction",
            "pierhead-pmem",
            "pierhead-host",
            "pierhead-remote",
            "pierhead-toc",
            "pierhead-bundle",
            "pierhead-bundle-server",
            "pierhead-cache",
            "pierhead-proxy",
            "pierhead-worker",
            "pierhead-client-setup",
        ],
    ),
    (
        TESTKIT,
        &[
            "pierhead-oci",
            "pierhead-eviction",
            "pierhead-toc",
            "pierhead-bundle",
            "pierhead-cache",
        ],
    ),
    // The end-to-end tests run pierhead as a process, so they need no crate of pierhead.
    ("pierhead-tests", &[TESTKIT]),
    (
        "pierhead-benches",
        &[
            "pierhead-toc",
            "pierhead-bundle",
            "pierhead-bundle-server",
            "pierhead-cache",
            "pierhead-eviction",
            "pierhead-oci",
            "pierhead-pmem",
            "pierhead-replay",
            "pierhead-tests",
            "pierhead-worker",
        ],
    ),
    ("xtask", &[]),
];

/// Dependencies for tests only, each with the reason.
const TEST_DEPENDENCIES: &[(&str, &str, &str)] = &[
    (
        "pierhead-proxy",
        "pierhead-eviction",
        "the cache in its tests needs a policy",
    ),
    (
        "pierhead-bundle-server",
        "pierhead-worker",
        "its tests apply the bundles that the server makes",
    ),
    (
        "pierhead",
        "pierhead-replay",
        "its tests read the request log that the daemon writes",
    ),
];

/// Packages that are not part of the product.
const DEVELOPMENT_PACKAGES: &[&str] = &["pierhead-tests", "pierhead-benches", "xtask"];

/// Third-party crates that define a role: the only packages that may depend on each, and the
/// reason.
const ONLY_IN: &[(&str, &[&str], &str)] = &[
    (
        "sled",
        &["pierhead-cache", "pierhead-bundle-server"],
        "only the catalog and the image database are databases",
    ),
    (
        "clap",
        &["pierhead", "pierhead-replay"],
        "only programs read the command line",
    ),
    (
        "toml",
        &["pierhead", "pierhead-client-setup"],
        "only the binary reads its configuration; client-setup edits files of containerd and podman",
    ),
    (
        "anyhow",
        &["pierhead", "pierhead-replay", TESTKIT],
        "libraries have their own error enums; programs and tests use anyhow",
    ),
    (
        "tracing-subscriber",
        &["pierhead", TESTKIT],
        "only the binary configures logging; tests capture log lines",
    ),
    (
        "indicatif",
        &["pierhead", "pierhead-replay"],
        "only programs have a terminal",
    ),
    (
        "http",
        &[
            "pierhead-remote",
            "pierhead-proxy",
            "pierhead-worker",
            "pierhead-client-setup",
            "pierhead",
            TESTKIT,
        ],
        "only proxy maps errors to HTTP; oci, eviction and cache use no HTTP",
    ),
    (
        "hyper",
        &["pierhead-remote", "pierhead-proxy", "pierhead", TESTKIT],
        "cache cannot fetch, and oci and eviction do no I/O",
    ),
    (
        "rustls",
        &[
            "pierhead-remote",
            "pierhead-proxy",
            "pierhead-worker",
            "pierhead-client-setup",
            "pierhead",
            TESTKIT,
        ],
        "cache cannot fetch, and oci and eviction do no I/O",
    ),
    (
        "lru",
        &["pierhead-ttl-cache"],
        "the tables that forget are of one type",
    ),
    (
        "moka",
        &[],
        "the tables that forget are of one type: pierhead-ttl-cache",
    ),
    (
        "httparse",
        &["pierhead-proxy", "pierhead-worker", TESTKIT],
        "proxy parses requests, and the client of the worker parses responses",
    ),
    (
        "nix",
        &["pierhead-worker", "pierhead-host", "pierhead"],
        "fanotify records a start and getifaddrs lists interfaces: rustix has neither",
    ),
    (
        "tokio",
        &[
            "pierhead-host",
            "pierhead-ttl-cache",
            "pierhead-remote",
            "pierhead-cache",
            "pierhead-proxy",
            "pierhead",
            TESTKIT,
        ],
        "oci and eviction do no I/O and read no clock",
    ),
];

/// The modules that may name sled, as the beginnings of paths from the root of the repository.
const SLED_IN: &[&str] = &[
    "crates/cache/src/store/catalog.rs",
    "crates/cache/src/store/catalog/",
    "crates/bundle-server/src/image_database/",
];

/// Packages that deny unsafe code in their roots and allow it in these files (or folders, by their
/// `/`), each with the reason.
const UNSAFE_IN: &[(&str, &str, &str)] = &[
    (
        "pierhead-allocator",
        "crates/allocator/src/glibc.rs",
        "no safe API calls mallopt(3)",
    ),
    (
        "pierhead-pmem",
        "crates/pmem/src/sys/",
        "no safe API maps a file for stores, flushes a cache line or survives SIGBUS",
    ),
];

/// The allowed mutable `static`s, each with the reason.
const GLOBAL_IN: &[(&str, &str)] = &[
    (
        "crates/pmem/src/sys/sigbus.rs",
        "a signal handler gets only an address",
    ),
    (
        "crates/pierhead/src/cli/verbosity.rs",
        "`--quiet` is global for the process, as its standard error is; only the binary prints there",
    ),
];

/// Calls that start an asynchronous task whose panics nobody counts. A `JoinSet` starts such tasks
/// by a method `spawn` whose receiver has any name, so the list has its constructors.
const SPAWNS: &[&str] = &[
    "tokio::spawn(",
    "task::spawn(",
    "runtime.spawn(",
    "handle.spawn(",
    "TokioExecutor::new(",
    "JoinSet::new(",
    "JoinSet::default(",
];

/// The places that may start such a task, as beginnings of paths, each with the reason.
const SPAWN_IN: &[(&str, &str)] = &[
    (
        "crates/host/src/background/panics.rs",
        "Panics::spawn_on logs and counts the panics of a task",
    ),
    (
        "crates/pierhead/src/serve/background_tasks.rs",
        "Panics::restart_task logs and counts the panics of each task of the set",
    ),
    (
        "crates/pierhead/src/serve/client_listeners.rs",
        "Panics::watch_future logs and counts the panics of each task of the set",
    ),
    (
        "crates/pierhead/src/admin/mod.rs",
        "Panics::watch_future logs and counts the panics of each task of the set",
    ),
    (
        "crates/proxy/src/pull/warm.rs",
        "Panics::watch_future logs and counts the panics of each task of the set",
    ),
    (
        "crates/pierhead/src/doctor/upstreams.rs",
        "a command, not the daemon: join_all continues the panic",
    ),
    (
        "crates/remote/src/connect/spawner.rs",
        "the default of commands; the daemon passes a Spawner that calls Panics::spawn",
    ),
    (
        "crates/pierhead/src/cli/admin_client/connection.rs",
        "a command, not the daemon: the response of the daemon breaks off",
    ),
    (
        "crates/pierhead/src/doctor/docker_socket.rs",
        "a command, not the daemon: the response of dockerd breaks off",
    ),
];

/// Modules that `eviction` must not use. The replay of a trace is exact because the crate has no
/// clock, no I/O and no randomness.
const NOT_IN_EVICTION: &[&str] = &["std::time", "std::fs", "std::net", "std::thread"];

/// The modules of the binary below `main`, from the lowest layer to the highest. The code of a
/// module imports only modules of the layers below.
const LAYERS_OF_BINARY: &[&str] = &["config", "admin", "cli", "serve", "doctor"];

/// Crates that read no clock, neither the wall clock nor the monotonic one. Their results depend
/// only on their input.
const WITHOUT_CLOCK: &[&str] = &[
    "allocator",
    "atomic-file",
    "bundle",
    "client-setup",
    "eviction",
    "oci",
    "pmem",
    "toc",
];

/// Names of the clocks of the standard library and of tokio.
const CLOCKS: &[&str] = &[
    "SystemTime::now",
    "Instant::now",
    "elapsed()",
    "tokio::time",
];

/// Names that make a `static` mutable.
const INTERIOR_MUTABILITY: &[&str] = &["Mutex", "RwLock", "Once", "Lazy", "Atomic", "Cell"];

#[test]
fn every_package_is_listed() {
    let metadata = metadata();
    let found = members(&metadata);
    let known: BTreeSet<&str> = ALLOWED_DEPENDENCIES.iter().map(|(name, _)| *name).collect();
    let unknown: Vec<_> = found
        .keys()
        .filter(|name| !known.contains(name.as_str()))
        .collect();
    assert!(
        unknown.is_empty(),
        "{unknown:?}: say in ALLOWED_DEPENDENCIES what this package may know"
    );
    let gone: Vec<_> = known
        .iter()
        .filter(|name| !found.contains_key(**name))
        .collect();
    assert!(gone.is_empty(), "{gone:?} is listed and does not exist");
}

#[test]
fn every_dependency_is_allowed() {
    let metadata = metadata();
    let members = members(&metadata);
    let mut wrong = Vec::new();
    for (name, allowed) in ALLOWED_DEPENDENCIES {
        for dependency in members
            .get(*name)
            .map_or(&[][..], |package| &package.dependencies)
        {
            let target = dependency.name.as_str();
            let for_tests = dependency.kind == DependencyKind::Development;
            if members.contains_key(target)
                && !allowed.contains(&target)
                && !(for_tests
                    && (target == TESTKIT
                        || TEST_DEPENDENCIES
                            .iter()
                            .any(|edge| (edge.0, edge.1) == (*name, target))))
            {
                wrong.push(format!("{name} -> {target} ({:?})", dependency.kind));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "not in docs/explanation/architecture.md: {wrong:#?}"
    );
}

#[test]
fn role_crates_are_used_only_in_their_packages() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for (name, package) in members(&metadata) {
        if DEVELOPMENT_PACKAGES.contains(&name.as_str()) {
            continue;
        }
        for dependency in &package.dependencies {
            if dependency.kind == DependencyKind::Development {
                continue;
            }
            for (target, owners, reason) in ONLY_IN {
                if dependency.name == *target && !owners.contains(&name.as_str()) {
                    wrong.push(format!("{name} -> {target}: {reason}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_the_catalog_and_the_image_database_use_sled() {
    // Tests may use sled, to create damaged databases.
    let wrong: Vec<_> = product_lines("crates")
        .filter(|line| names(&line.code, "sled"))
        .filter(|line| !SLED_IN.iter().any(|path| line.path.starts_with(path)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_the_binary_reads_the_environment() {
    let wrong: Vec<_> = product_lines("crates")
        .filter(|line| !line.path.starts_with("crates/pierhead/"))
        .filter(|line| names(&line.code, "std::env") || names(&line.code, "env::"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn tasks_of_the_daemon_start_through_the_counter_of_panics() {
    let wrong: Vec<_> = product_lines("crates")
        .filter(|line| SPAWNS.iter().any(|call| line.code.contains(call)))
        .filter(|line| !SPAWN_IN.iter().any(|(path, _)| line.path.starts_with(path)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_binary_has_only_its_layers() {
    let main = lines("crates/pierhead/src").into_iter();
    let main = main.filter(|line| line.path == "crates/pierhead/src/main.rs");
    let modules: BTreeSet<String> = main
        .filter_map(|line| {
            let name = line.code.trim_start().strip_prefix("mod ")?;
            Some(name.trim_end().trim_end_matches([';', '{', ' ']).to_owned())
        })
        .collect();
    let expected = LAYERS_OF_BINARY.iter().map(|name| (*name).to_owned());
    assert_eq!(
        modules,
        expected.collect(),
        "a module of the binary belongs in one of these, or in a library"
    );
}

#[test]
fn a_module_of_the_binary_imports_only_lower_layers() {
    let mut wrong = Vec::new();
    for (layer, name) in LAYERS_OF_BINARY.iter().enumerate() {
        let higher = &LAYERS_OF_BINARY[layer + 1..];
        let higher = higher.iter().map(|name| format!("crate::{name}"));
        // A group of imports may have a layer in each of its lines, so no line may begin one.
        let group = std::iter::once("crate::{".to_owned());
        let higher: Vec<_> = higher.chain(group).collect();
        let of_layer = product_lines("crates/pierhead/src");
        let of_layer = of_layer.filter(|line| {
            line.path
                .starts_with(&format!("crates/pierhead/src/{name}/"))
        });
        wrong.extend(of_layer.filter(|line| higher.iter().any(|path| names(&line.code, path))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn eviction_has_no_clock_and_no_io() {
    let wrong: Vec<_> = product_lines("crates/eviction/src")
        .filter(|line| NOT_IN_EVICTION.iter().any(|word| line.code.contains(word)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn crates_of_formats_and_decisions_read_no_clock() {
    let wrong: Vec<_> = WITHOUT_CLOCK
        .iter()
        .flat_map(|name| lines(&format!("crates/{name}/src")))
        .filter(|line| !line.of_tests)
        .filter(|line| CLOCKS.iter().any(|word| line.code.contains(word)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_mutable_static_beyond_the_allowed_ones() {
    let wrong: Vec<_> = product_lines("crates")
        .filter(|line| {
            let code = line.code.trim_start();
            let item = code.strip_prefix("pub ").unwrap_or(code);
            code.contains("lazy_static!")
                || code.contains("thread_local!")
                || item.starts_with("static mut ")
                || item.starts_with("static ")
                    && INTERIOR_MUTABILITY.iter().any(|word| item.contains(word))
        })
        .filter(|line| !GLOBAL_IN.iter().any(|(file, _)| line.path == *file))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_crate_forbids_unsafe_code() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        let excepted = UNSAFE_IN.iter().any(|(name, ..)| package.name == *name);
        let level = if excepted { "deny" } else { "forbid" };
        for target in &package.targets {
            if !(target.is_lib() || target.is_bin()) {
                continue;
            }
            let text = fs::read_to_string(&target.src_path).expect("a crate's root can be read");
            if !text.contains(&format!("#![{level}(unsafe_code)]")) {
                wrong.push(target.src_path.to_string());
            }
        }
    }
    // The tests of a crate are compiled with its root, so that their unsafe code counts too.
    wrong.extend(
        lines("crates")
            .into_iter()
            .filter(|line| line.code.contains("allow(unsafe_code"))
            .filter(|line| {
                !UNSAFE_IN.iter().any(|(_, file, _)| {
                    line.path == *file || file.ends_with('/') && line.path.starts_with(file)
                })
            })
            .map(|line| line.path),
    );
    assert!(
        wrong.is_empty(),
        "unsafe code is not forbidden in {wrong:#?}"
    );
}

#[test]
fn every_module_begins_with_a_head_comment() {
    let wrong: Vec<_> = ["crates", "xtask", "tests", "benches"]
        .into_iter()
        .flat_map(sources)
        .filter(|path| !path.ends_with("tests.rs"))
        .filter(|path| {
            let text = fs::read_to_string(root().join(path)).expect("a source can be read");
            !text.trim_start().starts_with("//!")
        })
        .collect();
    assert!(wrong.is_empty(), "no //! head sentence in {wrong:#?}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the root of the repository")
        .to_owned()
}

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo metadata reads the workspace")
}

fn members(metadata: &Metadata) -> BTreeMap<String, &Package> {
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| (package.name.to_string(), package))
        .collect()
}

/// One line of a source without its comment.
#[derive(Debug)]
struct Line {
    path: String,
    #[allow(dead_code, reason = "printed when a check fails")]
    number: usize,
    code: String,
    /// Whether the line is below a `#[cfg(test)]`, or in a file of tests or an example.
    of_tests: bool,
}

/// The lines under `folder` without those of tests and examples.
fn product_lines(folder: &str) -> impl Iterator<Item = Line> {
    lines(folder)
        .into_iter()
        .filter(|line| !line.of_tests && !line.path.starts_with("crates/testkit/"))
}

/// The lines of all Rust files under `folder`.
fn lines(folder: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for path in sources(folder) {
        let mut of_tests = path.ends_with("tests.rs")
            || path.contains("/tests/")
            || path.contains("/examples/")
            || is_test_module(&root().join(&path));
        let text = fs::read_to_string(root().join(&path)).expect("a source can be read");
        for (index, line) in text.lines().enumerate() {
            // Unit tests are at the end of a file: all lines after the attribute belong to tests.
            of_tests |= line.trim_start().starts_with("#[cfg(test)]");
            lines.push(Line {
                path: path.clone(),
                number: index + 1,
                code: line.split("//").next().unwrap_or_default().to_owned(),
                of_tests,
            });
        }
    }
    assert!(!lines.is_empty(), "{folder} has no source files");
    lines
}

/// Whether the module of this file is declared under `#[cfg(test)]` in its folder.
fn is_test_module(path: &Path) -> bool {
    let (Some(folder), Some(name)) = (path.parent(), path.file_stem()) else {
        return false;
    };
    let declaration = format!("#[cfg(test)]\nmod {};", name.to_string_lossy());
    let parents = ["mod.rs", "lib.rs", "main.rs"].map(|it| fs::read_to_string(folder.join(it)));
    let mut parents = parents.into_iter().flatten();
    parents.any(|text| text.contains(&declaration))
}

/// All Rust files under `folder`, sorted, as paths from the root of the repository.
fn sources(folder: &str) -> Vec<String> {
    fn visit(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                if entry.file_name() != "target" {
                    visit(&path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut found = Vec::new();
    visit(&root.join(folder), &mut found);
    found.sort();
    found
        .iter()
        .filter_map(|path| path.strip_prefix(&root).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect()
}

/// Whether `text` contains `word` as a whole word.
fn names(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let after = &text[at + word.len()..];
        let joined = text[..at].ends_with(part) || word.ends_with(part) && after.starts_with(part);
        !joined
    })
}
