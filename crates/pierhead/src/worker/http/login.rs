//! As whom the worker asks: what the command line says, else what `docker login` left for that host.

use std::io::{self, BufRead as _};
use std::net::IpAddr;
use std::path::Path;

use pierhead_oci::Registry;
use pierhead_remote::{Credentials, basic_header};
use zeroize::Zeroizing;

use crate::cli::worker::LoginArgs;
use crate::config::files;
use crate::environment::Environment;
use crate::worker::Url;

/// The value of an `Authorization` header, if there is a login for that server.
///
/// # Errors
/// For people: what is wrong with a file, or with sending a password there.
pub(crate) fn login(
    args: &LoginArgs,
    url: &Url,
    environment: &Environment,
) -> Result<Option<Zeroizing<String>>, String> {
    if let (Some(user), Some(file)) = (&args.user, &args.password_file) {
        if !is_safe(url) {
            return Err(format!(
                "a password is not sent to {url} in the clear: name it with https://, and its authority with --ca"
            ));
        }
        return Ok(Some(basic_header(user, &password(file)?)));
    }
    let named = args.docker_config.as_deref();
    let Some(path) = named.or(environment.docker_config.as_deref()) else {
        return Ok(None);
    };
    // What nobody named and is not there, or is not for this server, is no mistake.
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
            "the login in {} is not sent to {url} in the clear: name it with https://",
            path.display()
        )),
        // Only what was named is worth a word.
        Some(_) if named.is_some() => Err(format!(
            "the login of {registry} in {} is kept by a helper or is a token: use --user and --password-file",
            path.display()
        )),
        _ => Ok(None),
    }
}

fn password(file: &Path) -> Result<Zeroizing<String>, String> {
    if file != Path::new("-") {
        return Ok(files::first_line(file)?.reveal());
    }
    let mut line = Zeroizing::new(String::new());
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| format!("cannot read the password from standard input: {error}"))?;
    let password = Zeroizing::new(line.trim_end_matches(['\r', '\n']).to_owned());
    match password.is_empty() {
        true => Err("standard input holds no password in its first line".to_owned()),
        false => Ok(password),
    }
}

/// Encrypted, or it does not leave this machine.
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

    #[test]
    fn a_login_is_found_and_never_sent_in_the_clear() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config.json");
        // hub:p:w
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
        let environment = Environment::read();
        let ask = |args: &LoginArgs, url: &str| {
            let url = Url::parse(url).expect("an address");
            let found = login(args, &url, &environment)?;
            Ok::<_, String>(found.map(|it| it.to_string()))
        };
        let basic = Ok(Some("Basic aHViOnA6dw==".to_owned()));
        assert_eq!(ask(&args, "http://127.0.0.1:5000"), basic);
        assert_eq!(ask(&args, "https://far.example"), basic);
        assert_eq!(ask(&args, "https://other.example"), Ok(None));
        let refused = ask(&args, "http://far.example").expect_err("in the clear");
        assert!(refused.contains("in the clear"), "{refused}");

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
        assert_eq!(ask(&args, "https://other.example"), basic);
        assert!(ask(&args, "http://other.example").is_err());
    }
}
