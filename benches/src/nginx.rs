//! Configures an nginx that serves files by sendfile, as the upper limit for comparisons.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::tls::Tls;

/// The command for an nginx on a loopback port that serves the files below `root`. nginx keeps its
/// own files (configuration, log, PID) in `folder`.
pub(crate) fn command(
    program: &Path,
    folder: &Path,
    root: &Path,
    port: u16,
    tls: Option<&Tls>,
) -> Result<Command> {
    let (at, root) = (folder.display(), root.display());
    let secure = tls.map(|tls| {
        let (cert, key) = (tls.certificate.display(), tls.key.display());
        format!("ssl_certificate {cert}; ssl_certificate_key {key};")
    });
    let ssl = if tls.is_some() { " ssl" } else { "" };
    let secure = secure.unwrap_or_default();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}/{name};"))
        .concat();
    let config = folder.join("nginx.conf");
    fs::write(
        &config,
        format!(
            "daemon off; user root; worker_processes 2; pid {at}/pid; error_log {at}/log;\nevents {{ worker_connections 4096; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; {temporary} open_file_cache max=100; keepalive_requests 10000000;\n\
             default_type application/octet-stream; server {{ listen 127.0.0.1:{port}{ssl} backlog=4096; {secure} root {root}; }} }}\n"
        ),
    )?;
    let mut command = Command::new(program);
    command.arg("-c").arg(config);
    command.args(["-p", &at.to_string(), "-e", &format!("{at}/log")]);
    Ok(command)
}
