//! Finds the credentials with which `pierhead pull`, `trace`, `inspect` and `diff` log in to
//! pierhead: from the command line, else from Docker's config.json.

use std::io::{self, BufRead as _};
use std::net::IpAddr;
use std::path::Path;

use pierhead_oci::Registry;
use pierhead_remote::{Credentials, basic_header};
use pierhead_worker::{Authorization, Url};
use zeroize::Zeroizing;

use super::args::LoginArgs;
use crate::config::files;

/// Returns the value of the `Authorization` header for a server, or `None` without credentials.
/// `default_config` is the path of Docker's config.json without the flag `--docker-config`.
///
/// # Errors
/// A message for the user: a file is invalid, or the password would cross the network without TLS.
pub(super) fn login(
    args: &LoginArgs,
    url: &Url,
    default_config: Option<&Path>,
) -> Result<Option<Authorization>, String> {
    if let (Some(user), Some(file)) = (&args.user, &args.password_file) {
        if !is_safe(url) {
            return Err(format!(
                "pierhead does not send a password to {url} without TLS: use https://, with --ca for a private CA"
            ));
        }
        return Ok(Some(basic_header(user, &password(file)?)));
    }
    let named = args.docker_config.as_deref();
    let Some(path) = named.or(default_config) else {
        return Ok(None);
    };
    // The default config.json need not exist, and need not have credentials for this server.
    if named.is_none() && (!path.exists() || !is_safe(url)) {
        return Ok(None);
    }
    let Ok(registry) = url.authority().parse::<Registry>() else {
        return Ok(None);
    };
    match files::docker_config(path)?.remove(&registry) {
        Some(Credentials::Basic { user, password }) if is_safe(url) => {
            Ok(Some(basic_header(&user, &password)))
        }
        Some(Credentials::Basic { .. }) => Err(format!(
            "pierhead does not send the credentials of {} to {url} without TLS: use https://",
            path.display()
        )),
        // Unusable credentials in the default file are ignored; unusable credentials in the file of
        // --docker-config are an error.
        Some(_) if named.is_some() => Err(format!(
            "the credentials of {registry} in {} are a token or come from a credential helper: use --user and --password-file",
            path.display()
        )),
        _ => Ok(None),
    }
}

/// Reads the password in the first line of a file, or of standard input for `-`.
fn password(file: &Path) -> Result<Zeroizing<String>, String> {
    if file != Path::new("-") {
        return Ok(files::first_line(file)?.reveal());
    }
    let mut line = Zeroizing::new(String::new());
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| format!("cannot read the password from standard input: {error}"))?;
    let password = Zeroizing::new(line.trim_end_matches(['\r', '\n']).to_owned());
    match password.is_empty() {
        true => {
            Err("the first line of standard input is empty: write the password there".to_owned())
        }
        false => Ok(password),
    }
}

/// Whether a password may be sent to this URL: the connection uses TLS, or stays on this host.
fn is_safe(url: &Url) -> bool {
    let address = url.host.parse::<IpAddr>();
    let local = address.map_or(url.host == "localhost", |it| {
        it.to_canonical().is_loopback()
    });
    url.tls || local
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_FLAGS: LoginArgs = LoginArgs {
        ca: None,
        cert: None,
        key: None,
        user: None,
        password_file: None,
        docker_config: None,
    };

    #[test]
    fn unusable_credentials_of_the_default_file_are_ignored_and_of_a_named_file_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.json");
        let url = |text: &str| Url::parse(text).expect("an address");
        let default = |url: &Url| login(&NO_FLAGS, url, Some(&file)).map(|it| it.is_some());
        let named = |url: &Url| {
            let args = LoginArgs {
                docker_config: Some(file.clone()),
                ..NO_FLAGS
            };
            login(&args, url, None).map(|it| it.is_some())
        };
        let server = url("https://a.example");
        assert_eq!(
            default(&server),
            Ok(false),
            "the default file may be missing"
        );
        let error = named(&server).expect_err("the named file must exist");
        assert!(error.contains("config.json"), "{error}");
        for (text, server, by_default, refusal) in [
            // The file has credentials only for another server than `server`.
            (
                r#"{"auths":{"b.example":{"auth":"aHViOnA6dw=="}}}"#,
                "https://a.example",
                false,
                None,
            ),
            ("{}", "https://a.example", false, None),
            (
                r#"{"credHelpers":{"a.example":"pass"}}"#,
                "https://a.example",
                false,
                Some("use --user and --password-file"),
            ),
            (
                r#"{"auths":{"a.example":{"identitytoken":"t"}}}"#,
                "https://a.example",
                false,
                Some("are a token or come from a credential helper"),
            ),
            (
                r#"{"auths":{"a.example":{"auth":"aHViOnA6dw=="}}}"#,
                "http://a.example",
                false,
                Some("without TLS: use https://"),
            ),
        ] {
            std::fs::write(&file, text).expect("written");
            let server = url(server);
            assert_eq!(default(&server), Ok(by_default), "{text}");
            match (named(&server), refusal) {
                (Ok(found), None) => assert!(!found, "{text}"),
                (Err(error), Some(part)) => assert!(error.contains(part), "{text}: {error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        std::fs::write(&file, "{").expect("written");
        assert!(default(&server).is_err(), "an invalid file is reported");
    }

    #[test]
    fn an_empty_password_file_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        let args = LoginArgs {
            user: Some("hub".to_owned()),
            password_file: Some(file.clone()),
            ..NO_FLAGS
        };
        let url = Url::parse("https://a.example").expect("an address");
        let error = || login(&args, &url, None).expect_err("no password");
        assert!(error().contains("cannot read"), "{}", error());
        std::fs::write(&file, "\n").expect("written");
        assert!(error().contains("is empty"), "{}", error());
    }

    #[test]
    fn a_password_is_safe_with_tls_or_on_this_host() {
        for (url, expected) in [
            ("https://a.example", true),
            ("http://a.example", false),
            ("http://10.0.0.1:5000", false),
            ("http://localhost:5000", true),
            ("http://127.0.0.1:5000", true),
            ("http://127.9.9.9", true),
            ("http://[::1]:5000", true),
            ("http://[::ffff:127.0.0.1]:5000", true),
            ("http://localhost.example", false),
        ] {
            assert_eq!(is_safe(&Url::parse(url).expect(url)), expected, "{url}");
        }
    }

    #[test]
    fn credentials_are_found_and_never_sent_without_tls() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config.json");
        // `aHViOnA6dw==` is `hub:p:w` in Base64.
        let text = r#"{"auths":{"127.0.0.1:5000":{"auth":"aHViOnA6dw=="},"far.example":{"auth":"aHViOnA6dw=="}}}"#;
        std::fs::write(&config, text).expect("written");
        let args = LoginArgs {
            ca: None,
            cert: None,
            key: None,
            user: None,
            password_file: None,
            docker_config: Some(config.clone()),
        };
        let header = |args: &LoginArgs, url: &str| {
            let url = Url::parse(url).expect("an address");
            let found = login(args, &url, None)?;
            Ok::<_, String>(found.map(|it| it.to_string()))
        };
        let basic = Ok(Some("Basic aHViOnA6dw==".to_owned()));
        assert_eq!(header(&args, "http://127.0.0.1:5000"), basic);
        assert_eq!(header(&args, "https://far.example"), basic);
        assert_eq!(header(&args, "https://other.example"), Ok(None));
        let refused = header(&args, "http://far.example").expect_err("no TLS");
        assert!(refused.contains("without TLS"), "{refused}");

        let file = folder.path().join("password");
        std::fs::write(&file, "p:w\nmore\n").expect("written");
        let args = LoginArgs {
            user: Some("hub".to_owned()),
            password_file: Some(file),
            docker_config: None,
            ca: None,
            cert: None,
            key: None,
        };
        assert_eq!(header(&args, "https://other.example"), basic);
        assert!(header(&args, "http://other.example").is_err());
    }
}
