//! Integration tests of the registry client against a fake registry with injected faults. Each
//! request must succeed, or fail within a time limit with a clear error.

mod access;
mod addresses;
mod blobs;
mod documents;
mod network;
mod pass_through;
mod ranges;
mod reach;
mod reload;

use std::time::Duration;

use pierhead_oci::{Digest, Hasher, Reference, Registry, Repository};
use pierhead_remote::{
    BlobStream, Client, Config, Credentials, DocumentResponse, Error, Upstream, Validators,
};
use pierhead_testkit::images::Image;
use pierhead_testkit::registry::{Builder, FakeRegistry, Fault};

const REPOSITORY: &str = "library/thing";
const SIZE: usize = 300_000;

/// Time limit of one operation. An operation that takes longer counts as hanging.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A fake registry with one image of one layer of [`SIZE`] bytes, and a client that knows the
/// registry as `up.example`.
struct Pair {
    upstream: FakeRegistry,
    client: Client,
    image: Image,
}

impl Pair {
    async fn start() -> Self {
        Self::with(FakeRegistry::builder(), |_, _| {}).await
    }

    async fn with(builder: Builder, change: impl FnOnce(&mut Config, &mut Upstream)) -> Self {
        let upstream = builder.start().await;
        let image = Image::random(7, &[SIZE]);
        upstream.push(REPOSITORY, "latest", &image);
        let mut config = Config {
            connect_timeout: Duration::from_secs(2),
            header_timeout: Duration::from_millis(700),
            upstream_timeout: Duration::from_millis(700),
            ..Config::default()
        };
        let mut entry = Upstream {
            url: upstream.url(),
            // The token server and the CDN have other ports than the registry.
            trusted_hosts: vec!["http://127.0.0.1".to_owned()],
            ..Upstream::default()
        };
        change(&mut config, &mut entry);
        config.upstreams.insert(name(), entry);
        let client = Client::new(config).expect("a good configuration");
        Self {
            upstream,
            client,
            image,
        }
    }

    fn layer(&self) -> Digest {
        self.image.blobs[1].digest
    }

    async fn manifest(&self) -> Result<DocumentResponse, Error> {
        within_timeout(
            self.client
                .manifest(&reference(":latest"), &Validators::default()),
        )
        .await
    }

    /// Reads the layer from `offset` on. Returns the bytes that were received, and the result.
    async fn pull(&self, offset: u64) -> (Vec<u8>, Result<(), Error>) {
        let mut received = Vec::new();
        let ended = within_timeout(async {
            let mut stream = self
                .client
                .blob(&name(), &repository(), &self.layer(), offset)
                .await?;
            assert_eq!(stream.offset(), offset, "the upstream can resume");
            while let Some(bytes) = stream.next().await {
                received.extend_from_slice(&bytes?);
            }
            Ok(())
        });
        let ended = ended.await;
        let truth = &self.image.blobs[1].bytes[usize::try_from(offset).expect("small")..];
        assert!(
            truth.starts_with(&received),
            "{} bytes, some of them wrong",
            received.len()
        );
        assert!(
            ended.is_err() || received.len() == truth.len(),
            "only {} bytes without an error",
            received.len()
        );
        (received, ended)
    }

    /// Opens the layer from its beginning.
    async fn stream(&self) -> BlobStream {
        self.client
            .blob(&name(), &repository(), &self.layer(), 0)
            .await
            .expect("a stream")
    }

    /// Pulls the layer, and asserts that it arrives completely by this number of GET requests.
    async fn assert_pull_in(&self, gets: usize) {
        let (_, ended) = self.pull(0).await;
        ended.expect("the whole layer");
        assert_eq!(self.upstream.gets_of(&self.layer()), gets);
    }
}

/// Runs an operation, and panics when it takes longer than [`TEST_TIMEOUT`].
async fn within_timeout<T>(operation: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, operation)
        .await
        .expect("a result within the test timeout")
}

/// Runs `test` for all faults in parallel, because most tests wait for time limits.
async fn for_each_fault<const N: usize>(faults: [Fault; N], test: impl AsyncFn(Fault)) {
    futures_util::future::join_all(faults.map(|fault| test(fault))).await;
}

fn name() -> Registry {
    "up.example".parse().expect("a registry")
}

fn repository() -> Repository {
    REPOSITORY.parse().expect("a repository")
}

/// Returns a reference to an image in the test's repository. `target` has the form `:tag` or
/// `@digest`.
fn reference(target: &str) -> Reference {
    format!("up.example/{REPOSITORY}{target}")
        .parse()
        .expect("a reference")
}

fn user(user: &str, password: &str) -> Credentials {
    Credentials::Basic {
        user: user.to_owned(),
        password: password.to_owned().into(),
    }
}
