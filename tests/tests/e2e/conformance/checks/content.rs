//! Checks of complete manifests and blobs, by GET and HEAD.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use pierhead_testkit::http::Response;

use super::{
    super::data::{Document, Family, Referrer},
    ACCEPT, Checker, Report, has, may_have, short,
};

impl Checker<'_> {
    pub(super) fn family(&self, family: &Family, report: &mut Report) {
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
            let path = format!("manifests/{tag}");
            note(
                format!("digest of tag {name}"),
                self.named(&path, &document.digest),
            );
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
            let path = format!("manifests/{digest}");
            note(
                format!("digest of manifest {nth}"),
                self.named(&path, digest),
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
            let path = format!("blobs/{digest}");
            note(format!("digest of blob {nth}"), self.named(&path, digest));
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

    /// Checks the `Docker-Content-Digest` header, from which clients take the digest.
    fn named(&self, rest: &str, digest: &str) -> Result<()> {
        for method in ["HEAD", "GET"] {
            let response = self.ask(method, rest, ACCEPT)?;
            has(&response, "docker-content-digest", digest)?;
        }
        Ok(())
    }

    fn head_manifest(&self, reference: &str, document: &Document) -> Result<()> {
        let response = self.ask("HEAD", &format!("manifests/{reference}"), ACCEPT)?;
        ensure!(response.body.is_empty(), "a HEAD with a body");
        described(&response, document)
    }

    fn get_manifest(&self, reference: &str, document: &Document) -> Result<()> {
        let response = self.ask("GET", &format!("manifests/{reference}"), ACCEPT)?;
        described(&response, document)?;
        ensure!(response.body == document.bytes, "other bytes");
        Ok(())
    }

    fn head_blob(&self, digest: &str, bytes: &[u8]) -> Result<()> {
        let response = self.ask("HEAD", &format!("blobs/{digest}"), &[])?;
        ensure!(response.status == 200, "{}", response.status);
        ensure!(response.body.is_empty(), "a HEAD with a body");
        has(&response, "content-length", &bytes.len().to_string())?;
        may_have(&response, "docker-content-digest", digest)
    }

    fn get_blob(&self, digest: &str, bytes: &[u8]) -> Result<()> {
        let response = self.ask("GET", &format!("blobs/{digest}"), &[])?;
        ensure!(response.status == 200, "{}", response.status);
        ensure!(response.body == *bytes, "other bytes");
        has(&response, "content-length", &bytes.len().to_string())?;
        may_have(&response, "docker-content-digest", digest)
    }
}

fn described(response: &Response, document: &Document) -> Result<()> {
    ensure!(response.status == 200, "{}", response.status);
    has(response, "content-type", document.media_type)?;
    has(
        response,
        "content-length",
        &document.bytes.len().to_string(),
    )?;
    may_have(response, "docker-content-digest", &document.digest)
}
