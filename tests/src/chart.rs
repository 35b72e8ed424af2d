//! Renders a Helm chart of `bluefield/`, and reads the Kubernetes objects of the result.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    paths, process,
    tool::{self, Missing},
};

/// The objects that a chart renders for given values.
#[derive(Debug)]
pub struct Chart {
    objects: Vec<Value>,
}

/// Finds helm, and a Python installation with a YAML parser.
fn tools() -> Result<(PathBuf, PathBuf), Missing> {
    let helm = tool::find(&["helm"]).map_err(Missing::unless_go)?;
    // The Python environment of xtask, which also validates the charts.
    let python = paths::tools()
        .map_err(|error| Missing::new(format!("{error:#}")))?
        .join("kubernetes-validate/bin/python");
    if !python.exists() {
        return Err(Missing::new(
            "no kubernetes-validate: `cargo xtask install` installs it",
        ));
    }
    Ok((helm, python))
}

impl Chart {
    /// Checks that this machine has the programs that render charts.
    pub fn find() -> Result<(), Missing> {
        tools().map(drop)
    }

    /// Renders the chart `bluefield/<name>` with these values.
    pub fn render(name: &str, values: &Value) -> Result<Self> {
        let (helm, python) = tools()?;
        let folder = paths::scratch("chart")?;
        let file = folder.path().join("values.yaml");
        // helm accepts JSON, since JSON is a subset of YAML.
        fs::write(&file, values.to_string())?;
        let chart = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../bluefield")
            .join(name);
        let text = process::stdout(
            Command::new(helm)
                .args(["template", "rel", "--kube-version", "1.34"])
                // The chart requires an image repository. The tests run a locally built image, so
                // any name is valid.
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
        // Python reads its whole input before it writes, so that the pipe cannot deadlock.
        let mut stdin = child.stdin.take().context("no standard input")?;
        stdin.write_all(text.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!(
                "Python cannot parse the output of helm:
{text}"
            );
        }
        let objects = serde_json::from_slice(&output.stdout)?;
        Ok(Self { objects })
    }

    /// The object of this kind and, if `name` is given, of this name.
    pub fn object(&self, kind: &str, name: Option<&str>) -> Result<&Value> {
        let fits = |it: &&Value| {
            it["kind"] == kind && name.is_none_or(|name| it["metadata"]["name"] == name)
        };
        let found = self.objects.iter().find(fits);
        found.with_context(|| format!("the chart renders no {kind} {}", name.unwrap_or_default()))
    }

    /// The pod specification of the DaemonSet.
    pub fn pod(&self) -> Result<&Value> {
        Ok(&self.object("DaemonSet", None)?["spec"]["template"]["spec"])
    }
}
