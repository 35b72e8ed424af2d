//! Checks that no log line, metric, response or printed configuration contains a secret, whether
//! operations succeed or fail.

use std::{collections::BTreeSet, fs, net::SocketAddr};

use anyhow::Result;
use pierhead_testkit::{
    http::Request,
    images::Image,
    registry::{Auth, Background, FakeRegistry, Fault, TokenAuth},
};
use pierhead_tests::{
    paths,
    pierhead::{Options, Pierhead, run},
    wait,
};

use crate::requests::ask;

/// Secrets of the test, each a unique text. A hostile or careless upstream puts the last of these
/// secrets into URLs.
const CLIENT: &str = "Zq1-client-password";
const WRONG: &str = "Zq2-mistyped-password";
const USER: &str = "Zq3-password-typed-as-user";
const UPSTREAM: &str = "Zq4-upstream-password";
const DOCKER: &str = "Zq5-docker-config-password";
const PASS_THROUGH: &str = "Zq6-guest-password";
const USERINFO: &str = "Zq7-password-in-a-url";
const SIGNATURE: &str = "Zq8-signature-of-a-url";
const REALM: &str = "Zq9-password-in-a-realm";
const BEARER: &str = "Zq0-bearer-of-a-client";
const SECRETS: [&str; 10] = [
    CLIENT,
    WRONG,
    USER,
    UPSTREAM,
    DOCKER,
    PASS_THROUGH,
    USERINFO,
    SIGNATURE,
    REALM,
    BEARER,
];

/// Base64 of `text`, at each of the three possible offsets within a longer text.
fn encoded(text: &str) -> Vec<String> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let at = |shift: usize| {
        let bytes = &text.as_bytes()[shift..];
        let whole = bytes.chunks_exact(3).map(|three| {
            let bits = three
                .iter()
                .fold(0_usize, |bits, byte| (bits << 8) | usize::from(*byte));
            [18, 12, 6, 0].map(|by| char::from(DIGITS[(bits >> by) & 63]))
        });
        whole.flatten().collect::<String>()
    };
    (0..3).map(at).collect()
}

fn login(user: &str, password: &str) -> String {
    // Extends the user name to a multiple of three bytes, because the base64 function of this test
    // has no padding.
    let mut user = user.to_owned();
    while !(user.len() + 1 + password.len()).is_multiple_of(3) {
        user.push('x');
    }
    format!("Basic {}", encoded(&format!("{user}:{password}"))[0])
}

/// All collected outputs, each with its source.
#[derive(Default)]
struct Outputs(Vec<(String, String)>);

impl Outputs {
    fn ask(&mut self, address: SocketAddr, path: &str, header: Option<&str>) -> u16 {
        let mut request = Request::get(path);
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        let Ok(response) = ask(address, &request) else {
            return 0;
        };
        let text = format!(
            "{:?} {}",
            response.headers,
            String::from_utf8_lossy(&response.body)
        );
        self.0.push((format!("the answer to {path}"), text));
        response.status
    }

    fn admin(&mut self, pierhead: &mut Pierhead) -> Result<()> {
        let admin = pierhead.admin();
        for path in [
            "/metrics",
            "/healthz",
            "/readyz",
            "/v1/stat",
            "/v1/config",
            "/v1/upstreams",
            "/",
        ] {
            self.ask(admin, path, None);
        }
        self.0
            .push(("cache stat".to_owned(), pierhead.cache(&["stat"])?));
        self.0
            .push(("cache ls".to_owned(), pierhead.cache(&["ls"])?));
        self.0.push(("the log".to_owned(), pierhead.daemon().log()));
        Ok(())
    }

    /// Panics with the secret and its source if an output contains one.
    fn assert_clean(&self, tokens: &BTreeSet<String>) {
        for (place, text) in &self.0 {
            for secret in SECRETS {
                assert!(
                    !text.contains(secret),
                    "{secret} is in {place}:\n{}",
                    around(text, secret)
                );
                for code in encoded(secret) {
                    assert!(
                        !text.contains(&code),
                        "{secret} is in {place}, in base64:\n{}",
                        around(text, &code)
                    );
                }
            }
            for token in tokens {
                assert!(
                    !text.contains(token.as_str()),
                    "{token} is in {place}:\n{}",
                    around(text, token)
                );
            }
        }
    }
}

/// The line of a text that contains a match.
fn around<'a>(text: &'a str, found: &str) -> &'a str {
    text.lines()
        .find(|line| line.contains(found))
        .unwrap_or(text)
}

/// The `Authorization` values of all requests to the registries, without the scheme.
fn tokens(registries: &[&Background]) -> BTreeSet<String> {
    let sent = registries.iter().flat_map(|it| it.requests());
    sent.filter_map(|request| {
        let value = request.header("authorization")?.to_owned();
        Some(value.split_once(' ')?.1.to_owned())
    })
    .collect()
}

fn inject_faults(hub: &Background, others: [&str; 2]) {
    let [cut, lost] = others;
    let to = |place: &str| {
        format!(
            "http://someone:{USERINFO}@{place}/blob?X-Amz-Signature={SIGNATURE}&sig={SIGNATURE}"
        )
    };
    hub.inject(Fault::RedirectTo(to(&hub.cdn_addr().to_string())).on(format!("*/{cut}/blobs/*")));
    hub.inject(Fault::RedirectTo(to("127.0.0.1:1")).on(format!("*/{lost}/blobs/*")));
    let realm = format!(
        "Bearer realm=\"http://someone:{REALM}@127.0.0.1:1/token?key={REALM}\",service=\"x\""
    );
    hub.inject(Fault::Status(401).on("/v2/library/realm/*").before_auth());
    hub.inject(
        Fault::Header("www-authenticate", realm)
            .on("/v2/library/realm/*")
            .before_auth(),
    );
    hub.inject(Fault::Garbage.on("/v2/library/garbage/*").before_auth());
    hub.inject(Fault::Status(500).on("/v2/library/broken/*").before_auth());
}

#[test]
fn no_output_contains_a_secret() -> Result<()> {
    let folder = paths::scratch("secrets")?;
    let path = |name: &str| folder.path().join(name);
    let rules = TokenAuth {
        users: vec![
            ("up".to_owned(), UPSTREAM.to_owned()),
            ("guest".to_owned(), PASS_THROUGH.to_owned()),
        ],
        anonymous: false,
        ..TokenAuth::default()
    };
    // The fake registry compares the header exactly, including its padding.
    let rules = TokenAuth {
        users: rules
            .users
            .into_iter()
            .flat_map(|(user, password)| {
                (0..3).map(move |n| (format!("{user}{}", "x".repeat(n)), password.clone()))
            })
            .collect(),
        ..rules
    };
    let hub = FakeRegistry::builder()
        .with(|settings| {
            settings.auth = Auth::Token(rules);
            settings.redirect_blobs = true;
        })
        .start_in_background();
    let image = Image::random(1, &[200_000, 1000]);
    for repository in ["app", "cut", "lost"] {
        hub.push(&format!("library/{repository}"), "1", &image);
    }
    let extra = Image::random(2, &[3000]);
    hub.push("library/cut", "2", &extra);
    hub.push("library/lost", "2", &extra);
    inject_faults(&hub, ["cut", "lost"]);
    let basic = FakeRegistry::builder()
        .basic_auth("dock", DOCKER)
        .start_in_background();
    basic.push("app", "1", &image);

    fs::write(path("password"), format!("{UPSTREAM}\n"))?;
    fs::write(
        path("users"),
        format!("annx:{}\nannxx:{0}\nann:{0}\n", bcrypt::hash(CLIENT, 4)?),
    )?;
    let auth = encoded(&format!("dock:{DOCKER}x"));
    let docker = format!("dock:{DOCKER}");
    let auth = match docker.len() % 3 {
        0 => auth[0].clone(),
        _ => String::new(),
    };
    let entry = match auth.is_empty() {
        false => format!("{{\"auth\": \"{auth}\"}}"),
        true => format!("{{\"username\": \"dock\", \"password\": \"{DOCKER}\"}}"),
    };
    fs::write(
        path("docker.json"),
        format!("{{\"auths\": {{\"basic.example\": {entry}}}}}"),
    )?;
    let shared = format!(
        "docker_config = {:?}\n[log]\nlevel = \"trace\"\n[upstreams.\"docker.io\"]\naddresses = {:?}\ntrusted_hosts = [\"http://{}\", \"http://{}\", \"http://127.0.0.1:1\"]\n",
        path("docker.json"),
        hub.url(),
        hub.token_addr(),
        hub.cdn_addr()
    );
    let login_keys = format!(
        "username = \"upx\"\npassword_file = {:?}\n",
        path("password")
    );
    let second = format!(
        "[upstreams.\"basic.example\"]\naddresses = {:?}\n",
        basic.url()
    );

    let mut heard = Outputs::default();
    let users = format!(
        "{shared}{login_keys}{second}[auth]\nmode = \"htpasswd\"\nhtpasswd = {:?}\n",
        path("users")
    );
    let pass_through_clients =
        format!("{shared}{login_keys}{second}[auth]\nmode = \"pass-through\"\n");
    let mut tried = BTreeSet::new();
    for (config, good) in [
        (&users, login("ann", CLIENT)),
        (&pass_through_clients, login("guest", PASS_THROUGH)),
    ] {
        let mut pierhead = Pierhead::start(Options::new().config(config))?;
        let address = pierhead.address();
        let logins = [
            None,
            Some(login("ann", WRONG)),
            Some(login(USER, "empty")),
            Some(format!("Bearer {BEARER}")),
            Some(format!("Basic {BEARER}")),
            Some(good.clone()),
        ];
        let blob = &image.blobs[0].digest;
        let other = &extra.blobs[0].digest;
        let mut paths = vec!["/v2/".to_owned(), "/v2/docker.io/app/tags/list".to_owned()];
        // The last requests fail, so that pierhead opens the circuit of the upstream.
        for name in ["cut", "lost"] {
            paths.push(format!("/v2/docker.io/{name}/manifests/2"));
            paths.push(format!("/v2/docker.io/{name}/blobs/{other}"));
        }
        for name in [
            "docker.io/app",
            "basic.example/app",
            "docker.io/realm",
            "docker.io/garbage",
            "docker.io/broken",
            "docker.io/absent",
        ] {
            paths.push(format!("/v2/{name}/manifests/1"));
            paths.push(format!("/v2/{name}/blobs/{blob}"));
        }
        let mut served = 0;
        for path in &paths {
            for login in &logins {
                let status = heard.ask(address, path, login.as_deref());
                if status == 200 && login.as_ref() == Some(&good) {
                    served += 1;
                }
            }
        }
        assert!(
            served >= 3,
            "no image was pulled, so that the test is void: {served}"
        );
        // One reload succeeds, and one is refused.
        pierhead.reload(&format!(
            "{config}\n[upstreams.\"c.example\"]\npasword = {UPSTREAM:?}\ntrusted_hosts = {UPSTREAM:?}\n"
        ))?;
        wait::try_until("the refusal", || {
            Ok(pierhead
                .daemon()
                .log()
                .contains("stays as it was")
                .then_some(()))
        })?;
        pierhead.reload(config)?;
        wait::try_until("the reload", || {
            Ok(pierhead
                .daemon()
                .log()
                .contains("configuration reloaded")
                .then_some(()))
        })?;
        heard.ask(address, "/v2/docker.io/app/manifests/1", Some(&good));
        heard.admin(&mut pierhead)?;
        tried.extend(tokens(&[&hub, &basic]));
        let file = path("shown.toml");
        fs::write(&file, config)?;
        for words in [["config", "show"], ["config", "check"]] {
            let (_, output) = run(&[words[0], words[1], &file.display().to_string()])?;
            heard.0.push((words.join(" "), output));
        }
    }
    assert!(
        tried.len() >= 3,
        "no credentials reached an upstream: {tried:?}"
    );
    let text = |place: &str| {
        heard
            .0
            .iter()
            .any(|(it, text)| it == place && text.contains("TRACE"))
    };
    assert!(text("the log"), "the log is not at level trace");
    heard.assert_clean(&tried);
    Ok(())
}
