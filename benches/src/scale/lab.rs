//! One host in a box: a registry behind an uplink, a card, and virtual machines that reach everything through the card.
//!
//! The uplink is [`Link`]: the kernel's own TCP, a rate and a round trip. The machines hang on a bridge of the card, whose way
//! out is limited by the kernel (`tbf`). Whoever pulls directly is routed through the card and takes the same uplink.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::layout::Layout;
use crate::link::{self, Link, ONE_RUN_TEACHES_NONE};
use crate::namespace::Namespace;
use crate::process::checked;

/// Of the card, towards its machines.
const CARD: Ipv4Addr = Ipv4Addr::new(10, 214, 0, 1);
/// Its machines' network.
const BITS: u8 = 16;
/// Of the registry and of pierhead, each at an address of its own.
const PORT: u16 = 5000;

/// How fast it is.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) round_trip: Duration,
    /// Towards the card, from the registry.
    pub(super) uplink_mbit: u64,
    /// Towards all machines together, from the card.
    pub(super) card_mbit: u64,
}

/// It goes with its namespaces.
pub(super) struct Lab {
    link: Link,
    pub(super) machines: Vec<Namespace>,
}

impl Lab {
    /// With so many machines, and a registry that has this layout. Root only.
    pub(super) fn up(machines: usize, shape: &Shape, layout: &Layout) -> Result<Self> {
        let mut lab = Self {
            link: Link::up()?,
            machines: Vec::new(),
        };
        let (registry, card) = (&lab.link.server, &lab.link.client);
        registry.ip(&format!(
            "route add {}/{BITS} via {}",
            network(),
            link::CLIENT
        ))?;
        card.ip(&format!(
            "link add br0 type bridge\naddr add {CARD}/{BITS} dev br0\nlink set br0 txqueuelen 10000 up"
        ))?;
        card.ipv4(&[("ip_forward", "1")])?;
        let rate = format!("{}mbit", shape.card_mbit);
        checked(card.command("tc").args([
            "qdisc", "add", "dev", "br0", "root", "tbf", "rate", &rate, "burst", "1m", "latency",
            "100ms",
        ]))
        .context("a kernel with the queueing discipline tbf")?;
        for nth in 0..machines {
            let machine = Namespace::new()?;
            card.ip(&format!(
                "link add m{nth} type veth peer name eth0 netns {}\nlink set m{nth} master br0 up",
                machine.id()
            ))?;
            machine.ip(&format!(
                "addr add {}/{BITS} dev eth0\nlink set eth0 up\nroute add default via {CARD}",
                address(nth)?
            ))?;
            machine.ipv4(&[ONE_RUN_TEACHES_NONE])?;
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

    /// The registry, as the machines reach it.
    pub(super) fn registry(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(link::SERVER.parse()?, PORT))
    }

    /// Where pierhead shall listen.
    pub(super) fn card(&self) -> (&Namespace, SocketAddr) {
        (&self.link.client, SocketAddr::from((CARD, PORT)))
    }

    /// Bytes that came over the uplink so far, with all headers.
    pub(super) fn down(&self) -> u64 {
        self.link.traffic().down
    }
}

fn network() -> Ipv4Addr {
    Ipv4Addr::from(u32::from(CARD) & (u32::MAX << (32 - u32::from(BITS))))
}

fn address(nth: usize) -> Result<Ipv4Addr> {
    Ok(Ipv4Addr::from(u32::from(CARD) + 1 + u32::try_from(nth)?))
}
