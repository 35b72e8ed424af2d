//! The routes of the admin listener as one table: the router and the reference page derive from it.

/// What the router does for a route.
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

/// One method of one path.
#[cfg_attr(not(test), expect(dead_code, reason = "the reference page has them"))]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    /// Parameters of the query; the document of the body.
    pub(crate) input: &'static str,
    /// The document, or the text, of the response.
    pub(crate) output: &'static str,
    /// Statuses besides those of every route.
    pub(crate) statuses: &'static [u16],
    pub(crate) purpose: &'static str,
    pub(super) action: Action,
}

/// All routes. A HEAD is answered like a GET, without its body.
pub(crate) const ROUTES: &[Route] = &[
    Route {
        method: "GET",
        path: "/livez",
        input: "",
        output: "text",
        statuses: &[200],
        purpose: "The process answers.",
        action: Action::Live,
    },
    Route {
        method: "GET",
        path: "/readyz",
        input: "",
        output: "text",
        statuses: &[200, 503],
        purpose: "200 from the open cache and bound listeners until SIGTERM. Each request reads one block \
                  of the data folder around the page cache. A read that fails or takes longer than \
                  900 ms is a 503 with the reason. Upstreams do not count.",
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
        purpose: "How full the cache is, and with what.",
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
        purpose: "The images that have a tag here.",
        action: Action::ListImages,
    },
    Route {
        method: "DELETE",
        path: "/v1/images",
        input: "`?image=REFERENCE`",
        output: "`Removed`",
        statuses: &[200, 404, 409],
        purpose: "Deletes an image by tag or digest, with its bundles and the blobs that no other cached image \
                  uses. 404: it is not cached. 409: it is pinned.",
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
        purpose: "Pins a cached image, so that no blob of it is evicted. 404: it is not cached.",
        action: Action::Pin,
    },
    Route {
        method: "DELETE",
        path: "/v1/pins",
        input: "`?image=REFERENCE`",
        output: "`Pin`",
        statuses: &[200, 404],
        purpose: "Takes the pin back. 404: there is none.",
        action: Action::Unpin,
    },
    Route {
        method: "GET",
        path: "/v1/tier",
        input: "",
        output: "`Tier`",
        statuses: &[200, 404],
        purpose: "The fast tier. 404: there is none.",
        action: Action::ShowTier,
    },
    Route {
        method: "PUT",
        path: "/v1/tier",
        input: "`TierLimit`",
        output: "`Tier`",
        statuses: &[200, 404],
        purpose: "Changes how many bytes the fast tier may hold, until the next start. The least valuable blobs \
                  leave first.",
        action: Action::SetTierLimit,
    },
    Route {
        method: "POST",
        path: "/v1/prune",
        input: "`Prune`",
        output: "`Pruned`",
        statuses: &[200, 409],
        purpose: "Deletes bundles, then blobs, down to a size. Pinned blobs stay. 409: tags, pins and the catalog \
                  alone take more; nothing is deleted.",
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
        purpose: "Pulls manifests and blobs of images into the cache. It makes no bundle.",
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
        "`Host` is not of this listener, `X-Pierhead` is missing, or the peer is another machine.",
    ),
    (404, "There is no such path."),
    (405, "The path has no such method."),
    (408, "The body did not arrive within 10 s."),
    (500, "pierhead failed; the text has the cause."),
];

/// Whether any method has this path.
pub(super) fn is_path(path: &str) -> bool {
    ROUTES.iter().any(|route| route.path == path)
}

/// What a request with this method and path wants.
pub(super) fn find(method: &str, path: &str) -> Option<Action> {
    let mut routes = ROUTES.iter();
    let route = routes.find(|route| route.path == path && route.method == method)?;
    Some(route.action)
}
