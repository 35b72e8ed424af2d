//! Runs the container of a rendered pod by podman, with the settings of the pod specification:
//! image, arguments, user, volumes, limits, security. A setting that this module does not support
//! is an error, so that no setting is ignored.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, getrlimit};
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::{chart::Chart, clients::Podman, namespace, paths, tool::Missing, wait};

/// A running container. Dropping it removes the container.
#[derive(Debug)]
pub struct Pod {
    podman: Podman,
    id: String,
    grace: u64,
    volumes: TempDir,
    config_check: Option<Result<String, String>>,
}

/// The size of a volume in memory (`emptyDir` with `medium: Memory`).
struct InMemory(String);

/// The OCI layout of the release image with the program under test: `PIERHEAD_IMAGE`, or else the
/// layout in the build folder.
pub fn image() -> Result<PathBuf, Missing> {
    let built = || Some(paths::profile().ok()?.parent()?.join("dist-trial/image"));
    let named = std::env::var_os("PIERHEAD_IMAGE").map(PathBuf::from);
    named
        .or_else(built)
        .filter(|folder| folder.join("index.json").exists())
        .ok_or_else(|| {
            Missing::new("no image of pierhead: `cargo xtask test --only dist` builds it")
        })
}

/// Checks that this machine can run a pod.
pub fn find() -> Result<(), Missing> {
    Chart::find()?;
    Podman::find()?;
    namespace::available()?;
    image().map(drop)
}

/// Whether an init container has the same image, mounts, limits and security settings as the pod's
/// container.
fn is_alike(init: &Value, container: &Value) -> bool {
    let same = [
        "image",
        "volumeMounts",
        "resources",
        "securityContext",
        "env",
        "command",
    ];
    same.iter().all(|key| init.get(key) == container.get(key))
}

impl Pod {
    /// Starts the only container of the chart's pod, in the network namespace of the calling
    /// thread. `environment` has the values that a node would supply for each `fieldRef`.
    pub fn start(chart: &Chart, environment: &[(&str, &str)]) -> Result<Self> {
        // The container uses the local image and pulls nothing.
        let podman = Podman::with_mirror("docker.io", ([127, 0, 0, 1], 1).into())?;
        let layout = image()?;
        let id = podman.load(&layout)?;
        let pod = chart.pod()?;
        let container = match pod["containers"].as_array().map(Vec::as_slice) {
            Some([one]) => one,
            _ => bail!("more than one container: {pod}"),
        };
        let check = match list(&pod["initContainers"]) {
            [] => None,
            [one] if is_alike(one, container) => Some(one),
            _ => bail!("an init container with settings of its own: {pod}"),
        };
        let volumes = paths::scratch("volumes")?;
        let mut words: Vec<String> = ["run", "--network=host", "--pull=never"]
            .map(str::to_owned)
            .into();
        let settings = Settings::of(&pod["securityContext"], &container["securityContext"])?;
        words.extend(settings.words());
        words.extend(limits(&container["resources"]["limits"])?);
        let mut in_memory = BTreeMap::new();
        for volume in list(&pod["volumes"]) {
            let name = text(&volume["name"])?;
            match memory(volume)? {
                Some(it) => drop(in_memory.insert(name, it)),
                None => make(volume, &volumes.path().join(name), chart, settings.volumes)?,
            }
        }
        for mount in list(&container["volumeMounts"]) {
            let name = text(&mount["name"])?;
            if let Some(InMemory(size)) = in_memory.get(name) {
                // The volume is a mount in the container's memory, which the kernel charges to the
                // container, as in a pod.
                let at = text(&mount["mountPath"])?;
                words.push(format!(
                    "--mount=type=tmpfs,destination={at},tmpfs-size={size},tmpfs-mode=0777"
                ));
                continue;
            }
            let mut from = volumes.path().join(name);
            if let Some(inner) = mount["subPath"].as_str() {
                from.push(inner);
            }
            let read_only = mount["readOnly"].as_bool().unwrap_or(false);
            let mode = if read_only { "ro" } else { "rw" };
            let at = text(&mount["mountPath"])?;
            words.push(format!("--volume={}:{at}:{mode}", from.display()));
        }
        for variable in list(&container["env"]) {
            let name = text(&variable["name"])?;
            let given = environment.iter().find(|it| it.0 == name);
            let value = variable["value"].as_str().or(given.map(|it| it.1));
            let value = value.with_context(|| format!("no value for {name}"))?;
            words.push(format!("--env={name}={value}"));
        }
        if let Some(command) = container.get("command") {
            words.push(format!("--entrypoint={command}"));
        }
        words.push(id);
        let run = |mode: &str, container: &Value| {
            let mut words = words.clone();
            words.insert(1, mode.to_owned());
            for word in list(&container["args"]) {
                let mut word = text(word)?.to_owned();
                // Sets the environment as a kubelet does.
                for (name, value) in environment {
                    word = word.replace(&format!("$({name})"), value);
                }
                words.push(word);
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            podman.podman(&words)
        };
        // A kubelet runs a failed init container again, and starts no other container before it
        // succeeds.
        let config_check = check.map(|it| run("--rm", it).map_err(|error| format!("{error:#}")));
        let id = run("--detach", container)?.trim().to_owned();
        let grace = pod["terminationGracePeriodSeconds"].as_u64();
        Ok(Self {
            podman,
            id,
            grace: grace.context("no terminationGracePeriodSeconds")?,
            volumes,
            config_check,
        })
    }

    /// The output of the init container, or its error. `None` without an init container.
    pub fn config_check(&self) -> Option<Result<&str, &str>> {
        let check = self.config_check.as_ref()?;
        Some(check.as_deref().map_err(String::as_str))
    }

    /// The host folder of a volume.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.volumes.path().join(name)
    }

    /// The output (stdout and stderr) of the container.
    pub fn log(&self) -> String {
        let log = self.podman.logs(&self.id);
        log.unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Whether the container is running.
    pub fn is_running(&self) -> Result<bool> {
        Ok(self.inspect("{{.State.Running}}")? == "true")
    }

    /// Waits until the container exits. Returns its exit status.
    pub fn wait_for_exit(&self) -> Result<i32> {
        wait::try_until("the end of the pod", || {
            Ok((!self.is_running()?).then_some(()))
        })?;
        Ok(self.inspect("{{.State.ExitCode}}")?.parse()?)
    }

    /// Starts the container again after its exit, as a kubelet does.
    pub fn restart(&self) -> Result<()> {
        self.podman.podman(&["start", &self.id]).map(drop)
    }

    /// Whether a command in the container succeeds, as for an `exec` probe of a kubelet.
    pub fn exec(&self, words: &Value) -> Result<bool> {
        let mut command = vec!["exec", &self.id];
        for word in list(words) {
            command.push(text(word)?);
        }
        Ok(self.podman.podman(&command).is_ok())
    }

    /// A line of `/proc/<pid>/status` of the container's process, such as `CapEff`.
    pub fn status(&self, key: &str) -> Result<String> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let value = line.and_then(|it| it.strip_prefix(':'));
        Ok(value
            .with_context(|| format!("no {key}"))?
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "))
    }

    /// The mount options of a path in the container.
    pub fn mounted(&self, at: &str) -> Result<String> {
        let mounts = self.proc("mounts")?;
        let mut lines = mounts.lines().map(|line| line.split(' '));
        // If a path has several mounts, the last mount hides the others.
        let options = lines.rfind(|words| words.clone().nth(1) == Some(at));
        let options = options.and_then(|mut words| words.nth(3).map(str::to_owned));
        options.with_context(|| format!("nothing is mounted at {at}"))
    }

    /// Stops the container as a kubelet does. Returns its exit status.
    pub fn stop(&self) -> Result<i32> {
        self.podman
            .podman(&["stop", "--time", &self.grace.to_string(), &self.id])?;
        Ok(self.inspect("{{.State.ExitCode}}")?.parse()?)
    }

    fn proc(&self, file: &str) -> Result<String> {
        let pid = self.inspect("{{.State.Pid}}")?;
        fs::read_to_string(format!("/proc/{pid}/{file}"))
            .with_context(|| format!("the container exited:\n{}", self.log()))
    }

    fn inspect(&self, format: &str) -> Result<String> {
        let output = self
            .podman
            .podman(&["container", "inspect", "--format", format, &self.id])?;
        Ok(output.trim().to_owned())
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the log of the pod:\n{}", self.log());
        }
        let _ = self
            .podman
            .podman(&["rm", "--force", "--time", "0", &self.id]);
    }
}

/// The security settings of a container, including those of its pod.
struct Settings {
    user: u64,
    group: u64,
    /// The group of the volumes (`fsGroup`).
    volumes: Option<u64>,
}

impl Settings {
    /// Reads the settings that pierhead's charts use. Any other setting is an error.
    fn of(pod: &Value, container: &Value) -> Result<Self> {
        let mut left = Map::new();
        // Settings of the container take precedence over those of the pod.
        for of in [pod, container] {
            left.extend(of.as_object().cloned().unwrap_or_default());
        }
        let mut take = |key: &str| left.remove(key).unwrap_or_default();
        let expected = [
            ("allowPrivilegeEscalation", "false"),
            ("privileged", "false"),
            ("readOnlyRootFilesystem", "true"),
            ("capabilities", r#"{"drop":["ALL"]}"#),
            ("seccompProfile", r#"{"type":"RuntimeDefault"}"#),
        ];
        for (key, value) in expected {
            let found = take(key).to_string();
            ensure!(found == value, "{key} is {found}");
        }
        let user = take("runAsUser").as_u64().context("no runAsUser")?;
        let group = take("runAsGroup").as_u64().context("no runAsGroup")?;
        let volumes = take("fsGroup").as_u64();
        let not_root = take("runAsNonRoot") == true;
        ensure!(!not_root || user != 0, "user 0 contradicts runAsNonRoot");
        // `fsGroupChangePolicy` has no effect on the kinds of volumes in this test.
        take("fsGroupChangePolicy");
        ensure!(left.is_empty(), "not understood: {left:?}");
        Ok(Self {
            user,
            group,
            volumes,
        })
    }

    fn words(&self) -> Vec<String> {
        let files = getrlimit(Resource::Nofile).maximum.unwrap_or(65536);
        let mut words = vec![
            format!("--user={}:{}", self.user, self.group),
            "--read-only".to_owned(),
            // podman would add writable folders in memory, which a kubelet does not add.
            "--read-only-tmpfs=false".to_owned(),
            "--cap-drop=all".to_owned(),
            "--security-opt=no-new-privileges".to_owned(),
            // Without these limits, podman would raise the limits to those of the kernel, which a
            // sandbox may forbid even for root.
            format!("--ulimit=nofile={files}:{files}"),
            "--ulimit=nproc=1024:1024".to_owned(),
        ];
        words.extend(self.volumes.map(|group| format!("--group-add={group}")));
        words
    }
}

fn limits(limits: &Value) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (name, amount) in limits.as_object().into_iter().flatten() {
        let amount = match amount {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        words.push(match name.as_str() {
            "memory" => format!("--memory={}", amount.trim_end_matches('i')),
            "cpu" => match amount.strip_suffix('m') {
                Some(milli) => format!("--cpus={}", milli.parse::<f64>()? / 1000.0),
                None => format!("--cpus={amount}"),
            },
            other => bail!("an unsupported limit: {other}"),
        });
    }
    Ok(words)
}

/// The volume in memory, if the volume is one.
fn memory(volume: &Value) -> Result<Option<InMemory>> {
    let empty = &volume["emptyDir"];
    if empty["medium"] != "Memory" {
        return Ok(None);
    }
    let size = text(&empty["sizeLimit"])?
        .trim_end_matches('i')
        .to_lowercase();
    Ok(Some(InMemory(size)))
}

/// Creates the folder or file that a kubelet would mount.
fn make(volume: &Value, path: &Path, chart: &Chart, group: Option<u64>) -> Result<()> {
    fs::create_dir(path)?;
    if let Some(map) = volume.get("configMap") {
        let object = chart.object("ConfigMap", Some(text(&map["name"])?))?;
        for (name, content) in object["data"].as_object().into_iter().flatten() {
            fs::write(path.join(name), text(content)?)?;
        }
    } else if let Some(secret) = volume.get("secret") {
        // No such path exists on the host.
        ensure!(
            secret["optional"] == true,
            "the kubelet would wait for this volume: {volume}"
        );
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
    } else if volume.get("emptyDir").is_some() {
        // Writable by all users. Files in it belong to the group of the volumes.
        let group = group.map(u32::try_from).transpose()?;
        chown(path, None, group)?;
        fs::set_permissions(path, Permissions::from_mode(0o2777))?;
    } else if let Some(node) = volume.get("hostPath") {
        ensure!(
            node["type"] == "DirectoryOrCreate",
            "a folder that must exist: {node}"
        );
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
    } else {
        bail!("an unsupported volume: {volume}");
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("no text: {value}"))
}
