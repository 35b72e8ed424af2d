//! Measured speeds of disk and fast tier, and the waiting time that a blob on the fast tier saves
//! per byte.

/// The measured speeds of the disk and the fast tier.
///
/// CHERRY puts the most valuable layers on persistent memory. CHERRY measures the value by the
/// number of images that share a layer. This number predicts start-up times poorly, so
/// [`Placement::Value`](super::Placement::Value) ranks by measured seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierSpeeds {
    /// Speed of reads from the disk, without reads that the page cache served.
    pub disk: Speed,
    /// Speed of reads from the fast tier.
    pub fast: Speed,
}

/// The measured speed of a medium.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed {
    /// Seconds from the start of a read to its first byte.
    pub latency: f64,
    /// Seconds for each further byte.
    pub per_byte: f64,
}

impl Speed {
    /// Assumed speed of a hard disk without a measurement: 8 ms per seek, 150 MB/s.
    pub const HARD_DISK: Self = Self {
        latency: 0.008,
        per_byte: 1.0 / 150e6,
    };

    /// Assumed speed of an NVDIMM without a measurement (N-Docker 2019, Table 1: reads at 3.6
    /// GB/s).
    pub const NVDIMM: Self = Self {
        latency: 1e-6,
        per_byte: 1.0 / 3.6e9,
    };

    /// Returns the seconds that a read of `bytes` contiguous bytes takes.
    pub fn seconds(&self, bytes: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let bytes = bytes as f64;
        self.latency + self.per_byte * bytes
    }

    /// Adds a measurement: a read of `bytes` bytes that continued an earlier read took `seconds`. A
    /// single measurement changes the average little.
    pub fn observe_run(&mut self, bytes: u64, seconds: f64) {
        if bytes == 0 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let seen = seconds / bytes as f64;
        self.per_byte = average(self.per_byte, seen, 1e-12);
    }

    /// Adds a measurement: a read of the first `bytes` bytes at a new position took `seconds`. The
    /// latency is the part of this time that the transfer of the bytes does not explain.
    pub fn observe_first(&mut self, bytes: u64, seconds: f64) {
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let seen = (seconds - self.per_byte * bytes as f64).max(0.0);
        self.latency = average(self.latency, seen, 1e-6);
    }
}

/// Returns a moving average in which a new sample has the weight 1/16. A sample is limited to 8
/// times the current average (or 8 times `least`, if that is larger).
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
    /// Returns the seconds saved per byte if a blob of `bytes` bytes is on the fast tier, for
    /// `demand` expected requests: (seconds from the disk − seconds from the fast tier) × demand /
    /// bytes. The result is never negative.
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
