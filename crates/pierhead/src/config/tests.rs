//! Unit tests of the configuration: error messages have a line and a fix, and a printed
//! configuration parses to the same values.

use std::path::Path;

use pierhead_oci::Registry;
use proptest::prelude::*;

use super::key_locations::Lines;
use super::keys::{SECTIONS, UPSTREAM_KEYS, keys};
use super::load::InvalidConfig;
use super::parse::parse;
use super::validate::validate;
use super::*;
use pierhead_host::cgroup::Version;
use pierhead_host::machine::{Machine, MemoryLimit};
use pierhead_host::profile::Profile;

fn defaults() -> Config {
    Config::with_data("/data".into())
}

fn problems(text: &str) -> Vec<String> {
    let problems = match parse(text, Path::new("/etc/pierhead"), defaults()) {
        Ok((config, lines)) => validate(&config, &lines, &Default::default()),
        Err(problems) => problems,
    };
    problems
        .into_iter()
        .map(|it| format!("{}: {}", it.line.unwrap_or(0), it.message))
        .collect()
}

fn parsed(text: &str) -> Config {
    assert_eq!(problems(text), [""; 0]);
    parse(text, Path::new("/etc/pierhead"), defaults())
        .map(|(config, _)| config)
        .unwrap_or_else(|_| defaults())
}

/// Asserts that `text` has one problem, at `line`, whose message contains all `parts`.
#[track_caller]
fn assert_refused(text: &str, line: usize, parts: &[&str]) {
    let found = problems(text);
    assert_eq!(found.len(), 1, "{text}: {found:?}");
    assert!(
        found[0].starts_with(&format!("{line}: ")),
        "{text}: {found:?}"
    );
    for part in parts {
        assert!(
            found[0].contains(part),
            "{text}: {part:?} is not in {found:?}"
        );
    }
}

#[test]
fn an_unknown_key_is_an_error_with_the_closest_key() {
    assert_refused(
        "\nlisten = \"0.0.0.0:1\"\nlsten = 1",
        3,
        &["\"lsten\"", "did you mean \"listen\""],
    );
    assert_refused(
        "[cache]\n\nsice = \"1GiB\"",
        3,
        &["\"cache.sice\"", "\"cache.size\""],
    );
    assert_refused("size = \"1GiB\"", 1, &["\"cache.size\""]);
    assert_refused("[limits]\nttl = \"1s\"", 2, &["\"tags.ttl\""]);
    // Unknown keys, each with the known key that the error must suggest.
    for (unknown, similar) in [
        ("connections_per_client = 1", "\"limits.connections\""),
        ("downloads_per_client = 1", "\"limits.downloads\""),
    ] {
        assert_refused(&format!("[limits]\n{unknown}"), 2, &[similar]);
    }
    assert_refused("[cahce]\nsize = 1", 1, &["\"cahce\"", "\"cache\""]);
    assert_refused("[upstream]\n", 1, &["\"upstreams\""]);
    assert_refused(
        "[upstreams.\"ghcr.io\"]\nuser = \"a\"",
        2,
        &["[upstreams.\"ghcr.io\"]", "\"username\""],
    );
    assert_refused("zzzzzzzzzzzzz = 1", 1, &["config show --default"]);
    assert_refused(
        &format!("{} = 1", "a".repeat(100_000)),
        1,
        &["config show --default"],
    );
}

/// Returns the TOML blocks of all pages, each with its page and the line of its first line.
fn blocks_of_pages() -> Vec<(String, usize, String)> {
    fn visit(path: &Path, found: &mut Vec<(String, usize, String)>) {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).expect("a folder");
            for entry in entries {
                visit(&entry.expect("an entry").path(), found);
            }
            return;
        }
        if path.extension().is_none_or(|ending| ending != "md") {
            return;
        }
        let page = std::fs::read_to_string(path).expect("a page");
        let mut block = None;
        for (number, line) in page.lines().enumerate() {
            match line.trim() {
                "```toml" => block = Some((number + 2, String::new())),
                "```" => found.extend(
                    block
                        .take()
                        .map(|(first, text)| (path.display().to_string(), first, text)),
                ),
                line => {
                    if let Some((_, text)) = &mut block {
                        text.push_str(line);
                        text.push('\n');
                    }
                }
            }
        }
    }
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut found = Vec::new();
    for name in ["README.md", "CHANGELOG.md", "docs", "bluefield"] {
        visit(&root.join(name), &mut found);
    }
    found
}

#[test]
fn every_key_on_a_page_exists() {
    let blocks = blocks_of_pages();
    let mut wrong = Vec::new();
    for (page, first, text) in &blocks {
        // A block may name files that do not exist here, so only the parser checks it.
        let Err(problems) = parse(text, Path::new("/etc/pierhead"), defaults()) else {
            continue;
        };
        for problem in problems {
            let line = first + problem.line.unwrap_or(1) - 1;
            wrong.push(format!("{page}:{line}: {}", problem.message));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(blocks.len() > 10, "only these blocks: {blocks:?}");
}

#[test]
fn a_wrong_type_or_value_is_an_error_with_a_valid_value() {
    assert_refused(
        "[cache]\nsize = true",
        2,
        &["cache.size", "\"10GiB\"", "true or false"],
    );
    assert_refused("[cache]\nsize = -1", 2, &["0 or more"]);
    assert_refused(
        "[cache]\nsize = \"0\"",
        2,
        &["cannot store anything", "10GiB"],
    );
    assert_refused("[cache]\nsize = 0", 2, &["cannot store anything"]);
    for unitless in ["50", "\"50\""] {
        for key in ["cache]\nsize", "cache]\nmin_free"] {
            let text = format!("[{key} = {unitless}");
            assert_refused(&text, 2, &["50 bytes?", "50GiB", "50B"]);
        }
        let text = format!("[limits]\nupstream_bandwidth = {unitless}");
        assert_refused(&text, 2, &["50MB/s", "50B/s"]);
    }
    assert_refused("[tier]\nsize = \"5%\"", 2, &["is not a size"]);
    assert_refused("[tier]\nsize = true", 2, &["4MiB"]);
    assert_refused("[tier]\nsize = \"1MiB\"", 2, &["32MiB or more"]);
    assert_refused(
        "[bundle]\nsize = \"1MiB\"",
        2,
        &["64MiB or more", "\"off\""],
    );
    assert_refused("[limits]\nmemory = \"1MiB\"", 2, &["128MiB to 16TiB"]);
    assert_refused(
        "[eviction]\npolicy = \"lrv\"",
        2,
        &["mean \"lru\"", "\"s3-fifo\""],
    );
    // The policy exists only in the simulator `pierhead-replay`. The error says so, and lists the
    // policies of the daemon.
    assert_refused(
        "[eviction]\npolicy = \"sieve\"",
        2,
        &[
            "write \"lru\", \"s3-fifo\", \"gdsf\", \"cherry\", \"size-split\", \"learned\"",
            "pierhead-replay simulates more",
        ],
    );
    assert_refused("[eviction]\npolicy = 1", 2, &["a number"]);
    assert_refused("[limits]\npause_under = [\"io\", \"io\"]", 2, &["twice"]);
    assert_refused("[limits]\npause_under = [\"disk\"]", 2, &["\"io\""]);
    assert_refused("[cache]\nsize = \"10 potatoes\"", 2, &["10GiB"]);
    assert_refused("[cache]\nsize = \"101%\"", 2, &["1% to 100%"]);
    assert_refused("[cache]\nmin_free = \"auto\"", 2, &["512MiB"]);
    let parts = ["\"100%\" is out of range", "\"1%\" to \"99%\""];
    assert_refused("[cache]\nmin_free = \"100%\"", 2, &parts);
    assert_refused("cache = 4", 1, &["write [cache]"]);
    assert_refused("listen = \"5000\"", 1, &["0.0.0.0:5000"]);
    assert_refused("listen = []", 1, &["at least one"]);
    assert_refused(
        "listen = [\n \"127.0.0.1:1\",\n 7]",
        1,
        &["listen", "string in quotes", "a number"],
    );
    assert_refused("admin = \"no\"", 1, &["\"off\""]);
    assert_refused(
        "[upstreams.\"a.io\"]\naddresses = \"https://a.io/v2/\"",
        2,
        &["leave out /v2: write https://a.io"],
    );
    assert_refused("[tags]\nttl = 60", 2, &["\"60s\"", "a number"]);
    assert_refused("[tags]\nttl = \"1000y\"", 2, &["out of range"]);
    assert_refused("[limits]\nconnections = 0", 2, &["1 to 1000000"]);
    assert_refused(
        "[limits]\nconnections = 99999999999999999999999",
        2,
        &["whole number"],
    );
    assert_refused("[limits]\nupstream_bandwidth = \"0\"", 2, &["\"off\""]);
    assert_refused("[limits]\nresponse_timeout = \"2h\"", 2, &["100ms to 1m"]);
    assert_refused("[log]\nlevel = \"verbose\"", 2, &["debug"]);
    assert_refused("[log]\nformat = \"xml\"", 2, &["json"]);
    assert_refused(
        "default_upstream = \"not a name\"",
        1,
        &["default_upstream", "registry"],
    );
    assert_refused(
        "allow_open_proxy_with_credentials = \"yes\"",
        1,
        &["expected true or false, found a string"],
    );
    assert_refused("docker_config = \"\"", 1, &["path"]);
    assert_refused(
        "[upstreams.\"ghcr.io\"]\naddresses = \"ghcr.io\"",
        2,
        &["https://HOST"],
    );
    assert_refused(
        "[upstreams.\"ghcr.io\"]\naddresses = \"ftp://ghcr.io\"",
        2,
        &["https://HOST"],
    );
    assert_refused(
        "[upstreams.\"ghcr.io\"]\ncredential_helper = \"../sh\"",
        2,
        &["docker-credential-"],
    );
    assert_refused(
        "[upstreams]\n\"ghcr.io\" = \"https://ghcr.io\"",
        2,
        &["[upstreams.\"ghcr.io\"]"],
    );
    assert_refused(
        "[upstreams.\"no registry\"]\naddresses = \"http://a\"",
        1,
        &["no registry"],
    );
    assert_refused(
        "[upstreams.\"ghcr.io\"]\ntrusted_hosts = [\"a/b\"]",
        2,
        &["HOST:PORT"],
    );
    assert_refused(
        "[upstreams.docker.io]\naddresses = \"http://a\"",
        1,
        &["needs quotes", "[upstreams.\"docker.io\"]"],
    );
}

#[test]
fn a_toml_syntax_error_has_its_line() {
    assert_refused("listen = \"0.0.0.0:1\"\ndata = ", 2, &[]);
    assert_refused(
        "data = \"a\"\ndata = \"b\"",
        2,
        &["duplicate key data", "merge"],
    );
    assert_refused(
        "[cache]\n[tags]\n[cache]",
        3,
        &["duplicate key", "cache", "merge"],
    );
    assert_refused("\0", 1, &[]);
    let fix = ["nested too deeply", "no key of pierhead"];
    let [open, close, dotted] = ["[", "]", "a."].map(|part| part.repeat(200));
    assert_refused(&format!("\na = {open}{close}"), 2, &fix);
    assert_refused(&format!("\n\n{dotted}a = 1\n[cache]\n"), 3, &fix);
    assert_refused(&format!("[{dotted}a]"), 1, &fix);
}

#[test]
fn an_upstream_that_is_pierhead_itself_is_an_error() {
    let own = "\n[upstreams.\"docker.io\"]\naddresses = \"http://localhost:5000\"";
    let parts = [
        "http://localhost:5000",
        "0.0.0.0:5000",
        "set addresses",
        "another port",
    ];
    assert_refused(own, 2, &parts);
    let fix = ["default_upstream", "set default_upstream to a registry"];
    assert_refused("default_upstream = \"127.0.0.1:5000\"", 1, &fix);
}

#[test]
fn the_path_of_the_tier_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pierhead.toml");
    for (path, part) in [
        (".", "is a folder: name a file in it"),
        ("/proc/self/mem", "is on the file system proc"),
        ("pierhead.toml", "is also the configuration file"),
    ] {
        let text = format!("\n[tier]\npath = {path:?}\nkind = \"file\"");
        std::fs::write(&file, &text).expect("written");
        let load = || {
            let (overrides, machine) = (Overrides::default(), Machine::default());
            load(Some(&file), &overrides, Path::new("/data"), &machine)
        };
        let invalid = load().err().expect(part);
        assert_eq!(invalid.fault(), Fault::Invalid);
        let output = invalid.to_string();
        assert!(output.contains("pierhead.toml:3: tier.path: "), "{output}");
        assert!(output.contains(part), "{output}");
        // A path that pierhead does not use is not checked.
        std::fs::write(&file, text.replace("\"file\"", "\"off\"")).expect("written");
        assert!(load().is_ok(), "{path}");
    }
}

#[test]
fn an_invalid_registry_name_is_an_error_with_the_registry() {
    for (text, line, part) in [
        (
            "default_upstream = \"https://docker.io\"",
            1,
            "write \"docker.io\"",
        ),
        (
            "default_upstream = \"ghcr.io/owner/app:1\"",
            1,
            "write \"ghcr.io\"",
        ),
        ("default_upstream = \"lab:5000/\"", 1, "write \"lab:5000\""),
        ("default_upstream = \"a b\"", 1, "write HOST or HOST:PORT"),
        (
            "default_upstream = \"a:99999\"",
            1,
            "write HOST or HOST:PORT",
        ),
        (
            "\n[upstreams.\"docker.io/library\"]",
            2,
            "write \"docker.io\"",
        ),
        ("[upstreams.\"http://lab:5000\"]", 1, "write \"lab:5000\""),
        ("[upstreams.\"-\"]", 1, "write HOST or HOST:PORT"),
        // A key of an upstream without the table of the upstream.
        (
            "[upstreams]\naddresses = \"http://a:1\"",
            2,
            "write [upstreams.\"REGISTRY\"] above it",
        ),
        (
            "[upstreams]\nusername = \"u\"",
            2,
            "[upstreams.\"docker.io\"]",
        ),
        (
            "[access]\nallow = [\"docker.io/library/redis:7\"]",
            2,
            "leave a tag out",
        ),
    ] {
        assert_refused(text, line, &[part]);
    }
    // The user and password of a URL are not repeated.
    let found = problems("default_upstream = \"https://someone:hunter2@docker.io\"");
    assert!(!found.concat().contains("hunter2"), "{found:?}");
}

#[test]
fn all_problems_are_reported_in_the_order_of_lines() {
    let found = problems("x = 1\n[cache]\nsize = true\n[log]\nformat = \"xml\"\n");
    let lines: Vec<_> = found
        .iter()
        .map(|problem| problem.split(':').next().unwrap_or_default())
        .collect();
    assert_eq!(lines, ["1", "3", "5"]);
}

#[test]
fn contradicting_keys_are_an_error() {
    assert_refused("[tls]\ncert = \"a\"", 2, &["tls.key"]);
    assert_refused("[tls]\nkey = \"a\"", 2, &["tls.cert"]);
    assert_refused("[tls]\n\nclient_ca = \"a\"", 3, &["needs TLS"]);
    assert_refused("listen = \"127.0.0.1:5001\"", 0, &["another port"]);
    assert_refused("listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]", 1, &["twice"]);
    let local = |keys: &str| format!("listen = \"127.0.0.1:1\"\n[upstreams.\"ghcr.io\"]\n{keys}");
    assert_refused(&local("username = \"a\""), 2, &["password_file"]);
    assert_refused(&local("password_file = \"a\""), 2, &["needs username"]);
    assert_refused(
        &local("username = \"a\"\npassword_file = \"b\"\ncredential_helper = \"c\""),
        2,
        &["keep one"],
    );
    let hosts = "credential_hosts = [\"a\"]\naddresses = \"http://a\"";
    assert_refused(&local(hosts), 2, &["several addresses"]);
    let users = "[auth]\nmode = \"mtls-or-htpasswd\"\nhtpasswd = \"a\"";
    assert_refused(users, 2, &["tls.client_ca"]);
    let tls = "[tls]\ncert = \"c\"\nkey = \"k\"\nclient_ca = \"a\"";
    let mode = format!("{tls}\n[auth]\nmode = \"mtls-or-htpasswd\"");
    assert_refused(&mode, 6, &["auth.htpasswd"]);
    parsed(&format!("{mode}\nhtpasswd = \"a\""));
    let twice = "[upstreams.\"docker.io\"]\naddresses = \"http://a\"\n[upstreams.\"index.docker.io\"]\naddresses = \"http://b\"";
    let found = problems(twice);
    assert!(
        found.len() == 1 && found[0].contains("another name of docker.io"),
        "{found:?}"
    );
}

#[test]
fn upstream_credentials_need_client_authentication() {
    let credentials = "[upstreams.\"ghcr.io\"]\nusername = \"a\"\npassword_file = \"b\"";
    let parts = [
        "ghcr.io",
        "tls.client_ca",
        "allow_open_proxy_with_credentials = true",
        "0.0.0.0:5000",
    ];
    assert_refused(credentials, 1, &parts);
    assert_refused(
        &format!("listen = [\"127.0.0.1:1\", \"10.0.0.1:2\"]\n{credentials}"),
        1,
        &["10.0.0.1:2"],
    );
    assert_refused(
        "\ndocker_config = \"/root/.docker/config.json\"",
        2,
        &["/root/.docker/config.json"],
    );
    assert_refused(
        "[upstreams.\"ghcr.io\"]\ncredential_helper = \"ecr-login\"",
        1,
        &["ghcr.io"],
    );
    assert_refused(
        "[upstreams.\"ghcr.io\"]\nusername = \"<token>\"\npassword_file = \"t\"",
        1,
        &["ghcr.io"],
    );
    parsed(&format!(
        "listen = [\"127.0.0.1:1\", \"[::1]:2\", \"[::ffff:127.0.0.1]:3\"]\n{credentials}"
    ));
    parsed(&format!(
        "allow_open_proxy_with_credentials = true\n{credentials}"
    ));
    parsed(&format!(
        "tls.cert = \"c\"\ntls.key = \"k\"\ntls.client_ca = \"a\"\n{credentials}"
    ));
    // TLS without required client certificates does not authenticate clients.
    assert_refused(
        &format!("tls.cert = \"c\"\ntls.key = \"k\"\n{credentials}"),
        3,
        &["ghcr.io"],
    );
}

#[test]
fn no_error_message_contains_a_secret() {
    for invalid in [
        "password = \"hunter2\"",
        "addresses = \"https://me:hunter2@ghcr.io\"",
        "addresses = [\"https://me:hunter2@ghcr.io\"]",
        "identity_token = \"hunter2\"",
        "password_file = [\"hunter2\"]",
        "username = [\"hunter2\"]",
        "password_file = \"hunter2",
    ] {
        let found = problems(&format!("[upstreams.\"ghcr.io\"]\n{invalid}"));
        assert!(!found.is_empty(), "{invalid}");
        assert!(!found.concat().contains("hunter2"), "{found:?}");
    }
    let inline = "listen = \"127.0.0.1:1\"\n[upstreams.\"a.b\"]\npassword = \"x\"";
    assert_refused(inline, 3, &["\"password_file\""]);
}

#[test]
fn valid_values_are_parsed() {
    let config = parsed(
        "listen = \"localhost:1\"\nadmin = \"off\"\ndata = \"cache\"\ndocker_config = \"off\"\ndefault_upstream = \"quay.io\"\n\
         [cache]\nsize = \"1kB\"\nmin_free = \"5%\"\n[limits]\nupstream_bandwidth = \"1MB/s\"\n\
         [upstreams.\"lab:5000\"]\naddresses = \"http://10.0.0.1:5000/\"\nca = \"lab.crt\"\n[log]\nlevel = \"info,pierhead_remote=debug\"\nformat = \"json\"",
    );
    assert_eq!(config.listen, ["127.0.0.1:1".parse().expect("an address")]);
    assert_eq!(config.admin, None);
    assert_eq!(config.data, Path::new("/etc/pierhead/cache"));
    assert_eq!(
        (config.cache.size, config.cache.min_free),
        (Size::Bytes(1000), Size::Percent(5))
    );
    assert_eq!(config.limits.upstream_bandwidth, Some(1_000_000));
    assert_eq!(config.log.format, LogFormat::Json);
    let upstream = &config.upstreams[&"lab:5000".parse::<Registry>().expect("a name")];
    assert_eq!(upstream.addresses, ["http://10.0.0.1:5000"]);
    assert_eq!(
        upstream.ca.as_deref(),
        Some(Path::new("/etc/pierhead/lab.crt"))
    );
}

#[test]
fn a_printed_configuration_parses_to_the_same_configuration() {
    let text = show(&defaults());
    assert_eq!(show(&parsed(&text)), text);
    let config = parsed(
        "listen = [\"127.0.0.1:1\", \"[::1]:2\"]\ncache.size = \"3GB\"\nlimits.upstream_bandwidth = \"5MiB\"\n[upstreams.\"a.b:1\"]\naddresses = \"http://c\"\n[upstreams.\"c.d\"]\nusername = \"u\\\"\"\npassword_file = \"p\"",
    );
    let text = show(&config);
    assert_eq!(show(&parsed(&text)), text);
}

#[test]
fn every_example_is_a_valid_value() {
    for key in keys() {
        let text = if key.section.is_empty() {
            format!("{} = {}", key.name, key.example)
        } else {
            format!("[{}]\n{} = {}", key.section, key.name, key.example)
        };
        assert!(parse(&text, Path::new("/"), defaults()).is_ok(), "{text}");
        assert!(
            key.section.is_empty() || SECTIONS.iter().any(|(section, _)| *section == key.section),
            "{}",
            key.path()
        );
        assert!(
            !key.help.is_empty() && key.help.ends_with(['.', ':']),
            "{}",
            key.path()
        );
    }
    for key in UPSTREAM_KEYS {
        let text = format!("[upstreams.\"a.b\"]\n{} = {}", key.name, key.example);
        assert!(parse(&text, Path::new("/"), defaults()).is_ok(), "{text}");
    }
}

/// Generates text similar to a configuration, so that the tests reach deeper branches of the
/// parser.
fn nearly_toml() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("listen".to_owned()),
        Just("[cache]".to_owned()),
        Just("size".to_owned()),
        Just("[upstreams.\"a.b\"]".to_owned()),
        Just("password".to_owned()),
        Just("=".to_owned()),
        Just("\"10GiB\"".to_owned()),
        Just("[[".to_owned()),
        Just("{".to_owned()),
        Just("\n".to_owned()),
        Just("1979-05-27".to_owned()),
        "\\PC{0,4}",
    ];
    proptest::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(text in "\\PC*") {
        let _ = problems(&text);
    }

    #[test]
    fn no_similar_text_causes_a_panic(text in nearly_toml()) {
        let _ = problems(&text);
    }

    #[test]
    fn no_nesting_overflows_the_stack(depth in 0_usize..20_000) {
        let _ = problems(&format!("listen = {}", "[".repeat(depth)));
        let _ = problems(&format!("{} = 1", vec!["a"; depth].join(".")));
    }
}

#[test]
fn the_parser_returns_the_line_of_each_key() {
    let (_, lines): (_, Lines) = parse("\n\n[tls]\ncert = \"x\"", Path::new("/"), defaults())
        .unwrap_or_else(|_| panic!("the text is valid"));
    assert_eq!(lines["tls.cert"], 4);
}

/// Loads `text` on a DPU with 16 GiB of memory, 8 cores and a cgroup limit of 1 GiB.
fn loaded(text: &str, overrides: &Overrides) -> Result<Config, InvalidConfig> {
    load_with_old(None, text, overrides)
}

fn load_with_old(
    old: Option<&Config>,
    text: &str,
    overrides: &Overrides,
) -> Result<Config, InvalidConfig> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pierhead.toml");
    std::fs::write(&file, text).expect("a file");
    let machine = Machine {
        memory: 16 << 30,
        memory_limit: Some(MemoryLimit {
            amount: 1 << 30,
            version: Version::Two,
        }),
        cores: (0..8).collect(),
        cpu_limit: None,
    };
    let (file, data) = (Some(&*file), Path::new("/data"));
    match old {
        None => load(file, overrides, data, &machine),
        Some(old) => load_for_reload(old, file, overrides, data, &machine)
            .map(|reloaded| reloaded.without_restart),
    }
}

#[test]
fn a_reload_reads_the_file_once() {
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pierhead.toml");
    std::fs::write(&file, "tags.ttl = \"7s\"").expect("a file");
    let opened = inotify::init(CreateFlags::NONBLOCK).expect("inotify");
    inotify::add_watch(&opened, &file, WatchFlags::OPEN | WatchFlags::CLOSE).expect("a watch");
    let old = Config::with_data("/data".into());
    let reloaded = load_for_reload(
        &old,
        Some(&file),
        &Overrides::default(),
        Path::new("/data"),
        &Machine::default(),
    );
    let Reloaded {
        after_restart,
        without_restart,
    } = reloaded.unwrap_or_else(|it| panic!("{it}"));
    for config in [after_restart, without_restart] {
        assert_eq!(config.tags.ttl, std::time::Duration::from_secs(7));
    }
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(opened, &mut buffer);
    let mut opens = 0;
    while let Ok(event) = events.next() {
        opens += usize::from(event.events().contains(ReadFlags::OPEN));
    }
    assert_eq!(opens, 1);
}

fn with_profile(profile: &str) -> Overrides {
    let profile = Profile::named(profile);
    Overrides {
        profile: Some(profile),
        ..Overrides::default()
    }
}

#[test]
fn one_client_gets_an_eighth_of_all_connections() {
    for (text, all, one) in [
        ("", 4096, 512),
        ("limits.connections = 800", 800, 100),
        ("profile = \"bluefield2\"", 1920, 240),
        ("profile = \"bluefield2\"\nlimits.connections = 4", 4, 1),
    ] {
        let config = loaded(text, &Overrides::default()).unwrap_or_else(|it| panic!("{it}"));
        let per_client = super::crate_configs::proxy(&config)
            .limits
            .connections_per_client;
        let found = (config.limits.connections, per_client);
        assert_eq!(found, (all, one), "{text}");
    }
}

#[test]
fn the_file_overrides_the_profile_and_the_command_line_overrides_both() {
    let text = "profile = \"bluefield2\"\n[limits]\npause_under = [\"io\"]";
    let config = loaded(text, &Overrides::default()).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(config.cache.memory, 4 << 20, "value of the profile");
    assert_eq!(config.limits.memory, Some(1 << 30));
    assert_eq!(config.limits.connections, 1920);
    let shown = show(&config);
    for line in [
        "profile = \"bluefield2\"\n",
        "memory = \"1GiB\" # profile bluefield2: the memory limit of the cgroup (version 2)\n",
        "connections = 1920 # profile bluefield2: computed from limits.memory\n",
        "cores = \"last 2\" # profile bluefield2: value of the profile\n",
        "pause_under = [\"io\"]\n",
    ] {
        assert!(shown.contains(&format!("\n{line}")), "{line} in {shown}");
    }
    assert_eq!(
        parsed(&shown).limits.connections,
        1920,
        "the printed configuration"
    );
    let none = Overrides {
        profile: Some(None),
        cache_size: Some(Size::Percent(7)),
        ..Overrides::default()
    };
    let config = loaded(text, &none).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(
        (config.limits.memory, config.limits.connections),
        (None, 4096)
    );
    assert!(!show(&config).contains("# profile "));
    let sized = Overrides {
        cache_size: Some(Size::Percent(7)),
        ..with_profile("small")
    };
    let config = loaded("", &sized).unwrap_or_else(|it| panic!("{it}"));
    assert!(show(&config).contains("size = \"7%\"\n"));
}

#[test]
fn a_profile_that_does_not_fit_the_host_has_its_own_exit_code() {
    let refused = |text: &str, overrides: &Overrides| {
        let refused = loaded(text, overrides).err().expect("an error");
        (refused.fault() == Fault::Host, refused.to_string())
    };
    let (is_machine, output) = refused("\nprofile = \"server\"", &Overrides::default());
    assert!(
        is_machine && output.contains("pierhead.toml:2: profile \"server\" does not fit"),
        "{output}"
    );
    let (is_machine, output) = refused("[limits]\nmemory = \"2GiB\"", &Overrides::default());
    assert!(
        is_machine && output.contains(":2: limits.memory is 2.0 GiB"),
        "{output}"
    );
    let (is_machine, output) = refused("[limits]\ncores = \"7-8\"", &Overrides::default());
    assert!(
        is_machine && output.contains("may run on 0-7 and not on 8"),
        "{output}"
    );
    let (is_machine, _) = refused("profile = \"huge\"", &Overrides::default());
    assert!(!is_machine, "an unknown name is a usage error");
    assert!(loaded("", &with_profile("bluefield3")).is_ok());
}

/// The defaults that follow from a changed profile also wait for the restart.
#[test]
fn a_reload_with_another_profile_changes_no_default() {
    let loaded = |old: Option<&Config>, text: &str| {
        let loaded = load_with_old(old, text, &Overrides::default());
        loaded.unwrap_or_else(|it| panic!("{it}"))
    };
    let derived = |config: &Config| {
        let limits = &config.limits;
        (
            config.cache.size,
            config.cache.daily_write_budget,
            limits.upstream_bandwidth,
            limits.downloads,
            limits.connections,
            limits.response_memory,
        )
    };
    let texts = [
        "",
        "profile = \"bluefield2\"",
        "profile = \"small\"",
        "[limits]\nmemory = \"200MiB\"",
        "profile = \"bluefield2\"\n[limits]\nmemory = \"600MiB\"",
    ];
    for before in texts {
        let old = loaded(None, before);
        for after in texts {
            let new = loaded(Some(&old), after);
            assert!(derived(&new) == derived(&old), "{before:?} to {after:?}");
        }
        // The changed key is one that the configuration file sets.
        let text = "limits.upstream_bandwidth = \"7MB/s\"\nprofile = \"small\"";
        let new = loaded(Some(&old), text);
        assert_eq!(new.limits.upstream_bandwidth, Some(7_000_000));
    }
}

#[test]
fn a_key_is_described_with_file_and_line_unless_a_flag_overrides_it() {
    let text = "\nlisten = [\"127.0.0.1:1\"]\n[cache]\nmin_free = \"1GiB\"";
    let config = loaded(text, &Overrides::default()).unwrap_or_else(|it| panic!("{it}"));
    let described = config.key_locations.describe("cache.min_free");
    assert!(described.starts_with("cache.min_free (/"), "{described}");
    assert!(described.ends_with("/pierhead.toml:4)"), "{described}");
    assert_eq!(config.key_locations.describe("cache.size"), "cache.size");
    assert!(config.key_locations.describe("listen").ends_with(":2)"));
    let by_flag = Overrides {
        listen: vec!["127.0.0.1:2".parse().expect("an address")],
        ..Overrides::default()
    };
    let config = loaded(text, &by_flag).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(config.key_locations.describe("listen"), "listen");
    let is_set = |key| config.key_locations.is_set(key);
    assert!(is_set("listen") && is_set("cache.min_free") && !is_set("admin"));
}

#[test]
fn an_error_of_an_overridden_key_names_the_flag() {
    let refused = |text: &str, overrides: &Overrides| {
        let refused = loaded(text, overrides).err().expect("an error");
        refused.to_string()
    };
    let address = |text: &str| text.parse::<std::net::SocketAddr>().expect("an address");
    let flags = |listen: &[&str], admin: Option<&str>| Overrides {
        listen: listen.iter().map(|it| address(it)).collect(),
        admin: admin.map(|it| Some(address(it))),
        ..Overrides::default()
    };
    let (one, both) = ("127.0.0.1:6000", "are both 127.0.0.1:6000");
    let file = "\nlisten = [\"127.0.0.1:6000\"]\nadmin = \"127.0.0.1:6000\"";
    // Whatever key is wrong, the message names the key `admin`; its place is the line of the file,
    // or the flag.
    for (text, listen, admin, place) in [
        (file, &[][..], None, "/pierhead.toml:3: admin and listen"),
        (file, &[], Some(one), "--admin: admin and listen"),
        (file, &[one], None, "/pierhead.toml:3: admin and listen"),
        (file, &[one], Some(one), "--admin: admin and listen"),
        ("", &[one], Some(one), "--admin: admin and listen"),
    ] {
        let output = refused(text, &flags(listen, admin));
        assert!(output.contains(place) && output.contains(both), "{output}");
        assert_eq!(output.starts_with('-'), place.starts_with('-'), "{output}");
    }
    let login = "\nlisten = [\"127.0.0.1:6000\"]\n[upstreams.\"a.b\"]\nusername = \"x\"\npassword_file = \"y\"";
    let output = refused(login, &flags(&["0.0.0.0:6000"], None));
    assert!(
        output.starts_with("--listen: every client that reaches"),
        "{output}"
    );
    // The flag `--profile` overrides the profile in the file, so the message names the flag.
    for text in ["", "\nprofile = \"small\"", "\nprofile = \"server\""] {
        let output = refused(text, &with_profile("server"));
        assert!(
            output.starts_with("--profile: profile \"server\" does not"),
            "{output}"
        );
    }
    // If tier.size has its default, the message has the line of tier.path.
    let text = "\n[tier]\nkind = \"file\"\npath = \"/dev/shm/pierhead-missing\"";
    let output = refused(text, &Overrides::default());
    assert!(
        output.contains("/pierhead.toml:4: tier.path is on a tmpfs"),
        "{output}"
    );
}

#[test]
fn a_tier_in_memory_that_does_not_fit_is_an_error_with_its_line() {
    // /dev/shm is a tmpfs on every Linux, and the test writes nothing to it.
    let text = "[tier]\nkind = \"file\"\npath = \"/dev/shm/pierhead-missing\"\nsize = \"1GiB\"";
    let refused = loaded(text, &Overrides::default()).err().expect("an error");
    assert!(refused.fault() == Fault::Host, "{refused}");
    let output = refused.to_string();
    assert!(
        output.contains("pierhead.toml:4: tier.path is on a tmpfs"),
        "{output}"
    );
    assert!(loaded(&text.replace("1GiB", "512MiB"), &Overrides::default()).is_ok());
    let off = text.replace("\"file\"", "\"off\"");
    assert!(loaded(&off, &Overrides::default()).is_ok());
}
