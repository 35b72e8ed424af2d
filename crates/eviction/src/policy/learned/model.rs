//! The neural network of the policy `learned`: computes the logarithm of a key's request rate from
//! its inputs.
//!
//! Let two keys have the request rates λa and λb. The probability that a is requested first is λa /
//! (λa + λb), the logistic function of ln λa − ln λb (Bradley and Terry, Biometrika 39, 1952). A
//! score that is fitted to such pairs by the logistic loss (Burges et al., "Learning to rank using
//! gradient descent", ICML '05, section 4) is therefore ln λ plus a constant. The rate can
//! therefore be multiplied with the cost of a miss.

use serde::{Deserialize, Serialize};

use super::features::{self, Features, INPUTS};
use crate::building_blocks::hash::draw;

/// Number of units of the hidden layer.
const HIDDEN: usize = 16;

const BIAS: usize = INPUTS * HIDDEN;
const OUT: usize = BIAS + HIDDEN;
const DIRECT: usize = OUT + HIDDEN;
/// Maximum absolute value of a weight. The maximum is far above the results of training. The
/// maximum is low enough that products over two layers stay far below the limit of an `f32`.
pub(super) const LARGEST: f32 = 1e9;
/// Number of weights of the network.
pub(super) const WEIGHTS: usize = DIRECT + INPUTS;

/// The network: one hidden layer of rectified linear units, and a direct connection from each input
/// to the output. The weights of the direct connections start with the values of the heuristic.
/// Thus an untrained network ranks keys like the heuristic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Model {
    /// All weights in this order: the weights of the hidden layer, the biases of its units, the
    /// output weights of its units, and the weights of the direct connections. The weights of the
    /// hidden layer are ordered by input, so that the contributions of one input to all units are
    /// added at once.
    pub(super) weights: Vec<f32>,
}

/// The outputs of the units of the hidden layer.
pub(super) type Hidden = [f32; HIDDEN];

impl Model {
    /// Creates an untrained network. `seed` is the seed of the random weights of the hidden layer,
    /// whose output weights are 0.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut weights = vec![0.0; WEIGHTS];
        for weight in &mut weights[..BIAS] {
            // The weights are uniform in ±0.43. With this range, the output of a unit has about the
            // same variance as an input.
            let unit = (draw(&mut state) >> 40) as f32 / (1u64 << 24) as f32;
            *weight = (unit - 0.5) * 0.86;
        }
        weights[DIRECT..].copy_from_slice(&features::heuristic());
        Self { weights }
    }

    /// Whether a saved model has the right number of weights, and all weights are small enough that
    /// no score can overflow.
    pub(super) fn is_valid(&self) -> bool {
        self.weights.len() == WEIGHTS && self.weights.iter().all(|weight| weight.abs() <= LARGEST)
    }

    /// Computes the score of a key and the outputs of the hidden layer.
    pub(super) fn forward(&self, features: &Features) -> (f32, Hidden) {
        let (rows, rest) = self.weights.split_at(BIAS);
        let (bias, rest) = rest.split_at(HIDDEN);
        let (out, direct) = rest.split_at(HIDDEN);
        let mut hidden = [0.0; HIDDEN];
        hidden.copy_from_slice(bias);
        let mut score = 0.0;
        for ((x, row), way) in features.iter().zip(rows.chunks_exact(HIDDEN)).zip(direct) {
            for (unit, weight) in hidden.iter_mut().zip(row) {
                *unit += x * weight;
            }
            score += x * way;
        }
        for (unit, weight) in hidden.iter_mut().zip(out) {
            *unit = unit.max(0.0);
            score += *unit * weight;
        }
        (score, hidden)
    }

    /// Adds the gradient of a loss to `gradient`. `by` is the derivative of the loss with respect
    /// to the score.
    pub(super) fn backward(
        &self,
        features: &Features,
        hidden: &Hidden,
        by: f32,
        gradient: &mut [f32],
    ) {
        let out = &self.weights[OUT..DIRECT];
        let mut below = [0.0; HIDDEN];
        for ((below, unit), weight) in below.iter_mut().zip(hidden).zip(out) {
            *below = if *unit > 0.0 { by * weight } else { 0.0 };
        }
        let (rows, rest) = gradient.split_at_mut(BIAS);
        let (bias, rest) = rest.split_at_mut(HIDDEN);
        let (out, direct) = rest.split_at_mut(HIDDEN);
        for ((x, row), way) in features
            .iter()
            .zip(rows.chunks_exact_mut(HIDDEN))
            .zip(direct)
        {
            for (slope, below) in row.iter_mut().zip(&below) {
                *slope += x * below;
            }
            *way += by * x;
        }
        for (slope, below) in bias.iter_mut().zip(&below) {
            *slope += below;
        }
        for (slope, unit) in out.iter_mut().zip(hidden) {
            *slope += by * unit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(seed: u64) -> Features {
        let mut state = seed;
        std::array::from_fn(|_| (draw(&mut state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    }

    /// In a test, creates a model in which each part contributes to the score.
    fn model() -> Model {
        let mut model = Model::new(1);
        for (n, weight) in model.weights[OUT..DIRECT].iter_mut().enumerate() {
            *weight = 0.1 * n as f32 - 0.7;
        }
        model
    }

    #[test]
    fn an_untrained_model_scores_as_the_heuristic_does() {
        let point = point(2);
        let heuristic = features::heuristic();
        let direct = heuristic.iter().zip(&point);
        let expected: f32 = direct.map(|(weight, x)| weight * x).sum();
        assert_eq!(Model::new(1).forward(&point).0, expected);
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_score() {
        let (model, point) = (model(), point(3));
        let (_, hidden) = model.forward(&point);
        let mut gradient = vec![0.0; WEIGHTS];
        model.backward(&point, &hidden, 1.0, &mut gradient);
        for (n, expected) in gradient.iter().enumerate() {
            let moved = |by: f32| {
                let mut model = model.clone();
                model.weights[n] += by;
                model.forward(&point).0
            };
            let slope = (moved(0.01) - moved(-0.01)) / 0.02;
            assert!((slope - expected).abs() < 0.01, "weight {n}");
        }
    }

    #[test]
    fn a_model_with_nan_or_of_another_shape_is_invalid() {
        assert!(model().is_valid());
        let mut other = model();
        other.weights[5] = f32::NAN;
        assert!(!other.is_valid());
        let mut other = model();
        other.weights.pop();
        assert!(!other.is_valid());
    }
}
