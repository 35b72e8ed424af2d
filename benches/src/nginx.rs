//! Configures nginx for comparisons: as a server of files by sendfile, which is the upper limit, and
//! as a cache that downloads slices.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use pierhead_tests::process;

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
    let root = root.display();
    let secure = tls.map(|tls| {
        let (cert, key) = (tls.certificate.display(), tls.key.display());
        format!("ssl_certificate {cert}; ssl_certificate_key {key};")
    });
    let ssl = if tls.is_some() { " ssl" } else { "" };
    let secure = secure.unwrap_or_default();
    let server = format!(
        "open_file_cache max=100; keepalive_requests 10000000;\n\
         server {{ listen 127.0.0.1:{port}{ssl} backlog=4096; {secure} root {root}; }}"
    );
    with_http(program, folder, &server)
}

/// The command for an nginx on a loopback port that caches the server on the port `upstream`, in
/// slices of 1 MiB.
pub(crate) fn slice_cache(
    program: &Path,
    folder: &Path,
    port: u16,
    upstream: u16,
) -> Result<Command> {
    let at = folder.display();
    let server = format!(
        "proxy_cache_path {at}/cache keys_zone=slices:10m max_size=8g;\n\
         server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ slice 1m; proxy_cache slices;\n\
         proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range; proxy_cache_valid 200 206 1h;\n\
         proxy_cache_lock on; proxy_http_version 1.1; proxy_pass http://127.0.0.1:{upstream}; }} }}"
    );
    with_http(program, folder, &server)
}

fn with_http(program: &Path, folder: &Path, server: &str) -> Result<Command> {
    let at = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}/{name};"))
        .concat();
    let config = folder.join("nginx.conf");
    fs::write(
        &config,
        format!(
            "daemon off; user root; worker_processes 2; pid {at}/pid; error_log {at}/log;\nevents {{ worker_connections 4096; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; {temporary}\n\
             default_type application/octet-stream; {server} }}\n"
        ),
    )?;
    let mut command = process::command(program);
    command.arg("-c").arg(config);
    command.args(["-p", &at.to_string(), "-e", &format!("{at}/log")]);
    Ok(command)
}
