//! The state that the listeners and connections of one fake registry share.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::auth::Issued;
use super::fault::Rules;
use super::log::Log;
use super::settings::Settings;
use super::store::Store;
use super::tls::Identity;

/// The state of the three listeners and of all their connections.
pub(super) struct Shared {
    pub(super) settings: Mutex<Settings>,
    pub(super) store: Mutex<Store>,
    pub(super) rules: Rules,
    pub(super) log: Log,
    pub(super) issued: Mutex<Issued>,
    /// The time at which the simulated link, which all bodies share, has sent all bytes so far.
    pub(super) link_free_at: Mutex<Instant>,
    pub(super) blobs_in_flight: AtomicUsize,
    pub(super) peak_blobs_in_flight: AtomicUsize,
    pub(super) tls: Option<Identity>,
    /// The URLs of the token server and the CDN, as soon as both listen.
    pub(super) bases: OnceLock<Bases>,
}

/// The URLs of the token server and the CDN, without a slash at the end.
pub(super) struct Bases {
    pub(super) tokens: String,
    pub(super) cdn: String,
}
