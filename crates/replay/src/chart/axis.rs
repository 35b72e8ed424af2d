//! An axis of a line chart: computes the positions of values, and has labelled ticks.

/// A linear or logarithmic axis.
#[derive(Clone, Debug)]
pub struct Axis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
    /// The ticks of the axis, in ascending order.
    pub(crate) ticks: Vec<Tick>,
}

/// A labelled position on an axis.
#[derive(Clone, Debug)]
pub struct Tick {
    /// The value at the tick, in units of the axis.
    pub at: f64,
    /// The label of the tick, which may be empty.
    pub label: String,
    /// A smaller text below the label, which may be empty.
    pub note: String,
}

impl Axis {
    /// Creates a linear axis.
    pub fn linear(from: f64, to: f64, ticks: Vec<Tick>) -> Self {
        Self {
            from,
            to,
            is_logarithmic: false,
            ticks,
        }
    }

    /// Creates a logarithmic axis. Values that are not positive lie at its beginning.
    pub fn logarithmic(from: f64, to: f64, ticks: Vec<Tick>) -> Self {
        Self {
            from,
            to,
            is_logarithmic: true,
            ticks,
        }
    }

    /// Creates a logarithmic axis over the whole decades that contain all values, with a tick at
    /// each decade.
    pub fn decades(values: impl IntoIterator<Item = f64>, label: impl Fn(f64) -> String) -> Self {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.into_iter().filter(|it| *it > 0.0 && it.is_finite()) {
            least = least.min(value.log10().floor());
            most = most.max(value.log10().ceil());
        }
        if least > most {
            (least, most) = (0.0, 1.0);
        }
        most = most.max(least + 1.0);
        let mut ticks = Vec::new();
        let mut decade = least;
        while decade <= most {
            let at = 10_f64.powf(decade);
            ticks.push(Tick::new(at, label(at)));
            decade += 1.0;
        }
        Self::logarithmic(10_f64.powf(least), 10_f64.powf(most), ticks)
    }

    /// Returns the position of a value: 0 at the beginning of the axis, and 1 at its end. If the
    /// axis has no length, the position is 0.5.
    pub(crate) fn share(&self, value: f64) -> f64 {
        let place = |value: f64| match self.is_logarithmic {
            true if value > 0.0 => value.ln(),
            true => self.from.ln(),
            false => value,
        };
        let (from, to) = (place(self.from), place(self.to));
        match to - from {
            length if length > 0.0 => ((place(value) - from) / length).clamp(0.0, 1.0),
            _ => 0.5,
        }
    }
}

impl Tick {
    /// Creates a tick without a note.
    pub fn new(at: f64, label: impl Into<String>) -> Self {
        Self {
            at,
            label: label.into(),
            note: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decades_are_evenly_spaced_and_contain_every_value() {
        let axis = Axis::decades([0.003, 40.0, 0.0, f64::NAN], |at| format!("{at}"));
        let shares: Vec<_> = axis.ticks.iter().map(|it| axis.share(it.at)).collect();
        let even = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
        assert_eq!(shares.len(), even.len());
        for (share, even) in shares.iter().zip(even) {
            assert!((share - even).abs() < 1e-9, "{shares:?}");
        }
        assert!(axis.share(0.003) > 0.0 && axis.share(40.0) < 1.0);
    }

    #[test]
    fn values_outside_of_the_axis_lie_at_its_ends() {
        let axis = Axis::decades([1.0, 1000.0], |_| String::new());
        for (value, share) in [(0.0, 0.0), (-3.0, 0.0), (1e-9, 0.0), (1e9, 1.0)] {
            assert!((axis.share(value) - share).abs() < 1e-9, "{value}");
        }
        // An axis with one value has no length.
        let point = Axis::logarithmic(7.0, 7.0, Vec::new());
        assert!((point.share(7.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn an_axis_without_values_has_ticks() {
        assert_eq!(Axis::decades([], |_| String::new()).ticks.len(), 2);
    }
}
