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

    /// How long it is kept. Each rule counts from 0 to 1, so that seconds a byte can be added to counts: half of it is
    /// at a second saved for a GB, and at one image run once.
    pub fn priority(&self, value: &Value, facts: &Facts) -> f64 {
        const SECONDS_A_BYTE: f64 = 1e-9;
        let part = |weight_of: f64, amount: f64, half: f64| {
            let share = if amount.is_finite() {
                amount / (amount + half)
            } else {
                1.0
            };
            weight(weight_of) * share
        };
        let saved = value.per_byte(facts.bytes, facts.demand);
        let shared = SharingRuns.rank(facts.sharing, facts.demand);
        part(self.value, saved, SECONDS_A_BYTE) + part(self.sharing_runs, shared, 1.0)
    }
}

/// What comes from a configuration is not trusted to be a sensible number.
fn weight(of: f64) -> f64 {
    if of.is_finite() {
        of.clamp(0.0, 1e6)
    } else {
        0.0
    }
}
