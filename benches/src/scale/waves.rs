//! Measures waves of pulls. In a wave, all machines pull the same images at once: directly from the
//! registry, through a pierhead with an empty cache, or again through the same pierhead, whose
//! cache is then warm.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::lab::Lab;
use super::machine::ImageRequests;
use crate::client::Dial;
use crate::server::Server;
use crate::statistics::{mean, median};

/// Time until all threads are ready to start.
const HEAD_START: Duration = Duration::from_millis(300);
/// Time for the work that pierhead does after the last byte of a download: commit and write-back.
const FILL_END_TIME: Duration = Duration::from_millis(500);
/// Minimum number of pulls per measurement. Short waves are repeated, since the kernel counts CPU
/// in hundredths of a second.
const MIN_PULLS: usize = 32;
/// Number of requests from which the benchmark computes the cost of one request.
const PROBE_REQUESTS: u32 = 20_000;
/// Configuration without bundles, whose background work would count as CPU of the pulls.
const CONFIG: &str = "[bundle]\nsize = \"off\"\n";

/// The results of one wave.
#[derive(Clone)]
pub(super) struct Wave {
    /// Mean seconds over all machines, for each image.
    pub(super) seconds: Vec<f64>,
    /// Seconds until the last machine is complete.
    pub(super) last: f64,
    /// Bytes over the uplink.
    pub(super) down: f64,
    /// CPU seconds of pierhead.
    pub(super) cpu: f64,
}

/// All waves of one number of machines.
pub(super) struct Row {
    pub(super) machines: usize,
    pub(super) direct: Wave,
    pub(super) empty: Wave,
    pub(super) warm: Wave,
    /// CPU seconds of one small request.
    pub(super) request: f64,
}

impl Wave {
    /// Mean seconds of a machine for all images.
    pub(super) fn whole(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// The median of each value.
    fn median(waves: &[Self]) -> Result<Self> {
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

/// Measures all waves of this number of machines.
pub(super) fn row(
    lab: &Lab,
    pierhead: &Path,
    images: &[ImageRequests],
    machines: usize,
    runs: usize,
) -> Result<Row> {
    let (mut direct, mut empty, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    let mut requests = Vec::new();
    for _ in 0..runs {
        direct.push(wave(lab, images, machines, lab.registry()?)?);
        let (dpu, address) = lab.dpu();
        let server = Server::start(
            pierhead,
            &dpu.enter(),
            &address.to_string(),
            lab.registry()?,
            CONFIG,
        )?;
        let through = |looked: f64| -> Result<Wave> {
            let mut wave = wave(lab, images, machines, address)?;
            std::thread::sleep(FILL_END_TIME);
            wave.cpu = server.process.cpu_seconds()? - looked;
            Ok(wave)
        };
        empty.push(through(server.process.cpu_seconds()?)?);
        let times = MIN_PULLS.div_ceil(machines);
        let before = server.process.cpu_seconds()?;
        let mut repeats = Vec::new();
        for _ in 0..times {
            repeats.push(through(before)?);
        }
        let mut median = Wave::median(&repeats)?;
        #[expect(clippy::cast_precision_loss, reason = "some waves")]
        let times = times as f64;
        median.cpu = repeats.last().map_or(0.0, |last| last.cpu) / times;
        warm.push(median);
        requests.push(request(lab, &server, address, &images[0])?);
    }
    Ok(Row {
        machines,
        direct: Wave::median(&direct)?,
        empty: Wave::median(&empty)?,
        warm: Wave::median(&warm)?,
        request: median(&mut requests)?,
    })
}

fn wave(lab: &Lab, images: &[ImageRequests], machines: usize, from: SocketAddr) -> Result<Wave> {
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

/// CPU seconds of one manifest request by tag.
fn request(lab: &Lab, server: &Server, to: SocketAddr, image: &ImageRequests) -> Result<f64> {
    let machine = lab.machines.first().context("no machine")?;
    let before = server.process.cpu_seconds()?;
    machine.inside(|| {
        let mut connection = Dial { to, tls: None }.open()?;
        for _ in 0..PROBE_REQUESTS {
            connection.get(image.tag(), Instant::now())?;
        }
        Ok(())
    })?;
    Ok((server.process.cpu_seconds()? - before) / f64::from(PROBE_REQUESTS))
}
