//! Runs Docker credential helpers: `docker-credential-<name> get` prints the stored credentials of
//! a registry.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use pierhead_oci::Registry;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use zeroize::Zeroizing;

use crate::auth::credentials::{Credentials, is_helper_name};

/// Time limit of one run of a credential helper. Some helpers first log in over the network, which
/// takes time.
pub(crate) const HELPER_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum length of a credential helper's output in bytes. Longer output is an error.
const MAX_OUTPUT: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperOutput {
    username: String,
    secret: Zeroizing<String>,
}

/// Runs a helper to get the credentials of a registry. If the future is dropped, the process of the
/// helper is killed.
///
/// # Errors
/// The reason of the failure as text. The text never contains the output of the helper, because
/// this output could be the secret.
pub(crate) async fn ask(
    name: &str,
    folders: &[PathBuf],
    registry: &Registry,
    timeout: Duration,
) -> Result<Credentials, String> {
    let program = format!("docker-credential-{name}");
    if !is_helper_name(name) {
        return Err(format!("{program:?} is not a plain file name"));
    }
    let path = folders
        .iter()
        .map(|folder| folder.join(&program))
        .find(|path| path.is_file());
    let path = match path {
        Some(path) => path,
        None if folders.is_empty() => PathBuf::from(&program),
        None => return Err(format!("{program} is in none of the configured folders")),
    };
    match tokio::time::timeout(timeout, run(path, registry)).await {
        Ok(Ok(credentials)) => Ok(credentials),
        Ok(Err(reason)) => Err(format!("{program} {reason}")),
        Err(_) => Err(format!("{program} printed nothing within {timeout:?}")),
    }
}

async fn run(path: PathBuf, registry: &Registry) -> Result<Credentials, String> {
    let mut child = Command::new(path)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("cannot be run: {e}"))?;
    let broken = |e: std::io::Error| format!("broke off: {e}");
    if let Some(mut stdin) = child.stdin.take() {
        // A helper may close its standard input without reading it, so an error of this write is
        // ignored. The output of the helper decides.
        let _ = stdin.write_all(server_of(registry).as_bytes()).await;
    }
    let mut output = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT));
    if let Some(stdout) = child.stdout.take() {
        let limit = u64::try_from(MAX_OUTPUT).unwrap_or(u64::MAX);
        stdout
            .take(limit)
            .read_to_end(&mut output)
            .await
            .map_err(broken)?;
    }
    let status = child.wait().await.map_err(broken)?;
    if !status.success() {
        return Err(format!("has no credentials for {registry} ({status})"));
    }
    let output: HelperOutput = serde_json::from_slice(&output)
        .map_err(|_| "printed no JSON with Username and Secret".to_owned())?;
    // In the protocol of helpers, this user name marks the secret as an identity token.
    Ok(if output.username == "<token>" {
        Credentials::Identity(output.secret)
    } else {
        Credentials::Basic {
            user: output.username,
            password: output.secret,
        }
    })
}

/// Returns the key under which `docker login` stores the credentials of a registry.
fn server_of(registry: &Registry) -> String {
    if registry.is_docker_hub() {
        "https://index.docker.io/v1/".to_owned()
    } else {
        registry.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder(script: &str) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docker-credential-fake");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let folders = vec![folder.path().to_owned()];
        (folder, folders)
    }

    async fn login(script: &str, registry: &str, timeout: Duration) -> Result<Credentials, String> {
        let (_folder, folders) = folder(script);
        ask("fake", &folders, &registry.parse().unwrap(), timeout).await
    }

    /// All cases are in one test, so that no script is open for writing while another script
    /// starts. A child process that starts at that moment would inherit the open file, and the
    /// kernel refuses to run a file that is open for writing (ETXTBSY).
    #[tokio::test]
    async fn a_helper_runs_by_the_protocol_and_its_failures_are_named() {
        let echo = r#"read -r server; [ "$1" = get ] && printf '{"ServerURL":"x","Username":"me","Secret":"%s"}' "$server""#;
        let long = Duration::from_secs(60);
        for (registry, expected) in [
            ("quay.io:8443", "quay.io:8443"),
            ("docker.io", "https://index.docker.io/v1/"),
        ] {
            match login(echo, registry, long).await.unwrap() {
                Credentials::Basic { user, password } => {
                    assert_eq!((&*user, &**password), ("me", expected))
                }
                _ => panic!("not a password"),
            }
        }
        let token = r#"echo '{"Username":"<token>","Secret":"t"}'"#;
        assert!(
            matches!(login(token, "quay.io", long).await, Ok(Credentials::Identity(t)) if *t == "t")
        );

        let refused = login("echo s3cret; exit 1", "quay.io", long)
            .await
            .unwrap_err();
        assert!(
            refused.contains("has no credentials for quay.io") && !refused.contains("s3cret"),
            "{refused}"
        );
        let garbage = login("echo s3cret", "quay.io", long).await.unwrap_err();
        assert!(
            garbage.contains("no JSON") && !garbage.contains("s3cret"),
            "{garbage}"
        );
        let endless = login("exec yes", "quay.io", long).await.unwrap_err();
        assert!(
            endless.contains("no credentials") || endless.contains("no JSON"),
            "{endless}"
        );
        let silent = login("exec sleep 600", "quay.io", Duration::from_millis(50))
            .await
            .unwrap_err();
        assert!(silent.contains("printed nothing"), "{silent}");
        let registry = "quay.io".parse().unwrap();
        assert!(
            ask("../fake", &[], &registry, long)
                .await
                .unwrap_err()
                .contains("plain file name")
        );
        let (_folder, folders) = folder("");
        assert!(
            ask("absent", &folders, &registry, long)
                .await
                .unwrap_err()
                .contains("none of")
        );
    }
}
