//! Parses htpasswd files (users and bcrypt hashes, as `htpasswd -B` writes them) and verifies
//! passwords.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;

use pierhead_atomic_file::open_regular;
use zeroize::Zeroizing;

/// Maximum bytes of an htpasswd file: enough for 10 000 users with long names.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Accepted bcrypt costs. A cost that is higher by one doubles the time of a hash: cost 12 takes
/// about 0.2 s on a server's core. A hash that takes seconds would delay all other logins.
const COSTS: std::ops::RangeInclusive<u32> = 4..=14;
/// Cost of the hash against which the password of an unknown user is checked, if the file has no
/// users.
const DEFAULT_COST: u32 = 10;
/// Maximum bytes of a password. bcrypt uses only the first 72 bytes.
const MAX_PASSWORD_BYTES: usize = 1024;

/// The users of one htpasswd file.
#[derive(Clone)]
pub(crate) struct Users {
    hashes: HashMap<String, Zeroizing<String>>,
    /// A hash that no password matches. The cost of this hash is the highest in the file, so that a
    /// login of an unknown user takes as long as a login of a known user.
    unknown_user_hash: String,
}

/// Checks that an htpasswd file is readable and valid.
///
/// # Errors
/// A message with the path, the line and the problem. The message contains no hash.
pub fn check(path: &Path) -> Result<(), String> {
    Users::read(path).map(drop)
}

impl Users {
    /// The users of an htpasswd file that does not exist: none.
    pub(crate) fn none() -> Self {
        Self::of(HashMap::new(), DEFAULT_COST)
    }

    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let mut text = Zeroizing::new(String::new());
        let read = open_regular(path)
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
        match read {
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
            Ok(_) if text.len() as u64 > MAX_FILE_BYTES => {
                Err(format!("{} is larger than 1 MiB", path.display()))
            }
            Ok(_) => Self::parse(&text)
                .map_err(|(line, why)| format!("{}:{line}: {why}", path.display())),
        }
    }

    /// Parses the text of an htpasswd file. Never panics. The error has the line number, from 1.
    pub(crate) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut hashes = HashMap::new();
        let mut highest = 0;
        for (index, line) in text.lines().enumerate() {
            let wrong = |why: String| (index + 1, why);
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (user, hash) = line
                .split_once(':')
                .filter(|(user, _)| !user.is_empty())
                .ok_or_else(|| wrong("write USER:HASH, as `htpasswd -B` does".to_owned()))?;
            highest =
                highest.max(cost(hash).map_err(|why| wrong(format!("user {user:?}: {why}")))?);
            let hash = Zeroizing::new(hash.to_owned());
            if hashes.insert(user.to_owned(), hash).is_some() {
                return Err(wrong(format!("user {user:?} has two lines: keep one")));
            }
        }
        let highest = if hashes.is_empty() {
            DEFAULT_COST
        } else {
            highest
        };
        Ok(Self::of(hashes, highest))
    }

    fn of(hashes: HashMap<String, Zeroizing<String>>, cost: u32) -> Self {
        Self {
            hashes,
            unknown_user_hash: format!("$2b${cost:02}${}", ".".repeat(22 + 31)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    pub(crate) fn contains(&self, user: &str) -> bool {
        self.hashes.contains_key(user)
    }

    /// Whether the file has this user with this password. Takes tens of milliseconds of CPU time,
    /// even if the user does not exist.
    pub(crate) fn verify(&self, user: &str, password: &str) -> bool {
        let user_hash = self.hashes.get(user);
        let hash = user_hash.map_or(self.unknown_user_hash.as_str(), |hash| hash.as_str());
        let is_allowed = password.len() <= MAX_PASSWORD_BYTES && !password.contains('\0');
        let password = if is_allowed { password } else { "" };
        let matches = bcrypt::verify(password, hash).unwrap_or(false);
        matches && is_allowed && user_hash.is_some()
    }
}

/// Returns the cost of a bcrypt hash, or the reason why the text is not a bcrypt hash.
fn cost(hash: &str) -> Result<u32, String> {
    let refused = |kind: &str| {
        Err(format!(
            "{kind} is refused, since only bcrypt is strong enough: write the line with `htpasswd -B`"
        ))
    };
    let rest = ["$2y$", "$2b$", "$2a$"]
        .iter()
        .find_map(|prefix| hash.strip_prefix(prefix));
    let Some((cost, tail)) = rest.and_then(|rest| rest.split_once('$')) else {
        return match hash {
            _ if hash.starts_with("$apr1$") || hash.starts_with("$1$") => refused("MD5"),
            _ if hash.starts_with("{SHA}") => refused("SHA-1"),
            _ if hash.starts_with("$5$") || hash.starts_with("$6$") => refused("SHA-crypt"),
            _ => refused("this kind of hash (or a plain password)"),
        };
    };
    let alphabet = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/');
    if cost.len() != 2 || tail.len() != 53 || !tail.bytes().all(alphabet) {
        return Err(
            "the bcrypt hash is damaged: write the line again with `htpasswd -B`".to_owned(),
        );
    }
    match cost.parse() {
        Ok(cost) if COSTS.contains(&cost) => Ok(cost),
        _ => Err(format!(
            "the cost {cost} of the hash is out of range: use {} to {} (`htpasswd -B -C 10`)",
            COSTS.start(),
            COSTS.end()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str, password: &str) -> String {
        format!("{user}:{}\n", bcrypt::hash(password, 4).unwrap())
    }

    #[test]
    fn a_pipe_in_place_of_the_file_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let error = check(&pipe).unwrap_err();
        assert!(error.contains("a pipe"), "{error}");
    }

    #[test]
    fn a_password_is_right_for_its_own_user_only() {
        let text = format!("# people\n\n{}{}", line("ann", "one:two"), line("bob", "é"));
        let users = Users::parse(&text).unwrap();
        assert_eq!(users.len(), 2);
        assert!(users.verify("ann", "one:two") && users.verify("bob", "é"));
        for (user, password) in [
            ("ann", "é"),
            ("ann", ""),
            ("ann", "one:two\0"),
            ("ANN", "one:two"),
            ("", ""),
            ("carl", ""),
            ("carl", "one:two"),
        ] {
            assert!(!users.verify(user, password), "{user} {password}");
        }
        assert!(!Users::none().verify("ann", "one:two"));
    }

    /// The line that the test parses is the output of `htpasswd -nbB -C 5 user pass` of Apache.
    #[test]
    fn a_line_of_apache_is_accepted() {
        let hash = bcrypt::hash("pass", 5).unwrap().replacen("$2b$", "$2y$", 1);
        let users = Users::parse(&format!("user:{hash}\r\n")).unwrap();
        assert!(users.verify("user", "pass") && !users.verify("user", "Pass"));
    }

    /// The test compares the costs of the two hashes, because times of a test run are not reliable.
    #[test]
    fn an_unknown_user_costs_as_much_as_the_highest_cost() {
        let costly = bcrypt::hash("x", 6).unwrap();
        let users = Users::parse(&format!("{}b:{costly}\n", line("a", "x"))).unwrap();
        assert!(users.unknown_user_hash.starts_with("$2b$06$"));
        assert!(
            matches!(bcrypt::verify("", &users.unknown_user_hash), Ok(false)),
            "bcrypt computes it"
        );
        assert!(matches!(
            bcrypt::verify("", &Users::none().unknown_user_hash),
            Ok(false)
        ));
    }

    #[test]
    fn an_error_names_its_line_and_not_the_hash() {
        let good = line("a", "x");
        for (bad, expected) in [
            ("b:$apr1$salt$s3cret", "user \"b\": MD5 is refused"),
            ("b:{SHA}s3cret", "user \"b\": SHA-1 is refused"),
            ("b:$6$s3cret", "user \"b\": SHA-crypt is refused"),
            (
                "b:s3cret",
                "user \"b\": this kind of hash (or a plain password) is refused",
            ),
            ("b:$2y$10$s3cret", "user \"b\": the bcrypt hash is damaged"),
            ("nothing s3cret", "write USER:HASH"),
            (":s3cret", "write USER:HASH"),
            (good.trim_end(), "user \"a\" has two lines"),
        ] {
            let (line, why) = Users::parse(&format!("{good}# s3cret\n{bad}\n"))
                .err()
                .unwrap();
            assert_eq!(line, 3, "{bad}");
            assert!(
                why.starts_with(expected) && !why.contains("s3cret"),
                "{why}"
            );
        }
        let costly = good.replacen("$04$", "$31$", 1);
        let (_, why) = Users::parse(&costly).err().unwrap();
        assert!(why.contains("cost 31"), "{why}");
    }
}
