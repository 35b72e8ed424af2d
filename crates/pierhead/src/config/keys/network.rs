//! The configuration keys of `[network]`, as rows of the key table.

use super::key::{Key, Reload, quote};
use crate::config::Config;
use crate::config::kind::Kind;

/// Prefix of the name of the management link between a host and its DPU, on both ends of the link:
/// `tmfifo_net0`, or `tmfifo_net1` for a second DPU in the host.
pub(crate) const MANAGEMENT: &str = "tmfifo_net";
/// Maximum length of the name of an interface in bytes: the kernel's `IFNAMSIZ` without the zero
/// byte.
const MAX_NAME_BYTES: usize = 15;

/// The configuration keys of `[network]`.
pub(super) static KEYS: &[Key<Config>] = &[Key {
    section: "network",
    name: "interface",
    help: "Network interface for clients, such as \"pf0hpf\": 0.0.0.0 and [::] in listen then \
               stand for the addresses of this interface only. pierhead follows address changes \
               within 15s. A start waits up to 30s for the interface and its first address. \
               pierhead refuses the management link of a DPU (tmfifo_net0). This key does not \
               affect admin.",
    kind: Kind::Text,
    example: "\"cache0\"",
    reload: Reload::Restart(|new, old| new.network.clone_from(&old.network)),
    set: |config, value| {
        parse_interface(value.text()?).map(|it| config.network.interface = Some(it))
    },
    show: |config| config.network.interface.as_deref().map(quote),
}];

/// Parses the name of a network interface.
fn parse_interface(name: &str) -> Result<String, String> {
    // The kernel's rules for the names of interfaces. Alternative names of interfaces are not
    // valid, since sockets do not accept them.
    let is_name = (1..=MAX_NAME_BYTES).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name
            .bytes()
            .any(|byte| byte.is_ascii_whitespace() || b"/:".contains(&byte) || byte < b' ');
    if !is_name {
        return Err(format!(
            "{name:?} is not the name of an interface: write a name from `ip -br link`"
        ));
    }
    if name.starts_with(MANAGEMENT) {
        return Err(format!(
            "{name} is the management link between a host and its DPU: image data on it is slow and starves the consoles. \
             Write the interface of a physical or virtual function or its representor (docs/how-to/dpu-addressing.md), or \
             write the address of the management link into listen"
        ));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_interface_name_is_accepted_and_a_management_link_is_not() {
        for good in ["lo", "pf0hpf", "en3f0pf0sf0", "br-ex.100", "a@b"] {
            assert_eq!(parse_interface(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "a/b", "eth0:1", "a b", "sixteen-letters-"] {
            let output = parse_interface(bad).unwrap_err();
            assert!(output.contains("ip -br link"), "{bad}: {output}");
        }
        for management in ["tmfifo_net0", "tmfifo_net1"] {
            let output = parse_interface(management).unwrap_err();
            assert!(output.contains("management link"), "{output}");
        }
    }
}
