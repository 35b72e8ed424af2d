//! Tests of bounded ranges of a blob from a faulty registry. A range has exactly the requested
//! bytes of the version of the blob that an earlier response stated, or the request fails.

use std::ops::Range;

use pierhead_remote::{BlobVersion, RangeSpec};

use super::*;

const RANGE: Range<u64> = 100_000..250_000;

impl Pair {
    /// Opens the layer, and returns the version that the response stated.
    async fn version(&self) -> BlobVersion {
        let version = self.stream().await.version();
        self.upstream.clear_requests();
        version.expect("a size")
    }

    /// Reads a range of the layer. Returns the bytes that were received, and the result.
    async fn pull_range(
        &self,
        range: Range<u64>,
        version: &BlobVersion,
    ) -> (Vec<u8>, Result<(), Error>) {
        let mut received = Vec::new();
        let (name, repository, layer) = (name(), repository(), self.layer());
        let ended = within_timeout(async {
            let stream = self
                .client
                .blob_range(&name, &repository, &layer, range.clone(), version);
            let mut stream = stream.await?;
            assert_eq!(stream.offset(), range.start);
            while let Some(bytes) = stream.next().await {
                received.extend_from_slice(&bytes?);
            }
            Ok(())
        });
        let ended = ended.await;
        let [start, end] = [range.start, range.end].map(|it| usize::try_from(it).expect("small"));
        let truth = &self.image.blobs[1].bytes[start..end];
        assert!(truth.starts_with(&received), "wrong bytes");
        assert!(ended.is_err() || received.len() == truth.len());
        (received, ended)
    }

    /// Reads a range of the layer of which no version is known. Returns the ended stream and the
    /// received bytes.
    async fn pull_unversioned(&self, range: RangeSpec) -> Result<(BlobStream, Vec<u8>), Error> {
        let (name, repository, layer) = (name(), repository(), self.layer());
        within_timeout(async {
            let stream = self
                .client
                .blob_unversioned_range(&name, &repository, &layer, range);
            let (mut stream, mut received) = (stream.await?, Vec::new());
            while let Some(bytes) = stream.next().await {
                received.extend_from_slice(&bytes?);
            }
            Ok((stream, received))
        })
        .await
    }

    /// Asserts that the client refuses the registry's response to a request for a range of the
    /// layer (`Error::NoRanges`), and sends no second request.
    async fn assert_range_refused(&self, version: &BlobVersion, case: &str) {
        self.upstream.clear_requests();
        let (received, ended) = self.pull_range(RANGE, version).await;
        assert!(
            matches!(ended, Err(Error::NoRanges { .. })),
            "{case}: {ended:?}"
        );
        assert!(received.is_empty(), "{case}");
        assert_eq!(self.upstream.gets_of(&self.layer()), 1, "{case}");
    }
}

#[tokio::test]
async fn a_range_is_requested_with_its_end_and_the_etag_of_the_blob() {
    let pair = Pair::start().await;
    let version = pair.version().await;
    assert_eq!(version.size(), SIZE as u64);
    for (range, header) in [
        (RANGE, "bytes=100000-249999"),
        (0..1, "bytes=0-0"),
        (SIZE as u64 - 1..SIZE as u64, "bytes=299999-299999"),
    ] {
        pair.upstream.clear_requests();
        pair.pull_range(range, &version).await.1.expect("the range");
        let requests = pair.upstream.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].header("range"), Some(header));
        let etag = format!("\"{}\"", pair.layer());
        assert_eq!(requests[0].header("if-range"), Some(&*etag));
    }
}

#[tokio::test]
async fn an_interrupted_range_resumes_within_its_end() {
    let pair = Pair::start().await;
    let version = pair.version().await;
    pair.upstream
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    pair.pull_range(RANGE, &version).await.1.expect("the range");
    let requests = pair.upstream.requests();
    let ranges: Vec<_> = requests.iter().map(|it| it.header("range")).collect();
    let expected = ["bytes=100000-249999", "bytes=170000-249999"].map(Some);
    assert_eq!(ranges, expected);
}

#[tokio::test]
async fn a_response_that_is_not_the_requested_range_is_refused() {
    let content_range = |value: &str| Fault::Header("content-range", value.to_owned());
    for fault in [
        Fault::IgnoreRange,
        Fault::RefuseRange,
        Fault::WrongContentRange,
        Fault::WithoutHeader("content-range"),
        content_range("bytes 100001-250000/300000"),
        content_range("bytes 100000-249998/300000"),
        content_range("bytes 100000-249999/300001"),
        content_range("bytes 100000-249999/*"),
        Fault::Pad(10),
        Fault::Truncate(200_000),
        Fault::LengthTooShort(1),
        Fault::Chunked,
    ] {
        let pair = Pair::start().await;
        let version = pair.version().await;
        pair.upstream.inject(fault.clone().on_blobs());
        pair.assert_range_refused(&version, &format!("{fault:?}"))
            .await;
    }
}

#[tokio::test]
async fn a_range_of_a_changed_blob_is_refused() {
    let pair = Pair::start().await;
    let version = pair.version().await;
    let changed = Fault::Header("etag", "\"changed\"".to_owned());
    pair.upstream.inject(Fault::Corrupt(120_000).on_blobs());
    pair.upstream.inject(changed.on_blobs());
    pair.assert_range_refused(&version, "a 200 with another ETag")
        .await;
    pair.upstream.inject(Fault::IgnoreIfRange.on_blobs());
    pair.assert_range_refused(&version, "a 206 with another ETag")
        .await;
}

#[tokio::test]
async fn a_blob_that_changes_when_a_range_resumes_ends_the_range() {
    let pair = Pair::start().await;
    let version = pair.version().await;
    pair.upstream
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    let changed = Fault::Header("etag", "\"changed\"".to_owned());
    pair.upstream.inject(changed.on_blobs().skip(1));
    let (received, ended) = pair.pull_range(RANGE, &version).await;
    assert!(matches!(ended, Err(Error::NoRanges { .. })), "{ended:?}");
    assert_eq!(received.len(), 70_000);
}

/// Equal weak ETags do not mean equal bytes, so a weak ETag is not sent.
#[tokio::test]
async fn without_a_strong_etag_the_size_identifies_the_blob() {
    let weak = Fault::Header("etag", "W/\"weak\"".to_owned());
    for fault in [Fault::WithoutHeader("etag"), weak] {
        let pair = Pair::start().await;
        pair.upstream.inject(fault.on_blobs());
        let version = pair.version().await;
        pair.pull_range(RANGE, &version).await.1.expect("the range");
        assert_eq!(pair.upstream.requests()[0].header("if-range"), None);
    }
}

#[tokio::test]
async fn a_blob_without_content_length_has_no_version() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::Chunked.on_blobs());
    assert!(pair.stream().await.version().is_none());
}

/// The end of a chunked body may be missing although all bytes have arrived.
#[tokio::test]
async fn a_blob_that_breaks_off_behind_its_last_byte_needs_no_further_request() {
    let pair = Pair::start().await;
    pair.upstream
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    let rest = SIZE as u64 - 70_000;
    pair.upstream.inject(Fault::Chunked.on_blobs().skip(1));
    pair.upstream
        .inject(Fault::CutBody(rest).on_blobs().skip(1));
    let (mut stream, mut received) = (pair.stream().await, 0);
    while let Some(bytes) = within_timeout(stream.next()).await {
        received += bytes.expect("the blob").len();
    }
    assert_eq!(received, SIZE);
    assert_eq!(pair.upstream.gets_of(&pair.layer()), 2);
}

#[tokio::test]
async fn a_range_without_a_version_is_requested_as_the_client_states_it() {
    let all = SIZE as u64;
    let int = |first, last| RangeSpec::Int { first, last };
    for (range, header, expected) in [
        (int(10, Some(19)), "bytes=10-19", 10..20),
        (int(10, None), "bytes=10-", 10..all),
        (int(10, Some(all + 5)), "bytes=10-300005", 10..all),
        (RangeSpec::Suffix(7), "bytes=-7", all - 7..all),
        (RangeSpec::Suffix(all + 7), "bytes=-300007", 0..all),
    ] {
        let pair = Pair::start().await;
        let (stream, received) = pair.pull_unversioned(range).await.expect("the range");
        assert_eq!(stream.offset()..stream.end().expect("a size"), expected);
        assert_eq!(stream.size(), Some(all));
        let [start, end] =
            [expected.start, expected.end].map(|it| usize::try_from(it).expect("small"));
        assert!(
            received == pair.image.blobs[1].bytes[start..end],
            "{header}"
        );
        assert_eq!(pair.upstream.requests()[0].header("range"), Some(header));
    }
}

#[tokio::test]
async fn a_range_without_a_version_resumes_within_the_version_of_its_first_response() {
    let pair = Pair::start().await;
    pair.upstream
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    let range = RangeSpec::Suffix(100_000);
    pair.pull_unversioned(range).await.expect("the range");
    let requests = pair.upstream.requests();
    assert_eq!(requests[1].header("range"), Some("bytes=270000-299999"));
    let etag = format!("\"{}\"", pair.layer());
    assert_eq!(requests[1].header("if-range"), Some(&*etag));
}

#[tokio::test]
async fn an_upstream_without_ranges_sends_the_whole_blob_for_a_range_without_a_version() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::IgnoreRange.on_blobs());
    let pulled = pair.pull_unversioned(RangeSpec::Suffix(10)).await;
    let (stream, received) = pulled.expect("the blob");
    assert_eq!((stream.offset(), stream.is_range()), (0, false));
    assert!(received == pair.image.blobs[1].bytes);
}

#[tokio::test]
async fn a_response_that_is_not_the_range_without_a_version_is_refused() {
    let content_range = |value: &str| Fault::Header("content-range", value.to_owned());
    for fault in [
        Fault::RefuseRange,
        Fault::WrongContentRange,
        Fault::WithoutHeader("content-range"),
        content_range("bytes 100000-249998/300000"),
        content_range("bytes 100000-249999/*"),
        Fault::LengthTooShort(1),
        Fault::Chunked,
    ] {
        let pair = Pair::start().await;
        pair.upstream.inject(fault.clone().on_blobs());
        let range = RangeSpec::Int {
            first: RANGE.start,
            last: Some(RANGE.end - 1),
        };
        let refused = pair.pull_unversioned(range).await.err();
        let is_refused = matches!(refused, Some(Error::NoRanges { .. }));
        assert!(is_refused, "{fault:?}: {refused:?}");
    }
}
