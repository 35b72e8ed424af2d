//! Every configuration that the chart renders, as pierhead itself reads it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{check::count::Count, exec, place};

/// What pierhead ends with when a file that the configuration names is not there.
const NO_FILE: i32 = 66;

/// Where containers have what is mounted for them to read, and to write.
const MOUNTS: [&str; 2] = ["/etc/pierhead/", "/var/lib/pierhead/"];

/// Runs `pierhead config check` on the configuration in each manifest of a folder. The files that it names are made,
/// as Secrets would bring them, after a look whether the pod has a volume there.
///
/// # Errors
/// When there is no configuration at all, or a file cannot be made.
pub(crate) fn check(daemon: &Path, manifests: &Path, count: &mut Count) -> Result<()> {
    let root = tempfile::tempdir()?;
    let pair = rcgen::generate_simple_self_signed(["pierhead.example".to_owned()])?;
    let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    let mut some = false;
    let mut taken_away = BTreeSet::new();
    let mut pressed = false;
    for file in place::files(manifests, "yaml")? {
        let manifest = fs::read_to_string(&file)?;
        let Some(toml) = configuration(&manifest) else {
            continue;
        };
        some = true;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let checked = mounted(&manifest, &toml).and_then(|()| {
            let here = root.path().join(&*name);
            let mut toml = toml.clone();
            for path in paths(&toml.clone()) {
                let made = here.join(path.trim_start_matches('/'));
                fs::create_dir_all(made.parent().context("a folder")?)?;
                if let Some(content) = content(&path, &certificate, &key) {
                    fs::write(&made, content)?;
                }
                toml = toml.replace(
                    &format!("\"{path}\""),
                    &format!("{:?}", made.display().to_string()),
                );
            }
            let config = here.join("pierhead.toml");
            fs::create_dir_all(&here)?;
            fs::write(&config, toml)?;
            exec::output(Command::new(daemon).args(["config", "check"]).arg(&config))?;
            Ok((here, config))
        });
        if let Ok((here, config)) = &checked {
            // Once for each file that a Secret brings: pierhead says so when it does not.
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
            if ["profile-small", "tier-memory"]
                .iter()
                .all(|it| name.contains(it))
            {
                pressed = true;
                let what = format!("config::a tier in memory gives way::{name}");
                count.note(&what, gives_way(daemon, &toml, here));
            }
        }
        count.note(&format!("config::{name}"), checked.map(drop));
    }
    if !pressed {
        bail!("no manifest has a tier in memory and the smallest profile");
    }
    if !some {
        bail!("no manifest has a pierhead.toml");
    }
    Ok(())
}

/// Whether pierhead ends with its code for a file that is not there, and names it.
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

/// Whether the profile has its say on what the chart leaves unsaid. No files: those of Secrets are no matter here.
fn gives_way(daemon: &Path, toml: &str, here: &Path) -> Result<()> {
    let kept = toml.split("\n[").filter_map(|section| {
        let kept = section.starts_with("tier]") || section.starts_with("listen");
        kept.then(|| section.replace("/var/lib/pierhead", &here.display().to_string()))
    });
    let config = here.join("shown.toml");
    let lines = kept.collect::<Vec<_>>().join("\n[");
    let lines = lines
        .lines()
        .filter(|line| !line.starts_with("docker_config"));
    fs::write(
        &config,
        lines.map(|line| format!("{line}\n")).collect::<String>(),
    )?;
    let shown = exec::output(Command::new(daemon).args(["config", "show"]).arg(&config))?;
    let shown = String::from_utf8_lossy(&shown);
    let line = shown.lines().find(|it| it.starts_with("follow_pressure"));
    match line {
        Some(line) if line.starts_with("follow_pressure = true") => Ok(()),
        other => bail!("it shows {other:?}"),
    }
}

/// The block below `pierhead.toml: |`.
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

/// Quoted paths below the mounts.
fn paths(toml: &str) -> Vec<String> {
    toml.split('"')
        .filter(|it| MOUNTS.iter().any(|mount| it.starts_with(mount)))
        .map(str::to_owned)
        .collect()
}

/// Whether the folder of each path is in a volume of the pod.
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

/// What would be in a file of that name; nothing is there beforehand in what pierhead writes.
fn content<'a>(path: &str, certificate: &'a str, key: &'a str) -> Option<&'a str> {
    if !path.starts_with(MOUNTS[0]) {
        return None;
    }
    Some(match PathBuf::from(path).file_name()?.to_str()? {
        name if name.ends_with(".crt") => certificate,
        name if name.ends_with(".key") => key,
        // The cost is the least, and the password nobody's.
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
