//! Parses `WWW-Authenticate`: the authentication that a registry demands (RFC 9110, section
//! 11.6.1).

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// Maximum length of a `WWW-Authenticate` header in bytes. Real values have some hundred bytes.
const MAX_LEN: usize = 8 << 10;

/// Maximum number of parameters of all authentication challenges of a response together.
const MAX_PARAMETERS: usize = 64;

/// An authentication scheme that the server accepts, with the parameters of the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    /// The scheme in lower case: `basic`, `bearer`.
    pub(crate) scheme: String,
    /// The parameters in the order of the header: names in lower case, values unescaped.
    parameters: Vec<(String, String)>,
}

impl Challenge {
    /// Returns the value of the first parameter that has this name (in lower case).
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Returns all challenges of a response. After a syntax error, the rest of the header is ignored.
pub(crate) fn of(headers: &HeaderMap) -> Vec<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter().take(8);
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(parse)
        .collect()
}

/// Parses the challenges of one header value. The time is linear in the length of the value.
pub(crate) fn parse(text: &str) -> Vec<Challenge> {
    let mut found: Vec<Challenge> = Vec::new();
    let mut rest = text.get(..text.len().min(MAX_LEN)).unwrap_or_default();
    let mut parameters = 0;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (word, after) = token(rest);
        if word.is_empty() {
            return found;
        }
        let spaced = after.trim_start_matches([' ', '\t']);
        // `name=` is a parameter of the current challenge. Any other word begins a new challenge.
        // The second word of `Negotiate abc==` therefore counts as an unknown scheme, which does no
        // harm.
        match (spaced.strip_prefix('='), found.last_mut()) {
            (Some(value), Some(challenge)) => {
                let Some((value, after)) = parameter_value(value.trim_start_matches([' ', '\t']))
                else {
                    return found;
                };
                parameters += 1;
                if parameters > MAX_PARAMETERS {
                    return found;
                }
                challenge
                    .parameters
                    .push((word.to_ascii_lowercase(), value));
                rest = after;
            }
            (Some(_), None) => return found,
            (None, _) => {
                if found.len() == 8 {
                    return found;
                }
                found.push(Challenge {
                    scheme: word.to_ascii_lowercase(),
                    parameters: Vec::new(),
                });
                rest = after;
                if !rest.is_empty() && !rest.starts_with([' ', '\t', ',']) {
                    return found;
                }
            }
        }
    }
}

/// Splits `text` into its leading token, which may be empty, and the rest.
fn token(text: &str) -> (&str, &str) {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let len = text.bytes().take_while(|b| is_token(*b)).count();
    text.split_at(len)
}

/// Splits `text` into a leading token or quoted string, and the rest. `None` if the closing
/// quotation mark is missing.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        // Some registries do not quote URLs. A value without quotation marks ends at the next comma
        // or space.
        let len = text.find([',', ' ', '\t']).unwrap_or(text.len());
        let (value, after) = text.split_at(len);
        return Some((value.to_owned(), after));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            _ => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn show(text: &str) -> String {
        let mut out = Vec::new();
        for challenge in parse(text) {
            out.push(challenge.scheme);
            out.extend(
                challenge
                    .parameters
                    .into_iter()
                    .map(|(name, value)| format!("{name}={value}")),
            );
        }
        out.join(" | ")
    }

    #[test]
    fn the_challenges_of_real_registries_parse() {
        assert_eq!(
            show(
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/redis:pull""#
            ),
            "bearer | realm=https://auth.docker.io/token | service=registry.docker.io | scope=repository:library/redis:pull"
        );
        assert_eq!(
            show(r#"Basic realm="Registry Realm""#),
            "basic | realm=Registry Realm"
        );
        assert_eq!(show("BASIC"), "basic");
        assert_eq!(
            show("Bearer realm=https://x/y?z,service=q"),
            "bearer | realm=https://x/y?z | service=q"
        );
        assert_eq!(
            show(r#"Negotiate, Basic realm="a, b", charset="UTF-8" , bearer realm = "c""#),
            "negotiate | basic | realm=a, b | charset=UTF-8 | bearer | realm=c"
        );
        assert_eq!(show(r#"Bearer realm="a\"b\\c""#), r#"bearer | realm=a"b\c"#);
    }

    #[test]
    fn a_syntax_error_ends_the_list() {
        assert_eq!(show(""), "");
        assert_eq!(show(r#"realm="x""#), "");
        assert_eq!(show(r#"Bearer realm="never ends"#), "bearer");
        assert_eq!(show(r#"Bearer realm="x\"#), "bearer");
        assert_eq!(show("Bearer\u{e9}realm"), "bearer");
        assert_eq!(
            show(r#"Basic realm="x" Bearer"#),
            "basic | realm=x | bearer"
        );
    }

    #[test]
    fn the_length_and_the_number_of_parameters_are_bounded() {
        let many = format!("Bearer {}", "a=b,".repeat(1000));
        assert_eq!(parse(&many)[0].parameters.len(), MAX_PARAMETERS);
        assert_eq!(parse(&"a,".repeat(1000)).len(), 8);
        let long = format!("Bearer realm=\"{}\"", "x".repeat(MAX_LEN));
        assert_eq!(show(&long), "bearer");
        let cut_in_a_character = format!("{}é", "x".repeat(MAX_LEN - 1));
        assert_eq!(parse(&cut_in_a_character), []);
    }

    proptest! {
        #[test]
        fn the_parser_never_panics_and_reads_its_own_quoting(text in "\\PC{0,64}", realm in "[ -~]{0,40}") {
            parse(&text);
            let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
            let challenges = parse(&format!("Bearer service=s, realm=\"{quoted}\""));
            prop_assert_eq!(challenges[0].get("realm"), Some(realm.as_str()));
        }
    }
}
