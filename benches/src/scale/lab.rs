//! Emulates one host by network namespaces: a registry behind an uplink, a DPU, and virtual
//! machines behind the DPU. The uplink is a [`Link`] with a rate and a round-trip time. The
//! machines are on a bridge of the DPU, whose rate the kernel limits (`tbf`). Direct pulls are
//! routed through the DPU and use the same uplink.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::layout::Layout;
use crate::link::{self, Link, NO_METRICS_SAVE};
use pierhead_tests::namespace::Network;
use pierhead_tests::process::run;

/// Address of the DPU on the bridge.
const DPU: Ipv4Addr = Ipv4Addr::new(10, 214, 0, 1);
/// Prefix length of the machines' network.
const BITS: u8 = 16;
/// Port of the registry and of pierhead, which have different addresses.
const PORT: u16 = 5000;

/// Rates and delay of the emulated host.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) round_trip: Duration,
    /// Rate from the registry to the DPU in Mbit/s.
    pub(super) uplink_mbit: u64,
    /// Rate from the DPU to all machines together in Mbit/s.
    pub(super) dpu_mbit: u64,
}

/// The emulated host. Dropping it removes its namespaces.
pub(super) struct Lab {
    link: Link,
    pub(super) machines: Vec<Network>,
}

impl Lab {
    /// Creates the emulated host with this number of virtual machines, and a registry that serves
    /// the images of this OCI layout. Needs root.
    pub(super) fn up(machines: usize, shape: &Shape, layout: &Layout) -> Result<Self> {
        let mut lab = Self {
            link: Link::up()?,
            machines: Vec::new(),
        };
        let (registry, dpu) = (&lab.link.server, &lab.link.client);
        registry.ip(&format!(
            "route add {}/{BITS} via {}",
            network(),
            link::CLIENT
        ))?;
        dpu.ip(&format!(
            "link add br0 type bridge\naddr add {DPU}/{BITS} dev br0\nlink set br0 txqueuelen 10000 up"
        ))?;
        dpu.ipv4(&[("ip_forward", "1")])?;
        let rate = format!("{}mbit", shape.dpu_mbit);
        run(dpu.command("tc").args([
            "qdisc", "add", "dev", "br0", "root", "tbf", "rate", &rate, "burst", "1m", "latency",
            "100ms",
        ]))
        .context("the kernel needs the queueing discipline tbf")?;
        for nth in 0..machines {
            let machine = Network::new()?;
            dpu.ip(&format!(
                "link add m{nth} type veth peer name eth0 netns {}\nlink set m{nth} master br0 up",
                machine.id()
            ))?;
            machine.ip(&format!(
                "addr add {}/{BITS} dev eth0\nlink set eth0 up\nroute add default via {DPU}",
                address(nth)?
            ))?;
            machine.ipv4(&[NO_METRICS_SAVE])?;
            lab.machines.push(machine);
        }
        let listener = lab
            .link
            .server
            .inside(|| Ok(TcpListener::bind((link::SERVER, PORT))?))?;
        layout.serve(listener);
        lab.link.set(shape.round_trip, shape.uplink_mbit);
        Ok(lab)
    }

    /// The address of the registry for the machines.
    pub(super) fn registry(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(link::SERVER.parse()?, PORT))
    }

    /// The namespace and address for pierhead.
    pub(super) fn dpu(&self) -> (&Network, SocketAddr) {
        (&self.link.client, SocketAddr::from((DPU, PORT)))
    }

    /// Bytes received over the uplink, including all headers.
    pub(super) fn down(&self) -> u64 {
        self.link.traffic().down
    }
}

fn network() -> Ipv4Addr {
    Ipv4Addr::from(u32::from(DPU) & (u32::MAX << (32 - u32::from(BITS))))
}

fn address(nth: usize) -> Result<Ipv4Addr> {
    Ok(Ipv4Addr::from(u32::from(DPU) + 1 + u32::try_from(nth)?))
}
