//! Tests of the error body: its JSON form, and bodies that registries send.

use pierhead_oci::{ErrorBody, ErrorCode};

#[test]
fn codes_are_serialized_as_in_the_specification() {
    let body = ErrorBody::new(ErrorCode::ManifestUnknown, "no \"such\" tag");
    let json = body.to_json();
    assert_eq!(
        String::from_utf8_lossy(&json),
        r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no \"such\" tag"}]}"#
    );
    assert_eq!(ErrorBody::parse(&json), Some(body));
    let limited = ErrorBody::new(ErrorCode::TooManyRequests, "").to_json();
    assert!(String::from_utf8_lossy(&limited).contains("\"TOOMANYREQUESTS\""));
}

#[test]
fn bodies_of_real_registries_are_parsed() {
    let parse = |json: &str| ErrorBody::parse(json.as_bytes()).map(|body| body.errors[0].clone());
    let entry =
        parse(r#"{"errors":[{"code":"DENIED","message":"no","detail":{"a":[1]}}],"more":1}"#)
            .unwrap();
    assert_eq!(
        (entry.code, entry.message.as_str()),
        (ErrorCode::Denied, "no")
    );
    let entry = parse(r#"{"errors":[{"code":"SOMETHING_ELSE","message":null}]}"#).unwrap();
    assert_eq!(
        (entry.code, entry.message.as_str()),
        (ErrorCode::Unknown, "")
    );
    assert_eq!(
        parse(r#"{"errors":[{"code":"UNAUTHORIZED"}]}"#)
            .unwrap()
            .code,
        ErrorCode::Unauthorized
    );
}

#[test]
fn other_bodies_are_not_parsed() {
    for text in [
        "",
        "{}",
        "[]",
        r#"{"errors":[]}"#,
        r#"{"errors":null}"#,
        "<html>",
        r#"{"details":"rate"}"#,
        r#"{"errors":[{}]}"#,
    ] {
        assert_eq!(ErrorBody::parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn messages_are_limited_and_have_no_control_characters() {
    let entry = format!(
        r#"{{"code":"DENIED","message":"\u001b[2J\n{}"}}"#,
        "é".repeat(2000)
    );
    let body = format!(r#"{{"errors":[{}]}}"#, vec![entry; 10].join(","));
    let body = ErrorBody::parse(body.as_bytes()).unwrap();
    assert_eq!(body.errors.len(), 8);
    assert!(
        body.errors
            .iter()
            .all(|e| e.message.starts_with("[2Jé") && e.message.chars().count() == 512)
    );
    let mut padded = br#"{"errors":[{"code":"DENIED"}]}"#.to_vec();
    padded.resize(64 << 10, b' ');
    assert!(ErrorBody::parse(&padded).is_some());
    padded.push(b' ');
    assert_eq!(ErrorBody::parse(&padded), None);
}
