//! Client authentication and authorization (htpasswd file, client certificates, pass-through,
//! access rules), with cached decisions.

/// Maximum number of cached decisions of one kind. Each decision uses about 200 bytes.
const MAX_CACHED_DECISIONS: usize = 4096;

pub(crate) mod admit;
pub(crate) mod authenticator;
pub(crate) mod basic;
pub(crate) mod certificate;
pub(crate) mod htpasswd;
pub(crate) mod htpasswd_auth;
pub(crate) mod keyed_hash_set;
pub(crate) mod metrics;
pub(crate) mod pass_through;
pub(crate) mod rules;
pub(crate) mod throttle;
pub(crate) mod upstream_check;
