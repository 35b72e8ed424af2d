//! What the OCI Distribution spec promises to those who pull and look around, of a registry alone and
//! of pierhead in front of it: whatever the registry keeps, pierhead keeps. See `docs/reference/conformance.md`.

mod checks;
mod data;
mod place;

use std::net::SocketAddr;

use anyhow::Result;
use pierhead_testkit::registry::FakeRegistry;
use pierhead_tests::{
    pierhead::{Options, Pierhead},
    registry::{self, Registry, Settings},
    tool::or_skip,
};

use checks::{Reader, Report};
use data::{MOVED, families};
use place::Place;

/// Nearly as many as there are: a check that is not made does not fail.
const AT_LEAST: usize = 890;

/// Nothing is believed without asking: what is pushed is there at once, as in a registry.
const ALWAYS_ASK: &str = "[tags]\nttl = \"0s\"";

/// The same content, pushed into a repository of its own, read from `from`.
fn at_once(repository: &str, place: Place<'_>, from: SocketAddr) -> Result<Report> {
    let reader = Reader {
        place,
        from,
        repository,
    };
    told(repository, reader.at_once(&families())?)
}

fn told(name: &str, report: Report) -> Result<Report> {
    let (passed, failed) = (report.passed.len(), report.failed.len());
    println!("{name}: {passed} of {} checks hold", passed + failed);
    for (name, why) in &report.failed {
        println!("  {name}: {why}");
    }
    let made = passed + failed;
    assert!(made >= AT_LEAST, "only {made} checks");
    Ok(report)
}

/// Reads from a registry, and from pierhead in front of it; what the registry itself keeps.
fn alone_and_through<'a>(
    url: &str,
    address: SocketAddr,
    place: impl Fn() -> Place<'a>,
) -> Result<Report> {
    let alone = at_once("conformance/alone", place(), address)?;
    let options = Options::new().config(ALWAYS_ASK);
    let pierhead = Pierhead::start(options.upstream("docker.io", url))?;
    let through = at_once("conformance/through", place(), pierhead.address())?;
    no_worse(&alone, &through);
    Ok(alone)
}

/// What fails through pierhead fails without it, too.
fn no_worse(alone: &Report, through: &Report) {
    let names = |it: &Report| it.passed.len() + it.failed.len();
    assert_eq!(names(alone), names(through), "not the same checks");
    let worse: Vec<_> = through
        .failed
        .iter()
        .filter(|(name, _)| !alone.failed.contains_key(*name))
        .collect();
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn in_front_of_distribution() -> Result<()> {
    if or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let upstream = Registry::start(&[])?;
    let address = upstream.address();
    alone_and_through(&upstream.url(), address, || Place::Real(address))?;
    Ok(())
}

/// The testkit's registry has all that the spec has, referrers too: here nothing may fail at all.
#[test]
fn in_front_of_a_registry_that_has_everything() -> Result<()> {
    let upstream = FakeRegistry::builder().start_in_background();
    let alone = alone_and_through(&upstream.url(), upstream.addr(), || Place::Fake(&upstream))?;
    assert!(alone.failed.is_empty(), "{:#?}", alone.failed);
    Ok(())
}

/// With its defaults pierhead believes what it knows of a name for a minute, and of an absence for
/// seconds: content that was there before anybody asked is all there.
#[test]
fn with_the_defaults() -> Result<()> {
    let upstream = FakeRegistry::builder().start_in_background();
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &upstream.url()))?;
    let mut families = families();
    families.retain(|family| family.name != MOVED);
    let reader = Reader {
        place: Place::Fake(&upstream),
        from: pierhead.address(),
        repository: "conformance/later",
    };
    let report = told(reader.repository, reader.later(&families)?)?;
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    Ok(())
}

/// Another proxy, for comparison, and because checks that nothing fails are none.
#[test]
fn distribution_as_a_proxy() -> Result<()> {
    if or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let upstream = Registry::start(&[])?;
    let proxy = Registry::with(
        &[],
        Settings {
            proxy: Some(upstream.url()),
            ..Settings::default()
        },
    )?;
    let place = Place::Real(upstream.address());
    let through = at_once("conformance/other", place, proxy.address())?;
    assert!(!through.failed.is_empty());
    Ok(())
}
