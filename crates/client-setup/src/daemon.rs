//! Reads the command line flags of this machine's dockerd, and the version of this machine's
//! containerd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::config_root::ConfigRoot;

/// The command line flags of dockerd, from all places where they can be set.
#[derive(Debug, Default)]
pub(crate) struct DockerdFlags {
    /// The value of `--config-file`.
    pub(crate) config_file: Option<PathBuf>,
    /// Each word of a command line, and the name of the place where the word is set.
    words: Vec<(String, String)>,
}

impl DockerdFlags {
    /// Returns the name of the place where a flag is set, if dockerd has the flag.
    pub(crate) fn source_of(&self, flag: &str) -> Option<&str> {
        let given = |word: &str| {
            word.strip_prefix(flag)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let found = self.words.iter().find(|(word, _)| given(word));
        found.map(|(_, source)| source.as_str())
    }

    fn value_of(&self, flag: &str) -> Option<String> {
        let mut words = self.words.iter().map(|(word, _)| word.as_str());
        while let Some(word) = words.next() {
            if word == flag {
                return words.next().map(str::to_owned);
            }
            if let Some(value) = word
                .strip_prefix(flag)
                .and_then(|rest| rest.strip_prefix('='))
            {
                return Some(value.to_owned());
            }
        }
        None
    }
}

/// Reads the flags of the machine's dockerd from three places: the running process, its systemd
/// unit, and Debian's defaults file.
pub(crate) fn dockerd_flags(root: &ConfigRoot) -> DockerdFlags {
    let mut flags = DockerdFlags::default();
    if root.is_user() {
        return flags;
    }
    let mut add = |words: Vec<String>, source: &str| {
        flags
            .words
            .extend(words.into_iter().map(|word| (word, source.to_owned())));
    };
    if let Some(pid) = dockerd_pid(root) {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let words: Vec<_> = words.map(|word| word.into_owned()).collect();
        let is_dockerd = words.first().is_some_and(|it| it.ends_with("dockerd"));
        if is_dockerd {
            add(words, &format!("its command line (process {pid})"));
        }
    }
    for (path, words) in unit_words(root, "docker.service") {
        add(words, &path.display().to_string());
    }
    let defaults = Path::new("/etc/default/docker");
    if let Ok(Some(text)) = root.read(defaults) {
        let line = text
            .lines()
            .rev()
            .find_map(|line| line.trim().strip_prefix("DOCKER_OPTS="));
        add(
            split(line.unwrap_or_default()),
            &defaults.display().to_string(),
        );
    }
    flags.config_file = flags.value_of("--config-file").map(PathBuf::from);
    flags
}

/// Returns the process ID of the machine's dockerd. Other instances of dockerd, such as instances
/// in containers, have other PID files.
pub(crate) fn dockerd_pid(root: &ConfigRoot) -> Option<u32> {
    if !root.is_live() || root.is_user() {
        return None;
    }
    let pid = root.read(Path::new("/run/docker.pid")).ok()??;
    pid.trim().parse().ok()
}

/// Returns the command lines in a systemd unit and its drop-ins. An empty `ExecStart` clears the
/// earlier command lines.
fn unit_words(root: &ConfigRoot, unit: &str) -> Vec<(PathBuf, Vec<String>)> {
    const FOLDERS: [&str; 4] = [
        "/etc/systemd/system",
        "/run/systemd/system",
        "/usr/lib/systemd/system",
        "/lib/systemd/system",
    ];
    let main = FOLDERS.iter().map(|folder| Path::new(folder).join(unit));
    let mut files: Vec<_> = main
        .filter(|path| root.real(path).is_file())
        .take(1)
        .collect();
    for folder in FOLDERS {
        let folder = Path::new(folder).join(format!("{unit}.d"));
        files.extend(root.list(&folder, ".conf").unwrap_or_default());
    }
    let mut words = Vec::new();
    for path in files {
        let Ok(Some(text)) = root.read(&path) else {
            continue;
        };
        for line in text.replace("\\\n", " ").lines() {
            match line.trim().strip_prefix("ExecStart=") {
                // In systemd units, an empty `ExecStart` clears all earlier `ExecStart` lines.
                Some(rest) if rest.trim().is_empty() => words.clear(),
                Some(rest) => words.push((path.clone(), split(rest))),
                None => {}
            }
        }
    }
    words
}

fn split(line: &str) -> Vec<String> {
    line.split_whitespace()
        .map(|word| word.trim_matches(['"', '\'']).to_owned())
        .collect()
}

/// Whether containerd imports `conf.d` by default, as containerd does since version 2.2. If `root`
/// is a folder with the files of another machine, no containerd runs whose version could be read.
/// In this case, the existence of `conf.d` decides.
pub(crate) fn containerd_imports_by_default(root: &ConfigRoot) -> bool {
    if !root.is_live() {
        return root.real(&root.etc("containerd/conf.d")).is_dir();
    }
    let Ok(output) = Command::new("containerd").arg("--version").output() else {
        return false;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    // The output of `containerd --version` has the form "containerd
    // github.com/containerd/containerd/v2 2.4.2 <revision>".
    let version = text.split_whitespace().nth(2).unwrap_or_default();
    imports_by_default(version)
}

fn imports_by_default(version: &str) -> bool {
    let mut numbers = version
        .trim_start_matches('v')
        .split('.')
        .map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(2), Some(minor)) => minor >= 2,
        (Some(major), _) => major > 2,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_imports_by_default_since_2_2() {
        for (version, expected) in [
            ("1.6.20~ds1", false),
            ("v1.7.24", false),
            ("2.0.1", false),
            ("2.1.0", false),
            ("2.2.0-rc.1", true),
            ("v2.4.2+unknown", true),
            ("3.0.0", true),
            ("", false),
        ] {
            assert_eq!(imports_by_default(version), expected, "{version}");
        }
    }

    #[test]
    fn the_flags_of_a_unit_and_its_drop_ins_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        };
        write(
            "lib/systemd/system/docker.service",
            "[Service]\nExecStart=/usr/sbin/dockerd -H fd:// --registry-mirror https://old\n",
        );
        let root = ConfigRoot::system(folder.path());
        let flags = dockerd_flags(&root);
        assert_eq!(
            flags.source_of("--registry-mirror"),
            Some("/lib/systemd/system/docker.service")
        );
        // A drop-in with an empty `ExecStart` replaces the flags of the unit.
        write(
            "etc/systemd/system/docker.service.d/a.conf",
            "[Service]\nExecStart=\nExecStart=/usr/sbin/dockerd \\\n --config-file=/srv/d.json --insecure-registry x\n",
        );
        let flags = dockerd_flags(&root);
        assert_eq!(flags.source_of("--registry-mirror"), None);
        assert_eq!(
            flags.source_of("--insecure-registry"),
            Some("/etc/systemd/system/docker.service.d/a.conf")
        );
        assert_eq!(flags.config_file.as_deref(), Some(Path::new("/srv/d.json")));
    }
}
