//! Users of an htpasswd file: verdicts in memory, bcrypt behind a bound, the file followed as it changes.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::HeaderValue;
use pierhead_host::{BackgroundTask, Panics};
use pierhead_remote::{KeyedHash, KeyedHasher};
use tokio::sync::Semaphore;

use crate::access::basic::Basic;
use crate::access::htpasswd::Users;
use crate::access::metrics::{AccessMetrics, Verdict};
use crate::access::throttle::Throttle;
use crate::access::ttl_table::TtlTable;
use crate::error::Error;
use crate::shared_requests::SharedRequests;

/// How often the file is looked at, at most; and only when a client asks.
const LOOK: Duration = Duration::from_secs(1);
/// Hashes computed at once: each takes a core for tens of milliseconds, and pulls need cores too.
const TURNS: usize = 2;
/// How long a wrong login is known to be wrong: a client that repeats it costs no hash.
const WRONG: Duration = Duration::from_secs(10);

/// What a file looks like from outside.
type FileStamp = Option<(u64, u64, u64, i64, i64)>;

/// Clones share everything.
#[derive(Clone)]
pub(crate) struct HtpasswdAuth(Arc<State>);

struct State {
    file: PathBuf,
    lifetime: Duration,
    users: ArcSwap<(Users, FileStamp)>,
    hasher: KeyedHasher,
    right: TtlTable<KeyedHash, ()>,
    wrong: TtlTable<KeyedHash, ()>,
    throttle: Throttle,
    turns: Semaphore,
    shared_requests: SharedRequests<KeyedHash, Result<(), Error>>,
    born: Instant,
    /// Milliseconds after `born` at which the file is to be looked at again.
    due: AtomicU64,
    metrics: AccessMetrics,
    panics: Panics,
}

impl HtpasswdAuth {
    /// Reads the file, which blocks.
    pub(crate) fn new(
        file: PathBuf,
        lifetime: Duration,
        hasher: KeyedHasher,
        metrics: AccessMetrics,
        panics: Panics,
    ) -> Self {
        let stamp = stamp(&file);
        let users = read(&file).unwrap_or_else(Users::none);
        Self(Arc::new(State {
            file,
            lifetime,
            users: ArcSwap::from_pointee((users, stamp)),
            hasher,
            right: TtlTable::default(),
            wrong: TtlTable::default(),
            throttle: Throttle::default(),
            turns: Semaphore::new(TURNS),
            shared_requests: SharedRequests::new(panics.clone()),
            born: Instant::now(),
            due: AtomicU64::new(0),
            metrics,
            panics,
        }))
    }

    /// Whether this header was found right lately. About a microsecond.
    pub(crate) fn known(&self, header: &HeaderValue) -> bool {
        !self.0.is_due() && self.0.right.get(&self.0.keyed_hash(header)).is_some()
    }

    pub(crate) fn look_again(&self) {
        self.0.due.store(0, Ordering::Relaxed);
    }

    /// The verdict, from the file. All who bring the same header share one hash.
    pub(crate) async fn ask(&self, header: &HeaderValue, address: IpAddr) -> Result<(), Error> {
        if self.0.take_look() {
            let state = self.0.clone();
            // After a panic the users that are known stay.
            let _ = self.0.blocking(move || state.look()).await;
        }
        let state = &self.0;
        let keyed_hash = state.keyed_hash(header);
        if state.right.get(&keyed_hash).is_some() {
            return Ok(());
        }
        if state.wrong.get(&keyed_hash).is_some() {
            return Err(Error::LoginRequired);
        }
        let Some(basic) = Basic::parse(header) else {
            return Err(Error::LoginRequired);
        };
        let pending = state.shared_requests.join(&keyed_hash, || {
            let state = state.clone();
            Ok(async move { state.verify(keyed_hash, basic, address).await })
        });
        match pending {
            Ok(pending) => pending.answer().await.unwrap_or(Err(Error::Internal)),
            Err(limit) => Err(limit.into()),
        }
    }
}

impl State {
    /// Does `work` on a thread that may block; `None` when it panics, which is counted.
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
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn is_due(&self) -> bool {
        self.now() >= self.due.load(Ordering::Relaxed)
    }

    /// Whether it is due, and this caller is the one who looks.
    fn take_look(&self) -> bool {
        let (now, due) = (self.now(), self.due.load(Ordering::Relaxed));
        let next = now + u64::try_from(LOOK.as_millis()).unwrap_or(u64::MAX);
        now >= due
            && self
                .due
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn look(&self) {
        let stamp = stamp(&self.file);
        if self.users.load().1 == stamp {
            return;
        }
        // A file that makes no sense (half written, say) changes nothing; it is read again when it changes.
        // One that is gone has no users: whoever takes it away wants nobody let in.
        let Some(users) = read(&self.file) else {
            let old = self.users.load_full();
            // The old users under the new stamp, so that the mistake is told once.
            let kept = Users::clone(&old.0);
            self.users.store(Arc::new((kept, stamp)));
            return;
        };
        tracing::info!(file = %self.file.display(), users = users.len(), "users changed");
        self.users.store(Arc::new((users, stamp)));
        // After the store: see `verify`.
        self.right.clear();
        self.wrong.clear();
    }

    async fn verify(
        self: Arc<Self>,
        keyed_hash: KeyedHash,
        basic: Basic,
        address: IpAddr,
    ) -> Result<(), Error> {
        if !self.throttle.charge(address, Instant::now()) {
            self.metrics.count(Verdict::Throttled);
            return Err(Error::TooManyLogins);
        }
        let Ok(_turn) = self.turns.acquire().await else {
            return Err(Error::Internal);
        };
        let users = self.users.load_full();
        let verified = self.blocking({
            let users = users.clone();
            move || users.0.verify(basic.user(), basic.password())
        });
        let right = verified.await.ok_or(Error::Internal)?;
        let (table, lifetime) = match right {
            true => (&self.right, self.lifetime),
            false => (&self.wrong, WRONG.min(self.lifetime)),
        };
        // The file may have changed meanwhile, and the tables been cleared.
        table.insert_if(keyed_hash, (), lifetime, || {
            Arc::ptr_eq(&users, &self.users.load())
        });
        if right {
            self.throttle.refund(address);
            self.metrics.count(Verdict::Granted);
            return Ok(());
        }
        self.metrics.count(Verdict::Denied);
        Err(Error::LoginRequired)
    }
}

fn stamp(file: &Path) -> FileStamp {
    let it = std::fs::metadata(file).ok()?;
    Some((it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec()))
}

/// `None`: the file is there, but of no use.
fn read(file: &Path) -> Option<Users> {
    match Users::read(file) {
        Ok(users) => Some(users),
        Err(_) if is_gone(file) => {
            tracing::warn!(file = %file.display(), "there is no file of users: nobody is let in until there is");
            Some(Users::none())
        }
        Err(error) => {
            tracing::error!("users cannot be read, those known so far stay: {error}");
            None
        }
    }
}

fn is_gone(file: &Path) -> bool {
    std::fs::metadata(file).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 4] = [192, 0, 2, 1];

    fn header(user: &str, password: &str) -> HeaderValue {
        use base64::Engine as _;
        let code = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        HeaderValue::from_str(&format!("Basic {code}")).unwrap()
    }

    fn write(file: &Path, users: &[(&str, &str)]) {
        let lines = users
            .iter()
            .map(|(user, password)| format!("{user}:{}\n", bcrypt::hash(password, 4).unwrap()));
        // As a whole, by another inode.
        let next = file.with_extension("next");
        std::fs::write(&next, lines.collect::<String>()).unwrap();
        std::fs::rename(next, file).unwrap();
    }

    fn open(users: &[(&str, &str)]) -> (HtpasswdAuth, PathBuf, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("users");
        write(&file, users);
        let (lifetime, hasher) = (Duration::from_secs(60), KeyedHasher::new().unwrap());
        let logins = HtpasswdAuth::new(
            file.clone(),
            lifetime,
            hasher,
            AccessMetrics::default(),
            Panics::default(),
        );
        (logins, file, folder)
    }

    #[tokio::test]
    async fn a_right_login_is_known_from_then_on() {
        let (logins, _, _folder) = open(&[("ann", "pw")]);
        let right = header("ann", "pw");
        assert!(!logins.known(&right));
        assert!(logins.ask(&right, HERE.into()).await.is_ok());
        assert!(logins.known(&right));
        for wrong in [
            header("ann", "px"),
            header("bob", "pw"),
            HeaderValue::from_static("Bearer x"),
        ] {
            assert!(matches!(
                logins.ask(&wrong, HERE.into()).await,
                Err(Error::LoginRequired)
            ));
            assert!(!logins.known(&wrong));
        }
    }

    #[tokio::test]
    async fn a_changed_file_ends_what_was_known() {
        let (logins, file, _folder) = open(&[("ann", "pw"), ("bob", "pw")]);
        let (ann, bob) = (header("ann", "pw"), header("bob", "pw"));
        for one in [&ann, &bob] {
            assert!(logins.ask(one, HERE.into()).await.is_ok());
        }
        write(&file, &[("bob", "pw")]);
        logins.look_again();
        assert!(!logins.known(&ann), "not before the file was looked at");
        assert!(logins.ask(&ann, HERE.into()).await.is_err());
        assert!(logins.ask(&bob, HERE.into()).await.is_ok());
        // A broken file keeps those who were there.
        std::fs::write(&file, "bob:plain\n").unwrap();
        logins.look_again();
        assert!(logins.ask(&bob, HERE.into()).await.is_ok());
        assert!(logins.ask(&ann, HERE.into()).await.is_err());
    }

    #[tokio::test]
    async fn a_file_that_is_gone_has_no_users() {
        let (logins, file, _folder) = open(&[("ann", "pw")]);
        let ann = header("ann", "pw");
        assert!(logins.ask(&ann, HERE.into()).await.is_ok());
        std::fs::remove_file(&file).unwrap();
        logins.look_again();
        assert!(logins.ask(&ann, HERE.into()).await.is_err());
        write(&file, &[("ann", "pw")]);
        logins.look_again();
        assert!(logins.ask(&ann, HERE.into()).await.is_ok());
    }

    #[tokio::test]
    async fn guesses_are_bounded_and_the_right_login_is_not_one() {
        let (logins, _, _folder) = open(&[("ann", "pw")]);
        let known = header("ann", "pw");
        assert!(logins.ask(&known, HERE.into()).await.is_ok());
        let mut refused = 0;
        for n in 0..15 {
            match logins
                .ask(&header("ann", &n.to_string()), HERE.into())
                .await
            {
                Err(Error::LoginRequired) => {}
                Err(Error::TooManyLogins) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(refused, 5);
        // The same wrong one again costs nothing and is no new guess; who is known is not locked out.
        assert!(matches!(
            logins.ask(&header("ann", "0"), HERE.into()).await,
            Err(Error::LoginRequired)
        ));
        assert!(logins.ask(&known, HERE.into()).await.is_ok());
        assert!(
            logins
                .ask(&header("ann", "y"), [192, 0, 2, 2].into())
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn panics_of_logins_are_counted() {
        let (logins, _, _folder) = open(&[("ann", "pw")]);
        let state = &logins.0;
        assert_eq!(state.blocking(|| panic!("by intent")).await, None::<()>);
        let keyed_hash = state.keyed_hash(&header("ann", "pw"));
        let died = state
            .shared_requests
            .join(&keyed_hash, || Ok(async { panic!("by intent") }));
        assert!(died.unwrap().answer().await.is_none());
        assert_eq!(
            state.panics.counts(),
            [
                (BackgroundTask::CredentialCheck, 1),
                (BackgroundTask::SharedRequest, 1)
            ]
        );
        assert!(logins.ask(&header("ann", "pw"), HERE.into()).await.is_ok());
    }

    #[tokio::test]
    async fn many_with_one_login_cost_one_hash() {
        let (logins, _, _folder) = open(&[("ann", "pw")]);
        let right = header("ann", "pw");
        let all = (0..100).map(|_| {
            let (logins, right) = (logins.clone(), right.clone());
            tokio::spawn(async move { logins.ask(&right, HERE.into()).await })
        });
        for one in all.collect::<Vec<_>>() {
            assert!(
                one.await.unwrap().is_ok(),
                "a burst is not taken for guesses"
            );
        }
    }
}
