//! Parses the value of `--admin` of `pierhead cache`, `setup` and similar commands: the address of
//! the daemon's admin listener.

/// Parses `http://HOST:PORT`. The scheme and a final slash are optional.
pub(super) fn parse_admin_url(text: &str) -> Result<http::uri::Authority, String> {
    let bare = text
        .strip_prefix("http://")
        .unwrap_or(text)
        .trim_end_matches('/');
    match bare.parse::<http::uri::Authority>() {
        Ok(authority) if authority.port_u16().is_some() && !bare.contains(['@', '/']) => {
            Ok(authority)
        }
        _ => Err("write http://HOST:PORT, such as http://127.0.0.1:5001".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_url_needs_a_host_and_a_port() {
        for text in [
            "http://10.0.0.1:5001",
            "10.0.0.1:5001",
            "http://10.0.0.1:5001/",
        ] {
            let parsed = parse_admin_url(text).expect(text);
            assert_eq!(parsed.as_str(), "10.0.0.1:5001");
        }
        for text in [
            "",
            "http://10.0.0.1",
            "https://a:1",
            "http://u@a:1",
            "http://a:1/b",
        ] {
            assert!(parse_admin_url(text).is_err(), "{text}");
        }
    }
}
