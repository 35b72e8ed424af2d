//! The upstream faults of the fault matrix, and the parts of an image that stay available despite
//! each fault.

use std::time::Duration;

use anyhow::{Result, ensure};
use pierhead_testkit::registry::{Auth, Fault as Wrong, Rule, TokenAuth};

use super::{State, stage::Stage};

/// The parts of an image that an upstream with a fault still delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Available {
    /// The whole image: pierhead gets it by a retry, a resumed download, or a new token.
    Everything,
    /// All manifests, but not every blob.
    Manifests,
    /// All manifests. For blobs, a client gets many wrong bytes, or a wrong length, before pierhead
    /// detects the fault.
    WrongBytes,
    /// All blobs, but no manifests.
    Blobs,
    /// The upstream serves nothing, because of the fault.
    Nothing,
    /// The upstream serves nothing, because it denies access.
    Verdict,
}

pub(super) struct Fault {
    pub(super) name: &'static str,
    pub(super) available: Available,
    /// Injects the fault. Returns lines for the upstream's section in the configuration.
    pub(super) set: fn(&Stage) -> Result<String>,
    /// Additional checks after the pull.
    pub(super) and: fn(&Stage, State) -> Result<()>,
    /// Whether pierhead runs with its default time limits instead of short ones.
    pub(super) defaults: bool,
    /// Whether the fault is also tested with a fresh cached image and with an incomplete cached
    /// image. True for one fault of each kind.
    pub(super) more: bool,
}

impl Fault {
    fn new(name: &'static str, available: Available, set: fn(&Stage) -> Result<String>) -> Self {
        Self {
            name,
            available,
            set,
            and: |_, _| Ok(()),
            defaults: false,
            more: false,
        }
    }

    fn and(self, and: fn(&Stage, State) -> Result<()>) -> Self {
        Self { and, ..self }
    }

    fn at_the_defaults(self) -> Self {
        Self {
            defaults: true,
            ..self
        }
    }

    fn in_every_state(self) -> Self {
        Self { more: true, ..self }
    }

    /// The cache states in which the fault can have an effect.
    pub(super) fn states(&self) -> &'static [State] {
        match self {
            Self { defaults: true, .. } => &[State::Cold],
            Self { more: true, .. } => &[
                State::Cold,
                State::Fresh,
                State::Stale,
                State::Holed,
                State::Second,
            ],
            _ => &[State::Cold, State::Stale, State::Second],
        }
    }
}

/// Starts the hub over plain HTTP with these faults.
fn hub(stage: &Stage, rules: impl IntoIterator<Item = Rule>) -> Result<String> {
    for rule in rules {
        stage.hub.inject(rule);
    }
    Ok(format!("addresses = {:?}", stage.hub.url()))
}

fn everywhere(wrong: Wrong) -> Rule {
    wrong.on("*").before_auth()
}

fn on_layer(stage: &Stage, wrong: Wrong) -> Result<Rule> {
    Ok(wrong.on(format!("*/{}", stage.layer()?)))
}

/// Injects the fault into a small layer, which pierhead verifies completely before it sends the
/// first byte.
fn on_small_layer(stage: &Stage, wrong: Wrong) -> Result<Rule> {
    Ok(wrong.on(format!("*/{}", stage.small_layer()?)))
}

/// Starts the hub with a token server for authentication.
fn tokens(stage: &Stage, auth: TokenAuth) -> String {
    stage
        .hub
        .configure(|settings| settings.auth = Auth::Token(auth));
    format!(
        "addresses = {:?}\ntrusted_hosts = [\"http://{}\"]",
        stage.hub.url(),
        stage.hub.token_addr()
    )
}

/// Asserts the number of GETs of the layer, and that each GET resumes at the byte after the
/// previous one.
fn resumed(stage: &Stage, least: usize, most: usize) -> Result<()> {
    let layer = stage.layer()?;
    let asked: Vec<_> = stage
        .hub
        .requests()
        .into_iter()
        .filter(|it| it.method == "GET" && it.path.ends_with(layer))
        .collect();
    let ranges: Vec<_> = asked.iter().map(|it| it.header("range")).collect();
    ensure!(
        (least..=most).contains(&asked.len()) && ranges.iter().skip(1).all(Option::is_some),
        "the layer was requested by {ranges:?}"
    );
    let sent: u64 = asked.iter().map(|it| it.sent).sum();
    ensure!(
        sent < 300_000 + 100_000,
        "{sent} bytes of a layer of 300 kB crossed the uplink"
    );
    Ok(())
}

/// Asserts that a pull sends a bounded number of requests to a failing upstream.
fn assert_few_requests(stage: &Stage, _: State) -> Result<()> {
    let asked = stage.hub.count(|_| true);
    ensure!(asked <= 32, "the upstream got {asked} requests");
    Ok(())
}

pub(super) fn all() -> Vec<Fault> {
    use Available::{Blobs, Everything, Manifests, Nothing, Verdict, WrongBytes};
    vec![
        // Faults of connections.
        Fault::new("refused", Nothing, |it| {
            Ok(format!("addresses = {:?}", it.gone.url()))
        })
        .in_every_state(),
        Fault::new("reset", Nothing, |it| hub(it, [everywhere(Wrong::Reset)]))
            .and(assert_few_requests),
        Fault::new("reset once", Everything, |it| {
            let layer = on_layer(it, Wrong::Reset)?.times(1);
            hub(it, [Wrong::Reset.on_manifests().times(1), layer])
        }),
        Fault::new("connection closed without a response", Nothing, |it| {
            hub(it, [everywhere(Wrong::Close)])
        })
        .and(assert_few_requests),
        Fault::new("no HTTP", Nothing, |it| {
            hub(it, [everywhere(Wrong::Garbage)])
        }),
        Fault::new("a name that does not exist", Nothing, |_| {
            Ok("addresses = \"https://registry.invalid\"".to_owned())
        }),
        // Faults of TLS.
        Fault::new("a certificate that has expired", Nothing, |it| {
            Ok(format!(
                "addresses = {:?}\nca = {:?}",
                it.expired.url(),
                it.path("expired.pem")
            ))
        }),
        Fault::new("a certificate for another name", Nothing, |it| {
            Ok(format!(
                "addresses = {:?}\nca = {:?}",
                it.misnamed.url(),
                it.path("misnamed.pem")
            ))
        }),
        Fault::new("a certificate of an unknown authority", Nothing, |it| {
            Ok(format!("addresses = {:?}", it.secure.url()))
        }),
        Fault::new("no TLS", Nothing, |it| {
            Ok(format!("addresses = \"https://{}\"", it.hub.addr()))
        }),
        Fault::new("good TLS", Everything, |it| {
            Ok(format!(
                "addresses = {:?}\nca = {:?}",
                it.secure.url(),
                it.path("secure.pem")
            ))
        }),
        // Upstreams that stop sending.
        Fault::new("hang before headers", Nothing, |it| {
            hub(it, [everywhere(Wrong::HangHead)])
        })
        .and(assert_few_requests)
        .in_every_state(),
        Fault::new("hang before headers at the defaults", Nothing, |it| {
            hub(it, [everywhere(Wrong::HangHead)])
        })
        .at_the_defaults(),
        Fault::new("hang before headers once", Everything, |it| {
            let layer = on_layer(it, Wrong::HangHead)?.times(1);
            hub(it, [Wrong::HangHead.on_manifests().times(1), layer])
        }),
        Fault::new("hang mid-manifest", Blobs, |it| {
            hub(it, [Wrong::HangBody(10).on_manifests()])
        })
        .in_every_state(),
        Fault::new("hang mid-body", Everything, |it| {
            let layer = on_layer(it, Wrong::HangBody(100_000))?.times(1);
            hub(it, [layer])
        })
        .and(|it, state| match state {
            State::Cold => resumed(it, 2, 2),
            _ => Ok(()),
        }),
        Fault::new("hang mid-body at the defaults", Everything, |it| {
            let layer = on_layer(it, Wrong::HangBody(100_000))?.times(1);
            hub(it, [layer])
        })
        .at_the_defaults(),
        Fault::new("hang mid-body for ever", Manifests, |it| {
            hub(it, [on_layer(it, Wrong::HangBody(0))?])
        }),
        Fault::new("hang mid-body for ever at the defaults", Manifests, |it| {
            hub(it, [on_layer(it, Wrong::HangBody(0))?])
        })
        .at_the_defaults(),
        // Faults of interrupted response bodies.
        Fault::new("cut once", Everything, |it| {
            let layer = on_layer(it, Wrong::CutBody(100_000))?.times(1);
            hub(it, [layer])
        })
        .and(|it, state| match state {
            State::Cold => resumed(it, 2, 2),
            _ => Ok(()),
        }),
        Fault::new("interrupted many times", Everything, |it| {
            hub(it, [on_layer(it, Wrong::CutBody(40_000))?])
        })
        .and(|it, state| match state {
            State::Cold => resumed(it, 7, 9),
            _ => Ok(()),
        }),
        Fault::new("reset mid-body", Everything, |it| {
            let layer = on_layer(it, Wrong::ResetBody(100_000))?.times(1);
            hub(it, [layer])
        }),
        Fault::new("manifest interrupted once", Everything, |it| {
            hub(it, [Wrong::CutBody(10).on_manifests().times(1)])
        }),
        // Faults of response statuses.
        Fault::new("401", Verdict, |it| {
            hub(it, [everywhere(Wrong::Status(401))])
        }),
        Fault::new("403", Verdict, |it| {
            hub(it, [everywhere(Wrong::Status(403))])
        }),
        Fault::new("404", Verdict, |it| {
            hub(it, [everywhere(Wrong::Status(404))])
        })
        .in_every_state(),
        Fault::new("404 of a layer", Manifests, |it| {
            hub(it, [on_layer(it, Wrong::Status(404))?])
        }),
        Fault::new("429", Nothing, |it| {
            hub(it, [everywhere(Wrong::Status(429))])
        })
        .and(assert_few_requests)
        .in_every_state(),
        Fault::new("429 with Retry-After", Nothing, |it| {
            hub(it, [everywhere(Wrong::RetryAfter(429, "30".to_owned()))])
        })
        .and(assert_few_requests),
        Fault::new("429 of a layer once, with Retry-After", Everything, |it| {
            let layer = on_layer(it, Wrong::RetryAfter(429, "1".to_owned()))?.times(1);
            hub(it, [layer])
        }),
        Fault::new("500", Nothing, |it| {
            hub(it, [everywhere(Wrong::Status(500))])
        })
        .and(assert_few_requests),
        Fault::new("500 once", Everything, |it| {
            let layer = on_layer(it, Wrong::Status(500))?.times(1);
            hub(it, [Wrong::Status(500).on_manifests().times(1), layer])
        }),
        Fault::new("503", Nothing, |it| {
            hub(it, [everywhere(Wrong::Status(503))])
        })
        .and(assert_few_requests),
        Fault::new("503 of a layer", Manifests, |it| {
            hub(it, [on_layer(it, Wrong::Status(503))?])
        }),
        // Wrong digests and wrong lengths.
        Fault::new("manifest of a wrong digest", Blobs, |it| {
            hub(it, [Wrong::Corrupt(5).on_manifests()])
        }),
        Fault::new("large layer of a wrong digest", WrongBytes, |it| {
            hub(it, [on_layer(it, Wrong::Corrupt(100_000))?])
        })
        .in_every_state(),
        Fault::new("small layer of a wrong digest", Manifests, |it| {
            hub(it, [on_small_layer(it, Wrong::Corrupt(1_000))?])
        }),
        Fault::new("small layer of a wrong digest once", Everything, |it| {
            hub(it, [on_small_layer(it, Wrong::Corrupt(1_000))?.times(1)])
        }),
        Fault::new("manifest shorter than its length", Blobs, |it| {
            hub(it, [Wrong::LengthTooLong(100).on_manifests()])
        }),
        Fault::new("manifest longer than its length", Blobs, |it| {
            hub(it, [Wrong::LengthTooShort(100).on_manifests()])
        }),
        Fault::new("layer shorter than its length", WrongBytes, |it| {
            hub(it, [on_layer(it, Wrong::LengthTooLong(1000))?])
        }),
        Fault::new("layer longer than its length", WrongBytes, |it| {
            hub(it, [on_layer(it, Wrong::LengthTooShort(1000))?])
        }),
        Fault::new("headers without end", Nothing, |it| {
            hub(it, [everywhere(Wrong::HugeHeaders(1 << 20))])
        }),
        // Faults of redirects.
        Fault::new("redirect loop", Nothing, |it| {
            hub(it, [everywhere(Wrong::RedirectLoop)])
        }),
        Fault::new("redirect loop of a layer", Manifests, |it| {
            hub(it, [on_layer(it, Wrong::RedirectLoop)?])
        }),
        // Faults of tokens.
        Fault::new("every token has expired", Verdict, |it| {
            Ok(tokens(
                it,
                TokenAuth {
                    lifetime: Duration::ZERO,
                    tells_expiry: false,
                    ..TokenAuth::default()
                },
            ))
        }),
        Fault::new("tokens expire from request to request", Everything, |it| {
            Ok(tokens(
                it,
                TokenAuth {
                    // The token server issues enough tokens for all concurrent requests, so that
                    // each request gets a valid token.
                    uses: Some(4),
                    ..TokenAuth::default()
                },
            ))
        }),
        Fault::new("token server down", Nothing, |it| {
            let keys = tokens(it, TokenAuth::default());
            it.hub.wait(async |hub| hub.stop_tokens().await);
            Ok(keys)
        })
        .in_every_state(),
        Fault::new("token server hangs", Nothing, |it| {
            it.hub.inject(Wrong::HangHead.on_tokens());
            Ok(tokens(it, TokenAuth::default()))
        }),
        Fault::new("token server with status 500", Nothing, |it| {
            it.hub.inject(Wrong::Status(503).on_tokens());
            Ok(tokens(it, TokenAuth::default()))
        }),
    ]
}
