//! Sends all objects of the Helm charts, rendered with many combinations of values, to the API
//! server as a dry run. The API server must accept each object.

use std::{fs, path::Path};

use anyhow::{Result, bail};

use super::client::Client;
use crate::{check::test_count::TestCount, paths};

/// Namespace that enforces the restricted Pod Security Standard: its pods use nothing of their
/// node. A warning about a pod is a failure.
pub(super) const RESTRICTED: &str = "restricted";
/// Namespace whose pods may use their node.
pub(super) const PRIVILEGED: &str = "privileged";

/// Manifest of both namespaces.
pub(super) const NAMESPACES: &str = "\
apiVersion: v1
kind: Namespace
metadata:
  name: restricted
  labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}
---
apiVersion: v1
kind: Namespace
metadata:
  name: privileged
  labels: {pod-security.kubernetes.io/enforce: privileged}
";

/// Sends each named manifest to the API server as a dry run.
///
/// # Errors
/// A file cannot be read. An object that the API server refuses is a failed test.
pub(super) fn run(client: &Client, manifests: &Path, count: &mut TestCount) -> Result<()> {
    let mut restricted = 0;
    for file in paths::files(manifests, "yaml")? {
        let text = fs::read_to_string(&file)?;
        let uses_node = text.contains("hostPath:") || text.contains("hostNetwork: true");
        let namespace = if uses_node { PRIVILEGED } else { RESTRICTED };
        restricted += u32::from(!uses_node);
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        count.note(
            &format!("strict::{stem}"),
            check_accepted(client, namespace, &text),
        );
        if uses_node && text.contains("kind: DaemonSet") {
            let refused = match check_accepted(client, RESTRICTED, &text) {
                Ok(()) => Err(anyhow::anyhow!("it would do in a restricted namespace")),
                Err(_) => Ok(()),
            };
            count.note(&format!("strict::needs its node::{stem}"), refused);
        }
    }
    if restricted == 0 {
        bail!("no combination of values does without its node");
    }
    Ok(())
}

/// Checks that the API server would accept all objects of `text` without a warning.
pub(super) fn check_accepted(client: &Client, namespace: &str, text: &str) -> Result<()> {
    let words = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "--namespace",
        namespace,
        "--filename=-",
    ];
    let output = client.send(&words, text)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || said.contains("Warning:") {
        bail!("{}", said.trim());
    }
    Ok(())
}
