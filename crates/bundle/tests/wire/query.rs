//! Tests of the JSON documents of the bundle endpoints: documents of newer and older versions are
//! understood, and documents beyond the limits are refused.

use pierhead_bundle::api::{
    BundleQuery, MAX_BASE_IMAGES, MAX_DOCUMENT, MAX_SHARES, MAX_TRACE, OrderSource, Part, Progress,
    Share, Stage, StartOrder, Trace, TraceReport,
};
use proptest::prelude::*;

use super::bundles::digest;

/// Generates requests that the server accepts.
fn query() -> impl Strategy<Value = BundleQuery> {
    let images = || proptest::collection::vec((0..=u8::MAX).prop_map(digest), 0..10);
    let part = (".{0,20}", any::<u32>(), any::<Option<u32>>());
    (
        (".{0,40}", proptest::option::of(".{0,20}")),
        images(),
        images(),
        any::<[bool; 3]>(),
        proptest::option::of(part),
        proptest::option::of((0..MAX_SHARES).prop_flat_map(|of| (0..=of, Just(of + 1)))),
    )
        .prop_map(
            |((want, platform), base_images, base_images_with_layers, flags, part, share)| {
                let [layers, pieces, start_order] = flags;
                let part = part.map(|(etag, first, end)| Part { etag, first, end });
                BundleQuery {
                    want,
                    platform,
                    base_images,
                    base_images_with_layers,
                    layers,
                    // The request has no part if it has a share, since the server refuses a request
                    // with a share and a part.
                    share: share
                        .filter(|_| part.is_none())
                        .map(|(nth, of)| Share(nth, of)),
                    part,
                    pieces,
                    start_order,
                }
            },
        )
}

proptest! {
    #[test]
    fn a_valid_request_survives_json(query in query()) {
        let json = serde_json::to_vec(&query).unwrap();
        prop_assert_eq!(BundleQuery::parse(&json).unwrap(), query);
    }

    #[test]
    fn any_text_is_read_without_a_panic(text in ".{0,300}") {
        let _ = BundleQuery::parse(text.as_bytes());
        let _ = Trace::parse(text.as_bytes());
    }

    #[test]
    fn shares_cover_all_bytes_once(bytes in any::<u64>(), of in 1..=MAX_SHARES) {
        let mut next = 0;
        let mut longest = 0;
        let mut shortest = u64::MAX;
        for nth in 0..of {
            let share = Share(nth, of).of(bytes);
            prop_assert_eq!(share.start, next);
            let len = share.end - share.start;
            (longest, shortest) = (longest.max(len), shortest.min(len));
            next = share.end;
        }
        prop_assert_eq!(next, bytes);
        prop_assert!(longest - shortest <= 1, "{} and {}", longest, shortest);
    }
}

#[test]
fn fields_of_a_newer_version_are_ignored() {
    let json = br#"{"want":"7","accept":{"versions":[1,2]},"layers":true}"#;
    let query = BundleQuery::parse(json).unwrap();
    assert_eq!(query.want, "7");
    assert!(query.layers);
    let report: TraceReport = serde_json::from_str(r#"{"matched":3,"new":[]}"#).unwrap();
    assert_eq!((report.matched, report.clients), (3, 0), "an older server");
}

#[test]
fn the_number_of_base_images_is_bounded() {
    let query = |all, with_layers| BundleQuery {
        want: "7".into(),
        base_images: vec![digest(1); all],
        base_images_with_layers: vec![digest(1); with_layers],
        ..BundleQuery::default()
    };
    let accepted = |query| BundleQuery::parse(&serde_json::to_vec(&query).unwrap()).is_ok();
    let most = MAX_BASE_IMAGES;
    assert!(accepted(query(most, most)));
    assert!(!accepted(query(most + 1, 0)));
    assert!(!accepted(query(0, most + 1)));
}

#[test]
fn a_document_of_the_maximum_length_is_accepted() {
    let with_padding = |len: usize| {
        let json = r#"{"want":"7"}"#;
        [json, &" ".repeat(len - json.len())].concat()
    };
    assert!(BundleQuery::parse(with_padding(MAX_DOCUMENT).as_bytes()).is_ok());
    let error = BundleQuery::parse(with_padding(MAX_DOCUMENT + 1).as_bytes()).unwrap_err();
    assert!(
        error.to_string().contains(&MAX_DOCUMENT.to_string()),
        "{error}"
    );
}

#[test]
fn an_error_quotes_at_most_200_characters() {
    let json = format!(
        r#"{{"want":"7","base_images":["{}"]}}"#,
        "x".repeat(100_000)
    );
    let error = BundleQuery::parse(json.as_bytes()).unwrap_err().to_string();
    assert!(error.len() < 300, "{} bytes: {error}", error.len());
}

#[test]
fn a_trace_is_bounded_by_its_files() {
    let trace = |files| Trace {
        image: "7".into(),
        platform: Some("linux/arm64".into()),
        files: vec!["bin/sh".into(); files],
    };
    let parse = |trace: &Trace| Trace::parse(&serde_json::to_vec(trace).unwrap());
    assert_eq!(parse(&trace(MAX_TRACE)).unwrap(), trace(MAX_TRACE));
    let error = parse(&trace(MAX_TRACE + 1)).unwrap_err().to_string();
    assert!(error.contains(&(MAX_TRACE + 1).to_string()), "{error}");
}

/// The JSON form of these documents must not change, since scripts and older workers read it.
#[test]
fn the_json_of_each_document_is_fixed() {
    let order = StartOrder {
        source: OrderSource::Trace {
            image: digest(0),
            clients: Some(2),
        },
        files: vec!["bin/sh".into()],
        applied: true,
        layers: 3,
        layers_waiting: 1,
    };
    let json = serde_json::to_string(&order).unwrap();
    let digest = digest(0).to_string();
    assert_eq!(
        json,
        format!(
            r#"{{"source":{{"kind":"trace","image":"{digest}","clients":2}},"files":["bin/sh"],"applied":true,"layers":3,"layers_waiting":1}}"#
        )
    );
    assert_eq!(serde_json::from_str::<StartOrder>(&json).unwrap(), order);
    let config = serde_json::to_string(&OrderSource::Config).unwrap();
    assert_eq!(config, r#"{"kind":"config"}"#);
    for (stage, name) in [
        (Stage::Wait, "wait"),
        (Stage::Pull, "pull"),
        (Stage::Index, "index"),
    ] {
        let progress = Progress {
            stage,
            done: 1,
            total: 2,
        };
        let json = serde_json::to_string(&progress).unwrap();
        assert_eq!(json, format!(r#"{{"stage":"{name}","done":1,"total":2}}"#));
    }
}
