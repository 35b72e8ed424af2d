//! Tests of the DNS resolver: caching, search domains, several name servers, limits, and changes of
//! the system files.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::A;
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use pierhead_testkit::wait::until_async;
use tokio::net::UdpSocket;

use super::*;

/// Time limit of a lookup in these tests. A lookup that takes longer counts as hanging.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of concurrent lookups of one resolver. Each lookup sends two queries, so a lookup has
/// several sockets.
const LOOKUPS: usize = 32;

/// How the fake server answers a query. The names that the fake server gets have no trailing dot.
enum FakeAnswer {
    Address(u8),
    /// An answer with this TTL in seconds.
    SharedLimits(u8, u32),
    NoSuchName,
    /// An answer after this delay.
    Late(Duration, u8),
    Failure,
    Nothing,
    /// One answer to queries of type A and another answer to queries of type AAAA.
    Apart(&'static FakeAnswer, &'static FakeAnswer),
}

/// A fake name server on a loopback address that counts A queries.
struct NameServer {
    questions: Arc<AtomicUsize>,
    port: u16,
}

impl NameServer {
    async fn start(
        ip: &str,
        port: u16,
        respond: impl Fn(&str) -> FakeAnswer + Send + 'static,
    ) -> Self {
        let socket = Arc::new(UdpSocket::bind((ip, port)).await.expect("a port"));
        let port = socket.local_addr().expect("an address").port();
        let questions = Arc::new(AtomicUsize::new(0));
        let count = questions.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            let mut seen = HashSet::new();
            loop {
                let Ok((length, peer)) = socket.recv_from(&mut buffer).await else {
                    continue;
                };
                let question = Message::from_vec(&buffer[..length]).expect("a question");
                let query = question.queries[0].clone();
                let is_v4 = query.query_type() == RecordType::A;
                // A query that is sent again has the same ID and is not counted again.
                if is_v4 && seen.insert(question.id) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                let name = query.name().to_ascii();
                let mut answer = question.into_response();
                let mut address = |last, ttl| {
                    if is_v4 {
                        let data = RData::A(A(Ipv4Addr::new(192, 0, 2, last)));
                        let name = query.name().clone();
                        answer.add_answer(Record::from_rdata(name, ttl, data));
                    }
                };
                let mut delay = Duration::ZERO;
                let said = respond(name.trim_end_matches('.'));
                let said = match &said {
                    FakeAnswer::Apart(four, six) => {
                        if is_v4 {
                            four
                        } else {
                            six
                        }
                    }
                    said => said,
                };
                match *said {
                    FakeAnswer::Address(last) => address(last, 300),
                    FakeAnswer::Late(by, last) => {
                        delay = by;
                        address(last, 300);
                    }
                    FakeAnswer::SharedLimits(last, ttl) => address(last, ttl),
                    FakeAnswer::NoSuchName => {
                        answer.metadata.response_code = ResponseCode::NXDomain
                    }
                    FakeAnswer::Failure => answer.metadata.response_code = ResponseCode::ServFail,
                    FakeAnswer::Nothing | FakeAnswer::Apart(..) => continue,
                }
                let bytes = answer.to_vec().expect("an answer");
                let socket = socket.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    // The send is not checked, because the client may have closed its socket.
                    let _ = socket.send_to(&bytes, peer).await;
                });
            }
        });
        Self { questions, port }
    }

    /// Starts a fake name server on any free port of 127.0.0.1.
    async fn on_loopback(respond: impl Fn(&str) -> FakeAnswer + Send + 'static) -> Self {
        Self::start("127.0.0.1", 0, respond).await
    }

    fn queries(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }
}

/// A folder with a resolv.conf file and a hosts file.
struct SystemFolder {
    folder: tempfile::TempDir,
    files: SystemFiles,
}

impl SystemFolder {
    fn new(resolv_conf: &str, hosts: &str, port: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let files = SystemFiles {
            resolv_conf: folder.path().join("resolv.conf"),
            hosts: folder.path().join("hosts"),
            port,
        };
        let system = Self { folder, files };
        system.write("resolv.conf", resolv_conf);
        system.write("hosts", hosts);
        system
    }

    fn write(&self, name: &str, text: &str) {
        let path: &Path = self.folder.path();
        std::fs::write(path.join(name), text).expect("written");
    }

    fn resolver(&self) -> SystemResolver {
        SystemResolver::bounded(self.files.clone(), DnsMetrics::default(), LOOKUPS)
    }
}

async fn lookup(resolver: &SystemResolver, host: &str) -> Result<Vec<String>, LookupError> {
    let answer = timeout(TEST_TIMEOUT, resolver.lookup(host)).await;
    let addresses = answer.expect("an answer, and soon")?;
    Ok(addresses.iter().map(ToString::to_string).collect())
}

#[tokio::test]
async fn a_silent_name_server_delays_neither_threads_nor_cached_answers() {
    let server = NameServer::on_loopback(|name| match name {
        "known.example" => FakeAnswer::Address(1),
        _ => FakeAnswer::Nothing,
    })
    .await;
    let system = SystemFolder::new(
        "nameserver 127.0.0.1",
        "192.0.2.9 host.example",
        server.port,
    );
    let resolver = system.resolver();
    assert_eq!(
        lookup(&resolver, "known.example").await.unwrap(),
        ["192.0.2.1"]
    );
    // The number of lookups is twice the number that may run at once.
    let silent: Vec<_> = (0..2 * LOOKUPS)
        .map(|nth| {
            let resolver = resolver.clone();
            tokio::spawn(async move { lookup(&resolver, &format!("r{nth}.example")).await })
        })
        .collect();
    let are_running = || resolver.0.running.available_permits() == 0;
    until_async("all lookups that may run at once", are_running).await;
    // Cached names, hosts entries and blocking work do not wait for the lookups that hang.
    assert_eq!(
        lookup(&resolver, "known.example").await.unwrap(),
        ["192.0.2.1"]
    );
    assert_eq!(
        lookup(&resolver, "host.example").await.unwrap(),
        ["192.0.2.9"]
    );
    tokio::task::spawn_blocking(|| ()).await.expect("a thread");
    assert_eq!(resolver.0.running.available_permits(), 0, "they still run");
    let mut results = Vec::new();
    for task in silent {
        results.push(task.await.expect("a result"));
    }
    let timeouts = |result: &&_| matches!(result, Err(LookupError::Timeout));
    let busy = |result: &&_| matches!(result, Err(LookupError::Busy));
    assert_eq!(results.iter().filter(timeouts).count(), LOOKUPS);
    assert_eq!(results.iter().filter(busy).count(), LOOKUPS);
    assert_eq!(resolver.0.running.available_permits(), LOOKUPS);
}

/// Advances the clock of tokio. The clock runs again afterwards, because name servers of these tests
/// answer in real time.
async fn let_time_pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn lookups_recover_when_a_silent_name_server_answers_again() {
    let is_silent = Arc::new(AtomicBool::new(true));
    let silent = is_silent.clone();
    let server = NameServer::on_loopback(move |_| match silent.load(Ordering::SeqCst) {
        true => FakeAnswer::Nothing,
        false => FakeAnswer::Address(1),
    })
    .await;
    let resolver = SystemFolder::new("nameserver 127.0.0.1", "", server.port).resolver();
    let names: Vec<_> = (0..LOOKUPS).map(|nth| format!("r{nth}.example")).collect();
    let lookups = names.iter().map(|name| lookup(&resolver, name));
    for failed in futures_util::future::join_all(lookups).await {
        assert!(matches!(failed, Err(LookupError::Timeout)), "{failed:?}");
    }
    is_silent.store(false, Ordering::SeqCst);
    let other = lookup(&resolver, "other.example").await;
    assert_eq!(other.unwrap(), ["192.0.2.1"], "at once");
    // The failures are cached for a short time.
    let_time_pass(FAILURE_TTL).await;
    for name in &names {
        lookup(&resolver, name).await.expect("an address");
    }
    assert_eq!(resolver.0.running.available_permits(), LOOKUPS);
}

#[tokio::test]
async fn answers_are_cached_for_their_ttl() {
    let server = NameServer::on_loopback(|name| match name {
        "a.example" => FakeAnswer::Address(1),
        "short.example" => FakeAnswer::SharedLimits(2, 0),
        _ => FakeAnswer::NoSuchName,
    })
    .await;
    let system = SystemFolder::new("nameserver 127.0.0.1", "", server.port);
    let resolver = system.resolver();
    for _ in 0..3 {
        assert_eq!(lookup(&resolver, "a.example").await.unwrap(), ["192.0.2.1"]);
    }
    assert_eq!(server.queries(), 1);
    for _ in 0..3 {
        let none = lookup(&resolver, "none.example").await;
        assert!(matches!(none, Err(LookupError::NotFound)), "{none:?}");
    }
    assert_eq!(server.queries(), 2);
    for _ in 0..3 {
        let short = lookup(&resolver, "short.example").await;
        short.expect("an address");
    }
    assert_eq!(server.queries(), 3, "an answer expired early");
    let_time_pass(MIN_TTL).await;
    lookup(&resolver, "short.example")
        .await
        .expect("an address");
    assert_eq!(server.queries(), 4);
    for name in ["a.example", "none.example"] {
        let _ = lookup(&resolver, name).await;
    }
    assert_eq!(server.queries(), 4, "longer lifetimes have not ended");
    // A second resolver has a cache of its own.
    lookup(&system.resolver(), "a.example")
        .await
        .expect("an address");
    assert_eq!(server.queries(), 5);
}

#[test]
fn cache_times_are_bounded() {
    let found = |ttl| {
        let addresses = [IpAddr::from([192, 0, 2, 1])].into();
        let ttl = Duration::from_secs(ttl);
        cache_time(&Ok(name_servers::FoundAddresses { addresses, ttl }))
    };
    assert_eq!(found(0), MIN_TTL);
    assert_eq!(found(30), Duration::from_secs(30));
    assert_eq!(found(86_400), MAX_TTL);
    assert_eq!(cache_time(&Err(LookupError::NotFound)), NEGATIVE_TTL);
    assert_eq!(cache_time(&Err(LookupError::Timeout)), FAILURE_TTL);
}

/// The answer of the first server decides, because the second server may know other names: only the
/// first server may know internal names.
#[tokio::test]
async fn the_first_name_server_that_answers_decides() {
    let first = NameServer::on_loopback(|name| match name {
        "internal.example" => FakeAnswer::Address(1),
        "broken.example" => FakeAnswer::Failure,
        "silent.example" => FakeAnswer::Nothing,
        _ => FakeAnswer::NoSuchName,
    })
    .await;
    let second = NameServer::start("127.0.0.2", first.port, |name| match name {
        "broken.example" => FakeAnswer::Address(2),
        "silent.example" => FakeAnswer::Address(3),
        "outside.example" => FakeAnswer::Address(4),
        _ => FakeAnswer::NoSuchName,
    })
    .await;
    let conf = "nameserver 127.0.0.1\nnameserver 127.0.0.2\n";
    let system = SystemFolder::new(conf, "", first.port);
    let resolver = system.resolver();
    assert_eq!(
        lookup(&resolver, "internal.example").await.unwrap(),
        ["192.0.2.1"]
    );
    let outside = lookup(&resolver, "outside.example").await;
    assert!(matches!(outside, Err(LookupError::NotFound)), "{outside:?}");
    assert_eq!(
        second.queries(),
        0,
        "a negative answer of the first server is final"
    );
    assert_eq!(
        lookup(&resolver, "broken.example").await.unwrap(),
        ["192.0.2.2"]
    );
    assert_eq!(
        lookup(&resolver, "silent.example").await.unwrap(),
        ["192.0.2.3"]
    );
}

/// In this test, the second name server is external and knows no internal names.
#[tokio::test]
async fn a_negative_answer_counts_when_the_earlier_servers_failed() {
    let first = NameServer::on_loopback(|name| match name {
        "internal.example" => FakeAnswer::Late(Duration::from_millis(1200), 1),
        _ => FakeAnswer::Nothing,
    })
    .await;
    let respond = |_: &str| FakeAnswer::NoSuchName;
    let second = NameServer::start("127.0.0.2", first.port, respond).await;
    let conf = "nameserver 127.0.0.1\nnameserver 127.0.0.2\n";
    let system = SystemFolder::new(conf, "", first.port);
    let resolver = system.resolver();
    let (internal, silent) = tokio::join!(
        lookup(&resolver, "internal.example"),
        lookup(&resolver, "silent.example"),
    );
    assert_eq!(second.queries(), 2);
    assert_eq!(internal.unwrap(), ["192.0.2.1"]);
    assert!(matches!(silent, Err(LookupError::NotFound)), "{silent:?}");
}

#[tokio::test]
async fn each_family_of_addresses_has_its_own_answer() {
    // The fake server knows IPv4 addresses only.
    let server = NameServer::on_loopback(|name| match name {
        "failing.example" | "searched.a.example" => {
            FakeAnswer::Apart(&FakeAnswer::Failure, &FakeAnswer::Address(0))
        }
        "silent.example" => FakeAnswer::Apart(&FakeAnswer::Address(1), &FakeAnswer::Nothing),
        "refused.example" => FakeAnswer::Apart(&FakeAnswer::Address(2), &FakeAnswer::Failure),
        "none.example" => FakeAnswer::Apart(&FakeAnswer::NoSuchName, &FakeAnswer::Failure),
        _ => FakeAnswer::NoSuchName,
    })
    .await;
    let conf = "search a.example b.example\nnameserver 127.0.0.1\n";
    let system = SystemFolder::new(conf, "", server.port);
    let resolver = system.resolver();
    for unknown in ["failing.example.", "none.example.", "searched"] {
        let answer = lookup(&resolver, unknown).await;
        assert!(
            matches!(answer, Err(LookupError::Failed(_))),
            "{unknown}: {answer:?}"
        );
    }
    let refused = lookup(&resolver, "refused.example.").await;
    assert_eq!(refused.unwrap(), ["192.0.2.2"]);
    // If the lookup waited for the addresses of the other family, it would get the answer of the
    // second server.
    let _second = NameServer::start("127.0.0.2", server.port, |_| FakeAnswer::Address(9)).await;
    let conf = "nameserver 127.0.0.1\nnameserver 127.0.0.2\n";
    let system = SystemFolder::new(conf, "", server.port);
    let silent = lookup(&system.resolver(), "silent.example.").await;
    assert_eq!(silent.unwrap(), ["192.0.2.1"]);
}

#[tokio::test]
async fn resolv_conf_and_hosts_are_read() {
    let server = NameServer::on_loopback(|name| match name {
        "registry.corp.example" => FakeAnswer::Address(1),
        "a.b.corp.example" => FakeAnswer::Address(2),
        "a.b" => FakeAnswer::Address(3),
        "x.y.z" => FakeAnswer::Address(4),
        _ => FakeAnswer::NoSuchName,
    })
    .await;
    let conf = "# made by hand\nsearch corp.example\nnameserver 127.0.0.1\noptions ndots:2 trust-ad unknown\n";
    let hosts =
        "192.0.2.10 mirror mirror.example # ours\n2001:db8::1 mirror\n192.0.2.11 localhost\n";
    let system = SystemFolder::new(conf, hosts, server.port);
    let resolver = system.resolver();
    assert_eq!(lookup(&resolver, "registry").await.unwrap(), ["192.0.2.1"]);
    assert_eq!(
        lookup(&resolver, "a.b").await.unwrap(),
        ["192.0.2.2"],
        "ndots"
    );
    assert_eq!(
        lookup(&resolver, "a.b.").await.unwrap(),
        ["192.0.2.3"],
        "whole"
    );
    assert_eq!(lookup(&resolver, "x.y.z").await.unwrap(), ["192.0.2.4"]);
    let mirror = ["2001:db8::1", "192.0.2.10"];
    assert_eq!(lookup(&resolver, "mirror").await.unwrap(), mirror);
    assert_eq!(
        lookup(&resolver, "mirror.example").await.unwrap(),
        ["192.0.2.10"]
    );
    assert_eq!(
        lookup(&resolver, "192.0.2.12").await.unwrap(),
        ["192.0.2.12"]
    );
    assert_eq!(lookup(&resolver, "::1").await.unwrap(), ["::1"]);
    assert_eq!(
        lookup(&resolver, "localhost").await.unwrap(),
        ["192.0.2.11"]
    );
    let bare = SystemFolder::new("nameserver 127.0.0.1", "", server.port).resolver();
    let mut loopback = lookup(&bare, "localhost").await.unwrap();
    loopback.sort();
    assert_eq!(loopback, ["127.0.0.1", "::1"]);
    // If both files are missing, the name server is 127.0.0.1, by resolv.conf(5).
    for name in ["resolv.conf", "hosts"] {
        std::fs::remove_file(system.folder.path().join(name)).expect("removed");
    }
    assert_eq!(
        lookup(&system.resolver(), "x.y.z").await.unwrap(),
        ["192.0.2.4"]
    );
}

#[tokio::test]
async fn a_change_of_the_files_takes_effect() {
    let first = NameServer::on_loopback(|_| FakeAnswer::Address(1)).await;
    let _second = NameServer::start("127.0.0.2", first.port, |_| FakeAnswer::Address(2)).await;
    let system = SystemFolder::new("nameserver 127.0.0.1", "", first.port);
    let resolver = system.resolver();
    assert_eq!(lookup(&resolver, "a.example").await.unwrap(), ["192.0.2.1"]);
    system.write("resolv.conf", "# by DHCP\nnameserver 127.0.0.2");
    // Simulates the end of the check interval.
    *resolver.0.checked.lock() = None;
    assert_eq!(lookup(&resolver, "a.example").await.unwrap(), ["192.0.2.2"]);
    // If the files become malformed, the previous name servers stay in use.
    system.write(
        "resolv.conf",
        &format!("nameserver 127.0.0.1\nsearch {}", "x".repeat(100)),
    );
    *resolver.0.checked.lock() = None;
    assert_eq!(lookup(&resolver, "b.example").await.unwrap(), ["192.0.2.2"]);
}
