//! Checks that `serve` refuses an invalid configuration before it opens anything, and names the
//! error and its line.

use std::fs;

use anyhow::Result;
use pierhead_tests::{
    paths,
    pierhead::{self, Options, Pierhead},
};

/// Asserts that `serve` refuses the configuration, prints all of these words, and creates no data
/// folder.
fn assert_refused(toml: &str, words: &[&str]) -> Result<()> {
    let folder = paths::scratch("config")?;
    let data = folder.path().join("data");
    let (status, output) = Pierhead::refuses(&Options::new().data(&data).config(toml))?;
    assert_eq!(status.code(), Some(2), "{output}");
    for word in words {
        assert!(output.contains(word), "{word:?} is missing in: {output}");
    }
    assert!(
        !data.exists(),
        "the data folder was created before the configuration was validated"
    );
    Ok(())
}

#[test]
fn an_unknown_key_is_refused() -> Result<()> {
    assert_refused(
        "\n\n[cache]\nsizee = \"1GiB\"",
        &["pierhead.toml:4", "sizee", "size"],
    )
}

#[test]
fn an_invalid_value_is_refused() -> Result<()> {
    assert_refused(
        "[tags]\nttl = \"soon\"",
        &["pierhead.toml:2", "tags.ttl", "soon"],
    )
}

#[test]
fn invalid_toml_is_refused() -> Result<()> {
    assert_refused("listen: 0.0.0.0:5000", &["pierhead.toml:1"])
}

/// With upstream credentials and a non-loopback address, every client that reaches the address
/// could use the credentials. Therefore pierhead refuses a configuration with upstream credentials
/// and a non-loopback address without client authentication.
#[test]
fn upstream_credentials_on_a_public_address_need_authentication() -> Result<()> {
    let folder = paths::scratch("config")?;
    let password = folder.path().join("password");
    fs::write(&password, "secret")?;
    let toml = format!(
        "[upstreams.\"registry.example\"]\nusername = \"me\"\npassword_file = {password:?}"
    );
    let options = || {
        Options::new()
            .data(&folder.path().join("data"))
            .argument("--listen")
            .argument("0.0.0.0:0")
    };
    let (status, output) = Pierhead::refuses(&options().config(&toml))?;
    assert_eq!(status.code(), Some(2), "{output}");
    assert!(
        output.contains("allow_open_proxy_with_credentials"),
        "{output}"
    );
    assert!(!output.contains("secret"), "{output}");
    Ok(())
}

/// The output of `config show` is a configuration with the same meaning.
#[test]
fn the_output_of_config_show_is_a_valid_configuration() -> Result<()> {
    let folder = paths::scratch("config")?;
    let file = folder.path().join("shown.toml");
    let path = file.display().to_string();
    let (status, shown) = pierhead::run(&["config", "show", "--default"])?;
    assert!(status.success(), "{shown}");
    fs::write(&file, &shown)?;
    let (status, output) = pierhead::run(&["config", "check", &path])?;
    assert!(status.success(), "{output}");
    let (_, again) = pierhead::run(&["config", "show", &path])?;
    assert_eq!(again, shown);
    Ok(())
}
