//! One verdict out of what the rules say.

use super::{Placement, SharingRuns, Temperature, Value};

/// What each rule counts for; 0 leaves it out. Only their ratio matters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Weights {
    /// Of [`LayerAware`](super::LayerAware).
    pub layer_aware: f64,
    /// Of [`HotImageFiles`](super::HotImageFiles).
    pub hot_files: f64,
    /// Of [`Value`].
    pub value: f64,
    /// Of [`SharingRuns`].
    pub sharing_runs: f64,
}

impl Default for Weights {
    /// All but CHERRY's: it ranks what saves little before what saves much.
    fn default() -> Self {
        Self {
            layer_aware: 1.0,
            hot_files: 1.0,
            value: 1.0,
            sharing_runs: 0.0,
        }
    }
}

impl Weights {
    /// No rule counts.
    pub const NONE: Self = Self {
        layer_aware: 0.0,
        hot_files: 0.0,
        value: 0.0,
        sharing_runs: 0.0,
    };
}

/// What is known of one blob.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Facts {
    /// Bytes of it.
    pub bytes: u64,
    /// How often it is expected to be asked for.
    pub demand: f64,
    /// In how many images it is.
    pub sharing: u32,
    /// What LASS says, while its image is being fetched.
    pub arriving: Option<Placement>,
    /// What its image's history says.
    pub temperature: Option<Temperature>,
    /// The priority of the least that would have to leave for it; 0 when nothing would.
    pub floor: f64,
}

/// Where it goes, and how long it is kept there.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Verdict {
    /// Where the fill goes.
    pub placement: Placement,
    /// Higher is kept longer; finite, not negative, and comparable among verdicts of the same weights.
    pub priority: f64,
}

impl Weights {
    /// Asks all rules that have a weight and something to say. A blob goes to the fast tier if those for it weigh more
    /// than those against it; at a draw it does not.
    pub fn judge(&self, value: &Value, facts: &Facts) -> Verdict {
        let priority = self.priority(value, facts);
        let worth = if priority > facts.floor { 1.0 } else { -1.0 };
        let vote = |placement: Option<Placement>| match placement {
            Some(Placement::Fast) => 1.0,
            Some(Placement::Disk) => -1.0,
            None => 0.0,
        };
        let temperature = facts.temperature.map(Temperature::place);
        let sum = weight(self.layer_aware) * vote(facts.arriving)
            + weight(self.hot_files) * vote(temperature)
            + (weight(self.value) + weight(self.sharing_runs)) * worth;
        let placement = if sum > 0.0 {
            Placement::Fast
        } else {
            Placement::Disk
        };
        Verdict {
            placement,
            priority,
        }
    }

    /// How long it is kept. Amounts of different kinds are weighed by their orders of magnitude, so that seconds a byte can be
    /// added to counts: at equal weights twice the one is as good as twice the other. Each image that has a blob stands for one request
    /// that is still to come (a rule of succession): of what was asked for little that is all there is to know, later requests decide.
    pub fn priority(&self, value: &Value, facts: &Facts) -> f64 {
        /// A second saved for a GB, and an image that was run once, are the least that is worth something.
        const SECONDS_A_BYTE: f64 = 1e-9;
        let expected = facts.demand + f64::from(facts.sharing.saturating_sub(1));
        let saved = value.per_byte(facts.bytes, expected);
        let shared = SharingRuns.rank(facts.sharing, facts.demand);
        weight(self.value) * magnitude(saved / SECONDS_A_BYTE)
            + weight(self.sharing_runs) * magnitude(shared)
    }

    /// By how much the priority of a blob that lies on the disk has to exceed that of what would leave for it: a quarter of what both
    /// would save. Less is within what a few requests more or less make of it, and each exchange takes time of the disk.
    pub fn margin(&self) -> f64 {
        (weight(self.value) + weight(self.sharing_runs)) * magnitude(0.25)
    }
}

/// 0 for nothing; a factor of what is large is the same step everywhere.
fn magnitude(of: f64) -> f64 {
    of.clamp(0.0, f64::MAX).ln_1p()
}

/// What comes from a configuration is not trusted to be a sensible number.
fn weight(of: f64) -> f64 {
    if of.is_finite() {
        of.clamp(0.0, 1e6)
    } else {
        0.0
    }
}
