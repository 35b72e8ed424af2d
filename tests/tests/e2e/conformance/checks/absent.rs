//! Checks of contents that a registry does not have: never pushed, not yet pushed, or removed.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{
    super::data::{Family, Hash, MOVED},
    ACCEPT, Checker, Report, short,
};

/// The error codes of the specification.
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

impl Checker<'_> {
    /// Checks an empty repository.
    pub(super) fn empty(&self, report: &mut Report) {
        let tags = || {
            let response = self.ask("GET", "tags/list", &[])?;
            ensure!(matches!(response.status, 200 | 404), "{}", response.status);
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

    /// Checks that the registry responds to requests for missing contents with 404 and an error
    /// code of the specification, by GET and by HEAD.
    pub(super) fn absent(&self, report: &mut Report) {
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
                let response = self.ask("GET", &rest, ACCEPT)?;
                ensure!(statuses.contains(&response.status), "{}", response.status);
                let errors: Value = serde_json::from_slice(&response.body)?;
                let code = errors["errors"][0]["code"].as_str().context("no code")?;
                ensure!(
                    CODES.contains(&code),
                    "the specification has no code {code}"
                );
                Ok(())
            };
            report.note(format!("absent: GET {name}"), get());
            let head = || {
                let response = self.ask("HEAD", &rest, ACCEPT)?;
                ensure!(statuses.contains(&response.status), "{}", response.status);
                ensure!(response.body.is_empty(), "a HEAD with a body");
                Ok(())
            };
            report.note(format!("absent: HEAD {name}"), head());
        }
    }

    /// Checks a tag that was pushed, requested, and then removed.
    pub(super) fn removed(&self, family: &Family, report: &mut Report) {
        let Some((tag, _)) = family.tags.first() else {
            return;
        };
        report.note(
            "removed: tag".into(),
            self.target.untag(self.repository, tag),
        );
        for method in ["HEAD", "GET"] {
            let response = self.ask(method, &format!("manifests/{tag}"), ACCEPT);
            let outcome = response.and_then(|it| {
                ensure!(it.status == 404, "{}", it.status);
                Ok(())
            });
            report.note(format!("removed: {method} tag"), outcome);
        }
        let gone = || {
            let tags = self.list("tags/list")?;
            ensure!(!tags.iter().any(|it| it == tag), "{tag} is listed");
            Ok(())
        };
        report.note("removed: tags".into(), gone());
    }

    /// Checks before the push that tags and digests are missing. The registry must not cache the
    /// 404.
    pub(super) fn absent_before(&self, family: &Family, report: &mut Report) {
        // Moved tags, and contents that several families share, exist before the push.
        if family.name == MOVED {
            return;
        }
        for (tag, _) in &family.tags {
            let response = self.ask("HEAD", &format!("manifests/{tag}"), ACCEPT);
            let outcome = response.and_then(|it| {
                ensure!(it.status == 404, "{}", it.status);
                Ok(())
            });
            report.note(
                format!("{}: not there before: tag {}", family.name, short(tag)),
                outcome,
            );
        }
    }
}
