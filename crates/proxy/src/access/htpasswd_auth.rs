//! Authenticates clients by an htpasswd file: caches decisions, limits the number of concurrent
//! bcrypt hashes, and reads the file again when it changes.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::HeaderValue;
use pierhead_host::{BackgroundTask, ClientKey, Panics};
use pierhead_remote::{FileStamp, KeyedHash, KeyedHasher};
use pierhead_ttl_cache::TtlCache;
use tokio::sync::Semaphore;

use crate::access::MAX_CACHED_DECISIONS;
use crate::access::basic::Basic;
use crate::access::htpasswd::Users;
use crate::access::metrics::{AccessMetrics, AuthResult};
use crate::access::throttle::Throttle;
use crate::error::Error;
use crate::limits::held_slots::SlotHolder;
use crate::shared_requests::SharedRequests;

/// Minimum interval between two checks of whether the htpasswd file changed. Only a request with
/// credentials starts a check.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of concurrent bcrypt hashes. Each hash occupies a core for tens of milliseconds,
/// and serving pulls needs cores, too.
const MAX_HASHING: usize = 2;
/// How long pierhead remembers wrong credentials. If a client repeats wrong credentials within this
/// time, no hash is computed.
const WRONG_CREDENTIALS_TTL: Duration = Duration::from_secs(10);

/// Authenticates clients by an htpasswd file. Clones share all their state.
#[derive(Clone)]
pub(crate) struct HtpasswdAuth(Arc<State>);

struct State {
    file: PathBuf,
    cache_ttl: Duration,
    /// The users of the file when it was last read. If the file changes, the new users replace the
    /// old users and all cached decisions.
    users: ArcSwap<UsersFile>,
    hasher: KeyedHasher,
    throttle: Throttle,
    hashing: Semaphore,
    shared_requests: SharedRequests<KeyedHash, Result<(), Error>>,
    created: Instant,
    /// Time of the next check of the file, in milliseconds after `created`.
    due: AtomicU64,
    metrics: AccessMetrics,
    panics: Panics,
}

/// The users of one version of the file, and the cached decisions that these users led to.
struct UsersFile {
    stamp: Option<FileStamp>,
    users: Users,
    /// Keyed hashes of `Authorization` headers with right and wrong credentials.
    right: Arc<TtlCache<KeyedHash, ()>>,
    wrong: Arc<TtlCache<KeyedHash, ()>>,
}

impl UsersFile {
    fn new(stamp: Option<FileStamp>, users: Users, cache_ttl: Duration) -> Self {
        Self {
            stamp,
            users,
            right: Arc::new(TtlCache::new(MAX_CACHED_DECISIONS, cache_ttl)),
            wrong: Arc::new(TtlCache::new(
                MAX_CACHED_DECISIONS,
                WRONG_CREDENTIALS_TTL.min(cache_ttl),
            )),
        }
    }

    /// Returns the same users and decisions with the stamp of a changed file that is unreadable.
    fn with_stamp(&self, stamp: Option<FileStamp>) -> Self {
        Self {
            stamp,
            users: self.users.clone(),
            right: Arc::clone(&self.right),
            wrong: Arc::clone(&self.wrong),
        }
    }
}

/// The user that an `Authorization` header names.
#[derive(Hash)]
pub(crate) enum NamedUser {
    /// A user of the file.
    Known(String),
    /// A user that the file does not have.
    Unknown,
    /// Nobody: the header has another scheme, or is malformed.
    NoBasic,
}

impl HtpasswdAuth {
    /// Reads the htpasswd file and creates the authenticator. Blocks.
    pub(crate) fn new(
        file: PathBuf,
        cache_ttl: Duration,
        hasher: KeyedHasher,
        metrics: AccessMetrics,
        panics: Panics,
    ) -> Self {
        let stamp = FileStamp::read(&file);
        let users = read(&file).unwrap_or_else(Users::none);
        Self(Arc::new(State {
            file,
            cache_ttl,
            users: ArcSwap::from_pointee(UsersFile::new(stamp, users, cache_ttl)),
            hasher,
            throttle: Throttle::default(),
            hashing: Semaphore::new(MAX_HASHING),
            shared_requests: SharedRequests::new(panics.clone()),
            created: Instant::now(),
            due: AtomicU64::new(0),
            metrics,
            panics,
        }))
    }

    /// Whether a recent decision found that these credentials are right. Takes about a microsecond.
    pub(crate) fn is_known_right(&self, header: &HeaderValue) -> bool {
        let state = &self.0;
        !state.is_due() && state.users.load().right.contains(&state.keyed_hash(header))
    }

    /// Returns the user that an `Authorization` header names.
    pub(crate) fn named_user(&self, header: &HeaderValue) -> NamedUser {
        let Some(basic) = Basic::parse(header) else {
            return NamedUser::NoBasic;
        };
        let user = basic.user();
        match self.0.users.load().users.contains(user) {
            true => NamedUser::Known(user.to_owned()),
            false => NamedUser::Unknown,
        }
    }

    pub(crate) fn recheck_file(&self) {
        self.0.due.store(0, Ordering::Relaxed);
    }

    /// Verifies credentials by the file. Concurrent requests with the same header share one bcrypt
    /// hash.
    pub(crate) async fn decide(&self, header: &HeaderValue, address: IpAddr) -> Result<(), Error> {
        if self.0.take_check() {
            let state = self.0.clone();
            // If the check panics, the users of the previous version of the file remain valid.
            let _ = self.0.blocking(move || state.check_file()).await;
        }
        let state = &self.0;
        let keyed_hash = state.keyed_hash(header);
        let users = state.users.load_full();
        if users.right.contains(&keyed_hash) {
            return Ok(());
        }
        if users.wrong.contains(&keyed_hash) {
            return Err(Error::LoginRequired);
        }
        let Some(basic) = Basic::parse(header) else {
            return Err(Error::LoginRequired);
        };
        let holder = SlotHolder {
            client: ClientKey::of(address),
            is_configured: true,
        };
        let pending = state.shared_requests.join((&keyed_hash, holder), || {
            let state = state.clone();
            Ok(async move { state.verify(keyed_hash, basic, address).await })
        });
        match pending {
            Ok(pending) => pending.result().await?,
            Err(limit) => Err(limit.into()),
        }
    }
}

impl State {
    /// Runs `work` on a thread that may block. If `work` panics, counts the panic and returns
    /// `None`.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let panics = self.panics.clone();
        let done = tokio::task::spawn_blocking(move || {
            panics.catch(BackgroundTask::CredentialCheck, work)
        });
        done.await.ok().flatten()
    }

    fn keyed_hash(&self, header: &HeaderValue) -> KeyedHash {
        self.hasher.hash(&[header.as_bytes()])
    }

    fn now(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn is_due(&self) -> bool {
        self.now() >= self.due.load(Ordering::Relaxed)
    }

    /// Whether a check of the htpasswd file is due. Only one caller gets `true`, and must do the
    /// check.
    fn take_check(&self) -> bool {
        let (now, due) = (self.now(), self.due.load(Ordering::Relaxed));
        let next = now + u64::try_from(FILE_CHECK_INTERVAL.as_millis()).unwrap_or(u64::MAX);
        now >= due
            && self
                .due
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Reads the htpasswd file again if it changed.
    fn check_file(&self) {
        let stamp = FileStamp::read(&self.file);
        let old = self.users.load_full();
        if old.stamp == stamp {
            return;
        }
        // If the changed file is unreadable (for example half written), the users of its previous
        // version stay valid until the file changes again. A deleted file has no users, so all
        // clients are refused.
        let Some(users) = read(&self.file) else {
            // The stored users get the stamp of the unreadable file, so that the error is logged
            // once.
            self.users.store(Arc::new(old.with_stamp(stamp)));
            return;
        };
        tracing::info!(file = %self.file.display(), users = users.len(), "users changed");
        let new = UsersFile::new(stamp, users, self.cache_ttl);
        self.users.store(Arc::new(new));
    }

    async fn verify(
        self: Arc<Self>,
        keyed_hash: KeyedHash,
        basic: Basic,
        address: IpAddr,
    ) -> Result<(), Error> {
        if !self.throttle.charge(address, Instant::now()) {
            self.metrics.count(AuthResult::Throttled);
            return Err(Error::TooManyLogins);
        }
        let Ok(_permit) = self.hashing.acquire().await else {
            return Err(Error::Internal);
        };
        // The decision is cached only for this version of the file, because the file may change
        // during the hash.
        let users = self.users.load_full();
        let verified = self.blocking({
            let users = users.clone();
            move || users.users.verify(basic.user(), basic.password())
        });
        if verified.await.ok_or(Error::Internal)? {
            users.right.insert(keyed_hash, ());
            self.throttle.refund(address);
            self.metrics.count(AuthResult::Granted);
            return Ok(());
        }
        users.wrong.insert(keyed_hash, ());
        self.metrics.count(AuthResult::Denied);
        Err(Error::LoginRequired)
    }
}

/// Reads the users of the htpasswd file. `None`: the file exists, but is unreadable or malformed.
fn read(file: &Path) -> Option<Users> {
    match Users::read(file) {
        Ok(users) => Some(users),
        Err(_) if is_absent(file) => {
            tracing::warn!(file = %file.display(), "auth.htpasswd does not exist: all clients are refused until it does");
            Some(Users::none())
        }
        Err(error) => {
            tracing::error!(
                "cannot read auth.htpasswd, so the users that were read before remain valid: {error}"
            );
            None
        }
    }
}

fn is_absent(file: &Path) -> bool {
    std::fs::metadata(file).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: [u8; 4] = [192, 0, 2, 1];

    fn header(user: &str, password: &str) -> HeaderValue {
        use base64::Engine as _;
        let code = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        HeaderValue::from_str(&format!("Basic {code}")).unwrap()
    }

    #[expect(clippy::disallowed_methods, reason = "moves a file of the test")]
    fn write(file: &Path, users: &[(&str, &str)]) {
        let lines = users
            .iter()
            .map(|(user, password)| format!("{user}:{}\n", bcrypt::hash(password, 4).unwrap()));
        // The test replaces the file by a new file, which has another inode.
        let next = file.with_extension("next");
        std::fs::write(&next, lines.collect::<String>()).unwrap();
        std::fs::rename(next, file).unwrap();
    }

    fn open(users: &[(&str, &str)]) -> (HtpasswdAuth, PathBuf, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("users");
        write(&file, users);
        let (cache_ttl, hasher) = (Duration::from_secs(60), KeyedHasher::new().unwrap());
        let logins = HtpasswdAuth::new(
            file.clone(),
            cache_ttl,
            hasher,
            AccessMetrics::default(),
            Panics::default(),
        );
        (logins, file, folder)
    }

    #[tokio::test]
    async fn right_credentials_are_cached() {
        let (logins, _, _folder) = open(&[("ann", "pw")]);
        let right = header("ann", "pw");
        assert!(!logins.is_known_right(&right));
        assert!(logins.decide(&right, CLIENT.into()).await.is_ok());
        assert!(logins.is_known_right(&right));
        for wrong in [
            header("ann", "px"),
            header("bob", "pw"),
            HeaderValue::from_static("Bearer x"),
        ] {
            assert!(matches!(
                logins.decide(&wrong, CLIENT.into()).await,
                Err(Error::LoginRequired)
            ));
            assert!(!logins.is_known_right(&wrong));
        }
    }

    #[tokio::test]
    async fn a_changed_file_invalidates_cached_decisions() {
        let (logins, file, _folder) = open(&[("ann", "pw"), ("bob", "pw")]);
        let (ann, bob) = (header("ann", "pw"), header("bob", "pw"));
        for one in [&ann, &bob] {
            assert!(logins.decide(one, CLIENT.into()).await.is_ok());
        }
        write(&file, &[("bob", "pw")]);
        logins.recheck_file();
        assert!(
            !logins.is_known_right(&ann),
            "not before a check of the file"
        );
        assert!(logins.decide(&ann, CLIENT.into()).await.is_err());
        assert!(logins.decide(&bob, CLIENT.into()).await.is_ok());
        // A malformed file leaves the users of the previous file valid.
        std::fs::write(&file, "bob:plain\n").unwrap();
        logins.recheck_file();
        assert!(logins.decide(&bob, CLIENT.into()).await.is_ok());
        assert!(logins.decide(&ann, CLIENT.into()).await.is_err());
    }

    /// A decision that is made while the htpasswd file changes is not used after the change.
    #[tokio::test]
    async fn a_decision_by_an_old_file_does_not_outlive_it() {
        let (logins, file, _folder) = open(&[("ann", "pw")]);
        let ann = header("ann", "pw");
        let state = &logins.0;
        let all = u32::try_from(MAX_HASHING).unwrap();
        let hashing = state.hashing.acquire_many(all).await.unwrap();
        let pending = tokio::spawn({
            let (logins, ann) = (logins.clone(), ann.clone());
            async move { logins.decide(&ann, CLIENT.into()).await }
        });
        while !state.throttle.has_charged(CLIENT.into()) {
            tokio::task::yield_now().await;
        }
        let old = state.users.load_full();
        write(&file, &[("bob", "pw")]);
        state.check_file();
        old.right.insert(state.keyed_hash(&ann), ());
        drop(hashing);
        assert!(pending.await.unwrap().is_err());
        assert!(!logins.is_known_right(&ann));
        assert!(logins.decide(&ann, CLIENT.into()).await.is_err());
    }

    #[tokio::test]
    async fn a_deleted_file_has_no_users() {
        let (logins, file, _folder) = open(&[("ann", "pw")]);
        let ann = header("ann", "pw");
        assert!(logins.decide(&ann, CLIENT.into()).await.is_ok());
        std::fs::remove_file(&file).unwrap();
        logins.recheck_file();
        assert!(logins.decide(&ann, CLIENT.into()).await.is_err());
        write(&file, &[("ann", "pw")]);
        logins.recheck_file();
        assert!(logins.decide(&ann, CLIENT.into()).await.is_ok());
    }

    #[tokio::test]
    async fn guesses_are_bounded_and_right_credentials_are_no_guess() {
        let (logins, _, _folder) = open(&[("ann", "pw")]);
        let known = header("ann", "pw");
        assert!(logins.decide(&known, CLIENT.into()).await.is_ok());
        let mut refused = 0;
        for n in 0..15 {
            match logins
                .decide(&header("ann", &n.to_string()), CLIENT.into())
                .await
            {
                Err(Error::LoginRequired) => {}
                Err(Error::TooManyLogins) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(refused, 5);
        // If the client repeats the same wrong credentials, no hash is computed, and the throttle
        // counts no new guess. Right credentials still work.
        assert!(matches!(
            logins.decide(&header("ann", "0"), CLIENT.into()).await,
            Err(Error::LoginRequired)
        ));
        assert!(logins.decide(&known, CLIENT.into()).await.is_ok());
        assert!(
            logins
                .decide(&header("ann", "y"), [192, 0, 2, 2].into())
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn panics_of_decisions_are_counted() {
        let (logins, _, _folder) = open(&[("ann", "pw")]);
        let state = &logins.0;
        assert_eq!(state.blocking(|| panic!("by intent")).await, None::<()>);
        let keyed_hash = state.keyed_hash(&header("ann", "pw"));
        let panicked = state
            .shared_requests
            .join((&keyed_hash, SlotHolder::OPERATOR), || {
                Ok(async { panic!("by intent") })
            });
        assert!(panicked.unwrap().result().await.is_err());
        assert_eq!(
            state.panics.counts(),
            [
                (BackgroundTask::CredentialCheck, 1),
                (BackgroundTask::SharedRequest, 1)
            ]
        );
        assert!(
            logins
                .decide(&header("ann", "pw"), CLIENT.into())
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn concurrent_requests_with_the_same_credentials_cost_one_hash() {
        let (logins, _, _folder) = open(&[("ann", "pw")]);
        let right = header("ann", "pw");
        let all = (0..100).map(|_| {
            let (logins, right) = (logins.clone(), right.clone());
            tokio::spawn(async move { logins.decide(&right, CLIENT.into()).await })
        });
        for one in all.collect::<Vec<_>>() {
            assert!(
                one.await.unwrap().is_ok(),
                "a burst does not count as guesses"
            );
        }
    }
}
