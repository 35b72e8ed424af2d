//! Creates the response of the fake registry to a request: the response of a correct registry, or
//! the response of an injected fault.

use pierhead_oci::{Digest, MediaType};
use serde_json::json;

use super::auth;
use super::content::Content;
use super::fault::Fault;
use super::log::{RecordedRequest, Role};
use super::reply::{Framing, Reply};
use super::shared::Shared;

/// Creates the response to an authorized request.
pub(super) fn route(shared: &Shared, request: &RecordedRequest, faults: &[Fault]) -> Reply {
    match request.role {
        Role::Tokens => damage(auth::token(shared, request), faults),
        Role::Cdn => cdn(shared, request, faults),
        Role::Registry if !matches!(request.method.as_str(), "GET" | "HEAD") => {
            Reply::error(405, "UNSUPPORTED")
        }
        Role::Registry => registry(shared, request, faults),
    }
}

/// Returns the response of a fault that replaces the correct response, or `None` if there is no
/// such fault.
pub(super) fn replaced(request: &RecordedRequest, faults: &[Fault]) -> Option<Reply> {
    faults.iter().find_map(|fault| match fault {
        Fault::Status(status) => Some(Reply::error(*status, code(*status))),
        Fault::RetryAfter(status, after) => {
            Some(Reply::error(*status, code(*status)).header("retry-after", after))
        }
        Fault::RedirectLoop => Some(Reply::empty(307).header("location", request.path.as_str())),
        Fault::RedirectTo(url) => Some(Reply::empty(307).header("location", url)),
        _ => None,
    })
}

fn code(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHORIZED",
        403 => "DENIED",
        404 => "NAME_UNKNOWN",
        429 => "TOOMANYREQUESTS",
        503 => "UNAVAILABLE",
        _ => "UNKNOWN",
    }
}

fn registry(shared: &Shared, request: &RecordedRequest, faults: &[Fault]) -> Reply {
    let path = request.path.as_str();
    if path == "/v2/" || path == "/v2" {
        return Reply::json(200, &json!({}))
            .header("docker-distribution-api-version", "registry/2.0");
    }
    let Some(rest) = path.strip_prefix("/v2/") else {
        return Reply::error(404, "UNSUPPORTED");
    };
    if let Some(name) = rest.strip_suffix("/tags/list") {
        warned(shared, damage(tags(shared, name, request), faults))
    } else if let Some((name, target)) = rest.rsplit_once("/manifests/") {
        warned(shared, manifest(shared, name, target, request, faults))
    } else if let Some((name, digest)) = rest.rsplit_once("/blobs/") {
        blob(shared, name, digest, request, faults)
    } else if let Some((name, digest)) = rest.rsplit_once("/referrers/") {
        let reply = damage(referrers(shared, name, digest, request), faults);
        warned(shared, reply)
    } else {
        Reply::error(404, "UNSUPPORTED")
    }
}

/// Adds the `Warning` header of the settings.
fn warned(shared: &Shared, reply: Reply) -> Reply {
    match &shared.settings.lock().warning {
        Some(warning) => reply.header("warning", warning.clone()),
        None => reply,
    }
}

fn manifest(
    shared: &Shared,
    name: &str,
    target: &str,
    request: &RecordedRequest,
    faults: &[Fault],
) -> Reply {
    let found = shared.store.lock().manifest(name, target);
    let (digest, media_type, bytes) = match found {
        Some(document) => (document.digest, document.media_type, document.bytes),
        None => match tag_schema(shared, name, target) {
            Some(index) => (
                crate::images::digest_of(index.as_bytes()),
                MediaType::OCI_INDEX.to_owned(),
                index.into(),
            ),
            None => return Reply::error(404, "MANIFEST_UNKNOWN"),
        },
    };
    if !accepts(request, &media_type) {
        return Reply::error(404, "MANIFEST_UNKNOWN");
    }
    let limit = {
        let mut settings = shared.settings.lock();
        settings.rate_limit.as_mut().map(|limit| {
            let before = limit.remaining;
            if request.method == "GET" {
                limit.remaining = before.saturating_sub(1);
            }
            (*limit, before)
        })
    };
    let mut reply = match limit {
        Some((_, 0)) if request.method == "GET" => Reply::error(429, "TOOMANYREQUESTS"),
        _ if known(request, &digest) => Reply::empty(304),
        _ => Reply::of(200, &media_type, damaged(Content::memory(bytes), faults)),
    };
    if reply.status != 429 {
        reply = identified(reply, &digest);
    }
    if let Some((limit, _)) = limit {
        reply = reply
            .header(
                "ratelimit-limit",
                format!("{};w={}", limit.limit, limit.window),
            )
            .header(
                "ratelimit-remaining",
                format!("{};w={}", limit.remaining, limit.window),
            );
    }
    reply
}

/// Returns the referrers index under the tag `<algorithm>-<hex>`, which clients request if a
/// registry lacks the referrers API.
fn tag_schema(shared: &Shared, name: &str, target: &str) -> Option<String> {
    let digest: Digest = target.replacen('-', ":", 1).parse().ok()?;
    let descriptors = shared.store.lock().referrers(name, &digest);
    let lacking = !shared.settings.lock().referrers_api;
    (lacking && !descriptors.is_empty() && !target.contains(':'))
        .then(|| crate::images::index(&descriptors).to_string())
}

fn accepts(request: &RecordedRequest, media_type: &str) -> bool {
    let lines = request.headers.get_all("accept").iter();
    let mut lines = lines.filter_map(|value| value.to_str().ok()).peekable();
    let fits = |range: &str| {
        let kind = range.split(';').next().map(str::trim);
        [Some(media_type), Some("*/*"), Some("application/*")].contains(&kind)
    };
    lines.peek().is_none() || lines.flat_map(|line| line.split(',')).any(fits)
}

fn identified(reply: Reply, digest: &Digest) -> Reply {
    reply
        .header("docker-content-digest", digest.to_string())
        .header("etag", format!("\"{digest}\""))
}

fn known(request: &RecordedRequest, digest: &Digest) -> bool {
    let etag = format!("\"{digest}\"");
    let tags = request.header("if-none-match").unwrap_or_default();
    tags.split(',')
        .map(str::trim)
        .any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

fn blob(
    shared: &Shared,
    name: &str,
    digest: &str,
    request: &RecordedRequest,
    faults: &[Fault],
) -> Reply {
    let Ok(digest) = digest.parse::<Digest>() else {
        return Reply::error(400, "DIGEST_INVALID");
    };
    let Some(content) = shared.store.lock().blob(name, &digest) else {
        return Reply::error(404, "BLOB_UNKNOWN");
    };
    if shared.settings.lock().redirect_blobs {
        let cdn = shared
            .bases
            .get()
            .map(|bases| bases.cdn.as_str())
            .unwrap_or_default();
        return Reply::empty(307)
            .header("location", format!("{cdn}/blobs/{digest}?signature=good"));
    }
    let reply = ranged(content, &digest, request, faults);
    identified(reply, &digest)
}

/// Creates the response of the CDN. Like an object store, the CDN refuses a request that is
/// authorized both by its URL and by a header.
fn cdn(shared: &Shared, request: &RecordedRequest, faults: &[Fault]) -> Reply {
    let digest = request
        .path
        .strip_prefix("/blobs/")
        .and_then(|digest| digest.parse::<Digest>().ok());
    if request.header("authorization").is_some() {
        return Reply::error(400, "UNSUPPORTED");
    }
    if request.query.as_deref() != Some("signature=good") {
        return Reply::error(403, "DENIED");
    }
    let Some(digest) = digest else {
        return Reply::error(404, "BLOB_UNKNOWN");
    };
    let content = shared.store.lock().any_blob(&digest);
    match content {
        Some(content) => ranged(content, &digest, request, faults),
        None => Reply::error(404, "BLOB_UNKNOWN"),
    }
}

fn damaged(content: Content, faults: &[Fault]) -> Content {
    faults.iter().fold(content, |content, fault| match fault {
        Fault::Corrupt(at) => content.with_flipped_byte(*at),
        Fault::Truncate(len) => content.truncated(*len),
        Fault::Pad(by) => content.padded(*by),
        Fault::Replace(bytes) => Content::memory(bytes.clone()),
        _ => content,
    })
}

/// Applies content faults to a generated response.
fn damage(reply: Reply, faults: &[Fault]) -> Reply {
    let content = damaged(reply.content, faults);
    let len = content.len();
    Reply {
        content,
        len,
        framing: Framing::Length(len),
        ..reply
    }
}

/// Whether `If-Range` allows a part: the header is missing, or it has the ETag of the blob. A fault
/// may have changed or removed this ETag.
fn is_current(request: &RecordedRequest, digest: &Digest, faults: &[Fault]) -> bool {
    let Some(expected) = request.header("if-range") else {
        return true;
    };
    let mut etag = Some(format!("\"{digest}\""));
    for fault in faults {
        match fault {
            Fault::Header("etag", value) => etag = Some(value.clone()),
            Fault::WithoutHeader("etag") => etag = None,
            Fault::IgnoreIfRange => return true,
            _ => {}
        }
    }
    etag.as_deref() == Some(expected)
}

fn ranged(content: Content, digest: &Digest, request: &RecordedRequest, faults: &[Fault]) -> Reply {
    let content = damaged(content, faults);
    let total = content.len();
    let mut reply =
        Reply::of(200, "application/octet-stream", content).header("accept-ranges", "bytes");
    reply.is_blob = true;
    if faults
        .iter()
        .any(|fault| matches!(fault, Fault::IgnoreRange))
        || request.method != "GET"
        || !is_current(request, digest, faults)
    {
        return reply;
    }
    let refused = faults
        .iter()
        .any(|fault| matches!(fault, Fault::RefuseRange));
    match request.header("range").and_then(|range| span(range, total)) {
        Some(_) if refused => Reply::error(416, "UNKNOWN"),
        None => reply,
        Some(Ok((start, end))) => reply.ranged(start, end),
        Some(Err(())) => {
            Reply::error(416, "UNKNOWN").header("content-range", format!("bytes */{total}"))
        }
    }
}

/// Returns the first and the last byte of a single range, or `None` for a range that a server may
/// ignore.
fn span(range: &str, total: u64) -> Option<Result<(u64, u64), ()>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end) = match (first, last) {
        ("", suffix) => (total.saturating_sub(suffix.parse().ok()?), u64::MAX),
        (first, "") => (first.parse().ok()?, u64::MAX),
        (first, last) => (first.parse().ok()?, last.parse().ok()?),
    };
    Some(if start < total && start <= end {
        Ok((start, end.min(total - 1)))
    } else {
        Err(())
    })
}

fn tags(shared: &Shared, name: &str, request: &RecordedRequest) -> Reply {
    let Some(all) = shared.store.lock().tags(name) else {
        return Reply::error(404, "NAME_UNKNOWN");
    };
    let most = shared.settings.lock().tags_page.unwrap_or(usize::MAX);
    let n = request
        .param("n")
        .and_then(|n| n.parse().ok())
        .unwrap_or(usize::MAX)
        .min(most);
    let last = request.param("last").unwrap_or_default();
    let mut page: Vec<String> = all.into_iter().filter(|tag| *tag > last).collect();
    let more = page.len() > n;
    page.truncate(n);
    let reply = Reply::json(200, &json!({ "name": name, "tags": page }));
    match page.last() {
        Some(last) if more => reply.header(
            "link",
            format!("</v2/{name}/tags/list?n={n}&last={last}>; rel=\"next\""),
        ),
        _ => reply,
    }
}

fn referrers(shared: &Shared, name: &str, digest: &str, request: &RecordedRequest) -> Reply {
    let Ok(digest) = digest.parse::<Digest>() else {
        return Reply::error(400, "DIGEST_INVALID");
    };
    if !shared.settings.lock().referrers_api {
        return Reply::error(404, "UNSUPPORTED");
    }
    let mut manifests = shared.store.lock().referrers(name, &digest);
    let only = request.param("artifactType");
    if let Some(only) = &only {
        manifests.retain(|descriptor| descriptor["artifactType"] == only.as_str());
    }
    let index = crate::images::index(&manifests);
    let reply = Reply::of(
        200,
        MediaType::OCI_INDEX,
        Content::memory(index.to_string().into()),
    );
    if only.is_some() {
        reply.header("oci-filters-applied", "artifactType")
    } else {
        reply
    }
}
