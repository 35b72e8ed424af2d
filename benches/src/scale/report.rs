//! Prints the tables and draws the figure of the scale benchmark.

use pierhead_replay::chart::{Axis, Band, Figure, Line, Marks, Panel};

use super::fit::{Fitted, deviation};
use super::machine::ImageRequests;
use super::simulation::{Outcome, Way, World, simulate};
use super::waves::Row;

/// The ways to pull, each with its name in the tables.
const WAYS: [(Way, &str); 3] = [
    (Way::Direct, "direct"),
    (Way::Empty, "pierhead, empty"),
    (Way::Warm, "pierhead, warm"),
];
/// The reduction of the pull time that the paper on AlphaBoot (image distribution through the DPU)
/// reports: the minimum and maximum over its images.
const PAPER: (f64, f64) = (0.528, 0.926);
/// Maximum number of machines per DPU. More machines have several DPUs.
const MACHINES_PER_DPU: usize = 64;

/// The simulated results for one number of machines.
pub(super) struct Simulated {
    machines: usize,
    /// The outcomes in the order of [`WAYS`].
    ways: [Outcome; 3],
}

/// Simulates each number of machines. The starts of the machines are spread evenly over `spread`
/// seconds.
pub(super) fn simulated(world: &World, machines: &[usize], spread: f64) -> Vec<Simulated> {
    let one = |&machines: &usize| Simulated {
        machines,
        ways: WAYS.map(|(way, _)| simulate(world, machines, way, spread)),
    };
    machines.iter().map(one).collect()
}

/// Prints the table of measurements.
pub(super) fn measured(rows: &[Row], images: &[ImageRequests]) {
    let bytes: u64 = images.iter().map(ImageRequests::bytes).sum();
    println!(
        "\n{} images, {:.1} MB of blobs, pulled one after the other by all machines at once\n",
        images.len(),
        crate::statistics::mega(bytes)
    );
    println!(
        "| machines | MB over the uplink: direct / empty / warm | less than direct: empty / warm | mean s of a machine: direct / empty / warm | last machine, s | shorter than direct: empty / warm | of single images | CPU ms a pull: empty / warm | CPU-s/GB, warm |"
    );
    println!("|--:|{}", "---|".repeat(8));
    for row in rows {
        let waves = [&row.direct, &row.empty, &row.warm];
        let less = |of: f64, than: f64| 100.0 * (1.0 - of / than);
        let [direct, empty, warm] = waves.map(|wave| wave.whole());
        let single = |wave: &super::waves::Wave| {
            let pairs = wave.seconds.iter().zip(&row.direct.seconds);
            let gains = pairs.map(|(ours, direct)| less(*ours, *direct));
            let (least, most) = gains.fold((f64::INFINITY, f64::NEG_INFINITY), |it, gain| {
                (it.0.min(gain), it.1.max(gain))
            });
            format!("{least:.1} to {most:.1} %")
        };
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let (pulls, served) = (
            (row.machines * images.len()) as f64,
            row.machines as f64 * bytes as f64,
        );
        println!(
            "| {} | {} | {:.2} / {:.3} % | {direct:.2} / {empty:.2} / {warm:.3} | {} | {:.1} / {:.1} % | {} / {} | {:.1} / {:.1} | {:.2} |",
            row.machines,
            waves
                .map(|wave| format!("{:.2}", wave.down / 1e6))
                .join(" / "),
            less(row.empty.down, row.direct.down),
            less(row.warm.down, row.direct.down),
            waves.map(|wave| format!("{:.2}", wave.last)).join(" / "),
            less(empty, direct),
            less(warm, direct),
            single(&row.empty),
            single(&row.warm),
            1e3 * row.empty.cpu / pulls,
            1e3 * row.warm.cpu / pulls,
            row.warm.cpu / served * 1e9,
        );
    }
    println!(
        "\nAlphaBoot's mark: {:.1} to {:.1} % shorter, by image",
        100.0 * PAPER.0,
        100.0 * PAPER.1
    );
}

/// Prints the constants, and the deviation of the simulation from each row.
pub(super) fn checked(fitted: &Fitted, rows: &[Row]) {
    let world = &fitted.world;
    println!(
        "\nconstants, from up to {} machines: uplink {:.1} MB/s, DPU link {:.0} MB/s; beginning an image: direct {:.1} ms, empty {:.1} ms, \
         warm {:.1} ms; CPU-s/GB: served {:.3}, stored {:.3}; {:.1} µs a request; {:.4} bytes on the uplink a byte; {} cores\n",
        fitted.most,
        world.uplink / 1e6,
        world.dpu_link / 1e6,
        1e3 * world.begin.direct,
        1e3 * world.begin.empty,
        1e3 * world.begin.warm,
        1e9 * world.cpu_byte,
        1e9 * world.cpu_stored,
        1e6 * world.cpu_request,
        world.wire,
        world.cores,
    );
    println!("| simulated against measured, mean s | direct | pierhead, empty | warm | |");
    println!("|--:|--:|--:|--:|---|");
    for row in rows {
        let off = WAYS.map(|(way, _)| {
            let off = deviation(world, row, way);
            format!("{:+.1} %", 100.0 * off)
        });
        let how = match row.machines > fitted.most {
            true => "predicted",
            false => "fitted",
        };
        println!("| {} | {} | {how} |", row.machines, off.join(" | "));
    }
}

/// Prints the table of simulations.
pub(super) fn simulated_table(outcomes: &[Simulated]) {
    let Some(one) = outcomes.first().map(|it| it.ways[1].upstream) else {
        return;
    };
    println!(
        "\n| machines, simulated | MB over the uplink: direct / pierhead | less | with {MACHINES_PER_DPU} machines per DPU | mean s: direct / empty / warm | last s: direct / empty | shorter: empty / warm | CPU ms a pull: empty / warm |"
    );
    println!("|--:|{}", "---|".repeat(7));
    for Simulated { machines, ways } in outcomes {
        let [direct, empty, warm] = ways;
        let less = |of: f64, than: f64| 100.0 * (1.0 - of / than);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let dpus = machines.div_ceil(MACHINES_PER_DPU) as f64;
        println!(
            "| {machines} | {:.0} / {:.1} | {:.4} % | {:.2} % | {:.2} / {:.2} / {:.2} | {:.2} / {:.2} | {:.2} / {:.2} % | {:.2} / {:.2} |",
            direct.upstream / 1e6,
            empty.upstream / 1e6,
            less(empty.upstream, direct.upstream),
            less(dpus * one, direct.upstream),
            direct.mean,
            empty.mean,
            warm.mean,
            direct.last,
            empty.last,
            less(empty.mean, direct.mean),
            less(warm.mean, direct.mean),
            1e3 * empty.cpu,
            1e3 * warm.cpu,
        );
    }
}

/// The figure: lines are simulated, dots are measured.
pub(super) fn figure(title: &str, rows: &[Row], outcomes: &[Simulated]) -> Figure {
    let dots = |of: &dyn Fn(&Row) -> [f64; 3]| -> Vec<(f64, [f64; 3])> {
        rows.iter()
            .map(|row| (axis_value(row.machines), of(row)))
            .collect()
    };
    let lines = |of: &dyn Fn(&Outcome) -> f64| -> Vec<(f64, [f64; 3])> {
        outcomes
            .iter()
            .map(|it| {
                (
                    axis_value(it.machines),
                    [0, 1, 2].map(|way| of(&it.ways[way])),
                )
            })
            .collect()
    };
    let panels = [
        panel(
            "MB over the uplink",
            &dots(&|row| [&row.direct, &row.empty, &row.warm].map(|wave| drawn_mb(wave.down))),
            &lines(&|outcome| drawn_mb(outcome.upstream)),
        ),
        panel(
            "seconds until a machine has all images, mean",
            &dots(&|row| [&row.direct, &row.empty, &row.warm].map(|wave| wave.whole())),
            &lines(&|outcome| outcome.mean),
        ),
        panel(
            "CPU ms of pierhead for one pull of one image",
            &dots(&|row| {
                let pulls = axis_value(row.machines * row.direct.seconds.len());
                [0.0, row.empty.cpu, row.warm.cpu].map(|cpu| 1e3 * cpu / pulls)
            }),
            &lines(&|outcome| 1e3 * outcome.cpu),
        ),
    ];
    Figure {
        bands: vec![Band {
            title: title.to_owned(),
            panels: panels.into(),
            legend: WAYS.map(|(_, name)| name.to_owned()).into(),
        }],
    }
}

fn panel(title: &str, dots: &[(f64, [f64; 3])], lines: &[(f64, [f64; 3])]) -> Panel {
    let all = || dots.iter().chain(lines);
    // A logarithmic axis has no 0, so the figure leaves such points out.
    let drawn = |points: &[(f64, [f64; 3])], way: usize| -> Vec<(f64, f64)> {
        let points = points.iter().map(|(x, ways)| (*x, ways[way]));
        points.filter(|(_, y)| *y > 0.0).collect()
    };
    let mut shown = Vec::new();
    for (marks, points) in [(Marks::Line, lines), (Marks::Dots, dots)] {
        for style in 0..WAYS.len() {
            let points = drawn(points, style);
            if !points.is_empty() {
                shown.push(Line {
                    style,
                    marks,
                    points,
                });
            }
        }
    }
    Panel {
        title: title.to_owned(),
        below: "machines".to_owned(),
        x: Axis::decades(all().map(|(x, _)| *x), short),
        y: Axis::decades(all().flat_map(|(_, ways)| *ways), short),
        lines: shown,
    }
}

/// Uplink bytes in MB for the figure. Values below 0.1 MB, which only revalidations of tags cause,
/// become 0, because they would stretch the logarithmic axis.
fn drawn_mb(bytes: f64) -> f64 {
    match bytes / 1e6 {
        mb if mb < 0.1 => 0.0,
        mb => mb,
    }
}

/// Formats a power of ten.
fn short(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{:.0} M", value / 1e6),
        _ if value >= 1e3 => format!("{:.0} k", value / 1e3),
        _ if value >= 1.0 => format!("{value:.0}"),
        _ => format!("{value}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a place in a drawing")]
fn axis_value(count: usize) -> f64 {
    count as f64
}
