//! Tests of the bundle extension (bundles contain only the file contents that a worker lacks):
//! contents of bundles, indexing, base images, resumption, parts of a bundle on several
//! connections, single files, traces, hot ranges (the byte ranges of layers that a container start
//! reads), access, malformed requests.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{
    Fixture, FixtureOptions, blob_path, connect_from, error_code, eventually, has_metric, in_time,
};
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
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const BUNDLE: &str = "/v2/app/_pierhead/bundle";
const TRACE: &str = "/v2/app/_pierhead/trace";
/// The start of the head of a request for a bundle.
const POST_HEAD: &str =
    "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";
/// The start of the head of a request for a bundle, if the request body is chunked.
const CHUNKED_POST_HEAD: &str = "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";

async fn with_bundles() -> Fixture {
    bundle_options(FixtureOptions::default()).start().await
}

fn bundle_options(options: FixtureOptions) -> FixtureOptions {
    FixtureOptions {
        has_bundles: true,
        ..options
    }
}

fn tree(seed: u64) -> TreeImage {
    Image::tree(seed, &TreeOptions::default())
}

/// Returns the paths of two regular files of the image.
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

/// Requests a bundle, and repeats the request until the image is ready.
async fn bundle(fixture: &Fixture, body: &Value) -> Response {
    in_time(async {
        loop {
            let response = fixture.send(post(BUNDLE, body)).await;
            if response.status != 503 {
                return response;
            }
            let detail = &response.json()["errors"][0]["detail"];
            assert!(detail["stage"].is_string(), "{response:?}");
            assert_eq!(response.header("retry-after"), Some("1"));
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
}

/// Finds the sizes of file contents in the tables of contents (TOCs) of the image and of a base
/// image.
struct Tocs<'a>(&'a ImageToc, Option<&'a ImageToc>);

impl Sizes for Tocs<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.0.contents().size(content)
    }

    fn base(&self, _: u16, content: u32) -> Option<u64> {
        self.1?.contents().size(content)
    }
}

/// Decodes a response as a client does. Returns the header, the TOC, and the file contents that
/// need no base image.
fn received(
    bundle: &[u8],
    base: Option<&ImageToc>,
) -> (Header, ImageToc, BTreeMap<FileDigest, Vec<u8>>) {
    let mut decoder = Decoder::new();
    let mut rest = bundle;
    let Some(Event::Header { header, .. }) = decoder.feed(&mut rest).unwrap() else {
        panic!("no header");
    };
    let toc = image_toc::decompress(&header.toc.coded, header.toc.base.and(base)).unwrap();
    let sizes = Tocs(&toc, base);
    let frames: Vec<_> = header
        .frames
        .cursor(&sizes)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut contents: BTreeMap<FileDigest, Vec<u8>> = BTreeMap::new();
    loop {
        match decoder.feed(&mut rest).unwrap().expect("more records") {
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
                    let content = toc.contents().content(member.content).unwrap();
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
    (*header, toc, contents)
}

fn is_complete(toc: &ImageToc, contents: &BTreeMap<FileDigest, Vec<u8>>) -> bool {
    let all = toc.contents();
    (0..toc.visible()).all(|number| {
        all.size(number) == Some(0) || contents.contains_key(&all.content(number).unwrap())
    })
}

#[tokio::test]
async fn an_image_that_is_not_cached_is_pulled_indexed_and_sent() {
    let fixture = with_bundles().await;
    let image = tree(1);
    fixture.upstream.push("app", "1", &image.image);
    let response = bundle(&fixture, &json!({"want": "1"})).await;
    assert_eq!((response.status, response.end), (200, End::Clean));
    assert_eq!(
        response.header("content-type"),
        Some("application/vnd.pierhead.bundle.v1")
    );
    let (header, toc, contents) = received(&response.body, None);
    assert_eq!(header.manifest, image.image.root_document().bytes);
    assert!(is_complete(&toc, &contents));
    // The same request gets the same bytes. A request with the ETag of the first response gets 304.
    let again = bundle(&fixture, &json!({"want": image.image.root.to_string()})).await;
    assert!(again.body == response.body);
    let etag = response.header("etag").unwrap();
    let conditional = post(BUNDLE, &json!({"want": "1"})).header("if-none-match", etag);
    let not_modified = fixture.send(conditional).await;
    assert_eq!((not_modified.status, not_modified.body.len()), (304, 0));
    assert!(has_metric(
        &fixture,
        "requests_total{endpoint=\"bundle\",cache=\"hit\",status=\"3xx\"} 1"
    ));
}

#[tokio::test]
async fn an_image_that_is_pulled_by_layers_is_indexed() {
    let fixture = with_bundles().await;
    let image = tree(2);
    fixture.upstream.push("app", "1", &image.image);
    fixture.pull(&image.image).await;
    let bundle_server = fixture.bundle_server.clone().unwrap();
    eventually(async || {
        bundle_server.state(&image.image.root) == pierhead_bundle_server::State::Ready
    })
    .await;
    let response = fixture.send(post(BUNDLE, &json!({"want": "1"}))).await;
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn indexing_counts_for_the_client_that_pulled_the_layers() {
    let background = BackgroundWork::default();
    background.set_paused(true);
    let options = FixtureOptions {
        background: background.clone(),
        ..FixtureOptions::default()
    };
    let fixture = bundle_options(options).start().await;
    let bundle_server = fixture.bundle_server.clone().unwrap();
    let pulled = [(2, 31), (2, 32), (2, 33), (3, 34)].map(|(client, seed)| (client, tree(seed)));
    for (client, TreeImage { image, .. }) in &pulled {
        fixture.upstream.push("app", "1", image);
        let mut stream = connect_from(&fixture, *client).await;
        let head = format!("GET /v2/app/manifests/{} HTTP/1.1", image.root);
        let request = format!("{head}\r\nhost: a\r\nconnection: close\r\n\r\n");
        in_time(stream.write_all(request.as_bytes())).await.unwrap();
        let mut response = String::new();
        in_time(stream.read_to_string(&mut response)).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        for blob in &image.blobs {
            assert_eq!(fixture.get(&blob_path(&blob.digest)).await.status, 200);
        }
        // This image is in the queue before the next image is pulled.
        eventually(async || bundle_server.state(&image.root) != State::Unknown).await;
    }
    background.set_paused(false);
    let is_ready = |image: &TreeImage| bundle_server.state(&image.image.root) == State::Ready;
    let [_, _, (_, last), (_, other)] = &pulled;
    eventually(async || is_ready(last)).await;
    // Clients share the indexing fairly, so the image of the other client is not last.
    assert!(is_ready(other));
}

/// If reads of the indexer counted as accesses, an image would stay in the cache because it is
/// indexed.
#[tokio::test]
async fn indexing_an_image_counts_as_no_access() {
    let fixture = Fixture::start().await;
    let image = tree(25);
    fixture.upstream.push("app", "1", &image.image);
    fixture.pull(&image.image).await;
    for blob in &image.image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    let data = Some(fixture.close().await);
    let options = FixtureOptions {
        data,
        ..FixtureOptions::default()
    };
    let fixture = bundle_options(options).start().await;
    let bundle_server = fixture.bundle_server.clone().unwrap();
    let counts = || {
        let stat = fixture.cache.eviction();
        let listed = fixture.cache.list(None, 100);
        let accessed: Vec<_> = listed.iter().map(|it| (it.digest, it.accessed)).collect();
        (stat.hits, stat.misses, accessed)
    };
    let before = counts();
    // Access times have a resolution of one second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    in_time(fixture.proxy.offer_stored()).await;
    assert_eq!(bundle_server.state(&image.image.root), State::Ready);
    assert_eq!(counts(), before);
}

#[tokio::test]
async fn images_that_were_cached_without_bundles_are_indexed() {
    let fixture = Fixture::start().await;
    let image = tree(22);
    fixture.upstream.push("app", "1", &image.image);
    fixture.pull(&image.image).await;
    // An image index is pulled with all its parts, including attestations, in the same way as
    // mirrors do.
    let index = Image::multi_arch(23, &["amd64", "arm64"]);
    fixture.upstream.push("app", "3", &index);
    assert_eq!(fixture.get("/v2/app/manifests/3").await.status, 200);
    for document in &index.documents {
        let path = format!("/v2/app/manifests/{}", document.digest);
        assert_eq!(fixture.get(&path).await.status, 200);
    }
    for blob in &index.blobs {
        assert_eq!(fixture.get(&blob_path(&blob.digest)).await.status, 200);
    }
    // Only the manifest of this image is pulled, and no blob.
    let absent = tree(24);
    fixture.upstream.push("app", "2", &absent.image);
    assert_eq!(fixture.get("/v2/app/manifests/2").await.status, 200);
    for blob in image.image.blobs.iter().chain(&index.blobs) {
        fixture.wait_until_stored(&blob.digest).await;
    }
    let data = Some(fixture.close().await);
    // The upstream of the second fixture is empty.
    let fixture = bundle_options(FixtureOptions {
        data,
        ..FixtureOptions::default()
    })
    .start()
    .await;
    let bundle_server = fixture.bundle_server.clone().unwrap();
    in_time(fixture.proxy.offer_stored()).await;
    assert_eq!(bundle_server.state(&image.image.root), State::Ready);
    assert_eq!(bundle_server.state(&absent.image.root), State::Unknown);
    let states = index
        .documents
        .iter()
        .map(|it| bundle_server.state(&it.digest));
    let ready = states.filter(|state| *state == State::Ready).count();
    assert_eq!(ready, 2, "one for each platform");
    let want = image.image.root.to_string();
    let response = fixture.send(post(BUNDLE, &json!({"want": want}))).await;
    assert_eq!(response.status, 200, "{response:?}");
    let (_, toc, contents) = received(&response.body, None);
    assert!(is_complete(&toc, &contents));
}

#[tokio::test]
async fn a_warmed_image_is_indexed_when_it_is_requested_or_at_the_next_start() {
    let fixture = with_bundles().await;
    let bundle_server = fixture.bundle_server.clone().unwrap();
    let [requested, stored, pulled] = [51, 52, 53].map(|seed| tree(seed).image);
    let lines = capture();
    for (tag, image) in [("requested", &requested), ("stored", &stored)] {
        fixture.upstream.push("app", tag, image);
        let reference = fixture.reference(&format!(":{tag}"));
        fixture.proxy.warm(&reference, &[], |_| {}).await.unwrap();
    }
    assert_eq!(lines.with("image warmed").len(), 2, "{}", lines.text());
    // If the proxy passed warmed images to the bundle server, it would do so before it passes an
    // image that a client pulls later.
    fixture.upstream.push("app", "1", &pulled);
    fixture.pull(&pulled).await;
    eventually(async || bundle_server.state(&pulled.root) == State::Ready).await;
    for image in [&requested, &stored] {
        assert_eq!(bundle_server.state(&image.root), State::Unknown);
    }
    let response = bundle(&fixture, &json!({"want": "requested"})).await;
    assert_eq!(response.status, 200);
    assert_eq!(bundle_server.state(&requested.root), State::Ready);
    assert_eq!(bundle_server.state(&stored.root), State::Unknown);
    bundle_server.close();
    drop(bundle_server);
    let data = Some(fixture.close().await);
    let options = FixtureOptions {
        data,
        ..FixtureOptions::default()
    };
    let fixture = bundle_options(options).start().await;
    in_time(fixture.proxy.offer_stored()).await;
    let bundle_server = fixture.bundle_server.clone().unwrap();
    assert_eq!(bundle_server.state(&stored.root), State::Ready);
}

#[tokio::test]
async fn contents_of_base_images_are_not_sent_and_unknown_base_images_are_named() {
    let fixture = with_bundles().await;
    let (old, more) = (tree(3), tree(4));
    let new = Image::of_tars("amd64", &[&old.tars[..], &more.tars[..1]].concat());
    fixture.upstream.push("app", "1", &old.image);
    fixture.upstream.push("app", "2", &new);
    let first = bundle(&fixture, &json!({"want": "1"})).await;
    let (_, old_toc, _) = received(&first.body, None);
    let unknown = Digest::from(FileDigest::of(b"unknown")).to_string();
    let whole = bundle(&fixture, &json!({"want": "2"})).await;
    let query = json!({"want": "2", "base_images": [old.image.root.to_string(), unknown]});
    let update = bundle(&fixture, &query).await;
    assert_eq!(
        update.header("pierhead-unknown-base-images"),
        Some(&*unknown)
    );
    assert!(update.body.len() < whole.body.len());
    let (header, _, _) = received(&update.body, Some(&old_toc));
    assert_eq!(header.base_images.len(), 1);
    // This request has the maximum number of base images, all of which are unknown to the server.
    let many: Vec<_> = (0..256_u32)
        .map(|nth| Digest::from(FileDigest::of(&nth.to_le_bytes())).to_string())
        .collect();
    let response = bundle(&fixture, &json!({"want": "2", "base_images": many})).await;
    assert_eq!(response.status, 200);
    let (_, toc, contents) = received(&response.body, None);
    assert!(is_complete(&toc, &contents));
}

#[tokio::test]
async fn a_bundle_is_resumed() {
    let fixture = with_bundles().await;
    let image = tree(5);
    fixture.upstream.push("app", "1", &image.image);
    let response = bundle(&fixture, &json!({"want": "1", "layers": true})).await;
    let etag = response.header("etag").unwrap();
    let mut decoder = Decoder::new();
    let mut rest = &response.body[..];
    let Some(Event::Header {
        prelude, header, ..
    }) = decoder.feed(&mut rest).unwrap()
    else {
        panic!("no header");
    };
    let frames = u32::try_from(header.frames.len()).unwrap();
    let part = json!({"etag": etag, "first": frames - 1});
    let query = json!({"want": "1", "layers": true, "part": part});
    let part = bundle(&fixture, &query).await;
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
    // The end mark of each response has the number of records in this response.
    let record = &part.body[PRELUDE..part.body.len() - RECORD_HEAD];
    assert!(response.body[..response.body.len() - RECORD_HEAD].ends_with(record));
    assert!(matches!(
        decoder.feed(&mut rest).unwrap(),
        Some(Event::End(_))
    ));
    // For the ETag of a deleted bundle, the response is a whole bundle.
    let part = json!({"etag": "\"gone\"", "first": 3});
    let query = json!({"want": "1", "layers": true, "part": part});
    let whole = bundle(&fixture, &query).await;
    assert!(whole.body == response.body);
}

#[tokio::test]
async fn shares_are_disjoint_and_cover_the_bundle() {
    let fixture = with_bundles().await;
    let image = tree(21);
    fixture.upstream.push("app", "1", &image.image);
    let whole = bundle(&fixture, &json!({"want": "1"})).await;
    let header = {
        let mut decoder = Decoder::new();
        let event = decoder.feed(&mut &whole.body[..]).unwrap();
        let Some(Event::Header { prelude, .. }) = event else {
            panic!("no header");
        };
        prelude
    };
    let header_end = PRELUDE + header.body_len();
    for of in [1, 2, 3, 64] {
        let (mut frames, mut sent) = (0, Vec::new());
        for nth in 0..of {
            let share = bundle(&fixture, &json!({"want": "1", "share": [nth, of]})).await;
            assert_eq!(share.header("etag"), whole.header("etag"));
            let prelude = Prelude::decode(share.body.first_chunk().unwrap()).unwrap();
            assert_eq!((prelude.continued, prelude.first), (nth > 0, frames));
            assert_eq!(prelude.digest, header.digest);
            frames = prelude.until;
            let begin = if nth == 0 { header_end } else { PRELUDE };
            sent.extend_from_slice(&share.body[begin..share.body.len() - RECORD_HEAD]);
        }
        assert_eq!(frames, header.until);
        assert!(sent == whole.body[header_end..whole.body.len() - RECORD_HEAD]);
    }
    // The header of a bundle can also be divided between connections.
    for of in [1, 2, 64] {
        let (mut body, mut sent) = (Vec::new(), Vec::new());
        for nth in 0..of {
            let query = json!({"want": "1", "share": [nth, of], "pieces": true});
            let share = bundle(&fixture, &query).await;
            let prelude = Prelude::decode(share.body.first_chunk().unwrap()).unwrap();
            assert!(prelude.continued && prelude.piece, "{nth} of {of}");
            let piece = Share(nth, of).of(u64::from(prelude.body));
            let begin = PRELUDE + usize::try_from(piece.end - piece.start).unwrap();
            body.extend_from_slice(&share.body[PRELUDE..begin]);
            sent.extend_from_slice(&share.body[begin..share.body.len() - RECORD_HEAD]);
        }
        assert!(body == whole.body[PRELUDE..header_end]);
        assert!(sent == whole.body[header_end..whole.body.len() - RECORD_HEAD]);
    }
    // If the query has no share (the part of a bundle for one connection), `pieces` has no effect.
    let query = json!({"want": "1", "pieces": true});
    assert!(bundle(&fixture, &query).await.body == whole.body);
    for hostile in [
        json!([2, 2]),
        json!([0, 0]),
        json!([0, 65]),
        json!([-1, 2]),
        json!(1),
    ] {
        let query = json!({"want": "1", "share": hostile});
        let response = fixture.send(post(BUNDLE, &query)).await;
        assert_eq!(response.status, 400, "{query}");
    }
    // Only the request for the first part of the bundle makes a plan.
    let unknown = Digest::from(FileDigest::of(b"unknown")).to_string();
    let query = |nth: u8| json!({"want": "1", "base_images": [image.image.root.to_string(), unknown], "share": [nth, 2], "pieces": true});
    let early = fixture.send(post(BUNDLE, &query(1))).await;
    assert_eq!(early.status, 503);
    // The requests for the other parts were refused, so this response has the whole header.
    let first = bundle(&fixture, &query(0)).await;
    let prelude = Prelude::decode(first.body.first_chunk().unwrap()).unwrap();
    assert!(!prelude.continued && !prelude.piece);
    // The server may replace the packs of the plan at this time. In that case, a client starts
    // again with the first part.
    let later = in_time(async {
        loop {
            let later = fixture.send(post(BUNDLE, &query(1))).await;
            if later.status != 503 {
                return later;
            }
            assert!(later.header("retry-after").is_some(), "{later:?}");
            bundle(&fixture, &query(0)).await;
        }
    })
    .await;
    assert_eq!(later.status, 200);
    let prelude = Prelude::decode(later.body.first_chunk().unwrap()).unwrap();
    assert!(prelude.continued && prelude.piece);
}

#[tokio::test]
async fn only_files_of_the_named_image_are_served() {
    let fixture = with_bundles().await;
    let (image, other) = (tree(6), tree(7));
    fixture.upstream.push("app", "1", &image.image);
    fixture.upstream.push("app", "2", &other.image);
    bundle(&fixture, &json!({"want": "1"})).await;
    bundle(&fixture, &json!({"want": "2"})).await;
    let path = |content: &FileDigest, image: &TreeImage| {
        format!(
            "/v2/app/_pierhead/file/{content}?image={}",
            image.image.root
        )
    };
    for (content, bytes) in image.contents.iter().take(5) {
        let got = fixture.get(&path(content, &image)).await;
        assert_eq!((got.status, got.end), (200, End::Clean));
        assert!(got.body == *bytes);
        let head = fixture.head(&path(content, &image)).await;
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
    let refused = fixture.get(&path(foreign, &image)).await;
    assert_eq!(
        (refused.status, &*error_code(&refused)),
        (404, "BLOB_UNKNOWN")
    );
    assert_eq!(fixture.get(&path(foreign, &other)).await.status, 200);
    let unknown_image = format!("/v2/app/_pierhead/file/{foreign}?image={foreign}");
    assert_eq!(fixture.get(&unknown_image).await.status, 404);
}

#[tokio::test]
async fn traces_of_cached_images_are_recorded_with_one_vote_per_client() {
    let lines = capture();
    let fixture = with_bundles().await;
    let image = tree(8);
    fixture.upstream.push("app", "1", &image.image);
    bundle(&fixture, &json!({"want": "1"})).await;
    let files: Vec<_> = (0..100).map(|nth| format!("file-{nth}")).collect();
    let foreign = post(TRACE, &json!({"image": "1", "files": files}));
    let refused = fixture.send(foreign).await;
    assert_eq!(
        (refused.status, &*error_code(&refused)),
        (400, "UNSUPPORTED")
    );
    let line = lines.with("entries=100 matched=0");
    assert_eq!(line.len(), 1, "{}", lines.text());
    assert!(line[0].contains("trace"), "{}", line[0]);
    let mut own = paths(&image);
    assert_eq!(own.len(), 2);
    own.extend(["nowhere".to_owned(), own[0].clone()]);
    let upload = post(TRACE, &json!({"image": "1", "files": own}));
    let recorded = fixture.send(upload).await;
    assert_eq!(recorded.status, 200, "{recorded:?}");
    assert_eq!(recorded.json(), json!({"matched": 2, "clients": 1}));
    let line = lines.with("entries=4 matched=2");
    assert_eq!(line.len(), 1, "{}", lines.text());
    assert!(line[0].contains("trace"), "{}", line[0]);
    assert!(line[0].contains(" client=127.0.0.1"), "{}", line[0]);
    // `pierhead inspect` sends this request.
    let query = json!({"want": "1", "start_order": true});
    let order = fixture.send(post(BUNDLE, &query)).await.json();
    assert_eq!(order["source"]["clients"], 1, "{order}");
    // A second trace of the same client replaces the first trace of that client. A trace of another
    // client adds a vote.
    let trace = json!({"image": "1", "files": paths(&image)});
    let again = fixture.send(post(TRACE, &trace)).await;
    assert_eq!(again.json(), json!({"matched": 2, "clients": 1}));
    let body = trace.to_string();
    let upload = format!(
        "POST {TRACE} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = connect_from(&fixture, 2).await;
    in_time(stream.write_all(upload.as_bytes())).await.unwrap();
    let mut response = String::new();
    in_time(stream.read_to_string(&mut response)).await.unwrap();
    assert!(response.contains(r#""clients":2"#), "{response}");
    let line = lines.with("client=127.0.0.2");
    assert_eq!(line.len(), 1, "{}", lines.text());
    assert!(line[0].contains("entries=2 matched=2"), "{}", line[0]);
    let absent = post(TRACE, &json!({"image": "absent", "files": files}));
    assert_eq!(fixture.send(absent).await.status, 404);
}

#[tokio::test]
async fn only_hot_ranges_of_a_traced_image_stay_on_the_fast_tier() {
    let options = FixtureOptions {
        fast_tier_size: 64 << 20,
        ..FixtureOptions::default()
    };
    let fixture = bundle_options(options).start().await;
    let mut tar = tar::Builder::new(Vec::new());
    for (name, len) in [("first", 100_000), ("second", 6_000_000)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(len);
        header.set_mode(0o644);
        let content = random_bytes(len, usize::try_from(len).unwrap());
        tar.append_data(&mut header, name, &content[..]).unwrap();
    }
    let image = Image::of_tars("amd64", &[tar.into_inner().unwrap()]);
    fixture.upstream.push("app", "1", &image);
    bundle(&fixture, &json!({"want": "1"})).await;
    let fast = || fixture.cache.tier().unwrap().fast;
    assert_eq!(fast().hot, 0);
    let trace = json!({"image": "1", "files": ["first"]});
    assert_eq!(fixture.send(post(TRACE, &trace)).await.status, 200);
    // The fast tier removes its copy of the whole layer once the hot chunks are copied.
    eventually(async || fast().hot == 1 && fast().used < 1 << 20).await;
    assert!(fast().hot_used < 512 << 10, "{:?}", fast());
    let layer = &image.blobs[image.blobs.len() - 1];
    let path = format!("/v2/app/blobs/{}", layer.digest);
    let whole = fixture.send(Request::get(&path)).await;
    assert_eq!((whole.status, whole.end), (200, End::Clean));
    assert!(whole.body == layer.bytes);
    assert!(fast().hot_hits > 0);
    // At the start of pierhead, the hot ranges of images that were traced earlier are reported to
    // the cache.
    drop(whole);
    fixture.cache.set_tier_limit(0).await;
    eventually(async || fast().hot == 0).await;
    fixture.cache.set_tier_limit(64 << 20).await;
    fixture.proxy.report_hot_ranges().await;
    eventually(async || fast().hot == 1).await;
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let fixture = with_bundles().await;
    let image = tree(9);
    fixture.upstream.push("app", "1", &image.image);
    let digest = image.image.root.to_string();
    let many = vec![digest.clone(); 10_000];
    let bundle_request = |body: String| {
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
        (
            bundle_request(json!({"want": "1", "base_images": many}).to_string()),
            400,
        ),
        (
            bundle_request(json!({"want": "1", "base_images": ["sha256:00"]}).to_string()),
            400,
        ),
        (bundle_request(json!({"want": "../x"}).to_string()), 404),
        (
            bundle_request(json!({"want": "sha256:00"}).to_string()),
            400,
        ),
        (bundle_request("[".repeat(1 << 20)), 400),
        (bundle_request("x".repeat((1 << 20) + 1)), 413),
        (bundle_request(String::new()), 400),
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
        let refused = fixture.send(request.clone()).await;
        assert_eq!(refused.status, status, "{request:.200?} {refused:.300?}");
        if status == 405 {
            assert_eq!(refused.header("allow"), Some("POST"));
        }
    }
    // Each request has two lengths, a malformed length, or a length that is too large.
    for head in [
        "content-length: 5\r\ncontent-length: 5\r\n",
        "content-length: +5\r\n",
        "content-length: 99999999999999999999\r\n",
    ] {
        let mut connection = Connection::open(fixture.addr).await.unwrap();
        let text = format!("{POST_HEAD}{head}\r\n");
        connection.send_raw(text.as_bytes()).await.unwrap();
        connection.send_raw(b"{\"a\"}").await.unwrap();
        let response = in_time(connection.answer(true)).await;
        let status = match response {
            Ok(response) => response.whole().await.map_or(0, |it| it.status),
            Err(_) => 0,
        };
        assert!(status == 0 || status >= 400, "{head} {status}");
    }
    // hyper reads a chunked body. The response is the same as in the fast path.
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let text = format!("{CHUNKED_POST_HEAD}\r\nc\r\n{{\"want\":\"0\"}}\r\n0\r\n\r\n");
    connection.send_raw(text.as_bytes()).await.unwrap();
    let response = in_time(connection.answer(true))
        .await
        .unwrap()
        .whole()
        .await
        .unwrap();
    assert_eq!(response.status, 404, "{response:?}");
    // Malformed chunks get 400, and not a timeout.
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let text = format!("{CHUNKED_POST_HEAD}\r\nno length\r\n");
    connection.send_raw(text.as_bytes()).await.unwrap();
    let response = in_time(connection.answer(true)).await.unwrap();
    let response = in_time(response.whole()).await.unwrap();
    assert_eq!(response.status, 400, "{response:?}");
}

/// The time limits of a request body apply both in the fast path and in hyper.
#[tokio::test]
async fn a_body_that_arrives_in_single_bytes_times_out() {
    let short = Duration::from_millis(300);
    let whole: fn(&mut Config, Duration) = |config, limit| config.client_head_timeout = limit;
    let each_step: fn(&mut Config, Duration) = |config, limit| config.client_stall_timeout = limit;
    let by_length = format!("{POST_HEAD}content-length: 100000\r\n\r\n");
    let chunked = format!("{CHUNKED_POST_HEAD}\r\n");
    for (limit, head, piece) in [
        (whole, &by_length, "x"),
        (whole, &chunked, "1\r\nx\r\n"),
        (each_step, &by_length, "x"),
        (each_step, &chunked, "1\r\nx\r\n"),
    ] {
        let fixture = bundle_options(FixtureOptions::default())
            .config(|config| limit(config, short))
            .start()
            .await;
        let mut connection = Connection::open(fixture.addr).await.unwrap();
        connection.send_raw(head.as_bytes()).await.unwrap();
        in_time(async {
            while connection.send_raw(piece.as_bytes()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        // The result is not checked, because the kernel may discard the response when further bytes
        // arrive.
        let response = in_time(connection.answer(true)).await;
        assert!(response.is_err() || response.is_ok_and(|it| it.status == 408));
    }
}

/// A client that stops in the middle of a body gets a response, from the fast path and from hyper.
#[tokio::test]
async fn a_body_that_stops_gets_408() {
    let by_length = format!("{POST_HEAD}content-length: 1000\r\n\r\n12345");
    let chunked = format!("{CHUNKED_POST_HEAD}\r\n5\r\n12345\r\n");
    let fixture = bundle_options(FixtureOptions::default())
        .config(|config| config.client_stall_timeout = Duration::from_millis(300))
        .start()
        .await;
    for text in [by_length, chunked] {
        let mut connection = Connection::open(fixture.addr).await.unwrap();
        connection.send_raw(text.as_bytes()).await.unwrap();
        let response = in_time(connection.answer(true)).await.unwrap();
        let response = in_time(response.whole()).await.unwrap();
        assert_eq!(response.status, 408, "{response:?}");
    }
}

#[tokio::test]
async fn a_connection_stays_open_after_a_request_for_a_bundle() {
    let fixture = with_bundles().await;
    let image = tree(10);
    fixture.upstream.push("app", "1", &image.image);
    let first = bundle(&fixture, &json!({"want": "1"})).await;
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    for _ in 0..3 {
        let request = post(BUNDLE, &json!({"want": "1"}));
        let again = in_time(connection.exchange(&request)).await.unwrap();
        assert!(again.body == first.body);
        let base = in_time(connection.exchange(&Request::get("/v2/")))
            .await
            .unwrap();
        assert_eq!(base.status, 200);
    }
    assert!(has_metric(&fixture, "connections 1"));
}

#[tokio::test]
async fn an_image_that_cannot_be_indexed_is_refused() {
    let fixture = with_bundles().await;
    // The layers of this image are random bytes, and no tar archives.
    fixture.push(1, &[1000]);
    let refused = bundle(&fixture, &json!({"want": "1"})).await;
    assert_eq!(
        (refused.status, &*error_code(&refused)),
        (422, "UNSUPPORTED")
    );
    let index = Image::multi_arch(1, &["amd64", "arm64"]);
    fixture.upstream.push("app", "2", &index);
    let refused = bundle(&fixture, &json!({"want": "2"})).await;
    assert_eq!(refused.status, 400, "without platform");
    let refused = bundle(&fixture, &json!({"want": "2", "platform": "linux/s390x"})).await;
    assert_eq!(refused.status, 400, "no such platform");
    let response = bundle(&fixture, &json!({"want": "2", "platform": "linux/arm64"})).await;
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn a_repeated_refusal_of_a_bundle_has_one_line() {
    let fixture = with_bundles().await;
    fixture.push(1, &[1000]);
    let lines = capture();
    for _ in 0..5 {
        let refused = bundle(&fixture, &json!({"want": "1"})).await;
        assert_eq!(refused.status, 422);
    }
    let refused = lines.with("bundle refused");
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].contains("repository=app want=\"1\""),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_layer_beyond_the_compression_ratio_is_not_bundled_and_is_served() {
    let fixture = with_bundles().await;
    let image = Image::of_zeros(96 << 20);
    fixture.upstream.push("app", "1", &image);
    let refused = bundle(&fixture, &json!({"want": "1"})).await;
    assert_eq!(
        (refused.status, &*error_code(&refused)),
        (422, "UNSUPPORTED")
    );
    let why = refused.json()["errors"][0]["message"].to_string();
    assert!(why.contains("limit of 200 times its bytes"), "{why}");
    // The server does not unpack the image after a plain pull.
    fixture.pull(&image).await;
}

#[tokio::test]
async fn without_bundles_there_is_no_extension() {
    let fixture = Fixture::start().await;
    let image = tree(11);
    fixture.upstream.push("app", "1", &image.image);
    let refused = fixture.send(post(BUNDLE, &json!({"want": "1"}))).await;
    assert_eq!(
        (refused.status, &*error_code(&refused)),
        (404, "UNSUPPORTED")
    );
    let list = fixture.get("/v2/_oci/ext/discover").await.json();
    assert_eq!(list, json!({"extensions": []}));
    let fixture = with_bundles().await;
    for path in ["/v2/_oci/ext/discover", "/v2/app/_oci/ext/discover"] {
        let list = fixture.get(path).await.json();
        assert_eq!(list["extensions"][0]["name"], "_pierhead");
        assert_eq!(
            list["extensions"][0]["endpoints"].as_array().unwrap().len(),
            3
        );
    }
}

#[tokio::test]
async fn unavailable_bundles_get_503_with_the_cause() {
    let fixture = Fixture::start().await;
    let image = tree(11);
    fixture.upstream.push("app", "1", &image.image);
    let why = "read plans: Permission denied".to_owned();
    fixture.proxy.set_bundle_server_failure(why.clone());
    let refused = fixture.send(post(BUNDLE, &json!({"want": "1"}))).await;
    assert_eq!(
        (refused.status, &*error_code(&refused)),
        (503, "UNSUPPORTED")
    );
    let message = refused.json()["errors"][0]["message"].to_string();
    assert!(message.contains(&why), "{message}");
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "moves a file of the test")]
async fn an_unreadable_folder_of_plans_refuses_bundles_without_its_path() {
    let fixture = with_bundles().await;
    let (old, new) = (tree(21), tree(22));
    fixture.upstream.push("app", "1", &old.image);
    fixture.upstream.push("app", "2", &new.image);
    bundle(&fixture, &json!({"want": "1"})).await;
    bundle(&fixture, &json!({"want": "2"})).await;
    let plans = fixture.data.path().join("plans");
    std::fs::rename(&plans, fixture.data.path().join("plans.old")).unwrap();
    std::fs::write(&plans, "a file").unwrap();
    let query = json!({"want": "2", "base_images": [old.image.root.to_string()]});
    let refused = fixture.send(post(BUNDLE, &query)).await;
    assert_eq!(
        (refused.status, &*error_code(&refused)),
        (503, "UNSUPPORTED")
    );
    let text = String::from_utf8_lossy(&refused.body);
    assert!(text.contains("cannot read its data"), "{text}");
    let folder = fixture.data.path().to_string_lossy();
    assert!(!text.contains(&*folder), "{text}");
}

#[tokio::test]
async fn a_client_that_leaves_during_a_bundle_ends_its_connection() {
    let fixture = with_bundles().await;
    let image = tree(12);
    fixture.upstream.push("app", "1", &image.image);
    bundle(&fixture, &json!({"want": "1"})).await;
    for _ in 0..20 {
        let mut connection = Connection::open(fixture.addr).await.unwrap();
        let request = post(BUNDLE, &json!({"want": "1"}));
        let mut response = in_time(connection.start(&request)).await.unwrap();
        let _ = in_time(response.chunk()).await;
    }
    eventually(async || has_metric(&fixture, "connections 0")).await;
}

#[tokio::test]
async fn planning_counts_for_the_client_and_a_planned_bundle_does_not() {
    let fixture = with_bundles().await;
    let (old, new) = (tree(13), tree(14));
    fixture.upstream.push("app", "1", &old.image);
    fixture.upstream.push("app", "2", &new.image);
    bundle(&fixture, &json!({"want": "1"})).await;
    let first = bundle(&fixture, &json!({"want": "2"})).await;
    let mut config = Config {
        default_upstream: fixture.upstream.addr().to_string().parse().unwrap(),
        ..Config::default()
    };
    config.limits.downloads_per_client = 0;
    fixture.reload(config);
    let query = json!({"want": "2", "base_images": [old.image.root.to_string()]});
    let refused = fixture.send(post(BUNDLE, &query)).await;
    let error = &refused.json()["errors"][0];
    assert_eq!(
        (refused.status, &error["detail"]["stage"]),
        (503, &json!(null))
    );
    let why = error["message"].as_str().unwrap();
    assert!(why.contains("limits.downloads (one address"), "{why}");
    let again = fixture.send(post(BUNDLE, &json!({"want": "2"}))).await;
    assert!(again.status == 200 && again.body == first.body);
}

/// Adds the credentials of ann to a request. She may read `app` at the upstream.
fn as_ann(request: Request) -> Request {
    let encoded = STANDARD.encode("ann:right");
    request.header("authorization", format!("Basic {encoded}"))
}

/// Creates a proxy with pass-through. The repository `app` is private at the upstream. All clients
/// may read all repositories of `other.example`.
async fn with_pass_through(other: &FakeRegistry) -> Fixture {
    let rules = TokenAuth {
        users: vec![("ann".into(), "right".into())],
        private: vec!["app".into()],
        ..TokenAuth::default()
    };
    let mut options = bundle_options(FixtureOptions::default()).config(|config| {
        config.auth = Auth::PassThrough {
            cache_ttl: std::time::Duration::from_secs(60),
            anonymous: true,
        };
    });
    options.upstream =
        FakeRegistry::builder().with(|settings| settings.auth = Upstream::Token(rules));
    options.other_upstreams.push(("other.example", other.url()));
    options.start().await
}

async fn until_ready(fixture: &Fixture, request: Request) -> Response {
    in_time(async {
        loop {
            let response = fixture.send(request.clone()).await;
            if response.status != 503 {
                return response;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
}

/// Makes a registry claim to have an image: the registry has the manifests of the image, but other
/// blobs.
fn claim_image(registry: &FakeRegistry, image: &Image) {
    for document in &image.documents {
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        registry.put_manifest_as("app", document.digest, media_type, document.bytes.clone());
    }
    for blob in &image.blobs {
        registry.put_blob_as("app", blob.digest, vec![7; blob.bytes.len()]);
    }
}

#[tokio::test]
async fn bundles_files_and_traces_need_the_right_to_pull_from_that_registry() {
    let other = FakeRegistry::builder().start().await;
    let fixture = with_pass_through(&other).await;
    let (secret, own) = (tree(15), tree(16));
    let digest = secret.image.root.to_string();
    fixture.upstream.push("app", "1", &secret.image);
    claim_image(&other, &secret.image);
    other.push("app", "own", &own.image);
    let fresh = json!({"want": digest});
    let sent = until_ready(&fixture, as_ann(post(BUNDLE, &fresh))).await;
    assert_eq!((sent.status, sent.end), (200, End::Clean));
    let (_, secret_toc, contents) = received(&sent.body, None);
    assert!(is_complete(&secret_toc, &contents));
    let etag = sent.header("etag").unwrap();
    let part = json!({"want": digest, "part": {"etag": etag, "first": 0}});
    let trace = json!({"image": digest, "files": paths(&secret)});
    let content = contents.keys().next().unwrap();
    let file = format!("/v2/app/_pierhead/file/{content}?image={digest}");
    let at_other = |path: &str| {
        let mark = if path.contains('?') { '&' } else { '?' };
        format!("{path}{mark}ns=other.example")
    };
    let requests = |at: &dyn Fn(&str) -> String| {
        [
            post(&at(BUNDLE), &fresh),
            post(&at(BUNDLE), &part),
            post(&at(BUNDLE), &fresh).header("if-none-match", etag),
            Request::get(at(&file)),
            Request::head(at(&file)),
            post(&at(TRACE), &trace),
        ]
    };
    for request in requests(&|path| path.to_owned()) {
        let refused = fixture.send(request.clone()).await;
        assert_eq!(refused.status, 401, "{request:.200?} {refused:.300?}");
        let allowed = fixture.send(as_ann(request.clone())).await;
        assert!(allowed.status < 400, "{request:.200?} {allowed:.300?}");
    }
    // The other registry admits all clients and claims to have the image. pierhead serves no cached
    // content to clients of this registry.
    for request in requests(&at_other) {
        for request in [request.clone(), as_ann(request)] {
            let refused = fixture.send(request.clone()).await;
            assert!(refused.status >= 400, "{request:.200?} {refused:.300?}");
            assert!(refused.header("etag").is_none() && refused.body.len() < 1000);
        }
    }
    // Images of one registry must not be base images for a bundle of another registry.
    let path = at_other(BUNDLE);
    let own_digest = own.image.root.to_string();
    let fresh_own = until_ready(&fixture, post(&path, &json!({"want": own_digest}))).await;
    assert_eq!(fresh_own.status, 200);
    let (_, own_toc, _) = received(&fresh_own.body, None);
    let theirs = json!({"want": own_digest, "base_images": [digest]});
    let ours = json!({"want": digest, "base_images": [own_digest]});
    for (request, unknown, toc, whole) in [
        (post(&path, &theirs), &digest, &own_toc, &fresh_own),
        (as_ann(post(&path, &theirs)), &digest, &own_toc, &fresh_own),
        (as_ann(post(BUNDLE, &ours)), &own_digest, &secret_toc, &sent),
    ] {
        let response = until_ready(&fixture, request).await;
        assert_eq!(response.status, 200, "{response:.300?}");
        assert_eq!(
            response.header("pierhead-unknown-base-images"),
            Some(&**unknown)
        );
        let (header, _, contents) = received(&response.body, None);
        assert!(header.base_images.is_empty() && is_complete(toc, &contents));
        assert!(
            response.body == whole.body,
            "the bundle without base images"
        );
    }
}

#[tokio::test]
async fn an_image_of_two_registries_is_bundled_for_each_after_a_pull_from_it() {
    let other = FakeRegistry::builder().start().await;
    let fixture = with_pass_through(&other).await;
    let image = tree(17);
    fixture.upstream.push("app", "1", &image.image);
    other.push("app", "1", &image.image);
    let query = json!({"want": image.image.root.to_string()});
    let sent = until_ready(&fixture, as_ann(post(BUNDLE, &query))).await;
    assert_eq!(sent.status, 200);
    let path = format!("{BUNDLE}?ns=other.example");
    let before = fixture.send(post(&path, &query)).await;
    assert!(before.status >= 400, "{before:.300?}");
    for blob in &image.image.blobs {
        let path = format!("/v2/app/blobs/{}?ns=other.example", blob.digest);
        assert_eq!(fixture.get(&path).await.status, 200);
    }
    let after = until_ready(&fixture, post(&path, &query)).await;
    assert!(after.status == 200 && after.body == sent.body);
}
