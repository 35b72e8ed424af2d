//! No descriptor is left: the request for a plan fails with a text that says so, and the daemon serves on.
//!
//! Runs in its own process, because the limit applies to a whole process.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::fs::File;
use std::time::Duration;

use pierhead_bundle_server::State;
use pierhead_testkit::http::{Connection, Request, Response};
use pierhead_testkit::images::{Image, TreeImage, TreeOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use stage::{Plan, Stage, eventually, soon};
use tokio::sync::Mutex;

const BUNDLE: &str = "/v2/app/_pierhead/bundle";
const TRACE: &str = "/v2/app/_pierhead/trace";
/// More than the test has open.
const LIMIT: u64 = 512;

/// One test at a time.
static TURN: Mutex<()> = Mutex::const_new(());

async fn stage() -> Stage {
    let plan = Plan {
        bundles: true,
        ..Plan::default()
    };
    plan.open().await
}

/// All descriptors of this process but `free` ones, until it is dropped.
struct Exhausted {
    before: Rlimit,
    _files: Vec<File>,
}

impl Exhausted {
    fn but(free: usize) -> Self {
        let before = getrlimit(Resource::Nofile);
        let current = Some(LIMIT);
        setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
        let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(files.len() > free);
        files.truncate(files.len() - free);
        Self {
            before,
            _files: files,
        }
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).unwrap();
    }
}

/// Asks on a connection that is open already.
async fn ask(connection: &mut Connection, path: &str, body: &Value) -> Response {
    let request = Request::new("POST", path)
        .header("content-type", "application/json")
        .body(body.to_string());
    soon(connection.exchange(&request)).await.unwrap()
}

/// Asks while no descriptor is free. What other threads close meanwhile is free again, so that an answer of 200 says
/// nothing: it asks anew.
async fn without_descriptors(connection: &mut Connection, path: &str, body: &Value) -> Response {
    for _ in 0..20 {
        let exhausted = Exhausted::but(0);
        let answer = ask(connection, path, body).await;
        drop(exhausted);
        if answer.status != 200 {
            return answer;
        }
    }
    panic!("{path} needs no descriptor");
}

fn is_refused(answer: &Response) {
    assert_eq!(answer.status, 503, "{answer:?}");
    let why = answer.json()["errors"][0]["message"].to_string();
    assert!(why.contains("Too many open files"), "{why}");
}

async fn ready(stage: &Stage, connection: &mut Connection, image: &TreeImage, tag: &str) {
    stage.upstream.push("app", tag, &image.image);
    while ask(connection, BUNDLE, &json!({"want": tag})).await.status != 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_plan_without_descriptors_fails_alone() {
    let _turn = TURN.lock().await;
    let stage = stage().await;
    let bundle_server = stage.bundle_server.clone().unwrap();
    let [old, new] = [1, 2].map(|seed| Image::tree(seed, &TreeOptions::default()));
    let mut connection = Connection::open(stage.addr).await.unwrap();
    ready(&stage, &mut connection, &old, "1").await;
    ready(&stage, &mut connection, &new, "2").await;
    eventually(async || bundle_server.stat().jobs == 0).await;
    let question = json!({
        "want": new.image.root.to_string(),
        "have": [old.image.root.to_string()],
    });
    let mut refused = 0;
    for free in 0..LIMIT {
        let exhausted = Exhausted::but(usize::try_from(free).unwrap());
        let answer = ask(&mut connection, BUNDLE, &question).await;
        drop(exhausted);
        for image in [&old, &new] {
            // Nothing is made anew for want of descriptors.
            assert_eq!(bundle_server.state(&image.image.root), State::Ready);
        }
        // What is planned is all that is asked for here.
        let planned = ask(&mut connection, BUNDLE, &json!({"want": "2"})).await;
        assert_eq!(planned.status, 200);
        if answer.status == 200 {
            break;
        }
        is_refused(&answer);
        refused += 1;
    }
    assert!(refused > 0, "it needs no descriptor");
    let answer = ask(&mut connection, BUNDLE, &question).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.body.is_empty());
}

#[tokio::test]
async fn what_reads_a_table_without_descriptors_fails_alone() {
    let _turn = TURN.lock().await;
    let stage = stage().await;
    let bundle_server = stage.bundle_server.clone().unwrap();
    let image = Image::tree(3, &TreeOptions::default());
    let mut connection = Connection::open(stage.addr).await.unwrap();
    ready(&stage, &mut connection, &image, "1").await;
    eventually(async || bundle_server.stat().jobs == 0).await;
    let root = image.image.root.to_string();
    let files = image
        .tree
        .iter()
        .map(|it| String::from_utf8_lossy(&it.path));
    let files: Vec<_> = files.take(100).collect();
    for (path, question) in [
        (TRACE, json!({"image": root, "files": files})),
        (BUNDLE, json!({"want": root, "start_order": true})),
    ] {
        is_refused(&without_descriptors(&mut connection, path, &question).await);
        assert_eq!(bundle_server.state(&image.image.root), State::Ready);
        let answer = ask(&mut connection, path, &question).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}
