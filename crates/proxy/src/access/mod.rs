//! Client authentication and authorization, with cached decisions.

pub(crate) mod admit;
pub(crate) mod authenticator;
pub(crate) mod basic;
pub(crate) mod certificate;
pub(crate) mod htpasswd;
pub(crate) mod htpasswd_auth;
pub(crate) mod metrics;
pub(crate) mod pass_through;
pub(crate) mod rules;
pub(crate) mod seal_set;
pub(crate) mod sealer;
pub(crate) mod table;
pub(crate) mod throttle;
pub(crate) mod upstream_check;
