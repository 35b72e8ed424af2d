//! The conformance checks of the pull side of the Distribution specification. Each check has a
//! name, under which the report counts it.

mod absent;
mod content;
mod lists;
mod ranges;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use anyhow::{Result, ensure};
use pierhead_testkit::http::{End, Request, Response};

use super::{
    data::{Family, INDEX, MANIFEST},
    push_target::PushTarget,
};
use crate::requests::ask;

/// The results of the checks.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) passed: BTreeSet<String>,
    /// The failed checks with their reasons.
    pub(crate) failed: BTreeMap<String, String>,
}

impl Report {
    fn note(&mut self, name: String, outcome: Result<()>) {
        let known = self.passed.contains(&name) || self.failed.contains_key(&name);
        assert!(!known, "two checks have the name {name}");
        match outcome {
            Ok(()) => drop(self.passed.insert(name)),
            Err(error) => drop(self.failed.insert(name, format!("{error:#}"))),
        }
    }
}

/// Pushes contents to one registry, and checks them by reading from one address.
pub(crate) struct Checker<'a> {
    pub(crate) target: PushTarget<'a>,
    pub(crate) from: SocketAddr,
    pub(crate) repository: &'a str,
}

impl Checker<'_> {
    /// Runs all checks directly after each push. This function also requests each document before
    /// its push, so that a registry that caches the 404 fails the checks.
    pub(crate) fn check_after_each_push(&self, families: &[Family]) -> Result<Report> {
        let mut report = Report::default();
        report.note("base".into(), self.base());
        self.empty(&mut report);
        self.absent(&mut report);
        self.ranges(&mut report)?;
        for family in families {
            self.absent_before(family, &mut report);
            self.push(family, &mut report);
            self.family(family, &mut report);
        }
        self.pages(&mut report);
        if let Some(last) = families.last() {
            self.removed(last, &mut report);
        }
        Ok(report)
    }

    /// Runs the checks for contents that are pushed before the first request and do not change.
    pub(crate) fn check_after_all_pushes(&self, families: &[Family]) -> Result<Report> {
        let mut report = Report::default();
        for family in families {
            self.push(family, &mut report);
        }
        report.note("base".into(), self.base());
        self.absent(&mut report);
        self.ranges(&mut report)?;
        for family in families {
            self.family(family, &mut report);
        }
        self.pages(&mut report);
        Ok(report)
    }

    /// Pushes a family: related blobs, manifests and tags. A failed push is a failed check.
    fn push(&self, family: &Family, report: &mut Report) {
        let mut note =
            |what: String, outcome| report.note(format!("{}: push {what}", family.name), outcome);
        for (nth, (digest, bytes)) in family.blobs.iter().enumerate() {
            let pushed = self.target.blob(self.repository, digest, bytes);
            note(format!("blob {nth}"), pushed);
        }
        for (nth, document) in family.documents.iter().enumerate() {
            let pushed = self.target.manifest(self.repository, None, document);
            note(format!("manifest {nth}"), pushed);
        }
        for (tag, nth) in &family.tags {
            let document = &family.documents[*nth];
            let pushed = self.target.manifest(self.repository, Some(tag), document);
            note(format!("tag {}", short(tag)), pushed);
        }
    }

    fn ask(&self, method: &str, rest: &str, headers: &[(&str, &str)]) -> Result<Response> {
        let path = format!("/v2/{}/{rest}", self.repository);
        let mut request = Request::new(method, path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let response = ask(self.from, &request)?;
        ensure!(
            response.end == End::Clean,
            "{method} {rest}: the body is incomplete"
        );
        Ok(response)
    }

    fn base(&self) -> Result<()> {
        let response = ask(self.from, &Request::get("/v2/"))?;
        ensure!(response.status == 200, "{}", response.status);
        Ok(())
    }
}

/// `Accept` in two header lines, as clients with several media types send it.
const ACCEPT: &[(&str, &str)] = &[
    ("accept", INDEX),
    ("accept", MANIFEST),
    (
        "accept",
        "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json",
    ),
];

fn has(response: &Response, name: &str, value: &str) -> Result<()> {
    let found = response.header(name);
    ensure!(
        found == Some(value),
        "{name}: {found:?} instead of {value:?}"
    );
    Ok(())
}

/// Checks an optional header: if the header is present, its value must be right.
fn may_have(response: &Response, name: &str, value: &str) -> Result<()> {
    let found = response.header(name);
    ensure!(
        found.is_none_or(|it| it == value),
        "{name}: {found:?} instead of {value:?}"
    );
    Ok(())
}

fn short(tag: &str) -> &str {
    &tag[..tag.len().min(20)]
}
