//! Checks of tag lists and referrers lists.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use pierhead_testkit::http::{Request, Response};
use serde_json::Value;

use super::{
    super::data::{Family, INDEX, Referrer},
    Checker, Report, has,
};
use crate::requests::ask;

impl Checker<'_> {
    /// Checks that all tags of the family are listed, and that a list with `last` begins after that
    /// tag.
    pub(super) fn tags(&self, family: &Family) -> Result<()> {
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

    /// Checks that pages of each size contain all tags in lexical order.
    pub(super) fn pages(&self, report: &mut Report) {
        let whole = self.list("tags/list");
        for n in [1, 2, 7, 1000] {
            let walk = || {
                let mut all = Vec::new();
                let mut next = Some(format!("/v2/{}/tags/list?n={n}", self.repository));
                while let Some(path) = next {
                    let response = ask(self.from, &Request::get(&path))?;
                    ensure!(response.status == 200, "{path}: {}", response.status);
                    let page = tags_of(&response)?;
                    ensure!(page.len() <= n, "{} tags on a page of {n}", page.len());
                    all.extend(page);
                    next = response.header("link").map(link).transpose()?;
                    ensure!(all.len() < 10_000, "the list of pages does not end");
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
            let response = self.ask("GET", "tags/list?n=0", &[])?;
            ensure!(response.status == 200, "{}", response.status);
            ensure!(tags_of(&response)?.is_empty(), "n=0 returned tags");
            ensure!(response.header("link").is_none(), "n=0 with a next page");
            Ok(())
        };
        report.note("tags by pages of 0".into(), none());
    }

    pub(super) fn list(&self, rest: &str) -> Result<Vec<String>> {
        let response = self.ask("GET", rest, &[])?;
        ensure!(response.status == 200, "{rest}: {}", response.status);
        tags_of(&response)
    }

    pub(super) fn referrers(&self, subject: &str, expected: &[&Referrer]) -> Result<()> {
        let index = self.index_of(&format!("referrers/{subject}"))?;
        for referrer in expected {
            listed(&index, &referrer.descriptor)?;
        }
        Ok(())
    }

    pub(super) fn filtered(&self, subject: &str, kind: &str, expected: &[&Referrer]) -> Result<()> {
        let encoded = kind.replace('/', "%2F").replace('+', "%2B");
        let rest = format!("referrers/{subject}?artifactType={encoded}");
        let index = self.index_of(&rest)?;
        let response = self.ask("GET", &rest, &[])?;
        has(&response, "oci-filters-applied", "artifactType")?;
        for referrer in expected {
            match listed(&index, &referrer.descriptor) {
                Ok(()) if referrer.descriptor["artifactType"] != kind => bail!("not only {kind}"),
                Err(error) if referrer.descriptor["artifactType"] == kind => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn index_of(&self, rest: &str) -> Result<Value> {
        let response = self.ask("GET", rest, &[])?;
        ensure!(response.status == 200, "{rest}: {}", response.status);
        has(&response, "content-type", INDEX)?;
        let index: Value = serde_json::from_slice(&response.body)?;
        ensure!(
            index["mediaType"] == INDEX && index["schemaVersion"] == 2,
            "no index: {index}"
        );
        Ok(index)
    }
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

fn tags_of(response: &Response) -> Result<Vec<String>> {
    let list: Value = serde_json::from_slice(&response.body)?;
    // Some registries send `null` for an empty list.
    let tags = list["tags"].as_array().cloned().unwrap_or_default();
    let tags = tags.iter().map(|tag| tag.as_str().map(str::to_owned));
    tags.collect::<Option<_>>().context("a tag that is no text")
}

/// The path of a `Link` to the next page, which may be an absolute URL.
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
