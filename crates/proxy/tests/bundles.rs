//! Bundle endpoints: delta content, authorization, resumption, malformed requests.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pierhead_bundle::RECORD_HEAD;
use pierhead_bundle::api::Share;
use pierhead_bundle::format::{Decoder, Event, Header, PRELUDE, Prelude, Sizes};
use pierhead_bundle_server::State;
use pierhead_bundle_server::pack;
use pierhead_host::BackgroundWork;
use pierhead_oci::Digest;
use pierhead_proxy::{Auth, Config};
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::{Image, TreeImage, TreeOptions, random_bytes};
use pierhead_testkit::log::capture;
use pierhead_testkit::registry::{Auth as Upstream, FakeRegistry, TokenAuth};
use pierhead_toc::{FileDigest, ImageToc, Kind, image_toc};
use serde_json::{Value, json};
use stage::{Plan, Stage, blob_path, code, eventually, from, metric, soon};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const BUNDLE: &str = "/v2/app/_pierhead/bundle";
const TRACE: &str = "/v2/app/_pierhead/trace";
/// Heads of questions, to be gone on with.
const POSTED: &str =
    "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";
const CHUNKED: &str = "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";

async fn with_bundles() -> Stage {
    bundles(Plan::default()).open().await
}

fn bundles(plan: Plan) -> Plan {
    Plan {
        bundles: true,
        ..plan
    }
}

fn tree(seed: u64) -> TreeImage {
    Image::tree(seed, &TreeOptions::default())
}

/// Two regular files of the image.
fn paths(image: &TreeImage) -> Vec<String> {
    let files = image.tree.iter().filter_map(|entry| {
        let is_file = matches!(entry.kind, Kind::File { .. });
        is_file.then(|| String::from_utf8(entry.path.clone()).ok())?
    });
    files.take(2).collect()
}

fn post(path: &str, body: &Value) -> Request {
    Request::new("POST", path)
        .header("content-type", "application/json")
        .body(body.to_string())
}

/// Asks until the image is ready.
async fn bundle(stage: &Stage, body: &Value) -> Response {
    soon(async {
        loop {
            let answer = stage.ask(post(BUNDLE, body)).await;
            if answer.status != 503 {
                return answer;
            }
            let detail = &answer.json()["errors"][0]["detail"];
            assert!(detail["stage"].is_string(), "{answer:?}");
            assert_eq!(answer.header("retry-after"), Some("1"));
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
}

struct Tables<'a>(&'a ImageToc, Option<&'a ImageToc>);

impl Sizes for Tables<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.0.contents().size(content)
    }

    fn base(&self, _: u16, content: u32) -> Option<u64> {
        self.1?.contents().size(content)
    }
}

/// Header, table, and the contents that came whole.
fn received(
    bundle: &[u8],
    base: Option<&ImageToc>,
) -> (Header, ImageToc, BTreeMap<FileDigest, Vec<u8>>) {
    let mut decoder = Decoder::new();
    let mut rest = bundle;
    let Some(Event::Header { header, .. }) = decoder.feed(&mut rest).unwrap() else {
        panic!("no header");
    };
    let table = image_toc::decode(&header.toc.coded, header.toc.base.and(base)).unwrap();
    let sizes = Tables(&table, base);
    let frames: Vec<_> = header
        .frames
        .cursor(&sizes)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut contents: BTreeMap<FileDigest, Vec<u8>> = BTreeMap::new();
    loop {
        match decoder.feed(&mut rest).unwrap().expect("it ends too early") {
            Event::Record {
                frame,
                coding,
                payload,
            } if frames[frame as usize].bases.is_empty() => {
                let members = &frames[frame as usize].members;
                let mut data = Vec::new();
                let len = members.iter().map(|member| member.len).sum();
                pack::decode(coding, &payload, len, &mut data).unwrap();
                let mut data = &data[..];
                for member in members {
                    let (part, rest) = data.split_at(usize::try_from(member.len).unwrap());
                    let content = table.contents().content(member.content).unwrap();
                    contents.entry(content).or_default().extend(part);
                    data = rest;
                }
            }
            Event::Record { .. } => {}
            Event::End(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(decoder.is_ended() && rest.is_empty());
    (*header, table, contents)
}

fn is_whole(table: &ImageToc, contents: &BTreeMap<FileDigest, Vec<u8>>) -> bool {
    let all = table.contents();
    (0..table.visible()).all(|number| {
        all.size(number) == Some(0) || contents.contains_key(&all.content(number).unwrap())
    })
}

#[tokio::test]
async fn an_image_that_nobody_pulled_is_pulled_indexed_and_sent() {
    let stage = with_bundles().await;
    let image = tree(1);
    stage.upstream.push("app", "1", &image.image);
    let answer = bundle(&stage, &json!({"want": "1"})).await;
    assert_eq!((answer.status, answer.end), (200, End::Clean));
    assert_eq!(
        answer.header("content-type"),
        Some("application/vnd.pierhead.bundle.v1")
    );
    let (header, table, contents) = received(&answer.body, None);
    assert_eq!(header.manifest, image.image.root_document().bytes);
    assert!(is_whole(&table, &contents));
    // The same question, the same bytes; and none at all to whoever has them.
    let again = bundle(&stage, &json!({"want": image.image.root.to_string()})).await;
    assert!(again.body == answer.body);
    let etag = answer.header("etag").unwrap();
    let known = post(BUNDLE, &json!({"want": "1"})).header("if-none-match", etag);
    let known = stage.ask(known).await;
    assert_eq!((known.status, known.body.len()), (304, 0));
    assert!(metric(
        &stage,
        "requests_total{endpoint=\"bundle\",cache=\"hit\",status=\"3xx\"} 1"
    ));
}

#[tokio::test]
async fn a_pull_by_layers_is_indexed_unasked() {
    let stage = with_bundles().await;
    let image = tree(2);
    stage.upstream.push("app", "1", &image.image);
    stage.pull(&image.image).await;
    let bundle_server = stage.bundle_server.clone().unwrap();
    eventually(async || {
        bundle_server.state(&image.image.root) == pierhead_bundle_server::State::Ready
    })
    .await;
    let answer = stage.ask(post(BUNDLE, &json!({"want": "1"}))).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_pull_by_layers_counts_for_the_client_that_pulled() {
    let rest = BackgroundWork::default();
    rest.set_paused(true);
    let plan = Plan {
        rest: rest.clone(),
        ..Plan::default()
    };
    let stage = bundles(plan).open().await;
    let bundle_server = stage.bundle_server.clone().unwrap();
    let pulled = [(2, 31), (2, 32), (2, 33), (3, 34)].map(|(client, seed)| (client, tree(seed)));
    for (client, TreeImage { image, .. }) in &pulled {
        stage.upstream.push("app", "1", image);
        let mut stream = from(&stage, *client).await;
        let head = format!("GET /v2/app/manifests/{} HTTP/1.1", image.root);
        let request = format!("{head}\r\nhost: a\r\nconnection: close\r\n\r\n");
        soon(stream.write_all(request.as_bytes())).await.unwrap();
        let mut answer = String::new();
        soon(stream.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        for blob in &image.blobs {
            assert_eq!(stage.get(&blob_path(&blob.digest)).await.status, 200);
        }
        // It waits in the queue before the next one is pulled.
        eventually(async || bundle_server.state(&image.root) != State::Unknown).await;
    }
    rest.set_paused(false);
    let is_ready = |image: &TreeImage| bundle_server.state(&image.image.root) == State::Ready;
    let [_, _, (_, last), (_, other)] = &pulled;
    eventually(async || is_ready(last)).await;
    // Clients take turns: the other one's image is not behind all three.
    assert!(is_ready(other));
}

#[tokio::test]
async fn what_was_cached_before_there_were_bundles_is_indexed_unasked() {
    let stage = Stage::open().await;
    let image = tree(22);
    stage.upstream.push("app", "1", &image.image);
    stage.pull(&image.image).await;
    // All of an index, attestations among it, as whoever mirrors it does.
    let index = Image::multi_arch(23, &["amd64", "arm64"]);
    stage.upstream.push("app", "3", &index);
    assert_eq!(stage.get("/v2/app/manifests/3").await.status, 200);
    for document in &index.documents {
        let path = format!("/v2/app/manifests/{}", document.digest);
        assert_eq!(stage.get(&path).await.status, 200);
    }
    for blob in &index.blobs {
        assert_eq!(stage.get(&blob_path(&blob.digest)).await.status, 200);
    }
    // Of this one the manifest alone was asked for.
    let absent = tree(24);
    stage.upstream.push("app", "2", &absent.image);
    assert_eq!(stage.get("/v2/app/manifests/2").await.status, 200);
    for blob in image.image.blobs.iter().chain(&index.blobs) {
        stage.committed(&blob.digest).await;
    }
    let data = Some(stage.close().await);
    // The upstream of this one has nothing at all.
    let stage = bundles(Plan {
        data,
        ..Plan::default()
    })
    .open()
    .await;
    let bundle_server = stage.bundle_server.clone().unwrap();
    soon(stage.proxy.offer_stored()).await;
    assert_eq!(bundle_server.state(&image.image.root), State::Ready);
    assert_eq!(bundle_server.state(&absent.image.root), State::Unknown);
    let states = index
        .documents
        .iter()
        .map(|it| bundle_server.state(&it.digest));
    let ready = states.filter(|state| *state == State::Ready).count();
    assert_eq!(ready, 2, "one for each platform");
    let want = image.image.root.to_string();
    let answer = stage.ask(post(BUNDLE, &json!({"want": want}))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let (_, table, contents) = received(&answer.body, None);
    assert!(is_whole(&table, &contents));
}

#[tokio::test]
async fn what_a_worker_has_is_not_sent_and_what_is_unknown_is_told() {
    let stage = with_bundles().await;
    let (old, more) = (tree(3), tree(4));
    let new = Image::of_tars("amd64", &[&old.tars[..], &more.tars[..1]].concat());
    stage.upstream.push("app", "1", &old.image);
    stage.upstream.push("app", "2", &new);
    let first = bundle(&stage, &json!({"want": "1"})).await;
    let (_, old_table, _) = received(&first.body, None);
    let stranger = Digest::from(FileDigest::of(b"stranger")).to_string();
    let whole = bundle(&stage, &json!({"want": "2"})).await;
    let have = json!({"want": "2", "have": [old.image.root.to_string(), stranger]});
    let update = bundle(&stage, &have).await;
    assert_eq!(update.header("pierhead-unknown-have"), Some(&*stranger));
    assert!(update.body.len() < whole.body.len());
    let (header, _, _) = received(&update.body, Some(&old_table));
    assert_eq!(header.base_images.len(), 1);
    // As many as somebody may say, none of them known.
    let many: Vec<_> = (0..256_u32)
        .map(|nth| Digest::from(FileDigest::of(&nth.to_le_bytes())).to_string())
        .collect();
    let answer = bundle(&stage, &json!({"want": "2", "have": many})).await;
    assert_eq!(answer.status, 200);
    let (_, table, contents) = received(&answer.body, None);
    assert!(is_whole(&table, &contents));
}

#[tokio::test]
async fn a_bundle_goes_on_where_it_was_cut() {
    let stage = with_bundles().await;
    let image = tree(5);
    stage.upstream.push("app", "1", &image.image);
    let answer = bundle(&stage, &json!({"want": "1", "layers": true})).await;
    let etag = answer.header("etag").unwrap();
    let mut decoder = Decoder::new();
    let mut rest = &answer.body[..];
    let Some(Event::Header {
        prelude, header, ..
    }) = decoder.feed(&mut rest).unwrap()
    else {
        panic!("no header");
    };
    let frames = u32::try_from(header.frames.len()).unwrap();
    let part = json!({"etag": etag, "first": frames - 1});
    let question = json!({"want": "1", "layers": true, "part": part});
    let part = bundle(&stage, &question).await;
    let mut decoder = Decoder::resumed(prelude.digest, &header);
    let mut rest = &part.body[..];
    assert!(matches!(
        decoder.feed(&mut rest).unwrap(),
        Some(Event::Continued(_))
    ));
    assert!(matches!(
        decoder.feed(&mut rest).unwrap(),
        Some(Event::Record { .. })
    ));
    // The end marks count what came in each.
    let record = &part.body[PRELUDE..part.body.len() - RECORD_HEAD];
    assert!(answer.body[..answer.body.len() - RECORD_HEAD].ends_with(record));
    assert!(matches!(
        decoder.feed(&mut rest).unwrap(),
        Some(Event::End(_))
    ));
    // Of a bundle that is not had any more there is the whole.
    let part = json!({"etag": "\"gone\"", "first": 3});
    let question = json!({"want": "1", "layers": true, "part": part});
    let whole = bundle(&stage, &question).await;
    assert!(whole.body == answer.body);
}

#[tokio::test]
async fn shares_are_disjoint_and_all_of_the_bundle() {
    let stage = with_bundles().await;
    let image = tree(21);
    stage.upstream.push("app", "1", &image.image);
    let whole = bundle(&stage, &json!({"want": "1"})).await;
    let header = {
        let mut decoder = Decoder::new();
        let event = decoder.feed(&mut &whole.body[..]).unwrap();
        let Some(Event::Header { prelude, .. }) = event else {
            panic!("no header");
        };
        prelude
    };
    let behind = PRELUDE + header.body_len();
    for of in [1, 2, 3, 64] {
        let (mut frames, mut sent) = (0, Vec::new());
        for nth in 0..of {
            let share = bundle(&stage, &json!({"want": "1", "share": [nth, of]})).await;
            assert_eq!(share.header("etag"), whole.header("etag"));
            let prelude = Prelude::decode(share.body.first_chunk().unwrap()).unwrap();
            assert_eq!((prelude.continued, prelude.first), (nth > 0, frames));
            assert_eq!(prelude.digest, header.digest);
            frames = prelude.until;
            let begin = if nth == 0 { behind } else { PRELUDE };
            sent.extend_from_slice(&share.body[begin..share.body.len() - RECORD_HEAD]);
        }
        assert_eq!(frames, header.until);
        assert!(sent == whole.body[behind..whole.body.len() - RECORD_HEAD]);
    }
    // The same with the header in pieces.
    for of in [1, 2, 64] {
        let (mut body, mut sent) = (Vec::new(), Vec::new());
        for nth in 0..of {
            let question = json!({"want": "1", "share": [nth, of], "pieces": true});
            let share = bundle(&stage, &question).await;
            let prelude = Prelude::decode(share.body.first_chunk().unwrap()).unwrap();
            assert!(prelude.continued && prelude.piece, "{nth} of {of}");
            let piece = Share(nth, of).of(u64::from(prelude.body));
            let begin = PRELUDE + usize::try_from(piece.end - piece.start).unwrap();
            body.extend_from_slice(&share.body[PRELUDE..begin]);
            sent.extend_from_slice(&share.body[begin..share.body.len() - RECORD_HEAD]);
        }
        assert!(body == whole.body[PRELUDE..behind]);
        assert!(sent == whole.body[behind..whole.body.len() - RECORD_HEAD]);
    }
    // It goes with shares alone.
    let question = json!({"want": "1", "pieces": true});
    assert!(bundle(&stage, &question).await.body == whole.body);
    for hostile in [
        json!([2, 2]),
        json!([0, 0]),
        json!([0, 65]),
        json!([-1, 2]),
        json!(1),
    ] {
        let question = json!({"want": "1", "share": hostile});
        let answer = stage.ask(post(BUNDLE, &question)).await;
        assert_eq!(answer.status, 400, "{question}");
    }
    // One plans for all of them.
    let stranger = Digest::from(FileDigest::of(b"stranger")).to_string();
    let question = |nth: u8| json!({"want": "1", "have": [image.image.root.to_string(), stranger], "share": [nth, 2], "pieces": true});
    let early = stage.ask(post(BUNDLE, &question(1))).await;
    assert_eq!(early.status, 503);
    // Whoever asked for the other pieces was told so: all of the header comes.
    let first = bundle(&stage, &question(0)).await;
    let prelude = Prelude::decode(first.body.first_chunk().unwrap()).unwrap();
    assert!(!prelude.continued && !prelude.piece);
    // The server may replace the packs of the plan meanwhile, or be late. Then a client begins again, with the first share.
    let later = soon(async {
        loop {
            let later = stage.ask(post(BUNDLE, &question(1))).await;
            if later.status != 503 {
                return later;
            }
            assert!(later.header("retry-after").is_some(), "{later:?}");
            bundle(&stage, &question(0)).await;
        }
    })
    .await;
    assert_eq!(later.status, 200);
    let prelude = Prelude::decode(later.body.first_chunk().unwrap()).unwrap();
    assert!(prelude.continued && prelude.piece);
}

#[tokio::test]
async fn single_files_are_those_of_the_image_alone() {
    let stage = with_bundles().await;
    let (image, other) = (tree(6), tree(7));
    stage.upstream.push("app", "1", &image.image);
    stage.upstream.push("app", "2", &other.image);
    bundle(&stage, &json!({"want": "1"})).await;
    bundle(&stage, &json!({"want": "2"})).await;
    let path = |content: &FileDigest, image: &TreeImage| {
        format!(
            "/v2/app/_pierhead/file/{content}?image={}",
            image.image.root
        )
    };
    for (content, bytes) in image.contents.iter().take(5) {
        let got = stage.get(&path(content, &image)).await;
        assert_eq!((got.status, got.end), (200, End::Clean));
        assert!(got.body == *bytes);
        let head = stage.head(&path(content, &image)).await;
        assert_eq!(
            head.header("content-length"),
            Some(&*bytes.len().to_string())
        );
    }
    let mut foreign = other
        .contents
        .keys()
        .filter(|it| !image.contents.contains_key(*it));
    let foreign = foreign.next().unwrap();
    let refused = stage.get(&path(foreign, &image)).await;
    assert_eq!((refused.status, &*code(&refused)), (404, "BLOB_UNKNOWN"));
    assert_eq!(stage.get(&path(foreign, &other)).await.status, 200);
    let nowhere = format!("/v2/app/_pierhead/file/{foreign}?image={foreign}");
    assert_eq!(stage.get(&nowhere).await.status, 404);
}

#[tokio::test]
async fn traces_are_taken_of_images_that_are_here() {
    let lines = capture();
    let stage = with_bundles().await;
    let image = tree(8);
    stage.upstream.push("app", "1", &image.image);
    bundle(&stage, &json!({"want": "1"})).await;
    let files: Vec<_> = (0..100).map(|nth| format!("file-{nth}")).collect();
    let foreign = post(TRACE, &json!({"image": "1", "files": files}));
    let refused = stage.ask(foreign).await;
    assert_eq!((refused.status, &*code(&refused)), (400, "UNSUPPORTED"));
    let mut own = paths(&image);
    assert_eq!(own.len(), 2);
    own.extend(["nowhere".to_owned(), own[0].clone()]);
    let some = post(TRACE, &json!({"image": "1", "files": own}));
    let noted = stage.ask(some).await;
    assert_eq!(noted.status, 200, "{noted:?}");
    assert_eq!(noted.json(), json!({"matched": 2, "clients": 1}));
    let line = lines.with("entries=4 matched=2");
    assert_eq!(line.len(), 1, "{}", lines.text());
    assert!(line[0].contains("trace"), "{}", line[0]);
    assert!(line[0].contains(" client=127.0.0.1"), "{}", line[0]);
    // The request of `pierhead inspect`.
    let ask = json!({"want": "1", "start_order": true});
    let order = stage.ask(post(BUNDLE, &ask)).await.json();
    assert_eq!(order["source"]["clients"], 1, "{order}");
    // A second upload of the same client replaces its first one; another client adds a vote.
    let trace = json!({"image": "1", "files": paths(&image)});
    let again = stage.ask(post(TRACE, &trace)).await;
    assert_eq!(again.json(), json!({"matched": 2, "clients": 1}));
    let body = trace.to_string();
    let upload = format!(
        "POST {TRACE} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = from(&stage, 2).await;
    soon(stream.write_all(upload.as_bytes())).await.unwrap();
    let mut response = String::new();
    soon(stream.read_to_string(&mut response)).await.unwrap();
    assert!(response.contains(r#""clients":2"#), "{response}");
    let line = lines.with("client=127.0.0.2");
    assert_eq!(line.len(), 1, "{}", lines.text());
    assert!(line[0].contains("entries=2 matched=2"), "{}", line[0]);
    let absent = post(TRACE, &json!({"image": "absent", "files": files}));
    assert_eq!(stage.ask(absent).await.status, 404);
}

#[tokio::test]
async fn what_a_traced_start_reads_is_all_that_stays_on_the_fast_tier() {
    let plan = Plan {
        fast: 64 << 20,
        ..Plan::default()
    };
    let stage = bundles(plan).open().await;
    let mut tar = tar::Builder::new(Vec::new());
    for (name, len) in [("first", 100_000), ("second", 6_000_000)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(len);
        header.set_mode(0o644);
        let content = random_bytes(len, usize::try_from(len).unwrap());
        tar.append_data(&mut header, name, &content[..]).unwrap();
    }
    let image = Image::of_tars("amd64", &[tar.into_inner().unwrap()]);
    stage.upstream.push("app", "1", &image);
    bundle(&stage, &json!({"want": "1"})).await;
    let fast = || stage.cache.tier().unwrap().fast;
    assert_eq!(fast().hot, 0);
    let trace = json!({"image": "1", "files": ["first"]});
    assert_eq!(stage.ask(post(TRACE, &trace)).await.status, 200);
    // The whole copy leaves after the copy of its hot chunks has come.
    eventually(async || fast().hot == 1 && fast().used < 1 << 20).await;
    assert!(fast().hot_used < 512 << 10, "{:?}", fast());
    let layer = &image.blobs[image.blobs.len() - 1];
    let path = format!("/v2/app/blobs/{}", layer.digest);
    let whole = stage.ask(Request::get(&path)).await;
    assert_eq!((whole.status, whole.end), (200, End::Clean));
    assert!(whole.body == layer.bytes);
    assert!(fast().hot_hits > 0);
    // Of what was traced before this process began it is told at the start.
    drop(whole);
    stage.cache.set_tier_limit(0).await;
    eventually(async || fast().hot == 0).await;
    stage.cache.set_tier_limit(64 << 20).await;
    stage.proxy.report_hot_ranges().await;
    eventually(async || fast().hot == 1).await;
}

#[tokio::test]
async fn hostile_questions_are_refused() {
    let stage = with_bundles().await;
    let image = tree(9);
    stage.upstream.push("app", "1", &image.image);
    let digest = image.image.root.to_string();
    let many = vec![digest.clone(); 10_000];
    let ask = |body: String| {
        Request::new("POST", BUNDLE)
            .header("content-type", "application/json")
            .body(body)
    };
    for (request, status) in [
        (Request::get(BUNDLE), 405),
        (Request::get(TRACE), 405),
        (Request::new("POST", BUNDLE).body("{\"want\":\"1\"}"), 415),
        (
            Request::new("POST", BUNDLE)
                .header("content-type", "text/plain")
                .body("{}"),
            415,
        ),
        (ask(json!({"want": "1", "have": many}).to_string()), 400),
        (
            ask(json!({"want": "1", "have": ["sha256:00"]}).to_string()),
            400,
        ),
        (ask(json!({"want": "../x"}).to_string()), 404),
        (ask(json!({"want": "sha256:00"}).to_string()), 400),
        (ask("[".repeat(1 << 20)), 400),
        (ask("x".repeat((1 << 20) + 1)), 413),
        (ask(String::new()), 400),
        (
            post(
                "/v2/app/_pierhead/bundle?ns=http://x",
                &json!({"want": "1"}),
            ),
            400,
        ),
        (
            post(TRACE, &json!({"image": "1", "files": vec!["a"; 20_000]})),
            400,
        ),
        (
            post("/v2/absent/_pierhead/bundle", &json!({"want": "1"})),
            404,
        ),
    ] {
        let refused = stage.ask(request.clone()).await;
        assert_eq!(refused.status, status, "{request:.200?} {refused:.300?}");
        if status == 405 {
            assert_eq!(refused.header("allow"), Some("POST"));
        }
    }
    // A length that is not kept, and one that is said twice.
    for head in [
        "content-length: 5\r\ncontent-length: 5\r\n",
        "content-length: +5\r\n",
        "content-length: 99999999999999999999\r\n",
    ] {
        let mut connection = Connection::open(stage.addr).await.unwrap();
        let text = format!("{POSTED}{head}\r\n");
        connection.send_raw(text.as_bytes()).await.unwrap();
        connection.send_raw(b"{\"a\"}").await.unwrap();
        let answer = soon(connection.answer(true)).await;
        let status = match answer {
            Ok(answer) => answer.whole().await.map_or(0, |it| it.status),
            Err(_) => 0,
        };
        assert!(status == 0 || status >= 400, "{head} {status}");
    }
    // In chunks it is read by the other way in, with the same answer.
    let mut connection = Connection::open(stage.addr).await.unwrap();
    let text = format!("{CHUNKED}\r\nc\r\n{{\"want\":\"0\"}}\r\n0\r\n\r\n");
    connection.send_raw(text.as_bytes()).await.unwrap();
    let answer = soon(connection.answer(true))
        .await
        .unwrap()
        .whole()
        .await
        .unwrap();
    assert_eq!(answer.status, 404, "{answer:?}");
    // Chunks that are none are the client's fault, not its slowness.
    let mut connection = Connection::open(stage.addr).await.unwrap();
    let text = format!("{CHUNKED}\r\nno length\r\n");
    connection.send_raw(text.as_bytes()).await.unwrap();
    let answer = soon(connection.answer(true)).await.unwrap();
    let answer = soon(answer.whole()).await.unwrap();
    assert_eq!(answer.status, 400, "{answer:?}");
}

/// All of a body is under one limit, whatever comes in between, and by whichever way in it is read.
#[tokio::test]
async fn a_body_that_comes_byte_by_byte_is_cut() {
    let short = Duration::from_millis(300);
    let whole: fn(&mut Config, Duration) = |config, limit| config.client_head_timeout = limit;
    let each_step: fn(&mut Config, Duration) = |config, limit| config.client_stall_timeout = limit;
    let by_length = format!("{POSTED}content-length: 100000\r\n\r\n");
    let chunked = format!("{CHUNKED}\r\n");
    for (limit, head, piece) in [
        (whole, &by_length, "x"),
        (whole, &chunked, "1\r\nx\r\n"),
        (each_step, &by_length, "x"),
        (each_step, &chunked, "1\r\nx\r\n"),
    ] {
        let stage = bundles(Plan::default())
            .config(|config| limit(config, short))
            .open()
            .await;
        let mut connection = Connection::open(stage.addr).await.unwrap();
        connection.send_raw(head.as_bytes()).await.unwrap();
        soon(async {
            while connection.send_raw(piece.as_bytes()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        // Bytes that were on their way may have had the answer thrown away.
        let answer = soon(connection.answer(true)).await;
        assert!(answer.is_err() || answer.is_ok_and(|it| it.status == 408));
    }
}

#[tokio::test]
async fn a_connection_goes_on_behind_a_question() {
    let stage = with_bundles().await;
    let image = tree(10);
    stage.upstream.push("app", "1", &image.image);
    let first = bundle(&stage, &json!({"want": "1"})).await;
    let mut connection = Connection::open(stage.addr).await.unwrap();
    for _ in 0..3 {
        let question = post(BUNDLE, &json!({"want": "1"}));
        let again = soon(connection.exchange(&question)).await.unwrap();
        assert!(again.body == first.body);
        let base = soon(connection.exchange(&Request::get("/v2/")))
            .await
            .unwrap();
        assert_eq!(base.status, 200);
    }
    assert!(metric(&stage, "connections 1"));
}

#[tokio::test]
async fn an_image_that_is_none_is_said_to_be() {
    let stage = with_bundles().await;
    // Random bytes for layers.
    stage.push(1, &[1000]);
    let refused = bundle(&stage, &json!({"want": "1"})).await;
    assert_eq!((refused.status, &*code(&refused)), (422, "UNSUPPORTED"));
    let index = Image::multi_arch(1, &["amd64", "arm64"]);
    stage.upstream.push("app", "2", &index);
    let refused = bundle(&stage, &json!({"want": "2"})).await;
    assert_eq!(refused.status, 400, "no platform was said");
    let refused = bundle(&stage, &json!({"want": "2", "platform": "linux/s390x"})).await;
    assert_eq!(refused.status, 400, "no such platform");
    let answer = bundle(&stage, &json!({"want": "2", "platform": "linux/arm64"})).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_layer_beyond_the_compression_ratio_is_not_bundled_and_is_served() {
    let stage = with_bundles().await;
    let image = Image::of_zeros(96 << 20);
    stage.upstream.push("app", "1", &image);
    let refused = bundle(&stage, &json!({"want": "1"})).await;
    assert_eq!((refused.status, &*code(&refused)), (422, "UNSUPPORTED"));
    let why = refused.json()["errors"][0]["message"].to_string();
    assert!(why.contains("limit of 200 times its bytes"), "{why}");
    // A plain pull does not unpack it.
    stage.pull(&image).await;
}

#[tokio::test]
async fn without_a_library_there_is_no_extension() {
    let stage = Stage::open().await;
    let image = tree(11);
    stage.upstream.push("app", "1", &image.image);
    let refused = stage.ask(post(BUNDLE, &json!({"want": "1"}))).await;
    assert_eq!((refused.status, &*code(&refused)), (404, "UNSUPPORTED"));
    let list = stage.get("/v2/_oci/ext/discover").await.json();
    assert_eq!(list, json!({"extensions": []}));
    let stage = with_bundles().await;
    for path in ["/v2/_oci/ext/discover", "/v2/app/_oci/ext/discover"] {
        let list = stage.get(path).await.json();
        assert_eq!(list["extensions"][0]["name"], "_pierhead");
        assert_eq!(
            list["extensions"][0]["endpoints"].as_array().unwrap().len(),
            3
        );
    }
}

#[tokio::test]
async fn bundles_that_could_not_be_opened_are_no_missing_endpoint() {
    let stage = Stage::open().await;
    let image = tree(11);
    stage.upstream.push("app", "1", &image.image);
    let why = "read plans: Permission denied".to_owned();
    stage.proxy.set_bundle_server_failure(why.clone());
    let refused = stage.ask(post(BUNDLE, &json!({"want": "1"}))).await;
    assert_eq!((refused.status, &*code(&refused)), (503, "UNSUPPORTED"));
    let message = refused.json()["errors"][0]["message"].to_string();
    assert!(message.contains(&why), "{message}");
}

/// A client that leaves in the middle takes nothing with it.
#[tokio::test]
async fn a_client_that_leaves_leaves_nothing_behind() {
    let stage = with_bundles().await;
    let image = tree(12);
    stage.upstream.push("app", "1", &image.image);
    bundle(&stage, &json!({"want": "1"})).await;
    for _ in 0..20 {
        let mut connection = Connection::open(stage.addr).await.unwrap();
        let question = post(BUNDLE, &json!({"want": "1"}));
        let mut answer = soon(connection.start(&question)).await.unwrap();
        let _ = soon(answer.chunk()).await;
    }
    eventually(async || metric(&stage, "connections 0")).await;
}

#[tokio::test]
async fn planning_counts_for_the_client_and_what_is_planned_does_not() {
    let stage = with_bundles().await;
    let (old, new) = (tree(13), tree(14));
    stage.upstream.push("app", "1", &old.image);
    stage.upstream.push("app", "2", &new.image);
    bundle(&stage, &json!({"want": "1"})).await;
    let first = bundle(&stage, &json!({"want": "2"})).await;
    let mut config = Config {
        default_upstream: stage.upstream.addr().to_string().parse().unwrap(),
        ..Config::default()
    };
    config.limits.downloads_per_client = 0;
    stage.proxy.reload(config);
    let have = json!({"want": "2", "have": [old.image.root.to_string()]});
    let refused = stage.ask(post(BUNDLE, &have)).await;
    let error = &refused.json()["errors"][0];
    assert_eq!(
        (refused.status, &error["detail"]["stage"]),
        (503, &json!(null))
    );
    let why = error["message"].as_str().unwrap();
    assert!(why.contains("limits.downloads (one address"), "{why}");
    let again = stage.ask(post(BUNDLE, &json!({"want": "2"}))).await;
    assert!(again.status == 200 && again.body == first.body);
}

/// Adds ann's login, which the upstream lets in to `app`.
fn by_ann(request: Request) -> Request {
    let code = STANDARD.encode("ann:right");
    request.header("authorization", format!("Basic {code}"))
}

/// `app` is private at the upstream; everybody may read at `other.example`, whoever runs that.
async fn shared(other: &FakeRegistry) -> Stage {
    let rules = TokenAuth {
        users: vec![("ann".into(), "right".into())],
        private: vec!["app".into()],
        ..TokenAuth::default()
    };
    let mut plan = bundles(Plan::default()).config(|config| {
        config.auth = Auth::PassThrough {
            cache_ttl: std::time::Duration::from_secs(60),
            anonymous: true,
        };
    });
    plan.upstream = FakeRegistry::builder().with(|settings| settings.auth = Upstream::Token(rules));
    plan.others.push(("other.example", other.url()));
    plan.open().await
}

async fn until_ready(stage: &Stage, request: Request) -> Response {
    soon(async {
        loop {
            let answer = stage.ask(request.clone()).await;
            if answer.status != 503 {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
}

/// Claims to have an image: the documents are known, of the rest it says that it has them.
fn claim(registry: &FakeRegistry, image: &Image) {
    for document in &image.documents {
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        registry.put_manifest_as("app", document.digest, media_type, document.bytes.clone());
    }
    for blob in &image.blobs {
        registry.put_blob_as("app", blob.digest, vec![7; blob.bytes.len()]);
    }
}

#[tokio::test]
async fn bundles_files_and_traces_are_for_those_who_may_pull_them_there() {
    let other = FakeRegistry::builder().start().await;
    let stage = shared(&other).await;
    let (secret, own) = (tree(15), tree(16));
    let digest = secret.image.root.to_string();
    stage.upstream.push("app", "1", &secret.image);
    claim(&other, &secret.image);
    other.push("app", "own", &own.image);
    let fresh = json!({"want": digest});
    let sent = until_ready(&stage, by_ann(post(BUNDLE, &fresh))).await;
    assert_eq!((sent.status, sent.end), (200, End::Clean));
    let (_, secret_table, contents) = received(&sent.body, None);
    assert!(is_whole(&secret_table, &contents));
    let etag = sent.header("etag").unwrap();
    let part = json!({"want": digest, "part": {"etag": etag, "first": 0}});
    let trace = json!({"image": digest, "files": paths(&secret)});
    let content = contents.keys().next().unwrap();
    let file = format!("/v2/app/_pierhead/file/{content}?image={digest}");
    let at_other = |path: &str| {
        let mark = if path.contains('?') { '&' } else { '?' };
        format!("{path}{mark}ns=other.example")
    };
    let questions = |at: &dyn Fn(&str) -> String| {
        [
            post(&at(BUNDLE), &fresh),
            post(&at(BUNDLE), &part),
            post(&at(BUNDLE), &fresh).header("if-none-match", etag),
            Request::get(at(&file)),
            Request::head(at(&file)),
            post(&at(TRACE), &trace),
        ]
    };
    for request in questions(&|path| path.to_owned()) {
        let refused = stage.ask(request.clone()).await;
        assert_eq!(refused.status, 401, "{request:.200?} {refused:.300?}");
        let allowed = stage.ask(by_ann(request.clone())).await;
        assert!(allowed.status < 400, "{request:.200?} {allowed:.300?}");
    }
    // The other registry lets everybody in, and says that it has all of it: nothing here is of it.
    for request in questions(&at_other) {
        for request in [request.clone(), by_ann(request)] {
            let refused = stage.ask(request.clone()).await;
            assert!(refused.status >= 400, "{request:.200?} {refused:.300?}");
            assert!(refused.header("etag").is_none() && refused.body.len() < 1000);
        }
    }
    // Nor is it had there, or the other way round.
    let path = at_other(BUNDLE);
    let own_digest = own.image.root.to_string();
    let fresh_own = until_ready(&stage, post(&path, &json!({"want": own_digest}))).await;
    assert_eq!(fresh_own.status, 200);
    let (_, own_table, _) = received(&fresh_own.body, None);
    let theirs = json!({"want": own_digest, "have": [digest]});
    let ours = json!({"want": digest, "have": [own_digest]});
    for (request, unknown, table, whole) in [
        (post(&path, &theirs), &digest, &own_table, &fresh_own),
        (
            by_ann(post(&path, &theirs)),
            &digest,
            &own_table,
            &fresh_own,
        ),
        (
            by_ann(post(BUNDLE, &ours)),
            &own_digest,
            &secret_table,
            &sent,
        ),
    ] {
        let answer = until_ready(&stage, request).await;
        assert_eq!(answer.status, 200, "{answer:.300?}");
        assert_eq!(answer.header("pierhead-unknown-have"), Some(&**unknown));
        let (header, _, contents) = received(&answer.body, None);
        assert!(header.base_images.is_empty() && is_whole(table, &contents));
        assert!(answer.body == whole.body, "as if nothing were had");
    }
}

#[tokio::test]
async fn what_two_registries_have_is_bundled_for_each_once_it_came_from_there() {
    let other = FakeRegistry::builder().start().await;
    let stage = shared(&other).await;
    let image = tree(17);
    stage.upstream.push("app", "1", &image.image);
    other.push("app", "1", &image.image);
    let question = json!({"want": image.image.root.to_string()});
    let sent = until_ready(&stage, by_ann(post(BUNDLE, &question))).await;
    assert_eq!(sent.status, 200);
    let path = format!("{BUNDLE}?ns=other.example");
    let before = stage.ask(post(&path, &question)).await;
    assert!(before.status >= 400, "{before:.300?}");
    for blob in &image.image.blobs {
        let path = format!("/v2/app/blobs/{}?ns=other.example", blob.digest);
        assert_eq!(stage.get(&path).await.status, 200);
    }
    let after = until_ready(&stage, post(&path, &question)).await;
    assert!(after.status == 200 && after.body == sent.body);
}
