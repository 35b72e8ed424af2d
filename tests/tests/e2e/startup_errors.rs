//! End-to-end tests of startup errors: for each fault of the machine, `serve` prints the cause and
//! the fix. The exit code tells who has to act, such as the author of the configuration.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use anyhow::{Context, Result};
use pierhead_testkit::registry::{Authority, FakeRegistry};
use pierhead_tests::{
    namespace, paths,
    pierhead::{self, Options, Pierhead},
    tool::or_skip,
};

use crate::doctor::{doctor, one};
use crate::requests::get;

/// Asserts that `serve` exits with this code and prints all of these words.
#[track_caller]
fn assert_refused(options: &Options, code: i32, words: &[&str]) -> Result<()> {
    let caller = std::panic::Location::caller();
    let (status, output) = Pierhead::refuses(options)?;
    assert_eq!(status.code(), Some(code), "{caller}: {output}");
    for word in words {
        assert!(
            output.contains(word),
            "{caller}: {word:?} is missing in: {output}"
        );
    }
    Ok(())
}

/// A Secret as the kubelet mounts it: each key is a symbolic link into a versioned folder, and the
/// path of this folder is a symbolic link, too.
#[test]
fn a_missing_secret_is_an_error() -> Result<()> {
    let folder = paths::scratch("secret")?;
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
    assert_refused(&options(), 66, &with(&["secret does not exist", "mounted"]))?;
    // First the versioned folder has no such key, then the symbolic link has no target.
    let version = secret.join("..2026_11_22");
    fs::create_dir_all(&version)?;
    symlink("..2026_11_22", secret.join("..data"))?;
    assert_refused(&options(), 66, &with(&["has no \"password\""]))?;
    symlink("..data/password", secret.join("password"))?;
    assert_refused(
        &options(),
        66,
        &with(&["a link to ..data/password", "still has this key"]),
    )?;
    fs::write(version.join("password"), "\n")?;
    assert_refused(&options(), 65, &["pierhead.toml:2: ", "password is empty"])?;
    assert!(!data.exists(), "the data folder was opened before");
    fs::write(version.join("password"), "word")?;
    Pierhead::start(options())?.stop()?;
    Ok(())
}

#[test]
fn an_unreadable_secret_is_an_error() -> Result<()> {
    let folder = paths::scratch("secret")?;
    let password = folder.path().join("password");
    fs::write(&password, "word")?;
    deny(&password, 0o000)?;
    let options = Options::new()
        .inside(namespace::without_capabilities())
        .config(&format!(
            "[upstreams.\"registry.example\"]\nusername = \"me\"\npassword_file = {password:?}"
        ));
    assert_refused(
        &options,
        66,
        &["Permission denied", "runs as user", "fsGroup"],
    )
}

fn deny(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

#[test]
fn a_data_folder_of_another_user_is_an_error() -> Result<()> {
    let folder = paths::scratch("data")?;
    let data = folder.path().join("data");
    fs::create_dir(&data)?;
    deny(&data, 0o500)?;
    let options = Options::new()
        .data(&data)
        .inside(namespace::without_capabilities());
    assert_refused(
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
fn a_pin_without_read_permission_is_an_error() -> Result<()> {
    let folder = paths::scratch("data")?;
    let data = folder.path().join("data");
    let pin = data.join("pins").join("0".repeat(64));
    fs::create_dir_all(data.join("pins"))?;
    fs::write(data.join("version"), "1\n")?;
    fs::write(&pin, "")?;
    deny(&pin, 0o000)?;
    let options = Options::new()
        .data(&data)
        .inside(namespace::without_capabilities());
    let shown = pin.display().to_string();
    assert_refused(
        &options,
        77,
        &[
            "data: cannot read the pin ",
            &shown,
            "Permission denied",
            "mode 0000",
            "chmod u+rwX",
        ],
    )?;
    assert!(pin.exists(), "the pin was deleted");
    Ok(())
}

#[test]
fn a_file_as_the_data_folder_is_an_error() -> Result<()> {
    let folder = paths::scratch("data")?;
    let data = folder.path().join("data");
    fs::write(&data, "a")?;
    assert_refused(
        &Options::new().data(&data),
        73,
        &["data: ", "set data to a folder"],
    )
}

#[test]
fn a_data_folder_that_cannot_be_created_is_an_error() -> Result<()> {
    let folder = paths::scratch("data")?;
    let data = folder.path().join("data");
    symlink("missing", &data)?;
    assert_refused(
        &Options::new().data(&data),
        73,
        &["data: ", "is a link to missing", "create that folder"],
    )
}

#[test]
fn a_read_only_data_folder_is_an_error() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let folder = paths::scratch("data")?;
    let mounted = folder.path().join("mounted");
    fs::create_dir(&mounted)?;
    let shown = mounted.display();
    let mount = format!("mount --bind {shown} {shown}\nmount -o remount,bind,ro {shown}");
    // Tests the mounted volume itself, and a missing folder in the volume.
    for data in [mounted.clone(), mounted.join("data")] {
        let options = Options::new()
            .data(&data)
            .inside(namespace::mounted(&mount));
        assert_refused(
            &options,
            73,
            &["data: ", "Read-only file system", "findmnt"],
        )?;
    }
    assert_eq!(fs::read_dir(&mounted)?.count(), 0, "a file was written");
    Ok(())
}

#[test]
fn a_data_folder_on_a_full_disk_is_an_error() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let folder = paths::scratch("data")?;
    let mounted = folder.path().join("mounted");
    fs::create_dir(&mounted)?;
    let shown = mounted.display();
    let mount = format!(
        "mount -t tmpfs -o size=256k tmpfs {shown}\nhead -c 1048576 /dev/zero > {shown}/other 2>/dev/null || :"
    );
    let options = Options::new()
        .data(&mounted.join("data"))
        .inside(namespace::mounted(&mount));
    assert_refused(
        &options,
        74,
        &["data: ", "No space left", "df -h", "are intact"],
    )
}

/// Tests a configuration that is not UTF-8, and a file that it names that is not UTF-8.
#[test]
fn files_that_are_not_utf8_are_errors() -> Result<()> {
    let folder = paths::scratch("binary")?;
    let password = folder.path().join("password");
    fs::write(&password, b"\xff\xfe\0")?;
    let options = Options::new().config(&format!(
        "[upstreams.\"registry.example\"]\nusername = \"me\"\npassword_file = {password:?}"
    ));
    assert_refused(&options, 65, &["pierhead.toml:1: ", "is not UTF-8 text"])?;
    let file = password.to_str().context("UTF-8")?;
    let options = Options::new().argument("--config").argument(file);
    assert_refused(&options, 2, &["is not UTF-8 text"])
}

/// Tests addresses on which pierhead cannot listen, for three reasons.
#[test]
fn unusable_addresses_are_errors() -> Result<()> {
    let other = std::net::TcpListener::bind("127.0.0.1:0")?;
    let taken = other.local_addr()?.to_string();
    let listen = |address: &str| Options::new().argument("--listen").argument(address);
    assert_refused(
        &listen(&taken),
        69,
        &["cannot listen on", &taken, "ss -ltnp"],
    )?;
    // An address of the documentation range, which no machine has.
    assert_refused(
        &listen("192.0.2.77:0"),
        68,
        &["192.0.2.77", "ip -br address"],
    )?;
    let without_capabilities = listen("127.0.0.1:7").inside(namespace::without_capabilities());
    // Skips this check on machines where every user may bind any port.
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")?;
    if first.trim().parse::<u16>()? > 7 {
        assert_refused(
            &without_capabilities,
            77,
            &["127.0.0.1:7", "CAP_NET_BIND_SERVICE"],
        )?;
    }
    Ok(())
}

/// A fast tier on tmpfs that is larger than the machine's memory. The error names the line of the
/// configuration, and pierhead creates no file.
#[test]
fn a_tier_larger_than_the_memory_is_an_error() -> Result<()> {
    let options = Options::new().config(
        "tier.kind = \"file\"\ntier.path = \"/dev/shm/pierhead-never-made\"\ntier.size = \"900TiB\"",
    );
    assert_refused(
        &options,
        71,
        &[
            "pierhead.toml:3: ",
            "tier.size",
            "is on a tmpfs",
            "move tier.path to a disk",
        ],
    )?;
    assert!(!Path::new("/dev/shm/pierhead-never-made").exists());
    Ok(())
}

/// Tests CA files that are missing, empty, or without a CA certificate.
#[test]
fn invalid_ca_files_are_errors() -> Result<()> {
    let folder = paths::scratch("ca")?;
    let ca = folder.path().join("ca.crt");
    let options =
        || Options::new().config(&format!("[upstreams.\"registry.example\"]\nca = {ca:?}"));
    let at = ["pierhead.toml:1: ", "[upstreams.\"registry.example\"] ca"];
    let with = |more: &'static str| [&at[..], &[more]].concat();
    assert_refused(&options(), 66, &with("No such file"))?;
    fs::write(&ca, "nothing\n")?;
    assert_refused(&options(), 76, &with("with BEGIN CERTIFICATE"))?;
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(&ca, garbage)?;
    assert_refused(&options(), 76, &with("not valid as a CA"))
}

/// By this machine's clock, the certificate of the default upstream is not valid, and the cache is
/// empty. The daemon must keep running, and must recover without a restart.
#[test]
fn an_invalid_certificate_of_the_default_upstream_does_not_stop_the_daemon() -> Result<()> {
    for (from, to, date) in [(2099, 2100, "01 Jan 2099"), (2000, 2001, "01 Jan 2001")] {
        let hub = FakeRegistry::builder()
            .tls()
            .tls_between(from, to)
            .start_in_background();
        let folder = paths::scratch("clock")?;
        let ca = folder.path().join("ca.crt");
        fs::write(&ca, hub.ca_pem())?;
        let config = format!(
            "[upstreams.\"docker.io\"]\naddresses = {:?}\nca = {ca:?}",
            hub.url()
        );
        let mut pierhead = Pierhead::start(Options::new().config(&config))?;
        let words = ["the clock is wrong", "by this machine's clock it is", date];
        // The response to the client and the log of pierhead state the reason.
        let response = get(pierhead.address(), "/v2/library/app/manifests/1")?;
        let body = String::from_utf8_lossy(&response.body);
        assert_eq!(response.status, 503, "{body}");
        // The daemon must run longer than one second. A faulty version exited after this time.
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

/// `pierhead pull` has different exit codes for a wrong clock and for an untrusted certificate, and
/// does not retry in either case.
#[test]
fn a_worker_distinguishes_a_wrong_clock_from_an_untrusted_certificate() -> Result<()> {
    let folder = paths::scratch("worker")?;
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
        let (status, output) = pierhead::run(&words)?;
        assert_eq!(status.code(), Some(code), "{output}");
        assert!(output.contains(word), "{word:?} is missing in: {output}");
    }
    Ok(())
}
