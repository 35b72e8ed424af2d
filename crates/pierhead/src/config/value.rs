//! Converts one TOML value to the Rust type that its key needs. The error for a wrong value names
//! the valid values.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::uri::Authority;
use pierhead_oci::{Registry, units};
use toml::de::DeValue;

use super::Size;
use super::kind::Kind;
use super::suggestion::suggest;

/// A TOML value, with the type of its key and the folder at which relative paths start.
pub(crate) struct Value<'a> {
    pub(crate) toml: &'a DeValue<'a>,
    pub(crate) base: &'a Path,
    pub(crate) kind: Kind,
}

impl Value<'_> {
    /// Returns the name of the value's type for an error message. The message never has the value
    /// itself, which may be a secret under a wrong key.
    fn type_name(&self) -> &'static str {
        match self.toml {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        }
    }

    fn wrong_type(&self, wanted: &str) -> String {
        format!("expected {wanted}, found {}", self.type_name())
    }

    pub(crate) fn text(&self) -> Result<&str, String> {
        self.toml
            .as_str()
            .ok_or_else(|| self.wrong_type("a string in quotes"))
    }

    /// Whether the value is the text `"off"`.
    pub(crate) fn is_off(&self) -> bool {
        self.toml.as_str() == Some("off")
    }

    pub(crate) fn boolean(&self) -> Result<bool, String> {
        self.toml
            .as_bool()
            .ok_or_else(|| self.wrong_type("true or false"))
    }

    fn integer(&self) -> Option<Result<u64, String>> {
        let integer = self.toml.as_integer()?;
        let parsed = u64::from_str_radix(integer.as_str(), integer.radix());
        Some(parsed.map_err(|_| format!("{integer} is not a whole number of 0 or more")))
    }

    fn out_of_range(&self, found: &str) -> String {
        format!("{found} is out of range: write {}", self.kind.phrase())
    }

    /// Reads a whole number within the range of the key.
    pub(crate) fn count(&self) -> Result<usize, String> {
        let number = self
            .integer()
            .ok_or_else(|| self.wrong_type("a whole number"))??;
        let Kind::Count { min, max } = self.kind else {
            return Err(self.wrong_type("another value"));
        };
        match usize::try_from(number) {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(format!("{number} is out of range: write {min} to {max}")),
        }
    }

    /// Reads a number of bytes within the range of the key, a share of the file system, or `auto`.
    pub(crate) fn size(&self) -> Result<Size, String> {
        let size = match self.integer() {
            Some(bytes) => Size::Bytes(units::bytes_without_unit(bytes?)?),
            None => self
                .toml
                .as_str()
                .ok_or_else(|| self.wrong_type("a size such as \"10GiB\""))?
                .parse()?,
        };
        match (size, self.kind) {
            (Size::Bytes(bytes), Kind::Size { min, .. }) if bytes > 0 && bytes < min => {
                Err(self.out_of_range(&units::exact_bytes(bytes)))
            }
            (Size::Percent(percent), Kind::Size { max_percent, .. }) if percent > max_percent => {
                Err(self.out_of_range(&format!("\"{size}\"")))
            }
            _ => Ok(size),
        }
    }

    /// Reads a number of bytes within the range of the key.
    pub(crate) fn bytes(&self) -> Result<u64, String> {
        let bytes = match self.integer() {
            Some(bytes) => units::bytes_without_unit(bytes?)?,
            None => {
                let text = self.toml.as_str();
                units::parse_bytes(text.ok_or_else(|| self.wrong_type("bytes such as \"4MiB\""))?)?
            }
        };
        let (min, max) = match self.kind {
            Kind::Bytes { min, max } => (min, max.unwrap_or(u64::MAX)),
            Kind::BytesOrOff { min, max } => (min, max),
            _ => (0, u64::MAX),
        };
        match (min..=max).contains(&bytes) {
            true => Ok(bytes),
            false => Err(self.out_of_range(&units::exact_bytes(bytes))),
        }
    }

    /// Reads one of the names that the key allows.
    pub(crate) fn choice(&self) -> Result<&'static str, String> {
        self.one_of_names(self.text()?)
    }

    /// Reads a list of names that the key allows, each at most once.
    pub(crate) fn choices(&self) -> Result<Vec<&'static str>, String> {
        let mut found = Vec::new();
        for name in self.names()? {
            match self.one_of_names(&name)? {
                name if found.contains(&name) => {
                    return Err(format!("{name:?} is named twice: keep one"));
                }
                name => found.push(name),
            }
        }
        Ok(found)
    }

    fn one_of_names(&self, name: &str) -> Result<&'static str, String> {
        let (Kind::Choice { noun, names } | Kind::Choices { noun, names }) = self.kind else {
            return Err(self.wrong_type("another value"));
        };
        let known = names();
        if let Some(known) = known.iter().find(|known| **known == name) {
            return Ok(known);
        }
        let hint = match suggest(name, known.iter().map(|known| (*known).to_owned())) {
            Some(near) => format!(" (did you mean {near:?}?)"),
            None => String::new(),
        };
        let known: Vec<_> = known.iter().map(|it| format!("{it:?}")).collect();
        Err(format!(
            "{name:?} is no {noun}{hint}: write {}",
            known.join(", ")
        ))
    }

    /// Reads a rate in bytes per second. Returns `None` for `"off"`.
    pub(crate) fn rate(&self) -> Result<Option<u64>, String> {
        match self.integer() {
            Some(bytes) => Ok(Some(units::parse_rate(&bytes?.to_string())?)),
            None => match self
                .toml
                .as_str()
                .ok_or_else(|| self.wrong_type("a rate such as \"100MB/s\", or \"off\""))?
            {
                "off" => Ok(None),
                text => Ok(Some(units::parse_rate(text)?)),
            },
        }
    }

    /// Reads a duration within the range of the key.
    pub(crate) fn duration(&self) -> Result<Duration, String> {
        let text = self
            .toml
            .as_str()
            .ok_or_else(|| self.wrong_type("a time such as \"60s\""))?;
        let duration = units::parse_duration(text)?;
        let Kind::Duration { min, max } = self.kind else {
            return Err(self.wrong_type("another value"));
        };
        if (min..=max).contains(&duration) {
            return Ok(duration);
        }
        let (min, max) = (
            humantime::format_duration(min),
            humantime::format_duration(max),
        );
        Err(format!("{text:?} is out of range: write {min} to {max}"))
    }

    /// Reads a path. A relative path starts at the folder of the configuration file.
    pub(crate) fn path(&self) -> Result<PathBuf, String> {
        match self.text()? {
            "" => Err("expected a path, found an empty string".to_owned()),
            text => Ok(self.base.join(text)),
        }
    }

    /// Reads a path. Returns `None` for `"off"`.
    pub(crate) fn optional_path(&self) -> Result<Option<PathBuf>, String> {
        match self.text()? {
            "off" => Ok(None),
            _ => self.path().map(Some),
        }
    }

    /// Reads a list of hosts: `host`, `host:port`, or either after `http://`.
    pub(crate) fn hosts(&self) -> Result<Vec<String>, String> {
        let wanted = "a list of hosts such as [\"auth.lab:5001\"]";
        let list = self
            .toml
            .as_array()
            .ok_or_else(|| self.wrong_type(wanted))?;
        let host = |item: &DeValue<'_>| {
            let text = item.as_str().ok_or_else(|| self.wrong_type(wanted))?;
            let bare = text.strip_prefix("http://").unwrap_or(text);
            match bare.parse::<Authority>() {
                Ok(authority) if !bare.contains('@') && !authority.host().is_empty() => {
                    Ok(text.to_owned())
                }
                _ => Err(format!(
                    "{text:?} is not a host: write HOST, HOST:PORT or http://HOST:PORT"
                )),
            }
        };
        list.iter().map(|item| host(item.get_ref())).collect()
    }

    /// Reads a list of patterns of registries and repositories.
    pub(crate) fn patterns(&self) -> Result<Vec<pierhead_proxy::Pattern>, String> {
        let wanted = "a list of patterns such as [\"docker.io/library/*\"]";
        let list = self
            .toml
            .as_array()
            .ok_or_else(|| self.wrong_type(wanted))?;
        list.iter()
            .map(|item| {
                let text = item
                    .get_ref()
                    .as_str()
                    .ok_or_else(|| self.wrong_type(wanted))?;
                text.parse()
            })
            .collect()
    }

    /// Reads one URL, or a list of at least one URL, without duplicates.
    pub(crate) fn urls(&self) -> Result<Vec<String>, String> {
        if let Some(url) = self.toml.as_str() {
            return Ok(vec![parse_url(url)?]);
        }
        let wanted = "a URL such as \"https://mirror.example\", or a list of them";
        let list = self
            .toml
            .as_array()
            .ok_or_else(|| self.wrong_type(wanted))?;
        let mut urls = Vec::new();
        for item in list {
            let url = parse_url(
                item.get_ref()
                    .as_str()
                    .ok_or_else(|| self.wrong_type(wanted))?,
            )?;
            if urls.contains(&url) {
                return Err(format!("{url:?} is named twice: keep one"));
            }
            urls.push(url);
        }
        match urls.is_empty() {
            true => Err(format!("expected {wanted}, found an empty list")),
            false => Ok(urls),
        }
    }

    /// Reads a list of names, none of which is empty.
    pub(crate) fn names(&self) -> Result<Vec<String>, String> {
        let wanted = "a list of names such as [\"node1.example\"]";
        let list = self
            .toml
            .as_array()
            .ok_or_else(|| self.wrong_type(wanted))?;
        let name = |item: &DeValue<'_>| match item.as_str() {
            Some("") | None => Err(self.wrong_type(wanted)),
            Some(text) => Ok(text.to_owned()),
        };
        list.iter().map(|item| name(item.get_ref())).collect()
    }

    /// Reads one socket address, or a list of at least one address.
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let Some(list) = self.toml.as_array() else {
            return Ok(vec![parse_address(self.text()?)?]);
        };
        if list.is_empty() {
            return Err("expected at least one address, such as \"0.0.0.0:5000\"".to_owned());
        }
        let items = list.iter().map(|item| Value {
            toml: item.get_ref(),
            base: self.base,
            kind: self.kind,
        });
        items.map(|item| parse_address(item.text()?)).collect()
    }
}

/// Parses a socket address: `IP:PORT` or `localhost:PORT`.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let with_localhost = text
        .strip_prefix("localhost:")
        .map(|port| format!("127.0.0.1:{port}"));
    let candidate = with_localhost.as_deref().unwrap_or(text);
    candidate.parse().map_err(|_| {
        format!("{text:?} is not an address to listen on: write IP:PORT, such as 0.0.0.0:5000, 127.0.0.1:5000 or [::]:5000")
    })
}

/// Parses the name of a registry. The error names the registry of a URL or of an image.
pub(crate) fn registry_name(text: &str) -> Result<Registry, String> {
    text.parse().map_err(|error| {
        let (_, rest) = text.split_once("://").unwrap_or(("", text));
        let host = rest.split('/').next().unwrap_or_default();
        match host.parse::<Registry>() {
            // An error for a URL must not repeat a password in it.
            Ok(host) if host.as_str() != text => {
                format!(
                    "this is a URL or an image, not the name of a registry: write {:?}",
                    host.as_str()
                )
            }
            _ => format!("{error}; write HOST or HOST:PORT, such as \"docker.io\""),
        }
    })
}

/// Parses the address of the admin listener. Returns `None` for `off`.
pub(crate) fn parse_admin(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    parse_address(text)
        .map(Some)
        .map_err(|message| format!("{message}, or \"off\""))
}

/// Parses the URL of a registry: `http(s)://HOST[:PORT][/PREFIX]`, without credentials, query or
/// fragment.
pub(crate) fn parse_url(text: &str) -> Result<String, String> {
    let error = |problem: &str| {
        Err(format!(
            "{problem}: write http://HOST[:PORT] or https://HOST[:PORT]"
        ))
    };
    let Ok(uri) = text.parse::<http::Uri>() else {
        return error("this is not a URL");
    };
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return error(&format!(
            "{text:?} has no http:// or https:// before a host"
        ));
    };
    // The error does not contain the URL, since the part before the @ may be a password.
    if authority.as_str().contains('@') {
        return error(
            "a URL must not contain a user or password; use the keys username and password_file",
        );
    }
    if authority.host().is_empty() || uri.query().is_some() || text.contains('#') {
        return error(&format!("{text:?} is not the address of a registry"));
    }
    let url = text.trim_end_matches('/');
    // pierhead puts the path of the URL before /v2.
    if let Some(without) = url.strip_suffix("/v2") {
        return Err(format!("leave out /v2: write {without}"));
    }
    Ok(url.to_owned())
}
