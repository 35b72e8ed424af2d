//! A chart of `bluefield/` as the API server would get it.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    place, process,
    tool::{self, Missing},
};

/// The objects that it makes of some values.
#[derive(Debug)]
pub struct Chart {
    objects: Vec<Value>,
}

/// helm, and a Python that reads YAML.
fn tools() -> Result<(PathBuf, PathBuf), Missing> {
    let helm = tool::find(&["helm"]).map_err(Missing::unless_go)?;
    // The one that validates the charts.
    let python = place::tools()
        .map_err(|error| Missing::new(format!("{error:#}")))?
        .join("kubernetes-validate/bin/python");
    if !python.exists() {
        return Err(Missing::new(
            "no kubernetes-validate: `cargo xtask install` puts it up",
        ));
    }
    Ok((helm, python))
}

impl Chart {
    /// Whether charts can be rendered here.
    pub fn find() -> Result<(), Missing> {
        tools().map(drop)
    }

    /// Renders `bluefield/<name>`.
    pub fn render(name: &str, values: &Value) -> Result<Self> {
        let (helm, python) = tools().map_err(|missing| anyhow::anyhow!("{missing}"))?;
        let folder = place::scratch("chart")?;
        let file = folder.path().join("values.yaml");
        // JSON is YAML.
        fs::write(&file, values.to_string())?;
        let chart = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../bluefield")
            .join(name);
        let text = process::stdout(
            Command::new(helm)
                .args(["template", "rel", "--kube-version", "1.34"])
                // Required; the tests run the image that was built here, whatever its name.
                .args(["--set", "image.repository=registry.example/pierhead"])
                .arg("--values")
                .arg(file)
                .arg(chart),
        )?;
        let mut child = Command::new(python)
            .arg("-c")
            .arg("import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        // All of it is read before anything is written.
        let mut stdin = child.stdin.take().context("no standard input")?;
        stdin.write_all(text.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("Python cannot read what helm wrote:\n{text}");
        }
        let objects = serde_json::from_slice(&output.stdout)?;
        Ok(Self { objects })
    }

    /// An object of the kind, of that name if one is given.
    pub fn object(&self, kind: &str, name: Option<&str>) -> Result<&Value> {
        let fits = |it: &&Value| {
            it["kind"] == kind && name.is_none_or(|name| it["metadata"]["name"] == name)
        };
        let found = self.objects.iter().find(fits);
        found.with_context(|| format!("the chart makes no {kind} {}", name.unwrap_or_default()))
    }

    /// What the DaemonSet's pods are to be.
    pub fn pod(&self) -> Result<&Value> {
        Ok(&self.object("DaemonSet", None)?["spec"]["template"]["spec"])
    }
}
