//! Keys of `[network]`.

use super::key::{Key, Reload, quote};
use super::kind::Kind;
use crate::config::Config;

/// The interface of the management link between a host and its DPU, on both ends; a second card has `tmfifo_net1`.
pub(crate) const MANAGEMENT: &str = "tmfifo_net";
/// The kernel's IFNAMSIZ, less the zero byte.
const MAX_NAME_BYTES: usize = 15;

/// What `[network]` may hold.
pub(super) static KEYS: &[Key<Config>] = &[Key {
    section: "network",
    name: "interface",
    help: "The interface of the clients, such as \"pf0hpf\": 0.0.0.0 and [::] in listen then mean its addresses alone, and \
               new ones within seconds. A start waits 30s for the interface and its first address. pierhead refuses the \
               management link of a DPU (tmfifo_net0). It does not affect admin.",
    kind: Kind::Text,
    example: "\"cache0\"",
    reload: Reload::Restart(|new, old| new.network.clone_from(&old.network)),
    set: |config, value| interface(value.text()?).map(|it| config.network.interface = Some(it)),
    show: |config| config.network.interface.as_deref().map(quote),
}];

/// A name that an interface may have.
fn interface(name: &str) -> Result<String, String> {
    // What the kernel takes, and no alternative names, which `ip` knows and sockets do not.
    let is_name = (1..=MAX_NAME_BYTES).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name
            .bytes()
            .any(|byte| byte.is_ascii_whitespace() || b"/:".contains(&byte) || byte < b' ');
    if !is_name {
        return Err(format!(
            "{name:?} is not the name of an interface: write one of those that `ip -br link` shows"
        ));
    }
    if name.starts_with(MANAGEMENT) {
        return Err(format!(
            "{name} is the management link between a host and its DPU, where image data starves consoles and crawls: \
             name the interface of a physical or virtual function or its representor (docs of BlueField: addressing), or, \
             if it must be, write its address into listen"
        ));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_takes_and_no_management_link() {
        for good in ["lo", "pf0hpf", "en3f0pf0sf0", "br-ex.100", "a@b"] {
            assert_eq!(interface(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "a/b", "eth0:1", "a b", "sixteen-letters-"] {
            let output = interface(bad).unwrap_err();
            assert!(output.contains("ip -br link"), "{bad}: {output}");
        }
        for management in ["tmfifo_net0", "tmfifo_net1"] {
            let output = interface(management).unwrap_err();
            assert!(output.contains("management link"), "{output}");
        }
    }
}
