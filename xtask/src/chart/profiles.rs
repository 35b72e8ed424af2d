//! Checks that the resource profiles in the chart and in its page on sizing match the table of
//! profiles in the daemon.

#[path = "../../../crates/host/src/profile/table.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the daemon reads the rest of it, from another crate"
)]
mod table;

use std::fmt::Write as _;

use anyhow::{Context, Result};

use table::{PROFILES, Profile};

/// The lines of `docs/explanation/dpu-sizing.md` between which the generated table stands.
const MARKS: (&str, &str) = ("<!-- profiles -->\n", "<!-- end of profiles -->");

/// The named template with the resources of a pod and the profile that the daemon gets.
pub(crate) fn template() -> String {
    let mut text = String::from(
        "{{/*\nMade by `cargo xtask chart --write` from crates/host/src/profile/table.rs. The daemon gives its keys the defaults of the\nprofile, from the limits that it finds itself within.\n*/}}\n{{- define \"pierhead.profile\" -}}\n",
    );
    for (nth, profile) in PROFILES.iter().enumerate() {
        let word = if nth == 0 { "{{- if" } else { "{{- else if" };
        let Profile {
            name,
            min_memory,
            memory,
            cpu,
            ..
        } = profile;
        let most = match cpu.1 {
            0 => String::new(),
            most => format!("cpu: {}, ", cores(most)),
        };
        let _ = write!(
            text,
            "{word} eq .Values.profile \"{name}\" -}}}}\nresources:\n  requests: {{cpu: {}, memory: {}}}\n  limits: {{{most}memory: {}}}\n",
            cores(cpu.0),
            memory_of(*min_memory),
            memory_of(*memory)
        );
    }
    text.push_str("{{- end }}\nconfig:\n  profile: {{ .Values.profile }}\n{{- end -}}\n");
    text
}

/// Formats thousandths of a CPU as a Kubernetes quantity, in the canonical form of the API server.
fn cores(thousandths: u32) -> String {
    match thousandths % 1000 {
        0 => format!("\"{}\"", thousandths / 1000),
        _ => format!("{thousandths}m"),
    }
}

/// Formats MiB as a Kubernetes quantity, in the canonical form of the API server.
fn memory_of(mib: u64) -> String {
    match mib % 1024 {
        0 => format!("{}Gi", mib / 1024),
        _ => format!("{mib}Mi"),
    }
}

/// Returns `page` with the current table of profiles.
///
/// # Errors
/// The page has no marks for the table.
pub(crate) fn page(page: &str) -> Result<String> {
    let (before, rest) = page
        .split_once(MARKS.0)
        .context("no place for the table of profiles")?;
    let (_, after) = rest
        .split_once(MARKS.1)
        .context("the table of profiles does not end")?;
    let mut text = String::from(
        "| `profile` | memory | cores | threads | bundles | of the disk | from upstreams | written a day |\n|---|---|---|---|---|---|---|---|\n",
    );
    for profile in &PROFILES {
        let or = |value: u64, none: &str, unit: &str| match value {
            0 => none.to_owned(),
            value => format!("{value} {unit}"),
        };
        let on = match (profile.cores, profile.min_cores) {
            (0, least) => format!("all, {least} or more"),
            (last, least) => format!("the last {last}, of {least} or more"),
        };
        let bundles = match profile.bundle_workers {
            0 => "off".to_owned(),
            workers => format!("{workers} × {} % of a core", profile.worker_cpu),
        };
        let threads = match profile.threads {
            0 => "one a core, at most 16".to_owned(),
            threads => threads.to_string(),
        };
        let _ = writeln!(
            text,
            "| `{}` | {} to {} MiB | {on} | {threads} | {bundles} | {} | {} | {} |",
            profile.name,
            profile.min_memory,
            profile.memory,
            or(profile.cache_size.into(), "80 % of what is free", "%"),
            or(profile.upstream_bandwidth, "as it comes", "MB/s"),
            or(profile.daily_write_budget, "as it comes", "GiB"),
        );
    }
    Ok([before, MARKS.0, &text, MARKS.1, after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_that_come_back() {
        let written = [100, 500, 1000, 2000, 2500].map(cores);
        assert_eq!(written, ["100m", "500m", "\"1\"", "\"2\"", "2500m"]);
        assert_eq!(
            [128, 1024, 1536, 4096].map(memory_of),
            ["128Mi", "1Gi", "1536Mi", "4Gi"]
        );
    }

    #[test]
    fn a_page_keeps_all_but_its_table() {
        let before = "a\n<!-- profiles -->\nold\n<!-- end of profiles -->\nb\n";
        let after = page(before).unwrap();
        assert!(
            after.starts_with("a\n<!-- profiles -->\n| `profile`") && after.ends_with("-->\nb\n")
        );
        assert!(!after.contains("old") && after.contains("| `bluefield2` | 512 to 1024 MiB |"));
        assert_eq!(page(&after).unwrap(), after);
        assert!(page("no marks").is_err());
    }
}
