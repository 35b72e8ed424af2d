//! The table of the paths of the Distribution API and of pierhead's extension, with their methods
//! and HTTP statuses. docs/reference/http-api.md is generated from this table.

/// One path of the API, with its methods, parameters and statuses.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The supported methods. The response to any other method is 405.
    pub methods: &'static [&'static str],
    /// The path, with the placeholders `<name>`, `<reference>` and `<digest>`.
    pub path: &'static str,
    /// Parameters of the query or fields of the body, each with its meaning.
    pub parameters: &'static [(&'static str, &'static str)],
    /// HTTP statuses that this path can have in addition to [`STATUSES`].
    pub statuses: &'static [u16],
    /// The purpose of the path, and the contents of the response.
    pub purpose: &'static str,
}

const READ: &[&str] = &["GET", "HEAD"];
const POST: &[&str] = &["POST"];

/// Every path of the API and of pierhead's extension.
pub const ROUTES: &[Route] = &[
    Route {
        methods: READ,
        path: "/v2/",
        parameters: &[],
        statuses: &[200],
        purpose: "`{}`: this is a registry. The response needs no upstream.",
    },
    Route {
        methods: READ,
        path: "/v2/<name>/manifests/<reference>",
        parameters: &[],
        statuses: &[200, 206, 304, 416],
        purpose: "A manifest or an index by tag or digest.",
    },
    Route {
        methods: READ,
        path: "/v2/<name>/blobs/<digest>",
        parameters: &[],
        statuses: &[200, 206, 304, 416],
        purpose: "A blob by digest, whole or by `Range`.",
    },
    Route {
        methods: READ,
        path: "/v2/<name>/tags/list",
        parameters: &[
            ("n", "at most this number of tags"),
            ("last", "only tags after this tag, in lexical order"),
        ],
        statuses: &[200],
        purpose: "The tags of a repository. `Link` names the next page.",
    },
    Route {
        methods: READ,
        path: "/v2/<name>/referrers/<digest>",
        parameters: &[("artifactType", "only referrers of this type")],
        statuses: &[200],
        purpose: "An index of the manifests that refer to a digest.",
    },
    Route {
        methods: &[],
        path: "/v2/<name>/blobs/uploads/",
        parameters: &[],
        statuses: &[],
        purpose: "The push side of the specification. pierhead does not support pushes.",
    },
    Route {
        methods: READ,
        path: "/v2/_oci/ext/discover",
        parameters: &[],
        statuses: &[200],
        purpose: "The extensions of this registry: `_pierhead` if bundles are enabled.",
    },
    Route {
        methods: READ,
        path: "/v2/<name>/_oci/ext/discover",
        parameters: &[],
        statuses: &[200],
        purpose: "The extensions of one repository: `_pierhead` if bundles are enabled.",
    },
    Route {
        methods: POST,
        path: "/v2/<name>/_pierhead/bundle",
        parameters: &[
            ("want", "tag or digest of the image"),
            ("platform", "`os/architecture`; needed for an index only"),
            (
                "base_images",
                "manifest digests of the images that the worker has",
            ),
            (
                "layers",
                "true: also the contents that only the layers have",
            ),
            (
                "start_order",
                "true: the start order in place of the bundle",
            ),
            (
                "part",
                "`{etag, first, end}`: only the records of these frames",
            ),
        ],
        statuses: &[200, 304, 408, 413, 415, 422],
        purpose: "A delta bundle: the file contents that a worker lacks. \
                  `Pierhead-Unknown-Base-Images` lists base images that pierhead cannot use.",
    },
    Route {
        methods: READ,
        path: "/v2/<name>/_pierhead/file/<digest>",
        parameters: &[("image", "digest of the manifest that has the file")],
        statuses: &[200, 206, 304, 416, 422],
        purpose: "The contents of one file of an image.",
    },
    Route {
        methods: POST,
        path: "/v2/<name>/_pierhead/trace",
        parameters: &[
            ("image", "tag or digest of the image"),
            ("files", "paths in the order in which a start opened them"),
        ],
        statuses: &[200, 408, 413, 415, 422],
        purpose: "Takes the order in which a container opened its files. The response is \
                  `{\"matched\": N, \"clients\": N}`: how many entries are files of the image, and \
                  how many clients sent an order for it.",
    },
];

/// HTTP statuses that any path can have, each with its cause.
pub const STATUSES: &[(u16, &str)] = &[
    (
        400,
        "A name, digest, parameter, `Host` or body is malformed, or no entry of a trace is a file of the image.",
    ),
    (
        401,
        "pierhead requires credentials (`auth.mode`), or refuses the credentials of the request.",
    ),
    (
        403,
        "The upstream or `[access]` refuses the pull, the registry has no public address, or the credentials came \
         without TLS. Clients of a mirror then ask the registry itself.",
    ),
    (
        404,
        "The upstream has no such manifest, blob or repository, or the path is not of this API.",
    ),
    (
        405,
        "The path does not support the method. `Allow` lists the supported methods.",
    ),
    (
        414,
        "Path and query are longer than `MAX_LEN` ([limits](limits.md#limits-that-clients-meet)).",
    ),
    (431, "The request has too many or too long headers."),
    (
        500,
        "pierhead has an internal error. The log has the cause.",
    ),
    (
        503,
        "The upstream fails and no older response is cached, a limit is reached, or the image is not ready for \
         bundles. `Retry-After` is the time until the next attempt. The status line has the cause.",
    ),
];

/// HTTP statuses that only some paths have, each with its meaning.
pub const OTHER_STATUSES: &[(u16, &str)] = &[
    (200, "The whole response."),
    (206, "The range that `Range` names."),
    (304, "`If-None-Match` has the ETag of the response."),
    (408, "The body of the request did not arrive in time."),
    (
        413,
        "The body of the request is longer than `MAX_DOCUMENT` ([limits](limits.md#limits-of-registries-and-images)).",
    ),
    (415, "`Content-Type` is not `application/json`."),
    (416, "The range is behind the end of the content."),
    (
        422,
        "pierhead cannot make a bundle of the image, or its layers come from another registry: pull the layers.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Endpoint;

    /// Parses the path of a route with example values for the placeholders.
    fn example(route: &Route) -> Result<Endpoint, crate::ParseError> {
        let digest = format!("sha256:{}", "0".repeat(64));
        let path = route.path.replace("<name>", "library/redis");
        let path = path
            .replace("<reference>", "7")
            .replace("<digest>", &digest);
        Endpoint::parse(&path, Some(&format!("image={digest}")))
    }

    /// Returns the number of an endpoint. A new variant of the enum does not compile until this
    /// function has a number for it.
    fn number(endpoint: &Endpoint) -> usize {
        match endpoint {
            Endpoint::Base => 0,
            Endpoint::Manifest { .. } => 1,
            Endpoint::Blob { .. } => 2,
            Endpoint::Tags { .. } => 3,
            Endpoint::Referrers { .. } => 4,
            Endpoint::Upload { .. } => 5,
            Endpoint::Discover { .. } => 6,
            Endpoint::Bundle { .. } => 7,
            Endpoint::File { .. } => 8,
            Endpoint::Trace { .. } => 9,
        }
    }

    #[test]
    fn every_endpoint_has_a_route() {
        let endpoints = ROUTES.iter().map(|route| example(route).expect(route.path));
        let numbers: BTreeSet<_> = endpoints.map(|endpoint| number(&endpoint)).collect();
        assert_eq!(numbers, (0..10).collect());
    }

    #[test]
    fn every_status_has_a_meaning() {
        let known = |status| OTHER_STATUSES.iter().any(|(code, _)| *code == status);
        let all = ROUTES.iter().flat_map(|route| route.statuses);
        assert!(all.clone().all(|status| known(*status)));
        assert!(
            OTHER_STATUSES
                .iter()
                .all(|(code, _)| all.clone().any(|it| it == code))
        );
    }
}
