//! Checks of range requests for blobs.

use anyhow::{Result, ensure};

use super::{super::data::Hash, Checker, Report, has};

/// `Range` values for a blob of 2048 bytes, with the first and last selected byte; `None` for an
/// unsatisfiable range.
const RANGES: &[(&str, Option<(usize, usize)>)] = &[
    ("bytes=500-1499", Some((500, 1499))),
    ("bytes=500-", Some((500, 2047))),
    ("bytes=-500", Some((1548, 2047))),
    ("bytes=2000-5000", Some((2000, 2047))),
    ("bytes=0-0", Some((0, 0))),
    ("bytes=0-", Some((0, 2047))),
    ("bytes=2047-", Some((2047, 2047))),
    ("bytes=500-0", None),
    ("bytes=2048-", None),
    ("bytes=5000-10000", None),
];

impl Checker<'_> {
    /// Checks each range on an uncached blob, then on a cached one.
    pub(super) fn ranges(&self, report: &mut Report) -> Result<()> {
        for (hash, name) in [(Hash::Sha256, "sha256"), (Hash::Sha512, "sha512")] {
            for temperature in ["cold", "warm"] {
                // Each range is tested on a blob that was never requested before.
                for (nth, (range, expected)) in RANGES.iter().enumerate() {
                    let mut bytes = vec![0; 2048];
                    let blob = if temperature == "cold" { nth } else { 0 };
                    fastrand::Rng::with_seed(500 + blob as u64).fill(&mut bytes);
                    let digest = hash.of(&bytes);
                    self.target.blob(self.repository, &digest, &bytes)?;
                    let outcome = self.range(&digest, &bytes, range, *expected);
                    report.note(format!("range, {name}, {temperature}: {range}"), outcome);
                }
            }
        }
        Ok(())
    }

    fn range(
        &self,
        digest: &str,
        bytes: &[u8],
        range: &str,
        expected: Option<(usize, usize)>,
    ) -> Result<()> {
        let response = self.ask("GET", &format!("blobs/{digest}"), &[("range", range)])?;
        let Some((first, last)) = expected else {
            ensure!(response.status == 416, "{}", response.status);
            return Ok(());
        };
        ensure!(response.status == 206, "{}", response.status);
        ensure!(response.body == bytes[first..=last], "other bytes");
        has(&response, "content-length", &(last - first + 1).to_string())?;
        has(
            &response,
            "content-range",
            &format!("bytes {first}-{last}/{}", bytes.len()),
        )
    }
}
