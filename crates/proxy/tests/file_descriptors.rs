//! Tests requests while the process has no free file descriptor: a request for a new bundle fails
//! with an error that names this cause, and other requests succeed.
//!
//! These tests are a program of their own, because the limit of file descriptors applies to a whole
//! process.
#![expect(
    clippy::disallowed_types,
    reason = "each test holds the lock until it ends"
)]
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::time::Duration;

use common::{Fixture, FixtureOptions, eventually, in_time};
use pierhead_bundle_server::State;
use pierhead_testkit::file_descriptors::{LIMIT, OccupiedDescriptors};
use pierhead_testkit::http::{Connection, Request, Response};
use pierhead_testkit::images::{Image, TreeImage, TreeOptions};
use serde_json::{Value, json};
use tokio::sync::Mutex;

const BUNDLE: &str = "/v2/app/_pierhead/bundle";
const TRACE: &str = "/v2/app/_pierhead/trace";

/// A lock, so that one test runs at a time.
static SERIAL: Mutex<()> = Mutex::const_new(());

async fn fixture() -> Fixture {
    let options = FixtureOptions {
        has_bundles: true,
        ..FixtureOptions::default()
    };
    options.start().await
}

/// Sends a POST request on an open connection.
async fn post(connection: &mut Connection, path: &str, body: &Value) -> Response {
    let request = Request::new("POST", path)
        .header("content-type", "application/json")
        .body(body.to_string());
    in_time(connection.exchange(&request)).await.unwrap()
}

/// Sends a POST while no file descriptor is free. Repeats the request after a response 200, because
/// another thread may have closed a file.
async fn without_descriptors(connection: &mut Connection, path: &str, body: &Value) -> Response {
    for _ in 0..20 {
        let occupied = OccupiedDescriptors::all_but(0);
        let response = post(connection, path, body).await;
        drop(occupied);
        if response.status != 200 {
            return response;
        }
    }
    panic!("{path} needs no file descriptor");
}

fn assert_refused(response: &Response) {
    assert_eq!(response.status, 503, "{response:?}");
    let why = response.json()["errors"][0]["message"].to_string();
    assert!(why.contains("Too many open files"), "{why}");
}

async fn wait_until_ready(
    fixture: &Fixture,
    connection: &mut Connection,
    image: &TreeImage,
    tag: &str,
) {
    fixture.upstream.push("app", tag, &image.image);
    in_time(async {
        while post(connection, BUNDLE, &json!({"want": tag})).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn only_the_plan_fails_without_file_descriptors() {
    let _guard = SERIAL.lock().await;
    let fixture = fixture().await;
    let bundle_server = fixture.bundle_server.clone().unwrap();
    let [old, new] = [1, 2].map(|seed| Image::tree(seed, &TreeOptions::default()));
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    wait_until_ready(&fixture, &mut connection, &old, "1").await;
    wait_until_ready(&fixture, &mut connection, &new, "2").await;
    eventually(async || bundle_server.stat().jobs == 0).await;
    let query = json!({
        "want": new.image.root.to_string(),
        "base_images": [old.image.root.to_string()],
    });
    let mut refused = 0;
    for free in 0..LIMIT {
        let occupied = OccupiedDescriptors::all_but(free);
        let response = post(&mut connection, BUNDLE, &query).await;
        drop(occupied);
        for image in [&old, &new] {
            // The lack of file descriptors does not change the state of the indexed images.
            assert_eq!(bundle_server.state(&image.image.root), State::Ready);
        }
        // A bundle whose plan already exists is served.
        let planned = post(&mut connection, BUNDLE, &json!({"want": "2"})).await;
        assert_eq!(planned.status, 200);
        if response.status == 200 {
            break;
        }
        assert_refused(&response);
        refused += 1;
    }
    assert!(refused > 0, "the plan needs no file descriptor");
    let response = post(&mut connection, BUNDLE, &query).await;
    assert_eq!(response.status, 200);
    assert!(!response.body.is_empty());
}

#[tokio::test]
async fn only_requests_that_read_a_toc_fail_without_file_descriptors() {
    let _guard = SERIAL.lock().await;
    let fixture = fixture().await;
    let bundle_server = fixture.bundle_server.clone().unwrap();
    let image = Image::tree(3, &TreeOptions::default());
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    wait_until_ready(&fixture, &mut connection, &image, "1").await;
    eventually(async || bundle_server.stat().jobs == 0).await;
    let root = image.image.root.to_string();
    let files = image
        .tree
        .iter()
        .map(|it| String::from_utf8_lossy(&it.path));
    let files: Vec<_> = files.take(100).collect();
    for (path, query) in [
        (TRACE, json!({"image": root, "files": files})),
        (BUNDLE, json!({"want": root, "start_order": true})),
    ] {
        assert_refused(&without_descriptors(&mut connection, path, &query).await);
        assert_eq!(bundle_server.state(&image.image.root), State::Ready);
        let response = post(&mut connection, path, &query).await;
        assert_eq!(response.status, 200, "{response:?}");
    }
}
