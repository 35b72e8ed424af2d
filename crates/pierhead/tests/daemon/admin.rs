//! Tests of the admin listener: health probes, a hanging disk, metrics, invalid requests,
//! cross-site requests, and the limit of connections.
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

use std::time::Duration;

use pierhead_testkit::http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{Daemon, soon};

#[tokio::test]
async fn health_and_metrics_are_served() {
    let daemon = Daemon::start("", &[]).await;
    assert_eq!(daemon.get("/livez").await.status, 200);
    assert_eq!(daemon.get("/readyz").await.status, 200);
    let metrics = daemon.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(
        metrics
            .header("content-type")
            .is_some_and(|it| it.starts_with("application/openmetrics-text"))
    );
    let text = String::from_utf8(metrics.body.to_vec()).expect("UTF-8");
    assert!(text.ends_with("# EOF\n"));
    for name in [
        "pierhead_build_info{version=",
        "process_resident_memory_bytes ",
        "process_open_fds ",
        "process_uptime_seconds ",
        "process_cpu_seconds_total ",
        "# TYPE pierhead_cache_",
        "# TYPE pierhead_remote_",
        "# TYPE pierhead_proxy_",
    ] {
        assert!(text.contains(name), "{name} in {text}");
    }
    // A HEAD request gets the response of GET without the body.
    let head = daemon.ask(Request::head("/livez")).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

/// Simulates a hanging disk by a pipe without a writer: opening such a pipe blocks.
#[tokio::test]
async fn a_hanging_disk_makes_readyz_fail_until_it_recovers() {
    let daemon = Daemon::start("", &[]).await;
    assert_eq!(daemon.get("/readyz").await.status, 200);
    let file = daemon.data().join("version");
    let away = daemon.data().join("version.away");
    std::fs::rename(&file, &away).expect("renamed");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    for _ in 0..2 {
        let answer = daemon.get("/readyz").await;
        let why = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 503, "{why}");
        assert!(why.contains("did not end"), "{why}");
    }
    assert_eq!(daemon.get("/livez").await.status, 200);
    // Opens both ends of the pipe. Opening both ends does not block, and releases the reader that
    // waits.
    let pipe = std::fs::File::options().read(true).write(true).open(&file);
    std::fs::rename(&away, &file).expect("renamed");
    drop(pipe.expect("the pipe"));
    soon("readiness", async {
        while daemon.get("/readyz").await.status != 200 {}
    })
    .await;
}

#[tokio::test]
async fn the_stat_document_has_the_configuration() {
    let daemon = Daemon::start("cache.size = \"3GiB\"", &[]).await;
    let stat = daemon.get("/v1/stat").await.json();
    assert_eq!(stat["capacity"], 3_u64 << 30);
    assert_eq!(stat["listen"][0], daemon.listen.to_string());
    assert_eq!(stat["blobs"], 0);
    assert!(stat["memory"].as_u64().is_some_and(|bytes| bytes > 1 << 20));
}

#[tokio::test]
async fn a_request_of_another_origin_is_refused() {
    let daemon = Daemon::start("", &[]).await;
    let prune = || Request::new("POST", "/v1/prune").body("{\"target\":0}");
    for (request, status) in [
        (Request::get("/v1/stat").header("host", "evil.example"), 403),
        (
            Request::get("/metrics").header("host", "evil.example:5001"),
            403,
        ),
        (prune(), 403),
        (prune().header("origin", "http://evil.example"), 403),
        (
            Request::new("OPTIONS", "/v1/prune").header("origin", "http://evil.example"),
            403,
        ),
        (Request::new("DELETE", "/v1/pins?image=a"), 403),
        (prune().header("x-pierhead", "1"), 200),
        (Request::get("/v1/stat").header("host", "localhost"), 200),
    ] {
        let answer = daemon.ask(request.clone()).await;
        assert_eq!(answer.status, status, "{request:?}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn an_invalid_request_gets_an_error_with_the_cause() {
    let daemon = Daemon::start("", &[]).await;
    let post = |path: &str, body: String| {
        Request::new("POST", path)
            .header("x-pierhead", "1")
            .body(body)
    };
    for (request, status, part) in [
        (Request::get("/"), 404, "/metrics"),
        (Request::get("/v1/nothing"), 404, "/v1/nothing"),
        (Request::get("/v1/prune"), 405, "GET"),
        (Request::get("/v1/blobs?limit=0"), 400, "limit"),
        (Request::get("/v1/blobs?after=x"), 400, "digest"),
        (post("/v1/prune", "{}".into()), 400, "target"),
        (post("/v1/prune", "x".into()), 400, "expected"),
        (
            post("/v1/prune", "{\"target\":0,\"colour\":1}".into()),
            400,
            "colour",
        ),
        (
            Request::new("PUT", "/v1/tier")
                .header("x-pierhead", "1")
                .body("{\"limit\":0,\"colour\":1}"),
            400,
            "colour",
        ),
        (
            post("/v1/warm", "{\"images\":[\"A B\"]}".into()),
            400,
            "A B",
        ),
        (
            post(
                "/v1/warm",
                "{\"images\":[\"a\"],\"platforms\":[\"x\"]}".into(),
            ),
            400,
            "os/architecture",
        ),
        (
            post("/v1/warm", "{\"images\":[],\"colour\":1}".into()),
            400,
            "colour",
        ),
        (post("/v1/warm", "x".repeat(1 << 20)), 400, "limit"),
        (
            Request::new("PUT", "/v1/pins").header("x-pierhead", "1"),
            400,
            "?image=",
        ),
        (
            Request::new("PUT", "/v1/pins?image=%20").header("x-pierhead", "1"),
            400,
            "\" \"",
        ),
        (
            Request::new("PUT", "/v1/pins?image=redis").header("x-pierhead", "1"),
            404,
            "warm --pin docker.io/library/redis:latest",
        ),
        (
            Request::new("DELETE", "/v1/pins?image=redis").header("x-pierhead", "1"),
            404,
            "is not pinned",
        ),
    ] {
        let answer = daemon.ask(request.clone()).await;
        assert_eq!(answer.status, status, "{request:?}: {:?}", answer.body);
        let message = answer.json()["error"]
            .as_str()
            .map(str::to_owned)
            .expect("a text");
        assert!(message.contains(part), "{part:?} in {message:?}");
    }
}

#[tokio::test]
async fn idle_connections_do_not_block_a_probe() {
    let daemon = Daemon::start("", &[]).await;
    let connect = || TcpStream::connect(daemon.admin);
    let mut silent = Vec::new();
    // Opens about twice the maximum number of connections, but not more, since all tests of this
    // process share its open files.
    for nth in 0..150 {
        let mut stream = connect().await.expect("a connection");
        if nth % 2 == 0 {
            stream.write_all(b"GET /livez HT").await.expect("sent");
        }
        silent.push(stream);
    }
    for _ in 0..3 {
        let asked = daemon.get("/livez");
        let answer = tokio::time::timeout(Duration::from_secs(10), asked).await;
        assert_eq!(answer.expect("at once").status, 200);
    }
    // The server has closed all idle connections.
    for mut stream in silent {
        // Accepts any end: the connection is reset, or closes with or without a response.
        let _ = soon("its end", stream.read_to_end(&mut Vec::new())).await;
    }
}

#[tokio::test]
async fn half_requests_do_not_delay_health_probes() {
    let daemon = Daemon::start("", &[]).await;
    let mut half = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(daemon.admin).await.expect("connected");
        let head = "POST /v1/prune HTTP/1.1\r\nhost: localhost\r\nx-pierhead: 1\r\ncontent-length: 9\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.expect("sent");
        half.push(stream);
    }
    for path in ["/livez", "/readyz"] {
        let response = tokio::time::timeout(Duration::from_secs(3), daemon.get(path)).await;
        assert_eq!(response.expect("no wait for a slot").status, 200);
    }
    for mut stream in half {
        let _ = soon("its end", stream.read_to_end(&mut Vec::new())).await;
    }
    assert_eq!(daemon.get("/v1/stat").await.status, 200);
}
