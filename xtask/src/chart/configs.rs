//! Renders the chart with many values, and checks each resulting pierhead configuration with
//! `pierhead config check`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{check::test_count::TestCount, exec, paths};

/// Exit code of pierhead when a file that the configuration names is missing.
const NO_FILE: i32 = 66;

/// Folders of the container for mounted files: read-only and writable.
const MOUNTS: [&str; 2] = ["/etc/pierhead/", "/var/lib/pierhead/"];

/// Runs `pierhead config check` on the configuration in each manifest of a folder. First checks
/// that the pod has a volume for each file that the configuration names, and creates these files as
/// Secrets would.
///
/// # Errors
/// No manifest has a configuration, or a file cannot be created.
pub(crate) fn check(daemon: &Path, manifests: &Path, count: &mut TestCount) -> Result<()> {
    let root = tempfile::tempdir()?;
    let pair = Pair::new()?;
    let mut some = false;
    let mut has_small_tier = false;
    let mut taken_away = BTreeSet::new();
    for file in paths::files(manifests, "yaml")? {
        let manifest = fs::read_to_string(&file)?;
        let Some(toml) = configuration(&manifest) else {
            continue;
        };
        some = true;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let checked = mounted(&manifest, &toml).and_then(|()| {
            let here = root.path().join(&*name);
            let config = lay_out(&here, &toml, &pair)?;
            exec::output(Command::new(daemon).args(["config", "check"]).arg(&config))?;
            Ok((here, config))
        });
        if let Ok((here, config)) = &checked {
            if ["profile-small", "tier-memory"]
                .iter()
                .all(|it| name.contains(it))
            {
                has_small_tier = true;
                let what = format!("config::the profile fills what the chart leaves out::{name}");
                count.note(&what, fills(daemon, &toml, here));
            }
            // The check removes each file of a Secret once: pierhead must report the missing file.
            for path in paths(&toml) {
                let made = here.join(path.trim_start_matches('/'));
                if made.is_file() && taken_away.insert(path.clone()) {
                    fs::remove_file(&made)?;
                    count.note(
                        &format!("config::without {path}"),
                        lacks(daemon, config, &made),
                    );
                }
            }
        }
        count.note(&format!("config::{name}"), checked.map(drop));
    }
    if !some {
        bail!("no manifest has a pierhead.toml");
    }
    if !has_small_tier {
        bail!("no manifest has a tier in memory and the smallest profile");
    }
    Ok(())
}

/// Checks that a tier in memory pauses under pressure as the profile `small` requires, when the
/// chart does not set `pause_under`. Leaves files of Secrets out.
fn fills(daemon: &Path, toml: &str, here: &Path) -> Result<()> {
    let sections = toml.split("\n[").filter_map(|section| {
        let is_needed = section.starts_with("tier]") || section.starts_with("listen");
        is_needed.then(|| section.replace("/var/lib/pierhead", &here.display().to_string()))
    });
    let config = here.join("shown.toml");
    let sections = sections.collect::<Vec<_>>().join("\n[");
    let lines = sections
        .lines()
        .filter(|line| !line.starts_with("docker_config"));
    fs::write(
        &config,
        lines.map(|line| format!("{line}\n")).collect::<String>(),
    )?;
    let shown = exec::output(Command::new(daemon).args(["config", "show"]).arg(&config))?;
    let shown = String::from_utf8_lossy(&shown);
    match shown.lines().find(|it| it.starts_with("pause_under")) {
        Some(line) if line.starts_with(r#"pause_under = ["memory", "cpu"]"#) => Ok(()),
        other => bail!("it shows {other:?}"),
    }
}

/// Checks that pierhead exits with [`NO_FILE`] and names the missing file.
fn lacks(daemon: &Path, config: &Path, missing: &Path) -> Result<()> {
    let checked = Command::new(daemon)
        .args(["config", "check"])
        .arg(config)
        .output()?;
    let said = String::from_utf8_lossy(&checked.stderr);
    if checked.status.code() != Some(NO_FILE) || !said.contains(&missing.display().to_string()) {
        bail!("{}: {said}", checked.status);
    }
    Ok(())
}

/// A certificate and its key, in PEM.
struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    fn new() -> Result<Self> {
        let pair = rcgen::generate_simple_self_signed(["pierhead.example".to_owned()])?;
        Ok(Self {
            certificate: pair.cert.pem(),
            key: pair.signing_key.serialize_pem(),
        })
    }
}

/// Writes `toml` below `here`, and the files that it names, as Secrets would. Returns the path of
/// the configuration file.
fn lay_out(here: &Path, toml: &str, pair: &Pair) -> Result<PathBuf> {
    let mut text = toml.to_owned();
    for path in paths(toml) {
        let made = here.join(path.trim_start_matches('/'));
        // A new volume is one empty folder, so folders below the volume do not exist.
        let folder = match path.starts_with(MOUNTS[0]) {
            true => made.parent().context("a folder")?.to_owned(),
            false => here.join(MOUNTS[1].trim_start_matches('/')),
        };
        fs::create_dir_all(folder)?;
        if let Some(content) = content(&path, &pair.certificate, &pair.key) {
            fs::write(&made, content)?;
        }
        text = text.replace(
            &format!("\"{path}\""),
            &format!("{:?}", made.display().to_string()),
        );
    }
    let config = here.join("pierhead.toml");
    fs::create_dir_all(here)?;
    fs::write(&config, text)?;
    Ok(config)
}

/// Checks that `pierhead config check`, run as by the init container, refuses the configuration in
/// `manifest` with an error that contains `wanted`.
///
/// # Errors
/// pierhead accepts the configuration, or its error does not contain `wanted`.
pub(super) fn refuses(daemon: &Path, manifest: &str, wanted: &str) -> Result<()> {
    let init = "args: [config, check, /etc/pierhead/pierhead.toml]";
    if !manifest.contains(init) {
        bail!("no init container checks the configuration");
    }
    let toml = configuration(manifest).context("no pierhead.toml")?;
    let root = tempfile::tempdir()?;
    let config = lay_out(root.path(), &toml, &Pair::new()?)?;
    let checked = Command::new(daemon)
        .args(["config", "check"])
        .arg(&config)
        .output()?;
    let said = String::from_utf8_lossy(&checked.stderr);
    if checked.status.success() {
        bail!("pierhead takes this configuration: {toml}");
    }
    if !said.contains(wanted) {
        bail!("pierhead does not say {wanted:?}: {said}");
    }
    Ok(())
}

/// The YAML block below `pierhead.toml: |` in a manifest.
fn configuration(manifest: &str) -> Option<String> {
    let (_, block) = manifest.split_once("  pierhead.toml: |\n")?;
    let lines = block
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    Some(
        lines
            .map(|line| format!("{}\n", line.get(4..).unwrap_or("")))
            .collect(),
    )
}

/// Quoted paths in the configuration that are below [`MOUNTS`].
fn paths(toml: &str) -> Vec<String> {
    toml.split('"')
        .filter(|it| MOUNTS.iter().any(|mount| it.starts_with(mount)))
        .map(str::to_owned)
        .collect()
}

/// Checks that the folder of each path is in a volume of the pod.
fn mounted(manifest: &str, toml: &str) -> Result<()> {
    let folders: Vec<_> = manifest
        .split("mountPath: ")
        .skip(1)
        .filter_map(|it| it.split([',', '}', '\n']).next())
        .collect();
    for path in paths(toml) {
        if !folders.iter().any(|it| Path::new(&path).starts_with(it)) {
            bail!("{path}: no volume is mounted there");
        }
    }
    Ok(())
}

/// Content for the file at `path`, by its name. `None` for files that pierhead writes, which do not
/// exist at first.
fn content<'a>(path: &str, certificate: &'a str, key: &'a str) -> Option<&'a str> {
    if !path.starts_with(MOUNTS[0]) {
        return None;
    }
    Some(match PathBuf::from(path).file_name()?.to_str()? {
        name if name.ends_with(".crt") => certificate,
        name if name.ends_with(".key") => key,
        // A bcrypt hash with the minimum cost. No client uses the password.
        "htpasswd" => "tester:$2y$04$3TBdGjDrMOdROSmdD7BYCOm9xSUdbdnlVLdWG5hGFHuFqPHYMeNkW\n",
        "config.json" => {
            "{\"auths\": {\"registry.example\": {\"auth\": \"dGVzdGVyOnRlc3Rlcg==\"}}}\n"
        }
        _ => "secret\n",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "data:\n  pierhead.toml: |\n    a = 1\n\n    [tls]\n    cert = \"/etc/pierhead/tls/tls.crt\"\n---\nkind: Pod\n- {name: tls, mountPath: /etc/pierhead/tls, readOnly: true}\n";

    #[test]
    fn a_configuration_is_its_block() {
        let toml = configuration(MANIFEST).unwrap();
        assert_eq!(
            toml,
            "a = 1\n\n[tls]\ncert = \"/etc/pierhead/tls/tls.crt\"\n"
        );
        assert_eq!(paths(&toml), ["/etc/pierhead/tls/tls.crt"]);
        assert!(configuration("kind: Pod\n").is_none());
    }

    #[test]
    fn a_file_without_a_volume_is_found() {
        let toml = configuration(MANIFEST).unwrap();
        mounted(MANIFEST, &toml).unwrap();
        let without = MANIFEST.replace(
            "mountPath: /etc/pierhead/tls,",
            "mountPath: /etc/pierhead/tl,",
        );
        assert!(mounted(&without, &toml).is_err());
    }
}
