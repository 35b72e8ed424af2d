//! Tests of the edits of configuration files: the edit adds pierhead and keeps all other bytes, and
//! invalid files are refused.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::registries_conf::RegistryEntries;
use super::{containerd_config, daemon_json, hosts_toml, registries_conf, toml_text};
use crate::address::Address;
use crate::error::TextProblem;

const CERTS: &str = "/etc/containerd/certs.d";

fn address(text: &str) -> Address {
    text.parse().expect("an address")
}

/// Returns the text with CRLF or LF as line ends, with or without a line end after the last line.
fn dressed(text: String, crlf: bool, open_end: bool) -> String {
    let text = if open_end {
        text.trim_end().to_owned()
    } else {
        text
    };
    if crlf {
        text.replace('\n', "\r\n")
    } else {
        text
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z\"\\\\/ -]{0,8}", inner, 0..4)
                .prop_map(|map| Value::from(Map::from_iter(map))),
        ]
    })
}

proptest! {
    /// Tests that, whatever the file of dockerd contains, pierhead becomes the first mirror, all
    /// other bytes are kept, and a second edit changes nothing.
    #[test]
    fn docker_gains_a_mirror_and_nothing_else(
        others in proptest::collection::btree_map("[a-z\"\\\\ -]{1,12}", json_value(), 0..5),
        mirrors in proptest::option::of(proptest::collection::vec("https://[a-z]{1,9}", 0..3)),
        pretty: bool,
        crlf: bool,
        open_end: bool,
        remote: bool,
    ) {
        let mut object = Map::from_iter(others);
        if let Some(mirrors) = &mirrors {
            object.insert(daemon_json::MIRRORS.to_owned(), json!(mirrors));
        }
        let before = Value::from(object);
        let text = if pretty { serde_json::to_string_pretty(&before) } else { serde_json::to_string(&before) };
        let text = dressed(text.expect("JSON") + "\n", crlf, open_end);
        let address = address(if remote { "http://10.1.2.3:5000" } else { "http://127.0.0.1:5000" });

        let after = daemon_json::with_mirror(Some(&text), &address).expect("it is taken");
        prop_assert_eq!(daemon_json::with_mirror(Some(&after), &address).expect("again"), after.clone());
        let mut found: Value = serde_json::from_str(&after).expect("JSON");
        let mut expected = vec![address.to_string()];
        expected.extend(mirrors.clone().unwrap_or_default());
        prop_assert_eq!(daemon_json::mirrors(&after).expect("mirrors"), expected);
        let object = found.as_object_mut().expect("an object");
        prop_assert_eq!(object.remove(daemon_json::INSECURE), remote.then(|| json!(["10.1.2.3:5000"])));
        object.remove(daemon_json::MIRRORS);
        let mut before = before;
        before.as_object_mut().expect("an object").remove(daemon_json::MIRRORS);
        prop_assert_eq!(found, before);
        if crlf && text.contains('\n') {
            prop_assert!(!after.replace("\r\n", "").contains('\n'), "{:?}", after);
        }
    }

    /// Tests that the edit works with a file of any version of containerd, whatever else the file
    /// contains.
    #[test]
    fn containerd_gains_a_folder_and_nothing_else(
        version in 0..5_u8,
        parts in proptest::collection::vec(0..7_usize, 0..6),
        old in proptest::option::of("[a-z/:]{0,12}"),
        crlf: bool,
        open_end: bool,
    ) {
        let plugin = match version {
            0 | 1 => "cri",
            2 => "\"io.containerd.grpc.v1.cri\"",
            _ => "'io.containerd.cri.v1.images'",
        };
        let mut text = String::from("# ours, \"quoted\" [not.a.header]\n");
        if version > 0 {
            text.push_str(&format!("version = {version} # of the format\n"));
        }
        text.push_str("root = '''\n[plugins.cri.registry]\n'''\n");
        let mut parts = parts;
        parts.sort_unstable();
        parts.dedup();
        for part in parts {
            text.push_str(&match part {
                0 => "[grpc]\n  address = \"/run/c.sock\" # \"x\"\n\n".to_owned(),
                1 => "[plugins.\"io.containerd.gc.v1.scheduler\"]\n\tpause_threshold = 0.02\n".to_owned(),
                2 => format!("[plugins.{plugin}]\n  max_concurrent_downloads = 7\n"),
                3 => format!("  [plugins.{plugin}.registry.headers]\n    X = [\"b\"]\n"),
                4 => format!("  [plugins.{plugin}.registry] # here\n    # nothing yet\n"),
                5 => format!("  [plugins.{plugin}.registry.configs.\"a.b\".auth]\n    username = \"u\"\n"),
                _ => "[debug]\n  level = \"info\"\n".to_owned(),
            });
            if let (4, Some(old)) = (part, &old) {
                text.push_str(&format!("    config_path = \"{old}\"  # was\n"));
            }
        }
        let text = dressed(text, crlf, open_end);
        let before = toml_text::parse(&text).expect("the generator writes TOML");
        let says = containerd_config::read(&text).expect("it is read");
        let after = containerd_config::with_config_path(Some(&text), CERTS).expect("it is taken");
        let certs = containerd_config::read(&after).expect("it is read").certs;
        prop_assert_eq!(certs.as_deref(), Some(CERTS));
        prop_assert_eq!(containerd_config::with_config_path(Some(&after), CERTS).expect("again"), after.clone());
        if says.certs.is_none() {
            // The edit keeps every line, including comments, except the line with the empty path.
            let missing: Vec<_> = text.lines().filter(|line| !after.lines().any(|it| it == *line)).collect();
            prop_assert!(missing.iter().all(|line| line.contains("config_path")), "{:?}", missing);
        }
        let mut found = toml_text::parse(&after).expect("TOML");
        let mut expected = before;
        for table in [&mut found, &mut expected] {
            let name = plugin.trim_matches(['"', '\'']);
            let plugins = table.entry("plugins").or_insert_with(|| toml::Table::new().into());
            let registry = plugins
                .as_table_mut().expect("a table")
                .entry(name).or_insert_with(|| toml::Table::new().into())
                .as_table_mut().expect("a table")
                .entry("registry").or_insert_with(|| toml::Table::new().into());
            registry.as_table_mut().expect("a table").remove("config_path");
        }
        prop_assert_eq!(found, expected);
        if crlf {
            prop_assert!(!after.replace("\r\n", "").contains('\n'), "{:?}", after);
        }
    }

    /// Tests that, in a `hosts.toml` file that was written by hand, pierhead becomes the first
    /// host, and the other hosts keep their order.
    #[test]
    fn hosts_come_after_pierhead(
        names in proptest::collection::btree_set("[a-z]{1,8}", 0..4),
        server: bool,
        crlf: bool,
        open_end: bool,
    ) {
        let mut text = String::from("# by hand\n");
        if server {
            text.push_str("server = \"https://origin.example\"\n\n");
        }
        for name in &names {
            text.push_str(&format!("[host.\"https://{name}\"]\n  capabilities = [\"pull\"] # pull\n"));
            text.push_str(&format!("  [host.\"https://{name}\".header]\n    X-A = [\"b\"]\n"));
        }
        let text = dressed(text, crlf, open_end);
        let address = address("http://10.0.0.1:5000");
        let after = hosts_toml::with_host(Some(&text), &address, Some("https://ignored"), None).expect("it is taken");
        prop_assert_eq!(&hosts_toml::with_host(Some(&after), &address, None, None).expect("again"), &after);
        let headers: Vec<_> = after.lines().filter(|line| line.starts_with("[host.")).collect();
        prop_assert_eq!(headers.len(), names.len() + 1);
        if crlf && text.contains('\n') {
            prop_assert!(!after.replace("\r\n", "").contains('\n'), "{:?}", after);
        }
        prop_assert_eq!(headers[0], "[host.\"http://10.0.0.1:5000\"]");
        for line in text.lines() {
            prop_assert!(after.lines().any(|it| it == line), "{} in {}", line, after);
        }
    }
}

#[test]
fn new_files() {
    let (near, far) = (address("127.0.0.1:5000"), address("https://p.example:5000"));
    assert_eq!(
        daemon_json::with_mirror(None, &near).expect("new"),
        "{\n  \"registry-mirrors\": [\"http://127.0.0.1:5000\"]\n}\n"
    );
    assert_eq!(
        containerd_config::with_config_path(None, CERTS).expect("new"),
        "version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"/etc/containerd/certs.d\"\n"
    );
    let text = hosts_toml::with_host(
        None,
        &far,
        Some("https://registry-1.docker.io"),
        Some("ca.crt"),
    );
    assert_eq!(
        text.expect("new"),
        "server = \"https://registry-1.docker.io\"\n\n# pierhead. If it is down or refuses, containerd asks the next host.\n\
         [host.\"https://p.example:5000\"]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = \"ca.crt\"\n"
    );
    let text = registries_conf::drop_in(&far, &["quay.io".to_owned()], &RegistryEntries::new());
    assert!(
        text.ends_with(
            "\n[[registry]]\nprefix = \"quay.io\"\nlocation = \"quay.io\"\n[[registry.mirror]]\nlocation = \"p.example:5000/quay.io\"\n"
        ),
        "{text}"
    );
}

#[test]
fn what_somebody_else_configured_is_carried_on() {
    let mut others = RegistryEntries::new();
    let theirs = "[[registry]]\nlocation = \"quay.io\"\nblocked = false\n[[registry.mirror]]\nlocation = \"mirror.lab/q\"\ninsecure = true\n";
    registries_conf::read(theirs, &mut others).expect("it is read");
    let ours =
        registries_conf::drop_in(&address("127.0.0.1:5000"), &["quay.io".to_owned()], &others);
    let mut found = RegistryEntries::new();
    registries_conf::read(&ours, &mut found).expect("it is read");
    assert_eq!(
        registries_conf::mirrors(&found)["quay.io"],
        ["127.0.0.1:5000/quay.io", "mirror.lab/q"]
    );
    assert_eq!(found["quay.io"]["blocked"], false.into());
    assert_eq!(ours.matches("insecure = true").count(), 3, "{ours}");
}

/// Tests the entry that allows plain HTTP: without an entry for its name, podman connects to a
/// registry only by HTTPS.
#[test]
fn podman_may_pull_by_the_name_of_pierhead() {
    let registries = ["quay.io".to_owned()];
    let theirs = "[[registry]]\nlocation = \"p.example:5000\"\ninsecure = false\nblocked = false\n\
                  [[registry.mirror]]\nlocation = \"mirror.lab/p\"\n";
    let mut others = RegistryEntries::new();
    registries_conf::read(theirs, &mut others).expect("it is read");
    for (others, mirrors) in [(RegistryEntries::new(), 0), (others, 1)] {
        let ours =
            registries_conf::drop_in(&address("http://p.example:5000"), &registries, &others);
        let mut found = RegistryEntries::new();
        registries_conf::read(&ours, &mut found).expect("it is read");
        let entry = &found["p.example:5000"];
        assert_eq!(entry["location"], "p.example:5000".into(), "{ours}");
        assert_eq!(entry["insecure"], true.into(), "{ours}");
        assert_eq!(
            registries_conf::mirrors(&found)["p.example:5000"].len(),
            mirrors
        );
    }
    let with_tls = address("https://p.example:5000");
    let ours = registries_conf::drop_in(&with_tls, &registries, &RegistryEntries::new());
    assert!(!ours.contains("insecure"), "{ours}");
}

#[test]
fn errors_of_others_have_a_line() {
    let near = address("127.0.0.1:5000");
    let line = |problem: TextProblem| problem.line;
    for (text, expected) in [
        ("{\n  \"a\": 1,\n}\n", Some(3)),
        ("{\n  // mine\n}\n", Some(2)),
        ("[]\n", Some(1)),
        ("{\"registry-mirrors\": \"x\"}", None),
        ("{\"registry-mirrors\": [1]}", None),
        ("{\"registry-mirrors\": [], \"registry-mirrors\": []}", None),
    ] {
        assert_eq!(
            daemon_json::with_mirror(Some(text), &near).map_err(line),
            Err(expected),
            "{text}"
        );
    }
    for (text, expected) in [
        ("version = 2\nx = \n", Some(2)),
        (
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"a.b\"]\nendpoint = []\n",
            Some(2),
        ),
        (
            "version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"a.b\".tls]\nca_file = \"\"\n",
            Some(3),
        ),
        ("# of tomorrow\nversion = 5\n", Some(2)),
        ("version = 0\n", Some(1)),
        ("version = \"2\"\n", Some(1)),
    ] {
        assert_eq!(
            containerd_config::read(text).map_err(line),
            Err(expected),
            "{text}"
        );
    }
    let refused =
        containerd_config::with_config_path(Some("version = 5\n"), CERTS).expect_err("refused");
    assert!(
        refused.message.contains("version = 5 is not known"),
        "{}",
        refused.message
    );
    let newest =
        "version = 4\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/a'\n";
    assert_eq!(
        containerd_config::read(newest)
            .expect("read")
            .certs
            .as_deref(),
        Some("/a")
    );
    // In an inline table, no key can be inserted unless the whole table is rewritten.
    let inline = "version = 2\nplugins = { \"io.containerd.grpc.v1.cri\" = { registry = {} } }\n";
    let refused = containerd_config::with_config_path(Some(inline), CERTS).expect_err("refused");
    assert!(refused.message.contains("by hand"), "{}", refused.message);
    let old = "[registries.search]\nregistries = [\"docker.io\"]\n";
    assert_eq!(
        registries_conf::read(old, &mut RegistryEntries::new()).map_err(line),
        Err(Some(1))
    );
}
