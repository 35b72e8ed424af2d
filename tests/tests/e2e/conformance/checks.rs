//! What a reader may expect of a registry, each expectation a check with a name of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use anyhow::{Context, Result, bail, ensure};
use pierhead_testkit::http::{End, Request, Response};
use serde_json::Value;

use super::{
    data::{Document, Family, Hash, INDEX, MANIFEST, MOVED, Referrer},
    place::Place,
};
use crate::ask::ask;

/// Which checks held.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) passed: BTreeSet<String>,
    /// With the reason.
    pub(crate) failed: BTreeMap<String, String>,
}

impl Report {
    fn note(&mut self, name: String, outcome: Result<()>) {
        let known = self.passed.contains(&name) || self.failed.contains_key(&name);
        assert!(!known, "two checks are called {name}");
        match outcome {
            Ok(()) => drop(self.passed.insert(name)),
            Err(error) => drop(self.failed.insert(name, format!("{error:#}"))),
        }
    }
}

/// Reads from one address, in one repository, what is pushed somewhere.
pub(crate) struct Reader<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) from: SocketAddr,
    pub(crate) repository: &'a str,
}

/// The codes that the spec lists.
const CODES: [&str; 14] = [
    "BLOB_UNKNOWN",
    "BLOB_UPLOAD_INVALID",
    "BLOB_UPLOAD_UNKNOWN",
    "DIGEST_INVALID",
    "MANIFEST_BLOB_UNKNOWN",
    "MANIFEST_INVALID",
    "MANIFEST_UNKNOWN",
    "NAME_INVALID",
    "NAME_UNKNOWN",
    "SIZE_INVALID",
    "UNAUTHORIZED",
    "DENIED",
    "UNSUPPORTED",
    "TOOMANYREQUESTS",
];

impl Reader<'_> {
    /// Everything, in the order of somebody who pushes and looks at once: what is not there yet is
    /// asked for before, so that a memory of absence shows.
    pub(crate) fn at_once(&self, families: &[Family]) -> Result<Report> {
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
        Ok(report)
    }

    /// The same for content that was pushed before anybody asked, and does not change.
    pub(crate) fn later(&self, families: &[Family]) -> Result<Report> {
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

    /// Not what is compared, but what follows rests on it.
    fn push(&self, family: &Family, report: &mut Report) {
        let mut note =
            |what: String, outcome| report.note(format!("{}: push {what}", family.name), outcome);
        for (nth, (digest, bytes)) in family.blobs.iter().enumerate() {
            let pushed = self.place.blob(self.repository, digest, bytes);
            note(format!("blob {nth}"), pushed);
        }
        for (nth, document) in family.documents.iter().enumerate() {
            let pushed = self.place.manifest(self.repository, None, document);
            note(format!("manifest {nth}"), pushed);
        }
        for (tag, nth) in &family.tags {
            let document = &family.documents[*nth];
            let pushed = self.place.manifest(self.repository, Some(tag), document);
            note(format!("tag {}", short(tag)), pushed);
        }
    }

    fn ask(&self, method: &str, rest: &str, headers: &[(&str, &str)]) -> Result<Response> {
        let path = format!("/v2/{}/{rest}", self.repository);
        let mut request = Request::new(method, path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let answer = ask(self.from, &request)?;
        ensure!(
            answer.end == End::Clean,
            "{method} {rest}: the body was cut"
        );
        Ok(answer)
    }

    fn base(&self) -> Result<()> {
        let answer = ask(self.from, &Request::get("/v2/"))?;
        ensure!(answer.status == 200, "{}", answer.status);
        Ok(())
    }

    /// Before anything is pushed.
    fn empty(&self, report: &mut Report) {
        let tags = || {
            let answer = self.ask("GET", "tags/list", &[])?;
            ensure!(matches!(answer.status, 200 | 404), "{}", answer.status);
            Ok(())
        };
        report.note("empty: tags".into(), tags());
        let nobody = Hash::Sha256.of(b"nobody");
        report.note(
            "empty: referrers".into(),
            self.index_of(&format!("referrers/{nobody}"))
                .and_then(|index| {
                    ensure!(index["manifests"] == Value::Array(Vec::new()), "{index}");
                    Ok(())
                }),
        );
    }

    /// What is not there is a 404 with an error that the spec knows, by GET and by HEAD.
    fn absent(&self, report: &mut Report) {
        let (sha256, sha512) = (Hash::Sha256.of(b"absent"), Hash::Sha512.of(b"absent"));
        for (name, rest, statuses) in [
            ("blob", format!("blobs/{sha256}"), [404, 404]),
            ("blob, sha512", format!("blobs/{sha512}"), [404, 404]),
            ("manifest", format!("manifests/{sha256}"), [404, 404]),
            (
                "manifest, sha512",
                format!("manifests/{sha512}"),
                [404, 404],
            ),
            ("tag", "manifests/absent".to_owned(), [404, 404]),
            (
                "tag that cannot be",
                "manifests/.absent".to_owned(),
                [404, 404],
            ),
            (
                "manifest without sense",
                "manifests/sha256:absent".to_owned(),
                [404, 400],
            ),
            (
                "blob without sense",
                "blobs/sha256:absent".to_owned(),
                [404, 400],
            ),
        ] {
            let get = || {
                let answer = self.ask("GET", &rest, ACCEPT)?;
                ensure!(statuses.contains(&answer.status), "{}", answer.status);
                let errors: Value = serde_json::from_slice(&answer.body)?;
                let code = errors["errors"][0]["code"].as_str().context("no code")?;
                ensure!(CODES.contains(&code), "the spec has no code {code}");
                Ok(())
            };
            report.note(format!("absent: GET {name}"), get());
            let head = || {
                let answer = self.ask("HEAD", &rest, ACCEPT)?;
                ensure!(statuses.contains(&answer.status), "{}", answer.status);
                ensure!(answer.body.is_empty(), "a HEAD with a body");
                Ok(())
            };
            report.note(format!("absent: HEAD {name}"), head());
        }
    }

    /// Cold, then from wherever it is by then.
    fn ranges(&self, report: &mut Report) -> Result<()> {
        for (hash, name) in [(Hash::Sha256, "sha256"), (Hash::Sha512, "sha512")] {
            for temperature in ["cold", "warm"] {
                // A cold blob for each of the cold ones.
                for (nth, (range, expected)) in RANGES.iter().enumerate() {
                    let mut bytes = vec![0; 2048];
                    let blob = if temperature == "cold" { nth } else { 0 };
                    fastrand::Rng::with_seed(500 + blob as u64).fill(&mut bytes);
                    let digest = hash.of(&bytes);
                    self.place.blob(self.repository, &digest, &bytes)?;
                    let outcome = self.range(&digest, &bytes, range, *expected);
                    report.note(format!("range, {name}, {temperature}: {range}"), outcome);
                }
            }
        }
        Ok(())
    }

    fn range(
        &self,
        digest: &str,
        bytes: &[u8],
        range: &str,
        expected: Option<(usize, usize)>,
    ) -> Result<()> {
        let answer = self.ask("GET", &format!("blobs/{digest}"), &[("range", range)])?;
        let Some((first, last)) = expected else {
            ensure!(answer.status == 416, "{}", answer.status);
            return Ok(());
        };
        ensure!(answer.status == 206, "{}", answer.status);
        ensure!(answer.body == bytes[first..=last], "other bytes");
        has(&answer, "content-length", &(last - first + 1).to_string())?;
        has(
            &answer,
            "content-range",
            &format!("bytes {first}-{last}/{}", bytes.len()),
        )
    }

    /// Tags and digests that are about to be pushed are not there, and that must not be remembered.
    fn absent_before(&self, family: &Family, report: &mut Report) {
        // Of a tag that moves, and of content that several families share, something is there.
        if family.name == MOVED {
            return;
        }
        for (tag, _) in &family.tags {
            let answer = self.ask("HEAD", &format!("manifests/{tag}"), ACCEPT);
            let outcome = answer.and_then(|it| {
                ensure!(it.status == 404, "{}", it.status);
                Ok(())
            });
            report.note(
                format!("{}: not there before: tag {}", family.name, short(tag)),
                outcome,
            );
        }
    }

    fn family(&self, family: &Family, report: &mut Report) {
        let mut note =
            |what: String, outcome| report.note(format!("{}: {what}", family.name), outcome);
        note("tags".into(), self.tags(family));
        for (tag, nth) in &family.tags {
            let (document, name) = (&family.documents[*nth], short(tag));
            note(
                format!("HEAD tag {name}"),
                self.head_manifest(tag, document),
            );
            note(format!("GET tag {name}"), self.get_manifest(tag, document));
        }
        for (nth, document) in family.documents.iter().enumerate() {
            let digest = &document.digest;
            note(
                format!("HEAD manifest {nth}"),
                self.head_manifest(digest, document),
            );
            note(
                format!("GET manifest {nth}"),
                self.get_manifest(digest, document),
            );
        }
        for (nth, (digest, bytes)) in family.blobs.iter().enumerate() {
            note(format!("HEAD blob {nth}"), self.head_blob(digest, bytes));
            for again in ["GET", "GET again,"] {
                note(format!("{again} blob {nth}"), self.get_blob(digest, bytes));
            }
            note(
                format!("HEAD again, blob {nth}"),
                self.head_blob(digest, bytes),
            );
        }
        let subjects: BTreeSet<&String> = family.referrers.iter().map(|it| &it.subject).collect();
        for (nth, subject) in subjects.into_iter().enumerate() {
            let of = |it: &&Referrer| it.subject == *subject;
            let all: Vec<&Referrer> = family.referrers.iter().filter(of).collect();
            note(format!("referrers {nth}"), self.referrers(subject, &all));
            let kinds: BTreeSet<&str> = all
                .iter()
                .filter_map(|it| it.descriptor["artifactType"].as_str())
                .collect();
            for kind in kinds {
                note(
                    format!("referrers {nth} of {kind}"),
                    self.filtered(subject, kind, &all),
                );
            }
        }
    }

    fn head_manifest(&self, reference: &str, document: &Document) -> Result<()> {
        let answer = self.ask("HEAD", &format!("manifests/{reference}"), ACCEPT)?;
        ensure!(answer.body.is_empty(), "a HEAD with a body");
        described(&answer, document)
    }

    fn get_manifest(&self, reference: &str, document: &Document) -> Result<()> {
        let answer = self.ask("GET", &format!("manifests/{reference}"), ACCEPT)?;
        described(&answer, document)?;
        ensure!(answer.body == document.bytes, "other bytes");
        Ok(())
    }

    fn head_blob(&self, digest: &str, bytes: &[u8]) -> Result<()> {
        let answer = self.ask("HEAD", &format!("blobs/{digest}"), &[])?;
        ensure!(answer.status == 200, "{}", answer.status);
        ensure!(answer.body.is_empty(), "a HEAD with a body");
        has(&answer, "content-length", &bytes.len().to_string())?;
        may_have(&answer, "docker-content-digest", digest)
    }

    fn get_blob(&self, digest: &str, bytes: &[u8]) -> Result<()> {
        let answer = self.ask("GET", &format!("blobs/{digest}"), &[])?;
        ensure!(answer.status == 200, "{}", answer.status);
        ensure!(answer.body == *bytes, "other bytes");
        has(&answer, "content-length", &bytes.len().to_string())?;
        may_have(&answer, "docker-content-digest", digest)
    }

    /// All tags of the family are listed, and `last` starts after the one that it names.
    fn tags(&self, family: &Family) -> Result<()> {
        let all = self.list("tags/list")?;
        for (tag, _) in &family.tags {
            ensure!(all.iter().any(|it| it == tag), "{tag} is not listed");
        }
        let mut sorted = all;
        sorted.sort_unstable();
        if let Some(last) = sorted.len().checked_sub(1).map(|end| &sorted[end / 2]) {
            let rest = self.list(&format!("tags/list?last={last}"))?;
            let expected: Vec<&String> = sorted.iter().filter(|tag| *tag > last).collect();
            ensure!(
                rest.iter().collect::<BTreeSet<_>>() == expected.into_iter().collect(),
                "after {last}: {rest:?}"
            );
        }
        Ok(())
    }

    /// Pages of each size give all tags in lexical order, by following the links.
    fn pages(&self, report: &mut Report) {
        let whole = self.list("tags/list");
        for n in [1, 2, 7, 1000] {
            let walk = || {
                let mut all = Vec::new();
                let mut next = Some(format!("/v2/{}/tags/list?n={n}", self.repository));
                while let Some(path) = next {
                    let answer = ask(self.from, &Request::get(&path))?;
                    ensure!(answer.status == 200, "{path}: {}", answer.status);
                    let page = tags_of(&answer)?;
                    ensure!(page.len() <= n, "{} tags on a page of {n}", page.len());
                    all.extend(page);
                    next = answer.header("link").map(link).transpose()?;
                    ensure!(all.len() < 10_000, "the pages have no end");
                }
                let whole = whole.as_ref().ok().context("no list to compare with")?;
                ensure!(all == *whole, "{all:?} instead of {whole:?}");
                let mut sorted = all.clone();
                sorted.sort_unstable();
                ensure!(all == sorted, "not in lexical order");
                Ok(())
            };
            report.note(format!("tags by pages of {n}"), walk());
        }
        let none = || {
            let answer = self.ask("GET", "tags/list?n=0", &[])?;
            ensure!(answer.status == 200, "{}", answer.status);
            ensure!(tags_of(&answer)?.is_empty(), "n=0 asks for none");
            ensure!(answer.header("link").is_none(), "n=0 with a next page");
            Ok(())
        };
        report.note("tags by pages of 0".into(), none());
    }

    fn list(&self, rest: &str) -> Result<Vec<String>> {
        let answer = self.ask("GET", rest, &[])?;
        ensure!(answer.status == 200, "{rest}: {}", answer.status);
        tags_of(&answer)
    }

    fn referrers(&self, subject: &str, expected: &[&Referrer]) -> Result<()> {
        let index = self.index_of(&format!("referrers/{subject}"))?;
        for referrer in expected {
            listed(&index, &referrer.descriptor)?;
        }
        Ok(())
    }

    fn filtered(&self, subject: &str, kind: &str, expected: &[&Referrer]) -> Result<()> {
        let encoded = kind.replace('/', "%2F").replace('+', "%2B");
        let rest = format!("referrers/{subject}?artifactType={encoded}");
        let index = self.index_of(&rest)?;
        let answer = self.ask("GET", &rest, &[])?;
        has(&answer, "oci-filters-applied", "artifactType")?;
        for referrer in expected {
            match listed(&index, &referrer.descriptor) {
                Ok(()) if referrer.descriptor["artifactType"] != kind => bail!("not only {kind}"),
                Err(error) if referrer.descriptor["artifactType"] == kind => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn index_of(&self, rest: &str) -> Result<Value> {
        let answer = self.ask("GET", rest, &[])?;
        ensure!(answer.status == 200, "{rest}: {}", answer.status);
        has(&answer, "content-type", INDEX)?;
        let index: Value = serde_json::from_slice(&answer.body)?;
        ensure!(
            index["mediaType"] == INDEX && index["schemaVersion"] == 2,
            "no index: {index}"
        );
        Ok(index)
    }
}

/// Two lines, as clients send them that know several types.
const ACCEPT: &[(&str, &str)] = &[
    ("accept", INDEX),
    ("accept", MANIFEST),
    (
        "accept",
        "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json",
    ),
];

/// First and last byte of what a range of 2048 bytes selects; none for what cannot be.
const RANGES: &[(&str, Option<(usize, usize)>)] = &[
    ("bytes=500-1499", Some((500, 1499))),
    ("bytes=500-", Some((500, 2047))),
    ("bytes=-500", Some((1548, 2047))),
    ("bytes=2000-5000", Some((2000, 2047))),
    ("bytes=0-0", Some((0, 0))),
    ("bytes=0-", Some((0, 2047))),
    ("bytes=2047-", Some((2047, 2047))),
    ("bytes=500-0", None),
    ("bytes=2048-", None),
    ("bytes=5000-10000", None),
];

fn described(answer: &Response, document: &Document) -> Result<()> {
    ensure!(answer.status == 200, "{}", answer.status);
    has(answer, "content-type", document.media_type)?;
    has(answer, "content-length", &document.bytes.len().to_string())?;
    may_have(answer, "docker-content-digest", &document.digest)
}

fn listed(index: &Value, wanted: &Value) -> Result<()> {
    let fits = |entry: &Value| {
        ["mediaType", "digest", "size", "artifactType"]
            .iter()
            .all(|key| entry[key] == wanted[key])
            && wanted["annotations"].as_object().is_none_or(|all| {
                all.iter()
                    .all(|(key, value)| entry["annotations"][key] == *value)
            })
    };
    let entries = index["manifests"].as_array().context("no list")?;
    ensure!(entries.iter().any(fits), "{wanted} is missing");
    Ok(())
}

fn tags_of(answer: &Response) -> Result<Vec<String>> {
    let list: Value = serde_json::from_slice(&answer.body)?;
    // `null` is what some send for none.
    let tags = list["tags"].as_array().cloned().unwrap_or_default();
    let tags = tags.iter().map(|tag| tag.as_str().map(str::to_owned));
    tags.collect::<Option<_>>().context("a tag that is no text")
}

/// The target of a `Link` to the next page, which may be a whole URL.
fn link(value: &str) -> Result<String> {
    let (target, rest) = value
        .strip_prefix('<')
        .and_then(|rest| rest.split_once('>'))
        .context("no link")?;
    ensure!(rest.contains("rel=\"next\""), "{value}");
    match target
        .strip_prefix("http://")
        .and_then(|it| it.find('/').map(|at| &it[at..]))
    {
        Some(path) => Ok(path.to_owned()),
        None => Ok(target.to_owned()),
    }
}

fn has(answer: &Response, name: &str, value: &str) -> Result<()> {
    let found = answer.header(name);
    ensure!(
        found == Some(value),
        "{name}: {found:?} instead of {value:?}"
    );
    Ok(())
}

/// The spec wants it to be right where it is sent, and sent where it can be.
fn may_have(answer: &Response, name: &str, value: &str) -> Result<()> {
    let found = answer.header(name);
    ensure!(
        found.is_none_or(|it| it == value),
        "{name}: {found:?} instead of {value:?}"
    );
    Ok(())
}

fn short(tag: &str) -> &str {
    &tag[..tag.len().min(20)]
}
