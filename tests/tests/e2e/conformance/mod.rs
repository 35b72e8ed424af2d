//! The conformance test of the pull side of the OCI Distribution specification. Every check that a
//! registry passes must pass through pierhead too. See `docs/reference/conformance.md`.

mod checks;
mod data;
mod push_target;

use std::net::SocketAddr;

use anyhow::Result;
use pierhead_testkit::registry::FakeRegistry;
use pierhead_tests::{
    pierhead::{Options, Pierhead},
    registry::{self, Registry, Settings},
    tool::or_skip,
};

use checks::{Checker, Report};
use data::{MOVED, families};
use push_target::PushTarget;

/// Minimum number of passed checks. If checks were skipped, the test fails.
const MIN_CHECKS: usize = 890;

/// Configuration that revalidates every tag, so that a push is visible at once, as in a registry.
const ALWAYS_REVALIDATE: &str = "[tags]\nttl = \"0s\"";

/// Pushes the contents into the repository, which only this call uses, and checks each family
/// directly after its push by reading from `from`.
fn check_after_each_push(
    repository: &str,
    target: PushTarget<'_>,
    from: SocketAddr,
) -> Result<Report> {
    let checker = Checker {
        target,
        from,
        repository,
    };
    require_passed(repository, checker.check_after_each_push(&families())?)
}

fn require_passed(name: &str, report: Report) -> Result<Report> {
    let (passed, failed) = (report.passed.len(), report.failed.len());
    println!("{name}: {passed} of {} checks passed", passed + failed);
    for (name, why) in &report.failed {
        println!("  {name}: {why}");
    }
    let made = passed + failed;
    assert!(made >= MIN_CHECKS, "only {made} checks");
    Ok(report)
}

/// Runs the checks against a registry, and against pierhead in front of it. Returns both reports.
fn alone_and_through<'a>(
    url: &str,
    address: SocketAddr,
    target: impl Fn() -> PushTarget<'a>,
) -> Result<Report> {
    let alone = check_after_each_push("conformance/alone", target(), address)?;
    let options = Options::new().config(ALWAYS_REVALIDATE);
    let pierhead = Pierhead::start(options.upstream("docker.io", url))?;
    let through = check_after_each_push("conformance/through", target(), pierhead.address())?;
    assert_no_worse(&alone, &through);
    Ok(alone)
}

/// Asserts that every check that fails through pierhead also fails directly at the registry.
fn assert_no_worse(alone: &Report, through: &Report) {
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
fn pierhead_in_front_of_distribution_conforms() -> Result<()> {
    if or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let upstream = Registry::start(&[])?;
    let address = upstream.address();
    alone_and_through(&upstream.url(), address, || PushTarget::Real(address))?;
    Ok(())
}

/// The testkit's registry implements the whole specification, including referrers, so that no check
/// may fail.
#[test]
fn pierhead_in_front_of_a_complete_registry_passes_every_check() -> Result<()> {
    let upstream = FakeRegistry::builder().start_in_background();
    let alone = alone_and_through(&upstream.url(), upstream.addr(), || {
        PushTarget::Fake(&upstream)
    })?;
    assert!(alone.failed.is_empty(), "{:#?}", alone.failed);
    Ok(())
}

/// By default, pierhead caches tags for a minute and a 404 for seconds. The checks of contents that
/// were pushed before the first request must still pass.
#[test]
fn the_default_cache_times_conform_for_unchanged_contents() -> Result<()> {
    let upstream = FakeRegistry::builder().start_in_background();
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &upstream.url()))?;
    let mut families = families();
    families.retain(|family| family.name != MOVED);
    let checker = Checker {
        target: PushTarget::Fake(&upstream),
        from: pierhead.address(),
        repository: "conformance/later",
    };
    let report = require_passed(
        checker.repository,
        checker.check_after_all_pushes(&families)?,
    )?;
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    Ok(())
}

/// For comparison, the checks run against Distribution as a proxy. Some of these checks must fail,
/// which shows that checks can fail.
#[test]
fn distribution_as_a_proxy_fails_some_checks() -> Result<()> {
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
    let target = PushTarget::Real(upstream.address());
    let through = check_after_each_push("conformance/other", target, proxy.address())?;
    assert!(!through.failed.is_empty());
    Ok(())
}
