//! Tests of the start of the daemon: log lines, the ready file, exit codes of failures, ports in
//! use, limits of the process, secrets and TLS.

use pierhead_testkit::http::{Connection, Request};
use pierhead_testkit::registry::FakeRegistry;
use rustix::process::Signal;

use crate::harness::{Daemon, password_file, refuse};

#[tokio::test]
async fn the_log_has_the_addresses_and_a_command_for_clients() {
    let daemon = Daemon::start("cache.size = \"1GiB\"", &[]).await;
    let log = daemon.log();
    for part in [
        format!("listens on http://{}", daemon.listen),
        format!("admin http://{}", daemon.admin),
        format!("docker pull {}/docker.io/library/alpine", daemon.listen),
        "of 1.0 GiB used".to_owned(),
        daemon.data().display().to_string(),
    ] {
        assert!(log.contains(&part), "{part} in {log}");
    }
}

#[tokio::test]
async fn a_cache_size_above_the_disk_is_a_warning() {
    let daemon = Daemon::start("cache.size = \"1000000GiB\"", &[]).await;
    let log = daemon.log();
    assert_eq!(log.matches("the disk has room for").count(), 1, "{log}");
    let daemon = Daemon::start("cache.size = \"1MiB\"", &[]).await;
    let log = daemon.log();
    assert!(!log.contains("the disk has room for"), "{log}");
}

#[tokio::test]
async fn a_second_daemon_with_the_same_data_folder_fails() {
    let daemon = Daemon::start("", &[]).await;
    let output = daemon.second(&[]).await;
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{message}");
    assert!(
        message.contains("is in use by another pierhead (process "),
        "{message}"
    );
    assert!(message.contains("--data"), "{message}");
    // The failed second daemon has not disturbed the first daemon.
    assert_eq!(daemon.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_data_folder_of_another_version_is_an_error_and_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("blobs/sha256/ab")).expect("a folder");
    std::fs::write(data.join("version"), "7000\n").expect("the file is written");
    let output = refuse(folder.path(), &[]).await;
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(72), "{message}");
    assert!(
        message.contains("7000") && message.contains("matching pierhead"),
        "{message}"
    );
    assert!(data.join("blobs/sha256/ab").exists());
    assert_eq!(
        std::fs::read_to_string(data.join("version")).expect("the file exists"),
        "7000\n"
    );
}

#[tokio::test]
async fn an_unreadable_pin_is_an_error_with_its_file_and_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let pin = data.join("pins").join("0".repeat(64));
    std::fs::create_dir_all(data.join("pins")).expect("a folder");
    std::fs::write(data.join("version"), "1\n").expect("the file is written");
    // Every open of this link fails (ELOOP).
    std::os::unix::fs::symlink(&pin, &pin).expect("a link");
    let output = refuse(folder.path(), &[]).await;
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let shown = format!("cannot read the pin {}", pin.display());
    for words in [&shown, "make the file readable", "symbolic links"] {
        assert!(
            message.contains(words),
            "{words:?} is missing in: {message}"
        );
    }
    assert!(pin.is_symlink(), "the pin was deleted");
}

#[tokio::test]
async fn a_port_in_use_is_an_error_with_its_address() {
    let daemon = Daemon::start("", &[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let address = daemon.listen.to_string();
    let output = refuse(folder.path(), &["--listen", &address]).await;
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{message}");
    assert!(
        message.contains(&format!("cannot listen on {address}")),
        "{message}"
    );
}

#[tokio::test]
async fn pierhead_starts_without_an_admin_listener_if_its_default_port_is_in_use() {
    // Occupies the port, unless another process of the host already uses it.
    let _taken = std::net::TcpListener::bind("127.0.0.1:5001");
    let daemon = Daemon::start_with_default_admin().await;
    assert!(
        daemon.log().contains("127.0.0.1:5001 is in use"),
        "{}",
        daemon.log()
    );
    let answer = pierhead_testkit::http::get(daemon.listen, "/v2/").await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn the_soft_limit_of_open_files_is_raised() {
    // The test lowers the soft limit of open files of its own process, which the daemon inherits.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let low = rustix::process::Rlimit {
        current: Some(512),
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, low).expect("lower is allowed");
    let daemon = Daemon::start("", &[]).await;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("as it was");
    let limits =
        std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).expect("pierhead runs");
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .expect("a line of the kernel");
    let mut limits = line.split_whitespace();
    assert_eq!(limits.next(), limits.next(), "{line}");
}

#[tokio::test]
async fn ipv4_and_ipv6_listeners_can_have_the_same_port() {
    // On a host without IPv6, the test ends here.
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    // Finds a port that is free for both families. The kernel gives ports from 32768 on to sockets
    // of other tests, so that no other test takes a lower port meanwhile.
    let is_free = |port: &u16| std::net::TcpListener::bind(("::", *port)).is_ok();
    let first = 10_000 + u16::try_from(std::process::id() % 10_000).expect("at most 9999");
    let port = (first..32_768).find(is_free).expect("a free port");
    let (four, six) = (format!("0.0.0.0:{port}"), format!("[::]:{port}"));
    let daemon = Daemon::start("", &["--listen", &four, "--listen", &six]).await;
    for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        let address = address.parse().expect("an address");
        let answer = pierhead_testkit::http::get(address, "/v2/").await;
        assert_eq!(answer.status, 200, "{address}");
    }
    drop(daemon);
}

#[tokio::test]
async fn the_admin_listener_can_be_off() {
    let mut daemon = Daemon::start("", &["--admin", "off"]).await;
    assert!(daemon.log().contains("; admin off"), "{}", daemon.log());
    let message = std::fs::read_to_string(daemon.ready_file()).expect("the file exists");
    assert!(
        message.ends_with("\"admin\":null}") || message.starts_with("{\"admin\":null"),
        "{message}"
    );
    daemon.signal(Signal::TERM);
    assert!(daemon.ended().await.success());
}

#[tokio::test]
async fn log_lines_can_be_json() {
    let mut daemon = Daemon::start("[log]\nformat = \"json\"\nlevel = \"debug\"", &[]).await;
    daemon.signal(Signal::TERM);
    daemon.logs("\"shut down\"").await;
    assert!(daemon.ended().await.success());
    for line in daemon.log().lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(
            value["level"].is_string() && value["timestamp"].is_string(),
            "{line}"
        );
    }
}

#[tokio::test]
async fn secrets_are_in_no_log_and_no_metric() {
    let registry = FakeRegistry::builder()
        .basic_auth("someone", "hunter2")
        .start()
        .await;
    let image = pierhead_testkit::images::Image::unpackable(1, 2);
    registry.push("team/app", "1", &image);
    let secret = password_file();
    let config = format!(
        "log.level = \"trace\"\n[upstreams.\"lab:5000\"]\naddresses = \"{}\"\nusername = \"someone\"\npassword_file = {:?}",
        registry.url(),
        secret.path(),
    );
    let mut daemon = Daemon::start(&config, &[]).await;
    assert!(daemon.log().contains(&format!(
        "{} holds a secret, and every user of this host can read it",
        secret.path().display()
    )));
    daemon.cached(&["warm", "lab:5000/team/app:1"]).await;
    let metrics = daemon.get("/metrics").await;
    daemon.signal(Signal::HUP);
    daemon.logs("configuration reloaded").await;
    daemon.signal(Signal::TERM);
    daemon.ended().await;
    // The log must not contain the password, nor user and password in the Base64 form of basic
    // authentication.
    for secret in ["hunter2", "c29tZW9uZTpodW50ZXIy"] {
        assert!(!daemon.log().contains(secret), "{secret} is in the log");
        assert!(
            !String::from_utf8_lossy(&metrics.body).contains(secret),
            "{secret} is in the metrics"
        );
    }
}

#[tokio::test]
async fn https_with_and_without_certificates_of_clients() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("crt"), own.cert.pem()).expect("the file is written");
    std::fs::write(path("key"), own.signing_key.serialize_pem()).expect("the file is written");
    let tls = format!("[tls]\ncert = {:?}\nkey = {:?}\n", path("crt"), path("key"));

    let daemon = Daemon::start(&tls, &[]).await;
    assert!(
        daemon
            .log()
            .contains(&format!("listens on https://{}", daemon.listen))
    );
    let ping = || async {
        let pem = own.cert.pem();
        let mut connection = Connection::open_tls(daemon.listen, "localhost", &pem).await?;
        connection.exchange(&Request::get("/v2/")).await
    };
    assert_eq!(ping().await.expect("a response").status, 200);

    // With a CA for clients, a client without a certificate gets no response. Therefore, the daemon
    // may use upstream credentials although it listens on an address that is not a loopback
    // address.
    let client_ca = format!("client_ca = {:?}\n", path("crt"));
    let secret = password_file();
    let credentials = format!(
        "[upstreams.\"ghcr.io\"]\nusername = \"me\"\npassword_file = {:?}\n",
        secret.path()
    );
    let config = format!("{tls}{client_ca}{credentials}");
    let daemon = Daemon::start(&config, &["--listen", "0.0.0.0:0"]).await;
    let ping = || async {
        let pem = own.cert.pem();
        let mut connection = Connection::open_tls(daemon.listen, "localhost", &pem).await?;
        connection.exchange(&Request::get("/v2/")).await
    };
    assert!(ping().await.is_err());
}
