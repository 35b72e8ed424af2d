//! A configuration that is wrong: refused before anything is opened, with what is wrong and where.

use std::fs;

use anyhow::Result;
use pierhead_tests::{
    pierhead::{self, Options, Pierhead},
    place,
};

/// Refused with all of these words, and without a data folder.
fn refused(toml: &str, words: &[&str]) -> Result<()> {
    let folder = place::scratch("config")?;
    let data = folder.path().join("data");
    let (status, said) = Pierhead::refuses(&Options::new().data(&data).config(toml))?;
    assert_eq!(status.code(), Some(2), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(
        !data.exists(),
        "something was opened before the configuration was known good"
    );
    Ok(())
}

#[test]
fn an_unknown_key() -> Result<()> {
    refused(
        "\n\n[cache]\nsizee = \"1GiB\"",
        &["pierhead.toml:4", "sizee", "size"],
    )
}

#[test]
fn a_bad_value() -> Result<()> {
    refused(
        "[tags]\nttl = \"soon\"",
        &["pierhead.toml:2", "tags.ttl", "soon"],
    )
}

#[test]
fn no_toml_at_all() -> Result<()> {
    refused("listen: 0.0.0.0:5000", &["pierhead.toml:1"])
}

/// Whoever reaches an address that is not loopback could pull what the credentials can.
#[test]
fn credentials_for_everybody() -> Result<()> {
    let folder = place::scratch("config")?;
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
    let (status, said) = Pierhead::refuses(&options().config(&toml))?;
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("allow_open_proxy_with_credentials"), "{said}");
    assert!(!said.contains("secret"), "{said}");
    Ok(())
}

/// What `config show` prints is a configuration again, and means the same.
#[test]
fn what_is_shown_is_understood() -> Result<()> {
    let folder = place::scratch("config")?;
    let file = folder.path().join("shown.toml");
    let path = file.display().to_string();
    let (status, shown) = pierhead::run(&["config", "show", "--default"])?;
    assert!(status.success(), "{shown}");
    fs::write(&file, &shown)?;
    let (status, said) = pierhead::run(&["config", "check", &path])?;
    assert!(status.success(), "{said}");
    let (_, again) = pierhead::run(&["config", "show", &path])?;
    assert_eq!(again, shown);
    Ok(())
}
