//! Prints the results of the `cache` commands: text for people, or JSON for programs.

use std::io::{self, Write as _};

use pierhead_oci::units::human_bytes;
use serde::Serialize;

use crate::admin::api::{Blob, EvictionStat, Pin, Pruned, Removed, Stat, TierStat};
use pierhead_host::clock;

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
        match crate::cli::verbosity::is_quiet() {
            true => Ok(()),
            false => self.line(text),
        }
    }

    /// Prints the state of the fast tier. `requested_limit` is the limit in bytes that the user
    /// asked this command to set, or 0.
    pub(crate) fn tier(self, tier: &TierStat, requested_limit: u64) -> io::Result<()> {
        match self.json {
            true => self.object(tier),
            false => self.lines(&tier_lines(tier, requested_limit)),
        }
    }

    pub(crate) fn stat(self, stat: &Stat) -> io::Result<()> {
        match self.json {
            true => self.object(stat),
            false => self.lines(&stat_lines(stat)),
        }
    }

    fn lines(self, lines: &[String]) -> io::Result<()> {
        lines.iter().try_for_each(|line| self.line(line))
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
            self.line(blob_line(blob))?;
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
            self.result_line(pinned_line(pin))
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

    /// Prints the result of a prune to `target` bytes; 0 for `--all`.
    pub(crate) fn pruned(self, pruned: &Pruned, target: u64) -> io::Result<()> {
        if self.json {
            return self.object(pruned);
        }
        self.result_line(format!(
            "freed {}, {} stay",
            human_bytes(pruned.freed),
            human_bytes(pruned.used)
        ))?;
        match excess(pruned, target) {
            Some(line) => self.result_line(line),
            None => Ok(()),
        }
    }
}

/// The line about an image that was pinned.
fn pinned_line(pin: &Pin) -> String {
    let Pin {
        image,
        digests,
        missing,
    } = pin;
    let blobs = digests.len();
    match missing {
        None => format!("pinned {image}, {blobs} blobs"),
        Some(missing) => format!(
            "pinned {image}, {blobs} blobs, of which {missing} are not cached: `pierhead cache warm --pin {image}` pulls them"
        ),
    }
}

/// A row of the table of blobs.
fn blob_line(blob: &Blob) -> String {
    let size = human_bytes(blob.size);
    let pinned = if blob.pinned { "pinned" } else { "-" };
    let kind = blob.media_type.as_deref().unwrap_or("-");
    let text = format!(
        "{}  {size:>10}  {:>8}  {pinned:6}  {kind}{}",
        blob.digest,
        ago(blob.accessed),
        images_of_blob(&blob.images),
    );
    text.trim_end().to_owned()
}

/// The lines of `pierhead cache tier stat`.
fn tier_lines(tier: &TierStat, requested_limit: u64) -> Vec<String> {
    let mut lines = Vec::new();
    let bytes = human_bytes;
    lines.push(format!("class       {}", tier.class));
    if tier.failed {
        lines.push(
            "failed      the medium failed, so pierhead uses the disk only: see `pierhead doctor`"
                .to_owned(),
        );
    }
    lines.push(format!(
        "used        {} of {}, {} blobs",
        bytes(tier.used),
        bytes(tier.limit),
        tier.blobs
    ));
    if tier.ceiling < requested_limit {
        lines.push(format!(
            "            limited to {}, the capacity of the medium",
            bytes(tier.ceiling)
        ));
    }
    if tier.limit < tier.ceiling {
        lines.push(format!(
            "            limit lowered from {} because of memory pressure",
            bytes(tier.ceiling)
        ));
    }
    lines.push(format!(
        "hot ranges  {} of {} blobs, whose other bytes are on the disk",
        bytes(tier.hot_used),
        tier.hot
    ));
    lines.push(format!(
        "medium      {}, {} free",
        bytes(tier.capacity),
        bytes(tier.free)
    ));
    lines.push(format!(
        "dirty       {}, {} blobs",
        bytes(tier.dirty),
        tier.queue
    ));
    lines.push(format!(
        "since start {} written, {} written back, {} downloads moved to the disk",
        bytes(tier.staged),
        bytes(tier.written_back),
        tier.moved
    ));
    lines.push(format!(
        "opened      {} on the tier, {} as hot ranges, {} on the disk",
        tier.hits, tier.hot_hits, tier.disk_hits
    ));
    if tier.damaged > 0 {
        lines.push(format!(
            "corrupt     {} blobs: see `pierhead doctor`",
            tier.damaged
        ));
    }
    lines
}

/// The lines of `pierhead cache stat`.
fn stat_lines(stat: &Stat) -> Vec<String> {
    let mut lines = Vec::new();
    let filled = stat.used.saturating_add(stat.reserved);
    // A capacity of 0 counts as full.
    let room = stat.room.unwrap_or(stat.capacity);
    let percent = (u128::from(filled) * 100)
        .checked_div(u128::from(room))
        .unwrap_or(100);
    lines.push(format!(
        "pierhead    {}, up {}",
        stat.version,
        humantime::format_duration(std::time::Duration::from_secs(stat.uptime_seconds))
    ));
    lines.push(format!("listens on  {}", stat.listen.join(" ")));
    lines.push(format!("data        {}", stat.data));
    lines.push(format!(
        "used        {} of {} ({percent} %){}",
        human_bytes(filled),
        human_bytes(room),
        match room < stat.capacity {
            true => format!(
                "; cache.size is {}, but the disk has no more room above cache.min_free",
                human_bytes(stat.capacity)
            ),
            false => String::new(),
        }
    ));
    lines.push(format!(
        "blobs       {}, {}",
        stat.blobs,
        human_bytes(stat.used)
    ));
    lines.push(format!(
        "downloads   {}, {} reserved",
        stat.fills,
        human_bytes(stat.reserved)
    ));
    lines.push(format!("pinned      {}", human_bytes(stat.pinned)));
    let disk = &stat.disk;
    lines.push(format!(
        "on disk     {}: blobs {}, downloads {}, tags {}, pins {}, bundles {}, catalog {}, other {}",
        human_bytes(disk.total),
        human_bytes(disk.blobs),
        human_bytes(disk.downloads),
        human_bytes(disk.tags),
        human_bytes(disk.pins),
        human_bytes(disk.bundles),
        human_bytes(disk.catalog),
        human_bytes(disk.other)
    ));
    if let Some(bundle) = &stat.bundle {
        lines.push(format!(
            "bundles     {} images, {} waiting, {} not possible; packs {} of {}, plans {} of {}, indexes {}",
            bundle.ready,
            bundle.waiting,
            bundle.refused,
            human_bytes(bundle.packs),
            human_bytes(bundle.packs_capacity),
            human_bytes(bundle.plans),
            human_bytes(bundle.plans_capacity),
            human_bytes(bundle.index)
        ));
    }
    lines.push(format!("memory      {}", human_bytes(stat.memory)));
    let eviction = &stat.eviction;
    lines.push(format!("requests    {}", requests(eviction)));
    lines.push(format!(
        "eviction    {}, {} evicted",
        eviction.policy, eviction.evictions
    ));
    for (name, value) in &eviction.figures {
        let (name, value) = (name.replace('_', " "), three_digits(*value));
        lines.push(format!("            {name} {value}"));
    }
    lines.push(format!(
        "admission   {}, refused: {}",
        eviction.admission,
        refusals(eviction)
    ));
    lines.push(format!("written     {}", written(eviction)));
    lines
}

/// Why the data folder is larger than the target of a prune, by kind of file. Returns `None` when
/// the data folder is not larger.
fn excess(pruned: &Pruned, target: u64) -> Option<String> {
    let disk = &pruned.disk;
    let above = disk.total.saturating_sub(disk.other).checked_sub(target)?;
    let unpinned = disk.blobs.saturating_sub(pruned.pinned);
    let kinds = [
        (pruned.pinned, "pinned (`pierhead cache ls --pins`)"),
        (disk.downloads, "in use by downloads and responses"),
        (unpinned, "unpinned blobs"),
        (disk.bundles, "bundles"),
        (
            disk.tags + disk.pins + disk.catalog,
            "tags, pins and catalog",
        ),
    ];
    let kinds = kinds.iter().filter(|(bytes, _)| *bytes > 0);
    let kinds: Vec<_> = kinds
        .map(|(bytes, kind)| format!("{} {kind}", human_bytes(*bytes)))
        .collect();
    match (above, target) {
        (0, _) => None,
        // `--all` never deletes tags and the catalog, so these need no line.
        (_, 0) if pruned.pinned + disk.downloads == 0 => None,
        (_, 0) => Some(format!("of these: {}", kinds.join(", "))),
        (above, _) => Some(format!(
            "{} above the target: {}",
            human_bytes(above),
            kinds.join(", ")
        )),
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
fn requests(eviction: &EvictionStat) -> String {
    let (hits, misses) = (eviction.hits, eviction.misses);
    let share = (u128::from(hits) * 100)
        .checked_div(u128::from(hits) + u128::from(misses))
        .map_or_else(String::new, |percent| format!(" ({percent} % hits)"));
    format!("{hits} hits, {misses} misses since the start{share}")
}

/// Describes the downloads that the cache did not store, by cause.
fn refusals(eviction: &EvictionStat) -> String {
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
fn written(eviction: &EvictionStat) -> String {
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
    use clap::CommandFactory as _;

    use super::*;
    use crate::admin::api::Disk;

    fn stat() -> Stat {
        serde_json::from_value(serde_json::json!({
            "version": "0.1.0", "uptime_seconds": 3723, "data": "/var/lib/pierhead",
            "listen": ["0.0.0.0:5000", "[::]:5000"],
            "blobs": 12, "used": 3_u64 << 30, "reserved": 1_u64 << 30, "capacity": 10_u64 << 30,
            "fills": 2, "pinned": 1 << 20, "memory": 40 << 20,
            "disk": {
                "blobs": 3_u64 << 30, "downloads": 1_u64 << 30, "tags": 4096, "pins": 512,
                "bundles": 2 << 20, "catalog": 1 << 20, "other": 0, "total": 4_u64 << 30,
            },
            "eviction": {
                "policy": "learned", "admission": "second-hit", "written_today": 5 << 20,
                "daily_write_budget": 0, "evictions": 9, "refused": 1, "refused_by": {"policy": 1},
                "hits": 30, "misses": 10, "figures": {"gate_open": 1, "train_loss": 0.04921},
            },
            "bundle": {
                "ready": 3, "waiting": 1, "refused": 0, "jobs": 1, "packs": 1 << 20,
                "packs_capacity": 1_u64 << 30, "plans": 2048, "plans_capacity": 64 << 20,
                "index": 4096,
            },
        }))
        .expect("a document")
    }

    #[test]
    fn the_state_of_the_daemon_is_one_line_per_subject() {
        let mut stat = stat();
        let expected = "\
pierhead    0.1.0, up 1h 2m 3s
listens on  0.0.0.0:5000 [::]:5000
data        /var/lib/pierhead
used        4.0 GiB of 10.0 GiB (40 %)
blobs       12, 3.0 GiB
downloads   2, 1.0 GiB reserved
pinned      1.0 MiB
on disk     4.0 GiB: blobs 3.0 GiB, downloads 1.0 GiB, tags 4.0 KiB, pins 512 B, bundles 2.0 MiB, catalog 1.0 MiB, other 0 B
bundles     3 images, 1 waiting, 0 not possible; packs 1.0 MiB of 1.0 GiB, plans 2.0 KiB of 64.0 MiB, indexes 4.0 KiB
memory      40.0 MiB
requests    30 hits, 10 misses since the start (75 % hits)
eviction    learned, 9 evicted
            gate open 1
            train loss 0.0492
admission   second-hit, refused: 1 by policy
written     5.0 MiB today (UTC)";
        assert_eq!(stat_lines(&stat).join("\n"), expected);
        let small = Stat {
            room: Some(5 << 30),
            ..self::stat()
        };
        let used = "used        4.0 GiB of 5.0 GiB (80 %); cache.size is 10.0 GiB, but";
        assert!(stat_lines(&small)[3].starts_with(used), "{small:?}");
        // The help explains the name of each line, also of the lines that not every daemon prints.
        let help = crate::cli::Cli::command();
        let help = ["cache", "stat"].into_iter().fold(help, |of, name| {
            of.find_subcommand(name).expect("a command").clone()
        });
        let help = help.get_after_help().map(ToString::to_string);
        for line in stat_lines(&stat)
            .iter()
            .filter(|line| !line.starts_with(' '))
        {
            let name = line.split("  ").next().unwrap_or_default();
            let is_explained = help
                .as_ref()
                .is_some_and(|it| it.contains(&format!("\n  {name} ")));
            assert!(is_explained, "{name}");
        }
        // Without bundles, and with a capacity of 0.
        (stat.bundle, stat.capacity) = (None, 0);
        let text = stat_lines(&stat).join("\n");
        assert!(!text.contains("bundles     "), "{text}");
        assert!(
            text.contains("used        4.0 GiB of 0 B (100 %)"),
            "{text}"
        );
    }

    #[test]
    fn the_state_of_the_tier_explains_a_lowered_limit() {
        let mut tier: TierStat = serde_json::from_value(serde_json::json!({
            "class": "pmem", "capacity": 8_u64 << 30, "free": 1_u64 << 30, "used": 2_u64 << 30,
            "limit": 4_u64 << 30, "ceiling": 4_u64 << 30, "most": 8_u64 << 30, "blobs": 5,
            "hot": 3, "hot_used": 1 << 20, "queue": 2, "dirty": 3 << 20, "staged": 9 << 20,
            "written_back": 6 << 20, "moved": 1, "hits": 7, "hot_hits": 8, "disk_hits": 9,
        }))
        .expect("a document");
        let expected = "\
class       pmem
used        2.0 GiB of 4.0 GiB, 5 blobs
hot ranges  1.0 MiB of 3 blobs, whose other bytes are on the disk
medium      8.0 GiB, 1.0 GiB free
dirty       3.0 MiB, 2 blobs
since start 9.0 MiB written, 6.0 MiB written back, 1 downloads moved to the disk
opened      7 on the tier, 8 as hot ranges, 9 on the disk";
        assert_eq!(tier_lines(&tier, 0).join("\n"), expected);
        // `set-limit` with more bytes than the medium has. The reason is below the limit.
        let lines = tier_lines(&tier, 16 << 30);
        assert_eq!(
            lines[2],
            "            limited to 4.0 GiB, the capacity of the medium"
        );
        tier.limit = 1 << 30;
        let lines = tier_lines(&tier, 0);
        assert_eq!(lines[1], "used        2.0 GiB of 1.0 GiB, 5 blobs");
        let lowered = "            limit lowered from 4.0 GiB because of memory pressure";
        assert_eq!(lines[2], lowered);
        (tier.failed, tier.damaged) = (true, 4);
        let lines = tier_lines(&tier, 0);
        assert!(
            lines[1].starts_with("failed      the medium failed"),
            "{lines:?}"
        );
        let corrupt = "corrupt     4 blobs: see `pierhead doctor`";
        assert_eq!(lines.last().map(String::as_str), Some(corrupt));
    }

    #[test]
    fn a_blob_is_one_row_below_the_heading() {
        let digest: pierhead_oci::Digest = format!("sha256:{}", "0".repeat(64))
            .parse()
            .expect("a digest");
        let mut blob = Blob {
            digest,
            size: 3 << 20,
            media_type: None,
            accessed: 0,
            pinned: false,
            images: Vec::new(),
        };
        let row = |blob: &Blob| blob_line(blob).replace(&digest.to_string(), "D");
        assert_eq!(row(&blob), "D     3.0 MiB     never  -       -");
        blob.pinned = true;
        blob.media_type = Some("text/plain".to_owned());
        assert_eq!(row(&blob), "D     3.0 MiB     never  pinned  text/plain");
        for (images, end) in [
            (&["a.io/b:1"][..], "text/plain  a.io/b:1"),
            (
                &["a.io/b:1", "a.io/b:2", "c:3"],
                "text/plain  a.io/b:1 and 2 more",
            ),
        ] {
            blob.images = images.iter().map(|it| (*it).to_owned()).collect();
            assert!(row(&blob).ends_with(end), "{}", row(&blob));
        }
    }

    #[test]
    fn the_last_use_is_shown_in_its_largest_unit() {
        let now = clock::since_epoch();
        for (seconds, text) in [
            (5, "s ago"),
            (60, "1m ago"),
            (3599, "59m ago"),
            (3600, "1h ago"),
            (86_399, "23h ago"),
            (86_400, "1d ago"),
            (40 * 86_400, "40d ago"),
        ] {
            let shown = ago(now.as_secs() - seconds);
            assert!(shown.ends_with(text), "{seconds}: {shown}");
        }
        assert_eq!(ago(0), "never");
        assert_eq!(
            ago(now.as_secs() + 1000),
            "0s ago",
            "after the clock was set back"
        );
    }

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
        let mut eviction = EvictionStat::default();
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
    fn a_prune_that_stays_above_its_target_says_why() {
        let disk = |blobs, downloads, bundles, catalog| Disk {
            blobs,
            downloads,
            bundles,
            catalog,
            // Files of other programs do not count.
            other: 1 << 40,
            total: (1 << 40) + blobs + downloads + bundles + catalog,
            ..Disk::default()
        };
        let cases = [
            // (pinned, disk, target, line)
            (0, disk(900, 0, 0, 100), 1000, None),
            (0, disk(0, 0, 0, 100), 0, None),
            (
                2048,
                disk(2048, 0, 0, 1024),
                1024,
                Some(
                    "2.0 KiB above the target: 2.0 KiB pinned (`pierhead cache ls --pins`), \
                     1.0 KiB tags, pins and catalog",
                ),
            ),
            (
                0,
                disk(1024, 4096, 512, 0),
                1024,
                Some(
                    "4.5 KiB above the target: 4.0 KiB in use by downloads and responses, \
                     1.0 KiB unpinned blobs, 512 B bundles",
                ),
            ),
            (
                0,
                disk(0, 4096, 0, 100),
                0,
                Some(
                    "of these: 4.0 KiB in use by downloads and responses, \
                     100 B tags, pins and catalog",
                ),
            ),
        ];
        for (pinned, disk, target, expected) in cases {
            let pruned = Pruned {
                freed: 0,
                used: disk.total,
                pinned,
                disk,
            };
            assert_eq!(excess(&pruned, target).as_deref(), expected);
        }
    }

    #[test]
    fn a_pin_of_an_incomplete_image_says_so() {
        let mut pin = Pin {
            image: "docker.io/library/redis:7".to_owned(),
            digests: vec![pierhead_oci::Digest::of(
                pierhead_oci::Algorithm::Sha256,
                b"",
            )],
            missing: None,
        };
        let line = "pinned docker.io/library/redis:7, 1 blobs";
        assert_eq!(pinned_line(&pin), line);
        pin.missing = Some(4);
        let line = pinned_line(&pin);
        assert!(line.contains("of which 4 are not cached"), "{line}");
        assert!(
            line.contains("cache warm --pin docker.io/library/redis:7`"),
            "{line}"
        );
    }

    #[test]
    fn an_exhausted_write_budget_is_shown() {
        let mut eviction = EvictionStat {
            written_today: 84 << 20,
            ..EvictionStat::default()
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
        let mut eviction = EvictionStat::default();
        assert_eq!(requests(&eviction), "0 hits, 0 misses since the start");
        (eviction.hits, eviction.misses) = (3, 1);
        assert_eq!(
            requests(&eviction),
            "3 hits, 1 misses since the start (75 % hits)"
        );
    }
}
