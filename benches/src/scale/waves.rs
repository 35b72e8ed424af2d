//! Waves: all machines pull the same images at once, straight from the registry, through a pierhead that has nothing, and
//! through it again.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::lab::Lab;
use super::machine::Wanted;
use crate::client::Dial;
use crate::figures::{mean, median};
use crate::server::Server;

/// Until all threads wait for the beginning.
const HEAD_START: Duration = Duration::from_millis(300);
/// What a fill does after its last byte has left: commit, write-back.
const TAIL: Duration = Duration::from_millis(500);
/// A wave that is over at once is repeated until so many machines have pulled: the kernel counts CPU in hundredths of a second.
const ENOUGH: usize = 32;
/// Requests from which the cost of one is taken.
const PROBE: u32 = 20_000;
/// What is measured is the way of pulls; bundles are made of their bytes later.
const CONFIG: &str = "[bundle]\nsize = \"off\"\n";

/// What one wave gave.
#[derive(Clone)]
pub(super) struct Wave {
    /// Of each image, the mean over all machines.
    pub(super) seconds: Vec<f64>,
    /// Until the last machine had everything.
    pub(super) last: f64,
    /// Bytes over the uplink.
    pub(super) down: f64,
    /// Of pierhead.
    pub(super) cpu: f64,
}

/// All waves of one number of machines.
pub(super) struct Row {
    pub(super) machines: usize,
    pub(super) direct: Wave,
    pub(super) first: Wave,
    pub(super) again: Wave,
    /// CPU seconds of one small request.
    pub(super) request: f64,
}

impl Wave {
    /// Of a machine, for all images.
    pub(super) fn whole(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// The middle one of each figure.
    fn middle(waves: &[Self]) -> Result<Self> {
        let of = |figure: &dyn Fn(&Self) -> f64| {
            median(&mut waves.iter().map(figure).collect::<Vec<_>>())
        };
        let images = waves.first().map_or(0, |it| it.seconds.len());
        Ok(Self {
            seconds: (0..images)
                .map(|nth| of(&|wave| wave.seconds[nth]))
                .collect::<Result<_>>()?,
            last: of(&|wave| wave.last)?,
            down: of(&|wave| wave.down)?,
            cpu: of(&|wave| wave.cpu)?,
        })
    }
}

/// Measures all waves of so many machines.
pub(super) fn row(
    lab: &Lab,
    pierhead: &Path,
    images: &[Wanted],
    machines: usize,
    runs: usize,
) -> Result<Row> {
    let (mut direct, mut first, mut again) = (Vec::new(), Vec::new(), Vec::new());
    let mut requests = Vec::new();
    for _ in 0..runs {
        direct.push(wave(lab, images, machines, lab.registry()?)?);
        let (card, address) = lab.card();
        let server = Server::start(
            pierhead,
            &card.prefix(),
            &address.to_string(),
            lab.registry()?,
            CONFIG,
        )?;
        let through = |looked: f64| -> Result<Wave> {
            let mut wave = wave(lab, images, machines, address)?;
            std::thread::sleep(TAIL);
            wave.cpu = server.process.cpu_seconds()? - looked;
            Ok(wave)
        };
        first.push(through(server.process.cpu_seconds()?)?);
        let times = ENOUGH.div_ceil(machines);
        let before = server.process.cpu_seconds()?;
        let mut warm = Vec::new();
        for _ in 0..times {
            warm.push(through(before)?);
        }
        let mut middle = Wave::middle(&warm)?;
        #[expect(clippy::cast_precision_loss, reason = "some waves")]
        let times = times as f64;
        middle.cpu = warm.last().map_or(0.0, |last| last.cpu) / times;
        again.push(middle);
        requests.push(request(lab, &server, address, &images[0])?);
    }
    Ok(Row {
        machines,
        direct: Wave::middle(&direct)?,
        first: Wave::middle(&first)?,
        again: Wave::middle(&again)?,
        request: median(&mut requests)?,
    })
}

fn wave(lab: &Lab, images: &[Wanted], machines: usize, from: SocketAddr) -> Result<Wave> {
    let before = lab.down();
    let begin = Instant::now() + HEAD_START;
    let pulls = std::thread::scope(|scope| {
        let threads: Vec<_> = lab.machines[..machines]
            .iter()
            .enumerate()
            .map(|(nth, machine)| {
                let pulls = move || -> Result<(Vec<f64>, f64)> {
                    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
                    let pulls = images.iter().map(|image| image.pull(from, nth == 0));
                    let seconds = pulls.collect::<Result<_>>()?;
                    Ok((seconds, begin.elapsed().as_secs_f64()))
                };
                scope.spawn(move || machine.inside(pulls))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().ok().context("a machine's thread panicked")?)
            .collect::<Result<Vec<_>>>()
    })?;
    let seconds = (0..images.len())
        .map(|image| mean(&pulls.iter().map(|(it, _)| it[image]).collect::<Vec<_>>()));
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let down = (lab.down() - before) as f64;
    Ok(Wave {
        seconds: seconds.collect(),
        last: pulls.iter().fold(0.0, |last, (_, end)| last.max(*end)),
        down,
        cpu: 0.0,
    })
}

/// CPU seconds of one request for a manifest by its tag.
fn request(lab: &Lab, server: &Server, to: SocketAddr, image: &Wanted) -> Result<f64> {
    let machine = lab.machines.first().context("no machine")?;
    let before = server.process.cpu_seconds()?;
    machine.inside(|| {
        let mut connection = Dial { to, tls: None }.open()?;
        for _ in 0..PROBE {
            connection.get(image.tag(), Instant::now())?;
        }
        Ok(())
    })?;
    Ok((server.process.cpu_seconds()? - before) / f64::from(PROBE))
}
