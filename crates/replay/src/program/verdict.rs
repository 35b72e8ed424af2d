//! The verdict of a comparison: which policy has the least client waiting time, and how much
//! waiting this policy saves compared with the current policy.

use std::fmt;

use pierhead_replay::SimulatedPolicy;
use serde::Serialize;

use super::report::Report;

/// The comparison for one trace at one cache size, summed over all seeds.
#[derive(Serialize)]
pub(crate) struct Verdict {
    pub(crate) trace: String,
    pub(crate) size: String,
    /// The policy of `--current`.
    pub(crate) current: &'static str,
    /// Seconds for which clients wait for misses of the current policy. `None` if the replay did
    /// not include this policy.
    pub(crate) current_waiting_seconds: Option<f64>,
    /// The policy with the least waiting, among the current policy and the policies that an
    /// operator can configure.
    pub(crate) best: &'static str,
    pub(crate) best_waiting_seconds: f64,
    /// By how many percent the best policy reduces the waiting of the current policy.
    pub(crate) waits_less_percent: Option<f64>,
}

/// Minimum saving in percent at which a verdict recommends another policy.
const MIN_PERCENT: f64 = 1.0;

/// Returns a verdict for each trace and size, in the order of the rows.
pub(crate) fn of(report: &Report, current: SimulatedPolicy) -> Vec<Verdict> {
    let mut cells: Vec<(&str, &str)> = Vec::new();
    for row in &report.rows {
        let cell = (row.trace.as_str(), row.size.as_str());
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells
        .into_iter()
        .filter_map(|(trace, size)| {
            // Sums over the seeds, so that all seeds have equal weight.
            let mut sums: Vec<(&'static str, f64)> = Vec::new();
            for row in &report.rows {
                let is_here = row.trace == trace && row.size == size;
                let policy = row.policy.parse::<SimulatedPolicy>();
                let is_candidate = policy.is_ok_and(|it| it == current || it.is_of_daemon());
                if !is_here || !is_candidate {
                    continue;
                }
                match sums.iter_mut().find(|(policy, _)| *policy == row.policy) {
                    Some((_, sum)) => *sum += row.waiting_seconds,
                    None => sums.push((row.policy, row.waiting_seconds)),
                }
            }
            // With only one policy, there is nothing to compare.
            if sums.len() < 2 {
                return None;
            }
            let (best, best_waiting_seconds) = sums
                .iter()
                .copied()
                .min_by(|one, other| one.1.total_cmp(&other.1))?;
            let of_current = sums.iter().find(|(policy, _)| *policy == current.name());
            let current_waiting_seconds = of_current.map(|(_, sum)| *sum);
            let saved = |now: f64| (1.0 - best_waiting_seconds / now) * 100.0;
            Some(Verdict {
                trace: trace.to_owned(),
                size: size.to_owned(),
                current: current.name(),
                current_waiting_seconds,
                best,
                best_waiting_seconds,
                waits_less_percent: current_waiting_seconds
                    .map(|now| if now > 0.0 { saved(now) } else { 0.0 }),
            })
        })
        .collect()
}

/// Returns the number of decimals with which a difference of `difference` is visible.
fn digits(difference: f64) -> usize {
    [2.0, 0.2, 0.02]
        .iter()
        .position(|least| difference >= *least)
        .unwrap_or(3)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            size,
            current,
            best,
            best_waiting_seconds,
            ..
        } = self;
        write!(f, "verdict at {size}: ")?;
        match (self.current_waiting_seconds, self.waits_less_percent) {
            (Some(now), Some(percent)) if percent >= MIN_PERCENT => {
                let digits = digits(now - best_waiting_seconds);
                write!(
                    f,
                    "{best} waits {percent:.1} % less than {current}, the current policy: {best_waiting_seconds:.digits$} s instead of \
                 {now:.digits$} s; set eviction.policy = \"{best}\""
                )
            }
            (Some(_), _) => write!(
                f,
                "keep {current}: no replayed policy waits at least {MIN_PERCENT} % less"
            ),
            (None, _) => write!(
                f,
                "{best} waits the least, {best_waiting_seconds:.0} s; {current}, the current policy, was not replayed: add it to --policy"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Row;
    use super::*;
    use pierhead_eviction::PolicyName;

    const LRU: SimulatedPolicy = SimulatedPolicy::OfDaemon(PolicyName::Lru);
    const GDSF: SimulatedPolicy = SimulatedPolicy::OfDaemon(PolicyName::Gdsf);

    fn row(policy: &'static str, seed: u64, waiting_seconds: f64) -> Row {
        Row {
            trace: "t".into(),
            seed,
            policy,
            size: "1%".into(),
            size_bytes: 1,
            requests: 1,
            object_miss_ratio: 0.0,
            byte_miss_ratio: 0.0,
            waiting_seconds,
            upstream_bytes: 0,
            written_bytes: 0,
            evictions: 0,
            passed: 0,
            above_cache: 0,
            requests_per_second: 0.0,
            memory_bytes: 0,
        }
    }

    fn verdict_text(rows: Vec<Row>, current: SimulatedPolicy) -> String {
        let report = Report {
            rows,
            ..Report::default()
        };
        let verdicts: Vec<String> = of(&report, current)
            .iter()
            .map(Verdict::to_string)
            .collect();
        verdicts.join("\n")
    }

    #[test]
    fn the_verdict_names_the_best_policy_and_its_saving() {
        let rows = || {
            vec![
                row("lru", 1, 100.0),
                row("lru", 2, 100.0),
                row("gdsf", 1, 60.0),
                row("gdsf", 2, 90.0),
                // A verdict never recommends a policy that knows the future, since an operator
                // cannot configure it.
                row("belady", 1, 1.0),
            ]
        };
        assert_eq!(
            verdict_text(rows(), LRU),
            "verdict at 1%: gdsf waits 25.0 % less than lru, the current policy: 150 s instead of 200 s; set eviction.policy = \"gdsf\""
        );
        assert!(verdict_text(rows(), GDSF).contains("keep gdsf"));
        let absent = verdict_text(rows(), SimulatedPolicy::Sieve);
        assert!(
            absent.contains("sieve, the current policy, was not replayed"),
            "{absent}"
        );
        let short = verdict_text(vec![row("lru", 1, 11.2), row("gdsf", 1, 10.6)], LRU);
        assert!(short.contains("10.6 s instead of 11.2 s"), "{short}");
        // A difference of half a percent is noise, so the verdict recommends no change.
        let close = vec![row("lru", 1, 100.0), row("gdsf", 1, 99.5)];
        assert!(verdict_text(close, LRU).contains("keep lru"));
        // No client waits, so no policy can save waiting. In this case, the percentage is 0,
        // because JSON needs a number.
        let idle = Report {
            rows: vec![row("lru", 1, 0.0), row("gdsf", 1, 0.0)],
            ..Report::default()
        };
        let verdict = &of(&idle, LRU)[0];
        assert_eq!(verdict.waits_less_percent, Some(0.0));
        assert!(verdict.to_string().contains("keep lru"), "{verdict}");
        assert_eq!(
            verdict_text(vec![row("lru", 1, 2.0), row("belady", 1, 1.0)], LRU),
            ""
        );
    }
}
