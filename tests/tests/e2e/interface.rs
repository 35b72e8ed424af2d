//! End-to-end tests of `network.interface`: pierhead listens on the addresses of one interface
//! only.

use std::thread;

use anyhow::Result;
use pierhead_tests::{
    namespace::{self, Network},
    paths,
    pierhead::{Options, Pierhead},
    tool::or_skip,
};

/// A network with two interfaces, each with one address.
fn two_interfaces() -> Result<Network> {
    let network = Network::new()?;
    for words in [
        "link add p0 type veth peer name p1",
        "address add 192.0.2.1/24 dev p0",
        "address add 198.51.100.1/24 dev p1",
        "link set p0 up",
        "link set p1 up",
    ] {
        network.ip(words)?;
    }
    Ok(network)
}

fn on(network: &Network, interface: &str) -> Options {
    Options::new()
        .inside(
            network
                .enter()
                .into_iter()
                .chain(namespace::without_capabilities())
                .collect(),
        )
        .config(&format!("network.interface = {interface:?}"))
        .argument("--listen")
        .argument("0.0.0.0:5000")
}

/// pierhead runs without capabilities, and listens on one interface. The kernel refuses connections
/// to addresses of other interfaces.
#[test]
fn only_the_addresses_of_the_interface_are_served() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let network = two_interfaces()?;
    let mut pierhead = Pierhead::start(on(&network, "p0"))?;
    for (address, status) in [
        ("192.0.2.1", Some(200)),
        ("198.51.100.1", None),
        ("127.0.0.1", None),
    ] {
        let url = format!("http://{address}:5000/v2/");
        assert_eq!(network.get(&url)?, status, "{url}\n{}", pierhead.log());
    }
    // pierhead also serves an address that the interface gets later.
    network.ip("address add 203.0.113.1/24 dev p0")?;
    network.ip("address add 203.0.113.9/24 dev p1")?;
    pierhead.daemon().until("the new address", |log| {
        Ok(log
            .contains("also listening on 203.0.113.1:5000")
            .then_some(()))
    })?;
    assert_eq!(network.get("http://203.0.113.1:5000/v2/")?, Some(200));
    assert_eq!(network.get("http://203.0.113.9:5000/v2/")?, None);
    // pierhead stops serving an address that the interface loses.
    network.ip("address del 203.0.113.1/24 dev p0")?;
    pierhead.daemon().until("the removed address", |log| {
        Ok(log
            .contains("closed the listener on 203.0.113.1:5000")
            .then_some(()))
    })?;
    assert_eq!(network.get("http://192.0.2.1:5000/v2/")?, Some(200));
    Ok(())
}

/// The network interface appears after pierhead starts, as the representor interfaces of a DPU do.
#[test]
fn a_late_interface_is_waited_for() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let network = Network::new()?;
    let pierhead = Pierhead::start_while(on(&network, "late0"), |daemon| {
        daemon.until("waiting", |log| {
            Ok(log
                .contains("waiting up to 30s for the interface")
                .then_some(()))
        })?;
        network.ip("link add late0 type veth peer name late1")?;
        network.ip("link set late0 up")?;
        network.ip("address add 192.0.2.7/24 dev late0")
    })?;
    assert_eq!(
        network.get("http://192.0.2.7:5000/v2/")?,
        Some(200),
        "{}",
        pierhead.log()
    );
    Ok(())
}

/// pierhead listens on all addresses, one of which belongs to the management link of a DPU.
#[test]
fn listening_on_the_management_link_logs_a_warning() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let network = two_interfaces()?;
    network.ip("link add tmfifo_net0 type veth peer name host0")?;
    network.ip("address add 192.168.100.2/30 dev tmfifo_net0")?;
    let all = Options::new()
        .inside(network.enter())
        .argument("--listen")
        .argument("0.0.0.0:5000");
    let warning = "includes 192.168.100.2, which is on tmfifo_net0";
    let pierhead = Pierhead::start(all)?;
    assert!(pierhead.log().contains(warning), "{}", pierhead.log());
    // Ends the daemon, because the next daemon uses the same port.
    drop(pierhead);
    let chosen = Pierhead::start(on(&network, "p0"))?;
    assert!(!chosen.log().contains("tmfifo_net0"), "{}", chosen.log());
    Ok(())
}

#[test]
fn a_missing_interface_and_one_without_address_have_an_exit_code() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let network = two_interfaces()?;
    network.ip("link add bare0 type veth peer name bare1")?;
    network.ip("link add up0 type veth peer name up1")?;
    network.ip("link set up0 up")?;
    let folder = paths::scratch("interface")?;
    // Each daemon waits for the interface until the time limit of a start.
    let refused = |interface: &str, words: &[&str]| -> Result<()> {
        let data = folder.path().join(interface);
        let (status, output) = Pierhead::refuses(&on(&network, interface).data(&data))?;
        assert_eq!(status.code(), Some(68), "{interface}: {output}");
        for word in ["network.interface", "waited 30s"].iter().chain(words) {
            assert!(
                output.contains(word),
                "{interface}: {word:?} is missing in: {output}"
            );
        }
        assert!(!data.exists(), "the data folder was opened before");
        Ok(())
    };
    thread::scope(|scope| {
        let cases = [
            ("gone0", &["\"gone0\"", "p0, ", "name one of these"][..]),
            ("bare0", &["ip link set bare0 up"]),
            ("up0", &["no IPv4 address", "ip address add"]),
        ];
        let refused = &refused;
        let cases = cases.map(|(interface, words)| scope.spawn(move || refused(interface, words)));
        for case in cases {
            case.join().expect("no panic")?;
        }
        Ok(())
    })
}
