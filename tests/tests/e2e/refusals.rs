//! Machines that are not as they should be: `serve` says what is wrong and how to mend it, and ends with a code that
//! says whose turn it is.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use anyhow::{Context, Result};
use pierhead_testkit::registry::{Authority, FakeRegistry};
use pierhead_tests::{
    namespace,
    pierhead::{self, Options, Pierhead},
    place,
    tool::or_skip,
};

use crate::ask::get;
use crate::doctor::{doctor, one};

/// Ends with this code and all of these words.
#[track_caller]
fn refused(options: &Options, code: i32, words: &[&str]) -> Result<()> {
    let caller = std::panic::Location::caller();
    let (status, said) = Pierhead::refuses(options)?;
    assert_eq!(status.code(), Some(code), "{caller}: {said}");
    for word in words {
        assert!(
            said.contains(word),
            "{caller}: {word:?} is missing in: {said}"
        );
    }
    Ok(())
}

/// A Secret as the kubelet mounts it: each key is a link to a folder of the version, which is a link, too.
#[test]
fn a_secret_that_is_missing() -> Result<()> {
    let folder = place::scratch("secret")?;
    let secret = folder.path().join("secret");
    let data = folder.path().join("data");
    let options = || {
        Options::new().data(&data).config(&format!(
            "\n[upstreams.\"registry.example\"]\nusername = \"me\"\npassword_file = {:?}",
            secret.join("password")
        ))
    };
    let at = [
        "pierhead.toml:2: ",
        "[upstreams.\"registry.example\"] password_file",
        "No such file",
    ];
    let with = |more: &[&'static str]| [&at[..], more].concat();
    refused(&options(), 66, &with(&["secret is not there", "mounted"]))?;
    // The version is there and lacks the key; then the link of the version leads nowhere.
    let version = secret.join("..2026_11_22");
    fs::create_dir_all(&version)?;
    symlink("..2026_11_22", secret.join("..data"))?;
    refused(&options(), 66, &with(&["has no \"password\""]))?;
    symlink("..data/password", secret.join("password"))?;
    refused(
        &options(),
        66,
        &with(&["a link to ..data/password", "lost this key"]),
    )?;
    fs::write(version.join("password"), "\n")?;
    refused(&options(), 65, &["pierhead.toml:2: ", "password is empty"])?;
    assert!(!data.exists(), "the data folder was taken before");
    fs::write(version.join("password"), "word")?;
    Pierhead::start(options())?.stop()?;
    Ok(())
}

#[test]
fn a_secret_that_others_own() -> Result<()> {
    let folder = place::scratch("secret")?;
    let password = folder.path().join("password");
    fs::write(&password, "word")?;
    deny(&password, 0o000)?;
    let options = Options::new()
        .inside(namespace::powerless())
        .config(&format!(
            "[upstreams.\"registry.example\"]\nusername = \"me\"\npassword_file = {password:?}"
        ));
    refused(
        &options,
        66,
        &["Permission denied", "this is user", "fsGroup"],
    )
}

fn deny(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

#[test]
fn a_data_folder_of_another_user() -> Result<()> {
    let folder = place::scratch("data")?;
    let data = folder.path().join("data");
    fs::create_dir(&data)?;
    deny(&data, 0o500)?;
    let options = Options::new().data(&data).inside(namespace::powerless());
    refused(
        &options,
        77,
        &[
            "data: ",
            "Permission denied",
            "belongs to user",
            "mode 0500",
            "chmod u+rwX",
        ],
    )
}

#[test]
fn a_data_folder_that_is_a_file() -> Result<()> {
    let folder = place::scratch("data")?;
    let data = folder.path().join("data");
    fs::write(&data, "a")?;
    refused(
        &Options::new().data(&data),
        73,
        &["data: ", "name a folder"],
    )
}

#[test]
fn a_data_folder_that_is_read_only() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let folder = place::scratch("data")?;
    let mounted = folder.path().join("mounted");
    fs::create_dir(&mounted)?;
    let shown = mounted.display();
    let mount = format!("mount --bind {shown} {shown}\nmount -o remount,bind,ro {shown}");
    // The volume itself, and a folder that is to be made in it.
    for data in [mounted.clone(), mounted.join("data")] {
        let options = Options::new()
            .data(&data)
            .inside(namespace::mounted(&mount));
        refused(
            &options,
            73,
            &["data: ", "Read-only file system", "findmnt"],
        )?;
    }
    assert_eq!(fs::read_dir(&mounted)?.count(), 0, "something was written");
    Ok(())
}

#[test]
fn a_data_folder_on_a_full_disk() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let folder = place::scratch("data")?;
    let mounted = folder.path().join("mounted");
    fs::create_dir(&mounted)?;
    let shown = mounted.display();
    let mount = format!(
        "mount -t tmpfs -o size=256k tmpfs {shown}\nhead -c 1048576 /dev/zero > {shown}/other 2>/dev/null || :"
    );
    let options = Options::new()
        .data(&mounted.join("data"))
        .inside(namespace::mounted(&mount));
    refused(
        &options,
        74,
        &["data: ", "No space left", "df -h", "is safe"],
    )
}

/// Bytes that are no text: of the configuration, and of a file that it names.
#[test]
fn files_that_are_no_text() -> Result<()> {
    let folder = place::scratch("binary")?;
    let password = folder.path().join("password");
    fs::write(&password, b"\xff\xfe\0")?;
    let options = Options::new().config(&format!(
        "[upstreams.\"registry.example\"]\nusername = \"me\"\npassword_file = {password:?}"
    ));
    refused(&options, 65, &["pierhead.toml:1: ", "is no text (UTF-8)"])?;
    let file = password.to_str().context("UTF-8")?;
    let options = Options::new().argument("--config").argument(file);
    refused(&options, 2, &["this is no text (UTF-8)"])
}

/// Addresses that cannot be had, for three reasons.
#[test]
fn addresses_that_cannot_be_had() -> Result<()> {
    let other = std::net::TcpListener::bind("127.0.0.1:0")?;
    let taken = other.local_addr()?.to_string();
    let listen = |address: &str| Options::new().argument("--listen").argument(address);
    refused(
        &listen(&taken),
        69,
        &["cannot listen on", &taken, "ss -ltnp"],
    )?;
    // Set aside for examples: no machine has it.
    refused(
        &listen("192.0.2.77:0"),
        68,
        &["192.0.2.77", "ip -br address"],
    )?;
    let powerless = listen("127.0.0.1:7").inside(namespace::powerless());
    // Where every user may take any port there is nothing to refuse.
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")?;
    if first.trim().parse::<u16>()? > 7 {
        refused(&powerless, 77, &["127.0.0.1:7", "CAP_NET_BIND_SERVICE"])?;
    }
    Ok(())
}

/// A fast tier on tmpfs is memory: more than the machine has is told by its line, and nothing is made.
#[test]
fn a_tier_in_memory_that_does_not_fit() -> Result<()> {
    let options = Options::new().config(
        "tier.kind = \"file\"\ntier.path = \"/dev/shm/pierhead-never-made\"\ntier.size = \"900TiB\"",
    );
    refused(
        &options,
        71,
        &[
            "pierhead.toml:3: ",
            "tier.size",
            "lies in memory",
            "put tier.path onto a disk",
        ],
    )?;
    assert!(!Path::new("/dev/shm/pierhead-never-made").exists());
    Ok(())
}

/// What trusts nobody, or nothing that is an authority.
#[test]
fn authorities_that_are_none() -> Result<()> {
    let folder = place::scratch("ca")?;
    let ca = folder.path().join("ca.crt");
    let options =
        || Options::new().config(&format!("[upstreams.\"registry.example\"]\nca = {ca:?}"));
    let at = ["pierhead.toml:1: ", "[upstreams.\"registry.example\"] ca"];
    let with = |more: &'static str| [&at[..], &[more]].concat();
    refused(&options(), 66, &with("No such file"))?;
    fs::write(&ca, "nothing\n")?;
    refused(&options(), 76, &with("BEGIN CERTIFICATE is expected"))?;
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(&ca, garbage)?;
    refused(&options(), 76, &with("no certificate of an authority"))
}

/// The certificate of the default upstream is not valid by this machine's clock, and the cache is empty. Whatever an
/// upstream presents, the daemon serves on, and it recovers without a restart.
#[test]
fn an_invalid_certificate_of_the_default_upstream_ends_no_daemon() -> Result<()> {
    for (from, to, date) in [(2099, 2100, "01 Jan 2099"), (2000, 2001, "01 Jan 2001")] {
        let hub = FakeRegistry::builder()
            .tls()
            .tls_between(from, to)
            .start_in_background();
        let folder = place::scratch("clock")?;
        let ca = folder.path().join("ca.crt");
        fs::write(&ca, hub.ca_pem())?;
        let config = format!(
            "[upstreams.\"docker.io\"]\naddresses = {:?}\nca = {ca:?}",
            hub.url()
        );
        let mut pierhead = Pierhead::start(Options::new().config(&config))?;
        let words = ["the clock is wrong", "by this machine's clock it is", date];
        // A client reads it, and the log has it.
        let answer = get(pierhead.address(), "/v2/library/app/manifests/1")?;
        let body = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 503, "{body}");
        // Longer than the second within which it once ended.
        let ended = pierhead.daemon().wait(Duration::from_secs(2));
        let log = pierhead.log();
        assert!(ended.is_err(), "{ended:?}: {log}");
        assert_eq!(get(pierhead.address(), "/v2/")?.status, 200, "{log}");
        assert_eq!(get(pierhead.admin(), "/readyz")?.status, 200, "{log}");
        assert!(log.contains("timedatectl set-ntp true"), "{log}");
        for word in words {
            assert!(body.contains(word), "{word:?} is missing in: {body}");
            assert!(log.contains(word), "{word:?} is missing in the log: {log}");
        }
        let file = folder.path().join("doctor.toml");
        fs::write(
            &file,
            format!("listen = \"127.0.0.1:0\"\nadmin = \"off\"\n{config}"),
        )?;
        let (code, findings) = doctor(&["--config", file.to_str().context("UTF-8")?])?;
        let (level, what) = one(&findings, "upstream docker.io");
        assert_eq!((code, level), (75, "fail"), "{findings:#?}");
        assert!(words.iter().all(|word| what.contains(word)), "{what}");
    }
    Ok(())
}

/// A worker's own way to its pierhead: the clock and a stranger's certificate have a code each, and neither is tried again.
#[test]
fn a_worker_tells_a_wrong_clock_from_a_stranger() -> Result<()> {
    let folder = place::scratch("worker")?;
    let ca = folder.path().join("ca.crt");
    let authority = std::sync::Arc::new(Authority::new());
    fs::write(&ca, authority.pem())?;
    let server = || FakeRegistry::builder().tls();
    let known = || server().authority(authority.clone());
    for (server, code, word) in [
        (known().tls_between(2099, 2100), 75, "the clock is wrong"),
        (server(), 76, "invalid peer certificate"),
    ] {
        let server = server.start_in_background();
        let store = folder.path().join(format!("store-{code}"));
        let words = [
            "pull",
            "docker.io/library/app:1",
            "--via",
            &server.url(),
            "--ca",
            ca.to_str().context("UTF-8")?,
            "--into",
            store.to_str().context("UTF-8")?,
        ];
        let (status, said) = pierhead::run(&words)?;
        assert_eq!(status.code(), Some(code), "{said}");
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    Ok(())
}
