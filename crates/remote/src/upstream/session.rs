//! Requests to one host under one identity: with the configured credentials of pierhead, or with
//! the credentials of one client.

use std::ops::Deref;
use std::sync::Arc;

use crate::auth::credentials::Credentials;
use crate::auth::identity::ClientIdentity;
use crate::auth::token::Tokens;
use crate::upstream::host::RegistryHost;

/// A host, and the identity under which requests to this host are sent.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) host: Arc<RegistryHost>,
    /// The client for which the requests are sent. `None`: the requests use the configured
    /// credentials.
    pub(crate) client_identity: Option<Arc<ClientIdentity>>,
}

impl Deref for Session {
    type Target = RegistryHost;

    fn deref(&self) -> &RegistryHost {
        &self.host
    }
}

impl Session {
    /// Returns the configured credentials that this session may use.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        match &self.client_identity {
            Some(identity) => identity.credentials.as_ref(),
            None => self.host.credentials.as_ref(),
        }
    }

    /// Returns the token cache of this identity.
    pub(crate) fn tokens(&self) -> &Tokens {
        match self.client_identity {
            Some(_) => &self.shared.pass_through_tokens,
            None => &self.shared.tokens,
        }
    }
}
