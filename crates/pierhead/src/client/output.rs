//! What the `cache` commands print: a table for people, JSON for programs.

use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::api::{Blob, Pin, Pruned, Stat};
use crate::config::human_bytes;

/// How to print.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// One JSON object on a line.
    pub(crate) fn object(self, value: &impl Serialize) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, value)?;
        out.write_all(b"\n")
    }

    /// One line for people.
    pub(crate) fn line(self, text: impl AsRef<str>) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{}", text.as_ref())
    }

    pub(crate) fn stat(self, stat: &Stat) -> io::Result<()> {
        if self.json {
            return self.object(stat);
        }
        let filled = stat.used.saturating_add(stat.reserved);
        // A bound of 0 is full.
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
        self.line(format!("memory      {}", human_bytes(stat.memory)))?;
        let eviction = &stat.eviction;
        self.line(format!(
            "eviction    {}, {} evicted; admission {}, {} refused",
            eviction.policy, eviction.evictions, eviction.admission, eviction.refused
        ))?;
        for (name, value) in &eviction.figures {
            self.line(format!("            {} {value}", name.replace('_', " ")))?;
        }
        let limit = match eviction.max_written_per_day {
            0 => String::new(),
            limit => format!(" of {} a day", human_bytes(limit)),
        };
        self.line(format!(
            "written     {}{limit} today (UTC)",
            human_bytes(eviction.written_today)
        ))
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
                of(&blob.images),
            );
            self.line(text.trim_end())?;
        }
        Ok(())
    }

    /// `size`: bytes of what is in the cache.
    pub(crate) fn image(self, image: &Pin, size: u64) -> io::Result<()> {
        if self.json {
            return self.object(&serde_json::json!({
                "image": image.image,
                "digests": image.digests,
                "size": size,
            }));
        }
        let (size, blobs) = (human_bytes(size), image.digests.len());
        self.line(format!("{size:>10}  {blobs:>3} blobs  {}", image.image))
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
            self.line(format!("pinned {}, {} blobs", pin.image, pin.digests.len()))
        }
    }

    pub(crate) fn unpinned(self, pin: &Pin) -> io::Result<()> {
        if self.json {
            self.object(pin)
        } else {
            self.line(format!("unpinned {}", pin.image))
        }
    }

    pub(crate) fn pruned(self, pruned: &Pruned) -> io::Result<()> {
        if self.json {
            self.object(pruned)
        } else {
            self.line(format!(
                "freed {}, {} stay",
                human_bytes(pruned.freed),
                human_bytes(pruned.used)
            ))
        }
    }
}

/// The image that a blob is part of, and of how many more.
fn of(images: &[String]) -> String {
    match images {
        [] => String::new(),
        [only] => format!("  {only}"),
        [first, more @ ..] => format!("  {first} and {} more", more.len()),
    }
}

/// How long ago, in its largest unit.
fn ago(accessed: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let seconds = now.saturating_sub(accessed);
    match seconds {
        _ if accessed == 0 => "never".to_owned(),
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86400),
    }
}
