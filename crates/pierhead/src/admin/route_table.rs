//! The table of the admin listener's routes. The router uses this table, and
//! docs/reference/http-api.md is generated from it.

/// The operation that a route runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Live,
    Ready,
    Metrics,
    Stat,
    Config,
    ListBlobs,
    ListImages,
    RemoveImage,
    ListPins,
    Pin,
    Unpin,
    Prune,
    ShowTier,
    SetTierLimit,
    Verify,
    Warm,
}

/// One route: the operation for one method of one path.
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the test that generates the reference page reads them"
    )
)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    /// Parameters of the request: its query, and the JSON document in its body.
    pub(crate) input: &'static str,
    /// Content of the response: the name of the JSON document, or a description of the text.
    pub(crate) output: &'static str,
    /// Statuses of this route, in addition to the statuses that every route can have.
    pub(crate) statuses: &'static [u16],
    pub(crate) purpose: &'static str,
    pub(super) action: Action,
}

/// All routes. A HEAD request gets the response of GET without the body.
pub(crate) const ROUTES: &[Route] = &[
    Route {
        method: "GET",
        path: "/livez",
        input: "",
        output: "text",
        statuses: &[200],
        purpose: "Liveness: 200 while the process runs.",
        action: Action::Live,
    },
    Route {
        method: "GET",
        path: "/readyz",
        input: "",
        output: "text",
        statuses: &[200, 503],
        purpose: "Readiness: 200 from the end of the start until SIGTERM. Each request reads one block of the data \
                  folder and bypasses the page cache. If the read fails or takes longer than 900 ms, the \
                  status is 503, and the text has the reason. The state of upstreams has no effect.",
        action: Action::Ready,
    },
    Route {
        method: "GET",
        path: "/metrics",
        input: "",
        output: "OpenMetrics text",
        statuses: &[200],
        purpose: "[All metrics](metrics.md).",
        action: Action::Metrics,
    },
    Route {
        method: "GET",
        path: "/v1/config",
        input: "",
        output: "TOML",
        statuses: &[200],
        purpose: "The configuration in effect, flags included, as `pierhead config show` prints it. Secrets \
                  are masked.",
        action: Action::Config,
    },
    Route {
        method: "GET",
        path: "/v1/stat",
        input: "",
        output: "`Stat`",
        statuses: &[200],
        purpose: "The state of the daemon and its cache.",
        action: Action::Stat,
    },
    Route {
        method: "GET",
        path: "/v1/blobs",
        input: "`?after=DIGEST`, `?limit=N`",
        output: "`Blobs`",
        statuses: &[200],
        purpose: "One page of the committed blobs, in the order of their digests.",
        action: Action::ListBlobs,
    },
    Route {
        method: "GET",
        path: "/v1/images",
        input: "",
        output: "`Images`",
        statuses: &[200],
        purpose: "The cached images that have a tag.",
        action: Action::ListImages,
    },
    Route {
        method: "DELETE",
        path: "/v1/images",
        input: "`?image=REFERENCE`",
        output: "`Removed`",
        statuses: &[200, 404, 409],
        purpose: "Deletes an image by tag or digest, with its bundles and the blobs that no other cached image \
                  uses. 404: the image is not cached. 409: the image is pinned.",
        action: Action::RemoveImage,
    },
    Route {
        method: "GET",
        path: "/v1/pins",
        input: "",
        output: "`Pins`",
        statuses: &[200],
        purpose: "The pinned images.",
        action: Action::ListPins,
    },
    Route {
        method: "PUT",
        path: "/v1/pins",
        input: "`?image=REFERENCE`",
        output: "`Pin`",
        statuses: &[200, 404, 507],
        purpose: "Pins a cached image, so that none of its blobs is evicted. 404: the image is not cached.",
        action: Action::Pin,
    },
    Route {
        method: "DELETE",
        path: "/v1/pins",
        input: "`?image=REFERENCE`",
        output: "`Pin`",
        statuses: &[200, 404],
        purpose: "Removes a pin. 404: the image is not pinned.",
        action: Action::Unpin,
    },
    Route {
        method: "GET",
        path: "/v1/tier",
        input: "",
        output: "`TierStat`",
        statuses: &[200, 404],
        purpose: "The fast tier. 404: pierhead has no fast tier.",
        action: Action::ShowTier,
    },
    Route {
        method: "PUT",
        path: "/v1/tier",
        input: "`TierLimitChange`",
        output: "`TierStat`",
        statuses: &[200, 404],
        purpose: "Sets the maximum bytes in use on the fast tier, until the next start. pierhead first evicts \
                  the blobs with the lowest value.",
        action: Action::SetTierLimit,
    },
    Route {
        method: "POST",
        path: "/v1/prune",
        input: "`Prune`",
        output: "`Pruned`",
        statuses: &[200, 409],
        purpose: "Deletes bundles, then blobs, until the cache has the target size. Pinned blobs stay. 409: tags, \
                  pins and the catalog alone take more; nothing is deleted.",
        action: Action::Prune,
    },
    Route {
        method: "POST",
        path: "/v1/verify",
        input: "",
        output: "lines of `Event`",
        statuses: &[200, 409],
        purpose: "Reads every blob against its digest and removes damaged ones. 409: another verification runs.",
        action: Action::Verify,
    },
    Route {
        method: "POST",
        path: "/v1/warm",
        input: "`Warm`",
        output: "lines of `Event`",
        statuses: &[200],
        purpose: "Pulls manifests and blobs of images into the cache, and makes no bundles.",
        action: Action::Warm,
    },
];

/// Statuses that every route can have, each with its cause.
#[cfg(test)]
pub(crate) const STATUSES: &[(u16, &str)] = &[
    (
        400,
        "A parameter or the body is malformed, or has a field that pierhead does not know.",
    ),
    (
        403,
        "`Host` does not name this listener, `X-Pierhead` is missing, or the client is on another host.",
    ),
    (404, "The path does not exist."),
    (405, "The path does not support the method."),
    (408, "The body did not arrive within 5 s."),
    (500, "pierhead failed; the text has the cause."),
    (
        503,
        "Too many connections: only `/livez` and `/readyz` have reserved connections.",
    ),
];

/// Whether a route with this path exists, for any method.
pub(super) fn is_path(path: &str) -> bool {
    ROUTES.iter().any(|route| route.path == path)
}

/// Returns the operation of the route with this method and path.
pub(super) fn find(method: &str, path: &str) -> Option<Action> {
    let mut routes = ROUTES.iter();
    let route = routes.find(|route| route.path == path && route.method == method)?;
    Some(route.action)
}
