//! Tests of blob downloads from a faulty registry: interrupted, stalled, slow, or with a wrong
//! size. Also tests of the bandwidth limit and of requests for sizes.

use super::*;

#[tokio::test]
async fn a_whole_blob_takes_one_request_without_content_encoding() {
    let pair = Pair::start().await;
    pair.assert_pull_in(1).await;
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
async fn a_blob_is_read_from_an_offset() {
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
async fn the_number_of_interim_responses_is_limited() {
    let pair = Pair::start().await;
    let few = pair.upstream.inject(Fault::Interim(16).on_blobs());
    pair.assert_pull_in(1).await;
    few.remove();
    pair.upstream.inject(Fault::Interim(17).on_blobs());
    let error = pair.pull(0).await.1.expect_err("too many");
    let text = error.to_string();
    assert!(text.contains("more than 16 interim responses"), "{text}");
}

#[tokio::test]
async fn an_interrupted_blob_resumes_at_its_position() {
    for fault in [Fault::CutBody(70_000), Fault::HangBody(70_000)] {
        let pair = Pair::start().await;
        pair.upstream.inject(fault.on_blobs().times(1));
        pair.assert_pull_in(2).await;
        assert_eq!(
            pair.upstream.requests()[1].header("range"),
            Some("bytes=70000-")
        );
    }
    let pair = Pair::start().await;
    // A connection reset discards bytes that the kernel has received. Therefore the offset from
    // which the download resumes varies.
    pair.upstream
        .inject(Fault::ResetBody(70_000).on_blobs().times(1));
    pair.assert_pull_in(2).await;
}

#[tokio::test]
async fn a_blob_with_many_interruptions_and_progress_arrives() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::CutBody(40_000).on_blobs());
    pair.assert_pull_in(8).await;
}

#[tokio::test]
async fn a_blob_without_progress_fails() {
    let faults = [
        Fault::CutBody(0),
        Fault::Close,
        Fault::Reset,
        Fault::Garbage,
        Fault::HangHead,
        Fault::HangBody(0),
    ];
    for_each_fault(faults, async |fault| {
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

/// A stalled blob fails after one retry, because clients set no time limit for a response body.
#[tokio::test]
async fn a_stalled_blob_is_retried_once() {
    for hang in [0, 100] {
        let pair = Pair::start().await;
        pair.upstream.inject(Fault::HangBody(hang).on_blobs());
        pair.pull(0).await.1.expect_err("the blob stalls");
        assert_eq!(pair.upstream.gets_of(&pair.layer()), 2);
    }
}

/// While a retry is left, a silent connection is replaced long before the stall timeout.
#[tokio::test]
async fn a_silent_connection_is_replaced_early_while_a_retry_is_left() {
    let patient = |config: &mut Config, _: &mut Upstream| config.upstream_timeout = TEST_TIMEOUT;
    let pair = Pair::with(FakeRegistry::builder(), patient).await;
    pair.upstream
        .inject(Fault::HangBody(100_000).on_blobs().times(1));
    pair.assert_pull_in(2).await;
}

/// If only a few bytes arrive now and then, that counts as a stall. If a trickle of bytes did not
/// count as a stall, the blob could hold its download slot forever.
#[tokio::test]
async fn a_trickle_of_bytes_is_a_stall() {
    let drip = |config: &mut Config, _: &mut Upstream| {
        config.upstream_timeout = Duration::from_millis(100);
    };
    let pair = Pair::with(FakeRegistry::builder(), drip).await;
    pair.upstream.inject(Fault::Slow(1000).on_blobs());
    let (received, ended) = pair.pull(0).await;
    assert!(matches!(ended, Err(Error::Transport { .. })), "{ended:?}");
    assert!(!received.is_empty(), "some bytes arrived");
}

#[tokio::test]
async fn a_blob_without_content_length_ends_with_its_body() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::Chunked.on_blobs());
    pair.assert_pull_in(1).await;
    pair.upstream
        .inject(Fault::CutBody(1000).on_blobs().times(1));
    pair.assert_pull_in(3).await;
}

#[tokio::test]
async fn a_body_shorter_than_its_content_length_is_an_error() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::LengthTooLong(5).on_blobs());
    let mut stream = pair
        .client
        .blob(&name(), &repository(), &pair.layer(), 0)
        .await
        .expect("a stream");
    let failed = within_timeout(async {
        loop {
            match stream.next().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => break true,
                None => break false,
            }
        }
    });
    assert!(failed.await, "5 bytes are missing");
}

/// The bytes of a resumed range must not be used at a wrong offset, whatever the upstream does with
/// the header `Range`.
#[tokio::test]
async fn the_offset_of_a_resumed_range_is_verified() {
    // The range has the right length, but starts at a wrong offset, by one byte.
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
        // The function `pull` compares every byte with the expected content.
        let ended = pair.pull(0).await.1;
        assert_eq!(ended.is_ok(), passes, "{ended:?}");
        assert!(passes || matches!(ended, Err(Error::Protocol { .. })));
    }
}

/// A resumed range with another total size belongs to another blob.
#[tokio::test]
async fn a_blob_whose_size_changes_on_resume_fails() {
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
        let failed = within_timeout(async {
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
async fn transient_failures_are_retried() {
    for fault in [
        Fault::Status(500),
        Fault::Status(503),
        Fault::Close,
        Fault::Reset,
        Fault::Garbage,
    ] {
        let pair = Pair::start().await;
        pair.upstream.inject(fault.on_blobs().times(1));
        pair.assert_pull_in(2).await;
    }
}

#[tokio::test]
async fn a_missing_blob_is_requested_once() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::Status(404).on_blobs());
    let ended = pair.pull(0).await.1;
    assert!(matches!(ended, Err(Error::NotFound { .. })), "{ended:?}");
    assert_eq!(pair.upstream.gets_of(&pair.layer()), 1);
}

/// The test checks only the maximum rate, so that a slow machine does not fail it.
#[tokio::test]
async fn the_bandwidth_of_all_fetches_is_limited() {
    let pair = Pair::with(FakeRegistry::builder(), |config, _| {
        config.upstream_bandwidth = Some(1_000_000)
    })
    .await;
    let began = std::time::Instant::now();
    let pull = async || pair.pull(0).await.1.expect("the layer");
    tokio::join!(pull(), pull(), pull());
    // The blob takes 0.9 s at this rate, of which up to a third may arrive as a burst.
    assert!(
        began.elapsed() > Duration::from_millis(600),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn the_size_is_the_content_length_of_a_head() {
    let pair = Pair::start().await;
    let size =
        async || within_timeout(pair.client.blob_size(&name(), &repository(), &pair.layer())).await;
    assert_eq!(size().await.expect("a response"), Some(SIZE as u64));
    pair.upstream.inject(Fault::Chunked.on_blobs());
    assert_eq!(size().await.expect("a response"), None);
    pair.upstream.inject(Fault::Status(404).on_blobs());
    assert!(matches!(size().await, Err(Error::NotFound { .. })));
    assert_eq!(pair.upstream.gets_of(&pair.layer()), 0);
}

/// The blob is too fast to count as stalled, and slower than the minimum rate. The client makes one
/// retry and then returns an error.
#[tokio::test]
async fn a_blob_below_the_minimum_rate_fails() {
    let demanding = |config: &mut Config, _: &mut Upstream| {
        config.upstream_timeout = Duration::from_millis(400);
        config.minimum_rate = 1_000_000;
    };
    let pair = Pair::with(FakeRegistry::builder(), demanding).await;
    let slow = pair.upstream.inject(Fault::Slow(100_000).on_blobs());
    let (received, ended) = pair.pull(0).await;
    let message = ended.expect_err("too slow").to_string();
    assert!(
        message.contains("the minimum of 1000000 bytes per second"),
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
    lenient.assert_pull_in(1).await;
}
