//! Runs the command of a pod's container on this machine, with the files of its volumes, because
//! simulated nodes run no containers.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{binaries::Binaries, cluster::Cluster, release::node, server::Server};

/// The process of a pod's only container. Paths in its arguments are below the folder that stands
/// for the container's root.
pub(super) struct PodProcess {
    server: Server,
}

impl PodProcess {
    /// Starts `program` as the container of `pod`, with the root folder `root`. Existing files in
    /// `root` stand for files of the node.
    ///
    /// # Errors
    /// The pod needs something that this module does not support.
    pub(super) fn start(
        cluster: &Cluster,
        binaries: &Binaries,
        program: &Path,
        pod: &Value,
        root: &Path,
    ) -> Result<Self> {
        let container = &pod["spec"]["containers"][0];
        for mount in list(&container["volumeMounts"]) {
            let path = mount["mountPath"]
                .as_str()
                .context("a mount without a path")?;
            bring(cluster, pod, &mount["name"], &below(root, path))?;
        }
        let environment = environment(pod, container)?;
        let mut command = Command::new(program);
        for word in list(&container["args"]) {
            let word = expanded(word.as_str().context("an argument is text")?, &environment);
            command.arg(match word.split_once("=/") {
                Some((option, path)) => format!("{option}={}", below(root, path).display()),
                None => word,
            });
        }
        let log = cluster.folder().join(format!("{}.log", node(pod)));
        let server = Server::start(binaries, "the container", log, &command)?;
        Ok(Self { server })
    }

    /// Fails if the process has ended. The error has the end of its log.
    pub(super) fn look(&mut self) -> Result<()> {
        self.server.look()
    }

    /// Stops the process as the kubelet does, and waits for its end.
    ///
    /// # Errors
    /// The process exits with an error.
    pub(super) fn end(self) -> Result<()> {
        self.server.end()
    }
}

/// All files below a folder, with their contents.
///
/// # Errors
/// A file cannot be read.
pub(super) fn files(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            let content = fs::read(&path)?;
            found.insert(path, content);
        }
    }
    Ok(found)
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Creates the files of a volume in the folder that stands for its mount.
fn bring(cluster: &Cluster, pod: &Value, name: &Value, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut volumes = list(&pod["spec"]["volumes"]).iter();
    let volume = volumes
        .find(|it| it["name"] == *name)
        .context("no such volume")?;
    if let Some(name) = volume["configMap"]["name"].as_str() {
        let namespace = pod["metadata"]["namespace"]
            .as_str()
            .context("a namespace")?;
        let map = cluster
            .client
            .get(["configmap", name, "--namespace", namespace])?;
        for (file, content) in map["data"].as_object().into_iter().flatten() {
            fs::write(folder.join(file), content.as_str().unwrap_or_default())?;
        }
    } else if volume["hostPath"].is_null() {
        bail!("a volume that is not supported: {volume}");
    }
    Ok(())
}

fn environment(pod: &Value, container: &Value) -> Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for variable in list(&container["env"]) {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("spec.nodeName") => &pod["spec"]["nodeName"],
            Some("status.hostIP") => &pod["status"]["hostIP"],
            Some(other) => bail!("a field that is not supported: {other}"),
            None => &variable["value"],
        };
        let text = |it: &Value| it.as_str().map(str::to_owned);
        variables.extend(text(&variable["name"]).zip(text(value)));
    }
    Ok(variables)
}

/// Replaces `$(NAME)` by the value of the variable, as the kubelet does.
fn expanded(word: &str, variables: &[(String, String)]) -> String {
    let each = variables.iter();
    each.fold(word.to_owned(), |word, (name, value)| {
        word.replace(&format!("$({name})"), value)
    })
}
