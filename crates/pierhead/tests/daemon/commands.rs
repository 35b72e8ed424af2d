//! Tests of `pierhead cache …` and `pierhead doctor` with a running daemon.

use std::net::SocketAddr;
use std::time::Duration;

use pierhead_testkit::http::Request;
use pierhead_testkit::http::server::{TestServer, response};
use pierhead_testkit::images::{Image, TreeOptions};
use pierhead_testkit::registry::{FakeRegistry, Fault};
use serde_json::Value;

use crate::harness::{Daemon, password_file};

pub(crate) async fn with_image() -> (FakeRegistry, Image, Daemon) {
    let registry = FakeRegistry::start().await;
    let image = Image::random(7, &[300_000, 70_000, 5]);
    registry.push("team/app", "1", &image);
    let daemon = Daemon::start("", &["--upstream", &format!("lab:5000={}", registry.url())]).await;
    (registry, image, daemon)
}

pub(crate) const IMAGE: &str = "lab:5000/team/app:1";

fn objects(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[tokio::test]
async fn a_warmed_image_is_listed_and_counted() {
    let (registry, image, daemon) = with_image().await;
    let out = daemon.cached(&["warm", IMAGE]).await;
    assert_eq!(out, format!("warmed {IMAGE}\nwarmed 1, failed 0\n"));
    for blob in &image.blobs {
        assert_eq!(registry.gets_of(&blob.digest), 1, "{}", blob.digest);
    }

    let list = daemon.cached(&["ls", "--blobs"]).await;
    let listed = objects(&daemon.cached(&["ls", "--blobs", "--json"]).await);
    assert_eq!(listed.len(), image.digests().count());
    for digest in image.digests() {
        assert!(list.contains(&digest.to_string()), "{digest} in {list}");
        assert!(
            listed
                .iter()
                .any(|blob| blob["digest"] == digest.to_string())
        );
    }
    let heading = list.lines().next().unwrap_or_default();
    assert!(
        heading.starts_with("DIGEST ") && heading.contains("LAST USE"),
        "{list}"
    );
    assert!(
        list.contains("application/vnd.oci.image.manifest.v1+json"),
        "{list}"
    );

    // Each blob of the image names the image, and the image has a line of its own.
    assert_eq!(
        list.matches(IMAGE).count(),
        image.digests().count(),
        "{list}"
    );
    let table = daemon.cached(&["ls"]).await;
    let cells: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        cells[0],
        [
            "IMAGE", "PLATFORM", "SIZE", "COMPLETE", "PINNED", "LAST", "USE"
        ]
    );
    assert_eq!((cells.len(), cells[1][0]), (2, IMAGE), "{table}");
    assert_eq!(cells[1][4..6], ["yes", "no"], "{table}");
    let blobs: usize = image.blobs.iter().map(|blob| blob.bytes.len()).sum();
    let size = blobs + image.root_document().bytes.len();
    let size = format!("{:.1}", size as f64 / 1024.0);
    assert_eq!(cells[1][2..4], [&*size, "KiB"], "{table}");
    let last_use = cells[1][6].strip_suffix('s');
    let last_use = last_use.and_then(|seconds| seconds.parse::<u64>().ok());
    assert!(last_use.is_some_and(|seconds| seconds < 60), "{table}");
    assert_eq!(cells[1][7..], ["ago"], "{table}");
    let row = &objects(&daemon.cached(&["ls", "--json"]).await)[0];
    assert_eq!(
        (&row["image"], &row["pinned"]),
        (&IMAGE.into(), &false.into())
    );
    assert_eq!(row["platforms"][0]["complete"], true, "{row}");

    let stat = &objects(&daemon.cached(&["stat", "--json"]).await)[0];
    assert_eq!(stat["blobs"], image.digests().count());
    assert!(
        stat["used"].as_u64().is_some_and(|used| used >= 370_005),
        "{stat}"
    );
    let disk = &stat["disk"];
    let kind = |name: &str| {
        disk[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} in {disk}"))
    };
    let kinds = [
        "blobs",
        "downloads",
        "tags",
        "pins",
        "bundles",
        "catalog",
        "other",
    ];
    assert_eq!(kind("total"), kinds.map(kind).iter().sum::<u64>());
    assert!(
        kind("blobs") >= 370_005 && kind("tags") > 0 && kind("catalog") > 0,
        "{disk}"
    );
    let text = daemon.cached(&["stat"]).await;
    assert!(
        text.contains("blobs       5, ") && text.contains(&daemon.listen.to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn an_image_that_lacks_a_layer_is_listed_as_incomplete() {
    let registry = FakeRegistry::start().await;
    let image = Image::random(7, &[30_000, 50_000]);
    registry.push("team/app", "1", &image);
    let upstream = format!("lab:5000={}", registry.url());
    let daemon = Daemon::start("", &["--upstream", &upstream]).await;
    let get = async |path: String| {
        let response = pierhead_testkit::http::get(daemon.listen, &path).await;
        assert_eq!(response.status, 200, "{path}");
    };
    let blobs_are = async |count: usize| {
        let waiting = async {
            while daemon.get("/v1/stat").await.json()["blobs"] != count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        crate::harness::soon("the blobs in the cache", waiting).await;
    };
    let blob = |digest| format!("/v2/lab:5000/team/app/blobs/{digest}");
    let missing = image
        .blobs
        .iter()
        .find(|blob| blob.bytes.len() == 50_000)
        .expect("a layer");
    let present = image.blobs.iter().filter(|it| it.digest != missing.digest);

    // First the manifest alone, then all blobs except one layer, then the last layer.
    get("/v2/lab:5000/team/app/manifests/1".to_owned()).await;
    let mut size = image.root_document().bytes.len();
    let listed = async |size: usize, is_complete: bool| {
        let rows = objects(&daemon.cached(&["ls", "--json"]).await);
        let [row] = &rows[..] else {
            panic!("{rows:?}");
        };
        let platform = &row["platforms"][0];
        assert_eq!(row["platforms"].as_array().map(Vec::len), Some(1), "{row}");
        assert_eq!(platform["complete"], is_complete, "{row}");
        assert_eq!(platform["size"], size, "{row}");
        let table = daemon.cached(&["ls"]).await;
        let cells: Vec<_> = table
            .lines()
            .nth(1)
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let shown = pierhead_oci::units::human_bytes(size as u64);
        let complete = if is_complete { "yes" } else { "no" };
        assert_eq!(
            cells[2..5].join(" "),
            format!("{shown} {complete}"),
            "{table}"
        );
    };
    blobs_are(1).await;
    listed(size, false).await;
    for it in present {
        get(blob(it.digest)).await;
        size += it.bytes.len();
    }
    blobs_are(image.digests().count() - 1).await;
    listed(size, false).await;
    get(blob(missing.digest)).await;
    size += missing.bytes.len();
    blobs_are(image.digests().count()).await;
    listed(size, true).await;
}

#[tokio::test]
async fn a_warm_reports_progress_and_failures() {
    let (registry, image, daemon) = with_image().await;
    let events = objects(&daemon.cached(&["warm", IMAGE, "--json"]).await);
    let last = events.last().expect("events");
    assert_eq!(
        (&last["event"], &last["good"], &last["bad"]),
        (&"done".into(), &1.into(), &0.into())
    );
    let progress = events
        .iter()
        .rfind(|event| event["event"] == "progress")
        .expect("progress");
    assert_eq!(progress["done"], progress["blobs"], "{progress}");
    assert_eq!(progress["bytes_done"], progress["bytes"], "{progress}");

    // One of the three images does not exist. `warm` caches the two other images, and exits with
    // code 1.
    registry.push("team/app", "2", &Image::random(8, &[1000]));
    registry.inject(Fault::Status(404).on("*/team/gone/*"));
    let (code, out, err) = daemon
        .cache(&["warm", IMAGE, "lab:5000/team/gone:1", "lab:5000/team/app:2"])
        .await;
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains(&format!("warmed {IMAGE}\n")), "{out}");
    assert!(out.contains("failed lab:5000/team/gone:1: "), "{out}");
    assert!(
        out.ends_with("warmed lab:5000/team/app:2\nwarmed 2, failed 1\n"),
        "{out}"
    );
    assert!(err.contains("1 failed"), "{err}");
    drop(image);
}

#[tokio::test]
async fn pinned_images_survive_a_prune() {
    let (_registry, image, daemon) = with_image().await;
    daemon.cached(&["warm", "--pin", IMAGE]).await;
    let pins = daemon.cached(&["ls", "--pins"]).await;
    assert_eq!(
        pins,
        format!("{IMAGE}  {} blobs\n", image.digests().count())
    );

    daemon
        .logs(&format!("image pinned image={IMAGE} blobs="))
        .await;
    let out = daemon.cached(&["prune", "--all"]).await;
    daemon.logs("cache pruned freed_bytes=").await;
    assert!(out.starts_with("freed 0 B, "), "{out}");
    let listed = objects(&daemon.cached(&["ls", "--blobs", "--json"]).await);
    assert!(
        listed.len() == image.digests().count() && listed.iter().all(|blob| blob["pinned"] == true),
        "{listed:?}"
    );

    assert_eq!(
        daemon.cached(&["unpin", IMAGE]).await,
        format!("unpinned {IMAGE}\n")
    );
    daemon.logs(&format!("image unpinned image={IMAGE}")).await;
    let (code, _, err) = daemon.cache(&["unpin", IMAGE]).await;
    assert!(code == Some(1) && err.contains("is not pinned"), "{err}");
    let freed = &objects(&daemon.cached(&["prune", "--to", "0", "--json"]).await)[0];
    assert!(
        freed["freed"].as_u64().is_some_and(|freed| freed > 370_000),
        "{freed}"
    );
    assert_eq!(daemon.cached(&["ls", "--blobs"]).await, "");
    assert_eq!(
        daemon.cached(&["ls"]).await.lines().count(),
        1,
        "the heading"
    );

    let (code, _, err) = daemon.cache(&["pin", IMAGE]).await;
    assert!(code == Some(1) && err.contains("warm --pin"), "{err}");
    daemon.cached(&["warm", IMAGE]).await;
    let out = daemon.cached(&["pin", IMAGE]).await;
    assert_eq!(
        out,
        format!("pinned {IMAGE}, {} blobs\n", image.digests().count())
    );
}

#[tokio::test]
async fn a_pin_of_a_cached_image_is_logged() {
    let (_registry, image, daemon) = with_image().await;
    daemon.cached(&["warm", IMAGE]).await;
    daemon.cached(&["pin", IMAGE]).await;
    let blobs = image.digests().count();
    daemon
        .logs(&format!("image pinned image={IMAGE} blobs={blobs}"))
        .await;
}

#[tokio::test]
async fn a_verification_removes_a_corrupt_blob() {
    let (registry, image, daemon) = with_image().await;
    daemon.cached(&["warm", IMAGE]).await;
    assert!(
        daemon
            .cached(&["verify"])
            .await
            .ends_with("verified 5, failed 0\n")
    );

    let layer = image
        .blobs
        .iter()
        .max_by_key(|blob| blob.bytes.len())
        .expect("a layer");
    let hex = layer.digest.hex();
    let path = daemon
        .data()
        .join("blobs/sha256")
        .join(&hex[..2])
        .join(&hex);
    let mut content = std::fs::read(&path).expect("the file exists");
    content[1000] ^= 1;
    std::fs::write(&path, content).expect("the file is written");

    let (code, out, _) = daemon.cache(&["verify", "--json"]).await;
    assert_eq!(code, Some(1), "{out}");
    let events = objects(&out);
    let item = events
        .iter()
        .find(|event| event["event"] == "item")
        .expect("an item");
    assert_eq!(
        (&item["subject"], &item["ok"]),
        (&layer.digest.to_string().into(), &false.into())
    );
    let done = events.last().expect("events");
    assert_eq!((&done["good"], &done["bad"]), (&4.into(), &1.into()));
    // `verify` has removed the corrupt blob, and pierhead fetches the blob again at the next
    // request.
    assert!(
        !daemon
            .cached(&["ls", "--blobs"])
            .await
            .contains(&layer.digest.to_string())
    );
    daemon.cached(&["warm", IMAGE]).await;
    assert_eq!(registry.gets_of(&layer.digest), 2);
    assert!(
        daemon
            .cached(&["verify"])
            .await
            .ends_with("verified 5, failed 0\n")
    );
}

#[tokio::test]
async fn doctor_checks_the_configuration_in_effect() {
    let hub = FakeRegistry::builder()
        .basic_auth("someone", "hunter2")
        .start()
        .await;
    let lab = FakeRegistry::start().await;
    let secret = password_file();
    let daemon = Daemon::start(
        &format!(
            "default_upstream = \"hub.lab\"\n[upstreams.\"hub.lab\"]\naddresses = {:?}\nusername = \"someone\"\npassword_file = {:?}\n",
            hub.url(),
            secret.path(),
        ),
        &["--upstream", &format!("flag.lab={}", lab.url())],
    )
    .await;
    let shown = daemon.get("/v1/config").await;
    let text = String::from_utf8_lossy(&shown.body).into_owned();
    assert!(text.contains("[upstreams.\"flag.lab\"]"), "{text}");
    assert!(!text.contains("hunter2"), "a secret leaves the process");

    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_pierhead"));
    command.args(["doctor", "--json", "--admin", &daemon.admin.to_string()]);
    let output = crate::harness::soon("its end", command.output()).await;
    let output = output.expect("pierhead runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings");
    let level = |about: &str| {
        let mut of = findings.iter().filter(|it| it["about"] == about);
        (
            of.next().expect(about)["level"].clone(),
            of.next().is_none(),
        )
    };
    // The upstream flag.lab exists only in a flag of the daemon.
    assert_eq!(level("upstream flag.lab"), ("ok".into(), true), "{report}");
    // The password of hub.lab is only in the configuration file: the configuration that the daemon
    // prints masks it.
    assert_eq!(level("upstream hub.lab"), ("ok".into(), true), "{report}");
    assert_eq!(level("configuration").0, "ok", "{report}");
    assert!(!report.to_string().contains("hunter2"));
}

/// Starts a fake admin listener that serves these bodies by path, and status 404 for any other
/// path.
fn fake_admin(bodies: Vec<(&'static str, String)>) -> SocketAddr {
    let server = TestServer::start(move |request| {
        let body = bodies.iter().find(|(path, _)| *path == request.path());
        match body {
            Some((_, body)) => response("200 OK", &[], body.as_bytes()),
            None => response("404 Not Found", &[], b""),
        }
    });
    server.address()
}

#[tokio::test]
async fn doctor_sends_credentials_only_to_addresses_of_the_file() {
    let password = async || {
        let registry = FakeRegistry::builder().basic_auth("someone", "hunter2");
        registry.start().await
    };
    let (hub, thief) = (password().await, password().await);
    let other = FakeRegistry::start().await;
    let secret = password_file();
    let daemon = Daemon::start(
        &format!(
            "default_upstream = \"hub.lab\"\n[upstreams.\"hub.lab\"]\naddresses = {:?}\nusername = \"someone\"\npassword_file = {:?}\n\
             [upstreams.\"other.lab\"]\naddresses = {:?}\n",
            hub.url(),
            secret.path(),
            other.url()
        ),
        &[],
    )
    .await;
    let text = async |path| {
        let response = daemon.get(path).await;
        String::from_utf8(response.body.to_vec()).expect("UTF-8")
    };
    // pierhead is stopped. A foreign process on its admin port names the configuration file of
    // pierhead, but another address of the upstream.
    let shown = text("/v1/config").await;
    let moved = shown.replace(&hub.url(), &thief.url());
    assert_ne!(moved, shown);
    let admin = fake_admin(vec![
        ("/v1/stat", text("/v1/stat").await),
        ("/v1/config", moved),
        ("/readyz", String::new()),
    ]);
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_pierhead"));
    command.args(["doctor", "--json", "--admin", &admin.to_string()]);
    let output = crate::harness::soon("its end", command.output()).await;
    let output = output.expect("pierhead runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let asked = thief.requests();
    assert!(!asked.is_empty(), "the address is looked at: {report}");
    for request in asked {
        assert_eq!(request.header("authorization"), None, "{report}");
    }
    let findings = report["findings"].as_array().expect("findings");
    let warns = findings.iter().any(|it| {
        let what = it["what"].as_str().unwrap_or_default();
        it["about"] == "upstream hub.lab" && it["level"] == "warn" && what.contains("not checked")
    });
    assert!(warns, "{report}");
    let of_other: Vec<_> = findings
        .iter()
        .filter(|it| it["about"] == "upstream other.lab")
        .collect();
    assert_eq!(of_other.len(), 1, "{report}");
    assert_eq!(of_other[0]["level"], "ok", "{report}");
}

#[tokio::test]
async fn an_incomplete_list_of_images_is_a_warning() {
    let admin = fake_admin(vec![(
        "/v1/images",
        "{\"images\":[],\"more\":true}".to_owned(),
    )]);
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_pierhead"));
    command.args(["cache", "ls", "--admin", &format!("http://{admin}")]);
    let output = crate::harness::soon("its end", command.output()).await;
    let output = output.expect("pierhead runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert!(err.contains("1000"), "{err}");
}

#[tokio::test]
async fn a_prune_below_the_fixed_size_deletes_nothing() {
    let (_registry, _, daemon) = with_image().await;
    daemon.cached(&["warm", IMAGE]).await;
    let used = async || daemon.get("/v1/stat").await.json()["used"].clone();
    let before = used().await;
    // Writes a file of another program into the data folder.
    std::fs::write(daemon.data().join("backup"), vec![1; 4 << 20]).expect("written");
    daemon.cached(&["prune", "--to", "2MiB"]).await;
    assert_eq!(used().await, before, "there is room for all that counts");
    let (code, _, err) = daemon.cache(&["prune", "--to", "10B"]).await;
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("tags") && err.contains("--all"), "{err}");
    assert_eq!(used().await, before, "nothing is deleted in vain");
    daemon.cached(&["prune", "--all"]).await;
    assert_eq!(used().await, 0);
}

#[tokio::test]
async fn an_unpinned_image_is_removed() {
    let (registry, image, daemon) = with_image().await;
    let other = Image::random(8, &[50_000]);
    registry.push("team/app", "2", &other);
    daemon.cached(&["warm", "--pin", IMAGE]).await;
    daemon.cached(&["warm", "lab:5000/team/app:2"]).await;
    let rows = objects(&daemon.cached(&["ls", "--json"]).await);
    let pinned: Vec<_> = rows.iter().map(|it| &it["pinned"]).collect();
    assert_eq!(pinned, [true, false], "in the order of their names");

    let (code, _, err) = daemon.cache(&["rm", IMAGE]).await;
    assert_eq!(code, Some(1));
    let fix = format!("pierhead cache unpin {IMAGE}");
    assert!(err.contains("is pinned") && err.contains(&fix), "{err}");
    let by_digest = format!("lab:5000/team/app@{}", image.root);
    let (code, _, err) = daemon.cache(&["rm", &by_digest]).await;
    assert!(code == Some(1) && err.contains(&fix), "{err}");

    daemon.cached(&["unpin", IMAGE]).await;
    let tag_bytes = async || daemon.get("/v1/stat").await.json()["disk"]["tags"].as_u64();
    let before = tag_bytes().await;
    // Although pierhead refuses to remove one image, it removes the other images.
    let (code, out, err) = daemon
        .cache(&["rm", "lab:5000/team/none:1", IMAGE, "lab:5000/team/none:2"])
        .await;
    assert_eq!(code, Some(1));
    let refused = |image: &str| {
        format!("pierhead: {image} is not in the cache: `pierhead cache ls` lists the images\n")
    };
    let expected = ["lab:5000/team/none:1", "lab:5000/team/none:2"].map(refused);
    assert_eq!(err, expected.concat(), "each in the order of the images");
    assert!(tag_bytes().await < before, "its tag is gone, too");
    daemon
        .logs(&format!("image removed image={IMAGE} freed_bytes="))
        .await;
    assert!(
        out.starts_with(&format!("removed {IMAGE}, freed 3")),
        "{out}"
    );
    let listed = objects(&daemon.cached(&["ls", "--blobs", "--json"]).await);
    assert_eq!(listed.len(), other.digests().count());
    let table = daemon.cached(&["ls"]).await;
    assert!(
        !table.contains(IMAGE) && table.contains("team/app:2"),
        "{table}"
    );
    let (code, _, err) = daemon.cache(&["rm", IMAGE]).await;
    assert!(
        code == Some(1) && err.contains("is not in the cache"),
        "{err}"
    );
}

#[tokio::test]
async fn only_the_named_platform_of_an_image_is_warmed() {
    let registry = FakeRegistry::start().await;
    let image = Image::multi_arch(9, &["amd64", "arm64"]);
    registry.push("team/app", "1", &image);
    let upstream = format!("lab:5000={}", registry.url());
    for (platform, warmed) in [
        // The index names arm64 with its variant v8, and amd64 without a variant.
        ("linux/arm64", Some("linux/arm64/v8")),
        ("linux/arm64/v8", Some("linux/arm64/v8")),
        ("linux/aarch64", Some("linux/arm64/v8")),
        ("linux/arm64/v9", Some("linux/arm64/v8")),
        ("linux/amd64/v3", Some("linux/amd64")),
        ("linux/arm/v7", None),
        ("linux/s390x", None),
        ("windows/amd64", None),
    ] {
        let daemon = Daemon::start("", &["--upstream", &upstream]).await;
        let (code, out, err) = daemon.cache(&["warm", IMAGE, "--platform", platform]).await;
        let rows = objects(&daemon.cached(&["ls", "--json"]).await);
        let complete: Vec<_> = rows
            .iter()
            .flat_map(|row| row["platforms"].as_array().expect("platforms"))
            .filter(|it| it["complete"] == true)
            .filter_map(|it| it["platform"].as_str())
            .collect();
        assert_eq!(complete, Vec::from_iter(warmed), "{platform}: {out}{err}");
        if warmed.is_some() {
            assert_eq!(code, Some(0), "{platform}: {out}{err}");
            continue;
        }
        assert_eq!(code, Some(1), "{platform}: {out}{err}");
        let refused = format!(
            "failed {IMAGE}: the index has no image for {platform}, only for linux/amd64, linux/arm64/v8\n"
        );
        assert_eq!(out, format!("{refused}warmed 0, failed 1\n"), "{platform}");
        assert!(err.contains("1 failed"), "{err}");
    }
    // One missing platform is an error, also beside a platform that the image has.
    let daemon = Daemon::start("", &["--upstream", &upstream]).await;
    let both = ["--platform", "linux/amd64", "--platform", "linux/s390x"];
    let (code, out, _) = daemon.cache(&[&["warm", IMAGE][..], &both].concat()).await;
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("no image for linux/s390x"), "{out}");
}

#[tokio::test]
async fn a_prune_above_its_target_names_the_pinned_bytes() {
    let (_registry, _, daemon) = with_image().await;
    daemon.cached(&["warm", "--pin", IMAGE]).await;
    let out = daemon.cached(&["prune", "--to", "200KiB"]).await;
    let line = out.lines().nth(1).unwrap_or_default();
    assert!(
        line.contains(" above the target: ") && line.contains(" pinned (`pierhead cache ls"),
        "{out}"
    );
    let pruned = &objects(&daemon.cached(&["prune", "--to", "200KiB", "--json"]).await)[0];
    assert!(
        pruned["pinned"]
            .as_u64()
            .is_some_and(|bytes| bytes > 370_000),
        "{pruned}"
    );
    assert_eq!(pruned["disk"]["total"], pruned["used"], "{pruned}");
    // After the unpin, the target is reached, and no line explains it.
    daemon.cached(&["unpin", IMAGE]).await;
    let out = daemon.cached(&["prune", "--to", "200KiB"]).await;
    assert_eq!(out.lines().count(), 1, "{out}");
}

/// Returns the bytes of packs, plans and indexes.
async fn bundle_bytes(daemon: &Daemon) -> u64 {
    let stat = &objects(&daemon.cached(&["stat", "--json"]).await)[0];
    let kind = |name: &str| stat["bundle"][name].as_u64().expect("bytes");
    kind("packs") + kind("plans") + kind("index")
}

#[tokio::test]
async fn a_removed_image_loses_its_bundles() {
    let registry = FakeRegistry::start().await;
    let options = TreeOptions {
        changes: 600,
        ..TreeOptions::default()
    };
    let image = Image::tree(3, &options);
    registry.push("team/app", "1", &image.image);
    let upstream = format!("lab:5000={}", registry.url());
    let daemon = Daemon::start(
        "default_upstream = \"lab:5000\"",
        &["--upstream", &upstream],
    )
    .await;
    let ready = async || {
        let request = || {
            Request::new("POST", "/v2/team/app/_pierhead/bundle")
                .header("content-type", "application/json")
                .body("{\"want\":\"1\"}")
        };
        let asking = async {
            while request()
                .send(daemon.listen)
                .await
                .expect("a response")
                .status
                != 200
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        crate::harness::soon("a bundle", asking).await;
        // Waits until no job rebuilds a pack, since this would change the bytes that the test
        // counts.
        let packing = async {
            while daemon.get("/v1/stat").await.json()["bundle"]["jobs"] != 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        crate::harness::soon("all packs", packing).await;
        assert!(bundle_bytes(&daemon).await > 0);
    };
    ready().await;
    daemon.cached(&["rm", "lab:5000/team/app:1"]).await;
    assert_eq!(bundle_bytes(&daemon).await, 0, "after rm");
    ready().await;
    // The target leaves room for all blobs, but for no pack.
    let before = daemon.get("/v1/stat").await.json();
    let bytes = |of: &str, kind: &str| before[of][kind].as_u64().expect("bytes");
    let counted = bytes("disk", "total") - bytes("disk", "other");
    let target = counted - bytes("bundle", "packs");
    let target = format!("{target}B");
    let pruned = &objects(&daemon.cached(&["prune", "--to", &target, "--json"]).await)[0];
    assert!(
        pruned["freed"].as_u64().is_some_and(|freed| freed > 0),
        "{pruned}"
    );
    let after = daemon.get("/v1/stat").await.json();
    assert_eq!(after["used"], before["used"], "every blob stays");
    assert_eq!(after["bundle"]["packs"], 0, "{after}");
    ready().await;
    daemon.cached(&["prune", "--all"]).await;
    assert_eq!(bundle_bytes(&daemon).await, 0, "after prune --all");
}
