//! Prints the results of the `cache` commands: text for people, or JSON for programs.

use std::io::{self, Write as _};

use pierhead_oci::units::human_bytes;
use serde::Serialize;

use crate::api::{Blob, Eviction, Pin, Pruned, Removed, Stat, Tier};
use crate::clock;

/// Whether a command prints text or JSON.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// Prints one JSON object on one line.
    pub(crate) fn object(self, value: &impl Serialize) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, value)?;
        out.write_all(b"\n")
    }

    /// Prints one line of text.
    pub(crate) fn line(self, text: impl AsRef<str>) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{}", text.as_ref())
    }

    /// Prints one line about the result, unless `--quiet` is set.
    fn result_line(self, text: impl AsRef<str>) -> io::Result<()> {
        match crate::verbosity::is_quiet() {
            true => Ok(()),
            false => self.line(text),
        }
    }

    /// Prints the state of the fast tier. `requested_limit` is the limit in bytes that the user
    /// asked this command to set, or 0.
    pub(crate) fn tier(self, tier: &Tier, requested_limit: u64) -> io::Result<()> {
        if self.json {
            return self.object(tier);
        }
        let bytes = human_bytes;
        self.line(format!("class       {}", tier.class))?;
        if tier.failed {
            self.line(
                "failed      the medium failed, so pierhead uses the disk only: see `pierhead doctor`",
            )?;
        }
        self.line(format!(
            "used        {} of {}, {} blobs",
            bytes(tier.used),
            bytes(tier.limit),
            tier.blobs
        ))?;
        self.line(format!(
            "hot ranges  {} of {} blobs, whose other bytes are on the disk",
            bytes(tier.hot_used),
            tier.hot
        ))?;
        if tier.ceiling < requested_limit {
            self.line(format!(
                "            limited to {}, the capacity of the medium",
                bytes(tier.ceiling)
            ))?;
        }
        if tier.limit < tier.ceiling {
            self.line(format!(
                "            limit lowered from {} because of memory pressure",
                bytes(tier.ceiling)
            ))?;
        }
        self.line(format!(
            "medium      {}, {} free",
            bytes(tier.capacity),
            bytes(tier.free)
        ))?;
        self.line(format!(
            "dirty       {}, {} blobs",
            bytes(tier.dirty),
            tier.queue
        ))?;
        self.line(format!(
            "since start {} written, {} written back, {} downloads moved to the disk",
            bytes(tier.staged),
            bytes(tier.written_back),
            tier.moved
        ))?;
        self.line(format!(
            "opened      {} on the tier, {} as hot ranges, {} on the disk",
            tier.hits, tier.hot_hits, tier.disk_hits
        ))?;
        if tier.damaged > 0 {
            self.line(format!(
                "corrupt     {} blobs: see `pierhead doctor`",
                tier.damaged
            ))?;
        }
        Ok(())
    }

    pub(crate) fn stat(self, stat: &Stat) -> io::Result<()> {
        if self.json {
            return self.object(stat);
        }
        let filled = stat.used.saturating_add(stat.reserved);
        // Reports a tier without capacity as 100 % full.
        let percent = (u128::from(filled) * 100)
            .checked_div(u128::from(stat.capacity))
            .unwrap_or(100);
        self.line(format!(
            "pierhead    {}, up {}",
            stat.version,
            humantime::format_duration(std::time::Duration::from_secs(stat.uptime_seconds))
        ))?;
        self.line(format!("listens on  {}", stat.listen.join(" ")))?;
        self.line(format!("data        {}", stat.data))?;
        self.line(format!(
            "used        {} of {} ({percent} %)",
            human_bytes(filled),
            human_bytes(stat.capacity)
        ))?;
        self.line(format!(
            "blobs       {}, {}",
            stat.blobs,
            human_bytes(stat.used)
        ))?;
        self.line(format!(
            "downloads   {}, {} reserved",
            stat.fills,
            human_bytes(stat.reserved)
        ))?;
        self.line(format!("pinned      {}", human_bytes(stat.pinned)))?;
        let disk = &stat.disk;
        self.line(format!(
            "on disk     {}: blobs {}, downloads {}, tags {}, pins {}, bundles {}, catalog {}, other {}",
            human_bytes(disk.total),
            human_bytes(disk.blobs),
            human_bytes(disk.downloads),
            human_bytes(disk.tags),
            human_bytes(disk.pins),
            human_bytes(disk.bundles),
            human_bytes(disk.catalog),
            human_bytes(disk.other)
        ))?;
        if let Some(bundle) = &stat.bundle {
            self.line(format!(
                "bundles     {} images, {} waiting, {} not possible; packs {} of {}, plans {} of {}, indexes {}",
                bundle.ready,
                bundle.waiting,
                bundle.refused,
                human_bytes(bundle.packs),
                human_bytes(bundle.packs_capacity),
                human_bytes(bundle.plans),
                human_bytes(bundle.plans_capacity),
                human_bytes(bundle.index)
            ))?;
        }
        self.line(format!("memory      {}", human_bytes(stat.memory)))?;
        let eviction = &stat.eviction;
        self.line(format!("requests    {}", requests(eviction)))?;
        self.line(format!(
            "eviction    {}, {} evicted",
            eviction.policy, eviction.evictions
        ))?;
        for (name, value) in &eviction.figures {
            let (name, value) = (name.replace('_', " "), three_digits(*value));
            self.line(format!("            {name} {value}"))?;
        }
        self.line(format!(
            "admission   {}, refused: {}",
            eviction.admission,
            refusals(eviction)
        ))?;
        self.line(format!("written     {}", written(eviction)))
    }

    /// Prints the heading of the table of blobs, unless the format is JSON.
    pub(crate) fn blobs_heading(self) -> io::Result<()> {
        match self.json {
            true => Ok(()),
            false => self.line(format!(
                "{:71}  {:>10}  {:>8}  PINNED  TYPE  IMAGES",
                "DIGEST", "SIZE", "LAST USE"
            )),
        }
    }

    pub(crate) fn blobs(self, blobs: &[Blob]) -> io::Result<()> {
        for blob in blobs {
            if self.json {
                self.object(blob)?;
                continue;
            }
            let size = human_bytes(blob.size);
            let pinned = if blob.pinned { "pinned" } else { "" };
            let kind = blob.media_type.as_deref().unwrap_or("");
            let text = format!(
                "{}  {size:>10}  {:>8}  {pinned:6}  {kind}{}",
                blob.digest,
                ago(blob.accessed),
                images_of_blob(&blob.images),
            );
            self.line(text.trim_end())?;
        }
        Ok(())
    }

    pub(crate) fn pins(self, pins: &[Pin]) -> io::Result<()> {
        for pin in pins {
            if self.json {
                self.object(pin)?
            } else {
                self.line(format!("{}  {} blobs", pin.image, pin.digests.len()))?
            }
        }
        Ok(())
    }

    pub(crate) fn pinned(self, pin: &Pin) -> io::Result<()> {
        if self.json {
            self.object(pin)
        } else {
            self.result_line(format!("pinned {}, {} blobs", pin.image, pin.digests.len()))
        }
    }

    pub(crate) fn unpinned(self, pin: &Pin) -> io::Result<()> {
        if self.json {
            self.object(pin)
        } else {
            self.result_line(format!("unpinned {}", pin.image))
        }
    }

    pub(crate) fn removed(self, removed: &Removed) -> io::Result<()> {
        if self.json {
            self.object(removed)
        } else {
            self.result_line(format!(
                "removed {}, freed {}",
                removed.image,
                human_bytes(removed.freed)
            ))
        }
    }

    pub(crate) fn pruned(self, pruned: &Pruned) -> io::Result<()> {
        if self.json {
            self.object(pruned)
        } else {
            self.result_line(format!(
                "freed {}, {} stay",
                human_bytes(pruned.freed),
                human_bytes(pruned.used)
            ))
        }
    }
}

/// Formats a number: a whole number with all its digits, and any other number with three
/// significant digits.
fn three_digits(value: f64) -> String {
    if value.fract() == 0.0 {
        return value.to_string();
    }
    let decimals = (0_usize..9).find(|digits| {
        let shift = i32::try_from(*digits).unwrap_or(0);
        value.abs() * 10_f64.powi(shift) >= 99.95
    });
    format!("{value:.0$}", decimals.unwrap_or(9))
}

/// Describes hits and misses, with the percentage of hits.
fn requests(eviction: &Eviction) -> String {
    let (hits, misses) = (eviction.hits, eviction.misses);
    let share = (u128::from(hits) * 100)
        .checked_div(u128::from(hits) + u128::from(misses))
        .map_or_else(String::new, |percent| format!(" ({percent} % hits)"));
    format!("{hits} hits, {misses} misses since the start{share}")
}

/// Describes the downloads that the cache did not store, by cause.
fn refusals(eviction: &Eviction) -> String {
    let by: Vec<_> = eviction
        .refused_by
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(by, count)| match by.as_str() {
            "written" => format!("{count} by the daily write budget"),
            by => format!("{count} by {by}"),
        })
        .collect();
    match by.as_slice() {
        // The daemon is of an older version, which does not report the causes.
        [] => eviction.refused.to_string(),
        by => by.join(", "),
    }
}

/// Describes the bytes written today, and the daily write budget.
fn written(eviction: &Eviction) -> String {
    let written = human_bytes(eviction.written_today);
    match eviction.daily_write_budget {
        0 => format!("{written} today (UTC)"),
        limit if eviction.written_today >= limit => format!(
            "{written} today; the daily write budget of {} is used up: no large blobs are stored until 00:00 UTC",
            human_bytes(limit)
        ),
        limit => format!(
            "{written} today (UTC), of a daily write budget of {}",
            human_bytes(limit)
        ),
    }
}

/// Names the first image that contains a blob, and counts the other images that contain it.
fn images_of_blob(images: &[String]) -> String {
    match images {
        [] => String::new(),
        [only] => format!("  {only}"),
        [first, more @ ..] => format!("  {first} and {} more", more.len()),
    }
}

/// Describes the time since the last access in the largest fitting unit, such as days.
pub(super) fn ago(accessed: u64) -> String {
    let now = clock::since_epoch().as_secs();
    let seconds = now.saturating_sub(accessed);
    match seconds {
        _ if accessed == 0 => "never".to_owned(),
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_has_three_significant_digits() {
        for (value, text) in [
            (0.049211314727451536, "0.0492"),
            (0.5, "0.500"),
            (7.0, "7"),
            (1234.5, "1234"),
            (-0.25, "-0.250"),
        ] {
            assert_eq!(three_digits(value), text);
        }
    }

    #[test]
    fn refusals_are_listed_by_cause() {
        let mut eviction = Eviction::default();
        assert_eq!(refusals(&eviction), "0");
        eviction.refused = 15;
        assert_eq!(
            refusals(&eviction),
            "15",
            "an older daemon reports no causes"
        );
        let by = [("admission", 5), ("policy", 0), ("written", 10)];
        eviction.refused_by = by.map(|(by, count)| (by.to_owned(), count)).into();
        assert_eq!(
            refusals(&eviction),
            "5 by admission, 10 by the daily write budget"
        );
    }

    #[test]
    fn an_exhausted_write_budget_is_shown() {
        let mut eviction = Eviction {
            written_today: 84 << 20,
            ..Eviction::default()
        };
        assert_eq!(written(&eviction), "84.0 MiB today (UTC)");
        eviction.daily_write_budget = 100 << 20;
        assert_eq!(
            written(&eviction),
            "84.0 MiB today (UTC), of a daily write budget of 100.0 MiB"
        );
        eviction.daily_write_budget = 2 << 20;
        assert!(written(&eviction).ends_with("no large blobs are stored until 00:00 UTC"));
    }

    #[test]
    fn the_share_of_hits_is_shown() {
        let mut eviction = Eviction::default();
        assert_eq!(requests(&eviction), "0 hits, 0 misses since the start");
        (eviction.hits, eviction.misses) = (3, 1);
        assert_eq!(
            requests(&eviction),
            "3 hits, 1 misses since the start (75 % hits)"
        );
    }
}
