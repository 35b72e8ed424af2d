//! Tests of digests: known values, input in pieces, texts that are refused, raw bytes, and the text
//! form.

use pierhead_oci::{Algorithm, Digest, Hasher, ParseError};

const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn known_digests_are_computed() {
    assert_eq!(Digest::of(Algorithm::Sha256, b"").to_string(), EMPTY);
    assert_eq!(
        Digest::of(Algorithm::Sha512, b"abc").to_string(),
        "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
         2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
    );
    let mut pieces = Hasher::new(Algorithm::Sha256);
    pieces.update(b"pier");
    pieces.update(b"");
    pieces.update(b"head");
    assert_eq!(pieces.finish(), Digest::of(Algorithm::Sha256, b"pierhead"));
}

#[test]
fn the_digest_does_not_depend_on_the_sizes_of_the_pieces() {
    // The content is longer than one block of the hash function, and no multiple of a block.
    let mut content = b"pierhead ".repeat(9000);
    let mut state = 1_u32;
    content.extend((0..300).map(|_| {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
        state.to_be_bytes()[1]
    }));
    // The known hashes are the output of `sha256sum` and `sha512sum`.
    for (algorithm, known) in [
        (
            Algorithm::Sha256,
            "sha256:1638397674e011864a6deb59a0821c1500721ba821c198f6dbd8f96a04090218",
        ),
        (
            Algorithm::Sha512,
            "sha512:aa05b1c6adc9024124f1d06a69e76f38c0811ddee0f72e6a53b129c1150043146b85672f12bf4c69f4f6364ee35b2374e37bd1cfb882428cba08dc57d26d5840",
        ),
    ] {
        for size in [7, 1000, 65_537, content.len()] {
            let mut hasher = Hasher::new(algorithm);
            content.chunks(size).for_each(|piece| hasher.update(piece));
            assert_eq!(hasher.finish().to_string(), known, "{size}");
        }
    }
}

#[test]
fn texts_that_are_no_digest_are_refused() {
    let hex = &EMPTY["sha256:".len()..];
    for text in [
        "".to_owned(),
        "sha256".to_owned(),
        "sha256:".to_owned(),
        hex.to_owned(),
        format!("sha256:{}", &hex[1..]),
        format!("sha256:{hex}0"),
        format!("sha256:{}", hex.to_uppercase()),
        format!("sha256:{}g", &hex[1..]),
        format!("sha512:{hex}"),
        format!("sha256:{hex}\n"),
        // This hash has 64 bytes, but not 64 characters.
        format!("sha256:é{}", &hex[2..]),
    ] {
        assert_eq!(text.parse::<Digest>(), Err(ParseError::Digest), "{text:?}");
    }
    for text in [
        format!("md5:{hex}"),
        format!("SHA256:{hex}"),
        format!("sha256+b64:{hex}"),
        format!(":{hex}"),
    ] {
        assert_eq!(
            text.parse::<Digest>(),
            Err(ParseError::DigestAlgorithm),
            "{text:?}"
        );
    }
}

#[test]
fn raw_bytes_have_the_length_of_their_algorithm() {
    assert!(Digest::from_bytes(Algorithm::Sha256, &[7; 64]).is_none());
    assert!(Digest::from_bytes(Algorithm::Sha512, &[7; 32]).is_none());
    let short = Digest::from_bytes(Algorithm::Sha256, &[0; 32]);
    let long = Digest::from_bytes(Algorithm::Sha512, &[0; 64]);
    // The stored bytes of both digests are equal. Only the algorithm differs.
    assert!(short.is_some() && long.is_some());
    assert_ne!(short, long);
}

#[test]
fn debug_and_display_are_the_same_text() {
    let digest: Digest = EMPTY.parse().unwrap();
    assert_eq!(format!("{digest:?}"), EMPTY);
    let name: pierhead_oci::Name = "localhost:5000/a".parse().unwrap();
    assert_eq!(format!("{name:?}"), "localhost:5000/a");
}

#[test]
fn a_file_name_is_the_digest_without_a_colon() {
    for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
        let digest = Digest::of(algorithm, b"a");
        let name = digest.file_name();
        assert_eq!(name, digest.to_string().replace(':', "-"));
        assert_eq!(Digest::from_file_name(&name), Ok(digest));
        assert_eq!(Digest::from_hex(algorithm, &digest.hex()), Ok(digest));
        let upper = digest.hex().to_uppercase();
        assert_eq!(Digest::from_hex(algorithm, &upper), Err(ParseError::Digest));
    }
    for name in [EMPTY, "sha256", "", "sha256-", "sha256-00"] {
        assert!(Digest::from_file_name(name).is_err(), "{name}");
    }
    let other = EMPTY.replace("sha256:", "md5-");
    assert_eq!(
        Digest::from_file_name(&other),
        Err(ParseError::DigestAlgorithm)
    );
}
