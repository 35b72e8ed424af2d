//! Blobs: cut, stalled, lied about.

use super::*;

#[tokio::test]
async fn a_whole_one_takes_one_request_that_asks_for_no_encoding() {
    let pair = Pair::start().await;
    pair.pulls_in(1).await;
    let request = &pair.upstream.requests()[0];
    assert_eq!(request.header("accept-encoding"), Some("identity"));
    let stream = pair
        .client
        .blob(&name(), &repository(), &pair.layer(), 0)
        .await
        .expect("a stream");
    assert_eq!(stream.size(), Some(SIZE as u64));
}

#[tokio::test]
async fn from_an_offset() {
    let pair = Pair::start().await;
    pair.pull(1000).await.1.expect("the rest");
    assert_eq!(
        pair.upstream.requests()[0].header("range"),
        Some("bytes=1000-")
    );
    let stream = pair
        .client
        .blob(&name(), &repository(), &pair.layer(), 1000)
        .await
        .expect("a stream");
    assert_eq!((stream.offset(), stream.size()), (1000, Some(SIZE as u64)));
}

#[tokio::test]
async fn one_that_breaks_off_is_resumed_where_it_broke() {
    for fault in [Fault::CutBody(70_000), Fault::HangBody(70_000)] {
        let pair = Pair::start().await;
        pair.upstream.inject(fault.on_blobs().times(1));
        pair.pulls_in(2).await;
        assert_eq!(
            pair.upstream.requests()[1].header("range"),
            Some("bytes=70000-")
        );
    }
    let pair = Pair::start().await;
    // What a reset destroys is asked for again, so where it resumes is not known.
    pair.upstream
        .inject(Fault::ResetBody(70_000).on_blobs().times(1));
    pair.pulls_in(2).await;
}

#[tokio::test]
async fn one_that_breaks_off_again_and_again_but_makes_way_arrives() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::CutBody(40_000).on_blobs());
    pair.pulls_in(8).await;
}

#[tokio::test]
async fn one_that_never_makes_way_is_given_up() {
    let faults = [
        Fault::CutBody(0),
        Fault::Close,
        Fault::Reset,
        Fault::Garbage,
        Fault::HangHead,
        Fault::HangBody(0),
    ];
    all(faults, async |fault| {
        let pair = Pair::start().await;
        pair.upstream.inject(fault.on_blobs());
        let (received, ended) = pair.pull(0).await;
        assert!(ended.expect_err("an error").is_retryable());
        assert!(received.is_empty());
        assert!(
            pair.upstream.gets_of(&pair.layer()) < 20,
            "retries have a budget"
        );
    })
    .await;
}

/// Nobody waits for one as long as for many that fail at once: its clients have no time limit of their own.
#[tokio::test]
async fn one_that_stands_still_is_tried_once_more() {
    for hang in [0, 100] {
        let pair = Pair::start().await;
        pair.upstream.inject(Fault::HangBody(hang).on_blobs());
        pair.pull(0).await.1.expect_err("it stands still");
        assert_eq!(pair.upstream.gets_of(&pair.layer()), 2);
    }
}

/// Long before the stall time is over, as long as it may get better elsewhere.
#[tokio::test]
async fn silence_is_not_sat_out_while_there_is_a_try_left() {
    let patient = |config: &mut Config, _: &mut Upstream| config.stall_timeout = SOON;
    let pair = Pair::with(FakeRegistry::builder(), patient).await;
    pair.upstream
        .inject(Fault::HangBody(100_000).on_blobs().times(1));
    pair.pulls_in(2).await;
}

/// A byte now and then is no progress: it would hold a place among the fetches for ever.
#[tokio::test]
async fn a_drip_is_a_stall() {
    let drip = |config: &mut Config, _: &mut Upstream| {
        config.stall_timeout = Duration::from_millis(100);
    };
    let pair = Pair::with(FakeRegistry::builder(), drip).await;
    pair.upstream.inject(Fault::Slow(1000).on_blobs());
    let (received, ended) = pair.pull(0).await;
    assert!(matches!(ended, Err(Error::Transport { .. })), "{ended:?}");
    assert!(!received.is_empty(), "it did drip");
}

#[tokio::test]
async fn without_a_length_it_still_ends_where_it_ends() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::Chunked.on_blobs());
    pair.pulls_in(1).await;
    pair.upstream
        .inject(Fault::CutBody(1000).on_blobs().times(1));
    pair.pulls_in(3).await;
}

#[tokio::test]
async fn a_promise_of_more_than_comes_is_no_clean_end() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::LengthTooLong(5).on_blobs());
    let mut stream = pair
        .client
        .blob(&name(), &repository(), &pair.layer(), 0)
        .await
        .expect("a stream");
    let failed = soon(async {
        loop {
            match stream.next().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => break true,
                None => break false,
            }
        }
    });
    assert!(failed.await, "5 bytes were never there");
}

/// The resumed part must not be put at the wrong place, whatever the upstream makes of a `Range`.
#[tokio::test]
async fn a_resumed_part_is_checked_for_where_it_lies() {
    // As long as the right one, and one byte off.
    let shifted = "bytes 69999-299998/300000".to_owned();
    for (fault, passes) in [
        (Fault::Header("content-range", shifted), false),
        (Fault::IgnoreRange, true),
        (Fault::RefuseRange, true),
        (Fault::WrongContentRange, false),
        (Fault::WithoutHeader("content-range"), false),
    ] {
        let pair = Pair::start().await;
        pair.upstream
            .inject(Fault::CutBody(70_000).on_blobs().times(1));
        pair.upstream.inject(fault.on_blobs().skip(1));
        // `pull` checks every byte.
        let ended = pair.pull(0).await.1;
        assert_eq!(ended.is_ok(), passes, "{ended:?}");
        assert!(passes || matches!(ended, Err(Error::Protocol { .. })));
    }
}

/// A `Content-Length` of the resumed part that contradicts the first is another blob.
#[tokio::test]
async fn a_blob_that_changes_its_size_between_the_parts_does_not_end_cleanly() {
    for fault in [Fault::Pad(10), Fault::Truncate(200_000)] {
        let pair = Pair::start().await;
        pair.upstream
            .inject(Fault::CutBody(70_000).on_blobs().times(1));
        pair.upstream.inject(fault.on_blobs().skip(1));
        let mut stream = pair
            .client
            .blob(&name(), &repository(), &pair.layer(), 0)
            .await
            .expect("a stream");
        let mut hasher = Hasher::new(pair.layer().algorithm());
        let failed = soon(async {
            loop {
                match stream.next().await {
                    Some(Ok(bytes)) => hasher.update(&bytes),
                    Some(Err(_)) => break true,
                    None => break false,
                }
            }
        });
        assert!(failed.await || hasher.finish() == pair.layer());
    }
}

#[tokio::test]
async fn passing_failures_are_retried() {
    for fault in [
        Fault::Status(500),
        Fault::Status(503),
        Fault::Close,
        Fault::Reset,
        Fault::Garbage,
    ] {
        let pair = Pair::start().await;
        pair.upstream.inject(fault.on_blobs().times(1));
        pair.pulls_in(2).await;
    }
}

#[tokio::test]
async fn an_absent_one_is_not_asked_for_twice() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::Status(404).on_blobs());
    let ended = pair.pull(0).await.1;
    assert!(matches!(ended, Err(Error::NotFound { .. })), "{ended:?}");
    assert_eq!(pair.upstream.gets_of(&pair.layer()), 1);
}

/// Bounds the rate from above only: a slow machine is no error.
#[tokio::test]
async fn bandwidth_is_capped_over_all_fetches() {
    let pair = Pair::with(FakeRegistry::builder(), |config, _| {
        config.bandwidth = Some(1_000_000)
    })
    .await;
    let began = std::time::Instant::now();
    let pull = async || pair.pull(0).await.1.expect("the layer");
    tokio::join!(pull(), pull(), pull());
    // 0.9 s at this rate; a third of it may leave as a first burst.
    assert!(
        began.elapsed() > Duration::from_millis(600),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn the_size_is_what_a_head_says() {
    let pair = Pair::start().await;
    let size = async || soon(pair.client.blob_size(&name(), &repository(), &pair.layer())).await;
    assert_eq!(size().await.expect("an answer"), Some(SIZE as u64));
    pair.upstream.inject(Fault::Chunked.on_blobs());
    assert_eq!(size().await.expect("an answer"), None);
    pair.upstream.inject(Fault::Status(404).on_blobs());
    assert!(matches!(size().await, Err(Error::NotFound { .. })));
    assert_eq!(pair.upstream.gets_of(&pair.layer()), 0);
}

/// Faster than a stall, and still too slow: interrupted, tried once more, then failed.
#[tokio::test]
async fn a_blob_that_is_too_slow_fails() {
    let demanding = |config: &mut Config, _: &mut Upstream| {
        config.stall_timeout = Duration::from_millis(400);
        config.minimum_rate = 1_000_000;
    };
    let pair = Pair::with(FakeRegistry::builder(), demanding).await;
    let slow = pair.upstream.inject(Fault::Slow(100_000).on_blobs());
    let (received, ended) = pair.pull(0).await;
    let message = ended.expect_err("too slow").to_string();
    assert!(
        message.contains("the minimum is 1000000 a second"),
        "{message}"
    );
    assert!(!received.is_empty() && pair.upstream.gets_of(&pair.layer()) == 2);
    slow.remove();
    pair.pull(0).await.1.expect("the layer");
    let lenient = Pair::with(FakeRegistry::builder(), |config, upstream| {
        demanding(config, upstream);
        config.minimum_rate = 0;
    });
    let lenient = lenient.await;
    lenient.upstream.inject(Fault::Slow(100_000).on_blobs());
    lenient.pulls_in(1).await;
}
