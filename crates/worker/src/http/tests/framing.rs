//! Property tests of the framing of HTTP response bodies: the client reads any body as the server
//! sent it, and never takes a truncated body for a complete one.

use proptest::collection::vec;
use proptest::prelude::*;

use super::get;

/// Formats a response whose body is sent in chunks of these sizes, with an extension after each
/// size and trailers at the end.
fn chunked(body: &[u8], sizes: &[usize], extension: &str, trailers: usize) -> Vec<u8> {
    let mut wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let mut rest = body;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let size = sizes.next().map_or(rest.len(), |size| *size);
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        wire.extend(format!("{:x}{extension}\r\n", chunk.len()).bytes());
        wire.extend(chunk);
        wire.extend(b"\r\n");
        rest = after;
    }
    wire.extend(format!("0{extension}\r\n").bytes());
    for nth in 0..trailers {
        wire.extend(format!("x-trailer-{nth}: a\r\n").bytes());
    }
    wire.extend(b"\r\n");
    wire
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_chunked_body_is_read_whatever_its_chunks(
        body in vec(any::<u8>(), 0..1000),
        sizes in vec(1..400_usize, 1..8),
        has_extension: bool,
        trailers in 0..4_usize,
    ) {
        let extension = if has_extension { ";name=\"value\"" } else { "" };
        let wire = chunked(&body, &sizes, extension, trailers);
        prop_assert_eq!(get(&wire), Ok((200, body, true)));
    }

    #[test]
    fn a_truncated_body_is_an_error(
        body in vec(any::<u8>(), 1..500),
        sizes in vec(1..200_usize, 1..8),
        is_chunked: bool,
        cut in any::<prop::sample::Index>(),
    ) {
        let wire = if is_chunked { chunked(&body, &sizes, "", 1) } else { with_length(&body) };
        let cut = cut.index(wire.len());
        prop_assert!(get(&wire[..cut]).is_err(), "{} of {} bytes", cut, wire.len());
    }

    #[test]
    fn bytes_after_a_body_are_not_part_of_it(
        body in vec(any::<u8>(), 0..500),
        more in vec(any::<u8>(), 0..20),
        is_chunked: bool,
    ) {
        let wire = if is_chunked { chunked(&body, &[100], "", 0) } else { with_length(&body) };
        let (status, found, _) = super::get_any(&[wire, more].concat()).expect("a body");
        prop_assert_eq!((status, found), (200, body));
    }
}
