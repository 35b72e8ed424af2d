//! How disk and fast tier serve, as measured, and what a byte on the fast tier saves.

/// The measured speeds of both tiers.
///
/// CHERRY keeps the most promising layers on persistent memory, and found that counts of sharing
/// predict start-up time poorly. [`Placement::Value`](super::Placement::Value) therefore ranks by
/// measured seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierSpeeds {
    /// How the disk serves what is not in memory.
    pub disk: Speed,
    /// How the fast tier does.
    pub fast: Speed,
}

/// How a medium serves, as measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed {
    /// Seconds before the first byte.
    pub latency: f64,
    /// Seconds for each byte after it.
    pub per_byte: f64,
}

impl Speed {
    /// What is assumed of a hard disk before it was measured: 8 ms to find, 150 MB/s.
    pub const HARD_DISK: Self = Self {
        latency: 0.008,
        per_byte: 1.0 / 150e6,
    };

    /// The same of an NVDIMM (N-Docker 2019, Table 1: 3.6 GB/s to read).
    pub const NVDIMM: Self = Self {
        latency: 1e-6,
        per_byte: 1.0 / 3.6e9,
    };

    /// Seconds for `bytes` in one run.
    pub fn seconds(&self, bytes: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let bytes = bytes as f64;
        self.latency + self.per_byte * bytes
    }

    /// Takes in that `bytes` behind others took so long: an average that no single run moves far.
    pub fn observe_run(&mut self, bytes: u64, seconds: f64) {
        if bytes == 0 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let seen = seconds / bytes as f64;
        self.per_byte = average(self.per_byte, seen, 1e-12);
    }

    /// Takes in that the first `bytes` from somewhere took so long: what is beyond their rate is the time before the first.
    pub fn observe_first(&mut self, bytes: u64, seconds: f64) {
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let seen = (seconds - self.per_byte * bytes as f64).max(0.0);
        self.latency = average(self.latency, seen, 1e-6);
    }
}

/// A sixteenth of what is seen, of which at most the eightfold of what is known (or of `least`) counts.
fn average(known: f64, seen: f64, least: f64) -> f64 {
    const WEIGHT: f64 = 1.0 / 16.0;
    if !seen.is_finite() || seen < 0.0 {
        return known;
    }
    known + WEIGHT * (seen.min(8.0 * known.max(least)) - known)
}

impl Default for TierSpeeds {
    fn default() -> Self {
        Self {
            disk: Speed::HARD_DISK,
            fast: Speed::NVDIMM,
        }
    }
}

impl TierSpeeds {
    /// Seconds that each byte of a blob of `bytes` saves on the fast tier, for `demand` expected
    /// requests: (seconds from the disk − seconds from the tier) × demand / bytes. Never negative.
    pub fn saved_per_byte(&self, bytes: u64, demand: f64) -> f64 {
        let saved = self.disk.seconds(bytes) - self.fast.seconds(bytes);
        if saved.is_nan() || saved <= 0.0 || demand.is_nan() || demand <= 0.0 {
            return 0.0;
        }
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let bytes = bytes.max(1) as f64;
        saved * demand / bytes
    }
}
