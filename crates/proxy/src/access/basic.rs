//! Parses `Authorization: Basic` (RFC 7617) into a user and a password.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use zeroize::Zeroizing;

/// The user and password of a request. The memory of both is zeroed on drop.
pub(crate) struct Basic {
    plain: Zeroizing<String>,
    colon: usize,
}

impl Basic {
    /// Parses an `Authorization` header. `None` for another scheme, invalid base64, invalid UTF-8,
    /// or a text without colon.
    pub(crate) fn parse(header: &HeaderValue) -> Option<Self> {
        let text = std::str::from_utf8(header.as_bytes()).ok()?;
        let (scheme, encoded) = text.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let bytes = Zeroizing::new(STANDARD.decode(encoded.trim()).ok()?);
        let plain = Zeroizing::new(std::str::from_utf8(&bytes).ok()?.to_owned());
        let colon = plain.find(':')?;
        Some(Self { plain, colon })
    }

    pub(crate) fn user(&self) -> &str {
        &self.plain[..self.colon]
    }

    pub(crate) fn password(&self) -> &str {
        &self.plain[self.colon + 1..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_credentials_are_parsed_and_others_are_not() {
        let parse = |text: &str| {
            let basic = Basic::parse(&HeaderValue::from_str(text).unwrap())?;
            Some(format!("{}|{}", basic.user(), basic.password()))
        };
        assert_eq!(parse("Basic dXNlcjpwYXNz").as_deref(), Some("user|pass"));
        assert_eq!(parse("basic  dTpwOnc= ").as_deref(), Some("u|p:w"));
        assert_eq!(parse("Basic Og==").as_deref(), Some("|"));
        for wrong in [
            "Bearer dXNlcjpwYXNz",
            "Basic",
            "Basic dXNlcg==",
            "Basic !",
            "Basic /w==",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
