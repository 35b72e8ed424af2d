//! Simulates pulls by any number of machines, beyond those that can be measured.
//!
//! Assumptions:
//! - Concurrent jobs share a link, or the DPU's cores, evenly.
//! - Each image has a constant start time (connections, manifest, slow start), whatever its size.
//! - A machine pulls its images one after the other.
//! - A blob crosses the uplink once, and no machine has an image before it is complete.
//! - The cache evicts nothing, no packet is lost, and no machine is slower than its share of the
//!   DPU.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::shared::{Shared, Time};

/// Bytes of a tag's revalidation on the uplink: a conditional request and its response, with all
/// headers.
const REVALIDATION: f64 = 1_000.0;
/// Seconds until a tag is revalidated: the default of `tags.ttl`.
const FRESHNESS: f64 = 60.0;

/// An image in the simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    pub(super) bytes: f64,
    pub(super) requests: f64,
}

/// The constants of the simulation. All except for the cores come from measurements.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// Rate for all machines together in bytes per second.
    pub(super) uplink: f64,
    pub(super) dpu_link: f64,
    /// Start time of an image in seconds.
    pub(super) begin: Begin,
    /// CPU seconds of pierhead per served byte, per stored byte, and per request.
    pub(super) cpu_byte: f64,
    pub(super) cpu_stored: f64,
    pub(super) cpu_request: f64,
    /// Number of DPU cores.
    pub(super) cores: f64,
    /// Bytes on the uplink for each byte of a blob.
    pub(super) wire: f64,
    pub(super) images: Vec<Image>,
}

/// Start times by the way of the pull.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) direct: f64,
    pub(super) empty: f64,
    pub(super) warm: f64,
}

/// The way in which the machines pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    /// Through a pierhead with an empty cache.
    Empty,
    /// Through a pierhead that has all blobs in its cache.
    Warm,
}

/// The results of a simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Mean seconds of a machine for all images.
    pub(super) mean: f64,
    pub(super) last: f64,
    /// Bytes over the uplink.
    pub(super) upstream: f64,
    /// CPU seconds of pierhead for one image of one machine.
    pub(super) cpu: f64,
}

/// One machine and the image that it pulls.
type Pull = (usize, usize);

struct Run<'a> {
    world: &'a World,
    way: Way,
    /// The pulls that are in their start time, the earliest end first.
    asking: BinaryHeap<Reverse<(Time, Pull)>>,
    uplink: Shared<Pull>,
    dpu_link: Shared<Pull>,
    /// For each image: whether it was requested, and whether it is cached.
    requested: Vec<bool>,
    here: Vec<bool>,
    /// For each image: the pulls that wait for the uplink.
    waiting: Vec<Vec<usize>>,
    /// For each tag: the time of its last revalidation.
    fresh: Vec<f64>,
    starts: Vec<f64>,
    ended: Vec<f64>,
    upstream: f64,
}

/// Simulates a wave. The starts of the machines are spread evenly over `spread` seconds; 0: all
/// start at once.
pub(super) fn simulate(world: &World, machines: usize, way: Way, spread: f64) -> Outcome {
    let images = world.images.len();
    let is_here = way == Way::Warm;
    let mut run = Run {
        world,
        way,
        asking: BinaryHeap::new(),
        uplink: Shared::new(),
        dpu_link: Shared::new(),
        requested: vec![is_here; images],
        here: vec![is_here; images],
        waiting: vec![Vec::new(); images],
        fresh: vec![if is_here { 0.0 } else { f64::NEG_INFINITY }; images],
        starts: Vec::with_capacity(machines),
        ended: vec![0.0; machines],
        upstream: 0.0,
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let count = machines as f64;
    for machine in 0..machines {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let now = spread * machine as f64 / count;
        run.starts.push(now);
        run.begin(now, (machine, 0));
    }
    run.finish();
    let spent: f64 = run
        .ended
        .iter()
        .zip(&run.starts)
        .map(|(it, at)| it - at)
        .sum();
    #[expect(clippy::cast_precision_loss, reason = "some images")]
    let pulls = count * images as f64;
    let (bytes, requests) = world.sums();
    let cpu = match way {
        Way::Direct => 0.0,
        Way::Empty => bytes * world.cpu_stored,
        Way::Warm => 0.0,
    };
    let served = match way {
        Way::Direct => 0.0,
        _ => count * (bytes * world.cpu_byte + requests * world.cpu_request),
    };
    Outcome {
        mean: spent / count,
        last: run.ended.iter().fold(0.0, |last, end| last.max(*end)),
        upstream: run.upstream,
        cpu: (cpu + served) / pulls,
    }
}

impl World {
    /// Bytes and requests of all images.
    pub(super) fn sums(&self) -> (f64, f64) {
        let images = self.images.iter();
        images.fold((0.0, 0.0), |sum, it| {
            (sum.0 + it.bytes, sum.1 + it.requests)
        })
    }

    /// Seconds that the DPU needs for one pull: the time of its link or of its cores, whichever is
    /// longer.
    fn serving(&self, image: &Image) -> f64 {
        let cpu = image.bytes * self.cpu_byte + image.requests * self.cpu_request;
        (image.bytes / self.dpu_link).max(cpu / self.cores)
    }
}

impl Run<'_> {
    fn finish(&mut self) {
        loop {
            let asking = self.asking.peek().map(|Reverse((Time(at), _))| *at);
            let ends = [asking, self.uplink.next(), self.dpu_link.next()];
            let next = (0..ends.len())
                .filter_map(|nth| Some((Time(ends[nth]?), nth)))
                .min();
            let Some((Time(now), nth)) = next else { return };
            match nth {
                0 => {
                    if let Some(Reverse((_, pull))) = self.asking.pop() {
                        self.ask(now, pull);
                    }
                }
                1 => {
                    if let Some(pull) = self.uplink.done(now) {
                        self.arrived(now, pull);
                    }
                }
                _ => {
                    if let Some((machine, image)) = self.dpu_link.done(now) {
                        if self.here[image] {
                            self.has(now, (machine, image));
                        } else {
                            self.waiting[image].push(machine);
                        }
                    }
                }
            }
        }
    }

    fn begin(&mut self, now: f64, pull: Pull) {
        let begin = self.world.begin;
        let takes = match self.way {
            Way::Direct => begin.direct,
            _ if self.here[pull.1] => begin.warm,
            _ => begin.empty,
        };
        self.asking.push(Reverse((Time(now + takes), pull)));
    }

    fn ask(&mut self, now: f64, pull: Pull) {
        let image = pull.1;
        let wanted = self.world.images[image];
        let crossing = wanted.bytes / self.world.uplink;
        if self.way == Way::Direct {
            self.upstream += wanted.bytes * self.world.wire;
            self.uplink.add(now, pull, crossing);
            return;
        }
        if !self.requested[image] {
            self.requested[image] = true;
            self.fresh[image] = now;
            self.upstream += wanted.bytes * self.world.wire;
            self.uplink.add(now, pull, crossing);
        } else if now >= self.fresh[image] + FRESHNESS {
            self.fresh[image] = now;
            self.upstream += REVALIDATION;
        }
        self.dpu_link.add(now, pull, self.world.serving(&wanted));
    }

    /// An image has completely crossed the uplink.
    fn arrived(&mut self, now: f64, pull: Pull) {
        if self.way == Way::Direct {
            self.has(now, pull);
            return;
        }
        let image = pull.1;
        self.here[image] = true;
        for machine in std::mem::take(&mut self.waiting[image]) {
            self.has(now, (machine, image));
        }
    }

    fn has(&mut self, now: f64, (machine, image): Pull) {
        if image + 1 < self.world.images.len() {
            self.begin(now, (machine, image + 1));
        } else {
            self.ended[machine] = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> World {
        let image = |bytes| Image {
            bytes,
            requests: 4.0,
        };
        World {
            uplink: 100.0,
            dpu_link: 1_000.0,
            begin: Begin {
                direct: 0.5,
                empty: 0.6,
                warm: 0.1,
            },
            cpu_byte: 0.000_1,
            cpu_stored: 0.001,
            cpu_request: 0.001,
            cores: 2.0,
            wire: 1.05,
            images: vec![image(1_000.0), image(3_000.0)],
        }
    }

    fn close(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-6 * other.max(1.0), "{one} {other}");
    }

    #[test]
    fn one_machine_is_limited_by_its_bytes() {
        let world = world();
        close(simulate(&world, 1, Way::Direct, 0.0).mean, 2.0 * 0.5 + 40.0);
        close(simulate(&world, 1, Way::Empty, 0.0).mean, 2.0 * 0.6 + 40.0);
        close(simulate(&world, 1, Way::Warm, 0.0).mean, 2.0 * 0.1 + 4.0);
    }

    #[test]
    fn many_machines_share_the_bottleneck() {
        let world = world();
        let direct = simulate(&world, 50, Way::Direct, 0.0);
        close(direct.mean, 2.0 * 0.5 + 50.0 * 40.0);
        close(direct.upstream, 50.0 * 4_000.0 * 1.05);
        // With five machines the uplink is the bottleneck, with fifty the DPU.
        close(simulate(&world, 5, Way::Empty, 0.0).mean, 2.0 * 0.6 + 40.0);
        let empty = simulate(&world, 50, Way::Empty, 0.0);
        close(empty.mean, 2.0 * 0.6 + 50.0 * 4.0);
        close(empty.upstream, 4_000.0 * 1.05);
        close(empty.cpu, (4.0 + 50.0 * (0.4 + 0.008)) / 100.0);
    }

    #[test]
    fn few_cores_limit_the_dpu() {
        let slow = World {
            cores: 0.01,
            ..world()
        };
        let warm = simulate(&slow, 10, Way::Warm, 0.0);
        close(warm.mean, 2.0 * 0.1 + 10.0 * (0.4 + 0.008) / 0.01);
    }

    #[test]
    fn separate_machines_do_not_wait_and_stale_tags_are_revalidated() {
        let world = world();
        let warm = simulate(&world, 10, Way::Warm, 1_000.0);
        close(warm.mean, 2.0 * 0.1 + 4.0);
        close(warm.last, 900.0 + 4.2);
        // Every machine except for the first finds both tags stale.
        close(warm.upstream, 2.0 * 9.0 * REVALIDATION);
    }
}
