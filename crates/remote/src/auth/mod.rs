//! Authentication of pierhead at upstreams: challenges, credentials, tokens, and identities of
//! clients.

pub(crate) mod authenticate;
pub(crate) mod challenge;
pub(crate) mod credentials;
pub(crate) mod helper;
pub(crate) mod identity;
pub(crate) mod keyed_hash;
pub(crate) mod state;
pub(crate) mod token;
